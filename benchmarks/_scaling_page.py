"""The tables of `docs/cost_model.md`, made from the model and from the committed run."""

import math
from pathlib import Path
from typing import Any

from benchmarks import _runner, _scaling_far, scaling
from benchmarks import _scaling_model as model

PAGE = Path(__file__).parents[1] / "docs" / "cost_model.md"
NOT_YET = "Not run yet: `python -m benchmarks run scaling`, then `python -m benchmarks readme`."


def write() -> Path:
    """Puts the tables between the marks of the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return PAGE


def filled(text: str) -> str:
    """The page with its tables as they should be."""
    for name, table in tables().items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        head, rest = text.split(start)
        text = head + start + table + "\n" + end + rest.split(end)[1]
    return text


def tables() -> dict[str, str]:
    """By the name of their mark."""
    try:
        result = _runner.load("scaling")
    except FileNotFoundError:
        result = None
    return {
        "sizes": _sizes(),
        "step": _step(),
        "run": _run(),
        "rates": _rates(result) if result else NOT_YET,
        "slopes": scaling.readme(result) if result else NOT_YET,
        "rounding": _rounding(result) if result else NOT_YET,
        "far": _scaling_far.table(result["machine"] if result else None),
    }


def _sizes() -> str:
    rows = [f"| `{name}` | {what} |" for name, what in model.SYMBOLS.items()]
    return "\n".join(["| size | |", "|---|---|", *rows])


def _step() -> str:
    lines = [
        "| solver | additions and products | exponentials, logarithms and their like | "
        "bytes moved | normal or Gumbel numbers | more random words |",
        "|---" * 6 + "|",
    ]
    for name, cost in model.COSTS.items():
        parts = (cost.flops, cost.specials, cost.bytes, cost.noise, cost.words)
        lines.append(f"| {name} | " + " | ".join(map(_code, parts)) + " |")
    return "\n".join([*lines, "", "A solver that is not listed has no formulas yet."])


def _run() -> str:
    lines = [
        "| solver | steps | bytes in memory | moved once | sorted once | placed once | "
        "sent a step, records spread | what else can be spread | sent a step |",
        "|---" * 9 + "|",
    ]
    for name, cost in model.COSTS.items():
        parts = (cost.steps, cost.memory, cost.once, cost.sorted, cost.placed, cost.records)
        cells = [*map(_code, parts), cost.split[0], _code(cost.split[1])]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _code(formula: str) -> str:
    return "" if formula == "0" else f"`{formula}`"


_NAMES = {
    "flops": "additions and products of a matrix product",
    "specials": "exponentials and logarithms",
    "bytes": "bytes moved",
    "fresh": "bytes of new memory",
    "noise": "normal numbers",
    "words": "random words",
    "sorted": "numbers permuted",
    "placed": "numbers added to cells",
}


def _rates(result: dict[str, Any]) -> str:
    machine, here = result["machine"], result["environment"]
    lines = [
        f"| a second | {here['processor']}, {here['cores']} cores | H100 SXM, by its data sheet |",
        "|---" * 3 + "|",
    ]
    for name, what in _NAMES.items():
        theirs = getattr(_scaling_far.H100, name)
        shown = "free, taken at the start" if theirs == math.inf else f"{theirs:.2g}"
        lines.append(f"| {what} | {machine[name]:.2g} | {shown} |")
    for name, what in (("step", "a step that does nothing"), ("run", "a run of no step")):
        fixed = getattr(_scaling_far.H100, name)
        lines.append(f"| {what}, microseconds | {machine[name] * 1e6:.3g} | {fixed * 1e6:.3g} |")
    return "\n".join(lines)


def _rounding(result: dict[str, Any]) -> str:
    lines = [
        "| records | beyond the clip norm, as solvers sum | as `clip_by_norm` sums all at once |",
        "|---|---|---|",
    ]
    for row in result["rounding"]:
        lines.append(f"| {row['records']:,} | {row['excess']:.1%} | {row['at_once']:.1%} |")
    return "\n".join(lines)
