"""Games beyond matrices: largest of affine losses, vertices of polytopes, payoffs by functions.

Duality gap in the mean of 30,000 records, epsilon 1, delta 1e-6, replace-one, three seeds. `largest
of 20`: affine losses of signs in 200 dimensions, over a simplex and over an l1 ball. `routes`:
three of nine routes against two of nine hits, polytopes of 84 and 36 vertices; each record says
what a route carries. `Blotto`: six against five troops on four fields, whose worth a record gives.
`rank 6`: 5,000 strategies each, payoffs by functions. `DPSGD` has the weights of vertices where
nothing projects onto the polytope. Blank: not run, as 25 million payoffs are too many.
"""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks._saddle_instances import sign_matrices
from benchmarks._text import table
from dpjax.geometry import L1Ball
from dpjax.problems import Saddle, max_loss
from dpjax.solvers import DPSGD, MultilevelSaddle, SaddleMirrorDescent, solver_for_game

NUM_RECORDS, SEEDS = 30_000, 3
BUDGET = dpjax.Budget(1.0, 1e-6, "replace_one")
_MOST = 2_000  # strategies that descent has run on


class Game(NamedTuple):
    """A problem, what `DPSGD` descends on instead where it must, and records."""

    name: str
    problem: Saddle
    weights: Saddle | None
    data: dict[str, jax.Array]


def games(n: int, small: bool) -> Iterator[Game]:
    """The instances; losses are linear in a record, so that its mean has the mean losses."""
    yield _routes(n)
    if not small:
        yield from _largest_of_affine(n, 200)
        yield _blotto(n)
        yield _low_rank(n, 5_000)


def _largest_of_affine(n: int, dim: int) -> Iterator[Game]:
    rng, losses = np.random.default_rng(7), 20
    mean = np.clip(rng.normal(0, 0.35, (losses, dim)), -0.95, 0.95)
    data = {"a": jnp.asarray(sign_matrices(mean, n, 1))}
    constants: dict[str, Any] = {"smoothness": 0.0, "dim": dim}

    def linear(x: jax.Array, record: Any) -> jax.Array:
        return record["a"].astype(x.dtype) @ x

    def affine(x: jax.Array, record: Any) -> jax.Array:
        return linear(x, record) + record["b"] * 0.5

    problem = max_loss(
        linear, losses, grad_range=(2.0, 2.0), payoff_interval=(-1.0, 1.0), **constants
    )
    yield Game(f"largest of {losses}, simplex of {dim}", problem, None, data)
    offsets = sign_matrices(np.clip(rng.normal(0, 0.4, losses), -0.9, 0.9), n, 2)
    problem = max_loss(
        affine,
        losses,
        grad_range=(2.0, 3.0),
        vertices=L1Ball(dim),
        payoff_interval=(-1.5, 1.5),
        **constants,
    )
    data = {**data, "b": jnp.asarray(offsets)}
    yield Game(f"largest of {losses}, l1 ball of {dim}", problem, None, data)


def _routes(n: int) -> Game:
    def subsets(size: int) -> jax.Array:
        chosen = itertools.combinations(range(9), size)
        return jnp.asarray(np.array([np.isin(np.arange(9), c) for c in chosen], np.float32))

    routes, hits = subsets(3), subsets(2)
    rng = np.random.default_rng(11)
    carried = rng.random((n, 9)) < rng.uniform(0.2, 0.9, 9)
    constants: dict[str, Any] = {
        "smoothness": (0.0, 0.0),
        "third_order": 0.0,
        "payoff_interval": (0.0, 2.0),
    }

    def cost(x: jax.Array, y: jax.Array, record: Any) -> jax.Array:
        return jnp.dot(record["carried"], x * y)

    def cost_of_weights(x: jax.Array, y: jax.Array, record: Any) -> jax.Array:
        return cost(x @ routes, y @ hits, record)

    polytopes = Saddle(
        cost, vertices=(routes, hits), grad_range=(2.0, 3.0), coupling=1.0, **constants
    )
    dims = len(routes), len(hits)
    weights = Saddle(cost_of_weights, dims, (2.0, 2.0), coupling=1.0, **constants)
    data = {"carried": jnp.asarray(carried, jnp.float32)}
    return Game(f"routes, {dims[0]} x {dims[1]}", polytopes, weights, data)


def _blotto(n: int) -> Game:
    def splits(troops: int) -> np.ndarray:
        every = itertools.product(range(troops + 1), repeat=4)
        return np.array([split for split in every if sum(split) == troops])

    ours, theirs = splits(6), splits(5)
    won = jnp.asarray(np.sign(theirs[None] - ours[:, None]) / 4, jnp.float32)
    worth = np.random.default_rng(12).beta(2, 2, (n, 4)).astype(np.float32)

    def paid(record: Any, i: jax.Array, j: jax.Array) -> jax.Array:
        return jnp.dot(won[i, j], record["worth"])

    dims = len(ours), len(theirs)
    data = {"worth": jnp.asarray(worth)}
    return Game(f"Blotto, {dims[0]} x {dims[1]}", Saddle.game(paid, dims), None, data)


def _low_rank(n: int, d: int) -> Game:
    rng, rank = np.random.default_rng(13), 6
    left = jnp.asarray(rng.dirichlet(np.full(rank, 0.3), d), jnp.float32)
    gains = np.tanh(2 * rng.normal(size=(d, rank)))
    gains -= gains.mean(axis=1, keepdims=True)  # no column is best against every row
    gains[: d // 2] -= 0.4  # and half of them are worse
    right = jnp.asarray(np.clip(gains, -1, 1), jnp.float32)
    mean = rng.uniform(0.3, 0.9, rank)
    signs = np.where(rng.random((n, rank)) < (1 + mean) / 2, 1, -1).astype(np.float32)

    def entry(record: Any, i: jax.Array, j: jax.Array) -> jax.Array:
        return jnp.dot(left[i] * record["z"], right[j])

    def row(record: Any, i: jax.Array) -> jax.Array:
        return right @ (left[i] * record["z"])

    def column(record: Any, j: jax.Array) -> jax.Array:
        return left @ (right[j] * record["z"])

    problem = Saddle.game(entry, (d, d), row=row, column=column)
    return Game(f"rank {rank}, {d:,} x {d:,}", problem, None, {"z": jnp.asarray(signs)})


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Gap and seconds of each method on each game, and what `fit` chooses."""
    del data
    n, seeds = (3_000, 2) if fast else (NUM_RECORDS, SEEDS)
    options: dict[str, Any] = {"steps": 50} if fast else {}
    rows = []
    for game in games(n, fast):
        chosen = dpjax.plan(game.problem, n, BUDGET).method
        start = float(_gap(game, game.problem, game.problem.init))
        print(game.name, chosen, f"{start:.4f}", flush=True)
        methods: dict[str, tuple[Any, Saddle]] = {
            "solver_for_game": (solver_for_game(game.problem, n, BUDGET), game.problem),
            "SaddleMirrorDescent": (
                SaddleMirrorDescent.for_budget(game.problem, n, BUDGET),
                game.problem,
            ),
        }
        if game.problem.num_params <= _MOST:
            methods["MultilevelSaddle"] = (
                MultilevelSaddle.for_budget(game.problem, n, BUDGET),
                game.problem,
            )
            descended = game.weights or game.problem
            methods["DPSGD"] = (
                DPSGD.for_budget(descended, n, BUDGET, average="uniform", **options),
                descended,
            )
        for method, (solver, problem) in methods.items():
            solve = jax.jit(
                lambda data, key, solver=solver, problem=problem: (
                    dpjax.solve(solver, problem, data, key=key).params
                )
            )
            gaps, seconds = [], []
            for key in jax.random.split(jax.random.key(21), seeds):
                began = time.perf_counter()
                params = jax.block_until_ready(solve(game.data, key))
                seconds.append(time.perf_counter() - began)
                gaps.append(float(_gap(game, problem, params)))
            rows.append(
                {
                    "game": game.name,
                    "chosen": chosen,
                    "start": start,
                    "method": method,
                    "solver": type(solver).__name__,
                    "accounted": solver.guarantee().epsilon(BUDGET.delta),
                    "gap": float(np.mean(gaps)),
                    "gap_std": float(np.std(gaps, ddof=1)),
                    "seconds": float(np.median(seconds[1:])),  # the first one compiles
                }
            )
            print(f"  {method} {np.mean(gaps):.4f}", flush=True)
    return {"num_records": n, "seeds": seeds, "rows": rows}


def defaults() -> dict[str, Any]:
    """Solvers of routes: by the rule, and of descent on the weights of vertices."""
    game = _routes(2)
    made = {
        "by the rule": solver_for_game(game.problem, NUM_RECORDS, BUDGET),
        "mirror descent": SaddleMirrorDescent.for_budget(game.problem, NUM_RECORDS, BUDGET),
        "multilevel": MultilevelSaddle.for_budget(game.problem, NUM_RECORDS, BUDGET),
    }
    descended = game.weights or game.problem
    made["DP-SGD"] = DPSGD.for_budget(descended, NUM_RECORDS, BUDGET, average="uniform")
    return made


def _gap(game: Game, problem: Saddle, params: Any) -> jax.Array:
    """Exact: one step of a best response is, to an affine loss."""
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0, dtype=float)[None], game.data)
    return problem.gap(params, mean, steps=1).upper


def summary(result: dict[str, Any]) -> str:
    """Markdown table, a row a game: gaps (seconds)."""
    at = {(row["game"], row["method"]): row for row in result["rows"]}
    methods = list(dict.fromkeys(row["method"] for row in result["rows"]))
    lines = []
    for name in dict.fromkeys(row["game"] for row in result["rows"]):
        rule, cells = at[name, methods[0]], [at.get((name, method)) for method in methods]
        shown = ["" if c is None else f"{c['gap']:.4f} ({c['seconds']:.1f} s)" for c in cells]
        lines.append([name, f"{rule['start']:.3f}", rule["solver"], *shown])
    return table(["duality gap", "of uniform play", "the rule's", *methods], lines)
