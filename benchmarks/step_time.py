"""Time of one step at batch 512 on Adult: plain SGD, DP-SGD, RaCO, and peers.

All run as one compiled scan over the same records and the same number of steps, in one process and
in turn; the figures are medians of whole scans divided by the number of steps. "SGD" draws 512
indices uniformly and takes an unclipped, noiseless step of the same model by `jax.grad`; "SGD, our
product" does the same with the sum of gradients written as in our clipping, which is faster on CPU.
The private methods draw Poisson batches of expected size 512. Peers take their own per-example path
on such batches (opacus: drawn by NumPy; its loop is not compiled, and it is timed after all others,
since idle threads of torch spin and would take the cores from them). Compiling is timed apart.

Beside steps, whole fits at epsilon 1 by default settings, with accuracy on test records: what
diffprivlib has is no step, but the minimiser of a perturbed objective under pure epsilon, on rows
scaled to norm 1.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks import _runner, _step_peers
from benchmarks._runner import Task
from benchmarks._text import table

PEERS = ("optax", "jax-privacy", "opacus", "diffprivlib")
BATCH = 512
EPSILON = 1.0


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Seconds a step of each method, the ratios that matter, and whole fits."""
    del data
    steps, repeats = (20, 3) if fast else (1000, 25)
    train, test = dpjax.datasets.adult().split(test=0.25, seed=0)
    records = jax.tree.map(jnp.asarray, train.as_dict())
    plain = _problem(train.num_features, parity=False)
    poisson = dpjax.sampling.PoissonSampler(BATCH / len(train), steps, len(train))
    tasks = {
        "SGD": _sgd(records, steps),
        "SGD, our product": _sgd(records, steps, factored=True),
        "DP-SGD (dpjax)": _solver(records, steps, parity=False),
        "RaCO (dpjax)": _solver(records, steps, parity=True),
        "RaCO, 18 constraints (dpjax)": _solver(records, steps, parity=True, groups=9),
        **_step_peers.jax_privacy(plain, poisson, records, BATCH),
        **_step_peers.optax_contrib(plain, poisson, records),
    }
    times = _runner.measure(tasks, repeats=repeats)
    fits = _fits(train, test, repeats=2 if fast else 7, seeds=1 if fast else 10)
    alone = _step_peers.opacus(records, 5 if fast else 100, BATCH)
    times |= _runner.measure(alone, repeats=repeats) if alone else {}
    median = {name: t["median"] for name, t in times.items()}
    return {
        "batch": BATCH,
        "num_records": len(train),
        "num_features": train.num_features,
        "steps": steps,
        "microseconds_per_step": {n: _runner.scaled(t, 1e6) for n, t in times.items()},
        "compiled": {
            name: {k: v for k, v in t.items() if k.endswith(("_seconds", "_bytes"))}
            for name, t in times.items()
        },
        "ratios": {
            "DP-SGD / SGD": median["DP-SGD (dpjax)"] / median["SGD"],
            "DP-SGD / SGD, our product": median["DP-SGD (dpjax)"] / median["SGD, our product"],
            "RaCO / DP-SGD": median["RaCO (dpjax)"] / median["DP-SGD (dpjax)"],
        },
        "fits": fits,
    }


def _problem(num_features: int, parity: bool, groups: int = 2) -> Any:
    con = dpjax.problems.demographic_parity(groups, 2, slack=0.05) if parity else None
    return dpjax.problems.RateConstrained.linear(num_features, 2, con)


def _sgd(records: Any, steps: int, *, factored: bool = False) -> Task:
    problem = _problem(records["x"].shape[1], parity=False)
    optimizer = optax.sgd(0.5)

    def gradient(params: Any, batch: Any) -> Any:
        if not factored:
            return jax.grad(problem.mean_loss)(params, batch)
        c = problem.cotangent(problem.logits(params, batch["x"]), batch) / BATCH
        columns = [c[:, k] @ batch["x"] for k in range(c.shape[1])]
        return {"w": jnp.stack(columns, axis=1), "b": c.sum(axis=0)}

    def scan(key: jax.Array, records: Any) -> Any:
        def body(carry: Any, step_key: jax.Array) -> tuple[Any, None]:
            params, state, average = carry
            rows = jax.random.randint(step_key, (BATCH,), 0, records["y"].shape[0])
            batch = jax.tree.map(lambda a: a[rows], records)
            updates, state = optimizer.update(gradient(params, batch), state, params)
            params = optax.apply_updates(params, updates)
            average = optax.incremental_update(params, average, 0.01)
            return (params, state, average), None

        start = (problem.init, optimizer.init(problem.init), problem.init)
        return jax.lax.scan(body, start, jax.random.split(key, steps))[0]

    return Task(scan, (jax.random.key(0), records), steps)


def _solver(records: Any, steps: int, *, parity: bool, groups: int = 2) -> Task:
    problem = _problem(records["x"].shape[1], parity, groups)
    num = records["y"].shape[0]
    kind = dpjax.solvers.RateConstrainedSGDA if parity else dpjax.solvers.DPSGD
    solver = kind.for_budget(problem, num, dpjax.Budget(1.0, 1e-5), batch_size=BATCH, steps=steps)
    if groups > 2:
        records = {**records, "group": jnp.arange(num, dtype=jnp.int32) % groups}
    return Task(_solve(solver, problem), (jax.random.key(0), records), steps)


def _solve(solver: Any, problem: Any) -> Callable[[jax.Array, Any], Any]:
    return lambda key, records: dpjax.solve(solver, problem, records, key=key).params


def _fits(train: Any, test: Any, *, repeats: int, seeds: int) -> list[dict[str, Any]]:
    """Whole fits at one epsilon: seconds, and accuracy on test records by seed."""
    records, unseen = train.as_dict(), test.as_dict()
    problem = _problem(train.num_features, parity=False)
    budget = dpjax.Budget(EPSILON, 1e-5)
    solver = dpjax.solvers.DPSGD.for_budget(problem, len(train), budget)
    solve = _solve(solver, problem)
    arrays = jax.tree.map(jnp.asarray, records)
    tasks = {"DP-SGD (dpjax)": Task(solve, (jax.random.key(0), arrays))}
    keys = jax.random.split(jax.random.key(1), seeds)
    fitted = jax.jit(jax.vmap(solve, in_axes=(0, None)))(keys, arrays)
    found = jax.vmap(problem.logits, in_axes=(0, None))(fitted, jnp.asarray(unseen["x"]))
    right = {"DP-SGD (dpjax)": np.asarray(found.argmax(-1)) == np.asarray(unseen["y"])}
    if (peer := _step_peers.diffprivlib(records, EPSILON)) is not None:
        fit, predict = peer
        name = "objective perturbation (diffprivlib)"
        tasks[name] = Task(fit, (0,), host=True)
        each = [predict(fit(seed), unseen["x"]) for seed in range(seeds)]
        right[name] = np.stack(each) == np.asarray(unseen["y"])
    return [
        {
            "method": name,
            "epsilon": EPSILON,
            "delta": 1e-5 if "dpjax" in name else 0.0,
            "seconds": times,
            "accuracy": right[name].mean(axis=1).tolist(),
        }
        for name, times in _runner.measure(tasks, repeats=repeats, warmup=1).items()
    ]


def readme(result: dict[str, Any]) -> str:
    """Markdown table of medians."""
    lines = ["| method | microseconds a step |", "|---|---|"]
    times = result["microseconds_per_step"]
    return "\n".join([*lines, *(f"| {name} | {t['median']:.0f} |" for name, t in times.items())])


def summary(result: dict[str, Any]) -> str:
    """Markdown tables and ratios."""
    compiled, rows = result.get("compiled", {}), []
    for name, t in result["microseconds_per_step"].items():
        spread = f"{t['median']:.1f} ({t['lower_quartile']:.1f} to {t['upper_quartile']:.1f})"
        took = compiled.get(name, {})
        rows.append(
            [name, spread, *(_three(took.get(k)) for k in ("trace_seconds", "compile_seconds"))]
        )
    parts = [table(["method", "microseconds a step (quartiles)", "s to trace", "to compile"], rows)]
    parts += [f"{name}: {value:.2f}" for name, value in result["ratios"].items()]
    if "fits" in result:
        parts.append(fits(result["fits"]))
    return "\n\n".join(parts)


def _three(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def fits(rows: list[dict[str, Any]]) -> str:
    """Markdown table of whole fits."""
    lines = []
    for row in rows:
        t, accuracy = row["seconds"], np.array(row["accuracy"])
        lines.append(
            [
                row["method"],
                f"{row['epsilon']:g}, {row['delta']:g}",
                f"{t['median']:.3f} ({t['lower_quartile']:.3f} to {t['upper_quartile']:.3f})",
                f"{accuracy.mean():.4f} ({accuracy.min():.4f} to {accuracy.max():.4f})",
            ]
        )
    head = ["whole fit", "epsilon, delta", "seconds (quartiles)", "test accuracy (range)"]
    return table(head, lines)
