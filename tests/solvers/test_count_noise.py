"""Counts are released as integers, and what their sampler falls short of is declared."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from query_runs import ADD, MARGINALS, REPLACE, UNUSUAL, records

from dpjax import Budget
from dpjax.problems import QueryRelease
from dpjax.solvers import MWEM, GaussianFit, HistogramRelease, MirrorDescentRelease
from dpjax.testing import count_false_alarm
from dpjax.testing._trees import QUICK
from dpjax.transforms.noise._noisy_counts import noisy_counts_shortfall

N, DELTA = 5000, 1e-9
KINDS = {
    "histogram": (HistogramRelease, {}),
    "fit": (GaussianFit, {}),
    "allocated": (GaussianFit, {"allocation": [1.0, 2.0, 4.0]}),
    "once": (MirrorDescentRelease, {"noise": "histogram-once", "steps": 3}),
    "per-step": (MirrorDescentRelease, {"noise": "per-step", "steps": 3}),
    "mwem": (MWEM, {"steps": 3}),
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
    moved = {"histogram": 2, "once": 2, "per-step": 6, "mwem": 3}.get(
        name, 6
    )  # integers a record moves
    want = moved / stddev.size * sum(map(noisy_counts_shortfall, stddev))
    assert guarantee.failure_probability == pytest.approx(want, abs=0)
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


def test_measurements_in_steps_are_integers():
    """In a sweep too; the noise is that of the event, and of no other deviation."""
    problem, solver = made("mwem")
    data = records(MARGINALS, np.arange(N) % 4)
    sums = MARGINALS.answers(MARGINALS.histogram(data))

    def run(stddev, key):
        swept = dataclasses.replace(solver, stddev=stddev)
        state = swept.prologue(problem, data, swept.init(problem, key=key))
        assert state.answers.dtype == jnp.int32
        info = swept.step(problem, None, None, state)[1]
        return info.measured * N, sums[info.index]

    stddevs, keys = jnp.array([1.0, 1.5]) * solver.stddev, jax.random.split(jax.random.key(0), 2000)
    measured, exact = jax.jit(
        jax.vmap(jax.vmap(run, (None, 0)), (0, None)), compiler_options=QUICK
    )(stddevs, keys)
    noise = np.asarray(measured, np.float64) - exact
    np.testing.assert_allclose(noise, np.round(noise), atol=1e-3)
    count_false_alarm(1e-8)
    np.testing.assert_allclose(noise.std(axis=1), N * np.asarray(stddevs), rtol=0.1)  # 6 errors


def test_sums_of_real_queries_keep_floating_noise():
    problem = QueryRelease(UNUSUAL)
    solver = GaussianFit.for_budget(problem, N, Budget(1.0, DELTA, ADD))
    integers = jnp.issubdtype(problem.workload.answers(jnp.ones(4, jnp.int32)).dtype, jnp.integer)
    assert (solver.guarantee().failure_probability > 0) == integers
