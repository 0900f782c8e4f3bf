"""The cost model far beyond what fits here: n = 10^10 records, d = 10^9 parameters."""

import math
from typing import Any, NamedTuple

from benchmarks import _scaling_model as model
from benchmarks._scaling_model import Machine

# NVIDIA's data sheet of the H100 SXM: 67 TFLOP/s of float32 without tensor cores, which is what
# Precision.HIGHEST runs at; 3.35 TB/s, 80 GB, NVLink 900 GB/s both ways together
_FLOPS, _BYTES, _MEMORY, _LINK = 67e12, 3.35e12, 80e9, 450e9
_OPERATIONS = 200  # of a normal number: the generator's rounds and the inverse error function
_WORD = 100
_SORT = 240  # bytes moved to sort a number: three rounds of a permutation, some ten passes
_SECTOR = 32  # bytes moved to add a number to a cell

H100 = Machine(
    flops=_FLOPS,
    specials=_FLOPS / 16,
    bytes=_BYTES,
    noise=_FLOPS / _OPERATIONS,
    words=_FLOPS / _WORD,
    sorted=_BYTES / _SORT,
    placed=_BYTES / _SECTOR,
    step=60e-6,  # some twenty kernels
    run=1e-3,
    memory=_MEMORY,
    link=_LINK,
)
USED = 0.8  # of a device's memory
CAPACITY = 1.01  # slots to members, of batches of a million


class Far(NamedTuple):
    """A run that nobody has done here: `spread` is what lies on different devices."""

    solver: str
    what: str
    sizes: dict[str, float]
    spread: str = "records"


def _linear(n: float, m: float, p: float, steps: float, c: int = 2) -> dict[str, float]:
    return {"n": n, "m": m, "B": CAPACITY * m, "p": p, "c": c, "d": (p + 1) * c, "T": steps}


_RECORDS, _WIDE = 1e10, 5e8
_SLIM = {"n": 1e10, "p": 1e3, "T": 1e4, "q": 1, "B": 1e6}
_LONG = {"n": 1e5, "p": 1e9, "T": 300, "q": 1, "B": 333}
_TABLE = {"n": 1e10, "a": 30, "k": 2**30, "j": 1740, "u": 8}

FAR = (
    Far("DPSGD", "many records", _linear(_RECORDS, 1e6, 1e3, 1e4)),
    Far("DPSGD", "many parameters", _linear(1e5, 1e3, _WIDE, 1e4), "parameters"),
    Far(
        "RateConstrainedSGDA",
        "many records, 1,000 constraints",
        _linear(_RECORDS, 1e6, 1e3, 1e4) | {"Q": 500, "S": 1000, "J": 1000},
    ),
    Far("DPFTRL", "many records", _linear(_RECORDS, 1e6, 1e3, 1e4) | {"B": 1e6, "b": 4}),
    Far("DPFTRL", "many parameters", _linear(1e5, 100, _WIDE, 1e3) | {"b": 3}, "parameters"),
    Far("OnlineToBatch", "many records", _SLIM | {"B": 1e10, "d": 1e3, "T": 1e3}),
    Far("OnlineToNonconvex", "many records", _SLIM | {"d": 1e3}),
    Far("OnlineToNonconvex", "many parameters", _LONG | {"d": 1e9, "T": 1e4}, "parameters"),
    Far("SaddleMirrorDescent", "many records", _SLIM),
    Far("SaddleMirrorDescent", "many coordinates", _LONG, "parameters"),
    Far("AnytimeMirrorDescent", "many coordinates", _LONG, "parameters"),
    Far("MultilevelSaddle", "many coordinates", _LONG | {"q": 9}, "parameters"),
    Far("FrankWolfe", "many records", _SLIM | {"B": 1e10, "T": 1e3}),
    Far("FrankWolfe", "many coordinates", _LONG, "parameters"),
    Far("FrankWolfeRelease", "a large universe", _TABLE | {"T": 200}, "cells"),
    Far("MirrorDescentRelease", "a large universe", _TABLE | {"T": 300}, "cells"),
    Far("SaddleRelease", "a large universe", _TABLE | {"T": 300}, "cells"),
    Far("MWEM", "a large universe", _TABLE | {"T": 50, "r": 20}, "cells"),
    Far("GaussianFit", "a large universe", _TABLE | {"E": 100, "T": 1}, "cells"),
    Far("HistogramRelease", "a large universe", _TABLE | {"T": 1}, "cells"),
)


def devices(far: Far, machine: Machine = H100) -> int:
    """How many it takes to hold the run, a power of two."""
    needed = model.memory(far.solver, far.sizes) / (USED * machine.memory)
    return 2 ** max(0, math.ceil(math.log2(needed)))


def seconds(far: Far, count: int, machine: Machine) -> dict[str, float]:
    """Of a run on so many devices: what they compute, what they send and fixed costs."""
    cost = model.COSTS[far.solver]
    steps = model.value(cost.steps, far.sizes)
    fixed = machine.run + steps * machine.step
    computed = (model.seconds(far.solver, far.sizes, machine) - fixed) / count
    sent = model.value(cost.records if far.spread == "records" else cost.split[1], far.sizes)
    sent = 0.0 if count == 1 else steps * sent / machine.link
    return {"computed": computed, "sent": sent, "fixed": fixed}


def table(machine: dict[str, Any] | None) -> str:
    """Markdown; the last column by the rates measured here, None where there are none yet."""
    lines = [
        "| solver | what | sizes | memory | devices | computed | sent | fixed | this machine, had "
        "it the memory |",
        "|---" * 9 + "|",
    ]
    here = Machine(**machine) if machine else None
    for far in FAR:
        count = devices(far)
        parts = seconds(far, count, H100)
        cells = [
            far.solver,
            far.what,
            ", ".join(f"{k} = {_number(v)}" for k, v in far.sizes.items() if k in "nmpkTEc"),
            _amount(model.memory(far.solver, far.sizes)),
            f"{count:,}",
            *(_duration(parts[name]) for name in ("computed", "sent", "fixed")),
            _duration(model.seconds(far.solver, far.sizes, here)) if here else "not run yet",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(value: float) -> str:
    if value < 1e4:
        return f"{value:,.0f}"
    return f"{value:.2g}".replace("e+0", "e").replace("e+", "e")


def _amount(size: float) -> str:
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 1000:
            return f"{size:.2g} {unit}" if size < 100 else f"{size:.0f} {unit}"
    return f"{size / 1000:.2g} PB"


def _duration(value: float) -> str:
    for unit, length in (("years", 31_557_600), ("days", 86_400), ("h", 3600), ("min", 60)):
        if value >= 2 * length:
            count = value / length
            return f"{count:.2g} {unit}" if count < 100 else f"{count:,.0f} {unit}"
    return f"{value:.2g} s" if value < 100 else f"{value:.0f} s"
