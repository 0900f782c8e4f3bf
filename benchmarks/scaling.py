"""Time and memory of every solver against each of its sizes, beside what the cost model says.

Runs differ from a base point in one size at a time. Slopes are of log seconds (or bytes) of whole
runs against the log of what grows, fitted over the three largest sizes; beside them the least and
the largest slope between two neighbours of these, and the slope that the model of
`docs/cost_model.md` gives at the same sizes, from rates measured in the same process. Memory is
what the compiler plans: arguments, results and temporaries.
"""

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import _runner, _scaling_instances, _scaling_machine, _scaling_rounding
from benchmarks import _scaling_model as model
from benchmarks._runner import Task
from benchmarks._scaling_curves import CURVES, Curve

UPPER = 3  # sizes that a slope is fitted over
ROUNDED = tuple(2**power for power in (10, 16, 18, 20, 22, 23))
FAST = ("DPSGD, runs at once", "FrankWolfeRelease, steps T")


def run(*, fast: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Curves; `fast` runs the two smallest sizes of a few."""
    del data
    machine = _scaling_machine.measure(fast=fast)
    curves = [c for c in CURVES if not fast or c.name in FAST]
    return {
        "machine": _scaling_machine.as_json(machine),
        "rounding": _scaling_rounding.measure(ROUNDED[:1] if fast else ROUNDED),
        "curves": [_curve(c, machine, fast=fast) for c in curves],
    }


def _curve(curve: Curve, machine: model.Machine, *, fast: bool) -> dict[str, Any]:
    values = curve.values[:2] if fast else curve.values
    instances = [curve.instance(value) for value in values]
    times = _runner.measure(
        {
            str(value): _task(curve, instance, value)
            for value, instance in zip(values, instances, strict=True)
        },
        repeats=2 if fast else 5,
    )
    points = [
        _point(curve, instance, value, times[str(value)], machine)
        for value, instance in zip(values, instances, strict=True)
    ]
    del instances
    jax.clear_caches()
    at = [p["at"] for p in points]
    return {
        "solver": curve.solver,
        "axis": curve.axis,
        "base": curve.base,
        "points": points,
        "slopes": {
            name: slope(at, [p[name] for p in points])
            for name in ("seconds", "predicted_seconds", "bytes", "predicted_bytes")
            if all(p[name] for p in points)
        },
    }


def _task(curve: Curve, instance: Any, value: int) -> Task:
    if curve.symbol == "runs":
        keys = jax.random.split(jax.random.key(0), value)
        return Task(_scaling_instances.programs, (*instance[:3], keys))
    return Task(_scaling_instances.program, (*instance[:3], jax.random.key(0)))


def _point(
    curve: Curve, instance: Any, value: int, times: dict[str, Any], machine: model.Machine
) -> dict[str, Any]:
    runs = value if curve.symbol == "runs" else 1
    memory = [times[f"{part}_bytes"] for part in ("argument", "output", "temp")]
    return {
        "at": grown(curve, instance, value),
        "seconds": times["median"],
        "lower_quartile": times["lower_quartile"],
        "upper_quartile": times["upper_quartile"],
        "compile_seconds": times["compile_seconds"],
        "predicted_seconds": model.seconds(curve.solver, instance.sizes, machine, runs),
        "bytes": None if None in memory else sum(memory),
        "predicted_bytes": model.memory(curve.solver, instance.sizes, runs),
    }


def grown(curve: Curve, instance: Any, value: int) -> float:
    """What the axis is named after: cells, not attributes; 2^M, not M."""
    sizes = instance.sizes
    return float({"a": sizes.get("k"), "M": 2**value, "Q": sizes.get("J")}.get(curve.symbol, value))


def slope(at: list[float], values: list[float]) -> dict[str, float]:
    """Of logs over the upper sizes; least and largest between two neighbours."""
    x, y = np.log(at[-UPPER:]), np.log(values[-UPPER:])
    local = np.diff(y) / np.diff(x)
    return {
        "fitted": float(np.polyfit(x, y, 1)[0]),
        "least": float(local.min()),
        "largest": float(local.max()),
    }


def summary(result: dict[str, Any]) -> str:
    """Rates of the machine, and a row a curve."""
    rates = ", ".join(f"{name} {rate:.3g}" for name, rate in result["machine"].items())
    return f"{readme(result)}\n\na second: {rates}"


def readme(result: dict[str, Any]) -> str:
    """Markdown table, a row a curve."""
    lines = [
        "| solver | what grows | from | to | slope of time | model | slope of memory | model | "
        "time over model at the end |",
        "|---" * 9 + "|",
    ]
    for curve in result["curves"]:
        slopes, last = curve["slopes"], curve["points"][-1]
        cells = [
            curve["solver"],
            curve["axis"],
            f"{curve['points'][0]['at']:,.0f}",
            f"{last['at']:,.0f}",
            _shown(slopes.get("seconds")),
            _shown(slopes.get("predicted_seconds"), spread=False),
            _shown(slopes.get("bytes"), spread=False),
            _shown(slopes.get("predicted_bytes"), spread=False),
            f"{last['seconds'] / last['predicted_seconds']:.2g}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shown(slopes: dict[str, float] | None, *, spread: bool = True) -> str:
    if slopes is None:
        return ""
    fitted, least, largest = (
        f"{round(slopes[name], 2) + 0.0:.2f}" for name in ("fitted", "least", "largest")
    )
    return f"{fitted} ({least} to {largest})" if spread else fitted


def plot(result: dict[str, Any]) -> Path:
    """Seconds against what grows, one panel a solver; dashed, the model."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(c["solver"] for c in result["curves"]))
    across = 4
    figure, panels = plt.subplots(
        math.ceil(len(names) / across),
        across,
        figsize=(4 * across, 3 * math.ceil(len(names) / across)),
        layout="constrained",
        squeeze=False,
    )
    for panel in panels.flat[len(names) :]:
        panel.set_axis_off()
    for panel, name in zip(panels.flat, names, strict=False):
        for curve in (c for c in result["curves"] if c["solver"] == name):
            points = curve["points"]
            at = [p["at"] for p in points]
            (line,) = panel.plot(
                at, [p["seconds"] for p in points], marker="o", ms=3, label=curve["axis"]
            )
            predicted = [p["predicted_seconds"] for p in points]
            panel.plot(at, predicted, "--", lw=1, color=line.get_color())
        panel.set(xscale="log", yscale="log", title=name)
        panel.legend(fontsize=7)
    figure.supylabel("seconds of a run (dashed: the model)")
    path = _runner.RESULTS / "scaling.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
