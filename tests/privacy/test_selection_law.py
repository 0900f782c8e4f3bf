"""The law of the number of runs."""

import math

import numpy as np
import pytest
from scipy import stats

from dpjax.privacy import RunsLaw
from tests.privacy.selection_brute import generating

LAWS = [
    RunsLaw(16.0, -0.5),
    RunsLaw(8.0),
    RunsLaw(16.0, 2.0),
    RunsLaw(16.0, 1.0, max_runs=64),
    RunsLaw(4.0, 0.0, max_runs=20),
    RunsLaw(1.0, 1.0, max_runs=4),
]


@pytest.mark.parametrize(
    ("mean", "shape", "gamma"),
    [
        (16, -0.5, 0.00104058),
        (8, 0, 0.0363385),
        (16, 0, 0.0145627),
        (64, 0, 0.00262187),
        (16, 1, 0.0625),
    ],
)
def test_gamma_gives_the_mean(mean, shape, gamma):
    assert math.isclose(RunsLaw(mean, shape).gamma, gamma, rel_tol=5e-6)


@pytest.mark.parametrize(
    ("shape", "max_runs", "gamma", "once"),
    [
        (1, 32, 0.00585, 0.034),
        (1, 48, 0.0469, 0.052),
        (1, 64, 0.0571, 0.058),
        (0, 96, 0.00524, 0.212),
        (0, 128, 0.0101, 0.222),
    ],
)
def test_gamma_of_the_cut_law(shape, max_runs, gamma, once):
    law = RunsLaw(16, shape, max_runs)
    assert math.isclose(law.gamma, gamma, rel_tol=5e-3)
    assert abs(law.pmf(1) - once) < 6e-4


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_pmf_derivatives_and_mean_agree(law):
    k = np.arange(1, 200_000 if law.max_runs is None else law.max_runs + 1)
    pmf = law.pmf(k)
    assert abs(pmf.sum() - 1) < 1e-9
    assert abs(pmf @ k / law.mean - 1) < 1e-9
    for q in (0.0, 0.3, 0.9, 0.99):
        assert np.isclose(pmf @ q ** k.astype(float), generating(law, q), atol=1e-12)
        tail = np.array([1 - q])
        first = pmf @ (k * q ** (k - 1.0))
        second = pmf[1:] @ ((k * (k - 1))[1:] * q ** (k[1:] - 2.0))
        assert np.isclose(law.derivative(tail)[0], first, rtol=1e-9)
        assert np.isclose(law.derivative(tail, 2)[0], second, rtol=1e-9, atol=1e-12)
    assert np.isclose(law.derivative(np.zeros(1))[0], law.mean, rtol=1e-9)


def test_draws_follow_the_pmf():
    law, other = RunsLaw(8.0, 1.0, max_runs=32), RunsLaw(9.0, 1.0, max_runs=32)
    uniforms = np.random.default_rng(0).random(20_000)
    counts = np.bincount([law.draw(u) for u in uniforms], minlength=33)[1:]
    k = np.arange(1, 33)
    assert counts.sum() == 20_000
    assert stats.chisquare(counts, 20_000 * law.pmf(k)).pvalue > 1e-3
    assert stats.chisquare(counts, 20_000 * other.pmf(k)).pvalue < 1e-6  # would be seen


def test_ends_of_the_draw():
    law = RunsLaw(8.0, 1.0, max_runs=32)
    assert law.draw(0.0) == 1
    assert law.draw(math.nextafter(1.0, 0.0)) == 32
    assert RunsLaw(1.0, 1.0, max_runs=4).draw(0.9999) == 1
    with pytest.raises(ValueError, match="max_runs"):
        RunsLaw(8.0).draw(0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.5,), "mean"),
        ((1.0,), "mean"),
        ((math.inf,), "mean"),
        ((16.0, -1.0), "shape"),
        ((16.0, math.nan), "shape"),
        ((16.0, 0.0, 64), "max_runs must be larger"),
        ((16.0, 0.0, 0), "max_runs"),
        ((2.0, 0.0, 1), "mean must be 1"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        RunsLaw(*arguments)
