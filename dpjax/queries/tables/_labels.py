"""Labels of categories."""

import decimal
import math
import numbers
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Labels: TypeAlias = tuple[str | int | float, ...]

NUMBERS = (numbers.Real, decimal.Decimal, np.bool_)
_TEXT = (str, bytes)
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf(inity)?)", re.ASCII | re.IGNORECASE)
_FLAGS = {"true": 1.0, "false": 0.0}


def checked_labels(what: str, values: Sequence[object]) -> Labels:
    """Distinct labels, as Python's own types.

    Raises:
      TypeError: If one is neither text nor a number.
      ValueError: If there is none, one is given twice, or two have the same `reading`.
    """
    if isinstance(values, str):
        raise TypeError(f"{what} must be a list, got {values!r}")
    labels: list[str | int | float] = []
    for value in values:
        label = value.item() if isinstance(value, np.generic) else value
        if not isinstance(label, str | int | float) or label != label:
            raise TypeError(f"{what} must be text or numbers, got {label!r}")
        labels.append(label)
    if not labels:
        raise ValueError(f"{what} must be >= 1, got none")
    check_distinct(what, labels)
    readings: dict[object, object] = {}
    for label in labels:
        before = readings.setdefault(reading(label), label)
        if before is not label:
            raise ValueError(
                f"{what} must differ however a reader types their column, got {before!r} and "
                f"{label!r}"
            )
    return tuple(labels)


def check_distinct(what: str, names: Sequence[object]) -> None:
    """Raises ValueError if one is given twice."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what} must be distinct, got {twice!r} twice")


def reading(value: object) -> Any:
    """What a label or value stands for, from it alone: 1, 1.0, True, "1", "01" and "true" for 1.0.

    Readers type a column by all of its records, so the type of a value says nothing of it.
    """
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    if not isinstance(value, str):
        return as_float(value)
    text = value.strip().lower()
    return float(text) if _NUMBER.fullmatch(text) else _FLAGS.get(text, value)


def as_float(value: object) -> float:
    """The nearest float of one of `NUMBERS`, infinite beyond the largest."""
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def label_codes(labels: Labels, values: np.ndarray, *, or_codes: bool = False) -> np.ndarray:
    """The place of each value among the labels by its `reading`, -1 if it is none of them.

    Args:
      labels: In the order of their codes.
      values: `[n]`, none of them missing.
      or_codes: Whether numbers are codes where no label reads as a number.
    """
    index = {reading(label): code for code, label in enumerate(labels)}
    size = len(labels) if or_codes and not any(isinstance(key, float) for key in index) else 0
    items = values.tolist()
    known = {kind for kind in set(map(type, items)) if issubclass(kind, (*_TEXT, *NUMBERS))}

    def place(value: object) -> int:
        read = reading(value)
        if size and not isinstance(value, (*_TEXT, bool, np.bool_)):
            return int(read) if 0 <= read < size and read == int(read) else -1
        return index.get(read, -1)

    # with their types, since True == 1
    distinct = {(type(v), v) for v in items if type(v) in known}
    codes = {each: place(each[1]) for each in distinct}
    found = (codes[type(v), v] if type(v) in known else -1 for v in items)
    return np.fromiter(found, np.int64, len(items))


def label_array(labels: Sequence[object]) -> np.ndarray:
    """Labels as an array, each of its own type."""
    return np.array(labels, None if len(set(map(type, labels))) == 1 else object)


def labelled(labels: Sequence[object], codes: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The labels of codes `[n]`, and which are missing: those of a last label that is None."""
    if labels[-1] is not None:
        return label_array(labels)[codes], None
    known = label_array(labels[:-1])
    return known[np.minimum(codes, len(known) - 1)], codes == len(known)
