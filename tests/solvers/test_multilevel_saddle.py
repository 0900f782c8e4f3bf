"""The multilevel method: estimates against their formula, tables of levels, contract."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.papers.estimators import multilevel
from dpjax.problems import Saddle, SimplexRisk
from dpjax.sampling import DisjointPartition, TaperedPartition
from dpjax.solvers import MultilevelSaddle, VertexInfo

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
BOTH = pytest.mark.parametrize("antithetic", [False, True])
RECORDS = {0: 3, 1: 9, 2: 17}
pytestmark = pytest.mark.usefixtures("exact_products")


def solver_of(solver, problem, options=QUICK):
    """`(data, seed) -> Solution`, compiled in one piece."""

    def run(data, key_data):
        return dpjax.solve(solver, problem, data, key=jax.random.wrap_key_data(key_data))

    jitted = jax.jit(run, compiler_options=options)
    return lambda data, seed: jitted(data, jax.random.key_data(jax.random.key(seed)))


def saddle(dims=(4, 3), **constants):
    fields = {"grad_range": (2.0, 2.0), "smoothness": (1.0, 1.0), "third_order": 1.0} | constants

    def loss(x, y, rec):
        return x @ rec["A"] @ y + jnp.sum((x - rec["A"][:, 0]) ** 2) / 4

    return Saddle(loss, dims, **fields)


@pytest.mark.parametrize(
    ("blocks", "relation"),
    [
        (2, "replace_one"),
        (1, "add_or_remove_one"),
        pytest.param(1, "replace_one", marks=pytest.mark.slow),
        pytest.param(2, "add_or_remove_one", marks=pytest.mark.slow),
    ],
)
def test_contract(blocks, relation):
    n = 400
    rng = np.random.default_rng(0)
    if blocks == 2:
        problem = saddle()
        data = {"A": rng.uniform(-0.5, 0.5, (n, 4, 3)).astype(np.float32)}
    else:
        problem = SimplexRisk(lambda w, rec: rec["c"] @ w, dim=5, grad_range=2.0, third_order=0.0)
        data = {"c": rng.uniform(-1, 1, (n, 5)).astype(np.float32)}
    budget = dpjax.Budget(2.0, 1e-6, relation)
    solver = MultilevelSaddle.for_budget(problem, num_records=n, budget=budget, max_level=1)
    solution = solver_of(solver, problem)(data, 1)
    points = solution.params if blocks == 2 else (solution.params,)
    for point, domain in zip(points, problem.domains, strict=True):
        assert point.shape == (domain.dim,)
        assert point.min() >= 0
        assert float(point.sum()) == pytest.approx(1, abs=1e-5)
    assert 0 < solution.guarantee.epsilon(1e-6) <= 2.0
    assert solution.guarantee.relation.name.lower() == relation
    assert solver.sampler.steps == sum(RECORDS[level] for level in solver.levels)


# Estimates. The gradient of a cubic over the simplex is quadratic in the point.


CUBE = np.random.default_rng(1).normal(size=(3, 3, 3))
CUBE = sum(np.transpose(CUBE, order) for order in itertools.permutations(range(3))) / 6


def cubic(w, rec):
    return rec["s"] * jnp.einsum("abc,a,b,c", jnp.asarray(CUBE), w, w, w) / 6


def gradient(point):
    return np.einsum("abc,...b,...c", CUBE, point, point) / 2


@functools.lru_cache
def estimates(level, max_level, antithetic):
    """By replay: the change of the scores for every pool of draws `[3^P, 3]`, and the pools."""
    steps = RECORDS[level] + 3
    solver = MultilevelSaddle(
        DisjointPartition(steps, 2, "given"), 1.0, 100.0, (level, 0), max_level, antithetic
    )
    problem = SimplexRisk(cubic, np.eye(3), grad_range=100.0)
    data = {"s": jnp.ones(2 * steps)}
    xs = solver.sampler.plan(jax.random.key(0), 2 * steps)
    pools = np.array(list(itertools.product(range(3), repeat=2 ** (max_level + 1))))

    def change(pool):
        indices = jnp.full((steps, len(pool) + 1), -1).at[0].set(jnp.append(pool, 0))
        indices = indices.at[RECORDS[level]].set(0)
        info = VertexInfo((indices,))
        return -solver.replay(problem, data, info, xs).logits[0][RECORDS[level]]

    found = jax.jit(jax.vmap(change), compiler_options=QUICK)(jnp.asarray(pools))
    return centred(np.asarray(found, float)), pools


def centred(scores):
    """Draws ignore what all scores have in common."""
    return scores - scores.mean(axis=-1, keepdims=True)


@BOTH
@pytest.mark.parametrize(("level", "max_level"), [(0, 0), (0, 1), (1, 1)])
def test_scores_move_by_the_estimate(level, max_level, antithetic):
    found, pools = estimates(level, max_level, antithetic)
    unit = np.eye(3)[pools]
    half = 2**level
    fine = gradient(unit[:, : 2 * half].mean(axis=1))
    coarse = gradient(unit[:, :half].mean(axis=1))
    if antithetic:
        coarse = (coarse + gradient(unit[:, half : 2 * half].mean(axis=1))) / 2
    constant = 2 - 2.0**-max_level
    want = centred(half * constant * (fine - coarse) + gradient(unit[:, 0]))
    np.testing.assert_allclose(found, want, atol=2e-5)
    if max_level == 0 and not antithetic:
        # the gradient at the mean of two draws
        np.testing.assert_allclose(found, centred(gradient(unit.mean(axis=1))), atol=2e-5)


@BOTH
@pytest.mark.parametrize("max_level", [0, 1])
def test_estimates_have_the_mean_of_many_draws(max_level, antithetic):
    """Exactly: over all pools drawn from the first, uniform iterate, and all levels."""
    chances = multilevel(max_level).probabilities
    found = [estimates(level, max_level, antithetic)[0] for level in range(max_level + 1)]
    mean = sum(p * f.mean(axis=0) for p, f in zip(chances, found, strict=True))
    x, draws = np.full(3, 1 / 3), 2 ** (max_level + 1)
    covariance = np.diag(x) - np.outer(x, x)
    want = gradient(x) + np.einsum("abc,bc", CUBE, covariance) / (2 * draws)
    np.testing.assert_allclose(mean, centred(want), atol=1e-5)
    assert np.abs(want - gradient(x)).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("antithetic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_draws_happen_where_estimates_begin(antithetic):
    levels = (1, 0, 2, 0)
    starts = np.cumsum([0, *(RECORDS[level] for level in levels)])
    steps = int(starts[-1])
    problem = saddle()
    data = {"A": np.random.default_rng(2).normal(size=(steps, 4, 3)).astype(np.float32)}
    solver = MultilevelSaddle(
        TaperedPartition(steps, steps), (0.1, 0.1), (2.0, 2.0), levels, 2, antithetic
    )
    solution = solver_of(solver, problem)(data, 3)
    for drawn, point, d in zip(solution.info.indices, solution.params, (4, 3), strict=True):
        drawn = np.asarray(drawn)
        assert drawn.shape == (steps, 9)
        np.testing.assert_array_equal(np.flatnonzero((drawn >= 0).any(axis=1)), starts[:-1])
        for level, start in zip(levels, starts, strict=False):
            used = drawn[start] >= 0
            assert used[-1]
            np.testing.assert_array_equal(used[:-1], np.arange(8) < 2 ** (level + 1))
        # the result is the mean of the last entries
        want = np.bincount(drawn[starts[:-1], -1], minlength=d) / len(levels)
        np.testing.assert_allclose(point, want, atol=1e-6)
        assert drawn.max() < d


@pytest.mark.slow
def test_finds_the_value_of_a_game_without_privacy():
    entries = np.array([1.0, 0.5])
    problem = Saddle.matrix_game((2, 2), value_range=1.0)
    data = {"A": np.broadcast_to(np.diag(entries).astype(np.float32), (6000, 2, 2))}
    solver = MultilevelSaddle.for_budget(problem, 6000, dpjax.Budget(1e3, 1e-6), max_level=1)
    assert len(solver.levels) > 500
    x, y = solver_of(solver, problem)(data, 4).params
    np.testing.assert_allclose(x, [1 / 3, 2 / 3], atol=0.12)
    np.testing.assert_allclose(y, [1 / 3, 2 / 3], atol=0.12)


# Plans.


def test_plans_follow_from_seed_and_constants():
    budget = dpjax.Budget(1.0, 1e-6)
    plans = [MultilevelSaddle.plan(saddle(), 100_000, budget, seed=s) for s in (0, 0, 1)]
    assert plans[0] == plans[1]
    assert plans[0].levels != plans[2].levels
    for plan in plans:
        assert max(plan.levels) <= plan.max_level
        assert plan.max_level >= 1
        share = np.mean(np.array(plan.levels) == 0)
        assert abs(share - multilevel(plan.max_level).probabilities[0]) < 0.1
    flat = MultilevelSaddle.plan(saddle(), 100_000, budget, max_level=0)
    assert set(flat.levels) == {0}
    assert flat.steps == 3 * len(flat.levels)


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_units_of_the_loss_do_not_matter(scale):
    """A loss in other units has the same plan, with step sizes in the inverse units."""
    budget = dpjax.Budget(1.0, 1e-6)
    one, other = (
        MultilevelSaddle.for_budget(
            saddle(grad_range=(2.0 * s, 2.0 * s), smoothness=(s, s), coupling=s, third_order=s),
            20_000,
            budget,
        )
        for s in (1.0, scale)
    )
    assert one.levels == other.levels
    assert other.step_size == pytest.approx([t / scale for t in one.step_size])
    assert other.guarantee().epsilon(1e-6) == pytest.approx(one.guarantee().epsilon(1e-6))
    assert 0.5 < one.guarantee().epsilon(1e-6) <= 1


# State, compilation, types.


@pytest.mark.slow
def test_state_follows_from_the_draws(rng):
    solver = MultilevelSaddle(TaperedPartition(15, 20), (1e-9, 1e-9), (2.0, 2.0), (0, 1, 0), 1)
    run = solver_of(solver, saddle())
    several = [{"A": rng.normal(size=(20, 4, 3)).astype(np.float32)} for _ in range(2)]
    first, second = (
        s._replace(state=s.state._replace(key=None)) for s in (run(data, 5) for data in several)
    )
    assert first.state.scores is None
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_sweep_traces_once_and_equals_a_loop(rng):
    problem = saddle()
    data = {"A": rng.normal(size=(20, 4, 3)).astype(np.float32)}
    traces = []

    def run(size, key_data):
        traces.append(None)
        solver = MultilevelSaddle(TaperedPartition(15, 20), (size, size), (2.0, 2.0), (0, 1, 0), 1)
        return dpjax.solve(solver, problem, data, key=jax.random.wrap_key_data(key_data)).params

    sizes = jnp.array([0.01, 0.5])
    keys = jax.random.key_data(jax.random.split(jax.random.key(10), 2))
    grid = jax.jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)), compiler_options=QUICK)
    got = grid(sizes, keys)
    grid(2 * sizes, keys)
    assert len(traces) == 1
    one = jax.jit(run, compiler_options=QUICK)
    for i, size in enumerate(sizes):
        for j, key in enumerate(keys):
            for a, b in zip(got, one(size, key), strict=True):
                np.testing.assert_allclose(a[i, j], b, atol=1e-6)


def test_double_precision(x64, rng):
    data = {"A": rng.normal(size=(20, 4, 3))}
    solver = MultilevelSaddle(TaperedPartition(15, 20), (0.1, 0.1), (2.0, 2.0), (0, 1, 0), 1)

    def run(data):
        return dpjax.solve(solver, saddle(), data, key=jax.random.key(6))

    solution = jax.eval_shape(run, data)
    assert {point.dtype for point in solution.params} == {jnp.dtype("float64")}
    assert {points.dtype for points in solution.state.points} == {jnp.dtype("float64")}


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"step_size": (0.1, -0.1)}, "step_size"),
        ({"levels": ()}, "levels"),
        ({"levels": (0, 1, 2)}, r"0\.\.1"),
        ({"levels": (-1, 0, 0)}, "levels"),
        ({"levels": (0, 0, 0)}, "sampler.steps must be 9 for these levels, got 15"),
        ({"max_level": -1}, "max_level"),
        ({"relation": "add_or_remove_one"}, "IndependentPartition"),
    ],
)
def test_refuses_what_is_out_of_bounds(fields, match):
    valid = {"step_size": (0.1, 0.1), "grad_range": (2.0, 2.0), "levels": (0, 1, 0), "max_level": 1}
    with pytest.raises(ValueError, match=match):
        MultilevelSaddle(TaperedPartition(15, 20), **(valid | fields))
