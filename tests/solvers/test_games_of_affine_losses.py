"""Losses affine in each block as games of their vertices: payoffs, equilibria, memory, choice."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

import dpjax
from dpjax.geometry import L1Ball
from dpjax.problems import Saddle, max_loss
from dpjax.sampling import FullBatch
from dpjax.solvers import DoubleOracle, NestedGame, _parts
from dpjax.solvers.games import _nested

_BUDGET = dpjax.Budget(1.0, 1e-6, "replace_one")
_N = 64
pytestmark = pytest.mark.usefixtures("exact_products")


def _value(matrix):
    """Of the game in which rows minimise, by a linear program."""
    rows, columns = matrix.shape
    found = linprog(
        np.append(np.zeros(rows), 1),
        A_ub=np.hstack([matrix.T, -np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0)[None],
        b_eq=[1],
        bounds=[(0, None)] * rows + [(None, None)],
    )
    return found.fun


def _affine(record, x):
    return record["a"] @ x + record["b"]


def _max_over(vertices):
    rng = np.random.default_rng(0)
    data = {
        "a": jnp.asarray(rng.uniform(-1, 1, (_N, 4, 6)), float),
        "b": jnp.asarray(rng.uniform(-0.5, 0.5, (_N, 4)), float),
    }
    problem = max_loss(
        lambda x, record: _affine(record, x),
        4,
        grad_range=(2.0, 3.0),
        dim=6,
        vertices=vertices,
        smoothness=0.0,
        payoff_interval=(-1.5, 1.5),
    )
    corners = np.eye(6) if vertices is None else np.vstack([np.eye(6), -np.eye(6)])
    mean = {name: np.asarray(leaf, float).mean(axis=0) for name, leaf in data.items()}
    return problem, data, corners @ mean["a"].T + mean["b"]


def _subsets(of, size):
    return np.array([np.isin(np.arange(of), c) for c in itertools.combinations(range(of), size)])


def _interdiction():
    """Three of six routes against two of six: a hit costs what the route carries."""
    routes, hits = _subsets(6, 3).astype(float), _subsets(6, 2).astype(float)
    carried = jnp.asarray(np.random.default_rng(1).uniform(0, 1, (_N, 6)), float)
    problem = Saddle(
        lambda x, y, record: jnp.dot(record["carried"], x * y),
        vertices=(routes, hits),
        grad_range=(2.0, 3.0),
        smoothness=(0.0, 0.0),
        payoff_interval=(0.0, 2.0),
    )
    matrix = (routes * np.asarray(carried, float).mean(axis=0)) @ hits.T
    return problem, {"carried": carried}, matrix


_GAMES = {
    "simplex": lambda: _max_over(None),
    "l1 ball": lambda: _max_over(L1Ball(6)),
    "interdiction": _interdiction,
}


@pytest.mark.parametrize("name", _GAMES)
def test_rows_and_columns_are_the_losses_at_vertices(name):
    problem, data, matrix = _GAMES[name]()
    payoffs = problem.payoffs
    rows, columns = (jnp.arange(size, dtype=jnp.int32) for size in matrix.shape)

    def of(record):
        entries = jax.vmap(lambda i: jax.vmap(lambda j: payoffs.entry(record, i, j))(columns))(rows)
        by_row = jax.vmap(lambda i: payoffs.row(record, i))(rows)
        return entries, by_row, jax.vmap(lambda j: payoffs.column(record, j))(columns).T

    entries, by_row, by_column = (jnp.mean(a, axis=0) for a in jax.jit(jax.vmap(of))(data))
    assert np.allclose(entries, matrix, atol=1e-5)
    assert np.allclose(by_row, entries, atol=1e-5)
    assert np.allclose(by_column, entries, atol=1e-5)


@pytest.mark.parametrize("name", _GAMES)
def test_the_gap_is_that_of_a_linear_program_or_within_twice_the_noise(name):
    problem, data, matrix = _GAMES[name]()
    assert dpjax.plan(problem, 30_000, _BUDGET).method == "nested_game"

    @jax.jit
    def solved(solver):
        params = dpjax.solve(solver, problem, data, key=jax.random.key(0)).params
        # best responses to affine losses are exact in one step
        gap = problem.gap(params, data, steps=1).upper
        return gap, problem.mean_loss(params, data)

    noiseless = NestedGame(FullBatch(1), 1e-5, _N, problem.payoff_interval)
    gap, loss = solved(noiseless)
    assert float(gap) < 1e-4
    assert float(loss) == pytest.approx(_value(matrix), abs=1e-4)

    real = NestedGame.for_budget(problem, 3_000, _BUDGET)  # noise of so many records
    scaled = float(real.noise_multiplier) * _N / 3_000
    gap, _ = solved(dataclasses.replace(noiseless, noise_multiplier=scaled))
    low, high = problem.payoff_interval
    first = matrix.size / _nested._SHARES[0]  # in the first round everything is measured
    stddev = scaled * math.sqrt(first) * (high - low) / 2 / _N
    assert 0 <= float(gap) <= 2 * stddev * math.sqrt(2 * math.log(2 * matrix.size / 1e-7))


def test_a_game_of_functions_is_solved_in_the_limit_of_no_noise():
    rng = np.random.default_rng(2)
    left, right = (rng.uniform(-1, 1, (40, 3)) / 3 for _ in range(2))
    signs = rng.choice([-1.0, 1.0], (_N, 3), p=[0.2, 0.8])
    matrix = (left * signs.mean(axis=0)) @ right.T
    left, right = jnp.asarray(left, float), jnp.asarray(right, float)
    problem = Saddle.game(
        lambda record, i, j: jnp.dot(left[i] * record, right[j]),
        (40, 40),
        row=lambda record, i: right @ (left[i] * record),
        column=lambda record, j: left @ (right[j] * record),
    )
    solver = DoubleOracle(FullBatch(1), 1e6, _N)
    solution = dpjax.solve(solver, problem, jnp.asarray(signs, float), key=jax.random.key(0))
    x, y = (np.asarray(point, float) for point in solution.params)
    assert solution.info.passed.all()
    assert np.max(x @ matrix) - np.min(matrix @ y) < 5e-3  # 12 rounds of at most 13 strategies
    assert x @ matrix @ y == pytest.approx(_value(matrix), abs=5e-3)


def test_records_are_read_in_parts_whatever_a_loss_forms_of_them(monkeypatch):
    for name in ("_NUMBERS", "_NUMBERS_ELSEWHERE"):
        monkeypatch.setattr(_parts, name, 2**12)
    problem, data, _ = _max_over(None)
    many = jax.tree.map(lambda leaf: jnp.tile(leaf, (400,) + (1,) * (leaf.ndim - 1)), data)
    n = 400 * _N

    def sums(data, mask):
        return _nested.all_sums(problem, data, mask, (-1.5, 1.5))

    jaxpr = jax.make_jaxpr(sums)(many, jnp.ones(n, bool)).jaxpr
    assert _largest(jaxpr) <= 2**13 < n  # not even a number a record


def _largest(jaxpr):
    sizes = [0]
    for eqn in jaxpr.eqns:
        sizes += [math.prod(getattr(var.aval, "shape", ())) for var in eqn.outvars]
        params = jax.tree.leaves(list(eqn.params.values()))
        sizes += [_largest(inner) for inner in params if hasattr(inner, "eqns")]
    return max(sizes)


def test_no_descent_is_chosen_over_what_nothing_projects_onto():
    problem, _, _ = _interdiction()
    unstated = dataclasses.replace(problem, payoff_interval=None, third_order=0.0, coupling=1.0)
    plan = dpjax.plan(unstated, 30_000, _BUDGET)
    assert plan.method == "saddle_mirror_descent"
    assert "without a projection" in plan.reason
