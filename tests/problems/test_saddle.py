"""Saddle points, matrix games, the largest of several losses, risks by group."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.geometry import L1Ball, Polytope, Simplex
from dpjax.problems import Saddle, group_risk, max_loss

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
CORNERS = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)


def bilinear(x, y, rec):
    return x @ rec["A"].astype(x.dtype) @ y


def matrices(rng, n=6, kind=np.float32):
    if kind is np.int8:
        return {"A": jnp.asarray(rng.integers(-3, 4, (n, 5, 4)), jnp.int8)}
    return {"A": jnp.asarray(rng.normal(size=(n, 5, 4)), kind)}


# Matrix games.


@pytest.mark.parametrize("kind", [np.float32, np.int8])
@pytest.mark.parametrize("draws", [1, 3, 40])
def test_gathering_rows_and_columns_is_differentiating(kind, draws, rng):
    data = matrices(rng, kind=kind)
    game, general = Saddle.matrix_game((5, 4)), Saddle(bilinear, (5, 4), grad_range=2.0)
    indices = tuple(jnp.asarray(rng.integers(0, d, draws), jnp.int32) for d in (5, 4))
    fast, slow = (p.gradients_at_vertices(indices, data) for p in (game, general))
    x, y = (np.bincount(i, minlength=d) / draws for i, d in zip(indices, (5, 4), strict=True))
    mean = np.asarray(data["A"], float)
    wanted = (mean @ y, np.einsum("i,bij->bj", x, mean))
    for got, also, want in zip(fast, slow, wanted, strict=True):
        assert got.dtype == jnp.result_type(float) or got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, atol=1e-5)
        np.testing.assert_allclose(also, want, atol=1e-5)


def test_gradients_at_points(rng):
    data = matrices(rng, kind=np.int8)
    x, y = (jnp.asarray(rng.dirichlet(np.ones(d)), float) for d in (5, 4))
    for problem in (Saddle.matrix_game((5, 4)), Saddle(bilinear, (5, 4), grad_range=2.0)):
        gx, gy = problem.gradients_at((x, y), data)
        mean = np.asarray(data["A"], float)
        np.testing.assert_allclose(gx, mean @ np.asarray(y), atol=1e-5)
        np.testing.assert_allclose(gy, np.einsum("i,bij->bj", x, mean), atol=1e-5)
        descent = problem.per_example_gradients((x, y), data)
        np.testing.assert_allclose(descent[0], gx)
        np.testing.assert_allclose(descent[1], -gy)
        value = problem.mean_loss((x, y), data)
        np.testing.assert_allclose(value, np.asarray(x) @ mean.mean(axis=0) @ np.asarray(y), 1e-5)


def test_gap_of_a_game(rng):
    data = matrices(rng)
    mean = np.asarray(data["A"], float).mean(axis=0)
    x, y = (jnp.asarray(rng.dirichlet(np.ones(d)), float) for d in (5, 4))
    bounds = Saddle.matrix_game((5, 4)).gap((x, y), data, steps=2)
    want = (np.asarray(x) @ mean).max() - (mean @ np.asarray(y)).min()
    np.testing.assert_allclose([bounds.lower, bounds.upper], want, atol=1e-5)


def test_another_field_and_range():
    game = Saddle.matrix_game((2, 2), value_range=0.5, field="payoff")
    assert game.ranges == (0.5, 0.5)
    gx, _ = game.gradients_at_vertices(
        (jnp.array([0]), jnp.array([1])), {"payoff": jnp.eye(2)[None]}
    )
    np.testing.assert_allclose(gx, [[0, 1]])
    assert game == Saddle.matrix_game((2, 2), value_range=0.5, field="payoff")


# Polytopes.


@pytest.mark.slow
def test_points_of_polytopes_are_means_of_vertices(rng):
    problem = Saddle(
        lambda x, y, rec: (rec["a"] @ x) * y[0] + jnp.sum(y**2),
        vertices=(L1Ball(3, 2.0), CORNERS),
        grad_range=(1.0, 1.0),
    )
    first, second = problem.domains
    assert isinstance(first, L1Ball)
    assert isinstance(second, Polytope)
    assert [d.num_vertices for d in problem.domains] == [6, 4]
    assert problem.num_params == 5
    a = rng.normal(size=(2, 3)).astype(np.float32)
    indices = (jnp.array([0, 0, 4, 2]), jnp.array([3, 1]))
    gx, gy = problem.gradients_at_vertices(indices, {"a": jnp.asarray(a)})
    x = np.array([2 * 2 / 4, -2 / 4, 2 / 4])
    y = CORNERS[[3, 1]].mean(axis=0)
    np.testing.assert_allclose(gx, a * y[0], rtol=1e-5)
    want = 2 * y[None] + np.stack([a @ x, np.zeros(2)], axis=1)
    np.testing.assert_allclose(gy, want, rtol=1e-4, atol=1e-5)
    start = problem.init
    np.testing.assert_allclose(start[0], np.zeros(3), atol=1e-6)
    np.testing.assert_allclose(start[1], CORNERS.mean(axis=0), atol=1e-6)


def test_own_fast_path_takes_the_place_of_autodiff(rng):
    seen = []

    def gradients(rows, columns, batch):
        seen.append((rows.shape, columns.shape))
        matrices = batch["A"]
        return matrices[:, :, columns].mean(axis=2), matrices[:, rows].mean(axis=1)

    problem = Saddle(bilinear, (5, 4), grad_range=2.0, grad_from_vertices=gradients)
    data = matrices(rng)
    indices = (jnp.array([0, 3]), jnp.array([1, 1]))
    want = Saddle.matrix_game((5, 4)).gradients_at_vertices(indices, data)
    for got, expected in zip(problem.gradients_at_vertices(indices, data), want, strict=True):
        np.testing.assert_allclose(got, expected)
    assert seen == [((2,), (2,))]


@pytest.mark.slow
def test_projection():
    x, y = Saddle.matrix_game((2, 3)).project((jnp.array([2.0, 0.0]), jnp.ones(3)))
    np.testing.assert_allclose(x, [1, 0], atol=1e-6)
    np.testing.assert_allclose(y, np.full(3, 1 / 3), atol=1e-6)


def test_constants_are_data_or_static():
    problem = Saddle.matrix_game((2, 3))
    assert jax.tree.leaves(problem) == [2.0, 2.0]
    both = jax.tree.map(lambda a: 2 * a, problem)
    assert both.ranges == (4.0, 4.0)
    assert both.dims == (2, 3)
    assert hash(problem.loss) == hash(both.loss)
    assert Saddle(bilinear, (2, 3), grad_range=1.5).ranges == (1.5, 1.5)
    assert problem.signs == (1, -1)


# The largest of several losses.


def pair_of_losses(x, rec):
    return jnp.stack([jnp.sum((x - rec["t"]) ** 2), rec["c"] @ x])


@pytest.mark.slow
def test_largest_of_losses(rng):
    problem = max_loss(pair_of_losses, 2, grad_range=(3.0, 2.0), dim=4, third_order=0.3)
    assert isinstance(problem.domains[0], Simplex)
    assert [d.dim for d in problem.domains] == [4, 2]
    assert problem.smoothness == (1.5, 0.0)
    assert problem.third_order == 1.5  # the derivative in y and twice in x is a Hessian in x
    data = {name: jnp.asarray(rng.normal(size=(3, 4)), float) for name in ("t", "c")}
    x, y = jnp.asarray(rng.dirichlet(np.ones(4)), float), jnp.array([0.3, 0.7])
    gx, gy = problem.gradients_at((x, y), data)
    t, c = np.asarray(data["t"]), np.asarray(data["c"])
    values = np.stack([((np.asarray(x) - t) ** 2).sum(axis=1), c @ np.asarray(x)], axis=1)
    np.testing.assert_allclose(gy, values, rtol=1e-5)
    np.testing.assert_allclose(gx, 0.3 * 2 * (np.asarray(x) - t) + 0.7 * c, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(problem.mean_loss((x, y), data), (values @ [0.3, 0.7]).mean(), 1e-5)
    ball = max_loss(pair_of_losses, 2, grad_range=(3.0, 2.0), vertices=L1Ball(4), smoothness=9.0)
    assert ball.domains[0].num_vertices == 8
    assert ball.smoothness == (9.0, 0.0)


# Risks by group.


def absolute(x, rec):
    return jnp.abs(rec["c"] @ x)


@pytest.mark.slow
def test_group_risk_is_the_mean_within_each_group(rng):
    group = np.array([0, 1, 0, 2, 1, 0, 0, 2])
    shares = np.bincount(group) / len(group)
    problem = group_risk(absolute, list(shares), dim=3, grad_range=(9.0, 9.0))
    data = {"c": jnp.asarray(rng.normal(size=(8, 3)), float), "group": jnp.asarray(group)}
    x = jnp.asarray(rng.dirichlet(np.ones(3)), float)
    losses = np.abs(np.asarray(data["c"]) @ np.asarray(x))
    _, gy = problem.gradients_at((x, jnp.full(3, 1 / 3)), data)
    want = [losses[group == g].mean() for g in range(3)]
    np.testing.assert_allclose(np.asarray(gy).mean(axis=0), want, rtol=1e-5)
    values = jax.vmap(lambda y: problem.mean_loss((x, y), data))(jnp.eye(3))
    np.testing.assert_allclose(values, want, rtol=1e-5)
    gx, _ = problem.gradients_at((x, jnp.eye(3)[1]), data)
    slopes = np.sign(np.asarray(data["c"]) @ np.asarray(x))[:, None] * np.asarray(data["c"])
    np.testing.assert_allclose(gx, slopes * ((group == 1) / shares[1])[:, None], rtol=1e-5)


@pytest.mark.parametrize("unknown", [-1, 2, 100])
def test_a_record_of_no_group_contributes_nothing(unknown, rng):
    problem = group_risk(absolute, [0.5, 0.5], dim=3, grad_range=(9.0, 9.0), field="who")
    data = {"c": jnp.asarray(rng.normal(size=(1, 3)), float), "who": jnp.array([unknown])}
    gx, gy = problem.gradients_at((jnp.full(3, 1 / 3), jnp.array([0.4, 0.6])), data)
    assert not np.asarray(gx).any()
    assert not np.asarray(gy).any()


def test_the_group_that_fares_worst_counts():
    # one group wants the first vertex, the other, a quarter of the records, the second
    group = np.arange(4000) % 4 == 0

    def loss(x, rec):
        return 1 - jnp.where(rec["group"] == 0, x[0], x[1])

    problem = group_risk(loss, [0.75, 0.25], dim=3, grad_range=(4.0, 4.0), smoothness=0.0)
    solver = dpjax.solvers.SaddleMirrorDescent.for_budget(
        problem, 4000, dpjax.Budget(1e3, 1e-6), steps=1500, num_draws=10
    )

    def run(group):
        return dpjax.solve(solver, problem, {"group": group}, key=jax.random.key(0)).params

    x, _ = jax.jit(run, compiler_options=QUICK)(group.astype(np.int32))
    np.testing.assert_allclose(x, [0.5, 0.5, 0], atol=0.1)


# What is refused.


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"grad_range": None}, "grad_range is required"),
        ({"grad_range": (1.0, 0.0)}, "grad_range"),
        ({"grad_range": (1.0, float("nan"))}, "grad_range"),
        ({"smoothness": (-1.0, 0.0)}, "smoothness"),
        ({"third_order": -1.0}, "third_order"),
        ({"coupling": -1.0}, "coupling"),
        ({"dims": (None, 2)}, "dim"),
        ({"dims": (0, 2)}, "dim"),
        ({"dims": (3, 2), "vertices": (CORNERS, None)}, "dim must be that of the vertices, 2"),
        ({"vertices": (CORNERS[0], None)}, "vertices"),
    ],
)
def test_refuses_what_is_out_of_bounds(fields, match):
    valid = {"dims": (2, 2), "grad_range": (1.0, 1.0)}
    with pytest.raises(ValueError, match=match):
        Saddle(bilinear, **(valid | fields))


def test_refuses_empty_groups():
    with pytest.raises(ValueError, match="shares"):
        group_risk(absolute, [1.0, 0.0], dim=3, grad_range=(1.0, 1.0))
