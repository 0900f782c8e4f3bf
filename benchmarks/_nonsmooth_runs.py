"""What the study of nonsmooth nonconvex problems shares: many runs at once, and their measures."""

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks._nonsmooth_instances import Instance, accuracy

DELTA = 1e-5
RADIUS = 0.1
MOST_WORK = 2e10  # records times parameters times points, in a run


class Seeds(NamedTuple):
    """A problem and its runs: starts and keys `[S, ...]`; data `[S, n, ...]`, or one set for all.

    Attributes:
      problem: Of the first instance.
      starts: Parameters to start from.
      data: Records.
      test: Held-out records, or None.
      keys: One a run.
      own: Whether each run has data of its own.
    """

    problem: Any
    starts: Any
    data: Any
    test: Any
    keys: jax.Array
    own: bool

    @property
    def num_records(self) -> int:
        return int(jax.tree.leaves(self.data)[0].shape[1 if self.own else 0])


def drawn(make: Callable[[int], Instance], seeds: int) -> Seeds:
    """Instances of their own for all runs."""
    made = [make(seed) for seed in range(seeds)]
    starts, data = (
        jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(a) for a in leaves]), *trees)
        for trees in ([m.problem.init for m in made], [m.train for m in made])
    )
    return Seeds(made[0].problem, starts, data, None, _keys(seeds), True)


def fixed(instance: Instance, seeds: int) -> Seeds:
    """One instance for all runs."""
    init = instance.problem.init
    starts = jax.tree.map(lambda a: jnp.broadcast_to(a, (seeds, *a.shape)), init)
    data, test = jax.tree.map(jnp.asarray, (instance.train, instance.test))
    return Seeds(instance.problem, starts, data, test, _keys(seeds), False)


def _keys(seeds: int) -> jax.Array:
    return jax.random.split(jax.random.key(0), seeds)


def train(solver: Any, seeds: Seeds) -> Any:
    """Parameters `[S, ...]`; compiled once for all values of the solver's data."""
    return _train(solver, seeds.problem, seeds.starts, seeds.data, seeds.keys, seeds.own)


def train_rates(solver: Any, seeds: Seeds, rates: Any) -> Any:
    """Parameters `[R, S, ...]` at learning rates `[R]`."""
    rates = jnp.asarray(rates, jnp.float32)
    return _train_rates(
        solver, seeds.problem, rates, seeds.starts, seeds.data, seeds.keys, seeds.own
    )


def _each(solver: Any, problem: Any, starts: Any, data: Any, keys: jax.Array, own: bool) -> Any:
    def one(start: Any, data: Any, key: jax.Array) -> Any:
        placed = dataclasses.replace(problem, init=start)
        return dpjax.solve(solver, placed, data, key=key).params

    return jax.vmap(one, in_axes=(0, 0 if own else None, 0))(starts, data, keys)


_train = jax.jit(_each, static_argnums=5)


@functools.partial(jax.jit, static_argnums=6)
def _train_rates(
    solver: Any, problem: Any, rates: jax.Array, starts: Any, data: Any, keys: Any, own: bool
) -> Any:
    def one(rate: jax.Array) -> Any:
        swept = dataclasses.replace(solver, learning_rate=rate)
        return _each(swept, problem, starts, data, keys, own)

    return jax.vmap(one)(rates)


def losses(params: Any, seeds: Seeds) -> np.ndarray:
    """Mean loss of each run, `[S]`."""
    return np.asarray(_losses(seeds.problem, params, seeds.data, seeds.own))


@functools.partial(jax.jit, static_argnums=3)
def _losses(problem: Any, params: Any, data: Any, own: bool) -> jax.Array:
    if own:
        return jax.lax.map(lambda at: problem.mean_loss(*at), (params, data))
    return jax.lax.map(lambda p: problem.mean_loss(p, data), params)


def _loss(params: Any, problem: Any, data: Any) -> jax.Array:
    return problem.mean_loss(params, data)


def goldstein(params: Any, seeds: Seeds, samples: int, radius: float = RADIUS) -> np.ndarray:
    """Measured Goldstein norms, `[S]`, each from twice `samples` gradients of all records."""
    rows = [jax.tree.map(lambda a, i=i: a[i], params) for i in range(len(seeds.keys))]
    norms = []
    for i, row in enumerate(rows):
        data = jax.tree.map(lambda a, i=i: a[i], seeds.data) if seeds.own else seeds.data
        found = dpjax.audit.goldstein_norm(
            _loss,
            row,
            radius,
            key=jax.random.key(i),
            args=(seeds.problem, data),
            num_samples=samples,
            num_enriched=samples,
        )
        norms.append(float(found.upper))
    return np.array(norms)


def work(solver: Any, seeds: Seeds) -> float:
    """Records times parameters times points where they are evaluated, in one run."""
    sampler = solver.sampler
    slots = getattr(sampler, "capacity", None) or getattr(sampler, "batch_size", None)
    points = getattr(solver, "num_directions", 1) * (2 if solver.oracle == "zeroth" else 1)
    period, part = solver.noise.num_steps, solver.difference_batch_size
    size = seeds.num_records if slots is None else slots
    later = 2 * (period - 1) * (size if part is None else part)
    return float(sampler.steps * (size + later) * points * seeds.problem.num_params)


def score(params: Any, seeds: Seeds, samples: int) -> dict[str, Any]:
    """Means and standard errors of what is reported of runs."""
    values = {"loss": losses(params, seeds), "goldstein": goldstein(params, seeds, samples)}
    if seeds.test is not None:
        values["accuracy"] = np.asarray(jax.lax.map(lambda p: accuracy(p, seeds.test), params))
    found: dict[str, Any] = {"seeds": len(seeds.keys)}
    for name, column in values.items():
        found |= summarised(name, column)
    return found


def summarised(name: str, column: Any) -> dict[str, float]:
    """Mean and standard error."""
    column = np.asarray(column, float)
    error = column.std(ddof=1) / len(column) ** 0.5 if len(column) > 1 else 0.0
    return {name: float(column.mean()), f"{name}_error": float(error)}


def emit(table: str, row: dict[str, Any], started: float | None = None) -> dict[str, Any]:
    """The row, printed at once as a line of JSON, so that nothing is lost with a killed run."""
    if started is not None:
        row = row | {"seconds": round(time.perf_counter() - started, 2)}
    print(json.dumps({"table": table} | row), flush=True)
    return row


def slope(x: Any, y: Any) -> float | None:
    """Of log y over log x by least squares; None where fewer than two values are positive."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    kept = (x > 0) & (y > 0)
    if len(set(x[kept])) < 2:
        return None
    return float(np.polyfit(np.log(x[kept]), np.log(y[kept]), 1)[0])
