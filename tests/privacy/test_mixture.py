"""The curve of draws of bounded range mixed with Gaussian noise."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from scipy import integrate, optimize, stats

from dpjax.privacy import Guarantee, MixtureGuarantee, MixturePhase, bounded_range_delta
from dpjax.privacy.bounded_range import _mixture
from dpjax.privacy.bounded_range._curve import _another_draw

_DELTA = 1e-6


def _epsilon(mu, eta, draws):
    return MixtureGuarantee(MixturePhase(mu, ((eta, draws),))).epsilon(_DELTA)


@pytest.mark.parametrize(
    ("draws", "eta", "concentrated", "mu"),
    [
        (18, 0.05202, 0.19113, 0.20834),
        (26, 0.04328, 0.19113, 0.20850),
        pytest.param(26, 0.02737, 0.20938, 0.22579, marks=pytest.mark.slow),
        pytest.param(26, 0.06121, 0.15606, 0.17640, marks=pytest.mark.slow),
    ],
)
def test_published_table(draws, eta, concentrated, mu):
    """Of a trapezoid rule, which an independent quadrature found .06 to .5% too small."""
    largest = optimize.brentq(
        lambda m: _epsilon(m, eta, draws) - 1, mu * 0.99, mu * 1.01, xtol=1e-5
    )
    assert mu * (1 + 2e-4) < largest < mu * 1.005
    assert largest > 1.07 * concentrated


def test_one_draw_after_noise_agrees_with_a_quadrature():
    mu, eta = 0.3, 0.4
    guarantee = MixtureGuarantee(MixturePhase(mu, ((eta, 1),)))

    def one_draw(x):
        if x <= -eta:
            return 1 - math.exp(x)
        return (math.exp((min(x, eta) - eta) / 2) - 1) ** 2 / -math.expm1(-eta)

    def exact(epsilon):
        def at(v):
            return one_draw(epsilon - v) * stats.norm.pdf(v, mu**2 / 2, mu)

        return integrate.quad(at, -3, 4, points=[epsilon - eta, epsilon + eta])[0]

    for epsilon in (0.2, 0.7, 1.2):
        assert exact(epsilon) <= guarantee.delta(epsilon) < 1.02 * exact(epsilon)


def test_noise_before_draws_is_the_worst_order():
    width, cells = 0.02, 10
    points = width * np.arange(-200, 201)
    start = np.maximum(0.0, -np.expm1(points))

    def noise(curve):
        return _mixture._gaussian(curve, width, 0.25)

    def draw(curve):
        return _another_draw(curve, width, cells)

    before = noise(draw(draw(start)))
    inside = slice(100, -100)  # away from the ends of the window
    assert np.all(draw(noise(draw(start)))[inside] <= before[inside] * (1 + 1e-6))
    assert np.all(draw(draw(noise(start)))[inside] <= before[inside] * (1 + 1e-6))
    assert np.max((before - draw(draw(noise(start))))[inside]) > 1e-4


def test_two_parts_of_noise_are_one_of_the_root_of_squares():
    width = 0.01
    start = np.maximum(0.0, -np.expm1(width * np.arange(-300, 301)))
    twice = _mixture._gaussian(_mixture._gaussian(start, width, 0.12), width, 0.16)
    once = _mixture._gaussian(start, width, 0.2)
    assert np.allclose(twice[150:-150], once[150:-150], rtol=5e-3, atol=1e-9)


def test_without_one_of_the_two_it_is_the_other():
    draws = MixtureGuarantee(MixturePhase(0.0, ((0.1, 20),))).delta(1.0)
    assert draws == pytest.approx(bounded_range_delta(0.1, 20, 1.0), rel=0.1)
    noise = MixtureGuarantee(MixturePhase(0.2367, ((0.02, 1),))).epsilon(_DELTA)
    exact = Guarantee(dpe.GaussianDpEvent(1 / 0.2367)).epsilon(_DELTA)
    assert exact < noise < 1.02 * exact


def test_the_worse_branch_counts_whichever_ran():
    first = MixturePhase(0.1, ((0.04, 4),))
    good, bad = MixturePhase(0.1), MixturePhase(0.15, ((0.04, 4),))
    both = MixtureGuarantee(first, (good, bad))
    alone = MixtureGuarantee(first, (bad,))
    assert both.epsilon(_DELTA) == pytest.approx(alone.epsilon(_DELTA), rel=1e-9)
    assert both.epsilon(_DELTA) > MixtureGuarantee(first, (good,)).epsilon(_DELTA)
    assert both.event == alone.event
    concentrated = Guarantee(both.event, "replace_one")
    assert both.epsilon(_DELTA) < concentrated.epsilon(_DELTA)
    assert both.delta(both.epsilon(_DELTA)) <= _DELTA * (1 + 1e-6)


def test_numbers_beyond_the_grid_have_the_curve_of_zero_concentrated_dp():
    far = MixtureGuarantee(MixturePhase(1e3, ((1e-5, 1),)))
    assert far.epsilon(_DELTA) == Guarantee(far.event, "replace_one").epsilon(_DELTA)
    with pytest.raises(ValueError, match="mu"):
        MixtureGuarantee(MixturePhase(-1.0))
    with pytest.raises(ValueError, match="draws"):
        MixtureGuarantee(MixturePhase(1.0, ((0.1, 0),)))


def _noise_alone(mu, epsilon):
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(
        epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
    )


@pytest.mark.parametrize(
    ("mu", "eta", "delta"),
    [(0.2, 0.05, 1e-40), (1.0, 0.1, 1e-25), (27.2, 0.5, 1e-6), (30.0, 0.5, 0.5), (40.0, 2.0, 1e-6)],
)
def test_deltas_and_noise_at_the_end_of_the_grid(mu, eta, delta):
    """The grid ended before the curve was down to delta, or e^x overflowed: epsilon was 0."""
    epsilon = MixtureGuarantee(MixturePhase(mu, ((eta, 1),))).epsilon(delta)
    assert _noise_alone(mu, epsilon) <= delta


def test_a_branch_that_nothing_of_the_grid_holds_for_is_not_free():
    guarantee = MixtureGuarantee(MixturePhase(0.1, ((0.5, 1),)), (MixturePhase(35.0),))
    assert _noise_alone(35.0, guarantee.epsilon(1e-6)) <= 1e-6
    assert guarantee.delta(500.0) >= _noise_alone(35.0, 500.0)
