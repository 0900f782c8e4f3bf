"""Least squares on an l1 ball of a million coordinates, private, from 10^5 records in one pass.

Features are uniform signs, one bit each (12.5 GB; `PackedSigns`), so that the data fit in memory.
Beside the whole run it times what no method could avoid: one pass over the same data at memory
bandwidth, and the solver's own updates and draws, measured by the same run on batches of one
record. Peak memory is that of the process.
"""

import functools
import resource
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks.vertex_reference import squared
from dpjax.geometry import L1Ball
from dpjax.problems import SimplexRisk
from dpjax.solvers import SaddleMirrorDescent
from dpjax.transforms import PackedSigns

BUDGET = dpjax.Budget(1.0, 1e-6, "replace_one")
NOISE = 0.1
RADIUS = 1.0


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Seconds of a run and of its parts; `fast` takes 10^4 coordinates and 10^3 records."""
    del data
    n, dim, repeats = (1_000, 10_000, 1) if fast else (100_000, 1_000_000, 3)
    records, optimum = make(n, dim, seed=1)
    problem = regression(dim)
    solver = SaddleMirrorDescent.for_budget(problem, n, BUDGET, output="played", order="given")
    bare = SaddleMirrorDescent(
        dpjax.sampling.DisjointPartition(solver.sampler.steps, 1, "given"),
        solver.step_size,
        solver.grad_range,
    )

    def private(key: jax.Array) -> Any:
        return dpjax.solve(solver, problem, records, key=key, progress=False).params

    def updates(key: jax.Array) -> Any:
        return dpjax.solve(bare, problem, records, key=key, progress=False).params

    reading = jax.jit(lambda words: jnp.bitwise_xor.reduce(words, axis=None))
    seconds: dict[str, list[float]] = {"run": [], "pass over the data": [], "updates alone": []}
    risks = []
    for repeat in range(repeats + 1):  # the first, which compiles, is not kept
        keys = jax.random.split(jax.random.key(repeat), 2)
        calls = {
            "run": functools.partial(private, keys[0]),
            "pass over the data": lambda: reading(records["x"].words),
            "updates alone": functools.partial(updates, keys[1]),
        }
        for name, call in calls.items():
            start = time.perf_counter()
            out = jax.block_until_ready(call())
            if repeat:
                seconds[name].append(time.perf_counter() - start)
            if name == "run":
                risks.append(float(0.5 * np.sum((np.asarray(out, np.float64) - optimum) ** 2)))
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    return {
        "num_records": n,
        "dim": dim,
        "steps": solver.sampler.steps,
        "largest_batch": int(solver.sampler.sizes.max()),
        "epsilon": solver.guarantee().epsilon(BUDGET.delta),
        "seconds": medians,
        "all_seconds": seconds,
        "ratio": medians["run"] / (medians["pass over the data"] + medians["updates alone"]),
        "excess_risk": risks,
        "excess_risk_of_zero": float(0.5 * optimum @ optimum),
        "data_gigabytes": records["x"].words.nbytes / 1e9,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def defaults() -> dict[str, Any]:
    """The solver, on a thousand coordinates."""
    problem, options = regression(1_000), {"output": "played", "order": "given"}
    return {"played": SaddleMirrorDescent.for_budget(problem, 100_000, BUDGET, **options)}


def regression(dim: int) -> SimplexRisk:
    """Least squares on the ball; |<x, theta>| <= 1 and |y| <= 1.1 bound a record's gradient."""
    return SimplexRisk.linear(
        squared,
        L1Ball(dim, RADIUS),
        grad_range=2 * RADIUS * (2 * RADIUS + NOISE),
        smoothness=RADIUS**2,
        third_order=0.0,
    )


def make(n: int, dim: int, seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Records, and the optimum: five coordinates, squared norm 0.35."""
    rng = np.random.default_rng(seed)
    width = -(-dim // 32)
    words = aligned(n, width)
    rows = max(1, 2**24 // width)
    for first in range(0, n, rows):
        part = words[first : first + rows]
        part[:] = rng.integers(0, 2**32, part.shape, dtype=np.uint32)
    signs = PackedSigns(jnp.from_dlpack(words), dim)  # shares the memory
    optimum = np.zeros(dim)
    places = rng.choice(dim, 5, replace=False)
    optimum[places] = np.array([0.5, -0.2, 0.1, -0.1, 0.1])
    columns = np.asarray(signs.columns(jnp.asarray(places)))
    y = columns @ optimum[places] + NOISE * rng.uniform(-1, 1, n)
    return {"x": signs, "y": jnp.asarray(y, jnp.float32)}, optimum


def aligned(n: int, width: int) -> np.ndarray:
    """An array that JAX on CPU can share: it starts on a cache line."""
    raw = np.empty(n * width * 4 + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n * width * 4].view(np.uint32).reshape(n, width)


def summary(result: dict[str, Any]) -> str:
    """One table."""
    seconds = result["seconds"]
    lines = ["| part | seconds |", "|---|---|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in seconds.items()]
    lines += [
        "",
        f"{result['num_records']:,} records of {result['dim']:,} features; {result['ratio']:.2f} "
        f"times pass and updates; excess risk {np.mean(result['excess_risk']):.4f} of "
        f"{result['excess_risk_of_zero']:.3f}; peak memory {result['peak_gigabytes']:.1f} GB for "
        f"{result['data_gigabytes']:.1f} GB of data",
    ]
    return "\n".join(lines)
