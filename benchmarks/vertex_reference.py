"""Methods over vertices and plain private methods: a matrix game, l1-ball regression and logistic.

Everything at (epsilon, 1e-6) under replace-one, with the plans and defaults of `for_budget`; means
and standard deviations over 6 seeds (plain methods: 3) of the exact gap or excess risk. Peers
marked tuned were given the step size that is best by the true criterion, which is not private.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks import _peers as peers
from benchmarks import _saddle_instances as instances
from dpjax.geometry import L1Ball
from dpjax.problems import Saddle, SimplexRisk
from dpjax.solvers import (
    DPSGD,
    AnytimeMirrorDescent,
    FrankWolfe,
    MultilevelSaddle,
    PolishedFrankWolfe,
    SaddleMirrorDescent,
)

PEERS = ("diffprivlib",)
DELTA = 1e-6
SEEDS = 6
PEER_SEEDS = 3
TUNED_UP_TO = 100_000  # records
GAME_DIM, GAME_SIZES = 50, (3_000, 30_000, 300_000)
BALL_DIM, BALL_SIZES = 100, (10_000, 100_000, 1_000_000)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
# what runs of the published methods give on these instances, at equal batches
PUBLISHED = {
    "game": {"fresh": (0.71, 0.21, 0.067), "played": (0.49, 0.15, 0.046)},
    "regression": {"anytime": (0.158, 0.033, 0.0054), "played": (0.13, 0.051, 0.012)},
}


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All tables; `fast` takes the smallest sizes and two seeds."""
    del data
    seeds = 2 if fast else SEEDS
    game_sizes = GAME_SIZES[:1] if fast else GAME_SIZES
    ball_sizes = (2_000,) if fast else BALL_SIZES
    points: list[dict[str, Any]] = []
    for n in game_sizes:
        instance = instances.core_padded(GAME_DIM, n, seed=1)
        points += _points("game", n, 1.0, seeds, game_methods(n, 1.0, fast), instance)
        if n == game_sizes[min(1, len(game_sizes) - 1)]:
            for epsilon in () if fast else EPSILONS:
                methods = {"played": game_methods(n, epsilon, True)["played"]}
                points += _points("game, epsilon", n, epsilon, seeds, methods, instance)
        del instance
    for n in ball_sizes:
        instance = instances.l1_regression(BALL_DIM, n, seed=1)
        methods = ball_methods(instance, n, 1.0, fast)
        points += _points("regression", n, 1.0, seeds, methods, instance)
        if n == ball_sizes[min(1, len(ball_sizes) - 1)]:
            for epsilon in () if fast else EPSILONS:
                some = ball_methods(instance, n, epsilon, True)
                some = {name: some[name] for name in ("anytime", "played")}
                points += _points("regression, epsilon", n, epsilon, seeds, some, instance)
        del instance
    n = ball_sizes[min(1, len(ball_sizes) - 1)]
    logistic = instances.l1_logistic(BALL_DIM, n, seed=1)
    points += _points("logistic", n, 1.0, seeds, logistic_methods(logistic, n, fast), logistic)
    return {"delta": DELTA, "seeds": seeds, "points": points, "published": PUBLISHED}


def defaults() -> dict[str, Any]:
    """Solvers at 30,000 records of the game and 100,000 of the regression."""
    budget, game = dpjax.Budget(1.0, DELTA, "replace_one"), Saddle.matrix_game((GAME_DIM, GAME_DIM))
    problem = SimplexRisk.linear(
        squared, L1Ball(BALL_DIM), grad_range=4.2, smoothness=1.0, third_order=0.0
    )
    made: dict[str, Any] = {
        f"game, {output}": SaddleMirrorDescent.for_budget(game, 30_000, budget, output=output)
        for output in ("played", "fresh")
    }
    for kind in (AnytimeMirrorDescent, FrankWolfe, PolishedFrankWolfe):
        made[f"regression, {kind.__name__}"] = kind.for_budget(problem, 100_000, budget)
    ball = peers.BallGlm(BALL_DIM, 1.0, peers.SQUARED)
    made["regression, DP-SGD"] = DPSGD.for_budget(ball, 100_000, budget)
    return made


def game_methods(n: int, epsilon: float, few: bool) -> dict[str, Callable[..., Any]]:
    """Methods for a game, each from (instance, key) to (strategies, guarantee)."""
    budget = dpjax.Budget(epsilon, DELTA, "replace_one")
    game = Saddle.matrix_game((GAME_DIM, GAME_DIM))
    methods = {
        "played": solver(SaddleMirrorDescent.for_budget(game, n, budget, output="played"), game),
        "fresh": solver(SaddleMirrorDescent.for_budget(game, n, budget, output="fresh"), game),
    }
    methods["one-shot Gaussian"] = lambda data, key: peers.noisy_mean_game(data["A"], budget, key)
    methods["DP-SGDA"] = lambda data, key: peers.dpsgda(game, data, budget, key)
    if not few:
        by_bound = SaddleMirrorDescent.for_budget(game, n, budget, certified=True)
        methods["played, plan by bound"] = solver(by_bound, game)
        if n >= 30_000:
            multilevel = MultilevelSaddle.for_budget(game, n, budget, antithetic=True)
            methods["multilevel"] = solver(multilevel, game)
        for factor in (0.01, 0.03, 0.1, 0.3) if n <= TUNED_UP_TO else ():
            methods[f"DP-SGDA, step {factor}"] = lambda data, key, factor=factor: peers.dpsgda(
                game, data, budget, key, learning_rate=factor
            )
    return methods


def ball_methods(
    instance: instances.L1Instance, n: int, epsilon: float, few: bool
) -> dict[str, Callable[..., Any]]:
    """Methods for regression on the l1 ball."""
    budget = dpjax.Budget(epsilon, DELTA, "replace_one")
    bound = instance.label_bound
    problem = SimplexRisk.linear(
        squared,
        L1Ball(BALL_DIM, instance.radius),
        grad_range=2 * instance.radius * (instance.radius + bound),
        smoothness=instance.radius**2,
        third_order=0.0,
    )
    methods = {
        "anytime": solver(AnytimeMirrorDescent.for_budget(problem, n, budget), problem),
        "played": solver(
            SaddleMirrorDescent.for_budget(problem, n, budget, output="played"), problem
        ),
    }
    if few:
        return methods
    methods["fresh"] = solver(
        SaddleMirrorDescent.for_budget(problem, n, budget, output="fresh"), problem
    )
    options: dict[str, Any] = {"radius": instance.radius, "label_bound": bound}
    methods["one-shot statistics"] = lambda data, key: peers.noisy_statistics(
        data, budget, key, **options
    )
    methods["Frank-Wolfe"] = solver(FrankWolfe.for_budget(problem, n, budget), problem)
    methods["polished"] = solver(PolishedFrankWolfe.for_budget(problem, n, budget), problem)
    methods["DP-SGD"] = lambda data, key: peers.dp_sgd_l1(data, budget, key, radius=instance.radius)
    for factor in (0.003, 0.01, 0.03, 0.1) if n <= TUNED_UP_TO else ():
        methods[f"DP-SGD, step {factor}"] = lambda data, key, factor=factor: peers.dp_sgd_l1(
            data, budget, key, radius=instance.radius, learning_rate=factor
        )
    return methods


def logistic_methods(
    instance: instances.L1Instance, n: int, few: bool
) -> dict[str, Callable[..., Any]]:
    """Methods for logistic regression on the l1 ball."""
    budget = dpjax.Budget(1.0, DELTA, "replace_one")
    radius = instance.radius
    problem = SimplexRisk.linear(
        logistic,
        L1Ball(BALL_DIM, radius),
        grad_range=2 * radius,
        smoothness=radius**2 / 4,
        third_order=radius**3 / (6 * 3**0.5),
    )
    methods = {
        "anytime": solver(AnytimeMirrorDescent.for_budget(problem, n, budget), problem),
        "played": solver(
            SaddleMirrorDescent.for_budget(problem, n, budget, output="played"), problem
        ),
        "fresh": solver(
            SaddleMirrorDescent.for_budget(problem, n, budget, output="fresh"), problem
        ),
        "DP-SGD": lambda data, key: peers.dp_sgd_l1(
            data, budget, key, radius=radius, link=peers.LOGISTIC
        ),
        "Frank-Wolfe": solver(FrankWolfe.for_budget(problem, n, budget), problem),
        "polished": solver(PolishedFrankWolfe.for_budget(problem, n, budget), problem),
    }
    if not few:
        try:
            import diffprivlib
        except ImportError:
            print("diffprivlib is not installed: left out", flush=True)
        else:
            del diffprivlib
            methods["diffprivlib (pure epsilon)"] = _diffprivlib(radius)
    return methods


def squared(margin: jax.Array, y: jax.Array) -> jax.Array:
    """Half the squared error."""
    return 0.5 * (margin - y) ** 2


def logistic(margin: jax.Array, y: jax.Array) -> jax.Array:
    """Logistic loss of a label +-1."""
    return jax.nn.softplus(-y * margin)


def solver(solver: Any, problem: Any) -> Callable[..., Any]:
    """A method from one of dpjax's solvers."""

    def method(data: Any, key: jax.Array) -> peers.Released:
        solution = dpjax.solve(solver, problem, data, key=key, progress=False)
        return peers.Released(solution.params, solver.guarantee())

    return method


def _diffprivlib(radius: float) -> Callable[..., Any]:
    def method(data: Any, key: jax.Array) -> peers.Released:
        seed = int(jax.random.bits(key, (), jnp.uint32)) % 2**31
        return peers.diffprivlib_logistic(data, 1.0, radius=radius, seed=seed)

    method.on_host = True  # type: ignore[attr-defined]
    return method


def _points(
    task: str,
    n: int,
    epsilon: float,
    seeds: int,
    methods: dict[str, Callable[..., Any]],
    instance: Any,
) -> list[dict[str, Any]]:
    criterion = instance.gap if hasattr(instance, "gap") else instance.excess
    data = jax.tree.map(jnp.asarray, instance.data)
    points = []
    for name, method in methods.items():
        ours = name in ("anytime", "played", "fresh", "multilevel", "played, plan by bound")
        keys = jax.random.split(jax.random.key(2026), seeds)[: None if ours else PEER_SEEDS]
        run = method if hasattr(method, "on_host") else jax.jit(method)
        released = [run(data, key) for key in keys]
        values = [float(criterion(r.params)) for r in released]
        accounted = float(released[0].guarantee.epsilon(DELTA))
        points.append(
            {
                "task": task,
                "n": n,
                "epsilon": epsilon,
                "accounted": accounted,
                "method": name,
                "seeds": len(values),
                "mean": float(np.mean(values)),
                "std": float(np.std(values, ddof=1)),
            }
        )
        print(f"{task} n={n} eps={epsilon} {name}: {np.mean(values):.5f}", flush=True)
    return points


def slope(points: list[dict[str, Any]], task: str, method: str, over: str) -> float:
    """Least-squares slope of log error over log n, or over log epsilon."""
    mine = [p for p in points if p["task"] == task and p["method"] == method]
    x, y = (np.log([p[name] for p in mine]) for name in (over, "mean"))
    return float(np.polyfit(x, y, 1)[0])


def table(points: list[dict[str, Any]], task: str) -> list[str]:
    """Rows of one task: methods by sizes; of steps that were tried, the best alone."""
    mine = [p for p in points if p["task"] == task]
    sizes = sorted({p["n"] for p in mine})
    methods = list(dict.fromkeys(p["method"].split(", step")[0] for p in mine))
    lines = ["| method | " + " | ".join(f"n = {n:,}" for n in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    for name in methods:
        steps = [m for m in {p["method"] for p in mine} if m.startswith(f"{name}, step")]
        for tuned in (False, True) if steps else (False,):
            allowed = {name, *steps} if tuned else {name}
            cells = []
            for n in sizes:
                found = [p for p in mine if p["n"] == n and p["method"] in allowed]
                tried = any(p["method"] in steps for p in found)
                means = [p["mean"] for p in found] if tried or not tuned else []
                cells.append(f"{min(means):.3g}" if means else "")
            label = f"{name}, tuned (not private)" if tuned else name
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def summary(result: dict[str, Any]) -> str:
    """Markdown tables of all tasks, and slopes."""
    points = result["points"]
    lines = []
    for task in ("game", "regression", "logistic"):
        lines += [f"{task}:", "", *table(points, task), ""]
    if not result.get("fast"):
        for task, method, over in (
            ("game", "played", "n"),
            ("game", "fresh", "n"),
            ("game, epsilon", "played", "epsilon"),
            ("regression", "anytime", "n"),
            ("regression", "played", "n"),
            ("regression, epsilon", "anytime", "epsilon"),
            ("regression, epsilon", "played", "epsilon"),
        ):
            if len({p[over] for p in points if p["task"] == task}) > 1:
                lines.append(
                    f"slope of {task}, {method}, over {over}: "
                    f"{slope(points, task, method, over):.2f}"
                )
    return "\n".join(lines)


def readme(result: dict[str, Any], task: str) -> str:
    """The table of one task, without variants of a plan."""
    points = [p for p in result["points"] if "plan by bound" not in p["method"]]
    return "\n".join(
        table([{**p, "method": NAMES.get(p["method"], p["method"])} for p in points], task)
    )


NAMES = {
    "played": "`SaddleMirrorDescent`, played",
    "fresh": "`SaddleMirrorDescent`, fresh",
    "anytime": "`AnytimeMirrorDescent`",
    "multilevel": "`MultilevelSaddle`",
    "DP-SGDA": "`DPSGD` on both players",
    "DP-SGD": "`DPSGD`",
    "Frank-Wolfe": "`FrankWolfe`",
    "polished": "`PolishedFrankWolfe`",
    **{f"DP-SGDA, step {s}": f"`DPSGD` on both players, step {s}" for s in (0.01, 0.03, 0.1, 0.3)},
    **{f"DP-SGD, step {s}": f"`DPSGD`, step {s}" for s in (0.003, 0.01, 0.03, 0.1)},
}
