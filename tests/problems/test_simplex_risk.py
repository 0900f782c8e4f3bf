"""Risks over simplices and polytopes: gradients at sampled vertices, packed and linear losses."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.geometry import L1Ball, Polytope, Simplex
from dpjax.problems import SimplexRisk
from dpjax.transforms import OuterProduct, PackedSigns

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
CORNERS = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
DOMAINS = {"simplex": None, "l1 ball": L1Ball(4, 1.7), "polytope": CORNERS}


def link(margin, y):
    return jnp.log1p(jnp.exp(-y * margin)) + 0.1 * margin**2


def general(w, rec):
    return link(rec["x"].astype(w.dtype) @ w, rec["y"])


def records(rng, n=6, kind=float):
    x = rng.choice([-1, 1], size=(n, 4)) if kind == jnp.int8 else rng.normal(size=(n, 4))
    return {"x": jnp.asarray(x, kind), "y": jnp.asarray(rng.choice([-1.0, 1.0], n), float)}


def both(vertices):
    return (
        SimplexRisk.linear(link, vertices, 4, grad_range=2.0),
        SimplexRisk(general, vertices, 4, grad_range=2.0),
    )


def dense(gradients):
    return gradients.materialize()[:, :, 0] if isinstance(gradients, OuterProduct) else gradients


@jax.jit
def _at_vertices(problem, indices, data):
    return problem.gradients_at_vertices(indices, data)


@jax.jit
def _at_point(problem, point, data):
    return problem.gradients_at((point,), data), problem.mean_loss(point, data)


@pytest.mark.parametrize(
    ("draws", "kind"),
    [
        (1, jnp.int8),
        (5, float),
        pytest.param(1, float, marks=pytest.mark.slow),
        pytest.param(5, jnp.int8, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("domain", DOMAINS)
def test_linear_losses_are_what_autodiff_gives(domain, draws, kind, rng):
    linear, autodiff = both(DOMAINS[domain])
    data = records(rng, kind=kind)
    m = linear.domains[0].num_vertices
    indices = (jnp.asarray(rng.integers(0, m, draws), jnp.int32),)
    (fast,), (slow,) = (_at_vertices(p, indices, data) for p in (linear, autodiff))
    assert isinstance(fast, OuterProduct)
    np.testing.assert_allclose(dense(fast), slow, rtol=1e-4, atol=1e-5)
    # by hand, at the mean of the vertices
    vertices = np.asarray(jax.vmap(linear.domains[0].average)(jnp.arange(m)[:, None]))
    w = vertices[np.asarray(indices[0])].mean(axis=0)
    x, y = (np.asarray(data[name], float) for name in ("x", "y"))
    slope = -y / (1 + np.exp(y * (x @ w))) + 0.2 * (x @ w)
    np.testing.assert_allclose(slow, slope[:, None] * x, rtol=1e-3, atol=1e-5)
    point = jnp.asarray(w, float)
    for problem in (linear, autodiff):
        (at_point,), mean_loss = _at_point(problem, point, data)
        np.testing.assert_allclose(dense(at_point), slow, rtol=1e-3, atol=1e-5)
        loss = np.log1p(np.exp(-y * (x @ w))) + 0.1 * (x @ w) ** 2
        np.testing.assert_allclose(mean_loss, loss.mean(), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vertices", "assume_bounded"),
    [
        (L1Ball(40, 2.0), False),
        pytest.param(None, False, marks=pytest.mark.slow),
        (None, True),
        pytest.param(L1Ball(40, 2.0), True, marks=pytest.mark.slow),
    ],
)
def test_packed_signs_run_like_signs(vertices, assume_bounded, rng):
    signs = rng.choice(np.array([-1, 1], np.int8), size=(60, 40))
    y = rng.normal(size=60).astype(np.float32)
    problem = SimplexRisk.linear(lambda m, y: 0.5 * (m - y) ** 2, vertices, 40, grad_range=5.0)
    solver = dpjax.solvers.AnytimeMirrorDescent(
        dpjax.sampling.TaperedPartition(10, 60), 0.3, 5.0, 4, 2, assume_bounded=assume_bounded
    )

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(data):
        return dpjax.solve(solver, problem, data, key=jax.random.key(1)).params

    packed = PackedSigns.pack(jnp.asarray(signs))
    results = [run({"x": x, "y": y}) for x in (signs, packed)]
    np.testing.assert_allclose(*results, atol=1e-6)
    losses = [
        problem.mean_loss(results[0], {"x": x, "y": jnp.asarray(y)})
        for x in (jnp.asarray(signs), packed)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_own_fast_path_takes_the_place_of_autodiff(rng):
    def gradients(indices, batch):
        return OuterProduct(batch["x"], jnp.mean(batch["x"][:, indices], axis=1, keepdims=True))

    problem = SimplexRisk(general, dim=4, grad_range=2.0, grad_from_vertices=gradients)
    data = records(rng)
    (got,) = problem.gradients_at_vertices((jnp.array([1, 3]),), data)
    x = np.asarray(data["x"])
    want = x[:, [1, 3]].mean(axis=1)[:, None] * x
    np.testing.assert_allclose(dense(got), want, rtol=1e-5)


def test_domains_and_starts():
    kinds = {"simplex": Simplex, "l1 ball": L1Ball, "polytope": Polytope}
    for name, vertices in DOMAINS.items():
        problem = SimplexRisk(general, vertices, 4, grad_range=2.0)
        (domain,) = problem.domains
        assert isinstance(domain, kinds[name])
        assert problem.num_params == 4
        assert problem.init.shape == (4,)
        assert (problem.ranges, problem.signs, problem.coupling) == ((2.0,), (1,), 0.0)
    np.testing.assert_allclose(problem.init, CORNERS.mean(axis=0), atol=1e-6)
    assert SimplexRisk(general, CORNERS, grad_range=2.0).num_params == 4


def test_vertices_and_range_are_data_and_the_rest_is_static(rng):
    problem = SimplexRisk(general, jnp.asarray(CORNERS), grad_range=2.0, smoothness=0.5)
    assert len(jax.tree.leaves(problem)) == 2
    data = records(rng)

    traces = []

    @jax.jit
    def gradients(problem, batch):
        traces.append(1)
        return problem.gradients_at_vertices((jnp.array([0, 2]),), batch)[0]

    before = gradients(problem, data)
    doubled = jax.tree.map(lambda a: 2 * a, problem)
    after = gradients(doubled, data)
    assert len(traces) == 1
    assert not np.allclose(before, after)
    np.testing.assert_allclose(
        before, problem.gradients_at_vertices((jnp.array([0, 2]),), data)[0], 1e-5
    )


def test_projection():
    ball = SimplexRisk(general, L1Ball(2), grad_range=1.0)
    np.testing.assert_allclose(ball.project(jnp.array([3.0, 0.0])), [1, 0], atol=1e-6)
    with pytest.raises(NotImplementedError, match="projection"):
        SimplexRisk(general, CORNERS, grad_range=1.0).project(jnp.zeros(4))


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"grad_range": None}, "grad_range is required"),
        ({"grad_range": -1.0}, "grad_range"),
        ({"grad_range": float("inf")}, "grad_range"),
        ({"smoothness": -1.0}, "smoothness"),
        ({"third_order": float("nan")}, "third_order"),
        ({"dim": None}, "dim"),
        ({"dim": 0}, "dim"),
        ({"dim": 3, "vertices": CORNERS}, "dim must be that of the vertices, 4, got 3"),
        ({"dim": 3, "vertices": L1Ball(2)}, "dim must be that of the vertices, 2, got 3"),
        ({"dim": None, "vertices": np.full((2, 2), np.nan)}, "vertices"),
    ],
)
def test_refuses_what_is_out_of_bounds(fields, match):
    with pytest.raises(ValueError, match=match):
        SimplexRisk(general, **({"dim": 2, "grad_range": 1.0} | fields))
