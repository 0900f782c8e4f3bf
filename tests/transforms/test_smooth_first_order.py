"""Gradients of a smoothed loss from gradients at points of a ball."""

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
from dpjax.transforms import OuterProduct, clip_by_norm, smooth_first_order

DRAWS = 200_000


make = functools.cache(smooth_first_order)


def place(params, batch):
    """Instead of gradients, the point itself, for each record."""
    size = batch["y"].shape[0]
    return jax.tree.map(lambda p: jnp.broadcast_to(p[None], (size, *p.shape)), params)


def zeros(size):
    return {"y": np.zeros(size, np.float32)}


def ball_draws(key, size=20_000, radius=1.0, directions="record"):
    """The steps of that many records, from 0, `[size, 8]`."""
    oracle = make(place, radius, directions=directions)
    return join(call(oracle, split(np.zeros(DIM)), zeros(size), key))


def quadratic(rng, size=5):
    """Per-example gradients of (x_b.w - y_b)^2 / 2 in a tree, and a batch."""
    x = {"a": rng.normal(size=(size, 2, 3)), "b": rng.normal(size=(size, 2))}
    batch = {"x": jax.tree.map(np.float32, x), "y": np.ones(size, np.float32)}

    def one(params, record):
        products = jax.tree.map(lambda p, x: jnp.sum(p * x), params, record["x"])
        return (products["a"] + products["b"] - record["y"]) ** 2 / 2

    return jax.vmap(jax.grad(one), (None, 0)), batch


def test_the_oracles_are_those_of_the_literature():
    assert ball_slope(DISTANCE, RADIUS, DIM) == pytest.approx(0.2301, abs=5e-5)
    assert sphere_slope(DISTANCE, RADIUS, DIM) == pytest.approx(0.2020, abs=5e-5)
    unit, literal = misdrawn_slopes(DISTANCE, RADIUS, DIM)
    assert literal == pytest.approx(0.0975, abs=5e-5)
    assert unit == pytest.approx(0.2039, abs=5e-5)


@pytest.mark.parametrize("directions", ["record", "shared"])
def test_the_mean_is_the_gradient_of_the_ball_smoothed_loss(directions, rng, key):
    u = unit_vector(rng)
    _, gradients = ramp(u, offset=-DISTANCE)
    oracle = smooth_first_order(gradients, RADIUS, directions=directions)
    x = split(np.zeros(DIM))
    if directions == "record":
        e = call(oracle, x, zeros(DRAWS), key)
    else:
        each = jax.jit(jax.vmap(lambda k: oracle(x, zeros(1), key=k)), compiler_options=QUICK)
        e = jax.tree.map(lambda a: a[:, 0], each(jax.random.split(key, DRAWS)))
    slopes = join(e) @ u
    right = ball_slope(DISTANCE, RADIUS, DIM)
    wrong = [sphere_slope(DISTANCE, RADIUS, DIM), *misdrawn_slopes(DISTANCE, RADIUS, DIM)]
    check_mean(slopes, right, [*wrong, 2 / 3 * right, 3 / 2 * right])
    np.testing.assert_allclose(np.abs(slopes), 1, rtol=1e-5)


def test_steps_are_uniform_in_the_ball_of_the_whole_tree(rng, key):
    steps = ball_draws(key)
    sizes = np.linalg.norm(steps, axis=1)
    assert sizes.max() <= 1 + 1e-6
    # U^(1/d), which a sphere or balls of other dimensions do not have
    dpt.check_distribution(sizes**DIM, stats.uniform.cdf)
    for other in (DIM - 2, DIM + 2):
        with pytest.raises(AssertionError):
            dpt.check_distribution(sizes**other, stats.uniform.cdf)
    # a coordinate in any direction, that of a leaf or not: (1 + y) / 2 is beta
    axis = np.eye(DIM)[7]
    for u in (axis, unit_vector(rng), unit_vector(rng)):
        dpt.check_scale(
            steps @ u, lambda s: lambda y: stats.beta(4.5, 4.5).cdf((1 + y / s) / 2), 1.0
        )
    dpt.check_uncorrelated(sizes[:-1], sizes[1:], name="records")
    dpt.check_uncorrelated(steps[:, 0], steps[:, 7], name="leaves")


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_small_dimensions(dim, key):
    oracle = make(place, 1.0, directions="record")
    steps = call(oracle, jnp.zeros(dim), zeros(20_000), key)
    sizes = np.linalg.norm(np.asarray(steps, np.float64), axis=1)
    dpt.check_distribution(sizes**dim, stats.uniform.cdf)
    check_mean(np.sign(steps[:, 0]), 0.0)


def test_draws_are_of_the_key_alone(key):
    first = ball_draws(key, 50)
    np.testing.assert_array_equal(first, ball_draws(key, 50))
    np.testing.assert_allclose(ball_draws(key, 20), first[:20], rtol=1e-6)
    others = np.concatenate([first, ball_draws(jax.random.key(1), 50)])
    assert len(np.unique(others, axis=0)) == 100
    np.testing.assert_allclose(ball_draws(key, 50, radius=3.0), 3 * first, rtol=1e-5)
    shared = ball_draws(key, 4, directions="shared")
    np.testing.assert_array_equal(shared, shared[:1].repeat(4, axis=0))


def test_means_of_many_have_the_variance_of_many(key):
    def spread(count):
        oracle = smooth_first_order(place, 1.0, count, directions="record")
        return join(call(oracle, split(np.zeros(DIM)), zeros(20_000), key))

    for count in (1, 4):
        # E |u|^2 = d / (d + 2)
        squares = np.sum(spread(count) ** 2, axis=1)
        size = DIM / (DIM + 2) / count
        check_mean(squares, size, [2 / 3 * size, 3 / 2 * size])


@pytest.mark.parametrize(("directions", "count"), [("record", 3), ("shared", 1)])
def test_radius_zero_is_the_gradient(directions, count, rng, key):
    gradients, batch = quadratic(rng)
    params = split(rng.normal(size=DIM))
    oracle = smooth_first_order(gradients, 0.0, count, directions=directions)
    want = join(jax.jit(gradients)(params, batch))
    np.testing.assert_allclose(join(call(oracle, params, batch, key)), want, rtol=1e-4, atol=1e-6)


def test_records_have_the_directions_of_their_place(rng, key):
    """Record b alone, shared directions, the key folded with b: a loop over records."""
    gradients, batch = quadratic(rng)
    params = split(rng.normal(size=DIM))
    own = call(smooth_first_order(gradients, 0.7, 3, directions="record"), params, batch, key)
    shared = smooth_first_order(gradients, 0.7, 3)
    for b in range(5):
        alone = jax.tree.map(lambda a, b=b: a[b : b + 1], batch)
        want = call(shared, params, alone, jax.random.fold_in(key, b))
        np.testing.assert_allclose(join(own)[b], join(want)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_same_key_gives_close_estimates_at_close_points(rng, key):
    u = unit_vector(rng)
    _, gradients = ramp(u)
    oracle = smooth_first_order(gradients, RADIUS, 100, directions="record")
    at, near = split(0.01 * u), split(0.02 * u)
    batch = zeros(2000)
    one, same = (join(call(oracle, x, batch, key)) for x in (at, near))
    other = join(call(oracle, near, batch, jax.random.key(1)))
    want = ball_slope(0.02, RADIUS, DIM) - ball_slope(0.01, RADIUS, DIM)
    check_mean((same - one) @ u, want, [2 / 3 * want, 3 / 2 * want])
    assert np.mean((same - one) ** 2) < 0.3 * np.mean((other - one) ** 2)


def linear_risk(rng, size=6, features=4):
    problem = Risk.linear(lambda margin, y: jnp.abs(margin - y), num_features=features)
    x, y = rng.normal(size=(size, features)), rng.normal(size=size)
    return problem, {"x": np.float32(x), "y": np.float32(y)}


@pytest.mark.parametrize(("directions", "count"), [("record", 5), ("shared", 1), ("shared", 5)])
def test_factored_gradients_stay_factored(directions, count, rng, key):
    problem, batch = linear_risk(rng)

    def dense(params, batch):
        return problem.per_example_gradients(params, batch).materialize()[:, :, 0]

    oracles = [
        smooth_first_order(g, 1.0, count, directions=directions)
        for g in (problem.per_example_gradients, dense)
    ]
    made = [call(oracle, jnp.zeros(4), batch, key) for oracle in oracles]
    assert isinstance(made[0], OuterProduct)
    if directions == "shared":  # the very array, which nothing copies

        def is_kept(batch, key):
            assert oracles[0](jnp.zeros(4), batch, key=key).left is batch["x"]

        jax.eval_shape(is_kept, batch, key)
    np.testing.assert_allclose(made[0].left, batch["x"])
    assert made[0].right.shape == (6, 1)
    np.testing.assert_allclose(made[0].materialize()[:, :, 0], made[1], rtol=1e-5, atol=1e-6)
    clip = clip_by_norm(0.5)
    sums = [clip.update(e, clip.init(None), mask=jnp.ones(6, bool))[0] for e in made]
    np.testing.assert_allclose(sums[0][:, 0], sums[1], rtol=1e-5, atol=1e-6)


def two_layers(params, batch):
    """Per-example gradients of two layers; the second's inputs depend on the first's weights."""
    hidden = jnp.tanh(batch["x"] @ params["w"])
    back = batch["y"][:, None] * (1 - hidden**2) * params["v"][:, 0][None]
    return {"w": OuterProduct(batch["x"], back), "v": OuterProduct(hidden, batch["y"][:, None])}


@pytest.mark.parametrize(
    ("directions", "wrap"), [("record", lambda g: g), ("shared", lambda g: g), ("shared", jax.jit)]
)
def test_factors_that_depend_on_the_point_become_arrays(directions, wrap, rng, key):
    _, batch = linear_risk(rng)
    params = {
        "w": np.float32(rng.normal(size=(4, 3))),
        "v": np.float32(rng.normal(size=(3, 1))),
    }

    def dense(params, batch):
        factored = two_layers(params, batch)
        return {name: factored[name].materialize() for name in factored}

    want, got = (
        call(smooth_first_order(g, 0.5, 4, directions=directions), params, batch, key)
        for g in (dense, wrap(two_layers))
    )
    assert isinstance(got["w"], OuterProduct)
    np.testing.assert_allclose(got["w"].materialize(), want["w"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["v"], want["v"], rtol=1e-4, atol=1e-5)
    once = smooth_first_order(wrap(two_layers), 0.5, directions=directions)
    made = jax.eval_shape(lambda k: once(params, batch, key=k), key)
    assert isinstance(made["v"], OuterProduct)


@pytest.mark.slow
def test_radius_and_keys_may_be_traced_and_swept_in_one_trace(rng, key):
    gradients, batch = quadratic(rng)
    params = split(rng.normal(size=DIM))
    traces = []

    @functools.partial(jax.jit, compiler_options=QUICK)
    @jax.vmap
    def sweep(radius, key):
        traces.append(radius)
        return smooth_first_order(gradients, radius, 3, directions="record")(params, batch, key=key)

    radii = jnp.array([0.0, 0.5, 2.0])
    keys = jax.random.split(key, 3)
    got = sweep(radii, keys)
    assert np.isnan(join(sweep(jnp.nan * radii, keys))).all()
    assert len(traces) == 1
    for i in range(3):
        oracle = smooth_first_order(gradients, float(radii[i]), 3, directions="record")
        want = join(call(oracle, params, batch, keys[i]))
        np.testing.assert_allclose(join(got)[i], want, rtol=1e-4, atol=1e-5)


def test_memory_is_that_of_one_direction(key):
    def temporaries(count):
        oracle = smooth_first_order(place, 1.0, count)
        run = jax.jit(functools.partial(oracle, key=key))
        return run.lower(jnp.zeros(4096), zeros(8)).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(1000) <= temporaries(4) + 2**16 < 1000 * 4096


@pytest.mark.parametrize("directions", ["record", "shared"])
def test_a_spoiled_record_spoils_no_other(directions, rng, key):
    gradients, batch = quadratic(rng)
    params = split(np.ones(DIM))
    oracle = smooth_first_order(gradients, 0.5, 3, directions=directions)
    want = join(call(oracle, params, batch, key))
    spoiled = batch | {"y": np.where(np.arange(5) == 2, np.float32(np.nan), batch["y"])}
    got = join(call(oracle, params, spoiled, key))
    np.testing.assert_array_equal(np.isnan(got).all(axis=1), np.arange(5) == 2)
    np.testing.assert_allclose(np.delete(got, 2, 0), np.delete(want, 2, 0), rtol=1e-5, atol=1e-6)
    nothing = call(oracle, params, jax.tree.map(lambda a: a[:0], batch), key)
    assert nothing["a"].shape == (0, 2, 3)


def test_low_precision_is_widened(rng, key):
    gradients, batch = quadratic(rng)
    params = jax.tree.map(lambda a: a.astype(jnp.bfloat16), split(rng.normal(size=DIM)))
    oracle = smooth_first_order(gradients, 1e-3, 3)
    got = call(oracle, params, batch, key)
    want = call(oracle, jax.tree.map(lambda a: a.astype(np.float32), params), batch, key)
    assert got["a"].dtype == jnp.float32
    np.testing.assert_array_equal(join(got), join(want))
    # so small a step is none in bfloat16
    still = call(smooth_first_order(gradients, 0.0), params, batch, key)
    assert np.abs(join(got) - join(still)).max() > 1e-5


def test_double_precision(rng, key, x64):
    gradients, batch = quadratic(rng)
    params = split(rng.normal(size=DIM))
    e = call(smooth_first_order(gradients, 1e-9), params, batch, key)
    assert e["a"].dtype == jnp.float64
    step = join(call(smooth_first_order(place, 1.0), split(np.zeros(DIM)), batch, key))[0]
    change = (join(e) - join(jax.jit(gradients)(params, batch))) / 1e-9
    x = join(batch["x"])
    np.testing.assert_allclose(change, (x @ step)[:, None] * x, rtol=1e-4, atol=1e-5)
    single = jax.tree.map(lambda a: a.astype(np.float32), split(np.zeros(DIM)))
    same = join(call(smooth_first_order(place, 1.0), single, batch, key))[0]
    np.testing.assert_allclose(same, step, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"radius": -0.5}, ValueError, "radius must be >= 0, got -0.5"),
        ({"radius": np.nan}, ValueError, "radius must be finite, got nan"),
        ({"num_directions": 0}, ValueError, "num_directions must be >= 1, got 0"),
        ({"num_directions": 2.0}, TypeError, "num_directions must be an integer, got 2.0"),
        (
            {"directions": "own"},
            ValueError,
            "directions must be one of .*'shared', 'record'.*'own'",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        smooth_first_order(place, **({"radius": 1.0} | arguments))


def test_wrong_calls_are_named(key):
    oracle = smooth_first_order(place, 1.0)
    with pytest.raises(TypeError, match="key must be a typed key"):
        oracle(jnp.zeros(2), zeros(1), key=jax.random.PRNGKey(0))
    with pytest.raises(TypeError, match=r"params\['n'\] must be of a float type, got int32"):
        oracle({"n": jnp.zeros(2, jnp.int32)}, zeros(1), key=key)
    with pytest.raises(ValueError, match="params must have at least 1 entry, got 0"):
        oracle({}, zeros(1), key=key)
    with pytest.raises(ValueError, match="batch must have leaves"):
        smooth_first_order(place, 1.0, directions="record")(jnp.zeros(2), (), key=key)
