"""Linear models from one draw of noise: excess risk beside DP-SGD and diffprivlib, and time.

Everything at (epsilon, 1e-5) under replace-one, by defaults alone; the regulariser's constants and
the choice between methods were picked on other instances. Medians over data seeds of the excess
population risk over that of the start; on real data excess mean loss on the training set over the
minimiser's, and accuracy on the test set, medians over keys. diffprivlib is pure, and knows neither
delta nor the ball.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks import _convex_instances as instances
from benchmarks import _runner
from benchmarks.online_to_batch import _diffprivlib
from dpjax.problems import LinearModel
from dpjax.solvers import (
    DPSGD,
    ObjectivePerturbation,
    SufficientStatistics,
    linear_model_solver,
)

PEERS = ("diffprivlib",)
DELTA = 1e-5
SEEDS = 3
MORE_SEEDS = 9  # up to so many numbers in the data
MORE_UP_TO = 10_000_000
CELLS = {
    "logistic": (
        *((10, n) for n in (1_000, 10_000, 100_000, 1_000_000)),
        *((100, n) for n in (10_000, 100_000)),
        *((1_000, n) for n in (10_000, 100_000)),
    ),
    "least squares": (
        *((10, n) for n in (1_000, 10_000, 100_000)),
        *((100, n) for n in (10_000, 100_000)),
    ),
}
EPSILONS = (0.5, 1.0, 4.0)
DPSGD_UP_TO = 10_000_000  # numbers in the data
TIMED = (10, 10_000)
TOGETHER = 64


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All tables; `fast` takes a cell of each task, one seed, and few records of Adult."""
    points = []
    for task, cells in CELLS.items():
        for dim, n in cells[:1] if fast else cells:
            seeds = MORE_SEEDS if dim * n <= MORE_UP_TO else SEEDS
            points += _cell(task, dim, n, 1 if fast else seeds)
    return {"delta": DELTA, "points": points, "real": _real(data, fast), "time": _time(fast)}


def methods(task: str, model: LinearModel, risk: Any, n: int, epsilon: float) -> dict[str, Any]:
    """Solvers by their defaults, each with its problem."""
    budget = dpjax.Budget(epsilon, DELTA, "replace_one")
    made = {"linear_model_solver": (linear_model_solver(model, n, budget), model)}
    if task == "least squares":
        for kind in (SufficientStatistics, ObjectivePerturbation):
            made[kind.__name__] = (kind.for_budget(model, n, budget), model)
    if n * model.num_params <= DPSGD_UP_TO:
        made["DP-SGD"] = (DPSGD.for_budget(risk, n, budget), risk)
    return made


def defaults() -> dict[str, Any]:
    """All methods at one cell of each task."""
    made = {}
    for task, link, radius in (("logistic", "logistic", 2.0), ("least squares", "huber", 1.0)):
        make = instances.logistic if task == "logistic" else instances.least_squares
        risk = make(10, 100, 0).problem
        for name, (solver, _) in methods(
            task, LinearModel(link, 10, radius), risk, 100_000, 1.0
        ).items():
            made[f"{task}, {name}"] = solver
    return made


def _cell(task: str, dim: int, n: int, seeds: int) -> list[dict[str, Any]]:
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        logistic = task == "logistic"
        make = instances.logistic if logistic else instances.least_squares
        instance = make(dim, n, seed)
        link, radius = ("logistic", 2.0) if logistic else ("huber", 1.0)
        records = {name: jnp.asarray(column) for name, column in instance.data.items()}
        made = methods(task, LinearModel(link, dim, radius), instance.problem, n, 1.0)
        for name, (solver, problem) in made.items():
            key = jax.random.key(seed)
            params = dpjax.solve(solver, problem, records, key=key, progress=False).params
            excess = float(instance.excess(np.asarray(params))) / instance.at_start
            found.setdefault(name, []).append(excess)
        peer = _diffprivlib(instance.data, 1.0, seed, radius) if logistic else None
        if peer is not None:
            excess = float(instance.excess(peer)) / instance.at_start
            found.setdefault("diffprivlib", []).append(excess)
        print(task, dim, n, {m: f"{values[-1]:.3g}" for m, values in found.items()}, flush=True)
    place = {"task": task, "dim": dim, "n": n, "epsilon": 1.0}
    return [
        {**place, "method": name, "seeds": seeds, **_runner.quartiles(values)}
        for name, values in found.items()
    ]


def _real(folder: Path | None, fast: bool) -> list[dict[str, Any]]:
    rows = []
    for name in ("adult",) if fast else ("adult", "credit_default"):
        real = instances.real(name, folder)
        risk, n, dim = real.problem, len(real.train["y"]), real.train["x"].shape[1]
        train = {column: jnp.asarray(values) for column, values in real.train.items()}
        least = float(risk.mean_loss(jnp.asarray(real.optimum, jnp.float32), train))
        model = LinearModel("logistic", dim, 20.0)
        for epsilon in (1.0,) if fast else EPSILONS:
            keys = jax.random.split(jax.random.key(0), 1 if fast else SEEDS)
            made = methods("logistic", model, risk, n, epsilon)
            if fast:
                del made["DP-SGD"]
            runs: dict[str, Callable[[int], Any]] = {
                method: lambda i, s=solver, p=problem, k=keys, d=train: (
                    dpjax.solve(s, p, d, key=k[i], progress=False).params
                )
                for method, (solver, problem) in made.items()
            }
            runs["diffprivlib"] = lambda i, d=real.train, e=epsilon: _diffprivlib(d, e, i, 20.0)
            for method, run_seed in runs.items():
                every = [run_seed(i) for i in range(len(keys))]
                if every[0] is None:
                    continue
                losses = [float(risk.mean_loss(jnp.asarray(w, jnp.float32), train)) for w in every]
                right = [
                    np.mean((real.test["x"] @ np.asarray(w) > 0) == (real.test["y"] > 0))
                    for w in every
                ]
                print(name, epsilon, method, float(np.median(losses)) - least, flush=True)
                rows.append(
                    {
                        "data": name,
                        "epsilon": epsilon,
                        "method": method,
                        "seeds": len(every),
                        "excess": float(np.median(losses)) - least,
                        "accuracy": float(np.median(right)),
                    }
                )
    return rows


def _time(fast: bool) -> dict[str, Any]:
    """Seconds of a fit, beside peers on the same records; and of many seeds in one program."""
    from sklearn.linear_model import LogisticRegression

    dim, n = TIMED
    instance = instances.logistic(dim, n, 0)
    model = LinearModel("logistic", dim, 2.0)
    solver = linear_model_solver(model, n, dpjax.Budget(1.0, DELTA, "replace_one"))
    records = {name: jnp.asarray(column) for name, column in instance.data.items()}

    def one(records: Any, key: jax.Array) -> jax.Array:
        return dpjax.solve(solver, model, records, key=key, progress=False).params

    count = 4 if fast else TOGETHER
    keys = jax.random.split(jax.random.key(0), count)
    many = jax.vmap(one, (None, 0))
    # of no noise, and of the same penalty of the sum
    plain = LogisticRegression(C=1 / float(solver.lam), fit_intercept=False)
    tasks = {
        "one seed": _runner.Task(one, (records, jax.random.key(0))),
        f"{count} seeds": _runner.Task(many, (records, keys)),
        "scikit-learn, not private": _runner.Task(
            plain.fit, (instance.data["x"], instance.data["y"]), host=True
        ),
    }
    if _diffprivlib(instance.data, 1.0, 0) is not None:
        tasks["diffprivlib"] = _runner.Task(_diffprivlib, (instance.data, 1.0, 0), host=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _runner.measure(tasks, repeats=1 if fast else 7, warmup=1)


def summary(result: dict[str, Any]) -> str:
    """Markdown tables: cells, real data, seconds."""
    lines = ["| task | d | n | method | excess over start (quartiles) |", "|---|---|---|---|---|"]
    for p in result["points"]:
        low, high = p["lower_quartile"], p["upper_quartile"]
        lines.append(
            f"| {p['task']} | {p['dim']:,} | {p['n']:,} | {p['method']} | {p['median']:.3g} "
            f"({low:.3g} to {high:.3g}) |"
        )
    lines += ["", "| data | epsilon | method | excess loss | test accuracy |", "|---" * 5 + "|"]
    for r in result["real"]:
        lines.append(
            f"| {r['data']} | {r['epsilon']:g} | {r['method']} | {r['excess']:.4f} | "
            f"{r['accuracy']:.4f} |"
        )
    lines += ["", "| fit | seconds | to compile |", "|---|---|---|"]
    for name, times in result["time"].items():
        built = times["compile_seconds"]
        shown = "" if built is None else f"{built + times['trace_seconds']:.2f}"
        lines.append(f"| {name} | {times['median']:.3g} | {shown} |")
    return "\n".join(lines)
