"""Hot paths against what the machine allows: bandwidth, products and generated words.

Each path states the least that it must do a step: bytes (what is larger than a cache read once,
what comes out written once), multiplications and additions of its products, and random words of
32 bits. Its bound is the largest of the three times at rates measured in the same process: a vector
of a gigabyte read and written, a product of square matrices of float32 at highest precision, and
Threefry's bits. "Of the bound" is bound over time: 1 is the best that can be. Programs are compiled
with their loop, and timed in turn.

Beside them: a short step in a loop whose bounds are data, as `solve` alone runs it, and in a
`lax.scan`, as within `jit`; and 4,096 small runs at once against one after another.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import dpjax
from benchmarks import _hot_path_tasks, _runner, _scaling_instances
from benchmarks._runner import Task
from benchmarks._text import table
from dpjax.geometry import sample_vertices

STEPS = 8


class Work(NamedTuple):
    """What is timed, and the least a step must do."""

    task: Task
    bytes: float = 0.0
    flops: float = 0.0
    words: float = 0.0


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Rates of the machine, and for each path its bound and time."""
    del data
    repeats = 2 if fast else 7
    rates = _rates(fast, repeats)
    rows = []
    for name, make in _PATHS.items():
        path = make(fast)
        times = _runner.measure({name: path.task}, repeats=repeats)[name]
        bounds = {
            "bytes": path.bytes / rates["bytes"],
            "flops": path.flops / rates["flops, highest"],
            "words": path.words / rates["words, threefry2x32"],
        }
        bound_by = max(bounds, key=lambda each: bounds[each])
        rows.append(
            {
                "path": name,
                "bytes": path.bytes,
                "flops": path.flops,
                "words": path.words,
                "bound_by": bound_by,
                "bound_seconds": bounds[bound_by],
                "of_bound": bounds[bound_by] / times["median"],
                **times,
            }
        )
        del path
        jax.clear_caches()
    return {"rates": rates, "rows": rows, "loops": _loops(fast), "sweep": _sweep(fast)}


def _rates(fast: bool, repeats: int) -> dict[str, float]:
    """A second, by large arrays."""
    size, side = (2**16, 128) if fast else (2**28, 8192 if _accelerated() else 1536)
    numbers, square = jnp.zeros(size), jax.random.normal(jax.random.key(1), (side, side))
    words = size // 4
    keys = {name: jax.random.key(0, impl=name) for name in ("threefry2x32", "rbg")}

    def product(precision: str) -> Task:
        return Task(lambda a: jnp.matmul(a, a, precision=precision), (square,))

    tasks = {
        "bytes": Task(
            lambda a: jax.lax.fori_loop(0, STEPS, lambda _, b: b + 1, a), (numbers,), STEPS
        ),
        "flops, highest": product("highest"),
        "flops, default": product("default"),
        **{
            f"words, {k}": Task(lambda k: jax.random.bits(k, (words,)), (v,))
            for k, v in keys.items()
        },
        **{
            f"normals, {k}": Task(lambda k: jax.random.normal(k, (words,)), (v,))
            for k, v in keys.items()
        },
    }
    units = {"bytes": 8 * size, "flops": 2 * side**3, "words": words, "normals": words}
    times = _runner.measure(tasks, repeats=repeats)
    return {name: units[name.split(",")[0]] / t["median"] for name, t in times.items()}


def _accelerated() -> bool:
    return jax.default_backend() != "cpu"


def _sizes(fast: bool, small: int, cpu: int, accelerator: int) -> int:
    return small if fast else accelerator if _accelerated() else cpu


def _solver(instance: Any) -> Task:
    return Task(_scaling_instances.program, (*instance[:3], jax.random.key(0)), STEPS)


def _narrow(fast: bool) -> Work:
    n, m, p = _sizes(fast, 2**10, 2**15, 2**19), _sizes(fast, 32, 2**10, 2**13), 1024
    made = _scaling_instances.dpsgd(n=n, m=m, p=p, c=2, T=STEPS)
    return Work(_solver(made), bytes=4.0 * m * p, flops=8.0 * m * p, words=4.0 * p)


def _classes(fast: bool) -> Work:
    m, p = _sizes(fast, 32, 2**10, 2**13), _sizes(fast, 32, 256, 1024)
    made = _scaling_instances.dpsgd(n=8 * m, m=m, p=p, c=p, T=STEPS)
    return Work(_solver(made), bytes=4.0 * m * p, flops=4.0 * m * p * p, words=1.0 * p * p)


def _full_batch(build: Any) -> Any:
    def make(fast: bool) -> Work:
        n, p = _sizes(fast, 2**8, 2**17, 2**20), 256
        made = build(n=n, p=p, T=STEPS)
        return Work(_solver(made), bytes=4.0 * n * p, flops=4.0 * n * p)

    return make


def _noise(name: str, arrays: int, words: float = 1.0) -> Any:
    def make(fast: bool) -> Work:
        dim = _sizes(fast, 10**4, 10**7, 10**8)
        task = _hot_path_tasks.noise(dim, STEPS)[name]
        return Work(task, bytes=4.0 * arrays * dim, words=words * dim)

    return make


def _draw(count: int) -> Any:
    def make(fast: bool) -> Work:
        dim = _sizes(fast, 10**4, 10**7, 10**8)
        logits = 3 * jax.random.normal(jax.random.key(1), (dim,))
        task = Task(lambda key, u: sample_vertices(key, u, count), (jax.random.key(0), logits))
        return Work(task, bytes=4.0 * dim)

    return make


def _counts(fast: bool) -> Work:
    n, a = _sizes(fast, 2**8, 2**18, 2**22), 16
    domain = dpjax.queries.Domain({f"x{i}": 8 for i in range(a)})
    workload = dpjax.queries.Marginals.all_kway(domain, 2)
    codes = jax.random.randint(jax.random.key(1), (n, a), 0, 8, jnp.int32)
    return Work(Task(workload.answers_of_records, (codes,)), bytes=4.0 * n * a)


def _cells(which: str) -> Any:
    def make(fast: bool) -> Work:
        a = _sizes(fast, 8, 20, 24)
        workload = dpjax.queries.Marginals.all_kway(
            dpjax.queries.Domain({f"x{i}": 2 for i in range(a)}), 3
        )
        size = workload.universe_size if which == "answers" else workload.num_queries
        given = jnp.full(size, 1 / size)
        return Work(Task(getattr(workload, which), (given,)), bytes=4.0 * workload.universe_size)

    return make


def _fit(fast: bool) -> Work:
    made = _scaling_instances.gaussian_fit(n=2**14, a=_sizes(fast, 4, 10, 12), w=2, E=STEPS)
    # an evaluation reads the parameters, writes shares, reads them, and writes a gradient
    return Work(_solver(made), bytes=16.0 * made.sizes["k"])


_PATHS = {
    "DP-SGD, rows of 1,024": _narrow,
    "DP-SGD, a class for each feature": _classes,
    "Frank-Wolfe, all records": _full_batch(_scaling_instances.frank_wolfe),
    "OnlineToBatch, all records": _full_batch(_scaling_instances.online_to_batch),
    "clip, Gaussian noise, SGD": _noise("clip, Gaussian, SGD", 4),
    "Toeplitz noise, SGD": _noise("Toeplitz, SGD", 3),
    "tree aggregation": _noise("tree aggregation", 3),
    "clip, Gaussian noise, SGD, rbg": _noise("clip, Gaussian, SGD, rbg", 4, 0.0),
    "a vertex": _draw(1),
    "256 vertices": _draw(256),
    "2-way tables of 16 columns": _counts,
    "3-way answers of cells": _cells("answers"),
    "3-way adjoint to cells": _cells("adjoint"),
    "GaussianFit, an evaluation": _fit,
}


def _loops(fast: bool) -> dict[str, float]:
    """Seconds of a short step, by what compiles the loop: of long runs less short ones."""
    counts, key = ((8, 16) if fast else (256, 2048)), jax.random.key(0)
    scan, calls = jax.jit(_scaling_instances.program), {}
    for steps in counts:
        given = _scaling_instances.dpsgd(n=4096, m=64, p=16, c=2, T=steps)[:3]
        calls[f"solve, {steps}"] = functools.partial(_scaling_instances.program, *given, key)
        calls[f"solve within jit, {steps}"] = functools.partial(scan, *given, key)
    times = _runner.interleaved(calls, repeats=3 if fast else 11)
    short, long = counts
    return {
        name: (times[f"{name}, {long}"]["median"] - times[f"{name}, {short}"]["median"])
        / (long - short)
        for name in ("solve", "solve within jit")
    }


def _sweep(fast: bool) -> dict[str, float]:
    """Seconds of one run, and of 4,096 at once."""
    runs, steps = (8, 8) if fast else (4096, 64)
    made = _scaling_instances.dpsgd(n=4096, m=64, p=16, c=2, T=steps)
    keys = jax.random.split(jax.random.key(0), runs)
    times = _runner.measure(
        {
            "one": Task(_scaling_instances.program, (*made[:3], keys[0])),
            "all": Task(_scaling_instances.programs, (*made[:3], keys)),
        },
        repeats=3,
    )
    one, many = times["one"]["median"], times["all"]["median"]
    return {"runs": runs, "one": one, "all": many, "times_faster": runs * one / many}


def readme(result: dict[str, Any]) -> str:
    """Rates, and a row a path."""
    rates = ", ".join(f"{name} {rate:.3g}" for name, rate in result["rates"].items())
    rows = [
        [
            row["path"],
            row["bound_by"],
            f"{1e3 * row['bound_seconds']:.3g}",
            f"{1e3 * row['median']:.3g}",
            f"{row['of_bound']:.2f}",
            f"{row['compile_seconds']:.1f}",
        ]
        for row in result["rows"]
    ]
    loops = ", ".join(f"{name} {1e6 * t:.0f}" for name, t in result["loops"].items())
    sweep = result["sweep"]
    head = ["path", "bound by", "bound, ms", "measured, ms", "of the bound", "compiled in s"]
    return "\n\n".join(
        [
            f"A second: {rates}.",
            table(head, rows),
            f"A short step, in microseconds: {loops}. {sweep['runs']:,} small runs at once: "
            f"{sweep['times_faster']:.0f} times faster than one after another.",
        ]
    )


summary = readme
