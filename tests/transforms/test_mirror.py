import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax import geometry
from dpjax.transforms import mirror_step

SIMPLEX = geometry.entropic()


def descend(mirror_map, step_size, gradients, coords):
    """Parameters after the steps, by optax's protocol."""
    step = mirror_step(mirror_map, step_size)

    def body(carry, gradient):
        coords, state = carry
        updates, state = step.update(gradient, state, coords)
        return (optax.apply_updates(coords, updates), state), None

    return jax.lax.scan(body, (coords, step.init(coords)), gradients)[0][0]


def test_entropic_is_multiplicative_weights(rng):
    gradients = jnp.asarray(rng.normal(size=(50, 8)), jnp.float32)
    coords = jax.jit(lambda g: descend(SIMPLEX, 0.3, g, SIMPLEX.init(g[0])))(gradients)
    weights = np.exp(-0.3 * np.asarray(gradients, np.float64).sum(axis=0))
    np.testing.assert_allclose(SIMPLEX.point(coords), weights / weights.sum(), rtol=1e-4)
    np.testing.assert_allclose(jax.nn.logsumexp(coords), 0, atol=2e-6)


def test_step_minimises_the_linear_loss_and_the_divergence(rng):
    gradient = jnp.asarray(rng.normal(size=4), jnp.float32)
    start = jnp.asarray(rng.dirichlet(np.ones(4)), jnp.float32)
    coords = descend(SIMPLEX, 0.7, gradient[None], SIMPLEX.coordinates(start))

    def objective(x):
        x, at = np.asarray(x, np.float64), np.asarray(start, np.float64)
        return x @ np.asarray(gradient, np.float64) + np.sum(x * np.log(x / at)) / 0.7

    best = objective(SIMPLEX.point(coords))
    assert best <= min(objective(x) for x in rng.dirichlet(np.ones(4), size=2000)) + 1e-6
    assert best < objective(start)


def test_euclidean_maps_are_projected_gradient_steps(rng):
    x = jnp.asarray(rng.normal(size=3), jnp.float32)
    g = jnp.asarray(rng.normal(size=3), jnp.float32)
    moved = np.asarray(x - 2 * g)
    got = descend(geometry.euclidean_box(-0.5, 0.5), 2.0, g[None], jnp.clip(x, -0.5, 0.5))
    np.testing.assert_allclose(
        got, np.clip(np.clip(x, -0.5, 0.5) - 2 * np.asarray(g), -0.5, 0.5), rtol=1e-6
    )
    got = descend(geometry.euclidean_ball(1.0), 2.0, g[None], x)
    np.testing.assert_allclose(got, moved / max(1, np.linalg.norm(moved)), rtol=1e-6)
    want = optax.sgd(2.0).update(g, optax.sgd(2.0).init(x))[0]
    free = mirror_step(geometry.p_norm(2.0), 2.0)  # without a radius: gradient descent
    np.testing.assert_allclose(free.update(g, free.init(x), x)[0], want, rtol=1e-6)


def test_p_norm_steps_in_dual_coordinates():
    dual = geometry.p_norm(1.5)
    x, g = jnp.array([1.0, -2.0, 0.5]), jnp.array([0.3, 0.1, -0.2])

    def gradient_of_half_squared_norm(x):
        x = np.asarray(x, np.float64)
        size = np.sum(np.abs(x) ** 1.5)
        return np.sign(x) * np.abs(x) ** 0.5 * size ** (2 / 1.5 - 1)

    coords = descend(dual, 0.4, g[None], dual.coordinates(x))
    want = gradient_of_half_squared_norm(x) - 0.4 * np.asarray(g)
    np.testing.assert_allclose(gradient_of_half_squared_norm(dual.point(coords)), want, rtol=1e-5)


def test_players_of_a_product_step_by_sizes_of_their_own():
    both = geometry.product(SIMPLEX, SIMPLEX)
    coords = both.init((jnp.zeros(3), jnp.zeros(2)))
    gradients = jnp.array([1.0, 0.0, 2.0]), jnp.array([0.0, 3.0])
    step = mirror_step(both, (0.1, 0.5))
    updates, _ = step.update(gradients, step.init(coords), coords)
    for i, size in enumerate((0.1, 0.5)):
        alone = descend(SIMPLEX, size, gradients[i][None], coords[i])
        np.testing.assert_allclose(coords[i] + updates[i], alone, rtol=1e-6)


def test_schedules_and_traced_sizes():
    gradients = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    start = SIMPLEX.init(gradients[0])
    got = descend(SIMPLEX, lambda count: 1.0 / (count + 1), gradients, start)
    want = jax.nn.log_softmax(-gradients.T @ jnp.array([1.0, 1 / 2, 1 / 3]))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    sizes = jnp.array([0.1, 1.0])
    swept = jax.jit(jax.vmap(lambda size: descend(SIMPLEX, size, gradients, start)))(sizes)
    for size, coords in zip(sizes, swept, strict=True):
        np.testing.assert_allclose(
            coords, descend(SIMPLEX, float(size), gradients, start), rtol=1e-5
        )


def test_composes_with_optax_and_dpjax(key):
    g, coords = jnp.array([1.0, 0.0, -1.0]), SIMPLEX.init(jnp.zeros(3))
    want, _ = mirror_step(SIMPLEX, 0.2).update(g, mirror_step(SIMPLEX, 0.2).init(coords), coords)
    plain = optax.chain(optax.scale(2.0), mirror_step(SIMPLEX, 0.1))
    got, _ = plain.update(g, plain.init(coords), coords)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    private = dpjax.chain(
        dpjax.transforms.clip_by_range(0.4, geometry.Simplex(3)),
        dpjax.transforms.add_gaussian(0.0),
        mirror_step(SIMPLEX, 0.5),
    )
    per_example = jnp.stack([g, 10 * g])  # the first has range 2: both become 0.2 g
    got, _ = private.update(
        per_example, private.init(coords), coords, key=key, mask=jnp.ones(2, bool)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_small_types_and_vertices_without_weight():
    coords = SIMPLEX.init(jnp.zeros(4)).astype(jnp.bfloat16)
    step = mirror_step(SIMPLEX, 0.5)
    updates, _ = step.update(jnp.ones(4, jnp.bfloat16), step.init(coords), coords)
    assert updates.dtype == jnp.bfloat16
    coords = SIMPLEX.coordinates(jnp.array([0.5, 0.0, 0.5]))
    updates, _ = step.update(jnp.array([1.0, 2.0, 0.0]), step.init(coords), coords)
    after = SIMPLEX.point(optax.apply_updates(coords, updates))
    np.testing.assert_allclose(after, [1 / (1 + np.exp(0.5)), 0, 1 / (1 + np.exp(-0.5))], rtol=1e-5)


def test_errors():
    for bad in (-1.0, np.nan, (0.1, -1.0)):
        with pytest.raises(ValueError, match="step_size must be"):
            mirror_step(SIMPLEX, bad)
    step = mirror_step(SIMPLEX, 0.1)
    with pytest.raises(ValueError, match="params is required"):
        step.update(jnp.zeros(2), step.init(None))
