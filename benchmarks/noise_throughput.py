"""Noise per second: every noise transformation and strategy against the generator's own limit.

A step adds its noise to a vector of d numbers, in a compiled loop of a few steps; the limits are
the same loop over `jax.random.normal` and `jax.random.bits` (32 bits a number) with a key folded
from the step. Correlated noise is made for 1,024 steps, of which the first few run: for a
variance-reduced tree somewhat cheaper ones than the mean. By generator of the key: `threefry2x32`,
JAX's default, and `rbg`, made for accelerators, whose draws change with the machine and the
compiler. All in turn within a generator and d; data and keys are arguments. Independent noise that
guarantees rest on is measured again in five rounds at the largest d, each with programs compiled
anew and memory of its own.
"""

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import _runner
from benchmarks._text import table
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    RestartNoise,
    SplitNoise,
    add_discrete_gaussian,
    add_gaussian,
    add_laplace,
    add_rounded_gaussian,
    correlated_noise,
    tree_aggregation,
)

GENERATORS = ("threefry2x32", "rbg")
# steps of a loop, by d; an accelerator is not for short vectors
STEPS = {1_000: 256, 10_000: 64, 100_000: 16, 1_000_000: 4, 10_000_000: 2}
STEPS_ON_ACCELERATOR = {100_000: 64, 10_000_000: 16}
MADE_FOR = 1_024
NORMAL, BITS = "jax.random.normal", "jax.random.bits"
# noise that takes and returns integers; rounded noise sums more draws from deviation 430 on
INTEGERS = ("add_discrete_gaussian", "add_rounded_gaussian")
ROUNDS = 5
ROUNDS_ON_ACCELERATOR = 2
AGAIN = ("add_gaussian", *(f"add_rounded_gaussian, {size}" for size in ("10", "1e3", "1e6")))


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Nanoseconds a coordinate of all of them, and ratios to the limits."""
    del data
    full = STEPS if jax.default_backend() == "cpu" else STEPS_ON_ACCELERATOR
    steps, repeats = ({1_000: 4}, 3) if fast else (full, 9)
    rows = []
    for generator in GENERATORS:
        noises = transforms()
        if fast and generator != GENERATORS[0]:
            noises = {name: noises[name] for name in ("add_gaussian", "add_laplace")}
        for dim, count in steps.items():
            rows += _rows(generator, noises, dim, count, repeats=repeats)
    many = ROUNDS if jax.default_backend() == "cpu" else ROUNDS_ON_ACCELERATOR
    dim, number = max(steps), 2 if fast else many
    generators = GENERATORS[:1] if fast else GENERATORS
    rounds = [_again(generator, dim, steps[dim], number) for generator in generators]
    return {"made_for": MADE_FOR, "rows": rows, "rounds": rounds}


def _again(generator: str, dim: int, steps: int, rounds: int) -> dict[str, Any]:
    """Ratios to normal draws of one generator: median, least and largest of so many rounds."""
    noises = {name: noise for name, noise in transforms().items() if name in AGAIN}
    found: dict[str, list[float]] = {name: [] for name in noises}
    for _ in range(rounds):
        for row in _rows(generator, noises, dim, steps, repeats=3):
            if row["noise"] in found:
                found[row["noise"]].append(row["ratio_to_normal"])
        jax.clear_caches()
    return {
        "generator": generator,
        "dim": dim,
        "rounds": rounds,
        "ratios": {
            name: {"median": statistics.median(each), "least": min(each), "largest": max(each)}
            for name, each in found.items()
        },
    }


def _rows(
    generator: str, noises: dict[str, Any], dim: int, steps: int, *, repeats: int
) -> Iterator[dict[str, Any]]:
    key = jax.random.key(0, impl=generator)
    total, counts = jnp.zeros(dim), jnp.zeros(dim, jnp.int32)
    tasks = {
        NORMAL: _runner.Task(_limit(_normal, steps), (total, key), steps),
        BITS: _runner.Task(_limit(_bits, steps), (counts.astype(jnp.uint32), key), steps),
    }
    for name, transform in noises.items():
        updates = counts if name.startswith(INTEGERS) else total
        stage = optax.with_extra_args_support(transform)
        state = jax.tree.map(jnp.array, stage.init(updates))
        tasks[name] = _runner.Task(_loop(stage, steps), (updates, updates, state, key), steps)
    large = dim > 10**6
    measured = _runner.measure(
        tasks, repeats=min(repeats, 5) if large else repeats, warmup=1 if large else 2
    )
    for name, times in measured.items():
        yield {
            "generator": generator,
            "dim": dim,
            "noise": name,
            "steps": steps,
            "nanoseconds_per_coordinate": _runner.scaled(times, 1e9 / dim),
            "coordinates_per_second": dim / times["median"],
            "ratio_to_normal": times["median"] / measured[NORMAL]["median"],
            "ratio_to_bits": times["median"] / measured[BITS]["median"],
            **{k: v for k, v in times.items() if k.endswith(("_seconds", "_bytes"))},
        }


def transforms() -> dict[str, Any]:
    """Every transformation that adds noise, and every strategy of correlated noise."""
    return {
        "add_gaussian": add_gaussian(1.0),
        "add_laplace": add_laplace(1.0),
        "add_discrete_gaussian": add_discrete_gaussian(10.0),
        "add_rounded_gaussian, 10": add_rounded_gaussian(10.0),
        "add_rounded_gaussian, 1e3": add_rounded_gaussian(1e3),
        "add_rounded_gaussian, 1e6": add_rounded_gaussian(1e6),
        "BufferedToeplitz": correlated_noise(BufferedToeplitz(MADE_FOR)),
        "BinaryTree": correlated_noise(BinaryTree(MADE_FOR)),
        "BinaryTree, variance reduced": correlated_noise(
            BinaryTree(MADE_FOR, variance_reduced=True)
        ),
        "BinaryTree, pure, l2": correlated_noise(BinaryTree(MADE_FOR, distribution="l2")),
        "BinaryTree, pure, linf": correlated_noise(BinaryTree(MADE_FOR, distribution="linf")),
        "RestartNoise of BufferedToeplitz": correlated_noise(
            RestartNoise(BufferedToeplitz(MADE_FOR))
        ),
        "SplitNoise": correlated_noise(SplitNoise(MADE_FOR)),
        "tree_aggregation": tree_aggregation(1.0, MADE_FOR),
    }


def _normal(key: jax.Array, total: jax.Array) -> jax.Array:
    return jax.random.normal(key, total.shape, total.dtype)


def _bits(key: jax.Array, total: jax.Array) -> jax.Array:
    return jax.random.bits(key, total.shape, total.dtype)


def _limit(draw: Callable[..., jax.Array], steps: int) -> Callable[..., Any]:
    def many(total: jax.Array, key: jax.Array) -> jax.Array:
        def body(total: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
            return total + draw(jax.random.fold_in(key, step), total), None

        return jax.lax.scan(body, total, jnp.arange(steps))[0]

    return many


def _loop(stage: Any, steps: int) -> Callable[..., Any]:
    def many(total: jax.Array, updates: jax.Array, state: Any, key: jax.Array) -> Any:
        def body(carry: Any, _: None) -> tuple[Any, None]:
            total, state = carry
            noise, state = stage.update(updates, state, key=key)
            return (total + noise, state), None

        return jax.lax.scan(body, (total, state), None, length=steps)[0]

    return many


def readme(result: dict[str, Any]) -> str:
    """A table a generator: nanoseconds a coordinate, and times those of normal draws."""
    tables = [
        _of_generator([r for r in result["rows"] if r["generator"] == generator], generator)
        for generator in dict.fromkeys(r["generator"] for r in result["rows"])
    ]
    return "\n\n".join([*tables, _of_rounds(result.get("rounds", []))])


def _of_rounds(rounds: list[dict[str, Any]]) -> str:
    if not rounds:
        return ""
    one = rounds[0]
    head = [f"times normal draws, {one['rounds']} rounds, d = {one['dim']:,}"]
    head += [f"`{each['generator']}`" for each in rounds]
    lines = [
        [f"`{name}`", *[_range(each["ratios"][name]) for each in rounds]] for name in one["ratios"]
    ]
    return table(head, lines)


def _range(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['largest']:.2f})"


def _of_generator(rows: list[dict[str, Any]], generator: str) -> str:
    dims = list(dict.fromkeys(r["dim"] for r in rows))
    found = {(r["noise"], r["dim"]): r for r in rows}
    head = [f"`{generator}`: ns a coordinate (times normal draws)", *[f"d = {d:,}" for d in dims]]
    lines = [
        [f"`{name}`", *[_cell(found[name, d]) for d in dims]]
        for name in dict.fromkeys(r["noise"] for r in rows)
    ]
    return table(head, lines)


def _cell(row: dict[str, Any]) -> str:
    nanoseconds = row["nanoseconds_per_coordinate"]["median"]
    return f"{nanoseconds:.3g} ({row['ratio_to_normal']:.2f})"


summary = readme


def plot(result: dict[str, Any]) -> Path:
    """Nanoseconds a coordinate against d, a panel a generator."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4.5), sharey=True, layout="constrained")
    colours = pyplot.get_cmap("tab20").colors
    for axis, generator in zip(axes, GENERATORS, strict=True):
        axis.set_prop_cycle(color=colours)
        rows = [r for r in result["rows"] if r["generator"] == generator]
        for name in dict.fromkeys(r["noise"] for r in rows):
            mine = [r for r in rows if r["noise"] == name]
            times = [r["nanoseconds_per_coordinate"]["median"] for r in mine]
            style = {"color": "black", "linewidth": 2.5} if name in (NORMAL, BITS) else {}
            dashes = "--" if name == BITS else "-"
            axis.plot([r["dim"] for r in mine], times, dashes, marker=".", label=name, **style)
        axis.set(xscale="log", yscale="log", xlabel="d", title=generator)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("nanoseconds a coordinate")
    axes[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    path = _runner.RESULTS / "noise_throughput.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
