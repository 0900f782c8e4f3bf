"""Joint events, noise calibration, truncation."""

import math

import pytest
from dp_accounting import dp_event as dpe
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.privacy import (
    Budget,
    Guarantee,
    calibrate_gaussian,
    calibrate_noise,
    effective_noise_multiplier,
    joint_poisson_epsilon,
    joint_poisson_event,
    max_steps,
    split_noise_multiplier,
)

DELTA = 1e-5
N = 36_000


@pytest.mark.parametrize(
    ("epsilon", "noise"),
    [(1, 3.019), pytest.param(3, 1.304, marks=pytest.mark.slow), (9, 0.754)],
)
def test_golden_effective_noise(epsilon, noise):
    got = calibrate_gaussian(512 / N, 3000, Budget(epsilon, DELTA))
    assert got == pytest.approx(noise, abs=6e-4)
    event = joint_poisson_event(512 / N, 3000, gaussian=got)
    assert Guarantee(event).epsilon(DELTA) <= epsilon
    library = PLDAccountant().compose(event).get_epsilon(DELTA)
    assert library == pytest.approx(epsilon, rel=5e-4)


@pytest.mark.parametrize(
    ("make_event", "budget", "failure"),
    [
        (dpe.GaussianDpEvent, Budget(1.0, DELTA), 0.0),
        (dpe.GaussianDpEvent, Budget(50.0, DELTA), 0.0),
        (dpe.GaussianDpEvent, Budget(1.0, DELTA, "replace_one"), 1e-8),
        (dpe.LaplaceDpEvent, Budget(0.1, 1e-9), 0.0),
        (lambda z: dpe.SelfComposedDpEvent(dpe.ZCDpEvent(z**-2 / 8), 100), Budget(1, DELTA), 0.0),
        (
            lambda z: joint_poisson_event(0.02, 500, gaussian=z, laplace_scale=z),
            Budget(0.5, DELTA),
            1e-7,
        ),
    ],
)
def test_never_above_budget_and_tight(make_event, budget, failure):
    noise = calibrate_noise(make_event, budget, failure_probability=failure)
    relation = budget.relation_or()

    def at(z):
        return Guarantee(make_event(z), relation, failure).epsilon(budget.delta)

    assert at(noise) <= budget.epsilon < at(noise * (1 - 1e-4))


def test_low_failure_probability_costs_little_and_an_impossible_one_says_so():
    budget = Budget(1.0, DELTA)
    plain = calibrate_noise(dpe.GaussianDpEvent, budget)
    failing = calibrate_noise(dpe.GaussianDpEvent, budget, failure_probability=1e-8)
    assert plain < failing < 1.01 * plain
    with pytest.raises(ValueError, match=r"failure_probability must be < delta / 2 = 5e-06.*1e-05"):
        calibrate_noise(dpe.GaussianDpEvent, budget, failure_probability=1e-5)


def test_calibration_errors_name_the_budget():
    budget = Budget(1.0, DELTA)
    with pytest.raises(
        ValueError, match=r"no noise multiplier up to .* epsilon=1.0 .* delta=1e-05"
    ):
        calibrate_noise(lambda _: dpe.NonPrivateDpEvent(), budget)
    with pytest.raises(ValueError, match=r"needs hardly any noise"):
        calibrate_noise(lambda _: dpe.NoOpDpEvent(), budget)
    with pytest.raises(ValueError, match=r"the budget's, replace_one, got add_or_remove_one"):
        calibrate_noise(
            dpe.GaussianDpEvent, Budget(1.0, DELTA, "replace_one"), relation="add_or_remove_one"
        )


def test_relation_of_the_caller_where_the_budget_has_none():
    one, other = (
        calibrate_noise(dpe.GaussianDpEvent, Budget(1.0, DELTA), relation=relation)
        for relation in ("add_or_remove_one", "replace_one")
    )
    assert other == pytest.approx(2 * one, rel=2e-4)


def test_max_steps_is_the_last_within_budget():
    def make_event(steps):  # of the search: what an accountant makes of it is tested elsewhere
        return dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(80.0), steps)

    budget = Budget(1.0, DELTA)
    steps = max_steps(make_event, budget)
    assert 100 < steps < 1000
    assert Guarantee(make_event(steps)).epsilon(DELTA) <= 1.0
    assert Guarantee(make_event(steps + 1)).epsilon(DELTA) > 1.0
    assert max_steps(make_event, Budget(0.001, 1e-9)) == 0
    assert max_steps(make_event, budget, failure_probability_per_step=1e-9) < steps


@given(
    effective=st.floats(1e-3, 1e3),
    share=st.floats(1e-3, 1 - 1e-3),
)
@settings(max_examples=200, deadline=None)
def test_split_identity(effective, share):
    histogram, gradient = split_noise_multiplier(effective, share)
    joined = effective_noise_multiplier(histogram, gradient)
    assert effective * (1 - 1e-15) <= joined <= effective * (1 + 1e-14)
    assert (effective / histogram) ** 2 == pytest.approx(share, rel=1e-9)


def test_split_costs_what_the_effective_multiplier_costs():
    histogram, gradient = split_noise_multiplier(3.0, 0.2)
    assert gradient == pytest.approx(3.0 * 1.118, rel=1e-3)
    joint = joint_poisson_epsilon(0.02, 100, DELTA, gaussian=gradient, histogram_gaussian=histogram)
    assert joint == pytest.approx(joint_poisson_epsilon(0.02, 100, DELTA, gaussian=3.0), rel=1e-12)


def test_effective_noise_multiplier():
    assert effective_noise_multiplier(3.0) == 3.0
    assert effective_noise_multiplier(2.0, math.inf) == 2.0
    assert effective_noise_multiplier(2.0, 0.0) == 0.0
    assert effective_noise_multiplier(1e-200, 1e-200) == pytest.approx(1e-200 / math.sqrt(2))


@pytest.mark.parametrize(
    ("size", "epsilon"), [(None, 1.3313), (600, 1.3320), (570, 1.390), (540, 2.224)]
)
def test_golden_truncated_batches(size, epsilon):
    event = joint_poisson_event(
        512 / N,
        5000,
        gaussian=3.0,
        truncated_batch_size=size,
        num_records=None if size is None else N,
    )
    assert Guarantee(event).epsilon(DELTA) == pytest.approx(epsilon, abs=6e-4)


def test_event_shapes():
    gaussian = joint_poisson_event(0.1, 7, gaussian=3.0, histogram_gaussian=4.0)
    assert gaussian == dpe.SelfComposedDpEvent(
        dpe.PoissonSampledDpEvent(0.1, dpe.GaussianDpEvent(12 / 5)), 7
    )
    truncated = joint_poisson_event(
        0.1, 7, gaussian=3.0, histogram_gaussian=4.0, truncated_batch_size=20, num_records=100
    )
    assert truncated.event == dpe.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 12 / 5)
    laplace = joint_poisson_event(0.1, 7, gaussian=3.0, laplace_scale=2.0)
    assert PLDAccountant().supports(gaussian)
    assert not PLDAccountant().supports(laplace)  # the library refuses; ours does not
    assert Guarantee(laplace).epsilon(DELTA) > 0


@pytest.mark.parametrize("kwargs", [{"gaussian": 0.0}, {"gaussian": 1.0, "laplace_scale": 0.0}])
def test_no_noise_is_no_privacy(kwargs):
    assert joint_poisson_epsilon(0.1, 5, DELTA, **kwargs) == math.inf


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"rate": 0.0}, ValueError, r"rate must lie in \(0, 1\], got 0.0"),
        ({"rate": 1.1}, ValueError, r"rate must lie in \(0, 1\], got 1.1"),
        ({"steps": 0}, ValueError, r"steps must be >= 1, got 0"),
        ({"steps": 2.0}, TypeError, r"steps must be an integer, got 2.0"),
        ({"delta": 0.0}, ValueError, r"delta must lie in \(0, 1\), got 0.0"),
        ({"delta": 1.0}, ValueError, r"delta must lie in \(0, 1\), got 1.0"),
        ({"gaussian": -1.0}, ValueError, r"gaussian must be >= 0, got -1.0"),
        ({"gaussian": math.nan}, ValueError, r"gaussian must be finite, got nan"),
        ({"laplace_scale": -2.0}, ValueError, r"laplace_scale must be >= 0, got -2.0"),
        ({"histogram_gaussian": -3.0}, ValueError, r"histogram_gaussian must be >= 0, got -3.0"),
        (
            {"histogram_gaussian": 3.0, "laplace_scale": 2.0},
            ValueError,
            r"laplace_scale or histogram_gaussian, not both: got 2.0 and 3.0",
        ),
    ],
)
def test_bad_input_of_the_joint_functions(changed, error, message):
    kwargs = {"rate": 0.1, "steps": 5, "delta": DELTA, "gaussian": 1.0} | changed
    with pytest.raises(error, match=message):
        joint_poisson_epsilon(**kwargs)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"truncated_batch_size": 5}, r"truncated_batch_size=5 and num_records=None"),
        ({"num_records": 50}, r"truncated_batch_size=None and num_records=50"),
        (
            {"truncated_batch_size": 0, "num_records": 50},
            r"truncated_batch_size must be >= 1, got 0",
        ),
        (
            {"truncated_batch_size": 5, "num_records": 50, "laplace_scale": 1.0},
            r"truncated_batch_size=5 has no accountant with laplace_scale=1.0",
        ),
    ],
)
def test_bad_truncation(kwargs, message):
    with pytest.raises(ValueError, match=message):
        joint_poisson_event(0.1, 5, gaussian=1.0, **kwargs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: effective_noise_multiplier(), r"at least 1 multiplier, got 0"),
        (lambda: effective_noise_multiplier(1.0, -1.0), r"must be >= 0, got -1.0"),
        (lambda: split_noise_multiplier(-1.0, 0.5), r"effective must be >= 0, got -1.0"),
        (
            lambda: split_noise_multiplier(1.0, 1.0),
            r"histogram_share must lie in \(0, 1\), got 1.0",
        ),
        (lambda: calibrate_gaussian(0.0, 5, Budget(1, DELTA)), r"rate must lie .* got 0.0"),
        (lambda: calibrate_gaussian(0.1, 0, Budget(1, DELTA)), r"steps must be >= 1, got 0"),
    ],
)
def test_bad_input_of_calibration(call, message):
    with pytest.raises(ValueError, match=message):
        call()
