"""Guarantees over the same records, over disjoint records, and for groups."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from scipy import special, stats

from dpjax.privacy import (
    BoundedRangeGuarantee,
    Budget,
    Guarantee,
    calibrate_objective_perturbation,
    compose_guarantees,
    group_guarantee,
    logistic_slopes,
    parallel_guarantee,
)

DELTA = 1e-5


def _gaussian_delta(epsilon, mu):
    """The exact curve of sensitivity / noise = mu (Balle and Wang 2018)."""
    upper = stats.norm.cdf(mu / 2 - epsilon / mu)
    return upper - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def test_same_records_add_up_and_so_do_failures():
    parts = [
        Guarantee(dpe.GaussianDpEvent(z), failure_probability=p) for z, p in ((3, 1e-7), (4, 0))
    ]
    both = compose_guarantees(*parts)
    mu = math.hypot(1 / 3, 1 / 4)
    want = _gaussian_delta(0.8, mu) + (1 + math.exp(0.8)) * 1e-7
    assert both.delta(0.8) == pytest.approx(want, rel=1e-3)
    assert both.failure_probability == 1e-7
    assert compose_guarantees(parts[0]) == parts[0]


def test_only_guarantees_of_one_relation_compose():
    other = Guarantee(dpe.GaussianDpEvent(3.0), "replace_one")
    mine = Guarantee(dpe.GaussianDpEvent(3.0))
    for together in (compose_guarantees, parallel_guarantee):
        with pytest.raises(ValueError, match="add_or_remove_one and replace_one"):
            together(mine, other)
        with pytest.raises(ValueError, match="at least 1"):
            together()
        with pytest.raises(TypeError, match=r"solver\.guarantee"):
            together(dpe.GaussianDpEvent(3.0))


def test_disjoint_records_pay_for_the_worst_part():
    # whose is the worst depends on delta: pure against Gaussian
    laplace, gaussian = Guarantee(dpe.LaplaceDpEvent(2.0)), Guarantee(dpe.GaussianDpEvent(5.0))
    both = parallel_guarantee(laplace, gaussian)
    assert both.epsilon(1e-9) == gaussian.epsilon(1e-9) > laplace.epsilon(1e-9)
    assert both.epsilon(1e-2) == laplace.epsilon(1e-2) > gaussian.epsilon(1e-2)
    assert both.delta(0.2) == laplace.delta(0.2) > gaussian.delta(0.2)
    assert both.relation == laplace.relation


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_a_gaussian_group_is_a_gaussian(relation):
    scale = 2 if relation == "replace_one" else 1
    event = dpe.ComposedDpEvent([dpe.GaussianDpEvent(12.0), dpe.GaussianDpEvent(16.0)])
    group = group_guarantee(Guarantee(event, relation, 1e-8), 3)
    mu = 3 * scale * math.hypot(1 / 12, 1 / 16)
    want = _gaussian_delta(1.0, mu) + (1 + math.e) * 1e-8
    assert group.delta(1.0) == pytest.approx(want, rel=1e-3)
    assert group.delta(group.epsilon(DELTA)) <= DELTA
    assert group.relation.name.lower() == relation


def test_a_group_shows_its_own_epsilon_and_follows_from_any_curve():
    group = group_guarantee(Guarantee(dpe.LaplaceDpEvent(4.0)), 3)
    assert repr(group).startswith("GroupGuarantee(size=3)\n  epsilon 0.7500 at")
    # also of a guarantee that has a curve and no event
    one = calibrate_objective_perturbation(Budget(1.0, 1e-6), logistic_slopes(1.0), 10.0)
    pair = group_guarantee(one, 2)
    assert one.epsilon(1e-6) < pair.epsilon(1e-6)
    assert pair.delta(2.0) <= (1 + math.e) * one.delta(1.0) * (1 + 1e-9)
    assert pair.delta(pair.epsilon(1e-5)) <= 1e-5


@pytest.mark.parametrize(("eta", "size"), [(0.3, 2), (0.3, 5), (2.0, 3)])
def test_a_group_of_a_draw_bounds_what_softmaxes_of_two_outcomes_attain(eta, size):
    """Each record moves one logit by eta: both data sets are a logistic function of a shift."""
    group = group_guarantee(BoundedRangeGuarantee(eta, 1), size)
    for epsilon in (0.0, 0.3 * eta * size, 0.8 * eta * size):
        shifts = np.linspace(-6, 6, 241)
        p, q = special.expit(shifts + size * eta), special.expit(shifts)
        excess = np.maximum(p - math.exp(epsilon) * q, 0)
        excess += np.maximum(1 - p - math.exp(epsilon) * (1 - q), 0)
        assert excess.max() <= group.delta(epsilon) <= size * math.exp(epsilon) * excess.max()
    assert group.epsilon(0.0) == size * eta
    assert group.delta(group.epsilon(DELTA)) <= DELTA


def test_a_group_of_runs_on_disjoint_sets_pays_for_failures_and_the_worst_set():
    parts = Guarantee(dpe.GaussianDpEvent(4.0), failure_probability=1e-7)
    group = group_guarantee(parallel_guarantee(parts, Guarantee(dpe.GaussianDpEvent(6.0))), 2)
    exact = _gaussian_delta(1.0, 2 / 4.0) + 2e-7 * (1 + math.e)
    assert exact < group.delta(1.0) < 20 * exact


def test_pure_noise_and_zcdp_scale():
    for one, three in [
        (dpe.LaplaceDpEvent(6.0), dpe.LaplaceDpEvent(2.0)),
        (dpe.DiscreteLaplaceDpEvent(0.3, 2), dpe.DiscreteLaplaceDpEvent(0.3, 6)),
        (dpe.ZCDpEvent(0.01), dpe.ZCDpEvent(0.09)),
        (dpe.NonPrivateDpEvent(), dpe.NonPrivateDpEvent()),
        (dpe.NoOpDpEvent(), dpe.NoOpDpEvent()),
    ]:
        group = group_guarantee(Guarantee(one), 3)
        assert group.epsilon(DELTA) == Guarantee(three).epsilon(DELTA)
        assert group.delta(0.5) == Guarantee(three).delta(0.5)


def test_each_member_of_a_sampled_group_is_in_the_batch_on_its_own():
    rate, noise = 0.3, 12.0
    one = Guarantee(dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(noise)))
    for size in (1, 2, 3, 5):
        want = np.zeros(size + 1)
        for present in itertools.product((False, True), repeat=size):
            want[sum(present)] += np.prod([rate if here else 1 - rate for here in present])
        mixture = group_guarantee(one, size)._direct.event
        assert mixture.standard_deviation == noise
        assert list(mixture.sensitivities) == list(range(size + 1))
        assert list(mixture.sampling_probs) == pytest.approx(want, rel=1e-12)


@pytest.mark.slow
def test_a_sampled_group_is_in_the_batch_by_its_number_of_members():
    rate, noise, size, epsilon = 0.1, 12.0, 3, 0.02
    event = dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(noise))
    group = group_guarantee(Guarantee(event), size)
    x = np.linspace(-120, 130, 200_001)
    q = stats.norm.pdf(x, 0, noise)
    members = stats.binom.pmf(np.arange(size + 1), size, rate)
    p = sum(w * stats.norm.pdf(x, j, noise) for j, w in enumerate(members))
    step = x[1] - x[0]
    exact = max(np.maximum(a - math.exp(epsilon) * b, 0).sum() * step for a, b in ((p, q), (q, p)))
    assert exact * (1 - 1e-6) <= group.delta(epsilon) <= exact * 1.01
    generic = group_guarantee(Guarantee(dpe.PoissonSampledDpEvent(0.1, dpe.LaplaceDpEvent(2.0))), 3)
    assert generic.epsilon(DELTA) < math.inf


def test_along_a_chain_bounds_what_it_does_not_know():
    # randomised response under replace_one: k replacements are k steps of the chain at most
    noise, buckets, size = 0.5, 2, 3
    one = Guarantee(dpe.RandomizedResponseDpEvent(noise, buckets), "replace_one")
    pure = math.log((1 - noise / 2) / (noise / 2))
    group = group_guarantee(one, size)
    assert group.delta(size * pure + 1e-3) < 1e-9  # k epsilon for pure privacy
    assert group.delta(0.1) <= 1.0
    # a Gaussian without its closed form: compared with the exact group and the textbook bound
    known = Guarantee(dpe.GaussianDpEvent(6.0))
    hidden = group_guarantee(known, size)
    object.__setattr__(hidden, "_direct", None)
    for epsilon in (0.5, 1.5, 3.0):
        share = epsilon / size
        textbook = known.delta(share) * math.expm1(epsilon) / math.expm1(share)
        exact = _gaussian_delta(epsilon, size / 6.0)
        assert exact < hidden.delta(epsilon) <= min(1.0, textbook) * (1 + 1e-9)
    assert hidden.delta(hidden.epsilon(DELTA)) <= DELTA
    assert hidden.delta(1.5) < 0.95 * known.delta(0.5) * math.expm1(1.5) / math.expm1(0.5)


def test_a_group_of_one_is_the_guarantee():
    for event in (
        dpe.GaussianDpEvent(3.0),
        dpe.PoissonSampledDpEvent(0.1, dpe.LaplaceDpEvent(2.0)),
    ):
        one = Guarantee(event, failure_probability=1e-9)
        assert group_guarantee(one, 1).delta(0.3) == pytest.approx(one.delta(0.3), rel=1e-6)
    with pytest.raises(ValueError, match="size must be >= 1, got 0"):
        group_guarantee(one, 0)


def test_a_failure_that_costs_more_than_delta_has_no_epsilon():
    event = dpe.PoissonSampledDpEvent(0.1, dpe.LaplaceDpEvent(2.0))
    assert group_guarantee(Guarantee(event, failure_probability=1e-5), 2).epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    "event", [dpe.GaussianDpEvent(1e6), dpe.PoissonSampledDpEvent(0.1, dpe.LaplaceDpEvent(1e6))]
)
def test_a_group_pays_for_the_failures_of_each_record(event):
    """Failures of noisy counts are for what one record moves; at no loss they are all of delta."""
    one = Guarantee(event, "add_or_remove_one", 1e-7)
    for size in (1, 4):
        group = group_guarantee(one, size)
        assert group.delta(1.0) >= 0.999 * size * 1e-7 * (1 + math.e)


@pytest.mark.always  # the claim
@pytest.mark.parametrize(("rate", "z", "steps", "k"), [(0.05, 2.0, 10_000, 4), (0.01, 1.0, 300, 3)])
def test_a_group_of_many_steps_is_not_promised_what_rounding_took(rate, z, steps, k):
    """Records that all add +1, or -1: the sum of all outputs is a binomial plus a normal number."""
    event = dpe.SelfComposedDpEvent(dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(z)), steps)
    one = Guarantee(event, "replace_one")
    group, present = group_guarantee(one, k), np.arange(k * steps + 1)
    weights = stats.binom.logpmf(present, k * steps, rate)
    noise = z * math.sqrt(steps)
    mean = k * steps * rate
    for epsilon in (5.0, 40.0, 80.0, 100.0):
        true = 0.0
        for at in np.linspace(0, 2 * mean, 41):
            first = np.logaddexp.reduce(weights + stats.norm.logsf((at - present) / noise))
            second = np.logaddexp.reduce(weights + stats.norm.logsf((at + present) / noise))
            true = max(true, math.exp(first) - math.exp(min(epsilon + second, 700.0)))
        assert true <= group.delta(epsilon) <= 1
    assert all(one.delta(epsilon) > 0 for epsilon in (10.0, 30.0, 60.0))


def test_a_delta_below_what_rounding_may_take_is_read_elsewhere():
    """The two accountants agree about a delta that both can tell; one tells less."""
    step = dpe.PoissonSampledDpEvent(1e-3, dpe.GaussianDpEvent(1.0))
    guarantee = Guarantee(dpe.SelfComposedDpEvent(step, 1_000_000))
    fine, finer = guarantee.epsilon(1e-8), guarantee.epsilon(1e-12)
    assert fine < finer < 2 * fine
    assert guarantee.delta(finer) <= 1e-12 * (1 + 1e-6)
