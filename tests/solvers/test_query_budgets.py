"""Query release: noise and epsilon against numbers worked out elsewhere."""

import math

import numpy as np
import pytest
from query_runs import ADD, REPLACE
from scipy import special

import dpjax
from dpjax.privacy import bounded_range_rho
from dpjax.problems import QueryRelease
from dpjax.queries import Domain, Marginals
from dpjax.solvers import (
    MWEM,
    FrankWolfeRelease,
    GaussianFit,
    HistogramRelease,
    MirrorDescentRelease,
    SaddleRelease,
)

N, DELTA = 48_842, 1 / 48_842**2
ADULT = Domain(
    {
        "education": 16,
        "marital": 7,
        "occupation": 15,
        "race": 5,
        "sex": 2,
        "income": 2,
        "age": 10,
    }
)
PROBLEM = QueryRelease(Marginals.all_kway(ADULT, 3))
# the largest rho, and mu, of these epsilons at DELTA
RHO = {
    0.1: 1.6748e-4,
    0.15: 3.6689e-4,
    0.2: 6.3998e-4,
    0.25: 9.8525e-4,
    0.5: 3.7583e-3,
    1.0: 1.42703e-2,
}
MU = {0.1: 0.01932, 0.15: 0.02857, 0.2: 0.03771, 0.25: 0.04677, 0.5: 0.09118, 1.0: 0.17736}


PRINTED = {
    FrankWolfeRelease: dpjax.papers.query_release.frank_wolfe,
    MirrorDescentRelease: dpjax.papers.query_release.mirror_descent,
    SaddleRelease: dpjax.papers.query_release.saddle,
}


def made(kind, epsilon, relation=REPLACE, **options):
    return kind.for_budget(PROBLEM, N, dpjax.Budget(epsilon, DELTA, relation=relation), **options)


def printed(kind, **options):
    budget = dpjax.Budget(1.0, DELTA, relation=REPLACE)
    return PRINTED[kind](PROBLEM, N, budget, **options)


@pytest.mark.parametrize("kind", PRINTED)
def test_the_old_spelling_of_what_is_published_warns(kind):
    with pytest.warns(DeprecationWarning, match=f"query_release.{PRINTED[kind].__name__}"):
        old = made(kind, 1.0, as_published=True)
    assert old == printed(kind)


@pytest.mark.parametrize("epsilon", RHO)
def test_selections_on_adult_spend_the_rho_of_the_budget(epsilon):
    rho, steps = RHO[epsilon], 100
    one = made(FrankWolfeRelease, epsilon, steps=steps, vertices="queries")
    assert steps * one.guarantee().event.event.rho == pytest.approx(rho, rel=1e-4)
    # R sqrt(T / 2 rho) / n, up to the rho of a draw being below eta^2 / 8
    tau = math.sqrt(steps / (2 * rho)) / N
    assert 1 - 2e-4 < float(one.noise_scale) / tau <= 1 + 1e-4
    table = made(FrankWolfeRelease, epsilon, steps=steps)
    assert float(table.noise_scale) == pytest.approx(2 * float(one.noise_scale))
    assert table.guarantee().event.event.rho == pytest.approx(
        bounded_range_rho(4 / (float(table.noise_scale) * N)), rel=1e-9
    )
    for solver in (one, table, made(MWEM, epsilon, steps=20), made(SaddleRelease, epsilon)):
        assert 0.999 * epsilon < solver.guarantee().epsilon(DELTA) <= epsilon


@pytest.mark.parametrize("epsilon", MU)
def test_gaussian_noise_on_adult_is_that_of_mu(epsilon):
    mu, root = MU[epsilon], math.sqrt(2) / N
    exact = special.ndtr(-epsilon / mu + mu / 2)
    exact -= math.exp(epsilon) * special.ndtr(-epsilon / mu - mu / 2)
    assert exact == pytest.approx(DELTA, rel=1e-2)  # of a mu of four digits
    assert made(HistogramRelease, epsilon).stddev == pytest.approx(root / mu, rel=3e-4)
    fit = made(GaussianFit, epsilon)
    assert np.asarray(fit.stddev) == pytest.approx(np.full(35, math.sqrt(70) / (N * mu)), rel=3e-4)
    once = made(MirrorDescentRelease, epsilon, noise="histogram-once", steps=64)
    each = made(MirrorDescentRelease, epsilon, noise="per-step", steps=64)
    assert once.noise_scale == pytest.approx(root / mu, rel=3e-4)
    # all but for the failure probability of more draws
    assert each.noise_scale == pytest.approx(8 * once.noise_scale, rel=1e-3)
    for solver in (fit, once, each):
        assert 0.9999 * epsilon < solver.guarantee().epsilon(DELTA) <= epsilon


def test_add_or_remove_needs_half_the_noise_for_selections_and_less_for_answers():
    for kind, name, ratio in (
        (FrankWolfeRelease, "noise_scale", 2.0),
        (MirrorDescentRelease, "noise_scale", 2.0),
        (HistogramRelease, "stddev", math.sqrt(2)),
        (GaussianFit, "stddev", math.sqrt(2)),
    ):
        both = [np.max(getattr(made(kind, 1.0, relation), name)) for relation in (REPLACE, ADD)]
        assert both[0] / both[1] == pytest.approx(ratio, rel=1e-5)


def test_the_game_spends_what_its_formula_says():
    solver = made(SaddleRelease, 1.0, steps=101)
    tau, rho = float(solver.dual_step_size), solver.guarantee().event.rho
    # R^2 tau^2 / 2 n^2 times the sum of the squares below 101: the bound that it is within
    squares = 100 * 101 * 201 / 6
    assert tau == pytest.approx(N * math.sqrt(2 * RHO[1.0] / squares), rel=1e-4)
    assert 0.999 < rho / (tau**2 * squares / (2 * N**2)) <= 1


# as published it is far below its budget
@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (FrankWolfeRelease, 0.0, 1e-4),
        (MirrorDescentRelease, 0.414, 0.4145),
        (SaddleRelease, 0.0075, 0.0077),
    ],
)
def test_what_is_published_has_its_true_epsilon(kind, low, high):
    solver = printed(kind)
    assert low < solver.guarantee().epsilon(DELTA) < high
    if kind is FrankWolfeRelease:
        fixed = printed(kind, steps=100)
        assert float(fixed.noise_scale) == pytest.approx(180.8, rel=1e-3)


def test_noisy_maxima_are_concentrated_as_pure_privacy_is():
    """Of Laplace noise only eta-DP is known, whose worst case is randomised response."""
    solver = printed(FrankWolfeRelease, noise_scale=1 / N)
    rho, eta = solver.guarantee().event.event.rho, 2.0
    orders = np.concatenate([1 + np.geomspace(1e-3, 1e3, 200)])
    law = np.array([eta, 0.0]) - np.logaddexp(eta, 0.0)
    exponents = orders[:, None] * law + (1 - orders[:, None]) * law[::-1]
    divergence = np.logaddexp(*exponents.T) / (orders - 1)
    assert np.max(divergence / orders) <= rho * (1 + 1e-9)
    assert np.max(divergence / orders) > 0.999 * rho
