"""Gradients with much in common: one record moves a draw no further than declared, at any n.

Draws ignore what all scores share, but the digits of a float sum do not: before records were
centred, one of a million moved a draw of `FrankWolfe` by up to 162 times the declared range.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.problems import SimplexRisk
from dpjax.solvers import FrankWolfe, SaddleMirrorDescent
from dpjax.solvers.vertices._steps import coordinates

OFFSETS = (0.0, 10.0, 100.0, 1e3, 1e4)  # in units of grad_range
SIZES = [
    3000,
    pytest.param(10**5, marks=pytest.mark.slow),
    pytest.param(10**6, marks=pytest.mark.slow),
]
BUDGET = dpjax.Budget(2.0, 1e-9)
PROBLEM = SimplexRisk(lambda w, rec: rec["c"] @ w, dim=16, grad_range=2.0, smoothness=0.0)


def costs(n):
    return np.random.default_rng(0).choice([-1.0, 1.0], size=(n, 16)).astype(np.float32)


@pytest.mark.parametrize("n", SIZES)
def test_frank_wolfe(n):
    solver = FrankWolfe.for_budget(PROBLEM, n, BUDGET, steps=20)
    eta = float(solver.sharpness) * 2.0 / n
    start = solver.init(PROBLEM, key=jax.random.key(0))
    direction = jax.jit(solver.direction)

    def logits(rows, mask):
        pair = direction(PROBLEM, {"c": rows}, mask, start)
        return np.asarray(coordinates(PROBLEM.domains[0]).logits(*pair), float)

    for offset in OFFSETS:
        rows = jnp.asarray(costs(n) + np.float32(2 * offset))
        whole = logits(rows, jnp.ones(n, bool))
        for out in (0, n // 2, n - 1):
            absent = logits(rows, jnp.arange(n) != out)
            gone = logits(jnp.roll(rows, -out - 1, axis=0), jnp.arange(n) < n - 1)
            for other in (absent, gone):
                assert 0.9 * eta < np.ptp(whole - other) <= eta


@pytest.mark.parametrize("n", SIZES)
def test_saddle_mirror_descent(n):
    steps = 30 if n < 10**5 else 100
    solver = SaddleMirrorDescent.for_budget(
        PROBLEM, n, BUDGET, steps=steps, num_draws=1, order="given"
    )
    info = dpjax.solvers.VertexInfo((jnp.zeros((steps, 1), jnp.int32),))
    xs = solver.sampler.plan(jax.random.key(0), n)
    run = jax.jit(lambda c: solver.replay(PROBLEM, {"c": c}, info, xs).logits[0])
    sizes = np.asarray(solver.sampler.sizes, float)
    starts = np.cumsum(sizes) - sizes
    for offset in OFFSETS:
        rows = costs(n) + np.float32(2 * offset)
        whole = np.asarray(run(jnp.asarray(rows)), float)
        for step in (0, steps // 2, steps - 1):
            other = rows.copy()
            record = int(starts[step])
            other[record] = 4 * offset - rows[record]
            eta = 2 * float(solver.step_size[0]) * 2.0 / sizes[step]
            moved = np.ptp(whole - np.asarray(run(jnp.asarray(other)), float), axis=1)
            assert 0.8 * eta < moved.max() <= eta  # 300 eps of 2e-4 is for rounding
            assert not moved[: step + 1].any()
