"""Counts are released as integers, and what their sampler falls short of is declared."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from query_runs import ADD, MARGINALS, REPLACE, UNUSUAL, records

from dpjax import Budget
from dpjax.problems import QueryRelease
from dpjax.solvers import GaussianFit, HistogramRelease, MirrorDescentRelease
from dpjax.transforms._noisy_counts import noisy_counts_shortfall

N, DELTA = 5000, 1e-9
KINDS = {
    "histogram": (HistogramRelease, {}),
    "fit": (GaussianFit, {}),
    "allocated": (GaussianFit, {"allocation": [1.0, 2.0, 4.0]}),
    "once": (MirrorDescentRelease, {"noise": "histogram-once", "steps": 3}),
    "per-step": (MirrorDescentRelease, {"noise": "per-step", "steps": 3}),
}


def made(name, relation=ADD):
    kind, options = KINDS[name]
    problem = QueryRelease(MARGINALS)
    return problem, kind.for_budget(problem, N, Budget(1.0, DELTA, relation), **options)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("name", KINDS)
def test_the_sampler_is_declared_and_paid_for(name, relation):
    _, solver = made(name, relation)
    guarantee = solver.guarantee()
    stddev = getattr(solver, "stddev", None)
    stddev = np.atleast_1d(solver.noise_scale if stddev is None else stddev) * N
    moved = {"histogram": 2, "once": 2, "per-step": 6}.get(name, 6)  # integers a record moves
    want = moved / stddev.size * sum(map(noisy_counts_shortfall, stddev))
    assert guarantee.failure_probability == pytest.approx(want)
    assert want > 0
    assert 0.9999 < guarantee.epsilon(DELTA) <= 1


@pytest.mark.parametrize("name", ["histogram", "fit", "allocated"])
def test_integers_leave(name):
    """Times the number of records they are whole, but for the last bit of a quotient."""
    problem, solver = made(name)
    data = records(MARGINALS, np.arange(N) % 4)

    @jax.jit
    def run(solver, key):
        state = solver.init(problem, key=key)
        return solver.step(problem, data, jnp.ones(N, bool), state)[0][0]

    released = np.asarray(run(solver, jax.random.key(0)), np.float64) * N
    np.testing.assert_allclose(released, np.round(released), atol=1e-3)
    larger = jnp.multiply(4.0, jnp.asarray(solver.stddev))
    other = run(dataclasses.replace(solver, stddev=larger), jax.random.key(0))
    assert np.any(np.asarray(other) * N != released)


def test_sums_of_real_queries_keep_floating_noise():
    problem = QueryRelease(UNUSUAL)
    solver = GaussianFit.for_budget(problem, N, Budget(1.0, DELTA, ADD))
    integers = jnp.issubdtype(problem.workload.answers(jnp.ones(4, jnp.int32)).dtype, jnp.integer)
    assert (solver.guarantee().failure_probability > 0) == integers
