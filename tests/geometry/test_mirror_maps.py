"""Mirror steps against numerical minimisers, and the regret bound of the entropic one."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from dpjax.geometry import (
    entropic,
    euclidean_ball,
    euclidean_box,
    log_normalize,
    p_norm,
    product,
)

DIM = 3


def half_square(x, p=2.0):
    return np.sum(np.abs(x) ** p) ** (2 / p) / 2


def half_square_gradient(x, p):
    return np.sign(x) * np.abs(x) ** (p - 1) * np.sum(np.abs(x) ** p) ** (2 / p - 1)


def entropy_divergence(a, b):
    return np.sum(special.rel_entr(a, b))


def norm_divergence(a, b, p=2.0):
    return half_square(a, p) - half_square(b, p) - half_square_gradient(b, p) @ (a - b)


def inside(radius, p):
    return {"type": "ineq", "fun": lambda x: radius**2 / 2 - half_square(x, p)}


ON_SIMPLEX = {"type": "eq", "fun": lambda x: np.sum(x) - 1}
LOW, HIGH = np.array([-0.5, 0.1, -2.0]), np.array([0.5, 0.9, 2.0])

# map, divergence, constraints and bounds for scipy, how to make a point inside
MAPS = {
    "entropic": (
        entropic(),
        entropy_divergence,
        {"constraints": [ON_SIMPLEX], "bounds": [(1e-12, 1)] * DIM},
        lambda rng: rng.dirichlet(np.ones(DIM)),
    ),
    "ball": (
        euclidean_ball(1.5),
        norm_divergence,
        {"constraints": [inside(1.5, 2)]},
        lambda rng: rng.uniform(-0.8, 0.8, size=DIM),
    ),
    "box": (
        euclidean_box(jnp.asarray(LOW, jnp.float32), jnp.asarray(HIGH, jnp.float32)),
        norm_divergence,
        {"bounds": list(zip(LOW, HIGH, strict=True))},
        lambda rng: rng.uniform(LOW, HIGH),
    ),
    "p_norm": (
        p_norm(1.5),
        functools.partial(norm_divergence, p=1.5),
        {},
        lambda rng: rng.normal(size=DIM),
    ),
    "p_norm_in_ball": (
        p_norm(1.4, radius=1.2),
        functools.partial(norm_divergence, p=1.4),
        {"constraints": [inside(1.2, 1.4)]},
        lambda rng: rng.uniform(-0.3, 0.3, size=DIM),
    ),
    "p_norm_2": (p_norm(2), norm_divergence, {}, lambda rng: rng.normal(size=DIM)),
}


@pytest.fixture(params=MAPS)
def case(request):
    return MAPS[request.param]


@pytest.mark.parametrize("step_size", [0.1, 1.0])
def test_step_is_the_minimiser(case, step_size, rng):
    geometry, divergence, limits, draw = case
    for _ in range(4):
        start, gradient = draw(rng), 1.5 * rng.normal(size=DIM)

        def objective(x, start=start, gradient=gradient):
            return gradient @ x + divergence(x, start) / step_size

        coords = geometry.coordinates(jnp.asarray(start))
        after = geometry.point(geometry.step(coords, jnp.asarray(gradient), step_size))
        after = np.asarray(after, np.float64)
        best = optimize.minimize(
            objective, start, method="SLSQP", options={"ftol": 1e-15, "maxiter": 500}, **limits
        ).x
        # once more from a point close by, for the last digits
        best = optimize.minimize(
            objective, best, method="SLSQP", options={"ftol": 1e-16, "maxiter": 500}, **limits
        ).x
        assert objective(after) <= objective(best) + 1e-6 / step_size
        np.testing.assert_allclose(after, best, atol=1e-5 if step_size == 1.0 else 2e-5)


def test_divergence(case, rng):
    geometry, divergence, _, draw = case
    for _ in range(5):
        a, b = draw(rng), draw(rng)
        got = geometry.divergence(jnp.asarray(a), jnp.asarray(b))
        assert got.shape == ()
        assert float(got) == pytest.approx(divergence(a, b), abs=1e-5)
        assert float(geometry.divergence(jnp.asarray(a), jnp.asarray(a))) == pytest.approx(
            0, abs=1e-6
        )


def test_coordinates_and_back(case, rng):
    geometry, _, _, draw = case
    for _ in range(5):
        x = draw(rng)
        coords = geometry.coordinates(jnp.asarray(x))
        np.testing.assert_allclose(geometry.point(coords), x, atol=1e-6, rtol=1e-5)
        again = geometry.coordinates(geometry.point(coords))
        np.testing.assert_allclose(again, coords, atol=1e-5, rtol=1e-5)


def test_no_step_without_gradient_or_step_size(case, rng):
    geometry, _, _, draw = case
    coords = geometry.coordinates(jnp.asarray(draw(rng)))
    gradient = jnp.asarray(rng.normal(size=DIM))
    np.testing.assert_allclose(geometry.step(coords, gradient, 0.0), coords, atol=1e-6)
    np.testing.assert_allclose(geometry.step(coords, 0 * gradient, 1.0), coords, atol=1e-6)


def test_start_is_where_the_map_is_smallest(case, rng):
    geometry, _, _, _ = case
    start = geometry.init(jax.ShapeDtypeStruct((DIM,), jnp.float32))
    assert start.shape == (DIM,)
    assert start.dtype == jnp.float32
    np.testing.assert_array_equal(geometry.init(jnp.full(DIM, 7, jnp.float32)), start)


def test_starts():
    x = jnp.zeros(4)
    np.testing.assert_allclose(entropic().point(entropic().init(x)), 0.25, rtol=1e-6)
    np.testing.assert_array_equal(euclidean_ball(1.0).init(x), 0)
    np.testing.assert_array_equal(euclidean_box(0.5, 1.0).init(x), 0.5)
    np.testing.assert_array_equal(p_norm(1.5).point(p_norm(1.5).init(x)), 0)


def test_vmap_over_step_sizes_equals_loop(case, rng):
    geometry, _, _, draw = case
    coords = geometry.coordinates(jnp.asarray(draw(rng), jnp.float32))
    gradient = jnp.asarray(rng.normal(size=DIM), jnp.float32)
    sizes = jnp.array([0.0, 0.1, 1.0])
    together = jax.vmap(lambda s: geometry.step(coords, gradient, s))(sizes)
    alone = jnp.stack([geometry.step(coords, gradient, s) for s in sizes])
    np.testing.assert_allclose(together, alone, rtol=1e-6, atol=1e-7)


def test_coordinates_keep_their_dtype(case, rng):
    geometry, _, _, draw = case
    coords = geometry.coordinates(jnp.asarray(draw(rng), jnp.float32))
    wide = jnp.asarray(rng.normal(size=DIM), float)
    after = geometry.step(coords, wide, jnp.asarray(0.1, float))
    assert coords.dtype == after.dtype == jnp.float32


def test_radii_may_be_traced(rng):
    x = jnp.asarray(rng.normal(size=DIM), jnp.float32)
    radii = jnp.array([0.1, 0.5])
    for make in (euclidean_ball, lambda r: p_norm(1.5, r), lambda r: euclidean_box(-r, r)):
        together = jax.vmap(lambda r, make=make: make(r).step(0 * x, x, 1.0))(radii)
        alone = jnp.stack([make(float(r)).step(0 * x, x, 1.0) for r in radii])
        np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_norms_neither_overflow_nor_divide_by_zero():
    huge = jnp.array([3e30, 4e30], jnp.float32)
    ball = euclidean_ball(1.0)
    np.testing.assert_allclose(ball.step(jnp.zeros(2), -huge, 1.0), [0.6, 0.8], rtol=1e-5)
    close = p_norm(1 + 1 / math.log(1e6))
    x = jnp.array([3.0, -4.0, 0.0])
    np.testing.assert_allclose(close.point(close.coordinates(x)), x, rtol=1e-3)
    np.testing.assert_array_equal(close.point(jnp.zeros(3)), 0)
    np.testing.assert_array_equal(p_norm(1.5, 1.0).step(jnp.zeros(3), jnp.zeros(3), 1.0), 0)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("dim", [1, 1000, 10**6])
def test_log_normalize(dim, scale, rng):
    logits = jnp.asarray(scale * rng.normal(size=dim) + 5, jnp.float32)
    out = np.asarray(log_normalize(logits), np.float64)
    assert abs(special.logsumexp(out)) <= 1e-5
    np.testing.assert_allclose(
        out - out[0], np.asarray(logits - logits[0]), atol=3e-6 + 1e-6 * scale
    )


def test_log_normalize_keeps_excluded_vertices_out():
    with jax.debug_nans(True):
        out = log_normalize(jnp.array([-jnp.inf, 0.0, -jnp.inf, 0.0] * 30))
    np.testing.assert_array_equal(jnp.isneginf(out), [True, False] * 60)
    np.testing.assert_allclose(out[1], -math.log(60), rtol=1e-6)


def test_entropic_coordinates_stay_normalised(rng):
    geometry = entropic()
    gradients = jnp.asarray(rng.normal(size=(3000, 200)) + np.linspace(0, 1, 200), jnp.float32)

    def body(coords, gradient):
        coords = geometry.step(coords, gradient, 0.1)
        return coords, jax.nn.logsumexp(coords)

    last, sums = jax.lax.scan(body, geometry.init(gradients[0]), gradients)
    assert float(jnp.max(jnp.abs(sums))) <= 1e-5
    assert float(jnp.min(last)) < -200  # the weight itself would be 0
    whole = log_normalize(-0.1 * jnp.sum(gradients, axis=0))
    np.testing.assert_allclose(last, whole, atol=0.01)


def worst_for_multiplicative_weights(rng, steps, dim):
    """The heaviest vertex is always the one that loses."""
    del rng, steps, dim
    return lambda t, x: np.where(np.arange(x.size) == np.argmax(x), 1.0, 0.0)


def alternating(rng, steps, dim):
    del rng, steps
    return lambda t, x: (-1.0) ** t * np.where(np.arange(dim) % 2, 1.0, -1.0)


def random_gradients(rng, steps, dim):
    drift = rng.normal(size=dim)
    table = rng.normal(size=(steps, dim)) + drift
    return lambda t, x: table[t]


def rare_spikes(rng, steps, dim):
    where = rng.integers(dim, size=steps)
    return lambda t, x: np.where(np.arange(dim) == where[t], 10.0 * (t % 7 == 0), 0.0)


STEP = jax.jit(entropic().step)


def play(adversary, step_size, rng, sign=1.0):
    """Regret against the best vertex, and its bound."""
    steps, dim = 150, 8
    geometry, respond = entropic(), adversary(rng, steps, dim)
    coords = geometry.init(jnp.zeros(dim))
    paid, total, squares = 0.0, np.zeros(dim), 0.0
    for t in range(steps):
        x = np.asarray(geometry.point(coords), np.float64)
        gradient = respond(t, x)
        paid, total = paid + gradient @ x, total + gradient
        squares += np.abs(gradient).max() ** 2
        coords = STEP(coords, jnp.asarray(sign * gradient, jnp.float32), step_size)
    return paid - total.min(), math.log(dim) / step_size + step_size / 2 * squares


@pytest.mark.parametrize(
    "adversary", [worst_for_multiplicative_weights, alternating, random_gradients, rare_spikes]
)
@pytest.mark.parametrize("step_size", [0.02, 0.3, 2.0])
def test_regret_of_the_entropic_step(adversary, step_size, rng):
    regret, bound = play(adversary, step_size, rng)
    assert regret <= bound + 1e-3


def test_steps_along_the_gradient_break_the_regret_bound(rng):
    regret, bound = play(random_gradients, 0.1, rng, sign=-1.0)
    assert regret > bound


def test_product_is_each_on_its_own(rng):
    maps = entropic(), euclidean_box(-1.0, 1.0), p_norm(1.5)
    joint = product(*maps)
    params = tuple(jnp.zeros(d) for d in (2, 3, 4))
    coords = joint.init(params)
    gradient = tuple(jnp.asarray(rng.normal(size=d)) for d in (2, 3, 4))
    for sizes in (0.3, (0.1, 0.2, 0.3)):
        each = sizes if isinstance(sizes, tuple) else (sizes,) * 3
        after = joint.step(coords, gradient, sizes)
        alone = [m.step(c, g, s) for m, c, g, s in zip(maps, coords, gradient, each, strict=True)]
        jax.tree.map(np.testing.assert_array_equal, after, tuple(alone))
    points = joint.point(after)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-5), joint.coordinates(points), after
    )
    start = joint.point(coords)
    expected = sum(float(m.divergence(p, q)) for m, p, q in zip(maps, points, start, strict=True))
    assert float(joint.divergence(points, start)) == pytest.approx(expected, rel=1e-5)


def test_arguments_are_checked():
    for p in (1, 2.5, math.nan):
        with pytest.raises(ValueError, match=r"p must be a number in \(1, 2\]"):
            p_norm(p)
    with pytest.raises(ValueError, match=r"radius must be > 0, got 0.0"):
        euclidean_ball(0)
    with pytest.raises(ValueError, match=r"radius must be > 0, got -1.0"):
        p_norm(1.5, -1)
    with pytest.raises(ValueError, match=r"low must be <= high, got 3.0 and 1.0"):
        euclidean_box(np.array([0.0, 3.0]), 1.0)
    with pytest.raises(ValueError, match="low must be <= high, got nan"):
        euclidean_box(np.nan, 1.0)
    with pytest.raises(ValueError, match="at least one mirror map"):
        product()
    game = product(entropic(), entropic())
    coords = game.init((jnp.zeros(2), jnp.zeros(2)))
    with pytest.raises(ValueError, match=r"gradient must be a tuple of 2, got 1"):
        game.step(coords, (jnp.zeros(2),), 0.1)
    with pytest.raises(ValueError, match=r"params must be a vector of >= 1 entries"):
        entropic().init(jnp.zeros((2, 2)))
