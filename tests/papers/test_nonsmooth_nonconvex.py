"""Several passes over nonsmooth losses as printed: theorem 4.1."""

import math

import jax
import jax.numpy as jnp
import pytest
from dp_accounting import gaussian_mechanism

import dpjax
from dpjax.papers.nonsmooth_nonconvex import PublishedOnlineToNonconvex, multi_pass

PROBLEM = dpjax.problems.Risk(
    lambda w, rec: jnp.abs(jnp.abs(rec["x"] @ w) - rec["y"]), jnp.ones(4) / 2, lipschitz=1.0
)


@pytest.mark.parametrize(("n", "epsilon"), [(300, 1.0), (3000, 0.5)])
def test_several_passes_are_printed(n, epsilon):
    solver = multi_pass(PROBLEM, n, dpjax.Budget(epsilon, 1e-6, "replace_one"), radius=0.1)
    d, alpha, logs = 4, 0.05, math.log(1e6)
    beta = (d**0.75 / (n * epsilon * math.sqrt(alpha))) ** (2 / 3)
    far = min(alpha, alpha * beta**2)
    period = max(2, int(alpha / (far * 2)))
    periods = max(1, int(1 / (alpha * beta**3) / period))
    assert (solver.noise.num_steps, solver.sampler.steps) == (period, periods)
    assert solver.max_displacement == pytest.approx(far)
    assert solver.num_moves % solver.block_size == 0
    assert solver.block_size <= max(1, alpha / (4 * far))
    moves = period * periods
    first = math.sqrt(periods * logs) / (n * epsilon)
    change = far * math.sqrt(moves * d * logs) / (alpha * n * epsilon)
    # what noise the shares of the solver come to
    z, shares = solver.noise_multiplier, solver.noise.shares
    clip = 2 * solver.smoothness * far
    assert z * solver.clip_norm / n / math.sqrt(shares[0]) == pytest.approx(first)
    assert z * clip / n / math.sqrt(shares[1]) == pytest.approx(change)
    # replace-one: twice that of a record, in every release
    mu = (
        2
        / n
        * math.sqrt(
            periods * (solver.clip_norm / first) ** 2 + (moves - periods) * (clip / change) ** 2
        )
    )
    true = gaussian_mechanism.get_epsilon_gaussian(1 / mu, 1e-6)
    assert solver.guarantee().epsilon(1e-6) == pytest.approx(true, rel=1e-3)
    assert solver.goldstein_radius() <= 0.1


def test_for_budget_of_the_printed_single_pass_is_the_library_s():
    asked = PROBLEM, 1000, dpjax.Budget(1.0, 1e-5)
    for options in ({}, {"radius": 0.2, "passes": "single", "steps": 8}):
        made = PublishedOnlineToNonconvex.for_budget(*asked, **options)
        assert type(made) is dpjax.solvers.OnlineToNonconvex
        assert made == dpjax.solvers.OnlineToNonconvex.for_budget(*asked, **options)


@pytest.mark.slow  # a program to compile
def test_several_passes_run():
    solver = multi_pass(PROBLEM, 20, dpjax.Budget(1.0, 1e-6, "replace_one"), radius=0.5)
    data = {"x": jnp.ones((20, 4)) / 2, "y": jnp.ones(20)}
    params = dpjax.solve(solver, PROBLEM, data, key=jax.random.key(0)).params
    assert bool(jnp.all(jnp.isfinite(params)))
