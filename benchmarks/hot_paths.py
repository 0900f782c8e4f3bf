"""Hot paths against their floors: DP-SGD steps, noise, draws of vertices, many seeds.

Every figure is a ratio of medians of calls that took turns in one process: the median of such
ratios in several rounds, each with programs compiled anew and memory of its own, and in brackets
the lowest and the highest. The floors:

- A step of DP-SGD: a step of SGD by `jax.grad` on 512 records drawn uniformly (`step_time` says
  more of both, and of "our product", in which XLA multiplies faster on CPU).
- A step whose noise is all its cost, on ten million parameters: `jax.random.normal` of as many,
  written to memory that is there already.
- A draw of vertices: a pass over the logits, for the largest and for the sum of exponentials.
  Where a draw is among both signs of each entry, over both; where a vector is made, zeros beside.
- Many seeds (64 on CPU, 4,096 elsewhere): one run of the same small problem, whose time is mostly
  the overhead of its steps.
"""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import dpjax
from benchmarks import _hot_path_tasks as tasks
from benchmarks import _runner
from benchmarks._text import table

ROUNDS = 5
ROUNDS_ON_ACCELERATOR = 1
GOALS = {"descent": 1.4, "noise": 1.3, "draws": 2.0, "seeds": 40.0}
_FLOORS = {
    "clip, Gaussian, SGD, rbg": "jax.random.normal, rbg",
    "clip, Gaussian, SGD, threefry4x32": "jax.random.normal, threefry4x32",
    "Maurey point of 16": "pass and zeros",
    "Frank-Wolfe, l1 ball": "pass over both signs",
    "signed query": "pass over both signs",
}


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Times of each path in the last round, and ratios in all of them."""
    del data
    paths = {"descent": _descent, "noise": _noise, "draws": _draws, "seeds": _seeds}
    rounds = []
    many = ROUNDS if jax.default_backend() == "cpu" else ROUNDS_ON_ACCELERATOR
    for _ in range(1 if fast else many):
        rounds.append({name: path(fast) for name, path in paths.items()})
        jax.clear_caches()
    result: dict[str, Any] = {"goals": GOALS, "rounds": len(rounds), **rounds[-1]}
    for name in paths:
        ratios = [each[name]["ratios"] for each in rounds]
        for key, summarise in (("ratios", statistics.median), ("lowest", min), ("highest", max)):
            result[name] = {**result[name], key: _leaf_by_leaf(summarise, *ratios)}
    return result


def _leaf_by_leaf(function: Callable[[list[Any]], Any], *trees: Any) -> Any:
    """`function` of the list of each leaf's values; dictionaries keep their order."""
    if isinstance(trees[0], dict):
        return {k: _leaf_by_leaf(function, *(tree[k] for tree in trees)) for k in trees[0]}
    return function(list(trees))


def _descent(fast: bool) -> dict[str, Any]:
    train, _ = dpjax.datasets.adult().split(test=0.25, seed=0)
    records = jax.tree.map(jnp.asarray, train.as_dict())
    sizes = {"Adult, 98 features": (records, 5 if fast else 500)}
    for num, width in () if fast else ((20_000, 1000), (10_000, 5000)):
        sizes[f"{width:,} features"] = (tasks.wide_records(num, width), 50)
    times = {
        name: _runner.measure(tasks.descent(*size), repeats=3 if fast else 11)
        for name, size in sizes.items()
    }
    ratios = {
        name: {
            "to SGD": _ratio(t, "DP-SGD", "SGD"),
            "to SGD, our product": _ratio(t, "DP-SGD", "SGD, our product"),
        }
        for name, t in times.items()
    }
    return {"seconds": times, "ratios": ratios}


def _noise(fast: bool) -> dict[str, Any]:
    dim, steps = (10**5, 2) if fast else (10**7, 4)
    times = _runner.measure(tasks.noise(dim, steps), repeats=3 if fast else 7)
    generators = {
        name: _ratio(times, f"jax.random.normal, {name}", "jax.random.normal")
        for name in tasks.other_generators()
    }
    ratios = _over_floors(times, "jax.random.normal")
    return {"dim": dim, "seconds": times, "ratios": ratios, "generators": generators}


def _draws(fast: bool) -> dict[str, Any]:
    counts = (1, 16) if fast else (1, 16, 256, 4096)
    times, ratios = {}, {}
    # the last number has no divisor near 32, and blocks that are no part of the vector
    for dim in (1000,) if fast else (10**5, 10**6, 10**7, 10**6 + 3):
        name = f"{dim:,}"
        times[name] = _runner.measure(tasks.draws(dim, counts), repeats=3 if fast else 25)
        ratios[name] = _over_floors(times[name], "pass")
    return {"seconds": times, "ratios": ratios}


def _seeds(fast: bool) -> dict[str, Any]:
    times, ratios = {}, {}
    for name, make in tasks.seeds(20 if fast else 200).items():
        if fast and name not in ("DPSGD", "FrankWolfe"):
            continue
        pair = dict(zip(("one", "many"), make(), strict=True))
        times[name] = _runner.measure(pair, repeats=3 if fast else 15)
        ratios[name] = _ratio(times[name], "many", "one")
    return {"seeds": tasks.num_seeds(), "seconds": times, "ratios": ratios}


def _over_floors(times: dict[str, Any], floor: str) -> dict[str, float]:
    floors = {floor, *_FLOORS.values()}
    return {
        name: _ratio(times, name, _FLOORS.get(name, floor)) for name in times if name not in floors
    }


def _ratio(times: dict[str, Any], name: str, floor: str) -> float:
    return times[name]["median"] / times[floor]["median"]


def readme(result: dict[str, Any]) -> str:
    """The ratios of all paths."""
    goals = result["goals"]
    descent = _cells(result["descent"])
    noise = _cells(result["noise"])
    others = ", ".join(f"{n} {r:.2f}" for n, r in result["noise"]["generators"].items())
    draws = _cells(result["draws"])
    names = list(next(iter(draws.values())))
    chosen = [[name, *(draws[dim][name] for dim in draws)] for name in names]
    parts = [
        f"Medians of {result['rounds']} rounds, with the lowest and the highest.",
        f"A step of DP-SGD at batch 512, over one of SGD (goal: {goals['descent']}):",
        table(
            ["linear model", "to SGD", "to SGD, our product"],
            [[name, *ratios.values()] for name, ratios in descent.items()],
        ),
        f"A step on {result['noise']['dim']:,} parameters, over `jax.random.normal` of as many "
        f"with the same generator (goal: {goals['noise']}):",
        table(["step", "ratio"], [list(row) for row in noise.items()]),
        f"Normals of other generators, over those of the default one: {others}.",
        f"Draws among d vertices, over a pass over their logits (goal: {goals['draws']:.0f}):",
        table(["draws", *(f"d = {dim}" for dim in draws)], chosen),
        f"{result['seeds']['seeds']:,} seeds under `vmap`, over one (goal for 64: "
        f"{goals['seeds']:.0f}):",
        table(["small problem", "ratio"], [list(row) for row in _cells(result["seeds"]).items()]),
    ]
    return "\n\n".join(parts)


def _cells(path: dict[str, Any]) -> Any:
    """`median (lowest to highest)` in place of each ratio."""
    return _leaf_by_leaf(
        lambda values: "{} ({} to {})".format(*(f"{value:.3g}" for value in values)),
        *(path[key] for key in ("ratios", "lowest", "highest")),
    )


def summary(result: dict[str, Any]) -> str:
    """As in the README, with the seconds of the floors."""
    floor = result["noise"]["seconds"]["jax.random.normal"]["median"]
    passes = {dim: t["pass"]["median"] for dim, t in result["draws"]["seconds"].items()}
    lines = [f"normals: {1e3 * floor:.1f} ms"]
    lines += [f"pass at d = {dim}: {1e3 * seconds:.3f} ms" for dim, seconds in passes.items()]
    return readme(result) + "\n\n" + "\n".join(lines)
