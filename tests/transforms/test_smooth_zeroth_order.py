"""Gradients of a smoothed loss from values of it alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from smoothed_ramps import (
    DIM,
    DISTANCE,
    RADIUS,
    ball_slope,
    call,
    check_mean,
    join,
    misdrawn_slopes,
    ramp,
    sphere_slope,
    split,
    unit_vector,
)

import dpjax.testing as dpt
from dpjax.problems import Risk
from dpjax.testing._trees import QUICK
from dpjax.transforms import ZerothOrder, smooth_zeroth_order

DRAWS = 200_000


def zeros(size):
    return {"y": np.zeros(size, np.float32)}


def linear(params, batch):
    """The losses <g_b, x> + c_b, with a gradient each."""
    return jnp.matmul(batch["g"], params, precision="highest") + batch["c"]


def slopes(rng, size=5, dim=7):
    return {"g": np.float32(rng.normal(size=(size, dim))), "c": np.zeros(size, np.float32)}


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def coordinates(oracle, params, batch, key):
    return oracle.coordinates(params, batch, key=key)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def gradient(oracle, v, params, key):
    return oracle.gradient(v, params, key=key)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def directions(oracle, params, key):
    """All m of them, `[m, *p]`, by the adjoint map of the unit vectors."""
    dim = sum(leaf.size for leaf in jax.tree.leaves(params))
    vectors = jnp.eye(oracle.num_directions) * (oracle.num_directions / dim) ** 0.5
    return jax.vmap(lambda v: oracle.gradient(v, params, key=key))(vectors)


def test_the_mean_is_the_gradient_of_the_ball_smoothed_loss(rng, key):
    u = unit_vector(rng)
    losses, _ = ramp(u, offset=-DISTANCE)
    oracle = smooth_zeroth_order(losses, RADIUS, 1, directions="record")
    e = join(call(oracle, split(np.zeros(DIM)), zeros(DRAWS), key))
    right = ball_slope(DISTANCE, RADIUS, DIM)
    wrong = [sphere_slope(DISTANCE, RADIUS, DIM), *misdrawn_slopes(DISTANCE, RADIUS, DIM)]
    check_mean(e @ u, right, [*wrong, 2 / 3 * right, 3 / 2 * right])
    across = np.linalg.qr(np.column_stack([u, rng.normal(size=(DIM, 3))]))[0][:, 1:]
    for other in across.T:
        check_mean(e @ other, 0.0, [right / 4])
    assert np.linalg.norm(e, axis=1).max() <= DIM * (1 + 1e-4)


def test_shared_directions_have_the_same_mean(rng, key):
    u = unit_vector(rng)
    losses, _ = ramp(u, offset=-DISTANCE)
    oracle = smooth_zeroth_order(losses, RADIUS, 10)
    x = split(np.zeros(DIM))

    def one(key):
        return oracle.gradient(oracle.coordinates(x, zeros(1), key=key)[0], x, key=key)

    e = join(jax.jit(jax.vmap(one), compiler_options=QUICK)(jax.random.split(key, DRAWS // 10)))
    right = ball_slope(DISTANCE, RADIUS, DIM)
    wrong = [sphere_slope(DISTANCE, RADIUS, DIM), *misdrawn_slopes(DISTANCE, RADIUS, DIM)]
    check_mean(e @ u, right, [*wrong, 2 / 3 * right, 3 / 2 * right])


def test_directions_are_uniform_on_the_sphere_of_the_whole_tree(rng, key):
    oracle = smooth_zeroth_order(ramp(np.ones(DIM))[0], 1.0, 5000)
    y = join(directions(oracle, split(np.zeros(DIM)), key))
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1, atol=1e-6)
    for u in (np.eye(DIM)[0], np.eye(DIM)[7], unit_vector(rng), unit_vector(rng)):
        dpt.check_scale(y @ u, lambda s: lambda z: stats.beta(3.5, 3.5).cdf((1 + z / s) / 2), 1.0)
    # leaves share one norm: the share of the first, of 6 entries of 8, is beta
    dpt.check_distribution(np.sum(y[:, :6] ** 2, axis=1), stats.beta(3, 1).cdf)
    assert len(np.unique(y, axis=0)) == 5000
    dpt.check_uncorrelated(y[:-1, 0], y[1:, 0], name="directions")
    other = join(directions(oracle, split(np.zeros(DIM)), jax.random.key(1)))
    dpt.check_uncorrelated(y, other, name="keys")


def test_long_directions_have_norm_one(key):
    oracle = smooth_zeroth_order(linear, 1.0, 2)
    y = np.asarray(directions(oracle, np.zeros(1_000_003, np.float32), key), np.float64)
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1, atol=1e-5)
    assert abs(y[0] @ y[1]) < 7 / 1000
    dpt.check_scale(1000 * y[0, ::50], lambda s: stats.norm(scale=s).cdf, 1.0)


def test_second_moments_of_a_linear_loss(rng, key):
    """|e|^2 = d^2 <g, y>^2, of mean d |g|^2, for one direction; coordinates have |g|^2."""
    g = 3 * unit_vector(rng)
    batch = {"g": np.tile(np.float32(g), (20_000, 1)), "c": np.zeros(20_000, np.float32)}
    x = np.zeros(DIM, np.float32)
    e = call(smooth_zeroth_order(linear, 0.5, 1, directions="record"), x, batch, key)
    squares = np.sum(np.asarray(e, np.float64) ** 2, axis=1)
    want = DIM * 9
    check_mean(squares, want, [2 / 3 * want, 3 / 2 * want])
    dpt.check_scale(squares, lambda s: lambda t: stats.beta(0.5, 3.5).cdf(t / s), DIM**2 * 9.0)
    v = coordinates(
        smooth_zeroth_order(linear, 0.5, 5000), x, jax.tree.map(lambda a: a[:1], batch), key
    )
    assert v.shape == (1, 5000)
    check_mean(5000 * np.asarray(v[0], np.float64) ** 2, 9.0, [6.0, 13.5])


def test_coordinates_and_gradient_are_adjoint_maps(rng, key):
    """What is summed as coordinates is what is summed as gradients, and inner products agree."""
    batch, x = slopes(rng), np.float32(rng.normal(size=7))
    oracle = smooth_zeroth_order(linear, 0.5, 20)
    v = np.asarray(coordinates(oracle, x, batch, key), np.float64)
    y = np.asarray(directions(oracle, x, key), np.float64)
    np.testing.assert_allclose(v, (7 / 20) ** 0.5 * batch["g"] @ y.T, rtol=1e-4, atol=1e-5)
    e = np.asarray(call(oracle, x, batch, key))
    np.testing.assert_allclose(e, (7 / 20) ** 0.5 * v @ y, rtol=1e-4, atol=1e-5)
    for b in range(5):
        np.testing.assert_allclose(gradient(oracle, v[b], x, key), e[b], rtol=1e-4, atol=1e-5)
    noise = np.float32(rng.normal(size=20))
    back = np.asarray(gradient(oracle, noise, x, key), np.float64)
    np.testing.assert_allclose(batch["g"] @ back, v @ noise, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_common_directions_make_small_changes(rng, key):
    """At points close by: never more than d L |x - x'| / r, where other directions make noise."""
    dim, radius, step, count = 400, 1.0, 0.002, 400
    u = unit_vector(rng, dim)
    batch = {"g": np.float32(u)[None], "c": np.zeros(1, np.float32)}
    oracle = smooth_zeroth_order(lambda x, batch: jnp.abs(linear(x, batch)), radius, count)
    changes = {}
    for name, shift in (("common", 0), ("other", 100)):
        sizes = []
        for run in range(20):
            one, two = (
                call(oracle, np.float32(at * u), batch, jax.random.key(run + other))
                for at, other in ((0.03, 0), (0.03 + step, shift))
            )
            sizes.append(np.linalg.norm(np.asarray(two - one, np.float64)))
        changes[name] = np.array(sizes)
    assert changes["common"].max() <= dim * step / radius
    # E |i|^2 <= (step / r)^2 (kappa^2 + d^2 / m), kappa^2 <= d; and 2 d^2 / ((d - 1) m) otherwise
    assert np.mean(changes["common"] ** 2) <= 1.5 * (step / radius) ** 2 * (dim + dim**2 / count)
    assert np.mean(changes["other"] ** 2) > 100 * np.mean(changes["common"] ** 2)


def test_changes_along_common_directions_are_unbiased(rng, key):
    u = unit_vector(rng)
    oracle = smooth_zeroth_order(ramp(u)[0], RADIUS, 1, directions="record")
    one, two = (join(call(oracle, split(at * u), zeros(DRAWS), key)) for at in (0.0, 0.1))
    want = ball_slope(0.1, RADIUS, DIM)
    check_mean((two - one) @ u, want, [2 / 3 * want, 3 / 2 * want])
    assert np.linalg.norm(two - one, axis=1).max() <= DIM * 0.1 / RADIUS * (1 + 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["threefry2x32", pytest.param("rbg", marks=pytest.mark.slow)])
def test_chunks_do_not_matter(impl, rng):
    key = jax.random.key(3, impl=impl)
    batch, x = slopes(rng), np.float32(rng.normal(size=7))
    made = []
    for chunk_size in (None, 1) if impl == "threefry2x32" else (None, 4):
        oracle = smooth_zeroth_order(linear, 0.5, 11, chunk_size=chunk_size)
        own = smooth_zeroth_order(linear, 0.5, 11, chunk_size=chunk_size, directions="record")
        v, y = coordinates(oracle, x, batch, key), directions(oracle, x, key)
        made.append((v, y, call(own, x, batch, key)))
    for got in made[1:]:
        for g, w in zip(got, made[0], strict=True):
            assert g.shape == w.shape
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=2e-6)
    assert v.shape == (5, 11)
    e = call(smooth_zeroth_order(linear, 0.5, 11, chunk_size=4), x, batch, key)
    np.testing.assert_allclose(e, (7 / 11) ** 0.5 * v @ y, rtol=1e-4, atol=1e-5)


def test_default_chunks_are_bounded():
    oracle = smooth_zeroth_order(linear, 1.0, 1000)
    assert oracle._chunks(10_256).shape == (10, 100)
    assert oracle._chunks(10).shape == (1, 1000)
    assert oracle._chunks(2**30).shape == (1000, 1)
    for chunk_size in (1, 7, 999, 1000, 5000):
        chunks = smooth_zeroth_order(linear, 1.0, 1000, chunk_size=chunk_size)._chunks(1)
        assert chunks.shape[1] <= min(chunk_size, 1000)
        assert chunks.size - 1000 < chunks.shape[0]


def test_memory_is_that_of_a_chunk(rng, key):
    dim, count = 4096, 4000
    oracle = smooth_zeroth_order(linear, 1.0, count, chunk_size=16)
    batch, x = slopes(rng, 8, dim), np.zeros(dim, np.float32)

    def both(x, key):
        return oracle.gradient(oracle.coordinates(x, batch, key=key)[0], x, key=key)

    used = jax.jit(both).lower(x, key).compile().memory_analysis().temp_size_in_bytes
    assert used < 4 * (10 * 16 * dim + 4 * 8 * count) < 4 * count * dim / 10


def test_records_have_the_directions_of_their_place(rng, key):
    """Record b alone, shared directions, the key folded with b: a loop over records."""
    batch, x = slopes(rng), np.float32(rng.normal(size=7))
    own = call(
        smooth_zeroth_order(linear, 0.5, 6, directions="record", chunk_size=4), x, batch, key
    )
    shared = smooth_zeroth_order(linear, 0.5, 6)
    for b in range(5):
        alone = jax.tree.map(lambda a, b=b: a[b : b + 1], batch)
        want = call(shared, x, alone, jax.random.fold_in(key, b))
        np.testing.assert_allclose(own[b], want[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_one_dimension(key):
    """The sphere is 1 and -1, and each of them gives the central difference."""
    batch = {"y": np.float32([0.5, 2.0])}
    for kind in ("shared", "record"):
        oracle = smooth_zeroth_order(
            lambda x, batch: jnp.abs(x[0] - batch["y"]), 1.0, 200, directions=kind
        )
        e = call(oracle, np.zeros(1, np.float32), batch, key)
        np.testing.assert_allclose(e, [[-0.5], [-1.0]], rtol=1e-5)
    shared = smooth_zeroth_order(linear, 1.0, 4000)
    y = np.asarray(directions(shared, np.zeros(1, np.float32), key))[:, 0]
    assert set(np.round(y, 6)) == {-1.0, 1.0}
    dpt.check_counts([np.sum(y < 0), np.sum(y > 0)], [1, 1])
    scalar = call(smooth_zeroth_order(lambda x, batch: x * batch["y"], 1.0, 3), 2.0, batch, key)
    np.testing.assert_allclose(scalar, batch["y"], rtol=1e-5)


def thresholds(w, x, y):
    """The 0-1 loss in numpy, for any number of leading axes: no gradient tells anything of it."""
    margins = np.matmul(x, np.asarray(w)[..., None])[..., 0]
    return np.where((margins > 0) == (y > 0), 0.0, 1.0).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "record"])
@pytest.mark.parametrize("method", ["expand_dims", "broadcast_all"])
def test_losses_may_be_host_code(kind, method, rng, key):
    batch = {
        "x": np.float32(rng.normal(size=(6, 4))),
        "y": np.where(np.arange(6) % 2 == 0, np.float32(1), np.float32(-1)),
    }
    x = np.float32(rng.normal(size=4))

    def host(w, batch):
        like = jax.ShapeDtypeStruct(batch["y"].shape, jnp.float32)
        return jax.pure_callback(thresholds, like, w, batch["x"], batch["y"], vmap_method=method)

    def traced(w, batch):
        return jnp.where((batch["x"] @ w > 0) == (batch["y"] > 0), 0.0, 1.0)

    got, want = (
        smooth_zeroth_order(losses, 3.0, 30, directions=kind, chunk_size=8)
        for losses in (host, traced)
    )
    e = call(got, x, batch, key)
    np.testing.assert_allclose(e, call(want, x, batch, key), rtol=1e-5, atol=1e-5)
    assert np.all(np.linalg.norm(e, axis=1) > 0)
    if kind == "shared":
        v = coordinates(got, x, batch, key)
        np.testing.assert_allclose(v, coordinates(want, x, batch, key), rtol=1e-6)


def test_losses_of_a_linear_risk_are_one_product(rng, key):
    problem = Risk.linear(lambda margin, y: jnp.abs(margin - y), num_features=7)
    batch = {"x": np.float32(rng.normal(size=(5, 7))), "y": np.ones(5, np.float32)}

    def losses(params, batch):
        return problem.loss.values(batch["x"] @ params, batch)

    oracle = smooth_zeroth_order(losses, 0.5, 8)
    lowered = jax.jit(lambda k: oracle.coordinates(problem.init, batch, key=k)).lower(key)
    products = [line for line in lowered.as_text().splitlines() if "dot_general" in line]
    assert len(products) == 1
    assert "batching_dims" not in products[0]
    assert "16x7xf" in products[0]


@pytest.mark.slow
def test_one_trace_for_all_radii_points_and_keys(rng, key):
    batch = slopes(rng)
    traces = []

    def losses(params, batch):
        traces.append(params)
        return jnp.abs(linear(params, batch))

    @functools.partial(jax.jit, compiler_options=QUICK)
    @jax.vmap
    def sweep(radius, x, key):
        return smooth_zeroth_order(losses, radius, 9, chunk_size=4).coordinates(x, batch, key=key)

    radii, keys = np.float32([0.5, 1.0, 2.0]), jax.random.split(key, 3)
    x = np.float32(rng.normal(size=(3, 7)))
    got = sweep(radii, x, keys)
    assert np.isnan(sweep(0 * radii, x, keys)).all()
    assert np.isnan(sweep(np.nan * radii, x, keys)).all()
    assert len(traces) == 1
    for i in range(3):
        oracle = smooth_zeroth_order(losses, float(radii[i]), 9)
        np.testing.assert_allclose(got[i], coordinates(oracle, x[i], batch, keys[i]), atol=1e-4)


@pytest.mark.parametrize("kind", ["shared", "record"])
def test_a_spoiled_record_spoils_no_other(kind, rng, key):
    batch, x = slopes(rng), np.float32(rng.normal(size=7))
    oracle = smooth_zeroth_order(linear, 0.5, 10, directions=kind, chunk_size=4)
    spoiled = batch | {"c": np.float32([0, 0, np.nan, 0, np.inf])}
    got, want = call(oracle, x, spoiled, key), call(oracle, x, batch, key)
    np.testing.assert_array_equal(np.isnan(got).any(axis=1), [False, False, True, False, True])
    np.testing.assert_allclose(got[:2], want[:2], rtol=1e-5, atol=1e-6)
    nothing = jax.tree.map(lambda a: a[:0], batch)
    assert call(oracle, x, nothing, key).shape == (0, 7)
    if kind == "shared":
        assert coordinates(oracle, x, nothing, key).shape == (0, 10)


@pytest.mark.slow
def test_low_precision_is_widened(rng, key):
    batch, x = slopes(rng), jnp.asarray(rng.normal(size=7), jnp.bfloat16)
    low = smooth_zeroth_order(lambda x, batch: linear(x, batch) > 0, 0.5, 30)
    got = [coordinates(low, x, batch, key), call(low, x, batch, key)]
    want = [f(low, x.astype(np.float32), batch, key) for f in (coordinates, call)]
    back = gradient(low, jnp.ones(30, jnp.bfloat16), x, key)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == back.dtype == jnp.float32
        np.testing.assert_array_equal(g, w)
    # steps that bfloat16 would round off
    fine = smooth_zeroth_order(linear, 1e-3, 500)
    np.testing.assert_allclose(
        coordinates(fine, x, batch, key),
        coordinates(smooth_zeroth_order(linear, 1.0, 500), x, batch, key),
        atol=2e-2,
    )


def test_cancellation_and_what_helps_against_it(rng, key):
    """The error of coordinates is about eps |f| sqrt(d) / r; a public offset removes it."""
    dim, radius = 1000, 1e-2
    g = np.float32(unit_vector(rng, dim))[None]
    x = np.zeros(dim, np.float32)

    def error(value, offset):
        batch = {"g": g, "c": np.full(1, value - offset, np.float32)}
        v = coordinates(smooth_zeroth_order(linear, radius, 100), x, batch, key)
        exact = coordinates(
            smooth_zeroth_order(linear, radius, 100), x, batch | {"c": np.zeros(1, np.float32)}, key
        )
        return float(np.linalg.norm(np.asarray(v - exact, np.float64)))

    scale = 2**-24 * 50 * dim**0.5 / radius
    assert scale / 10 < error(50.0, 0.0) < 3 * scale
    assert error(50.0, 50.0) == 0


@pytest.mark.slow
def test_double_precision(rng, key, x64):
    batch = {"g": rng.normal(size=(5, 7)), "c": np.full(5, 50.0)}
    x = rng.normal(size=7)
    oracle = smooth_zeroth_order(linear, 1e-4, 20)
    v, y = coordinates(oracle, x, batch, key), directions(oracle, x, key)
    assert v.dtype == y.dtype == jnp.float64
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(v, (7 / 20) ** 0.5 * batch["g"] @ y.T, atol=1e-9)
    own = smooth_zeroth_order(linear, 1e-4, 4, directions="record")
    assert call(own, x, batch, key).dtype == jnp.float64
    # the same directions as in single precision
    np.testing.assert_allclose(directions(oracle, np.float32(x), key), y, rtol=1e-6)
    # losses in double precision at points in single precision keep theirs
    mixed = coordinates(oracle, np.float32(x), batch, key)
    assert mixed.dtype == jnp.float64


def test_it_is_a_record_of_its_arguments():
    oracle = smooth_zeroth_order(linear, 0.5, 10, directions="record", chunk_size=3)
    assert oracle == ZerothOrder(linear, 0.5, 10, "record", 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"radius": 0.0}, ValueError, "radius must be > 0, got 0.0"),
        ({"radius": np.nan}, ValueError, "radius must be finite, got nan"),
        ({"num_directions": 0}, ValueError, "num_directions must be >= 1, got 0"),
        ({"num_directions": 2.0}, TypeError, "num_directions must be an integer, got 2.0"),
        (
            {"directions": "own"},
            ValueError,
            "directions must be one of .*'shared', 'record'.*'own'",
        ),
        ({"chunk_size": 0}, ValueError, "chunk_size must be >= 1, got 0"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        smooth_zeroth_order(linear, **({"radius": 1.0, "num_directions": 2} | arguments))


def test_wrong_calls_are_named(rng, key):
    batch, x = slopes(rng), np.zeros(7, np.float32)
    oracle = smooth_zeroth_order(linear, 1.0, 3)
    own = smooth_zeroth_order(linear, 1.0, 3, directions="record")
    with pytest.raises(ValueError, match="coordinates needs directions='shared', got 'record'"):
        own.coordinates(x, batch, key=key)
    with pytest.raises(ValueError, match="gradient needs directions='shared', got 'record'"):
        own.gradient(np.zeros(3), x, key=key)
    with pytest.raises(ValueError, match=r"coordinates must have shape \[3\], got \[5, 3\]"):
        oracle.gradient(np.zeros((5, 3)), x, key=key)
    with pytest.raises(ValueError, match=r"losses.* must have shape \[5\], got \[\]"):
        smooth_zeroth_order(lambda x, b: jnp.sum(x), 1.0, 3).coordinates(x, batch, key=key)
    with pytest.raises(TypeError, match="key must be a typed key"):
        oracle(x, batch, key=jax.random.PRNGKey(0))
    with pytest.raises(TypeError, match="key is required"):
        oracle.coordinates(x, batch, key=None)
    with pytest.raises(TypeError, match="params must be of a float type, got int32"):
        oracle(np.zeros(7, np.int32), batch, key=key)
    with pytest.raises(ValueError, match="batch must have leaves"):
        oracle(x, {}, key=key)
