"""Pairs the numbers of two results that stand at the same place."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks._runner import QUARTILES, quartiles

# what a number's own spread is called, beside it, and how much of it is taken on either side
_SPREADS = (("_error", 2.0), ("_std", 1.0))


class Value(NamedTuple):
    """A number, and the range that its repeats or seeds gave, where there were any."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def spread(self) -> bool:
        """Whether there is a range."""
        return self.low is not None


class Pair(NamedTuple):
    """One place in two results.

    Args:
      path: keys on the way; of a record its identifying fields, in brackets.
      keys: the keys alone, which say what the number is.
      old: number, other value, or None where there is nothing.
      new: the same.
    """

    path: str
    keys: tuple[str, ...]
    old: Any
    new: Any


def pairs(old: Any, new: Any, path: str = "", keys: tuple[str, ...] = ()) -> Iterator[Pair]:
    """All places of two results: in dicts by key, in lists of records by identifying fields.

    A dict with a median and quartiles is one number with its spread, as is a list of numbers
    (seeds): its median and quartiles. Beside `x`, an `x_range` is its spread, or two standard
    errors `x_error`, or one deviation `x_std` (plain `std` of `mean`) on either side.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        if all("median" in side for side in (old, new)):
            yield Pair(path, (*keys, "median"), _timed(old), _timed(new))
            old, new = ({k: v for k, v in s.items() if k not in _TIMED} for s in (old, new))
        for key in dict.fromkeys([*old, *new]):
            if _is_spread(key, old) or _is_spread(key, new):
                continue
            inner, further = f"{path}.{key}".lstrip("."), (*keys, key)
            mine, yours = _beside(old, key), _beside(new, key)
            if key in old and key in new:
                yield from pairs(mine, yours, inner, further)
            else:
                yield Pair(inner, further, mine, yours)
    elif _records(old) and _records(new) and (old or new):
        yield from _matched(old, new, path, keys)
    elif isinstance(old, list) and isinstance(new, list) and not _numbers(old + new):
        for i in range(max(len(old), len(new))):
            sides = (side[i] if i < len(side) else None for side in (old, new))
            yield from pairs(*sides, f"{path}[{i}]", keys)
    else:
        yield Pair(path, keys, _value(old), _value(new))


_TIMED = (*QUARTILES, "repeats")


def _timed(side: dict[str, Any]) -> Value:
    return Value(*(side.get(name) for name in QUARTILES))


def _value(side: Any) -> Any:
    if isinstance(side, Value):
        return side
    if isinstance(side, dict) and "median" in side:
        return _timed(side)
    if _number(side):
        return Value(float(side))
    if isinstance(side, list) and side and _numbers(side):
        if len(side) == 1:
            return Value(float(side[0]))
        return Value(*quartiles([float(value) for value in side]).values())
    return side


def _number(side: Any) -> bool:
    return isinstance(side, int | float) and not isinstance(side, bool)


def _numbers(side: list[Any]) -> bool:
    return all(_number(value) for value in side)


def _records(side: Any) -> bool:
    return isinstance(side, list) and all(isinstance(value, dict) for value in side)


def _beside(side: dict[str, Any], key: str) -> Any:
    """The value at a key; a number with the spread that stands beside it."""
    value = side.get(key)
    if not _number(value):
        return value
    between = side.get(f"{key}_range")
    if isinstance(between, list) and len(between) == 2 and _numbers(between):
        return Value(float(value), *map(float, between))
    for name, factor in _names(key):
        if _number(side.get(name)):
            width = factor * side[name]
            return Value(float(value), value - width, value + width)
    return value


def _names(key: str) -> list[tuple[str, float]]:
    found = [(key + ending, factor) for ending, factor in _SPREADS]
    return [*found, ("std", 1.0)] if key == "mean" else found


def _is_spread(key: str, side: dict[str, Any]) -> bool:
    """Whether a key holds the spread of another, which is told with it."""
    if key == "std":
        return "mean" in side
    for ending in ("_range", *(ending for ending, _ in _SPREADS)):
        if key.endswith(ending) and _number(side.get(key.removesuffix(ending))):
            return True
    return False


def _matched(
    old: list[dict[str, Any]], new: list[dict[str, Any]], path: str, keys: tuple[str, ...]
) -> Iterator[Pair]:
    fields = identifying(old, new)
    if fields is None:  # nothing tells them apart: by position
        sides: list[dict[Any, dict[str, Any]]] = [dict(enumerate(side)) for side in (old, new)]
        label = {i: str(i) for side in sides for i in side}
    else:
        sides = [{tuple(r.get(f) for f in fields): r for r in side} for side in (old, new)]
        label = {
            names: ", ".join(f"{f}={n}" for f, n in zip(fields, names, strict=True))
            for side in sides
            for names in side
        }
    for names, shown in label.items():
        inner = f"{path}[{shown}]"
        mine, yours = (side.get(names) for side in sides)
        if mine is None or yours is None:
            yield Pair(inner, keys, mine, yours)
        else:
            kept = [{k: v for k, v in r.items() if k not in (fields or ())} for r in (mine, yours)]
            yield from pairs(*kept, inner, keys)


def identifying(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> tuple[str, ...] | None:
    """The fewest fields, found in turn, that tell the records of each list apart; None if none do.

    First those that take the same values in both lists, words before integers before other
    numbers, each in the order of the fields.
    """

    def values(side: list[dict[str, Any]], field: str) -> set[Any]:
        return {record.get(field) for record in side}

    every = dict.fromkeys(field for record in [*old, *new] for field in record)
    simple = [
        field
        for field in every
        if all(isinstance(r.get(field), str | int | float | None) for r in [*old, *new])
    ]

    def order(field: str) -> tuple[bool, int]:
        taken = values(old, field) | values(new, field)
        kind = 0
        if any(_number(value) for value in taken):
            kind = 2 if any(isinstance(value, float) for value in taken) else 1
        return values(old, field) != values(new, field), kind

    def told_apart(fields: list[str]) -> tuple[int, int]:
        counts = [len({tuple(r.get(f) for f in fields) for r in side}) for side in (old, new)]
        return counts[0], counts[1]

    chosen: list[str] = []
    for field in sorted(simple, key=order):
        if told_apart(chosen) == (len(old), len(new)):
            break
        measured = order(field) == (True, 2) and not values(old, field) & values(new, field)
        if not measured and told_apart([*chosen, field]) != told_apart(chosen):
            chosen.append(field)
    return tuple(chosen) if told_apart(chosen) == (len(old), len(new)) else None


def ratio(old: float, new: float) -> float:
    """`new / old`; 1 for equal ones, also zeros."""
    if old == new or (math.isnan(old) and math.isnan(new)):
        return 1.0
    return new / old if old else math.inf if new > 0 else -math.inf
