"""Nonsmooth nonconvex problems: loss and Goldstein norm, black boxes, cost of values alone.

Means over seeds, with standard errors, at delta 1e-5. The Goldstein norm is measured on all
records, at radius 0.1: it is how far from stationary a point is for the ball around it, and no part
of any run. "Tuned" methods were given the learning rate that is best by the true loss, which is not
private; all others run by default. A method that cannot meet a budget, or would take too long, has
a row that says so.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks import (
    _convex_instances,
    _nonsmooth_instances,
    _nonsmooth_slopes,
    _runner,
    _zeroth_order_cost,
)
from benchmarks._nonsmooth_runs import (
    DELTA,
    MOST_WORK,
    RADIUS,
    Seeds,
    drawn,
    emit,
    fixed,
    losses,
    score,
    summarised,
    train,
    train_rates,
    work,
)
from dpjax.papers.nonsmooth_nonconvex import as_published, by_bound
from dpjax.problems import Risk
from dpjax.sampling import FullBatch
from dpjax.solvers import DPSGD, OnlineToNonconvex

EPSILONS = (1.0, 3.0)
SEEDS = 5
RECORDS, DIM, HIDDEN = 10_000, 20, 8
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)  # of DP-SGD
FACTORS = (0.03, 0.1, 0.3, 3.0, 10.0)  # of the default rate, for ours
MOVES = 200  # on all data
ADD, REPLACE = "add_or_remove_one", "replace_one"
TASKS: dict[str, Callable[..., Any]] = {
    "phase retrieval": _nonsmooth_instances.phase_retrieval,
    "capped regression": _nonsmooth_instances.capped_regression,
    "network": _nonsmooth_instances.network,
    "adult": _nonsmooth_instances.real,
    "credit_default": _nonsmooth_instances.real,
}
REAL = ("adult", "credit_default")


class Method(NamedTuple):
    """A relation, and a solver of `(problem, n, budget)`."""

    relation: str
    make: Callable[..., Any]


def _ours(**options: Any) -> Callable[..., Any]:
    return functools.partial(OnlineToNonconvex.for_budget, radius=RADIUS, **options)


def _dpsgd_one_pass(problem: Any, n: int, budget: Any) -> Any:
    sampler = OnlineToNonconvex.for_budget(problem, n, budget, passes="single").sampler
    return DPSGD.for_budget(problem, n, budget, sampler=sampler)


METHODS = {
    "DP-SGD": Method(ADD, DPSGD.for_budget),
    "ours": Method(ADD, _ours()),
    "ours, values alone": Method(ADD, _ours(oracle="zeroth")),
    "ours, all data": Method(ADD, _ours(sampler=FullBatch(MOVES))),
    "ours, all data, periods of 8": Method(ADD, _ours(period=8, steps=MOVES)),
    "ours, by the bound": Method(ADD, functools.partial(by_bound, radius=RADIUS)),
    "DP-SGD, one pass": Method(REPLACE, _dpsgd_one_pass),
    "ours, one pass": Method(REPLACE, _ours(passes="single")),
    "ours, one pass, add-or-remove": Method(ADD, _ours(passes="single")),
    "ours, one pass, values alone": Method(REPLACE, _ours(passes="single", oracle="zeroth")),
    "ours, one pass, periods of 8": Method(REPLACE, _ours(passes="single", period=8)),
    "ours, one pass, by the bound": Method(
        REPLACE, functools.partial(by_bound, radius=RADIUS, passes="single")
    ),
    "as published": Method(REPLACE, functools.partial(as_published, radius=RADIUS)),
    "as published, values alone": Method(
        REPLACE, functools.partial(as_published, radius=RADIUS, oracle="zeroth")
    ),
}
TUNED = ("DP-SGD", "ours")
FAST = ("DP-SGD", "ours", "ours, one pass, periods of 8", "as published")


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All tables; `fast` takes a few methods, two seeds and the smallest sizes."""
    started = time.perf_counter()
    tables: dict[str, Any] = {
        "delta": DELTA,
        "radius": RADIUS,
        "tasks": [row for task in TASKS for row in _task(task, data, fast)],
        "slopes": _nonsmooth_slopes.measured(fast),
        "bounds": _nonsmooth_slopes.proved(fast),
        "black_box": _black_box(fast),
        "cost": _zeroth_order_cost.cost(fast),
    }
    tables["fitted"] = [] if fast else _nonsmooth_slopes.fitted(tables["slopes"])
    return tables | {"minutes": (time.perf_counter() - started) / 60}


def defaults() -> dict[str, Any]:
    """Methods at epsilon 1 on the network, and on the ramp loss of as many rows as Adult has."""
    made = {}
    ramp = Risk.linear(_nonsmooth_instances.ramp_loss, 98, lipschitz=1.0)
    network = TASKS["network"](HIDDEN, 100, 0).problem
    for task, problem, n in (("network", network, RECORDS), ("adult", ramp, 36_632)):
        for name in ("DP-SGD", "ours", "ours, values alone", "ours, one pass"):
            method = METHODS[name]
            budget = dpjax.Budget(1.0, DELTA, method.relation)
            made[f"{task}, {name}"] = method.make(problem, n, budget)
    return made


def _seeds(task: str, data: Path | None, fast: bool) -> Seeds:
    if task in REAL:
        return fixed(_nonsmooth_instances.real(task, data), 2 if fast else SEEDS)
    size = HIDDEN if task == "network" else DIM
    n = RECORDS // 10 if fast else RECORDS
    return drawn(lambda seed: TASKS[task](size, n, seed), 2 if fast else SEEDS)


def _task(task: str, data: Path | None, fast: bool) -> list[dict[str, Any]]:
    if fast and task != "phase retrieval":
        return []
    seeds, samples = _seeds(task, data, fast), 8 if fast else 48
    note = functools.partial(_noted, task, seeds, samples)
    rows = [note("start", None, lambda: {"params": seeds.starts})]
    tuned = () if fast else TUNED
    for name in FAST if fast else METHODS:
        for epsilon in EPSILONS[:1] if fast else EPSILONS:
            method = METHODS[name]
            budget = dpjax.Budget(epsilon, DELTA, method.relation)
            make = functools.partial(method.make, seeds.problem, seeds.num_records, budget)
            rows.append(note(name, epsilon, lambda m=make: _found(m(), seeds)))
            if name in tuned:
                rows.append(note(name, epsilon, lambda m=make: _tuned(m(), seeds), tuned=True))
    for name in tuned:
        bare = functools.partial(_without_noise, METHODS[name], seeds)
        rows.append(note(f"{name}, no noise", None, bare, tuned=True))
    jax.clear_caches()  # hundreds of compiled programs exhaust the memory maps of a process
    return rows


def _noted(
    task: str,
    seeds: Seeds,
    samples: int,
    name: str,
    epsilon: float | None,
    find: Callable[[], dict[str, Any]],
    tuned: bool = False,
) -> dict[str, Any]:
    """The row of a method, also where it raises."""
    started = time.perf_counter()
    row = {"task": task, "method": name, "epsilon": epsilon, "tuned": tuned}
    try:
        found = find()
        params = found.pop("params", None)
        row |= found
        if params is not None:
            row |= score(params, seeds, samples)
    except Exception as error:  # the row says what was refused
        row["error"] = f"{type(error).__name__}: {error}"
    if name == "start":  # scores of 0 are no answers
        row = {key: value for key, value in row.items() if not key.startswith("accuracy")}
    return emit("tasks", row, started)


def _found(solver: Any, seeds: Seeds) -> dict[str, Any]:
    """Runs of a solver, and what is stated of it."""
    stated = {
        "relation": solver.relation,
        "accounted": solver.guarantee().epsilon(DELTA),
        "moves": getattr(solver, "num_moves", solver.sampler.steps),
    }
    if isinstance(solver, OnlineToNonconvex):
        stated |= {"goldstein_radius": solver.goldstein_radius(), "work": work(solver, seeds)}
        if stated["work"] > MOST_WORK:
            return stated | {"error": f"not run: work {stated['work']:.1e} > {MOST_WORK:.0e}"}
    return stated | {"params": train(solver, seeds)}


def _tuned(solver: Any, seeds: Seeds) -> dict[str, Any]:
    """The best of some learning rates and the default, by the true mean loss."""
    default = float(solver.learning_rate)
    rates = list(RATES) if isinstance(solver, DPSGD) else [f * default for f in FACTORS]
    rates = sorted({*rates, default})
    every = train_rates(solver, seeds, rates)
    means = [
        losses(jax.tree.map(lambda a, i=i: a[i], every), seeds).mean() for i in range(len(rates))
    ]
    best = int(np.nanargmin(means))
    return {
        "relation": solver.relation,
        "accounted": solver.guarantee().epsilon(DELTA),
        "moves": solver.sampler.steps,
        "learning_rate": rates[best],
        "params": jax.tree.map(lambda a: a[best], every),
    }


def _without_noise(method: Method, seeds: Seeds) -> dict[str, Any]:
    """What the method reaches without privacy, at the best of the rates."""
    budget = dpjax.Budget(1.0, DELTA, method.relation)
    solver = method.make(seeds.problem, seeds.num_records, budget, noise_multiplier=0.0)
    return _tuned(solver, seeds) | {"relation": None, "accounted": None}


def _black_box(fast: bool) -> list[dict[str, Any]]:
    """Losses without gradients, and one outside JAX, on Adult: error rates, for which all are."""
    seeds = fixed(_nonsmooth_instances.real("adult", None), 1 if fast else SEEDS)
    n, dim = seeds.num_records, seeds.problem.num_params
    logistic = Risk.linear(_convex_instances.logistic_loss, dim, lipschitz=1.0, smoothness=0.25)
    errors = Risk.linear(_nonsmooth_instances.error_loss, dim)
    counted = Risk(_nonsmooth_instances.counted_loss, jnp.zeros(dim))
    # errors jump: smoothing has to reach further than a step
    values = functools.partial(OnlineToNonconvex.for_budget, oracle="zeroth", radius=2.0)
    quick: dict[str, Any] = {"steps": 100} if fast else {}
    cases: dict[str, tuple[Any, Callable[..., Any]]] = {
        "logistic loss, DP-SGD": (logistic, DPSGD.for_budget),
        "ramp loss, gradients": (seeds.problem, OnlineToNonconvex.for_budget),
        "ramp loss, values": (seeds.problem, _ours(oracle="zeroth")),
        "errors, values": (errors, values),
        "errors counted by NumPy, values": (counted, values),
    }
    rows = []
    for epsilon in EPSILONS[:1] if fast else EPSILONS:
        for name, (problem, make) in cases.items():
            started = time.perf_counter()
            solver = make(problem, n, dpjax.Budget(epsilon, DELTA, ADD), **quick)
            if problem is counted:  # the callback takes one run at a time
                params = jnp.stack(
                    [
                        dpjax.solve(solver, problem, seeds.data, key=key, progress=False).params
                        for key in seeds.keys
                    ]
                )
            else:
                params = train(solver, seeds._replace(problem=problem))
            row = {
                "task": "adult",
                "method": name,
                "epsilon": epsilon,
                "seeds": len(seeds.keys),
                "relation": solver.relation,
                "accounted": solver.guarantee().epsilon(DELTA),
            }
            for part, records in (("train", seeds.data), ("test", seeds.test)):
                right = [_nonsmooth_instances.accuracy(p, records) for p in params]
                row |= summarised(f"{part}_accuracy", right)
            rows.append(emit("black_box", row, started))
    return rows


def summary(result: dict[str, Any]) -> str:
    """One line a row."""
    lines = []
    for r in result["tasks"]:
        name = f"{r['task']:18}{r['epsilon']!s:5}{r['method']:32}{'tuned' if r['tuned'] else '':6}"
        if "loss" not in r:
            lines.append(name + r["error"])
            continue
        lines.append(
            f"{name}loss {r['loss']:.4f} +- {r['loss_error']:.4f}  Goldstein "
            f"{r['goldstein']:.4f} +- {r['goldstein_error']:.4f}"
            + (f"  accuracy {r['accuracy']:.4f}" if "accuracy" in r else "")
        )
    lines += [
        f"{r['problem']:10}{r['passes']:8}d={r['dim']:<5}n={r['n']:<8}eps={r['epsilon']:<5}"
        f"loss {r['loss']:.4f}  Goldstein {r['goldstein']:.5f}"
        for r in result["slopes"]
    ]
    lines += [f"exponents, {r['problem']}, {r['passes']}: {r['slopes']}" for r in result["fitted"]]
    lines += [
        f"bound, {r['passes']}, period {r['period']}: {r['bound']:.3f}, {r['slopes']}"
        for r in result["bounds"]
    ]
    lines += [
        f"{r['method']:34}eps={r['epsilon']:<5}test accuracy {r['test_accuracy']:.4f}"
        for r in result["black_box"]
    ]
    lines += [
        f"{r['model']:8} m={r['directions']:<5} B={r['records']:<5} ratio {r['ratio']:.2f} "
        f"megabytes {r['megabytes']['estimate']}"
        for r in result["cost"]
    ]
    return "\n".join(lines)


def plot(result: dict[str, Any]) -> Path:
    """Loss above, Goldstein norm below; a column for each task, a line for each method."""
    from matplotlib import pyplot

    rows = [r for r in result["tasks"] if "loss" in r]
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    names = list(dict.fromkeys((r["method"], r["tuned"]) for r in rows))
    figure, panels = pyplot.subplots(
        2, len(tasks), figsize=(3.2 * len(tasks) + 2, 8), sharey=True, layout="constrained"
    )
    colours = {None: "grey", **dict(zip(EPSILONS, ("C0", "C1"), strict=True))}
    for column, task in zip(panels.T, tasks, strict=True):
        for axes, value in zip(column, ("loss", "goldstein"), strict=True):
            for row in (r for r in rows if r["task"] == task):
                shift = 0.15 * (row["epsilon"] == EPSILONS[-1])
                axes.errorbar(
                    row[value],
                    -names.index((row["method"], row["tuned"])) - shift,
                    xerr=row[f"{value}_error"],
                    fmt="o",
                    markersize=4,
                    capsize=2,
                    color=colours[row["epsilon"]],
                )
            axes.grid(alpha=0.3)
            axes.set_xscale("symlog", linthresh=1e-3)
            axes.set_xlabel("mean loss" if value == "loss" else "Goldstein norm, radius 0.1")
        column[0].set_title(task.replace("_", " ").capitalize())
    for axes in panels[:, 0]:
        axes.set_yticks(
            [-i for i in range(len(names))],
            [name + (", tuned" if tuned else "") for name, tuned in names],
            fontsize="small",
        )
    handles = [pyplot.Line2D([], [], marker="o", ls="", color=c) for c in colours.values()]
    labels = ["start, no noise" if e is None else f"epsilon {e:g}" for e in colours]
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    path = _runner.RESULTS / "nonsmooth.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
