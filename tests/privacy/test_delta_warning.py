"""A delta that is worth little is told of, once a line and where the user's own code is."""

import math
import warnings

import jax
import numpy as np
import pytest
from dp_accounting import dp_event as dpe

import dpjax
from dpjax.privacy import Budget, DeltaWarning, Guarantee, check_budget, compose_guarantees
from dpjax.queries import Domain, Marginals
from tests.hostile.test_arguments import PLANNED

WORKLOAD = Marginals.all_kway(Domain({"a": 2, "b": 3}), 1)


def seen(call):
    """What a call returns and the warnings that a user with Python's own filters is shown."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        result = call()
    return result, caught


@pytest.mark.parametrize(("kind", "problem"), PLANNED)
def test_delta_of_one_over_n_is_told_of_once_and_here(kind, problem):
    solver, caught = seen(lambda: kind.for_budget(problem, 1000, Budget(1.0, 1e-3)))
    (warning,) = caught
    assert warning.category is DeltaWarning
    assert warning.filename == __file__
    assert str(warning.message).startswith("delta = 0.001 is at least 1 / num_records = 1 / 1000")
    assert str(warning.message).endswith("num_records^-1.5 = 3e-05")
    assert solver.guarantee().epsilon(1e-3) <= 1.0  # it is planned all the same
    kind.for_budget(problem, 1000, Budget(1.0, 0.999e-3))  # where warnings are errors


def test_release_tells_of_it_once():
    data = np.zeros((40, 2), np.int32)

    def call():
        return dpjax.release(WORKLOAD, data, Budget(1.0, 0.1), key=jax.random.key(0))

    released, caught = seen(call)
    (warning,) = caught
    assert "delta = 0.1 is at least 1 / num_records = 1 / 40" in str(warning.message)
    assert warning.filename == __file__
    assert released.guarantee.epsilon(0.1) <= 1.0


def test_numbers_of_any_size():
    check_budget(Budget(1.0, 0.999), 1)
    with pytest.warns(DeltaWarning, match=r"delta = 1e-30 is at least 1 / num_records"):
        check_budget(Budget(1.0, 1e-30), 10**400)
    check_budget(Budget(math.inf, 0.5), 10)  # promises nothing, and is told of nothing
    with pytest.raises(ValueError, match="num_records must be >= 1, got 0"):
        check_budget(Budget(1.0, 1e-5), 0)
    with pytest.raises(TypeError, match="num_records must be an integer"):
        check_budget(Budget(1.0, 1e-5), 10.0)


@pytest.mark.parametrize("failure", [4.9e-6, 1e-5, 0.01])
def test_an_infinite_epsilon_has_its_reason(failure):
    guarantee = Guarantee(dpe.GaussianDpEvent(1.0), failure_probability=failure)
    with pytest.warns(DeltaWarning) as caught:
        assert guarantee.epsilon(1e-5) == math.inf
    (warning,) = caught
    said = str(warning.message)
    assert said.startswith("epsilon is infinite at delta = 1e-05")
    assert f"failure_probability = {failure:.3g}" in said
    assert "larger delta" in said
    assert "capacity" in said
    assert warning.filename == __file__
    assert guarantee.epsilon(0.5) < math.inf  # where warnings are errors


def test_composition_has_it_too():
    guarantee = Guarantee(dpe.GaussianDpEvent(4.0), failure_probability=6e-6)
    with pytest.warns(DeltaWarning, match=r"failure_probability = 1.2e-05"):
        assert compose_guarantees(guarantee, guarantee).epsilon(1e-5) == math.inf


def test_where_the_event_gives_all_away_the_failure_is_not_blamed():
    for failure in (0.0, 0.01):
        assert Guarantee(dpe.NonPrivateDpEvent(), "replace_one", failure).epsilon(1e-5) == math.inf


def test_searches_for_noise_do_not_warn():
    # at little noise epsilon is infinite, as delta is all but used up
    noise = dpjax.privacy.calibrate_gaussian(1.0, 1, Budget(1.0, 1e-5), failure_probability=2e-6)
    steps = dpjax.privacy.max_steps(
        lambda n: dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(10.0), n),
        Budget(1.0, 1e-5),
        failure_probability_per_step=1e-6,
    )
    assert noise > 1
    assert 0 < steps < 5
