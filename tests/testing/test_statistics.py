import numpy as np
import pytest
from scipy import stats

import dpjax.testing as dpt
from dpjax.testing import _statistics


def gaussian(scale):
    return stats.norm(scale=scale).cdf


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_scale_accepts_the_truth(rng, scale):
    dpt.check_scale(scale * rng.normal(size=3000), gaussian, scale)


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_scale_rejects_wrong_scales(rng, factor):
    with pytest.raises(AssertionError, match="do not follow"):
        dpt.check_scale(factor * rng.normal(size=3000), gaussian, 1.0)


def test_scale_demands_power(rng):
    with pytest.raises(AssertionError, match="50 samples cannot tell the scale 1 from"):
        dpt.check_scale(rng.normal(size=50), gaussian, 1.0)
    with pytest.raises(ValueError, match="scale must be > 0"):
        dpt.check_scale(rng.normal(size=50), gaussian, 0.0)


def test_distribution(rng):
    samples = rng.normal(size=3000)
    assert dpt.check_distribution(samples, stats.norm.cdf) <= 1
    for wrong in (samples + 0.3, np.abs(samples), rng.laplace(scale=2**-0.5, size=20_000)):
        with pytest.raises(AssertionError, match=r"noise do not follow.*p = .* < 1e-09"):
            dpt.check_distribution(wrong, stats.norm.cdf, name="noise")
    for broken in ([], [np.nan], [1.0, np.inf]):
        with pytest.raises(AssertionError, match="finite"):
            dpt.check_distribution(broken, stats.norm.cdf)


def test_false_alarms_are_as_rare_as_stated(rng, monkeypatch):
    monkeypatch.setattr(_statistics, "_stated", [])  # these alarms are wanted
    level, runs = 0.05, 400
    alarms = 0
    for _ in range(runs):
        try:
            dpt.check_distribution(rng.normal(size=50), stats.norm.cdf, false_alarm=level)
        except AssertionError:
            alarms += 1
    monkeypatch.undo()
    dpt.count_false_alarm(1e-6)
    assert stats.binomtest(alarms, runs, level).pvalue > 1e-6
    for bad in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="false_alarm"):
            dpt.check_distribution([0.0], stats.norm.cdf, false_alarm=bad)


def test_counts(rng):
    weights = np.array([0.5, 0.3, 0.2])
    observed = rng.multinomial(6000, weights)
    pvalue = dpt.check_counts(observed, weights)
    assert dpt.check_counts(observed, 10 * weights) == pytest.approx(pvalue)
    with pytest.raises(AssertionError, match="worst cell"):
        dpt.check_counts(observed, weights[::-1])
    with pytest.raises(AssertionError, match=r"impossible, cells \[2\]"):
        dpt.check_counts(observed, [0.6, 0.4, 0.0])
    with pytest.raises(ValueError, match="agree in shape"):
        dpt.check_counts(observed, weights[:2])
    with pytest.raises(ValueError, match="fewer than 2 cells"):
        dpt.check_counts([3, 2], [0.5, 0.5])


def test_counts_pools_rare_cells(rng):
    law = stats.poisson(3.0)
    observed = np.bincount(law.rvs(5000, random_state=rng), minlength=40)[:40]
    dpt.check_counts(observed, law.pmf(np.arange(40)))
    with pytest.raises(AssertionError):
        dpt.check_counts(observed, stats.poisson(3.5).pmf(np.arange(40)))


def test_uncorrelated(rng):
    a = rng.normal(size=2000)
    dpt.check_uncorrelated(a, rng.normal(size=2000))
    with pytest.raises(AssertionError, match="stages are correlated"):
        dpt.check_uncorrelated(a, a + 3 * rng.normal(size=2000), name="stages")


def test_levels_are_added_up(rng, monkeypatch):
    monkeypatch.setattr(_statistics, "_stated", [])
    assert dpt.false_alarms() == (0, 0.0)
    draws = rng.normal(size=2000)
    dpt.check_distribution(draws, stats.norm.cdf, false_alarm=1e-3)
    dpt.check_scale(draws, gaussian, 1.0, false_alarm=1e-4)  # its power half alarms on purpose
    dpt.check_counts([48, 52], [1, 1], false_alarm=1e-5)
    dpt.check_uncorrelated(draws, draws[::-1], false_alarm=1e-6)
    dpt.count_false_alarm(1e-7)
    count, level = dpt.false_alarms()
    assert (count, level) == (5, pytest.approx(0.0011111))
    for bad in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="probability"):
            dpt.count_false_alarm(bad)
    assert dpt.false_alarms() == (count, level)
