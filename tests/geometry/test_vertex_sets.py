"""Every domain agrees with its dense matrix of vertices."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from dpjax.geometry import L1Ball, Polytope, Simplex

POINTS = np.random.default_rng(5).normal(size=(9, 4)).astype(np.float32)
CASES = {
    "simplex": (Simplex(5), np.eye(5)),
    "simplex_1": (Simplex(1), np.eye(1)),
    "ball": (L1Ball(4, 2.5), 2.5 * np.concatenate([np.eye(4), -np.eye(4)])),
    "ball_1": (L1Ball(1), np.array([[1.0], [-1.0]])),
    "polytope": (Polytope(jnp.asarray(POINTS)), POINTS.astype(np.float64)),
    "one_point": (Polytope(np.array([[1.0, 2.0]], np.float32)), np.array([[1.0, 2.0]])),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def weights_of(rng, count):
    return rng.dirichlet(np.ones(count))


def distances(dense):
    return np.abs(dense[:, None] - dense[None]).sum(-1)


def test_sizes(case):
    domain, dense = case
    assert (domain.num_vertices, domain.dim) == dense.shape
    assert domain.log_num_vertices == pytest.approx(math.log(dense.shape[0]))


def test_linear_maps(case, rng):
    domain, dense = case
    v, weights = rng.normal(size=domain.dim), weights_of(rng, domain.num_vertices)
    np.testing.assert_allclose(domain.scores(jnp.asarray(v)), dense @ v, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        domain.point(jnp.asarray(weights)), weights @ dense, rtol=1e-5, atol=1e-6
    )


def test_average(case, rng):
    domain, dense = case
    for k in (1, 9):
        indices = rng.integers(domain.num_vertices, size=k)
        average = domain.average(jnp.asarray(indices))
        np.testing.assert_allclose(average, dense[indices].mean(0), rtol=1e-5, atol=1e-6)


def test_average_is_a_scatter():
    for domain in (Simplex(10**6), L1Ball(10**6)):
        shape = jax.eval_shape(domain.average, jax.ShapeDtypeStruct((64,), jnp.int32)).shape
        text = str(jax.make_jaxpr(domain.average)(jnp.zeros(64, jnp.int32)))
        assert shape == (10**6,)
        assert "64,1000000" not in text
        assert "1000000,64" not in text


def test_spread(case, rng):
    domain, dense = case
    v = rng.normal(size=(2, 3, domain.dim))
    scores = v @ dense.T
    np.testing.assert_allclose(
        domain.spread(jnp.asarray(v)), np.ptp(scores, axis=-1), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        domain.spread(jnp.asarray(v[0, 0])), np.ptp(scores[0, 0]), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
def test_integers_do_not_round_the_radius():
    ball = L1Ball(2, 2.5)
    assert float(ball.spread(jnp.array([3, -1]))) == 15.0
    np.testing.assert_array_equal(ball.point(jnp.array([1, 0, 0, 0])), [2.5, 0])
    np.testing.assert_array_equal(ball.scores(jnp.array([2, 0])), [5, 0, -5, 0])
    np.testing.assert_array_equal(ball.project(jnp.array([2, 0])), [2, 0])
    np.testing.assert_allclose(Simplex(2).project(jnp.array([2, 2])), 0.5)


def test_diameter(case):
    domain, dense = case
    assert isinstance(domain.diameter, float)
    assert domain.diameter == pytest.approx(distances(dense).max(), rel=1e-6)
    # the spread of a gradient is at most its largest entry times the diameter
    signs = np.sign(np.random.default_rng(1).normal(size=(500, domain.dim)))
    assert np.max(np.ptp(signs @ dense.T, axis=1)) <= domain.diameter * (1 + 1e-6)


def test_diameter_in_blocks(rng):
    points = rng.normal(size=(1100, 2)).astype(np.float32)
    assert Polytope(points).diameter == pytest.approx(
        distances(points.astype(np.float64)).max(), rel=1e-9
    )


def smallest_radius(dense):
    """min_c max_i ||v_i - c||_1 as a linear program in (c, distances, radius)."""
    m, p = dense.shape
    cost = np.zeros(p + m * p + 1)
    cost[-1] = 1
    rows, bounds = [], []
    for i in range(m):
        for j in range(p):
            for sign in (1, -1):
                row = np.zeros_like(cost)
                row[j], row[p + i * p + j] = -sign, -1
                rows.append(row)
                bounds.append(-sign * dense[i, j])
        row = np.zeros_like(cost)
        row[p + i * p : p + (i + 1) * p], row[-1] = 1, -1
        rows.append(row)
        bounds.append(0)
    free = [(None, None)] * cost.size
    return optimize.linprog(cost, np.array(rows), np.array(bounds), bounds=free).fun


def test_radius(case):
    domain, dense = case
    exact = smallest_radius(dense)
    assert isinstance(domain.radius_l1, float)
    assert domain.diameter / 2 <= domain.radius_l1 * (1 + 1e-6)
    assert domain.radius_l1 <= domain.diameter * (1 + 1e-6)
    if isinstance(domain, Polytope):
        assert exact * (1 - 1e-6) <= domain.radius_l1 <= 1.5 * exact + 1e-6
    else:
        assert domain.radius_l1 == pytest.approx(exact, abs=1e-6)


def test_radius_does_not_depend_on_where_the_origin_is():
    shifted = Polytope(jnp.eye(6) + 100)
    assert shifted.radius_l1 == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("name", ["simplex", "simplex_1", "ball", "ball_1"])
def test_projection(name, rng):
    domain, dense = CASES[name]
    scale = np.repeat([0.01, 1.0, 30.0], 5)[:, None]
    v = scale * rng.normal(size=(15, domain.dim))
    nearest = np.asarray(jax.jit(jax.vmap(domain.project))(jnp.asarray(v)), np.float64)
    np.testing.assert_allclose(nearest[0], domain.project(jnp.asarray(v[0])), atol=1e-6)
    if name.startswith("simplex"):
        assert nearest.min() >= 0
        np.testing.assert_allclose(nearest.sum(axis=1), 1, atol=1e-5)
    else:
        assert np.abs(nearest).sum(axis=1).max() <= domain.radius * (1 + 1e-5)
    # optimal if no vertex makes an acute angle with v - nearest
    to_vertices = dense[None] - nearest[:, None]
    angles = np.einsum("nmp,np->nm", to_vertices, v - nearest)
    assert np.all(angles <= 1e-4 * np.maximum(1, scale))


def test_polytope_has_no_projection():
    with pytest.raises(NotImplementedError, match=r"Simplex\(num_vertices\)"):
        CASES["polytope"][0].project(jnp.zeros(4))


def test_domains_are_pytrees(rng):
    v = jnp.asarray(rng.normal(size=4), jnp.float32)
    radii = jnp.array([0.5, 1.0, 2.0])
    balls = jax.vmap(lambda r: L1Ball(4, r))(radii)
    assert isinstance(balls, L1Ball)
    assert jax.tree.leaves(Simplex(3)) == []
    spreads = jax.vmap(lambda ball: ball.spread(v))(balls)
    np.testing.assert_allclose(spreads, 2 * radii * jnp.max(jnp.abs(v)), rtol=1e-6)

    stacked = jax.tree.map(
        lambda *leaves: jnp.stack(leaves), *[Polytope(POINTS * s) for s in (1, 2)]
    )
    spreads = jax.vmap(lambda polytope: polytope.spread(v))(stacked)
    np.testing.assert_allclose(spreads[1], 2 * spreads[0], rtol=1e-5)
    with pytest.raises(ValueError, match=r"vertices must have shape \[\?, \?\], got \[2, 9, 4\]"):
        stacked.scores(v)
    assert dataclasses.replace(L1Ball(4), radius=3.0).diameter == 6.0


def test_traced_data():
    assert float(jax.jit(lambda r: jnp.asarray(L1Ball(4, r).diameter))(2.0)) == 4.0
    with pytest.raises(TypeError, match=r"diameter is computed on the host"):
        jax.jit(lambda vertices: Polytope(vertices).diameter)(jnp.asarray(POINTS))


@pytest.mark.parametrize("name", ["simplex", "ball", "polytope"])
def test_methods_in_jit(name, rng):
    domain, dense = CASES[name]
    v = jnp.asarray(rng.normal(size=domain.dim), jnp.float32)
    np.testing.assert_allclose(
        jax.jit(lambda d, v: d.point(jax.nn.softmax(d.scores(v))))(domain, v),
        domain.point(jax.nn.softmax(domain.scores(v))),
        rtol=1e-5,
        atol=1e-6,
    )
    average = jax.jit(lambda d, i: d.average(i))(domain, jnp.array([0, 1]))
    np.testing.assert_allclose(average, dense[:2].mean(0), rtol=1e-5, atol=1e-6)


def test_x64_is_kept(rng):
    if not jax.config.jax_enable_x64:
        pytest.skip("needs 64 bits")
    vertices = rng.normal(size=(9, 4))
    v = rng.normal(size=4)
    np.testing.assert_allclose(Polytope(vertices).scores(v), vertices @ v, rtol=1e-13)
    ball = L1Ball(4, 0.1)
    np.testing.assert_allclose(ball.scores(v)[:4], 0.1 * v, rtol=1e-15)
    np.testing.assert_allclose(ball.average(jnp.array([1, 6, 6]))[1:3], [0.1 / 3, -0.2 / 3])


def test_arguments_are_checked(case):
    domain, _ = case
    wrong = jnp.zeros(domain.dim + 1)
    message = rf"\[{domain.dim}\], got \[{domain.dim + 1}\]"
    with pytest.raises(ValueError, match=f"v must have shape {message}"):
        domain.scores(wrong)
    with pytest.raises(ValueError, match=rf"v must have shape \[\.\.\., {domain.dim}\]"):
        domain.spread(wrong)
    with pytest.raises(ValueError, match="weights must have shape"):
        domain.point(jnp.zeros(domain.num_vertices + 1))
    with pytest.raises(ValueError, match="indices must be a vector of >= 1 integers"):
        domain.average(jnp.zeros(3))


def test_construction_is_checked():
    with pytest.raises(ValueError, match=r"dim must be >= 1, got 0"):
        Simplex(0)
    with pytest.raises(TypeError, match="dim must be an integer"):
        L1Ball(2.0)
    for radius in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="radius must be"):
            L1Ball(2, radius)
    with pytest.raises(ValueError, match=r"vertices must have shape \[m, p\]"):
        Polytope(jnp.zeros(3))
    with pytest.raises(ValueError, match="vertices must be finite, got nan"):
        Polytope(np.array([[0.0, np.nan]]))
