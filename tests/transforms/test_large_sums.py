"""Sums of very many examples, whose rounding one example must not move by what it adds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.transforms import clip_by_norm, microbatched_sum

N = 2**20
KEY = jax.random.key(0)


def moved(size):
    """How far one of many records, that all point one way, moves their sum."""
    values = 1 + jax.random.uniform(jax.random.key(0), (N, 4))

    @jax.jit
    def total(values, out):
        mask = jnp.arange(N, dtype=jnp.int32) != out
        return microbatched_sum(lambda v: v, clip_by_norm(1.0), values, mask, size=size)

    whole = np.asarray(total(values, jnp.int32(-1)), float)
    places = (0, 1, N // 2, N - 1)
    without = [np.asarray(total(values, jnp.int32(out)), float) for out in places]
    return max(float(np.linalg.norm(whole - some)) for some in without)


@pytest.mark.slow
def test_parts_are_summed_with_what_rounding_lost():
    assert 0.9 < moved(None) < 1 + 6e-8 * N


@pytest.mark.parametrize("number", [2**16, 2**16 + 1, 3 * 2**15, 100_003])
def test_every_example_is_met_once(number):
    values = jnp.asarray(np.random.default_rng(0).integers(0, 9, (number, 2)), jnp.int32)
    mask = jnp.asarray(np.random.default_rng(1).random(number) < 0.5)
    clip = clip_by_norm(1e6)
    total = microbatched_sum(lambda v: v.astype(jnp.float32), clip, values, mask, size=None)
    # a bound of 1e6 leaves the numbers to what is added in floating point
    want = np.asarray(values)[np.asarray(mask)].sum(axis=0)
    np.testing.assert_allclose(total, want, rtol=3e-7)


@pytest.mark.parametrize("size", [None, 100, 2**30])
def test_too_many_for_float32(size):
    def total(number, dtype):
        return jax.eval_shape(
            lambda v, m: microbatched_sum(lambda v: v, clip_by_norm(1.0), v, m, size=size),
            jax.ShapeDtypeStruct((number, 2), dtype),
            jax.ShapeDtypeStruct((number,), bool),
        )

    assert total(2**24 - 1, jnp.float32).shape == (2,)
    with pytest.raises(ValueError, match="must have < 16777216 examples to be summed in float32"):
        total(2**24, jnp.float32)


def test_scores_of_as_many_are_exact():
    """Sums of scores are carried as pairs, which no number of records makes too short."""
    problem = dpjax.problems.SimplexRisk.linear(
        lambda margin, y: 0.5 * (margin - y) ** 2, dpjax.geometry.Simplex(2), grad_range=1.0
    )
    number = 2**24
    solver = dpjax.solvers.FrankWolfe(
        dpjax.sampling.FullBatch(2), sharpness=1.0, grad_range=1.0, num_records=number
    )
    data = {
        "x": jax.ShapeDtypeStruct((number, 2), jnp.float32),
        "y": jax.ShapeDtypeStruct((number,), jnp.float32),
    }
    run = jax.eval_shape(lambda d, k: dpjax.solve(solver, problem, d, key=k).params, data, KEY)
    assert run.shape == (2,)


def test_as_many_in_float64(x64):
    shapes = (jax.ShapeDtypeStruct((2**24, 2), jnp.float64), jax.ShapeDtypeStruct((2**24,), bool))
    total = jax.eval_shape(
        lambda v, m: microbatched_sum(lambda v: v, clip_by_norm(1.0), v, m, size=None), *shapes
    )
    assert total.dtype == jnp.float64
