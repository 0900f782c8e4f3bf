import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.geometry import entropic
from dpjax.transforms import anytime_average, mirror_step

STEPS = 12
TARGET = jnp.array([1.0, -2.0, 0.5])


def gradient(w):
    return w - TARGET


def run(optimizer, w, gradient=gradient, **extra):
    """Averages after each step, and the last state, by optax's protocol in one scan."""

    def body(carry, _):
        w, state = carry
        updates, state = optimizer.update(gradient(w), state, w, **extra)
        w = optax.apply_updates(w, updates)
        return (w, state), (w, state.iterate)

    (_, state), history = jax.jit(
        lambda w: jax.lax.scan(body, (w, optimizer.init(w)), length=STEPS)
    )(w)
    return *history, state


@pytest.mark.parametrize(
    "base", [optax.sgd(0.7), optax.adam(0.3), optax.sgd(lambda count: 1.0 / (count + 1))]
)
def test_averages_the_iterates_of_gradients_at_the_average(base):
    averages, iterates, state = run(anytime_average(base), jnp.zeros(3))
    assert int(state.count) == STEPS
    x, inner, seen = jnp.zeros(3), base.init(jnp.zeros(3)), [np.zeros(3)]
    for t in range(STEPS):
        at = jnp.asarray(np.mean(seen, axis=0), x.dtype)
        updates, inner = base.update(gradient(at), inner, x)
        x = optax.apply_updates(x, updates)
        seen.append(np.asarray(x))
        np.testing.assert_allclose(iterates[t], x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(averages[t], np.mean(seen, axis=0), rtol=1e-4, atol=1e-5)


def test_mirror_descent_averages_points_of_the_simplex():
    simplex = entropic()
    optimizer = anytime_average(mirror_step(simplex, 2.0), simplex)
    w = jnp.full(3, 1 / 3)
    averages, iterates, _ = run(optimizer, w, gradient=lambda w: w - TARGET)
    points = np.exp(np.asarray(iterates, np.float64))
    np.testing.assert_allclose(points.sum(axis=1), 1, rtol=1e-5)
    seen = np.concatenate([np.asarray(w)[None], points])
    sizes = np.arange(2, STEPS + 2)
    np.testing.assert_allclose(
        averages, np.cumsum(seen, axis=0)[1:] / sizes[:, None], rtol=1e-5, atol=1e-6
    )
    path = np.concatenate([np.asarray(w)[None], np.asarray(averages)])
    moves = np.abs(np.diff(path, axis=0)).sum(axis=1)
    assert np.all(moves <= 2 / sizes + 1e-6)
    # minus the sum of gradients at the averages, in logits
    gradients = path[:-1] - np.asarray(TARGET)
    scores = -2.0 * np.cumsum(gradients, axis=0)
    want = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(points, want, rtol=1e-4, atol=1e-6)


def test_moves_are_as_large_as_the_bound_allows():
    """An iterate that jumps between two vertices moves the average by nearly 2 / t in l1."""
    simplex = entropic()
    optimizer = anytime_average(mirror_step(simplex, 1e3), simplex)
    w = jnp.array([1e-6, 1 - 1e-6])
    averages, _, _ = run(optimizer, w, gradient=lambda w: jnp.array([-1.0, 0.0]))
    first = np.abs(np.asarray(averages[0] - w)).sum()
    assert 0.999 < first <= 1.0 + 1e-6  # t = 2


def test_trees_types_and_extra_arguments(key):
    params = {"a": jnp.zeros(2, jnp.float32), "b": jnp.ones((2, 2), jnp.bfloat16)}
    optimizer = anytime_average(dpjax.chain(dpjax.transforms.add_gaussian(0.0), optax.sgd(1.0)))
    state = optimizer.init(params)
    updates, state = optimizer.update(jax.tree.map(jnp.ones_like, params), state, params, key=key)
    assert (updates["a"].dtype, updates["b"].dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_array_equal(updates["a"], [-0.5, -0.5])
    np.testing.assert_array_equal(updates["b"], jnp.full((2, 2), -0.5, jnp.bfloat16))
    chained = optax.chain(optax.scale(2.0), anytime_average(optax.sgd(1.0)))
    w = jnp.zeros(3)
    updates, _ = chained.update(jnp.ones(3), chained.init(w), w)
    np.testing.assert_array_equal(updates, [-1.0] * 3)


def test_last_average_meets_the_regret_bound():
    """F(w_T) - F* is at most the regret of the iterates over T, here of SGD on a quadratic."""

    def loss(w):
        return 0.5 * np.sum((np.asarray(w, np.float64) - np.asarray(TARGET)) ** 2)

    w = jnp.zeros(3)
    averages, iterates, _ = run(anytime_average(optax.sgd(0.2)), w)
    path = np.concatenate([np.asarray(w)[None], np.asarray(averages)])
    x = np.concatenate([np.asarray(w)[None], np.asarray(iterates)])
    gradients = path - np.asarray(TARGET)
    for t in range(1, STEPS + 2):
        regret = np.sum(gradients[:t] * (x[:t] - np.asarray(TARGET)))
        assert loss(path[t - 1]) <= regret / t + 1e-6


def test_errors():
    with pytest.raises(TypeError, match="base is no transformation"):
        anytime_average(lambda g: g)
    optimizer = anytime_average(optax.sgd(0.1))
    with pytest.raises(ValueError, match="params is required"):
        optimizer.update(jnp.zeros(2), optimizer.init(jnp.zeros(2)))
