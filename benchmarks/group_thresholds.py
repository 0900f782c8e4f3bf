"""Thresholds by group, chosen from one noisy histogram of scores: Adult, demographic parity.

`GroupThresholds` after its own `DPSGD`, defaults, both within one budget, on the first rows of
Adult's training records; split, keys and slacks are those of `fair_frontiers`, whose rows of the
same size are `RateConstrainedSGDA`, which does not use the group at prediction.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import dpjax
from benchmarks import fair_frontiers
from benchmarks.fair_frontiers import DELTA, PARITY_SLACKS, SEEDS, parity, point

EPSILONS = (0.1, 1.0, 3.0, 9.0)
SIZES = (3_000, 10_000, 36_632)
SHOWN = {f"adult_{n}": (f"Adult, {n:,} rows, `GroupThresholds`", (0.0, 0.05)) for n in SIZES}


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All sizes; `fast` takes 2,000 rows, one slack, one seed and 50 steps."""
    del data
    frontiers = {}
    for n in (2_000,) if fast else SIZES:
        print(n, flush=True)
        frontiers[f"adult_{n}"] = thresholds(n, 1 if fast else SEEDS, fast)
    return {"delta": DELTA, "frontiers": frontiers}


def thresholds(n: int, seeds: int, fast: bool) -> dict[str, Any]:
    """`GroupThresholds` on the first rows of Adult's training records, by slack."""
    train, test = dpjax.datasets.adult().split(test=0.25, seed=0)
    data, held_out = jax.tree.map(jnp.asarray, (train.as_dict(), test.as_dict()))
    data = jax.tree.map(lambda a: a[:n], data)

    def gap(predicted: jax.Array, group: jax.Array) -> jax.Array:
        rates = [jnp.mean(predicted, where=group == z) for z in (0, 1)]
        return jnp.abs(rates[1] - rates[0])

    @jax.jit
    def one(training: Any, solver: Any, slack: jax.Array, key: jax.Array) -> tuple[jax.Array, ...]:
        problem = dpjax.problems.RateConstrained.linear(train.num_features, 2, parity(slack))
        keys = jax.random.split(key)
        params = dpjax.solve(training, problem, data, key=keys[0]).params
        model = dpjax.solvers.TrainedModel(problem, params)
        chosen = dpjax.solve(solver, model, data, key=keys[1]).params
        predicted = [
            solver.predict(problem, chosen, part["x"], part["group"]) for part in (held_out, data)
        ]
        error = jnp.mean(predicted[0] != held_out["y"])
        return error, gap(predicted[0], held_out["group"]), gap(predicted[1], data["group"])

    problem = dpjax.problems.RateConstrained.linear(train.num_features, 2, parity(0.05))
    points = []
    for epsilon in (1.0,) if fast else EPSILONS:
        budget = dpjax.Budget(epsilon, DELTA)
        solver = dpjax.solvers.GroupThresholds.for_budget(problem, n, budget)
        training = solver.training(problem, n, budget, steps=50 if fast else 1000)
        both = dpjax.privacy.compose_guarantees(training.guarantee(), solver.guarantee())
        told = {"epsilon": epsilon, "accounted": both.epsilon(DELTA)}
        for slack in PARITY_SLACKS[-1:] if fast else PARITY_SLACKS:
            runs = [
                one(training, solver, jnp.asarray(slack), key)
                for key in jax.random.split(jax.random.key(2024), seeds)
            ]
            points.append({**told, **point(slack, runs)})
    return {"num_train": n, "seeds": seeds, "private": points, "non_private": []}


def defaults() -> dict[str, Any]:
    """Training and thresholds on 3,000 rows."""
    problem = dpjax.problems.RateConstrained.linear(98, 2, parity(0.05))
    budget = dpjax.Budget(1.0, DELTA)
    solver = dpjax.solvers.GroupThresholds.for_budget(problem, SIZES[0], budget)
    return {"training": solver.training(problem, SIZES[0], budget), "thresholds": solver}


def summary(result: dict[str, Any]) -> str:
    """Markdown table of two slacks a size."""
    shown = {name: titled for name, titled in SHOWN.items() if name in result["frontiers"]}
    return fair_frontiers.readme(result["frontiers"], shown, EPSILONS)
