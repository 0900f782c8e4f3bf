"""Labels of categories."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

Labels: TypeAlias = tuple[str | int | float, ...]


def checked_labels(what: str, values: Sequence[object]) -> Labels:
    """Distinct labels, as Python's own types.

    Raises:
      TypeError: If one is neither text nor a number.
      ValueError: If there is none, or one is given twice.
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
    return tuple(labels)


def check_distinct(what: str, names: Sequence[object]) -> None:
    """Raises ValueError if one is given twice."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what} must be distinct, got {twice!r} twice")


def label_codes(labels: Labels, values: np.ndarray) -> np.ndarray:
    """The place of each value among the labels, -1 if it is none of them."""
    index: dict[object, int] = {label: code for code, label in enumerate(labels)}
    items = values.tolist()
    kinds = (str, int, float, np.generic)  # others may have no hash
    hashed = {kind for kind in set(map(type, items)) if issubclass(kind, kinds)}
    known = (index.get(v, -1) if type(v) in hashed else -1 for v in items)
    return np.fromiter(known, np.int64, len(items))


def label_array(labels: Sequence[object]) -> np.ndarray:
    """Labels as an array, each of its own type."""
    return np.array(labels, None if len(set(map(type, labels))) == 1 else object)


def labelled(labels: Sequence[object], codes: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """The labels of codes `[n]`, and which are missing: those of a last label that is None."""
    if labels[-1] is not None:
        return label_array(labels)[codes], None
    known = label_array(labels[:-1])
    return known[np.minimum(codes, len(known) - 1)], codes == len(known)
