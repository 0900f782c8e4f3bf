"""Error against dimension at a fixed number of records, on a log axis from 10^2 to 10^6.

Least squares on an l1 ball and a matrix game (each record a matrix of signs that is never written
out), private at epsilon 1, with the plans of `for_budget`; plain methods at the same budget as far
as they can go. The dotted line is what the bound's power of log d says, from the first point on.
"""

import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks import _peers as peers
from benchmarks import _runner
from benchmarks import _saddle_instances as instances
from benchmarks.million_features import NOISE, RADIUS, make, regression
from dpjax.problems import Saddle
from dpjax.solvers import (
    DPSGD,
    AnytimeMirrorDescent,
    FrankWolfe,
    PolishedFrankWolfe,
    SaddleMirrorDescent,
    solver_for_game,
)

BUDGET = dpjax.Budget(1.0, 1e-6, "replace_one")
NUM_RECORDS = 30_000
DIMS = (100, 300, 1_000, 10_000, 100_000, 1_000_000)
SEEDS = 3
# dimensions, or strategies, up to which each is run; DP-SGDA holds matrices of all records, and
# the double oracle reads 26 rows and columns of each
LIMITS = {
    "one-shot statistics": 1_000,
    "DP-SGD": 10_000,
    "Frank-Wolfe": 100_000,
    "polished": 10_000,
    "one-shot Gaussian": 1_000,
    "DP-SGDA": 300,
    "by the rule": 10_000,
}


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Points of both problems; `fast` takes 1000 records of two dimensions, for peers of one."""
    del data
    dims, n, seeds = ((16, 64), 1_000, 1) if fast else (DIMS, NUM_RECORDS, SEEDS)
    limits = dict.fromkeys(LIMITS, dims[0]) if fast else LIMITS
    points = []
    for dim in dims:
        points += _regression(dim, n, seeds, limits)
        points += _game(dim, n, seeds, limits)
    return {
        "epsilon": BUDGET.epsilon,
        "delta": BUDGET.delta,
        "num_records": n,
        "seeds": seeds,
        "points": points,
    }


def defaults() -> dict[str, Any]:
    """Solvers of regression in 1,000 dimensions."""
    kinds = AnytimeMirrorDescent, FrankWolfe, PolishedFrankWolfe
    problem = regression(1_000)
    made = {kind.__name__: kind.for_budget(problem, NUM_RECORDS, BUDGET) for kind in kinds}
    ball = peers.BallGlm(1_000, RADIUS, peers.SQUARED)
    made["DP-SGD"] = DPSGD.for_budget(ball, NUM_RECORDS, BUDGET)
    return made


def _regression(dim: int, n: int, seeds: int, limits: dict[str, int]) -> list[dict[str, Any]]:
    records, optimum = make(n, dim, seed=1)
    problem = regression(dim)
    keys = jax.random.split(jax.random.key(7), seeds)
    methods: dict[str, Any] = {}
    for name, kind, options in (
        ("anytime", AnytimeMirrorDescent, {}),
        ("played", SaddleMirrorDescent, {"output": "played"}),
        ("Frank-Wolfe", FrankWolfe, {}),
        ("polished", PolishedFrankWolfe, {}),
    ):
        solver = kind.for_budget(problem, n, BUDGET, **options)
        methods[name] = lambda data, key, solver=solver: (
            dpjax.solve(solver, problem, data, key=key, progress=False).params
        )
    dense = {"radius": RADIUS, "label_bound": RADIUS + NOISE}
    methods["one-shot statistics"] = lambda data, key: (
        peers.noisy_statistics(data, BUDGET, key, **dense).params
    )
    methods["DP-SGD"] = lambda data, key: peers.dp_sgd_l1(data, BUDGET, key, radius=RADIUS).params
    points = []
    for name, method in methods.items():
        if dim > limits.get(name, dim):
            continue
        taken = records
        if name in ("one-shot statistics", "DP-SGD"):
            taken = {"x": records["x"].unpack(), "y": records["y"]}
        released = [np.asarray(jax.jit(method)(taken, key), np.float64) for key in keys]
        errors = [0.5 * float(np.sum((theta - optimum) ** 2)) for theta in released]
        points.append(_point("regression", name, dim, errors))
    return points


def _game(dim: int, n: int, seeds: int, limits: dict[str, int]) -> list[dict[str, Any]]:
    game = instances.seeded_game(dim)
    problem = Saddle(
        _no_loss,
        (dim, dim),
        (2.0, 2.0),
        smoothness=(0.0, 0.0),
        third_order=0.0,
        grad_from_vertices=game_gradients(game),
    )
    solver = SaddleMirrorDescent.for_budget(problem, n, BUDGET)
    records = {"seed": jnp.asarray(game.seeds(n, seed=3))}

    def method(data: Any, key: jax.Array) -> Any:
        return dpjax.solve(solver, problem, data, key=key, progress=False).params

    keys = jax.random.split(jax.random.key(8), seeds)
    gaps = [float(game.gap(jax.jit(method)(records, key))) for key in keys]
    points = [_point("game", "played", dim, gaps)]
    if dim <= limits["by the rule"]:
        lines = Saddle.game(
            _no_loss,
            (dim, dim),
            row=lambda record, i: game.row(record["seed"], i),
            column=lambda record, j: game.col(record["seed"], j),
        )
        ruled = solver_for_game(lines, n, BUDGET)
        play = jax.jit(lambda data, key: dpjax.solve(ruled, lines, data, key=key).params)
        gaps = [float(game.gap(play(records, key))) for key in keys]
        points.append(_point("game", "by the rule", dim, gaps))
    if dim <= limits["one-shot Gaussian"]:
        matrix = instances.core_padded_matrix(dim)
        gaps = []
        for seed, key in enumerate(keys):
            mean = jnp.asarray(instances.mean_of_signs(matrix, n, seed), jnp.float32)
            params = peers.noisy_mean_of(mean, n, BUDGET, key).params
            gaps.append(float(game.gap(params)))
        points.append(_point("game", "one-shot Gaussian", dim, gaps))
    if dim <= limits["DP-SGDA"]:
        dense = instances.core_padded(dim, n, seed=3)
        payoffs = {"A": jnp.asarray(dense.data["A"])}
        matrices = Saddle.matrix_game((dim, dim))
        descent = jax.jit(lambda data, key: peers.dpsgda(matrices, data, BUDGET, key).params)
        gaps = [float(dense.gap(descent(payoffs, key))) for key in keys]
        points.append(_point("game", "DP-SGDA", dim, gaps))
    return points


def game_gradients(game: instances.SeededGame) -> Any:
    """The fast path of a game whose records are seeds."""

    def gradients(rows: jax.Array, columns: jax.Array, batch: Any) -> Any:
        return game.gradients_at_vertices(rows, columns, batch["seed"])

    return gradients


def _no_loss(x: jax.Array, y: jax.Array, record: Any) -> jax.Array:
    raise NotImplementedError("the matrix of a record is never written out")


def _point(problem: str, method: str, dim: int, errors: list[float]) -> dict[str, Any]:
    mean = float(np.mean(errors))
    print(f"{problem} d={dim} {method}: {mean:.5f}", flush=True)
    return {
        "problem": problem,
        "method": method,
        "dim": dim,
        "mean": mean,
        "std": float(np.std(errors, ddof=1)) if len(errors) > 1 else None,
    }


def growth(result: dict[str, Any], problem: str, method: str) -> float:
    """Power of log d that the error follows over all dimensions, by least squares."""
    mine = [p for p in result["points"] if (p["problem"], p["method"]) == (problem, method)]
    x = [math.log(math.log(p["dim"])) for p in mine]
    return float(np.polyfit(x, [math.log(p["mean"]) for p in mine], 1)[0])


def summary(result: dict[str, Any]) -> str:
    """Markdown table, a row a method."""
    points = result["points"]
    dims = sorted({p["dim"] for p in points})
    lines = ["| problem | method | " + " | ".join(f"d = {d:,}" for d in dims) + " |"]
    lines.append("|---" * (len(dims) + 2) + "|")
    for problem, method in dict.fromkeys((p["problem"], p["method"]) for p in points):
        by_dim = {
            p["dim"]: p["mean"] for p in points if (p["problem"], p["method"]) == (problem, method)
        }
        cells = [f"{by_dim[d]:.3g}" if d in by_dim else "" for d in dims]
        lines.append(f"| {problem} | {method} | " + " | ".join(cells) + " |")
    for problem, method in (
        ("game", "played"),
        ("regression", "anytime"),
        ("regression", "played"),
    ):
        power = growth(result, problem, method)
        lines.append(f"\n{problem}, {method}: error grows as (log d)^{power:.2f}")
    return "\n".join(lines)


def readme(result: dict[str, Any]) -> str:
    """The table, without the fitted powers."""
    return summary(result).split("\n\n")[0].strip()


def plot(result: dict[str, Any]) -> Path:
    """Error against dimension, one panel a problem."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    powers = {"game": 0.75, "regression": 0.75}
    names = {"game": "duality gap of a matrix game", "regression": "excess risk on an l1 ball"}
    for panel, problem in zip(panels, names, strict=True):
        points = [p for p in result["points"] if p["problem"] == problem]
        for method in dict.fromkeys(p["method"] for p in points):
            mine = [p for p in points if p["method"] == method]
            dims = np.array([p["dim"] for p in mine])
            means = np.array([p["mean"] for p in mine])
            panel.errorbar(
                dims, means, [p["std"] for p in mine], marker="o", capsize=2, label=method
            )
            if method == "played":
                curve = means[0] * (np.log(dims) / math.log(dims[0])) ** powers[problem]
                panel.plot(dims, curve, ":", color="black", label="(log d)^3/4")
        panel.set(xscale="log", yscale="log", xlabel="dimension d", title=names[problem])
        panel.legend(fontsize=8)
    figure.suptitle(
        f"{result['num_records']:,} records, epsilon {result['epsilon']}, delta {result['delta']}"
    )
    path = _runner.RESULTS / "dimension.png"
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
