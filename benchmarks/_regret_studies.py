"""The choice of `dpjax.fit` against all that was run, in the committed cells of other studies."""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import dpjax
from benchmarks import _convex_instances as instances
from benchmarks import _runner
from benchmarks._text import table
from dpjax.problems import Risk

_LEAST = 1e-3  # of the start's loss above the least; less counts as this
_NAMES = {
    "dpsgd": "DP-SGD",
    "objective_perturbation": "linear_model_solver",
    "sufficient_statistics": "linear_model_solver",
}


class Row(NamedTuple):
    """A cell: the choice, the best, and the error of the first over that of the second."""

    study: str
    cell: str
    chosen: str
    best: str
    regret: float


def rows() -> list[Row]:
    """Cells of all studies in which the choice and something else were run."""
    found = []
    for study, cell, chosen, errors in _cells():
        if chosen in errors and len(errors) > 1:
            best = min(errors, key=lambda name: errors[name])
            found.append(Row(study, cell, chosen, best, errors[chosen] / errors[best]))
    return found


def _cells() -> Iterator[tuple[str, str, str, dict[str, float]]]:
    """Study, cell, choice, and errors by method."""
    study, chosen = "linear_models", "linear_model_solver"
    result = _runner.load(study)
    for (task, dim, n), at in _grouped(result["points"], ("task", "dim", "n"), "median").items():
        yield study, f"{task}, d = {dim:,}, n = {n:,}", chosen, at
    for (data, epsilon), at in _grouped(result["real"], ("data", "epsilon"), "excess").items():
        yield study, f"{data}, epsilon {epsilon:g}", chosen, at

    study = "online_to_batch"
    points = [p for p in _runner.load(study)["points"] if not p["tuned"]]
    keys = ("task", "dim", "n", "epsilon")
    for (task, dim, n, epsilon), at in _grouped(points, keys, "mean").items():
        chosen = _choice(task.removesuffix(", epsilon"), dim, n, epsilon)
        yield study, f"{task}, d = {dim:,}, n = {n:,}, epsilon {epsilon:g}", chosen, at

    study = "vertex_reference"
    points = [p for p in _runner.load(study)["points"] if "step" not in p["method"]]
    for (task, n, epsilon), at in _grouped(points, ("task", "n", "epsilon"), "mean").items():
        yield study, f"{task}, n = {n:,}, epsilon {epsilon:g}", "polished", at

    study = "dimension"
    for (problem, dim), at in _grouped(
        _runner.load(study)["points"], ("problem", "dim"), "mean"
    ).items():
        chosen = "by the rule" if problem == "game" else "polished"
        yield study, f"{problem}, d = {dim:,}", chosen, at

    study = "group_risk"
    points = [p for p in _runner.load(study)["points"] if p["epsilon"] is not None]
    for (epsilon,), at in _grouped(points, ("epsilon",), "worst_group_error").items():
        yield study, f"worst group, epsilon {epsilon:g}", "DP-SGD", at

    study = "nonsmooth"
    tasks: dict[str, list[dict[str, Any]]] = {}
    for row in _runner.load(study)["tasks"]:
        if row.get("loss") is not None:
            tasks.setdefault(row["task"], []).append(row)
    for task, every in tasks.items():
        least = min(row["loss"] for row in every)
        start = next(row["loss"] for row in every if row["method"] == "start")
        private = [row for row in every if row["epsilon"] is not None and not row["tuned"]]
        shares = [
            row | {"share": max((row["loss"] - least) / (start - least), _LEAST)} for row in private
        ]
        chosen = "DP-SGD" if task == "network" else "ours"  # the others are linear
        for (epsilon,), at in _grouped(shares, ("epsilon",), "share").items():
            yield study, f"{task}, epsilon {epsilon:g}", chosen, at

    yield from _fair_cells()


def _fair_cells() -> Iterator[tuple[str, str, str, dict[str, float]]]:
    """Slacks on Adult; of another method, its least error at no larger disparity."""
    ours, chosen = _runner.load("fair_frontiers")["frontiers"], "`RateConstrainedSGDA`"
    others = [("adult_parity", "as published", ours["adult_parity_as_published"])]
    for name, found in _runner.load("group_thresholds")["frontiers"].items():
        own = "adult_parity" if found["num_train"] == 36_632 else f"{name}_parity"
        others.append((own, "`GroupThresholds`", found))
    for own in dict.fromkeys(own for own, _, _ in others):
        for p in ours[own]["private"]:
            at = {chosen: p["error"]}
            for _, method, found in (other for other in others if other[0] == own):
                fair = max(p["disparity"], p["slack"])
                kept = [q for q in found["private"] if q["epsilon"] == p["epsilon"]]
                errors = [q["error"] for q in kept if q["disparity"] <= fair]
                at |= {method: min(errors)} if errors else {}
            n, epsilon, slack = ours[own]["num_train"], p["epsilon"], p["slack"]
            yield (
                "fair_frontiers",
                f"parity, n = {n:,}, epsilon {epsilon:g}, slack {slack:g}",
                chosen,
                at,
            )


def _grouped(
    rows: list[dict[str, Any]], keys: tuple[str, ...], value: str
) -> dict[tuple[Any, ...], dict[str, float]]:
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), {})[row["method"]] = row[value]
    return found


def _choice(task: str, dim: int, n: int, epsilon: float) -> str:
    """What `fit` takes for these instances, stated as a `Risk`."""
    if task == "logistic":
        problem = Risk.linear(instances.logistic_loss, dim, 2.0, lipschitz=1.0, smoothness=0.25)
    else:
        problem = Risk.linear(instances.squared_loss, dim, 1.0, lipschitz=2.0, smoothness=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        budget = dpjax.Budget(epsilon, 1e-5, "replace_one")
        return _NAMES[dpjax.plan(problem, n, budget).method]


def summary(found: list[Row]) -> str:
    """Quantiles of the regret, a row a study."""
    lines = []
    for study in dict.fromkeys(row.study for row in found):
        mine = [row for row in found if row.study == study]
        values, worst = [row.regret for row in mine], max(mine, key=lambda row: row.regret)
        quantiles = [f"{np.quantile(values, q):.2f}" for q in (0.5, 0.9, 1)]
        where = f"{worst.cell}: {worst.best}" if worst.regret > 1 else ""
        lines.append([f"`{study}`", f"{len(mine)}", *quantiles, where])
    return table(["study", "cells", "median", "90th percentile", "worst", "there"], lines)
