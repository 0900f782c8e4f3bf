"""Cost of drawing a batch: every sampler, beside a gather of its rows and the naive Poisson draw.

Microseconds a batch of expected size b from n records. Poisson samplers run in a compiled loop over
a few batches, each drawn by itself; `"host"` draws with NumPy before. Partitions make all n / b
batches at once, by a sort of all records, and are charged a batch's share of it. "Gather" reads the
rows of such a batch, 100 numbers each, from a table of at most a million rows, which no cache
holds, and sums them. "Bernoulli" is `jax.random.bernoulli(key, b / n, [n])`, a mask of all records;
"Bernoulli, indices" also finds its members, as a gather needs them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _runner
from benchmarks._text import table
from dpjax.sampling import (
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    PoissonSampler,
    TaperedPartition,
    default_capacity,
)

SIZES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
BATCHES = (64, 512, 4_096)
BATCHES_A_CALL = 16
RUN = 1_000  # steps that slots are made for
MOST_SORTED = 1_000_000
MOST_SEARCHED = 10_000_000
WIDTH, ROWS = 100, 1_000_000
GATHER = "gather"


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Microseconds a batch of all of them, by n and b."""
    del data
    sizes, batches = ((10_000,), (64,)) if fast else (SIZES, BATCHES)
    rows = []
    for n in sizes:
        x = jax.random.normal(jax.random.key(1), (min(n, ROWS), WIDTH))
        for batch in batches:
            rows += _rows(n, batch, x, repeats=3 if fast or n > 10**7 else 7)
    return {"width": WIDTH, "rows": rows}


def _rows(n: int, batch: int, x: jax.Array, *, repeats: int) -> Iterator[dict[str, Any]]:
    rate, capacity = batch / n, default_capacity(n, batch / n, RUN)
    measured = _runner.measure(_tasks(n, rate, capacity, x), repeats=repeats)
    gather = measured[GATHER]["median"]
    for name, times in measured.items():
        yield {
            "n": n,
            "batch": batch,
            "sampler": name,
            "capacity": capacity,
            "microseconds_per_batch": _runner.scaled(times, 1e6),
            "ratio_to_gather": times["median"] / gather,
            **{k: v for k, v in times.items() if k.endswith(("_seconds", "_bytes"))},
        }


def _tasks(n: int, rate: float, capacity: int, x: jax.Array) -> dict[str, _runner.Task]:
    key = jax.random.key(0)
    batch, few = round(n * rate), max(1, min(BATCHES_A_CALL, 10**7 // n))

    def poisson(method: str, overflow: str = "declare") -> PoissonSampler:
        return PoissonSampler(rate, BATCHES_A_CALL, n, capacity, method, overflow)

    host = poisson("host")
    gaps = poisson("gaps")
    rows = np.random.default_rng(0).integers(0, len(x), (BATCHES_A_CALL, capacity), np.int32)
    tasks = {
        GATHER: _runner.Task(_gather, (x, jnp.asarray(np.sort(rows))), BATCHES_A_CALL),
        "Poisson, gaps": _drawn(gaps, n, key),
        "Poisson, gaps, truncate": _drawn(poisson("gaps", "truncate"), n, key),
        "Poisson, host": _runner.Task(lambda: host.plan(key, n), (), BATCHES_A_CALL, host=True),
        "Bernoulli": _runner.Task(_bernoulli(n, rate, few), (key,), few),
        "full batch": _runner.Task(lambda step: FullBatch(1).batch(step, n)[1], (jnp.int32(0),)),
    }
    if n <= MOST_SEARCHED:
        found = _bernoulli(n, rate, few, capacity)
        tasks["Bernoulli, indices"] = _runner.Task(found, (key,), few)
    if n <= MOST_SORTED:
        steps = n // batch
        tasks["disjoint, random order"] = _drawn(DisjointPartition(steps, batch), n, key)
        tasks["disjoint, given order"] = _drawn(DisjointPartition(steps, batch, "given"), n, key)
        tasks["disjoint, tapered"] = _drawn(TaperedPartition(steps, n), n, key)
        tasks["independent"] = _drawn(IndependentPartition(steps, n), n, key)
    return tasks


def _drawn(sampler: Any, n: int, key: jax.Array) -> _runner.Task:
    """All batches of a sampler, plan included; a checksum keeps them from being left out."""

    def draw(key: jax.Array) -> jax.Array:
        def body(total: jax.Array, x: Any) -> tuple[jax.Array, None]:
            indices, mask = sampler.batch(x, n)
            return total + jnp.where(mask, indices, 0).sum(dtype=jnp.uint32), None

        return jax.lax.scan(body, jnp.zeros((), jnp.uint32), sampler.plan(key, n))[0]

    return _runner.Task(draw, (key,), sampler.steps)


def _gather(x: jax.Array, batches: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda sum_, rows: (sum_ + x[rows].sum(0), None), x[0], batches)[0]


def _bernoulli(
    n: int, rate: float, count: int, capacity: int | None = None
) -> Callable[[jax.Array], jax.Array]:
    def draw(key: jax.Array) -> jax.Array:
        def body(total: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
            mask = jax.random.bernoulli(jax.random.fold_in(key, step), rate, (n,))
            if capacity is None:
                return total + mask.sum(dtype=jnp.uint32), None
            indices = jnp.nonzero(mask, size=capacity, fill_value=0)[0]
            return total + indices.sum(dtype=jnp.uint32), None

        return jax.lax.scan(body, jnp.zeros((), jnp.uint32), jnp.arange(count))[0]

    return draw


def readme(result: dict[str, Any]) -> str:
    """A table a batch size: microseconds a batch by n."""
    batches = dict.fromkeys(r["batch"] for r in result["rows"])
    return "\n\n".join(
        _of_batch([r for r in result["rows"] if r["batch"] == b], b) for b in batches
    )


def _of_batch(rows: list[dict[str, Any]], batch: int) -> str:
    sizes = list(dict.fromkeys(r["n"] for r in rows))
    found = {(r["sampler"], r["n"]): r["microseconds_per_batch"]["median"] for r in rows}
    lines = [
        [name, *[f"{found[name, n]:.4g}" if (name, n) in found else "" for n in sizes]]
        for name in dict.fromkeys(r["sampler"] for r in rows)
    ]
    return table([f"microseconds a batch of {batch:,}", *[f"n = {n:,}" for n in sizes]], lines)


summary = readme


def plot(result: dict[str, Any]) -> Path:
    """Microseconds a batch against n, a panel a batch size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    batches = list(dict.fromkeys(r["batch"] for r in result["rows"]))
    figure, axes = pyplot.subplots(
        1, len(batches), figsize=(4.5 * len(batches) + 2, 4), sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, batch in zip(axes[0], batches, strict=True):
        rows = [r for r in result["rows"] if r["batch"] == batch]
        for name in dict.fromkeys(r["sampler"] for r in rows):
            mine = [r for r in rows if r["sampler"] == name]
            times = [r["microseconds_per_batch"]["median"] for r in mine]
            style = {"color": "black", "linestyle": "--"} if name == GATHER else {}
            axis.plot([r["n"] for r in mine], times, marker=".", label=name, **style)
        axis.set(xscale="log", yscale="log", xlabel="n", title=f"batch of {batch:,}")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("microseconds a batch")
    axes[0][-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    path = _runner.RESULTS / "sampling_cost.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
