"""Defaults follow from public sizes and the budget alone."""

import math

import jax.numpy as jnp
import pytest

import dpjax
from dpjax.solvers import RateConstrainedSGDA
from dpjax.solvers._request import default_sampler
from dpjax.solvers.descent._rates import dual_step


def _solver(num_records, epsilon, **overrides):
    parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
    problem = dpjax.problems.RateConstrained.linear(20, 2, parity)
    return RateConstrainedSGDA.for_budget(
        problem, num_records, dpjax.Budget(epsilon, 1e-6), steps=200, **overrides
    )


@pytest.mark.slow
def test_steps_shrink_under_heavy_noise_only():
    small, large = _solver(1000, 0.2), _solver(200_000, 3.0)
    assert large.primal.learning_rate == 1.0
    assert small.primal.learning_rate < 0.5
    parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
    steps = []
    for solver in (small, large):
        assert solver.dual_learning_rate is None
        deviation = float(solver.histogram_noise) / float(solver.primal.batch_size)
        found = dual_step(parity, jnp.full(parity.num_constraints, deviation), 200)
        steps.append(float(found.max()))
    assert steps[0] < 0.05
    assert steps[1] == pytest.approx(0.15)


BANDED = {"noise": "banded", "bands": 4, "steps": 50}


@pytest.mark.parametrize(
    ("kind", "options", "epsilon", "delta"),
    [
        (dpjax.solvers.DPSGD, {}, 1.0, 1e-12),
        (dpjax.solvers.DPSGD, {}, 8.0, 1e-9),
        (dpjax.solvers.DPSGD, {}, 30.0, 1e-5),
        (dpjax.solvers.DPFTRL, BANDED, 8.0, 1e-9),
        (dpjax.solvers.DPFTRL, {"noise": "buffered", "epochs": 1}, 30.0, 1e-5),
    ],
)
def test_a_budget_of_small_delta_or_large_epsilon_is_used_up(kind, options, epsilon, delta):
    """What sampling may do otherwise than declared costs little of it."""
    problem = dpjax.problems.Risk.linear(lambda m, y: jnp.square(m - y), 3, 1.0, lipschitz=2.0)
    budget = dpjax.Budget(epsilon, delta, "add_or_remove_one")
    solver = kind.for_budget(problem, 5_000, budget, **options)
    assert 0.99 * epsilon < solver.guarantee().epsilon(delta) <= epsilon
    failure = solver.sampler.failure_probability()
    assert failure * (1 + math.exp(epsilon)) < 0.11 * delta


@pytest.mark.parametrize("epsilons", [(0.1, 1.0, 10.0), (11.0, 19.0)])
def test_slots_are_alike_over_a_sweep(epsilons):
    samplers = {default_sampler(5_000, None, None, dpjax.Budget(e, 1e-9)) for e in epsilons}
    assert len(samplers) == 1


def test_what_is_given_is_kept():
    solver = _solver(1000, 0.2, dual_learning_rate=0.3, learning_rate=0.7, clip_norm=1.5)
    assert (solver.dual_learning_rate, solver.primal.learning_rate) == (0.3, 0.7)
    assert solver.primal.clip_norm == 1.5


@pytest.mark.slow
def test_a_sweep_over_budgets_has_one_shape():
    shapes = {
        (s.sampler.capacity, s.sampler.steps, s.primal.batch_size)
        for s in (_solver(36_000, eps) for eps in (0.5, 1.0, 3.0))
    }
    assert len(shapes) == 1
