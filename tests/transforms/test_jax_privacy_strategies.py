import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noise_maps import noise_map, scale_families, smallest_shifts

from dpjax.transforms import (
    BufferedToeplitz,
    NoiseStrategy,
    correlated_noise,
    fit_buffered_toeplitz,
    from_jax_privacy,
)

factorization = pytest.importorskip("jax_privacy.matrix_factorization")
pytestmark = pytest.mark.usefixtures("x64")

STEPS = 12


def theirs(steps=STEPS):
    ours = fit_buffered_toeplitz(64)
    return factorization.buffered_toeplitz.BufferedToeplitz.build(
        buf_decay=ours.decay, output_scale=ours.omega
    ), BufferedToeplitz(steps, ours.omega, ours.decay)


@pytest.mark.slow
def test_buffered_toeplitz_is_theirs_on_the_same_draws():
    matrix, ours = theirs()
    draws = np.random.default_rng(0).normal(size=(STEPS, 5))
    with jax.numpy_rank_promotion("allow"):
        want = np.asarray(matrix.inverse_as_streaming_matrix() @ jnp.asarray(draws))
    state, got = ours.init(jnp.zeros(5)), []
    for draw in draws:
        step, state = ours.next(lambda level, d=draw: jnp.asarray(d), 1.0, state)
        got.append(np.asarray(step))
    np.testing.assert_allclose(np.array(got) / ours.column_norms[:, None], want, atol=1e-12)
    converted = from_jax_privacy(matrix, STEPS)
    assert isinstance(converted, BufferedToeplitz)
    np.testing.assert_allclose(
        noise_map(converted, np.ones(STEPS)), noise_map(ours, np.ones(STEPS))
    )


@functools.cache
@jax.numpy_rank_promotion("allow")
def strategies():
    coefs = factorization.toeplitz.optimal_max_error_strategy_coefs(STEPS)
    rng = np.random.default_rng(0)
    dense = np.tril(rng.uniform(0.1, 1.0, size=(STEPS, STEPS))) + np.eye(STEPS)
    return {
        "square root": (
            coefs,
            np.asarray(factorization.toeplitz.materialize_lower_triangular(coefs)),
        ),
        "banded": (np.array([2.0, 0.5, 0.25]), None),
        "longer": (
            factorization.toeplitz.optimal_max_error_strategy_coefs(2 * STEPS),
            np.asarray(factorization.toeplitz.materialize_lower_triangular(coefs)),
        ),
        "dense": (dense, dense),
        "normalised": (
            factorization.banded.ColumnNormalizedBanded.default(STEPS, 3),
            np.asarray(factorization.banded.ColumnNormalizedBanded.default(STEPS, 3).materialize()),
        ),
        "identity": (factorization.streaming_matrix.identity(), np.eye(STEPS)),
    }


@pytest.mark.parametrize(
    "name", ["square root", "banded", "longer", "dense", "normalised", "identity"]
)
def test_any_strategy_is_normalised(name):
    matrix, c = strategies()[name]
    strategy = from_jax_privacy(matrix, STEPS)
    assert isinstance(strategy, NoiseStrategy)
    if name == "banded":
        c = sum(v * np.eye(STEPS, k=-i) for i, v in enumerate(matrix))
    norms = np.linalg.norm(c, axis=0)
    for scales in scale_families(STEPS).values():
        got = noise_map(strategy, scales)
        want = np.cumsum((scales * norms)[:, None] * np.linalg.inv(c), axis=0)
        np.testing.assert_allclose(got, want, atol=1e-6 * scales.max())
        np.testing.assert_allclose(
            strategy.prefix_stddev(scales), np.linalg.norm(want, axis=1), rtol=1e-5
        )
        np.testing.assert_allclose(
            np.linalg.norm(smallest_shifts(got, scales), axis=0), 1.0, rtol=1e-5
        )


def test_square_roots_have_the_error_that_is_known():
    coefs = factorization.toeplitz.optimal_max_error_strategy_coefs(1024)
    stddev = from_jax_privacy(coefs, 1024).prefix_stddev()
    np.testing.assert_allclose([stddev.mean(), stddev.max()], [2.99, 3.08], rtol=0.01)
    assert stddev.max() ** 2 <= 9.6


def test_it_is_noise_like_any_other(key):
    strategy = from_jax_privacy(np.array([1.0, 0.5], np.float32), 3)
    noise = correlated_noise(strategy, 2.0)
    like = {"a": jnp.zeros((2, 2), jnp.float32), "b": jnp.zeros(3, jnp.bfloat16)}

    def body(state, _):
        out, state = noise.update(like, state, key=key)
        return state, out

    out = jax.lax.scan(body, noise.init(like), None, length=4)[1]
    assert out["b"].dtype == jnp.bfloat16
    assert np.all(np.isfinite(out["a"][:3]))
    assert np.all(np.isnan(out["a"][3]))
    assert strategy.event(2.0).noise_multiplier == 2.0
    assert strategy != from_jax_privacy(np.array([1.0, 0.5]), 3)
    assert len({strategy, strategy}) == 1


def test_wrong_arguments():
    with pytest.raises(ValueError, match="num_steps must be <= 4096, got 5000"):
        from_jax_privacy(factorization.streaming_matrix.identity(), 5000)
    with pytest.raises(ValueError, match="lower triangular"):
        from_jax_privacy(np.ones((3, 3)), 3)
    with pytest.raises(ValueError, match="shape"):
        from_jax_privacy(np.eye(3), 4)
    with pytest.raises(ValueError, match="first coefficient > 0"):
        from_jax_privacy(np.array([0.0, 1.0]), 4)
    with pytest.raises(ValueError, match="finite"):
        from_jax_privacy(np.array([np.nan, 1.0]), 4)
    with pytest.raises(TypeError, match="strategy"):
        from_jax_privacy("toeplitz", 4)
    with pytest.raises(ValueError, match="num_steps"):
        from_jax_privacy(np.ones(1), 0)


def test_missing_library_is_said(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "jax_privacy", None)
    with pytest.raises(ImportError, match=r"dpjax\[correlated\]"):
        from_jax_privacy(np.ones(1), 1)
