"""Reference laws in numpy, and tests of draws against them."""

import numpy as np
from scipy import special, stats

from dpjax.testing import count_false_alarm

ALARM = 1e-8
POWER = 1e-6


def softmax(logits):
    return special.softmax(np.asarray(logits, np.float64))


def law_pvalue(draws, law):
    """Chi-square of frequencies; vertices expected fewer than 10 times are pooled."""
    draws, law = np.asarray(draws).ravel(), np.asarray(law, np.float64)
    assert draws.min() >= 0
    assert draws.max() < law.size
    counts = np.bincount(draws, minlength=law.size)
    expected = law * draws.size
    assert not counts[law == 0].any()
    rare = expected < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    if observed.size == 1:
        return 1.0
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    return float(stats.chi2.sf(statistic, observed.size - 1))


def assert_follows(draws, law):
    count_false_alarm(ALARM)
    assert law_pvalue(draws, law) > ALARM


def assert_law(draws, logits):
    """Accepts the softmax of `logits`, and rejects that of 2/3 and of 3/2 of them."""
    assert_follows(draws, softmax(logits))
    for factor in (2 / 3, 3 / 2):
        assert law_pvalue(draws, softmax(factor * np.asarray(logits, np.float64))) < POWER
