"""Online-to-batch, DP-FTRL and DP-SGD on convex problems of known optimum, and on real data.

Everything at (epsilon, 1e-5) under replace-one. Excess population risk over that of the start, mean
over seeds; on real data excess mean loss on the training set over the minimiser's, and accuracy on
the test set. "Tuned" methods were given the learning rate and the clip norm (the stated bound or a
quarter) that are best by the true criterion, which is not private.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks import _convex_instances as instances
from dpjax.papers.online_to_batch import as_published
from dpjax.problems._as_linear_model import own_linear
from dpjax.solvers import DPFTRL, DPSGD, OnlineToBatch, linear_model_solver
from dpjax.transforms import projected

PEERS = ("diffprivlib",)
DELTA = 1e-5
SIZES = (1_000, 10_000, 100_000)
DIMS = (10, 100, 1_000)
LARGE = 1_000_000
EPSILONS = (0.25, 1.0, 4.0)
RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # of descent
STEPS = (0.5, 1.0, 2.0, 4.0, 8.0)  # over 1 / H
TUNED_UP_TO = 1_000_000  # numbers in the data
PUBLISHED_UP_TO = 1_000_000
MAKERS = {"logistic": instances.logistic, "least squares": instances.least_squares}
DISTANCES = (0.1, 1.0, 5.0)
FIXED = "fixed rate D / (G sqrt(sum of squared weights))"
DIAMETERS = (0.05, 0.2, 1.0, 5.0, 20.0)
FAST = ("online-to-batch", "DP-SGD", "optimistic", "distance_adaptive")


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All tables; `fast` takes the smallest sizes, one seed, and of methods and learners a few."""
    points: list[dict[str, Any]] = []
    for task, make in MAKERS.items():
        for dim in DIMS[:1] if fast else DIMS:
            for n in SIZES[:1] if fast else SIZES:
                few = fast and task != "logistic"
                points += _synthetic(task, make, dim, n, 1.0, _seeds(n, dim, fast), fast, few)
        for epsilon in () if fast else EPSILONS:
            points += _synthetic(f"{task}, epsilon", make, 10, 10_000, epsilon, 4, True)
    result = {
        "delta": DELTA,
        "points": points,
        "learners": _learners(1 if fast else 8, fast),
        "distances": _distances(1 if fast else 8, fast),
        "real": _real(data, fast),
    }
    for dim, seeds in () if fast else ((DIMS[0], 5), (DIMS[1], 1)):
        for task, make in MAKERS.items():
            points += _synthetic(task, make, dim, LARGE, 1.0, seeds, True)
    return result


def _seeds(n: int, dim: int, fast: bool) -> int:
    return 1 if fast else 2 if n * dim >= 10**7 else 5


def _kept(names: tuple[str, ...], fast: bool) -> tuple[str, ...]:
    return tuple(name for name in names if name in FAST or not fast)


def methods(problem: Any, n: int, epsilon: float) -> dict[str, Any]:
    """Solvers with their defaults alone."""
    budget = dpjax.Budget(epsilon, DELTA, "replace_one")
    plan = functools.partial(OnlineToBatch.for_budget, problem, n, budget)
    made = {
        "online-to-batch": plan(),
        "online-to-batch, one pass": plan(single_pass=True),
        "DP-SGD": DPSGD.for_budget(problem, num_records=n, budget=budget),
        "DP-FTRL": DPFTRL.for_budget(problem, n, budget, noise="buffered", epochs=1),
    }
    if own_linear(problem) is not None:
        made["linear_model_solver"] = linear_model_solver(problem, n, budget)
    if n <= 10_000:
        made["online-to-batch, as published"] = as_published(problem, n, budget, steps=min(n, 4096))
    return made


def defaults() -> dict[str, Any]:
    """Methods at one cell of each task."""
    return {
        f"{task}, {name}": solver
        for task, make in MAKERS.items()
        for name, solver in methods(make(10, 100, 0).problem, 100_000, 1.0).items()
    }


def tuned_methods(problem: Any, n: int, epsilon: float) -> dict[str, tuple[Any, list[Any]]]:
    """Solvers and the learning rates to choose from; each with two clip norms."""
    budget = dpjax.Budget(epsilon, DELTA, "replace_one")
    rates = [step / problem.smoothness for step in STEPS]
    plan = functools.partial(OnlineToBatch.for_budget, problem, n, budget)
    descent = functools.partial(DPFTRL.for_budget, problem, n, budget, average="uniform")
    return {
        "online-to-batch": (plan(), rates),
        "online-to-batch, one pass": (plan(single_pass=True), rates),
        "DP-SGD": (
            DPSGD.for_budget(problem, n, budget, batch_size=n / 8, steps=80, average="uniform"),
            list(RATES),
        ),
        "DP-FTRL": (descent(steps=64, noise="buffered"), list(RATES)),
        "DP-FTRL, tree": (descent(steps=64, noise="tree"), list(RATES)),
    }


def _synthetic(
    task: str,
    make: Callable[..., Any],
    dim: int,
    n: int,
    epsilon: float,
    seeds: int,
    fast: bool,
    few: bool = False,
) -> list[dict[str, Any]]:
    jax.clear_caches()  # thousands of programs would exhaust the memory maps of a process
    size = n * dim
    found: dict[tuple[str, bool], list[float]] = {}
    accounted: dict[tuple[str, bool], float] = {}
    for seed in range(seeds):
        instance = make(dim, n, seed)
        problem, key = instance.problem, jax.random.key(seed)
        records = {name: jnp.asarray(column) for name, column in instance.data.items()}
        for name, solver in methods(problem, n, epsilon).items():
            if size > PUBLISHED_UP_TO and name.endswith("as published"):
                continue
            if few and name not in FAST:
                continue
            params = dpjax.solve(solver, problem, records, key=key, progress=False).params
            _note(found, accounted, (name, False), instance, params, solver)
        tuned = tuned_methods(problem, n, epsilon) if size <= TUNED_UP_TO and not fast else {}
        for name, (solver, rates) in tuned.items():
            every = _grid(solver, problem, records, key, rates)
            values = instance.excess(every) / instance.at_start
            found.setdefault((name, True), []).append(values)  # type: ignore[arg-type]
            accounted[name, True] = solver.guarantee().epsilon(DELTA)
        if task == "logistic" and size <= 10**7:
            params = _diffprivlib(instance.data, epsilon, seed, radius=2.0)
            if params is not None:
                values = float(instance.excess(params) / instance.at_start)
                found.setdefault(("diffprivlib", False), []).append(values)
                accounted["diffprivlib", False] = epsilon
    rows = []
    for (name, chosen), values in found.items():
        table = np.array(values)
        means = np.nanmean(table, axis=0).ravel()
        best = int(np.nanargmin(means))
        spread = table.reshape(len(table), -1)[:, best]
        rows.append(
            {
                "task": task,
                "method": name,
                "tuned": chosen,
                "dim": dim,
                "n": n,
                "epsilon": epsilon,
                "seeds": seeds,
                "mean": float(means[best]),
                "std": float(np.std(spread)),
                "accounted": accounted[name, chosen],
            }
        )
        print(rows[-1], flush=True)
    return rows


def _note(
    found: dict[Any, list[float]],
    accounted: dict[Any, float],
    name: Any,
    instance: Any,
    params: Any,
    solver: Any,
) -> None:
    value = float(instance.excess(np.asarray(params)) / instance.at_start)
    found.setdefault(name, []).append(value)
    accounted[name] = solver.guarantee().epsilon(DELTA)


def _grid(solver: Any, problem: Any, records: Any, key: Any, rates: list[Any]) -> np.ndarray:
    """Parameters `[rates * 2, d]` for every rate and both clip norms; one compile."""
    clips = [float(problem.lipschitz), float(problem.lipschitz) / 4]
    pairs = jnp.asarray([(r, c) for r in rates for c in clips], jnp.float32)

    def one(pair: jax.Array, data: Any) -> jax.Array:
        swept = dataclasses.replace(solver, learning_rate=pair[0], clip_norm=pair[1])
        return dpjax.solve(swept, problem, data, key=key).params

    return np.asarray(jax.jit(jax.vmap(one, in_axes=(0, None)))(pairs, records))


def _diffprivlib(
    data: dict[str, Any], epsilon: float, seed: int, radius: float = np.inf
) -> np.ndarray | None:
    """Objective perturbation, pure epsilon; brought into the ball afterwards."""
    try:
        from diffprivlib.models import LogisticRegression
    except ImportError:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(
            epsilon=epsilon, data_norm=1.0001, fit_intercept=False, random_state=seed
        )
        model.fit(data["x"], data["y"])
    w = model.coef_[0]
    return w * min(1.0, radius / max(np.linalg.norm(w), 1e-30))


def _learners(seeds: int, fast: bool) -> list[dict[str, Any]]:
    """Named learners, with and without hints, on the logistic problem and a smooth quadratic."""
    rows = []
    names = _kept(
        (
            "optimistic",
            "dual_averaging",
            "optimistic_descent",
            "gradient_descent",
            "adagrad_norm",
            "distance_adaptive",
        ),
        fast,
    )
    for n in (1_000,) if fast else (1_000, 10_000):
        for name in names:
            values = []
            for seed in range(seeds):
                instance = instances.logistic(10, n, seed)
                budget = dpjax.Budget(1.0, DELTA, "replace_one")
                solver = OnlineToBatch.for_budget(instance.problem, n, budget, learner=name)
                found = dpjax.solve(
                    solver,
                    instance.problem,
                    instance.data,
                    key=jax.random.key(seed),
                    progress=False,
                )
                values.append(float(instance.excess(found.params) / instance.at_start))
            rows.append(
                {"task": "logistic", "n": n, "learner": name, "mean": float(np.mean(values))}
            )
    for name in names:
        rows.append({"task": "quadratic, no noise", "learner": name, "mean": _quadratic(name)})
    fixed = {"task": "quadratic, no noise", "learner": FIXED, "mean": _quadratic(_fixed_rate)}
    rows.append(fixed)
    for row in rows:
        print(row, flush=True)
    return rows


def _fixed_rate(solver: Any, problem: Any) -> Any:
    """Projected descent at the rate that is best for the largest gradients there could be."""
    squares = sum(
        t ** (2 * solver.weight_exponent) for t in np.arange(1, solver.sampler.steps + 1) / 512
    )
    rate = 2 * problem.radius / (problem.lipschitz * squares**0.5)
    return projected(optax.scale(-rate), problem.project)


def _quadratic(learner: Any) -> float:
    """Excess of sum_i i^-2 (w_i - 1)^2 / 2 in 50 dimensions after 512 steps, without noise."""
    curvature = jnp.arange(1.0, 51.0) ** -2
    problem = dpjax.problems.Risk(
        lambda w, record: jnp.sum(curvature * (w - record["x"]) ** 2) / 2,
        jnp.zeros(50),
        radius=10.0,
        lipschitz=20.0,
        smoothness=1.0,
    )
    rate = {} if isinstance(learner, str) else {"learning_rate": 1.0}
    budget = dpjax.Budget(1.0, DELTA)
    plan = OnlineToBatch.for_budget(
        problem, 4, budget, learner=learner, steps=512, noise_multiplier=0.0, **rate
    )
    data = {"x": jnp.ones((4, 50))}
    found = dpjax.solve(plan, problem, data, key=jax.random.key(0), progress=False).params
    return float(problem.mean_loss(found, data))


def _distances(seeds: int, fast: bool) -> list[dict[str, Any]]:
    """Learners that are told no scale against the best of many diameters, at radius 10."""
    n = 4096
    rows = []
    budget = dpjax.Budget(4.38, DELTA, "replace_one")
    for distance in DISTANCES[:1] if fast else DISTANCES:
        for single_pass in (False,) if fast else (False, True):
            made = [instances.far_regression(distance, n, seed) for seed in range(seeds)]
            problem = made[0].problem
            records = {
                name: jnp.stack([jnp.asarray(m.data[name]) for m in made]) for name in ("x", "y")
            }
            keys = jax.random.split(jax.random.key(1), seeds)

            def excess(solver: Any, rates: Any, p: Any = problem, d: Any = records) -> Any:
                def one(rate: jax.Array, data: Any, key: jax.Array) -> jax.Array:
                    swept = dataclasses.replace(solver, learning_rate=rate)
                    return dpjax.solve(swept, p, data, key=key).params

                runs = jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None))
                params = jax.jit(runs)(jnp.asarray(rates, jnp.float32), d, keys)  # noqa: B023
                return made[0].excess(params).mean(axis=1)  # noqa: B023

            plan = functools.partial(
                OnlineToBatch.for_budget, problem, n, budget, single_pass=single_pass
            )
            row: dict[str, Any] = {"distance": distance, "single_pass": single_pass, "seeds": seeds}
            for learner in _kept(("adagrad_norm", "optimistic"), fast):
                values = excess(plan(learner=learner), DIAMETERS)
                row[f"{learner}, best diameter"] = float(values.min())
                row[f"{learner}, diameter 20"] = float(values[-1])
            untold = ("gradient_descent", "distance_adaptive", "parameter_free")
            for learner in _kept(untold, fast):
                solver = plan(learner=learner)
                row[learner] = float(excess(solver, [solver.learning_rate])[0])
            rows.append(row)
            print(row, flush=True)
    return rows


def _real(folder: Path | None, fast: bool) -> list[dict[str, Any]]:
    rows = []
    for name in ("adult",) if fast else ("adult", "credit_default"):
        real = instances.real(name, folder)
        problem, n = real.problem, len(real.train["y"])
        least = float(problem.mean_loss(jnp.asarray(real.optimum, jnp.float32), real.train))
        start = float(problem.mean_loss(problem.init, real.train)) - least
        train = {k: jnp.asarray(v) for k, v in real.train.items()}

        def score(params: np.ndarray, r: Any = real, t: Any = train, m: float = least) -> Any:
            loss = float(r.problem.mean_loss(jnp.asarray(params, jnp.float32), t)) - m
            return loss, float(np.mean((r.test["x"] @ params > 0) == (r.test["y"] > 0)))

        rows.append(_real_row(name, "not private", None, False, [score(real.optimum)], start))
        for epsilon in (1.0,) if fast else (0.5, 1.0, 4.0):
            jax.clear_caches()
            seeds = 1 if fast else 5
            for method, solver in methods(problem, n, epsilon).items():
                if fast and method not in FAST:
                    continue
                scores = [
                    score(np.asarray(dpjax.solve(solver, problem, train, key=k).params))
                    for k in jax.random.split(jax.random.key(0), seeds)
                ]
                rows.append(_real_row(name, method, epsilon, False, scores, start))
            for method, (solver, rates) in tuned_methods(problem, n, epsilon).items():
                if fast:
                    continue
                every = [
                    [score(params) for params in _grid(solver, problem, train, k, rates)]
                    for k in jax.random.split(jax.random.key(0), 3)
                ]
                table = np.array(every)
                best = int(np.nanargmin(table[:, :, 0].mean(axis=0)))
                rows.append(_real_row(name, method, epsilon, True, table[:, best], start))
            peer = [_diffprivlib(real.train, epsilon, seed) for seed in range(seeds)]
            if peer[0] is not None:
                scores = [score(params) for params in peer]
                rows.append(_real_row(name, "diffprivlib", epsilon, False, scores, start))
    return rows


def _real_row(
    data: str, method: str, epsilon: Any, tuned: bool, scores: Any, start: float
) -> dict[str, Any]:
    table = np.array(scores)
    row = {
        "data": data,
        "method": method,
        "epsilon": epsilon,
        "tuned": tuned,
        "seeds": len(table),
        "excess": float(table[:, 0].mean()),
        "excess_std": float(table[:, 0].std()),
        "at_start": start,
        "accuracy": float(table[:, 1].mean()),
    }
    print(row, flush=True)
    return row


def slope(points: list[dict[str, Any]], task: str, method: str, over: str, dim: int = 10) -> float:
    """Of log mean over log n or epsilon, by least squares, for methods by default."""
    mine = [
        p
        for p in points
        if (p["task"], p["method"], p["dim"], p["tuned"]) == (task, method, dim, False)
    ]
    x, y = np.log([p[over] for p in mine]), np.log([p["mean"] for p in mine])
    return float(np.polyfit(x, y, 1)[0])


def summary(result: dict[str, Any]) -> str:
    """One line a point."""
    lines = [
        f"{p['task']:22} d={p['dim']:<5} n={p['n']:<8} eps={p['epsilon']:<5} "
        f"{p['method']:32}{'tuned' if p['tuned'] else '':6} {p['mean']:.4g} +- {p['std']:.2g}"
        for p in result["points"]
    ]
    lines += [
        f"{r['data']:16} eps={r['epsilon']!s:5} {r['method']:32}{'tuned' if r['tuned'] else '':6}"
        f"{r['excess']:.4f} accuracy {r['accuracy']:.4f}"
        for r in result["real"]
    ]
    return "\n".join(lines)
