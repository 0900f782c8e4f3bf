"""Draws of a sampler as a dense table of who takes part, and tests of its distribution."""

import functools

import jax
import numpy as np
from scipy import stats

from dpjax.testing import count_false_alarm

ALARM = 1e-7


def accept(pvalue):
    """Fails with probability `ALARM` though the law is right."""
    count_false_alarm(ALARM)
    assert pvalue > ALARM


@functools.partial(jax.jit, static_argnums=(0, 2))
def _scan(sampler, xs, num_records):
    return jax.lax.scan(lambda c, x: (c, sampler.batch(x, num_records)), None, xs)[1]


def batches(sampler, seed, num_records):
    """Indices and masks of a whole run, `[steps, capacity]`."""
    xs = sampler.plan(jax.random.key(seed), num_records)
    return tuple(np.asarray(a) for a in _scan(sampler, xs, num_records))


def members(sampler, seed, num_records):
    """Who takes part, `[steps, num_records]` bool; checks that nobody does so twice."""
    indices, mask = batches(sampler, seed, num_records)
    assert indices.dtype == np.int32
    assert indices.min() >= 0
    assert indices.max() < num_records
    count = np.zeros((sampler.steps, num_records), dtype=int)
    np.add.at(count, (np.nonzero(mask)[0], indices[mask]), 1)
    assert count.max() <= 1
    return count.astype(bool)


def rate_pvalue(table, rate):
    """Each record's number of steps against Binomial(steps, rate), as a sum of squares."""
    steps, n = table.shape
    z = (table.sum(0) - steps * rate) / np.sqrt(steps * rate * (1 - rate))
    # two-sided: too even a spread is as wrong as too uneven a one
    return 2 * min(stats.chi2.sf((z**2).sum(), n), stats.chi2.cdf((z**2).sum(), n))


def pair_pvalue(table, rate, lag):
    """Correlation of records `i` and `i + lag` within a step."""
    centred = (table - rate) / np.sqrt(rate * (1 - rate))
    products = centred[:, :-lag] * centred[:, lag:]
    return 2 * stats.norm.sf(abs(products.sum()) / np.sqrt(products.size))


def step_pvalue(table, rate):
    """Correlation of one record in consecutive steps."""
    return pair_pvalue(table.T, rate, 1)


def size_pvalue(table, rate):
    """Batch sizes against Binomial(n, rate), bins merged until each expects ten."""
    steps, n = table.shape
    sizes = table.sum(1)
    edges = np.unique(stats.binom.ppf(np.linspace(0, 1, 31)[1:-1], n, rate))
    cdf = np.concatenate([[0.0], stats.binom.cdf(edges, n, rate), [1.0]])
    observed = np.bincount(np.searchsorted(edges, sizes), minlength=len(edges) + 1)
    expected = np.diff(cdf) * steps
    keep = expected > 0
    assert expected[keep].min() > 5
    return stats.chisquare(observed[keep], expected[keep]).pvalue


def subset_pvalue(table, probability):
    """Frequencies of all subsets of a few records against `probability(members)`."""
    steps, n = table.shape
    codes = table @ (1 << np.arange(n))
    subsets = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    expected = np.array([probability(s) for s in subsets]) * steps
    observed = np.bincount(codes, minlength=2**n)
    assert observed[expected == 0].sum() == 0
    keep = expected > 0
    return stats.chisquare(observed[keep], expected[keep]).pvalue
