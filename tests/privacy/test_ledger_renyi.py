"""Rényi divergences against the library's accountants, its PLDs, and direct integration."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.rdp import RdpAccountant
from scipy import integrate, stats

from dpjax.privacy.accounting._accountant import library_pld
from dpjax.privacy.accounting._renyi import ORDERS, divergence_at, renyi
from dpjax.privacy.accounting._structure import EventId

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


@pytest.mark.parametrize(
    ("rate", "noise"), [(0.01, 1.0), (0.001, 5.0), (0.02, 20.0), (0.5, 3.0), (0.9, 2.0)]
)
def test_sampled_gaussians_agree_with_the_accountant(rate, noise):
    # at integer orders, where its sums are finite and exact
    event = dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(noise))
    orders = [2, 3, 5, 8, 16, 32]
    want = RdpAccountant(orders).compose(event).rdp
    got = [divergence_at(EventId(event, ADD), order)[0] for order in orders]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    # at small orders it is half the variance of the ratio
    low = divergence_at(EventId(event, ADD), ORDERS[0])[0]
    if rate / noise < 0.01:
        assert low == pytest.approx(ORDERS[0] * rate**2 * math.expm1(noise**-2) / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (dpe.PoissonSampledDpEvent(0.1, dpe.GaussianDpEvent(1.0)), REPLACE),
        (dpe.PoissonSampledDpEvent(0.1, dpe.LaplaceDpEvent(1.0)), ADD),
        (dpe.DiscreteLaplaceDpEvent(0.5, 3), ADD),
        (dpe.TruncatedSubsampledGaussianDpEvent(100, 0.1, 12, 2.0), ADD),
        (dpe.TruncatedSubsampledGaussianDpEvent(100, 0.1, 12, 2.0), REPLACE),
    ],
    ids=lambda value: getattr(value, "name", type(value).__name__),
)
def test_divergences_agree_with_the_pld(event, relation):
    pld = library_pld(event, 1e-3, relation)
    for order in (1.7, 2.0, 4.0):
        worst = -math.inf
        for pmf in (pld._pmf_remove, pld._pmf_add):
            dense = pmf.to_dense_pmf()
            loss = dense._discretization * (dense._lower_loss + np.arange(dense.size))
            moment = np.dot(dense._probs, np.exp((order - 1) * loss))
            worst = max(worst, math.log(moment) / (order - 1))
        got, infinite = divergence_at(EventId(event, relation), order)
        assert got == pytest.approx(worst, rel=1e-3)
        assert infinite < 1e-20


@pytest.mark.parametrize("sensitivities", [(0.0, 1.0, 2.0), (1.0, 2.0, 4.0)])
def test_mixtures_of_gaussians_agree_with_an_integral(sensitivities):
    weights, noise = np.array([0.5, 0.3, 0.2]), 2.0
    event = dpe.MixtureOfGaussiansDpEvent(noise, list(sensitivities), list(weights))
    x = np.linspace(-60, 80, 20_001)
    each = [
        np.log(w) + stats.norm.logpdf(x, c, noise)
        for w, c in zip(weights, sensitivities, strict=True)
    ]
    p, q = np.logaddexp.reduce(each), stats.norm.logpdf(x, 0, noise)
    for order in (1.7, 4.0):
        integrands = [np.exp(order * a + (1 - order) * b) for a, b in ((p, q), (q, p))]
        moments = [integrate.trapezoid(values, x) for values in integrands]
        want = math.log(max(moments)) / (order - 1)
        got, _ = divergence_at(EventId(event, ADD), order)
        assert got == pytest.approx(want, rel=1e-7)


def test_a_joint_batch_agrees_with_a_double_integral():
    rate, scale, noise, order = 0.2, 1.5, 2.0, 3
    releases = dpe.ComposedDpEvent([dpe.LaplaceDpEvent(scale), dpe.GaussianDpEvent(noise)])
    got, infinite = divergence_at(EventId(dpe.PoissonSampledDpEvent(rate, releases), ADD), order)

    def density(x, y, shift):
        return stats.laplace.pdf(x, shift, scale) * stats.norm.pdf(y, shift, noise)

    y = np.linspace(-25, 45, 4001)

    def moment(remove):
        def over_y(x):
            q = density(x, y, 0)
            p = (1 - rate) * q + rate * density(x, y, 1)
            p, q = (p, q) if remove else (q, p)
            return integrate.trapezoid(p**order * q ** (1 - order), y)

        pieces = [(-60, 0), (0, 1), (1, 60)]  # it is smooth between the peaks
        return sum(integrate.quad(over_y, *piece, epsrel=1e-8)[0] for piece in pieces)

    want = max(math.log(moment(remove)) / (order - 1) for remove in (True, False))
    assert got == pytest.approx(want, rel=2e-4)
    assert 0 < infinite < 1e-20


def test_curves_add_up_and_halve_the_noise_under_replace_one():
    two = dpe.ComposedDpEvent([dpe.GaussianDpEvent(4.0), dpe.ZCDpEvent(0.1)])
    for relation, rho in ((ADD, 1 / 32), (REPLACE, 4 / 32)):
        np.testing.assert_allclose(
            renyi(EventId(two, relation)).divergence, ORDERS * (rho + 0.1), rtol=1e-12
        )
    select = dpe.RepeatAndSelectDpEvent(dpe.GaussianDpEvent(8.0), 5, 1)
    halved = dpe.RepeatAndSelectDpEvent(dpe.GaussianDpEvent(4.0), 5, 1)
    np.testing.assert_array_equal(
        renyi(EventId(select, REPLACE)).divergence, renyi(EventId(halved, ADD)).divergence
    )


def test_an_order_of_another_grid_is_computed_too():
    event = EventId(dpe.GaussianDpEvent(4.0), ADD)
    order = float(ORDERS[10] + ORDERS[11]) / 2
    assert order not in ORDERS
    assert divergence_at(event, order)[0] == pytest.approx(order / 32, rel=1e-12)


def test_divergences_never_fall_with_the_order():
    event = dpe.PoissonSampledDpEvent(0.05, dpe.GaussianDpEvent(0.8))
    for relation in (ADD, REPLACE):
        curve = renyi(EventId(event, relation)).divergence
        assert np.all(np.isfinite(curve))
        assert np.all(np.diff(curve) >= 0)
