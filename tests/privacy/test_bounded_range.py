"""Draws of bounded range: what they spend, against exact laws of tiny adaptive mechanisms."""

import decimal
import itertools
import math

import exact
import jax
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from scipy import stats

from dpjax.privacy import (
    BoundedRangeGuarantee,
    Budget,
    Guarantee,
    Ledger,
    bounded_range_delta,
    bounded_range_epsilon,
    bounded_range_eta,
    bounded_range_rho,
    calibrate_bounded_range,
    compose_guarantees,
    zcdp_budget,
)
from dpjax.privacy.bounded_range._curve import curve_on_grid

DELTA = 1 / 48842**2
EPSILONS = np.linspace(0, 1, 21)


# One draw.


def exact_rho(eta):
    with decimal.localcontext(prec=80):
        eta = decimal.Decimal(float(eta))
        x = eta / (1 - (-eta).exp())
        return x - 1 - x.ln()


@pytest.mark.parametrize(("eta", "rho"), [(1.0, 0.12330), (2.0, 0.4744746), (4.0, 1.6698496)])
def test_rho_of_one_draw(eta, rho):
    assert bounded_range_rho(eta) == pytest.approx(rho, abs=1e-5 if eta == 1 else 5e-8)
    assert bounded_range_rho(eta) < eta**2 / 8


def test_rho_is_rounded_up_and_by_little():
    etas = np.concatenate([np.geomspace(1e-12, 1e3, 400), np.linspace(0.98, 1.02, 40)])
    rhos = bounded_range_rho(etas)
    excess = [
        float((decimal.Decimal(r) - t) / t) for r, t in zip(rhos, map(exact_rho, etas), strict=True)
    ]
    assert min(excess) >= 0
    assert max(excess) < 3e-14
    assert bounded_range_rho(0.0) == 0.0
    assert bounded_range_rho(1e-200) > 0  # which underflows
    assert (np.diff(rhos[:400]) > 0).all()


def test_inverse_is_rounded_down_and_by_little():
    rhos = np.concatenate([[0.0, 1e-310], np.geomspace(1e-20, 1e3, 200)]).reshape(2, -1)
    etas = bounded_range_eta(rhos)
    assert etas.shape == rhos.shape
    assert (bounded_range_rho(etas) <= rhos).all()
    assert (bounded_range_rho(etas * (1 + 1e-12))[rhos > 1e-300] > rhos[rhos > 1e-300]).all()
    assert isinstance(bounded_range_eta(0.1), float)
    assert bounded_range_eta(0.1) == bounded_range_eta(np.array([0.1]))[0]


def renyi(p, q, order):
    return np.log(np.sum(p**order * q ** (1 - order), axis=-1)) / (order - 1)


def two_points(eta, t):
    """Laws whose log-ratios are t and t - eta."""
    p = -np.expm1(t - eta) / -math.expm1(-eta)
    law = np.stack([p, 1 - p], axis=-1)
    return law, law * np.exp(np.stack([-t, eta - t], axis=-1))


@pytest.mark.parametrize("eta", [0.1, 1.0, 4.0])
def test_rho_is_the_largest_over_orders_and_laws(eta, rng):
    orders = 1 + np.geomspace(1e-4, 30, 120)
    pairs = [two_points(eta, np.linspace(0, eta, 2001)[1:-1])]
    p = rng.dirichlet([0.3, 0.3, 0.3], size=2000)
    p = np.maximum(p, 1e-6) / np.maximum(p, 1e-6).sum(axis=1, keepdims=True)
    q = p * np.exp(rng.uniform(0, eta, size=p.shape))
    pairs.append((p, q / q.sum(axis=1, keepdims=True)))
    most = [max((renyi(p, q, a) / a).max() for a in orders) for p, q in pairs]
    rho = bounded_range_rho(eta)
    assert 0.999 * rho < most[0] <= rho
    assert 0.3 * rho < most[1] <= rho


# Adaptive draws.


def worst_plan(eta, draws, x, grid=24):
    """The best adversary whose t are on a grid: delta, and t after each history."""
    ts = np.linspace(0, eta, grid + 1)[1:-1]

    def solve(left, x):
        """Delta for an array of x."""
        if left == 0:
            return np.maximum(-np.expm1(np.minimum(x, 0)), 0)
        (p, _), t = np.moveaxis(two_points(eta, ts)[0], -1, 0), ts
        after = solve(left - 1, np.stack([x[..., None] - t, x[..., None] - t + eta]))
        return (p * after[0] + (1 - p) * after[1]).max(axis=-1)

    def plan(left, x):
        """Probabilities of all histories under both laws."""
        if left == 0:
            return np.ones(1), np.ones(1)
        p = two_points(eta, ts)[0]
        after = solve(left - 1, np.stack([x - ts, x - ts + eta]))
        t = ts[np.argmax(p[:, 0] * after[0] + p[:, 1] * after[1])]
        here = two_points(eta, np.array([t]))
        below = [plan(left - 1, x - loss) for loss in (t, t - eta)]
        return tuple(
            np.concatenate([law[0, i] * below[i][side] for i in (0, 1)])
            for side, law in enumerate(here)
        )

    return plan(draws, float(x))


def exponential_mechanism(eta, draws, options, rng, sharp):
    """Exact laws of all transcripts on two neighbours; scores depend on what was drawn before.

    Scores move by at most 1 either way, up to what all share, at inverse temperature eta.
    """
    laws = [np.ones(1), np.ones(1)]
    for _ in range(draws):
        base = rng.normal(size=(laws[0].size, options)) * sharp
        moved = rng.integers(0, 2, size=base.shape) + rng.normal(size=(laws[0].size, 1))
        for side, logits in enumerate((base, base + eta * moved)):
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            laws[side] = (laws[side][:, None] * p / p.sum(axis=1, keepdims=True)).ravel()
    return laws


@pytest.mark.parametrize(("eta", "draws"), [(0.4, 2), (0.3, 3), (2.0, 2)])
def test_no_adaptive_mechanism_exceeds_the_curve(eta, draws, rng):
    epsilons = EPSILONS * eta * draws
    claimed = np.array([bounded_range_delta(eta, draws, e) for e in epsilons])
    smaller = np.array([bounded_range_delta(0.9 * eta, draws, e) for e in epsilons])
    worst = np.array([exact.hockey_stick(*worst_plan(eta, draws, e), e) for e in epsilons])
    assert (worst <= claimed + 1e-15).all()
    far = eta * draws
    for epsilon, found in zip(epsilons, worst, strict=True):  # a coarse or cut grid is above too
        cut = epsilon + 0.1 * eta
        for cells, ends in ((3, (epsilon, far)), (32, (epsilon, cut)), (32, (cut - far, cut))):
            points, curve = curve_on_grid(eta, draws, epsilon, cells, ends)
            assert found <= curve[np.searchsorted(points, epsilon)] + 1e-15
    near = claimed > 0.03 * claimed[0]
    assert near.sum() > 10
    assert (worst[near] > 0.95 * claimed[near]).all()
    assert (worst[near] > smaller[near]).all()  # a claim of less range is refuted
    pairs = [
        exponential_mechanism(eta, draws, options, rng, sharp)
        for options, sharp in itertools.product((2, 3), (0.0, 0.5, 2.0))
        for _ in range(40)
    ]
    found = exact.curve(pairs, epsilons)
    assert (found <= claimed + 1e-12).all()
    assert found[5] > 0.3 * claimed[5]


def test_curve_of_many_draws_lies_close_above_equal_draws():
    """Not adaptive: t is the same in all, so the loss is binomial."""
    eta, draws, epsilon = 0.05, 60, 1.0
    below = 0.0
    for t in np.linspace(0, eta, 41)[1:-1]:
        p, q = two_points(eta, t)
        likely = stats.binom.pmf(np.arange(draws + 1), draws, p[0])
        other = stats.binom.pmf(np.arange(draws + 1), draws, q[0])
        below = max(below, exact.hockey_stick(likely, other, epsilon))
    claimed = bounded_range_delta(eta, draws, epsilon)
    assert below < claimed < 1.15 * below
    assert bounded_range_delta(0.99 * eta, draws, epsilon) < below


@pytest.mark.parametrize(("eta", "draws"), [(0.5, 1), (1.5, 4), (0.05, 30), (1e-3, 9), (25.0, 3)])
def test_curve_is_never_worse_than_zcdp_or_pure(eta, draws):
    zcdp = Guarantee(dpe.ZCDpEvent(draws * bounded_range_rho(eta)))
    epsilons = np.linspace(0, 1 + 1e-15, 6) * eta * draws
    deltas = np.array([bounded_range_delta(eta, draws, e) for e in epsilons])
    assert (deltas <= [zcdp.delta(e) for e in epsilons]).all()
    assert (np.diff(deltas) <= 0).all()
    assert deltas[-1] == 0 < deltas[-2]
    for delta in (1e-9, 1e-3, 0.6):
        epsilon = bounded_range_epsilon(eta, draws, delta)
        assert 0 <= epsilon <= min(zcdp.epsilon(delta), eta * draws)
        assert bounded_range_delta(eta, draws, epsilon) <= delta
        assert epsilon == 0 or bounded_range_delta(eta, draws, 0.999 * epsilon) > delta


def test_one_draw_in_closed_form():
    eta, epsilon = 0.7, 0.2
    ts = np.linspace(0, eta, 100_001)[1:-1]
    p, q = two_points(eta, ts)
    best = np.maximum(p - math.exp(epsilon) * q, 0).sum(axis=-1).max()
    assert best <= bounded_range_delta(eta, 1, epsilon) < best * (1 + 1e-8)


# Calibration.


@pytest.mark.slow
@pytest.mark.parametrize(("draws", "least", "most"), [(10, 1.13, 1.15), (100, 1.049, 1.06)])
def test_range_that_a_budget_allows(draws, least, most):
    budget = Budget(1.0, DELTA, "replace_one")
    eta = calibrate_bounded_range(budget, draws)
    assert least < eta / bounded_range_eta(zcdp_budget(budget) / draws) < most
    guarantee = BoundedRangeGuarantee(eta, draws)
    assert guarantee.delta(1.0) <= DELTA
    assert 0.999 < guarantee.epsilon(DELTA) <= 1.0
    assert bounded_range_delta(1.001 * eta, draws, 1.0) > DELTA


@pytest.mark.parametrize("draws", [1, 2, 5000])
@pytest.mark.parametrize("epsilon", [0.1, 3.0])
def test_few_and_very_many_draws_stay_within_the_budget(draws, epsilon):
    budget = Budget(epsilon, 1e-6)
    eta = calibrate_bounded_range(budget, draws, relation="add_or_remove_one")
    guarantee = BoundedRangeGuarantee(eta, draws, "add_or_remove_one")
    assert guarantee.delta(epsilon) <= budget.delta
    assert 0.99 * epsilon < guarantee.epsilon(budget.delta) <= epsilon
    zcdp = bounded_range_eta(zcdp_budget(budget) / draws)
    assert eta >= max(zcdp, epsilon / draws) * (1 - 1e-9)
    assert bounded_range_delta(1.01 * eta, draws, epsilon) > budget.delta


# The guarantee.


def test_guarantee_is_a_value(tmp_path):
    guarantee = BoundedRangeGuarantee(np.float32(0.25), 3, "replace_one")
    same = BoundedRangeGuarantee(0.25, 3)
    assert guarantee == same
    assert hash(guarantee) == hash(same)
    assert guarantee != BoundedRangeGuarantee(0.25, 3, "add_or_remove_one")
    assert jax.tree.leaves(guarantee) == []
    assert jax.jit(lambda: guarantee)() == guarantee
    plain = Guarantee(guarantee.event, guarantee.relation)
    assert plain.epsilon(1e-6) >= guarantee.epsilon(1e-6)
    both = compose_guarantees(plain, Guarantee(dpe.GaussianDpEvent(9.0), "replace_one"))
    assert both.epsilon(1e-6) > plain.epsilon(1e-6)
    ledger = Ledger(Budget(5.0, 1e-6, "replace_one"))
    assert ledger.fits(plain)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
def test_bad_numbers_are_refused(bad):
    for call in (
        lambda: bounded_range_rho(bad),
        lambda: bounded_range_eta([0.1, bad]),
        lambda: bounded_range_delta(bad, 1, 1.0),
        lambda: bounded_range_delta(1.0, 1, bad),
        lambda: bounded_range_epsilon(1.0, 1, bad),
        lambda: BoundedRangeGuarantee(bad, 1),
    ):
        with pytest.raises(ValueError, match=r"must .*got"):
            call()


def test_bad_kinds_are_refused():
    budget = Budget(1.0, 1e-6, "replace_one")
    for bad in (None, True, object(), "1", [True], 1j):
        with pytest.raises(TypeError, match=r"eta must be (a )?real number"):
            bounded_range_rho(bad)
    with pytest.raises(TypeError, match="draws must be an integer"):
        calibrate_bounded_range(budget, 1.5)
    with pytest.raises(ValueError, match="draws must be >= 1, got 0"):
        bounded_range_delta(0.1, 0, 1.0)
    with pytest.raises(TypeError, match="eta must be a real number"):
        BoundedRangeGuarantee("0.1", 1)
    with pytest.raises(ValueError, match="relation must be the budget's, replace_one"):
        calibrate_bounded_range(budget, 1, relation="add_or_remove_one")
    with pytest.raises(ValueError, match="relation must be one of"):
        BoundedRangeGuarantee(0.1, 1, "neighbours")
