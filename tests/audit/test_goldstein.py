"""Goldstein norms against exact distances: closed forms, and piecewise linear losses in full."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import dpjax.testing as dpt
from dpjax.audit import GoldsteinNorm, goldstein_norm
from dpjax.papers import _min_norm
from dpjax.papers._goldstein import _estimate, _offset
from dpjax.papers._min_norm import Hull, min_norm, pairwise_steps


def dot(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def two_wells(x):
    return jnp.minimum(jnp.abs(x - 1), jnp.abs(x + 1))[0]


def residuals(x, rows, target, folded, cap):
    """Amplitudes of phase retrieval where `folded`, else robust regression."""
    product = dot(rows, x)
    product = jnp.where(folded, jnp.abs(product), product)
    return jnp.mean(jnp.minimum(jnp.abs(product - target), cap))


def piecewise(x, rise, fall):
    """Difference of two maxima of linear functions, rows `(slope, offset)`."""
    return jnp.max(dot(rise[:, :-1], x) + rise[:, -1]) - jnp.max(dot(fall[:, :-1], x) + fall[:, -1])


def unit(rng, d):
    u = rng.normal(size=d)
    return u / np.linalg.norm(u)


def norms(loss, points, radii, *args, seed=0, **sizes):
    """NumPy arrays of `upper` and `hull_lower`, a key each; args `[n, ...]`; compiled for eight."""
    n = len(points)
    filled = -(-n // 8) * 8
    radii = np.broadcast_to(radii, (n,))

    def batches(a):
        a = np.asarray(a)
        a = np.concatenate([a, np.repeat(a[-1:], filled - n, axis=0)])
        return jnp.asarray(a, a.dtype if a.dtype == bool else float)

    keys = jax.random.split(jax.random.key(seed), (filled // 8, 8))
    columns = batches(points), batches(radii), tuple(batches(a) for a in args)

    def run(point, radius, args, key):
        return goldstein_norm(loss, point, radius, key=key, args=args, **sizes)

    found = []
    for i in range(filled // 8):
        part = jax.tree.map(lambda a, i=i: a[8 * i : 8 * i + 8], columns)
        found.append(jax.vmap(run)(*part, keys[i]))
    return GoldsteinNorm(*(np.concatenate(bounds)[:n] for bounds in zip(*found, strict=True)))


def least_norm(vectors):
    """Exact, by non-negative least squares: u of least |(G^T u, 1^T u - 1)|, normalised."""
    scale = np.abs(vectors).max()
    matrix = np.vstack([np.asarray(vectors, float).T / scale, np.ones(len(vectors))])
    u, _ = optimize.nnls(matrix, np.eye(len(matrix))[-1], maxiter=10_000)
    return scale * np.linalg.norm(matrix[:-1] @ (u / u.sum()))


def distance_to(normals, offsets):
    """Exact distance of 0 from the polygon `{z: normals z >= offsets}`, inf where it is empty.

    The nearest point is 0, the nearest point of a side's line, or a corner: the nearest of those
    that are in the polygon.
    """
    lines = list(zip(normals, offsets, strict=True))
    points = [np.zeros(2), *(n * b / (n @ n) for n, b in lines)]
    points += [
        np.linalg.solve([n, m], [b, c]) for (n, b), (m, c) in itertools.combinations(lines, 2)
    ]
    inside = [z for z in points if np.all(normals @ z >= offsets - 1e-9)]
    return min((np.linalg.norm(z) for z in inside), default=np.inf)


def exact_piecewise(rise, fall, x, radius):
    """The distance of `piecewise`: all pairs of pieces that are active somewhere in the ball."""
    reached = []
    for i, j in itertools.product(range(len(rise)), range(len(fall))):
        above = np.vstack([rise[i] - np.delete(rise, i, 0), fall[j] - np.delete(fall, j, 0)])
        if distance_to(above[:, :-1], -above[:, -1] - above[:, :-1] @ x) <= radius:
            reached.append(rise[i, :-1] - fall[j, :-1])
    return least_norm(np.array(reached))


# closed forms

FAR = np.array([0.0, 0.5, -0.5, 0.98, -0.98, 1.02, -1.02, 3.0])
WANT = np.array([0, 0, 0, 0, 0, 3, 3, 3])


@pytest.mark.slow
@pytest.mark.parametrize(("d", "pieces"), [(2, 5), (20, 20)])
def test_kink_of_an_absolute_value_is_found_up_to_the_radius_and_not_beyond(rng, d, pieces):
    u = unit(rng, d)
    signs = np.where(np.arange(pieces) % 2, 3, -3)[:, None]
    rise = np.tile(signs * np.append(u, -0.3), (8, 1, 1))  # 3 |<u, x> - 0.3|
    bounds = norms(piecewise, np.outer(FAR + 0.3, u), 1.0, rise, 0 * rise)
    for bound in bounds:
        np.testing.assert_allclose(bound, WANT, atol=1e-5)


def kinks_in_200_dimensions(rng):
    """Points at distance `FAR` from the kink of 3 |<u, x>|, and the rest of `residuals`."""
    u = unit(rng, 200)
    rows = np.tile(3 * u, (8, 400, 1))
    return np.outer(FAR, u), 1.0, rows, np.zeros((8, 400)), [False] * 8, [np.inf] * 8


@pytest.mark.slow
def test_kink_in_many_dimensions_is_found_by_enrichment_alone(rng):
    for bound in norms(residuals, *kinks_in_200_dimensions(rng)):
        np.testing.assert_allclose(bound, WANT, atol=1e-5)
    sizes = {"num_samples": 128, "num_enriched": 0}
    plain = norms(residuals, *kinks_in_200_dimensions(rng), **sizes)
    np.testing.assert_allclose(plain.upper[1:], 3, rtol=3e-6)


def mean_absolute_values(points, radii, seed=0):
    """Of $|x|_1 / sqrt(d)$ in 200 dimensions, which is sqrt(d) times a mean of residuals."""
    n = len(points)
    rows = np.tile(np.eye(200), (n, 2, 1))
    others = rows, np.zeros((n, 400)), [False] * n, [np.inf] * n
    found = norms(residuals, points, radii, *others, seed=seed)
    return GoldsteinNorm(*(np.sqrt(200) * bound for bound in found))


@pytest.mark.slow
def test_mean_absolute_value_has_its_known_slack():
    # 25 of 200 signs can turn: |0.1 * 1_25| = 0.5 < 0.505 < |0.1 * 1_26|, distance 1 - 50 / 200
    points = np.outer([0.1, 0.1, 1.0], np.ones(200))
    upper, lower = mean_absolute_values(points, [0.505, 0.505, 0.99])
    assert np.all((upper[:2] >= 0.75) & (upper[:2] <= 0.99))
    assert np.all(lower[:2] > 0.75)  # of the sampled hull: no bound on the distance
    np.testing.assert_allclose(upper[2], 1, rtol=3e-6)  # none can turn


def test_largest_coordinate():
    d = 20
    points = np.outer([0, 0, 0.6, 0.6, 0.72, 0.72], np.eye(d)[0])
    rise = np.tile(np.eye(d, d + 1), (6, 1, 1))
    upper, lower = norms(piecewise, points, 0.5, rise, 0 * rise)
    np.testing.assert_allclose(upper[:2], d**-0.5, rtol=3e-6)
    np.testing.assert_allclose(lower[:2], d**-0.5, rtol=3e-5)
    # others are in reach up to sqrt(2) radius, where the distance falls to that; but the loss falls
    # all the way, so that the search may stall
    assert np.all((upper[2:4] >= d**-0.5 * (1 - 3e-6)) & (upper[2:4] <= 1 + 3e-6))
    np.testing.assert_allclose(upper[4:], 1, rtol=3e-6)


@pytest.mark.slow
def test_kinks_that_point_up_count_too():
    at = np.array([0, 0.28, 0.5, 0.69, 0.72, 1, -1.29, -1.32])
    for bound in norms(two_wells, at[:, None], 0.3):
        np.testing.assert_allclose(bound, [0, 0, 1, 1, 0, 0, 0, 1], atol=1e-6)


@pytest.mark.slow
def test_planted_solutions_are_stationary_and_points_away_from_them_are_not(rng):
    d, n = 200, 400
    rows = rng.normal(size=(n, d)) / np.sqrt(d)
    truth = unit(rng, d)
    away = [truth + 0.4 * unit(rng, d) for _ in range(2)]
    target = [abs(rows @ truth), rows @ truth] * 2
    folded, cap = [True, False] * 2, [np.inf, 0.5] * 2
    points, radii = [truth, truth, *away], [0.1, 0.1, 0.02, 0.02]
    upper = norms(residuals, points, radii, [rows] * 4, target, folded, cap).upper
    assert np.all(upper[:2] < 3e-6)
    assert np.all(upper[2:] > 0.3 / np.sqrt(d))


# piecewise linear losses, of which the distance is known exactly


@pytest.mark.slow
def test_never_below_the_distance_and_mostly_at_it(rng):
    count, pieces, d, radius = 80, 5, 2, 0.5
    rise, fall = rng.normal(size=(2, count, pieces, d + 1)) * np.append(np.ones(d), 0.5)
    points = rng.normal(size=(count, d))
    exact = np.array(
        [exact_piecewise(r, f, x, radius) for r, f, x in zip(rise, fall, points, strict=True)]
    )
    upper, lower = norms(piecewise, points, radius, rise, fall)
    assert np.all(upper >= exact - 5e-6)
    assert np.mean(upper <= exact + 1e-3) >= 0.9
    assert np.all(lower <= upper)
    np.testing.assert_allclose(lower, upper, atol=1e-4)
    # there is something to find, and something not to find
    columns = [jnp.asarray(a, float) for a in (points, rise, fall)]
    alone = np.linalg.norm(jax.vmap(jax.grad(piecewise))(*columns), axis=1)
    assert np.sum(exact < 1e-6) >= 5
    assert np.sum(exact > 0.5) >= 20
    assert np.sum(exact < alone - 0.1) >= 20


# the quadratic program


def hulls(rng, k, d):
    normal = rng.normal(size=(k, d)) / np.sqrt(d)
    u, v = np.eye(d)[0], np.eye(d)[-1]
    yield "around 0", normal
    yield "beside 0", normal + 0.5 * u
    yield "near each other", u + 1e-3 * normal
    yield "ill-conditioned", rng.normal(size=(k, d)) / np.arange(1, d + 1) + 0.3 * v
    yield "signs", np.sign(normal + 0.3 / np.sqrt(d))
    yield "repeated", normal[rng.integers(0, 2, k)] + 0.5 * u
    yield "one", np.repeat(normal[:1], k, axis=0)
    yield "large", 1e8 * normal
    yield "small", 1e-8 * normal


def as_hull(vectors):
    base = vectors[0]
    rows = vectors - base[None]
    return Hull(base, rows, dot(rows, rows.T))


def _solved(vectors):
    hull = as_hull(vectors)
    return min_norm(hull, jnp.full(len(vectors), 1 / len(vectors), vectors.dtype))


solve = jax.jit(_solved)


def check_program(rng, k, d, dtype, rtol):
    for name, vectors in hulls(rng, k, d):
        vectors = np.asarray(vectors, dtype)
        largest = float(np.max(np.linalg.norm(vectors, axis=1)))
        want = least_norm(np.asarray(vectors, np.float64))
        upper, lower = (float(v) for v in solve(jnp.asarray(vectors)))
        assert upper == pytest.approx(want, abs=rtol * largest), name
        assert 0 <= lower <= upper
        # near 0 the direction of w, and with it the bound, is rounding
        if want > 1e-3 * largest:
            assert lower == pytest.approx(want, abs=100 * rtol * largest), name


@pytest.mark.parametrize(("k", "d"), [(2, 1), (64, 5), (128, 200)])
def test_program_in_single_precision(rng, k, d):
    check_program(rng, k, d, np.float32, 1e-6)


@pytest.mark.usefixtures("x64")
def test_program_in_double_precision(rng):
    check_program(rng, 64, 40, np.float64, 1e-11)


def test_bounds_hold_before_the_program_is_solved(monkeypatch, rng):
    vectors = rng.normal(size=(64, 20)) / np.sqrt(20) + 0.5 * np.eye(20)[0]
    want = least_norm(vectors)
    gaps = []
    for steps in (1, 6):
        monkeypatch.setattr(_min_norm, "_STEPS", steps)
        solve_early = jax.jit(lambda v: _solved(v))
        upper, lower = (float(v) for v in solve_early(jnp.asarray(vectors, float)))
        assert lower <= want + 1e-6
        assert want - 1e-6 <= upper
        gaps.append(upper - lower)
    assert gaps[0] > gaps[1] > 1e-6


@jax.jit
def hundred_steps(hull, weights):
    return pairwise_steps(hull, weights, hull.slopes(hull.point(weights)), 100)


def test_pairwise_steps_reach_the_same_point_and_keep_to_the_simplex(rng):
    vectors = jnp.asarray(rng.normal(size=(32, 8)) + np.eye(8)[0], jnp.float32)
    hull = as_hull(vectors)
    weights = jnp.zeros(32, jnp.float32).at[3].set(1)
    norms = []
    for _ in range(8):
        weights = hundred_steps(hull, weights)
        assert float(jnp.min(weights)) >= 0
        assert float(jnp.sum(weights)) == pytest.approx(1, abs=1e-6)
        norms.append(float(jnp.linalg.norm(hull.point(weights))))
    assert np.all(np.diff(norms) < 1e-6)
    assert norms[-1] == pytest.approx(least_norm(np.asarray(vectors)), abs=1e-4)
    assert norms[-1] == pytest.approx(float(solve(vectors)[0]), abs=1e-4)


def test_a_hull_is_filled_row_by_row(rng):
    vectors = jnp.asarray(rng.normal(size=(4, 3)), float)
    weights = jnp.array([0.5, 0.25, 0.25, 0.0])
    hull = Hull.empty(vectors[0], 4).put(0, vectors[0])
    np.testing.assert_array_equal(hull.point(weights), vectors[0])  # empty rows repeat the base
    for k in (1, 2, 3):
        hull = hull.put(k, vectors[k])
    np.testing.assert_allclose(hull.point(weights), dot(weights, vectors), atol=1e-6)
    np.testing.assert_allclose(hull.gram, as_hull(vectors).gram, atol=1e-6)


# where gradients are taken


def offsets(d, k, turn, count=2000):
    keys = jax.random.split(jax.random.key(3), count)
    towards = -jnp.eye(1, d)[0]
    return np.asarray(many_offsets(keys, k, turn, towards), float)


many_offsets = jax.jit(jax.vmap(_offset, (0, None, None, None)))


@pytest.mark.parametrize("d", [1, 5])
def test_uniform_points_fill_the_ball(d):
    points = offsets(d, 3, -1)
    radii = np.linalg.norm(points, axis=1)
    dpt.check_distribution(radii**d, stats.uniform.cdf)
    for wrong in (d * 2 / 3, d * 3 / 2):
        with pytest.raises(AssertionError):
            dpt.check_distribution(radii**wrong, stats.uniform.cdf)
    # a coordinate is distributed as one of the sphere in two dimensions more
    squares = stats.beta(0.5, (d + 1) / 2).cdf
    dpt.check_distribution(points[:, -1] ** 2, squares)
    dpt.count_false_alarm(2e-9)
    assert abs(np.mean(points[:, -1] > 0) - 0.5) < 6 * 0.5 / np.sqrt(2000)
    with pytest.raises(AssertionError):
        dpt.check_distribution((1.5 * points[:, -1]) ** 2, squares)


def test_other_points_are_near_the_centre_or_named_by_the_combination():
    near, end, segment, tilted = (
        offsets(3, k, turn) for k, turn in ((0, -8), (8, 0), (9, 1), (10, 2))
    )
    assert 0 < np.max(np.linalg.norm(near, axis=1)) <= 1.001e-3
    assert np.max(np.linalg.norm(end - np.array([-1, 0, 0]), axis=1)) < 3e-3
    assert np.max(np.abs(segment[:, 1:])) < 2e-3
    dpt.check_distribution(-(segment[:, 0] + near[:, 0]) / 0.999, stats.uniform(-1e-3, 1.002).cdf)
    np.testing.assert_allclose(np.linalg.norm(tilted, axis=1), 1, atol=3e-3)
    assert np.min(tilted[:, 0]) < -0.999
    assert np.mean(tilted[:, 0] > 0) == pytest.approx(0.15, abs=0.15)
    assert all(np.max(np.linalg.norm(a, axis=1)) <= 1 + 1e-6 for a in (end, segment, tilted))


# what is no number, and where there is nothing to combine


def fenced(x, reach, slope, curve, outside):
    distance = jnp.sqrt(jnp.sum((x - jnp.asarray([1, -2, 2], x.dtype)) ** 2) + 1e-30)
    value = slope * (2 * x[0] - x[1]) + curve * jnp.sum(x**2) / 2
    return jnp.where(distance <= reach, value, outside)


@pytest.mark.slow
def test_points_stay_in_the_ball_and_what_is_not_finite_gives_nan():
    nan, inf, five = np.nan, np.inf, np.sqrt(5)
    cases = np.array(
        [  # radius, reach, slope, outside, want
            (0.5, 0.50001, 1, nan, five),
            (0.5, 0.50001, 0, nan, 0),
            (0.5, 0.49, 1, nan, nan),
            (0.5, 0.49, 1, inf, nan),
            (0.5, 0.50001, nan, 0, nan),
            (0, 1, 1, 0, nan),
            (-0.5, 1, 1, 0, nan),
            (nan, 1, 1, 0, nan),
        ]
    )
    radii, reach, slope, outside, want = cases.T
    for bound in norms(fenced, [[1, -2, 2]] * 8, radii, reach, slope, np.zeros(8), outside):
        np.testing.assert_allclose(bound, want, rtol=2e-6, atol=1e-12)


def test_smooth_losses_have_their_least_gradient_in_the_ball():
    radii, curves = np.array([1e-4, 1e-2, 0.1, 1.0]), np.array([1, 2, 1, 0.5])
    others = np.full(4, np.inf), np.zeros(4), curves, np.zeros(4)
    upper, lower = norms(fenced, [[1, -2, 2]] * 4, radii, *others)
    least = curves * (3 - radii)  # at the point nearest to the centre, where the norm is 3
    assert np.all((upper >= least - 3e-6) & (upper <= least + 2e-3 * radii + 3e-6))
    assert np.all((lower >= least - 3e-6) & (lower <= upper))


def test_one_gradient_is_the_norm_of_that_gradient():
    def loss(x):
        return 2 * x[0] - x[1]

    x, key = jnp.ones(2), jax.random.key(0)
    found = goldstein_norm(loss, x, 0.5, key=key, num_samples=1, num_enriched=0)
    np.testing.assert_allclose(found, np.sqrt(5), rtol=1e-6)


# as a function


@pytest.mark.slow
def test_trees_one_by_one_give_what_vectors_give_together_in_one_trace(rng):
    traces, seen = [], []

    def of_tree(tree, data):
        traces.append(data["scale"])
        return sum(jnp.sum(jnp.abs(leaf)) for leaf in jax.tree.leaves(tree)) / data["scale"]

    points, radii = rng.normal(size=(3, 200)), [0.5, 1.0, 2.0]
    together = mean_absolute_values(points, radii, seed=7)
    keys = jax.random.split(jax.random.key(7), (1, 8))[0]
    for i, x in enumerate(jnp.asarray(points, float)):
        tree = {"a": x[:6].reshape(2, 3), "b": [x[6:199], x[199]]}
        scale = jnp.sqrt(200.0) * 2**i
        alone = goldstein_norm(of_tree, tree, radii[i], key=keys[i], args=({"scale": scale},))
        assert isinstance(alone, GoldsteinNorm)
        assert alone.upper.shape == alone.hull_lower.shape == ()
        want = [bound[i] / 2**i for bound in together]
        np.testing.assert_allclose(alone, want, atol=2e-5)
        seen.append(len(traces))
    assert seen[0] == seen[-1]
    other = mean_absolute_values(points, radii, seed=8)
    assert np.all(abs(other.upper - together.upper) > 1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
def test_types_are_those_of_the_parameters():
    for dtype, want in ((jnp.bfloat16, np.float32), (jnp.float32, np.float32), (float, np.float64)):
        shape = jax.ShapeDtypeStruct((5,), dtype)
        found = jax.eval_shape(
            lambda x: goldstein_norm(jnp.max, x, 0.5, key=jax.random.key(0)), shape
        )
        assert found.upper.dtype == found.hull_lower.dtype == want
    upper, lower = goldstein_norm(jnp.max, jnp.zeros(5), 0.5, key=jax.random.key(0))
    assert float(upper) == pytest.approx(5**-0.5, rel=1e-13)
    assert float(lower) == pytest.approx(5**-0.5, rel=1e-9)


def test_memory_is_that_of_the_gradients():
    d, size = 100_000, 32

    def loss(x, u):
        return jnp.abs(dot(x, u))

    x = jnp.zeros(d)
    lowered = _estimate.lower(loss, 16, 16, x, 1.0, jax.random.key(0), (x + 1,))
    memory = lowered.compile().memory_analysis()
    assert memory.temp_size_in_bytes < (size + 12) * x.nbytes


def test_wrong_arguments_are_named(key):
    x = jnp.zeros(3)

    def run(loss=jnp.sum, params=x, radius=1.0, **kwargs):
        return goldstein_norm(loss, params, radius, **{"key": key, **kwargs})

    for radius in (0.0, -1.0):
        with pytest.raises(ValueError, match=f"radius must be > 0, got {radius}"):
            run(radius=radius)
    with pytest.raises(ValueError, match="radius must be finite, got inf"):
        run(radius=np.inf)
    with pytest.raises(ValueError, match=r"radius must have shape \[\], got \[2\]"):
        run(radius=jnp.ones(2))
    with pytest.raises(TypeError, match="key is required"):
        run(key=None)
    with pytest.raises(TypeError, match="key must be a typed key"):
        run(key=np.zeros(2, np.uint32))
    with pytest.raises(ValueError, match="num_samples must be >= 1, got 0"):
        run(num_samples=0)
    with pytest.raises(ValueError, match="num_enriched must be >= 0, got -1"):
        run(num_enriched=-1)
    with pytest.raises(TypeError, match=r"num_samples must be an integer, got 2\.0"):
        run(num_samples=2.0)
    with pytest.raises(TypeError, match=r"args must be a tuple, got dict: pass args=\(data,\)"):
        run(args={"x": x})
    with pytest.raises(TypeError, match="params must be floating-point, got int32"):
        run(params=jnp.zeros(3, jnp.int32))
    with pytest.raises(ValueError, match="params must hold at least one number"):
        run(params=())
    with pytest.raises(ValueError, match=r"loss_fn\(params, \*args\) must have shape \[\]"):
        run(lambda x: x)
    with pytest.raises(TypeError, match="must be floating-point, got int32"):
        run(lambda x: jnp.int32(1))
