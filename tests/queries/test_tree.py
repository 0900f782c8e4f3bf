"""Blocks of an ordered axis: operators, sensitivities, and what is best measured of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.api._predicted import gram, level_precisions
from dpjax.api._release import choose
from dpjax.problems import QueryRelease
from dpjax.queries import Dense, Domain, Prefix, Tree
from dpjax.solvers import GaussianFit
from dpjax.solvers.queries._gaussian_fit import _scale_of_weights

DOMAIN = Domain({"sex": 2, "age": 7, "race": 3})
TREES = (Tree(16), Tree(11, branching=3), Tree(DOMAIN, "age", branching=2))


def _matrix(workload):
    return np.asarray(jax.vmap(workload.answers)(jnp.eye(workload.universe_size)), float).T


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_operators_and_sensitivities_are_those_of_the_matrix(tree):
    matrix = _matrix(tree)
    assert matrix.shape == (tree.num_queries, tree.universe_size)
    for start, size in zip(tree.offsets, tree.sizes, strict=True):
        np.testing.assert_array_equal(matrix[start : start + size].sum(axis=0), 1)
    v = np.random.default_rng(0).normal(size=tree.num_queries).astype(np.float32)
    np.testing.assert_allclose(tree.adjoint(v), matrix.T @ v, atol=1e-5)
    counts = tree.answers(jnp.arange(tree.universe_size, dtype=jnp.int32))
    assert counts.dtype == tree.sums_dtype
    pairs = itertools.combinations(matrix.T, 2)
    replaced = max(np.linalg.norm(x - y) for x, y in pairs)
    assert replaced == pytest.approx(tree.sensitivity("replace_one").l2_answers)
    added = np.linalg.norm(matrix, axis=0).max()
    assert added == pytest.approx(tree.sensitivity("add_or_remove_one").l2_answers)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_levels_of_unequal_noise_cost_what_a_record_moves(relation):
    tree = Tree(11, branching=3)
    budget = dpjax.Budget(1.0, 1e-6, relation)
    problem = QueryRelease(Prefix(11))
    solver = GaussianFit.for_budget(problem, 100, budget, measured=tree, allocation=(1.0, 2.0, 5.0))
    assert 0.99 < solver.guarantee().epsilon(1e-6) <= 1.0
    scaled = _matrix(tree) / np.asarray(solver.stddevs(), float)[:, None] / 100
    if relation == "replace_one":
        moved = max(np.linalg.norm(x - y) for x, y in itertools.combinations(scaled.T, 2)) / 2
    else:
        moved = np.linalg.norm(scaled, axis=0).max()
    assert solver.guarantee().event.noise_multiplier == pytest.approx(1 / moved)


def test_precisions_are_best_for_all_ranges():
    at = np.arange(64)
    ranges = (np.minimum.outer(at, at) + 1.0) * (64 - np.maximum.outer(at, at))
    tree, number = Tree(64), 64 * 65 / 2

    def error(precisions):
        # as if scaled to an l2 change of 1 under replace-one; the total is known
        each = (precisions / precisions.sum() / 2)[tree.clique_of]
        matrix = _matrix(tree)
        known = (matrix * each[:, None]).T @ matrix + 1e9
        return np.sqrt(np.sum(np.linalg.inv(known) * ranges) / number)

    found = level_precisions(tree, ranges)
    np.testing.assert_allclose(found / found.sum(), [0.147, 0.320, 0.533], atol=0.01)
    assert error(found) == pytest.approx(3.363, abs=2e-3)
    assert error(np.ones(3)) == pytest.approx(3.629, abs=2e-3)


def test_a_tree_is_measured_for_prefixes_and_a_gram_is_the_matrix_squared():
    prefix = Prefix(64)
    matrix = _matrix(prefix)
    np.testing.assert_allclose(gram(prefix), matrix.T @ matrix, atol=1e-3)
    method, options, reason = choose(QueryRelease(prefix), 5000, dpjax.Budget(1.0, 1e-9))
    assert method == "gaussian_fit"
    assert isinstance(options["measured"], Tree)
    assert "if a tree" in reason


@pytest.mark.slow
def test_the_fit_to_a_tree_is_close_to_the_best_for_all_ranges():
    size, n = 256, 20_000
    cells = np.clip((np.random.default_rng(0).normal(size=n) * 0.12 + 0.4) * size, 0, size - 1)
    true = np.cumsum(np.bincount(cells.astype(int), minlength=size)) / n
    prefix, budget = Prefix(size), dpjax.Budget(1.0, 1e-9)
    squares = []
    for seed in range(6):
        made = dpjax.release(prefix, cells.astype(int), budget, key=jax.random.key(seed))
        assert made.raw.shape == (made.measured.num_queries,)
        gaps = np.append(0, np.append(np.asarray(made.answers, float), 1.0) - true)
        squares.append(np.mean((gaps[:, None] - gaps)[np.triu_indices(size + 1, 1)] ** 2))
    unit = (
        dpjax.solvers.HistogramRelease.for_budget(QueryRelease(prefix), n, budget).stddev / 2**0.5
    )
    assert np.sqrt(np.mean(squares)) < 1.3 * 4.068 * unit


def test_what_is_measured_of_other_queries_of_a_line_and_of_long_axes():
    budget = dpjax.Budget(2.0, 1e-9)
    crossed = Dense(
        [[s * 16 <= j <= s * 16 + a for j in range(32)] for s in (0, 1) for a in range(16)]
    )
    method, options, _ = choose(QueryRelease(crossed), 3000, budget)
    assert (method, options["measured"].universe_size) == ("gaussian_fit", 32)
    # along an axis, whatever else the domain holds, and however long it is
    for prefix in (Prefix(Domain({"a": 40, "b": 60}), "b"), Prefix(5000)):
        method, options, reason = choose(QueryRelease(prefix), 3000, budget)
        assert method == "gaussian_fit"
        assert options["measured"].attribute == prefix.attribute
        assert "if a tree" in reason


def test_log_probabilities_have_one_variance_under_the_prior_of_any_queries():
    rng = np.random.default_rng(1)
    for workload in (
        Prefix(40),
        Dense(rng.random((300, 64)) < 0.3),
        Dense(rng.normal(size=(9, 32))),
    ):
        probes = jax.random.rademacher(jax.random.key(3), (64, workload.universe_size), float)
        tau = float(_scale_of_weights(workload, probes))
        matrix = _matrix(workload)
        centred = tau * (matrix - matrix.mean(axis=1, keepdims=True))
        assert np.mean(np.sum(centred**2, axis=0)) == pytest.approx(2.0, rel=0.2)


def test_a_fit_to_all_ranges_is_better_than_the_noise():
    # 2,080 answers of one line: with a prior of its own for each this was 0.29
    size, n = 64, 4000
    ranges = Dense(
        [[i <= j <= k for j in range(size)] for i in range(size) for k in range(i, size)]
    )
    cells = np.clip(np.random.default_rng(2).normal(20, 5, n), 0, size - 1).astype(int)
    truth = np.asarray(ranges.answers_of_records(cells), float)
    problem = QueryRelease(ranges)
    solver = GaussianFit.for_budget(problem, n, dpjax.Budget(0.5, 1e-8))
    solution = dpjax.solve(solver, problem, jnp.asarray(cells), key=jax.random.key(0))
    error = np.sqrt(np.mean((np.asarray(solution.params.answers) - truth) ** 2))
    noisy = np.sqrt(np.mean((np.asarray(solution.state.measured) - truth) ** 2))
    assert error < 0.15 * noisy
