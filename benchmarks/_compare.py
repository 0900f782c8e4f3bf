"""Whether a second result of a study is slower or worse than a first.

Numbers at the same place are paired. What counts as worse: a time, or bytes, or an error, loss,
risk, gap, mean or maximum that grew by more than the tolerance; a rate per second or an accuracy
that fell by more. A time or rate is judged only where both results have quartiles or several
values, and then only if these ranges are apart; others with a range on both sides likewise, and
without one by the tolerance alone. Numbers of other kinds, such as ratios, and what the whole
process took are shown and not judged.
"""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _defaults
from benchmarks._pairs import Pair, Value, pairs, ratio

TOLERANCE = 0.1
_MISSING = "not recorded"
_APART = ("study", "fast", "environment", "defaults")
# what differs from run to run without being another setting
_PASSING = ("date", "load_average")


class NotComparable(ValueError):
    """The two files do not hold results that can be compared."""


class Comparison(NamedTuple):
    """One number of both results.

    Args:
      path: where it stands.
      old: in the first.
      new: in the second.
      ratio: new over old.
      verdict: "worse", "slower", "better", "faster", "same" (within the tolerance), "within
        spread", "no spread" (a time without one) or "" (not judged).
    """

    path: str
    old: Value
    new: Value
    ratio: float
    verdict: str


def read(path: Path) -> dict[str, Any]:
    """A result from a file.

    Raises:
      NotComparable: there is no such file, or it holds no result.
    """
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise NotComparable(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise NotComparable(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict) or not {"study", "fast", "environment"} <= set(found):
        raise NotComparable(f"{path}: no result of a study (study, fast, environment)")
    return found


def report(
    old: dict[str, Any], new: dict[str, Any], *, tolerance: float = TOLERANCE, only: str = ""
) -> tuple[str, bool]:
    """What to print of two results, and whether anything is slower or worse.

    Raises:
      NotComparable: they are of different studies, or one is a smoke run, or nothing is left.
    """
    for key in ("study", "fast"):
        if old[key] != new[key]:
            raise NotComparable(
                f"cannot compare: {key} is {old[key]!r} in the first, {new[key]!r} in the second"
            )
    sides = [
        {k: v for k, v in side.items() if k not in _APART and (k != "process" or k in other)}
        for side, other in ((old, new), (new, old))
    ]
    found = [pair for pair in pairs(*sides) if _wanted(pair.path, only)]
    numbers = [_judged(pair, tolerance) for pair in found if _both(pair)]
    if not numbers:
        raise NotComparable(f"no number stands in both{f' that matches {only!r}' if only else ''}")
    worse = [c for c in numbers if c.verdict in ("worse", "slower")]
    lines = [
        *environments(old["environment"], new["environment"]),
        *_changed_defaults(old.get("defaults"), new.get("defaults")),
        *_settings(found),
        *_table(c for c in numbers if c.ratio != 1.0 or c.verdict in ("worse", "slower")),
        *_unpaired(found),
        _counts(numbers, tolerance),
    ]
    return "\n".join(lines), bool(worse)


def environments(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Lines on what differs between two environments, and on busy machines."""
    flat = [
        {**side, **{f"version of {k}": v for k, v in side.get("versions", {}).items()}}
        for side in (old, new)
    ]
    lines = []
    for key in dict.fromkeys([*flat[0], *flat[1]]):
        a, b = (side.get(key, _MISSING) for side in flat)
        if (
            a != b
            and not {str(a), str(b)} <= {"None", _MISSING}
            and key not in ("versions", *_PASSING)
        ):
            lines.append(f"- {key}: {a} -> {b}")
    lines = ["Environments differ:", *lines] if lines else ["Same environment."]
    for name, side in (("first", old), ("second", new)):
        load, cores = side.get("load_average"), side.get("usable_cores")
        if load and cores and load[0] > cores / 2:
            lines.append(f"The {name} began on a busy machine: load {load[0]} on {cores} cores.")
    return [*lines, ""]


def _changed_defaults(old: Any, new: Any) -> list[str]:
    if not (old and new and (found := _defaults.differences(old, new))):
        return []
    return ["Defaults differ:", *(f"- {line}" for line in found), ""]


def kind(keys: tuple[str, ...]) -> str | None:
    """What a number is by its keys, the last that tells: "time", "memory", "rate", "loss", "score".

    None for settings, ratios and whatever else has no better and worse.
    """
    if not keys or keys[0] == "process":
        return None
    names = [re.sub(r"[^a-z]+", "_", key.lower()) for key in reversed(keys)]
    if names[0] in _NEUTRAL or names[0].endswith("_of_zero"):
        return None
    for name in names:
        words = set(name.split("_"))
        if name in ("ratio", "ratios"):
            return None
        if "per_second" in name:
            return "rate"
        for what, telling in _TELLING.items():
            if words & telling:
                return what
    if names[0] in ("median", "first_call"):  # as the runner times, without another unit
        return "time"
    return "loss" if _OF_ERRORS & set(names[0].split("_")) else None


_TELLING = {
    "time": {"seconds", "milliseconds", "microseconds", "nanoseconds"},
    "memory": {"bytes", "kilobytes", "megabytes", "gigabytes"},
    "score": {"accuracy", "auc"},
    "loss": {"error", "errors", "loss", "risk", "gap", "excess", "goldstein", "disparity"},
}
# in studies whose numbers are errors
_OF_ERRORS = {"mean", "max"}
# settings and plans, also where a key above them tells
_NEUTRAL = {
    *("epsilon", "delta", "accounted", "claimed", "bound"),
    *("steps", "n", "dim", "seeds", "repeats", "buffers"),
}


def _wanted(path: str, only: str) -> bool:
    pattern = re.escape(only).replace(r"\*", ".*")
    return re.search(pattern, path, re.IGNORECASE) is not None


def _both(pair: Pair) -> bool:
    return isinstance(pair.old, Value) and isinstance(pair.new, Value)


def _judged(pair: Pair, tolerance: float) -> Comparison:
    change = ratio(pair.old.value, pair.new.value)
    return Comparison(pair.path, pair.old, pair.new, change, _verdict(pair, change, tolerance))


def _verdict(pair: Pair, change: float, tolerance: float) -> str:
    what = kind(pair.keys)
    if what is None:
        return ""
    old, new = pair.old, pair.new
    if math.isnan(old.value) != math.isnan(new.value):
        return "worse" if math.isnan(new.value) else "better"
    bigger = new.value > old.value
    far = abs(new.value - old.value) > tolerance * min(abs(old.value), abs(new.value))
    if change == 1.0 or not far:
        return "same"
    spread = old.spread and new.spread
    if what in ("time", "rate") and not spread:
        return "no spread"
    if spread and not (new.low > old.high or new.high < old.low):
        return "within spread"
    good, bad = ("faster", "slower") if what in ("time", "rate") else ("better", "worse")
    return bad if bigger != (what in ("rate", "score")) else good


def _settings(found: list[Pair]) -> list[str]:
    """Settings of the study that differ: words anywhere, and whole numbers at the top."""
    lines = []
    for pair in found:
        if _both(pair):
            top = len(pair.keys) == 1 and kind(pair.keys) is None and not pair.old.spread
            if top and pair.old.value != pair.new.value:
                lines.append(f"- {pair.path}: {pair.old.value:g} -> {pair.new.value:g}")
        elif _there(pair) and pair.old != pair.new:
            lines.append(f"- {pair.path}: {pair.old} -> {pair.new}")
    return ["Settings and words that differ:", *_shortened(lines), ""] if lines else []


def _there(pair: Pair) -> bool:
    return pair.old is not None and pair.new is not None


def _unpaired(found: list[Pair]) -> list[str]:
    lines = []
    for side, there in (("first", "old"), ("second", "new")):
        missing = "new" if there == "old" else "old"
        alone = [
            f"- {pair.path}"
            for pair in found
            if getattr(pair, missing) is None and getattr(pair, there) is not None
        ]
        if alone:
            lines += [f"In the {side} alone, {len(alone)}:", *_shortened(alone), ""]
    return lines


def _shortened(lines: list[str], most: int = 20) -> list[str]:
    more = len(lines) - most
    return lines if more <= 0 else [*lines[:most], f"- and {more} more"]


def _table(shown: Iterable[Comparison]) -> list[str]:
    rows = [
        [c.path, _number(c.old), _number(c.new), f"{c.ratio:.3f}", c.verdict or "-"] for c in shown
    ]
    if not rows:
        return []
    rows.insert(0, ["number", "old (range)", "new (range)", "ratio", ""])
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, [*widths, 0], strict=True))
        ).rstrip()
        for row in rows
    ]
    return [*lines, ""]


def _number(value: Value) -> str:
    shown = f"{value.value:.4g}"
    return f"{shown} ({value.low:.4g} to {value.high:.4g})" if value.spread else shown


def _counts(numbers: list[Comparison], tolerance: float) -> str:
    total = {v: sum(c.verdict == v for c in numbers) for v in dict.fromkeys(_VERDICTS)}
    told = ", ".join(f"{count} {name}" for name, count in total.items() if count)
    alone = sum(not c.verdict for c in numbers)
    return f"{len(numbers)} numbers, tolerance {tolerance:.0%}: {told or 'none judged'}" + (
        f"; {alone} not judged" if alone else ""
    )


_VERDICTS = ("slower", "worse", "faster", "better", "same", "within spread", "no spread")
