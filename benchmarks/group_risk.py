"""Minimax group risk on Adult, ten groups by sex and race: error of the group that fares worst.

Linear classifiers, add or remove one record, delta 1e-5, one 75/25 split. `DP-SGD` ignores the
groups; `DP-SGDA` and `mirror descent-ascent` solve the minimax problem over group weights with
public shares floored at 0.02, the first in Euclidean geometry (logistic loss), the second over
vertices of an l1 ball (squared loss, radius 3). The non-private lines are full-batch.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax.geometry import L1Ball
from dpjax.problems import Risk, group_risk
from dpjax.solvers import DPSGD, SaddleMirrorDescent

DELTA = 1e-5
EPSILONS = (1.0, 3.0)
SEEDS = 5
# of the US population by sex and race, coarsely, floored: not computed from the records
SHARES = (0.4, 0.02, 0.02, 0.02, 0.06, 0.4, 0.02, 0.02, 0.02, 0.06)
RADIUS = 3.0


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Mean over seeds of error and worst group's error for each method and epsilon."""
    del data
    seeds, steps, options = (2, 50, {"steps": 50}) if fast else (SEEDS, 1000, {})
    train, test = dpjax.datasets.adult(group="sex_race").split(test=0.25, seed=0)
    records, fresh = _with_intercept(train), _with_intercept(test)
    points = []
    for epsilon in EPSILONS[:1] if fast else EPSILONS:
        budget = dpjax.Budget(epsilon, DELTA, "add_or_remove_one")
        for name, (solver, problem) in methods(len(train), budget, options).items():
            solve = jax.jit(
                lambda data, key, solver=solver, problem=problem: (
                    dpjax.solve(solver, problem, data, key=key).params
                )
            )
            errors = []
            for key in jax.random.split(jax.random.key(11), seeds):
                params = solve(records, key)
                errors.append(_errors(params[0] if isinstance(params, tuple) else params, fresh))
            accounted = solver.guarantee().epsilon(DELTA)
            points.append(_point(name, epsilon, accounted, errors))
    for name, weights in {"not private": 0.0, "not private, minimax": 0.2}.items():
        reference = _reference(records, weights, steps)
        points.append(_point(name, None, None, [_errors(reference, fresh)]))
    return {
        "delta": DELTA,
        "seeds": seeds,
        "shares": SHARES,
        "group_names": train.group_names,
        "num_train": len(train),
        "points": points,
    }


def methods(n: int, budget: dpjax.Budget, options: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Solver and problem of each method."""
    dim = dpjax.datasets.adult().num_features + 1
    risk = Risk(logistic, jnp.zeros(dim))
    # the ball is wide enough not to bind: a Euclidean method needs none
    euclidean = group_risk(
        logistic, SHARES, grad_range=(1.0, 1.0), vertices=L1Ball(dim, 60.0), dim=dim
    )
    minimax = group_risk(
        squared,
        SHARES,
        grad_range=(4 * RADIUS, 1.0),
        vertices=L1Ball(dim, RADIUS),
        dim=dim,
        third_order=0.0,
    )
    return {
        "DP-SGD": (DPSGD.for_budget(risk, n, budget, **options), risk),
        "DP-SGDA": (
            DPSGD.for_budget(euclidean, n, budget, average="uniform", **options),
            euclidean,
        ),
        "mirror descent-ascent": (
            SaddleMirrorDescent.for_budget(minimax, n, budget, output="played", **options),
            minimax,
        ),
    }


def logistic(w: jax.Array, record: Any) -> jax.Array:
    """Logistic loss of a label +-1."""
    return jax.nn.softplus(-record["y"] * jnp.dot(record["x"], w))


def squared(w: jax.Array, record: Any) -> jax.Array:
    """Half the squared error."""
    return 0.5 * (jnp.dot(record["x"], w) - record["y"]) ** 2


def _with_intercept(dataset: Any) -> dict[str, jax.Array]:
    x = np.hstack([dataset.x, np.ones((len(dataset), 1), np.float32)])
    return {
        "x": jnp.asarray(x),
        "y": jnp.asarray(2.0 * dataset.y - 1, jnp.float32),
        "group": jnp.asarray(dataset.group),
    }


def _errors(w: jax.Array, data: dict[str, jax.Array]) -> tuple[float, list[float]]:
    """Error, and the error of each group."""
    wrong = np.asarray((data["x"] @ w > 0) != (data["y"] > 0))
    groups = np.asarray(data["group"])
    return float(wrong.mean()), [float(wrong[groups == g].mean()) for g in range(len(SHARES))]


def _point(name: str, epsilon: Any, accounted: Any, errors: list[Any]) -> dict[str, Any]:
    worst = [max(by_group) for _, by_group in errors]
    print(f"{name} epsilon={epsilon}: worst {np.mean(worst):.4f}", flush=True)
    return {
        "method": name,
        "epsilon": epsilon,
        "accounted": accounted,
        "error": float(np.mean([e for e, _ in errors])),
        "worst_group_error": float(np.mean(worst)),
        "worst_group_std": float(np.std(worst, ddof=1)) if len(worst) > 1 else 0.0,
        "by_group": np.mean([by_group for _, by_group in errors], axis=0).tolist(),
    }


def _reference(data: dict[str, jax.Array], dual_rate: float, steps: int) -> jax.Array:
    """Full-batch Adam on the mean loss, or under multiplicative weights on the groups."""
    member = jax.nn.one_hot(data["group"], len(SHARES))
    sizes = jnp.sum(member, axis=0)
    optimizer = optax.adam(0.05)

    def losses(w: jax.Array) -> jax.Array:
        return jax.nn.softplus(-data["y"] * (data["x"] @ w)) @ member

    def objective(w: jax.Array, weights: jax.Array) -> jax.Array:
        return jnp.dot(losses(w), weights / sizes)

    def body(carry: Any, _: None) -> tuple[Any, None]:
        w, state, log_weights, total = carry
        plain = sizes / jnp.sum(sizes)
        weights = jax.nn.softmax(log_weights) if dual_rate else plain
        updates, state = optimizer.update(jax.grad(objective)(w, weights), state)
        w = optax.apply_updates(w, updates)
        return (w, state, log_weights + dual_rate * losses(w) / sizes, total + w), None

    start = jnp.zeros(data["x"].shape[1])
    carry = (start, optimizer.init(start), jnp.zeros(len(SHARES)), start)
    w, _, _, total = jax.jit(lambda c: jax.lax.scan(body, c, None, length=steps)[0])(carry)
    return total / steps if dual_rate else w


def summary(result: dict[str, Any]) -> str:
    """Markdown table, a row a method."""
    lines = ["| method | epsilon | error | worst group's error |", "|---|---|---|---|"]
    for p in result["points"]:
        epsilon = "" if p["epsilon"] is None else f"{p['epsilon']:g}"
        lines.append(
            f"| {p['method']} | {epsilon} | {p['error']:.4f} | {p['worst_group_error']:.4f} "
            f"(sd {p['worst_group_std']:.4f}) |"
        )
    return "\n".join(lines)


def readme(result: dict[str, Any]) -> str:
    """Worst group's error of each method."""
    return summary(result)
