"""Guarantee: the curve with failure, conventions of the relation, equality, pytree behaviour."""

import copy
import math
import pickle

import jax
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.rdp import RdpAccountant
from scipy import optimize, stats

from dpjax.privacy import (
    Budget,
    DeltaWarning,
    Guarantee,
    joint_poisson_event,
    resolve_relation,
    zcdp_budget,
)
from dpjax.privacy._budget import relation_factor

DELTA = 1e-5


def test_only_a_replaced_record_counts_twice():
    factors = {member.name.lower(): relation_factor(member) for member in NeighboringRelation}
    assert factors == {"add_or_remove_one": 1, "replace_one": 2, "replace_special": 1}
    assert factors == {name: relation_factor(name) for name in factors}
    with pytest.raises(ValueError, match=r"replace_one.*got 'replace'"):
        relation_factor("replace")


def _gaussian_delta(epsilon, noise, sensitivity=1.0):
    """The exact curve of the Gaussian mechanism (Balle and Wang 2018)."""
    a, b = sensitivity / (2 * noise), epsilon * noise / sensitivity
    return stats.norm.cdf(a - b) - math.exp(epsilon) * stats.norm.cdf(-a - b)


def _gaussian_epsilon(delta, noise, sensitivity=1.0):
    return optimize.brentq(lambda e: _gaussian_delta(e, noise, sensitivity) - delta, 0, 50)


@pytest.mark.parametrize(
    ("relation", "sensitivity"),
    [("add_or_remove_one", 1), ("replace_special", 1), ("replace_one", 2)],
)
@pytest.mark.parametrize("noise", [1.0, 4.0])
def test_gaussian_is_exact_under_each_relation(relation, sensitivity, noise):
    guarantee = Guarantee(dpe.GaussianDpEvent(noise), relation)
    want = _gaussian_epsilon(DELTA, noise, sensitivity)
    assert want * (1 - 1e-9) <= guarantee.epsilon(DELTA) <= want * (1 + 1e-4)
    assert guarantee.delta(0.7) == pytest.approx(_gaussian_delta(0.7, noise, sensitivity), rel=1e-4)


@pytest.mark.parametrize(
    ("relation", "sensitivity"), [("add_or_remove_one", 1), ("replace_one", 2)]
)
def test_rdp_route_uses_the_same_convention(relation, sensitivity):
    # a zCDP part forces the RDP accountant; at rho = 0.5 (s / z)^2 it equals a Gaussian
    noise = 4.0
    rho = 0.5 * (sensitivity / noise) ** 2
    both = dpe.ComposedDpEvent([dpe.GaussianDpEvent(noise), dpe.ZCDpEvent(rho)])
    exact = _gaussian_epsilon(DELTA, noise / math.sqrt(2), sensitivity)
    got = Guarantee(both, relation).epsilon(DELTA)
    assert exact <= got <= 1.1 * exact  # the conversion from RDP is not tight
    twice = Guarantee(dpe.SelfComposedDpEvent(dpe.ZCDpEvent(rho), 2), relation)
    assert got == pytest.approx(twice.epsilon(DELTA), rel=1e-12)


def test_repeated_selection_halves_the_noise_inside_under_replace_one():
    def repeat(noise):
        return dpe.RepeatAndSelectDpEvent(dpe.GaussianDpEvent(noise), 5, 1)

    one = Guarantee(repeat(4.0), "replace_one").epsilon(DELTA)
    assert one == pytest.approx(Guarantee(repeat(2.0)).epsilon(DELTA), rel=1e-12)


def test_sampling_without_replacement_halves_the_noise_under_replace_one():
    def event(noise):
        return dpe.SelfComposedDpEvent(
            dpe.SampledWithoutReplacementDpEvent(1000, 10, dpe.GaussianDpEvent(noise)), 50
        )

    library = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    want = library.compose(event(1.5)).get_epsilon(DELTA)
    assert Guarantee(event(3.0), "replace_one").epsilon(DELTA) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize(
    ("relation", "epsilon"),
    [("replace_one", 1.649), ("add_or_remove_one", 0.809), ("replace_special", 0.809)],
)
def test_golden_sampled_gaussian_by_relation(relation, epsilon):
    event = joint_poisson_event(0.02, 1000, gaussian=3.0)
    assert Guarantee(event, relation).epsilon(DELTA) == pytest.approx(epsilon, abs=6e-4)


def test_repeated_selection_golden():
    run = joint_poisson_event(0.02, 1000, gaussian=3.0)
    got = Guarantee(dpe.RepeatAndSelectDpEvent(run, 20, 1)).epsilon(DELTA)
    assert got == pytest.approx(2.066, abs=1e-3)


def test_zcdp_is_never_rescaled_and_bounded_range_is_exact_rdp():
    eta, draws = 0.1, 100
    event = dpe.SelfComposedDpEvent(dpe.ZCDpEvent(eta**2 / 8), draws)
    values = {r: Guarantee(event, r).epsilon(DELTA) for r in ("add_or_remove_one", "replace_one")}
    assert len(set(values.values())) == 1
    rho = draws * eta**2 / 8

    # best order of rho a + log(1 - 1/a) - log(delta a) / (a - 1)
    def curve(a):
        return rho * a + math.log1p(-1 / a) - math.log(DELTA * a) / (a - 1)

    best = optimize.minimize_scalar(curve, bounds=(1.5, 1e4), method="bounded").fun
    assert best * (1 - 1e-12) <= values["replace_one"] <= best * (1 + 1e-3)


def test_orders_reach_small_zcdp_budgets():
    rho = 1e-8  # best order about 3e4, far beyond the library's default list
    got = Guarantee(dpe.ZCDpEvent(rho)).epsilon(DELTA)
    assert got < 2 * math.sqrt(rho * math.log(1 / DELTA)) + rho


def test_randomized_response_counts_every_repetition():
    one = dpe.RandomizedResponseDpEvent(0.5, 2)  # keeps the bit with probability 3/4

    def curve(n):
        return Guarantee(dpe.SelfComposedDpEvent(one, n), "replace_one").epsilon(1e-9)

    assert curve(1) == pytest.approx(math.log(3), rel=1e-3)
    assert curve(3) == pytest.approx(3 * math.log(3), rel=1e-3)


@pytest.mark.slow
def test_other_events_of_the_library_compose():
    mixture = dpe.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0], [0.5, 0.5])
    discrete = dpe.DiscreteLaplaceDpEvent(0.5, 1)
    parts = [dpe.SelfComposedDpEvent(mixture, 3), discrete, dpe.NoOpDpEvent()]
    got = Guarantee(dpe.ComposedDpEvent(parts)).epsilon(DELTA)
    assert 0.5 < got < 10
    assert Guarantee(discrete).epsilon(1e-9) == pytest.approx(0.5, abs=2e-4)
    tree = dpe.SingleEpochTreeAggregationDpEvent(4.0, 7)
    assert Guarantee(tree, "replace_special").epsilon(DELTA) == pytest.approx(
        Guarantee(dpe.ZCDpEvent(3 / 32)).epsilon(DELTA), rel=1e-9
    )


@pytest.mark.parametrize(
    "event",
    [
        dpe.NonPrivateDpEvent(),
        dpe.GaussianDpEvent(0.0),
        dpe.LaplaceDpEvent(0.0),
        dpe.SelfComposedDpEvent(dpe.PoissonSampledDpEvent(0.1, dpe.GaussianDpEvent(0)), 3),
        dpe.ComposedDpEvent([dpe.ZCDpEvent(0.1), dpe.NonPrivateDpEvent()]),
        joint_poisson_event(0.1, 5, gaussian=1.0, laplace_scale=0.0),
        joint_poisson_event(0.1, 5, gaussian=0.0, laplace_scale=1.0),
        joint_poisson_event(0.1, 5, gaussian=0.0, truncated_batch_size=9, num_records=20),
    ],
    ids=str,
)
def test_non_private_events(event):
    guarantee = Guarantee(event)
    assert guarantee.epsilon(DELTA) == math.inf
    assert guarantee.delta(3.0) == 1.0


@pytest.mark.parametrize(
    "event",
    [
        dpe.NoOpDpEvent(),
        dpe.ComposedDpEvent([]),
        dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(1.0), 0),
        dpe.PoissonSampledDpEvent(0.0, dpe.GaussianDpEvent(1.0)),
        dpe.PoissonSampledDpEvent(0.5, dpe.NoOpDpEvent()),
        dpe.GaussianDpEvent(math.inf),
        dpe.ZCDpEvent(0.0),
    ],
    ids=str,
)
def test_events_that_release_nothing(event):
    guarantee = Guarantee(event)
    assert guarantee.epsilon(DELTA) == 0.0
    assert guarantee.delta(0.0) == 0.0


@pytest.mark.parametrize(("rate", "noise"), [(1e-3, 3.0), (0.01, 1.0), (0.5, 10.0), (0.9, 50.0)])
def test_sampled_at_deltas_below_rounding(rate, noise, caplog):
    """Of one step, against the closed form; the library's sums warn at such rates and noises."""
    guarantee = Guarantee(dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(noise)))

    def delta(epsilon):  # a record removed: it may be missed
        x = noise**2 * math.log1p(math.expm1(epsilon) / rate) + 0.5
        there, gone = stats.norm.sf(x - 1, scale=noise), stats.norm.sf(x, scale=noise)
        return rate * there + (1 - rate - math.exp(epsilon)) * gone

    for target in (1e-17, 1e-25):
        exact = optimize.brentq(lambda e, t=target: delta(e) - t, 1e-3, 50.0, xtol=1e-12)
        assert exact <= guarantee.epsilon(target) <= 1.1 * exact
    assert not caplog.records


@pytest.mark.parametrize("noise", [0.3, 2.0])
def test_rates_next_to_one_cost_as_much_as_one(noise):
    event = dpe.GaussianDpEvent(noise)
    whole = Guarantee(event).epsilon(DELTA)
    for rate in (1 - 1e-9, 1 - 1e-11, 1 - 1e-12, np.nextafter(1.0, 0.0)):
        sampled = Guarantee(dpe.PoissonSampledDpEvent(rate, event)).epsilon(DELTA)
        assert sampled == pytest.approx(whole, rel=1e-6)


def test_failure_probability_arithmetic():
    event, failure = dpe.GaussianDpEvent(2.0), 1e-7
    plain, failing = Guarantee(event), Guarantee(event, failure_probability=failure)
    for epsilon in (0.0, 0.5, 2.0):
        want = plain.delta(epsilon) + (1 + math.exp(epsilon)) * failure
        assert failing.delta(epsilon) == pytest.approx(want, rel=1e-12)
    epsilon = failing.epsilon(DELTA)
    assert epsilon > plain.epsilon(DELTA)
    assert failing.delta(epsilon) <= DELTA
    assert failing.delta(epsilon * (1 - 1e-6)) > DELTA


def test_epsilon_with_failure_is_the_least_root_even_near_the_limit():
    failing = Guarantee(dpe.GaussianDpEvent(3.0), failure_probability=1.2e-6)
    epsilon = failing.epsilon(DELTA)
    assert math.isfinite(epsilon)
    assert failing.delta(epsilon) <= DELTA < failing.delta(epsilon * (1 - 1e-5))


def test_failure_alone_can_exceed_delta():
    failing = Guarantee(dpe.GaussianDpEvent(100.0), failure_probability=DELTA)
    with pytest.warns(DeltaWarning, match=r"epsilon is infinite at delta = 1e-05"):
        assert failing.epsilon(DELTA) == math.inf
    assert Guarantee(dpe.NoOpDpEvent(), failure_probability=DELTA / 4).epsilon(DELTA) == 0.0
    assert failing.delta(800.0) == 1.0


@pytest.mark.parametrize("value", [1.0, -1e-5, math.nan])
def test_delta_must_be_a_probability(value):
    with pytest.raises(ValueError, match=rf"delta must lie in \[0, 1\), got {value!r}"):
        Guarantee(dpe.GaussianDpEvent(1.0)).epsilon(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Guarantee(dpe.GaussianDpEvent(1.0)).delta(-0.5),
            r"epsilon must be >= 0, got -0.5",
        ),
        (lambda: Guarantee(dpe.GaussianDpEvent(-2.0)), r"must be >= 0, got -2.0"),
        (lambda: Guarantee(dpe.GaussianDpEvent(math.nan)), r"must be >= 0, got nan"),
        (lambda: Guarantee(dpe.NoOpDpEvent(), "nearby"), r"add_or_remove_one.*got 'nearby'"),
        (
            lambda: Guarantee(dpe.NoOpDpEvent(), failure_probability=1.0),
            r"failure_probability must lie in \[0, 1\), got 1.0",
        ),
        (
            lambda: Guarantee(dpe.NoOpDpEvent(), failure_probability=-0.1),
            r"failure_probability must lie in \[0, 1\), got -0.1",
        ),
        (
            lambda: Guarantee(dpe.PoissonSampledDpEvent(1.5, dpe.GaussianDpEvent(1.0))),
            r"sampling_probability must be in \[0, 1\], got 1.5",
        ),
        (lambda: Budget(0.0, 1e-5), r"epsilon must be > 0, got 0.0"),
        (lambda: Budget(-math.inf, 1e-5), r"epsilon must be finite, got -inf"),
        (lambda: zcdp_budget(Budget(math.inf, 1e-5)), r"epsilon must be finite, got inf"),
        (lambda: Budget(1.0, 1.0), r"delta must lie in \[0, 1\), got 1.0"),
        (lambda: Budget(1.0, 1e-5, "replace"), r"replace_special.*got 'replace'"),
    ],
)
def test_bad_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_not_an_event():
    with pytest.raises(TypeError, match=r"must be a dp_accounting\.DpEvent, got float"):
        Guarantee(1.0)


def test_relations_by_name_and_enum():
    for member in NeighboringRelation:
        assert resolve_relation(member.name.lower()) is member is resolve_relation(member)
    assert Budget(1.0, 1e-5).relation is None
    assert Budget(1.0, 1e-5).relation_or("replace_one") is NeighboringRelation.REPLACE_ONE
    assert Budget(1, 1e-5, "replace_one") == Budget(1, 1e-5, NeighboringRelation.REPLACE_ONE)


def test_equality_and_hash_with_lists_inside():
    def make(z):
        return Guarantee(dpe.ComposedDpEvent([dpe.GaussianDpEvent(z), dpe.LaplaceDpEvent(1)]))

    assert make(1.0) == make(np.float64(1.0))
    assert hash(make(1.0)) == hash(make(np.float64(1.0)))
    assert make(1.0) != make(2.0)
    event = dpe.GaussianDpEvent(1.0)
    assert Guarantee(event) == Guarantee(event, NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert Guarantee(event) != Guarantee(event, "replace_one")
    assert Guarantee(event) != Guarantee(event, failure_probability=1e-9)
    assert Guarantee(event) != Guarantee(dpe.LaplaceDpEvent(1.0))
    arrays = [dpe.MixtureOfGaussiansDpEvent(1.0, np.array([0.0, 1.0]), [0.5, 0.5]) for _ in "ab"]
    assert Guarantee(arrays[0]) == Guarantee(arrays[1])


def test_is_static_under_jit_and_vmap():
    guarantee = Guarantee(joint_poisson_event(0.1, 10, gaussian=3.0, laplace_scale=2.0))
    assert jax.tree.leaves(guarantee) == []
    traces = []

    def run(x):
        traces.append(0)
        return x + 1, guarantee

    run_jitted = jax.jit(run)
    assert run_jitted(np.float32(1.0))[1] == guarantee
    run_jitted(np.float32(2.0))
    assert len(traces) == 1
    values, mapped = jax.vmap(run)(np.arange(3.0))
    assert values.shape == (3,)
    assert mapped == guarantee
    assert mapped.epsilon(DELTA) == guarantee.epsilon(DELTA)
    assert jax.tree.map(lambda x: x, guarantee) == guarantee
    taken = jax.jit(lambda g, x: x * (2 if g == guarantee else 3))(guarantee, np.float32(1))
    assert taken == 2


def test_traced_noise_is_refused():
    with pytest.raises(TypeError, match="on the host"):
        jax.jit(lambda z: (Guarantee(dpe.GaussianDpEvent(z)), z)[1])(1.0)


def test_copies_and_pickles():
    guarantee = Guarantee(dpe.GaussianDpEvent(2.0), "replace_one", 1e-8)
    for other in (copy.deepcopy(guarantee), pickle.loads(pickle.dumps(guarantee))):
        assert other == guarantee
        assert other.epsilon(DELTA) == guarantee.epsilon(DELTA)
