"""What a user may write for a domain, and its normal form."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO, TypeAlias

import numpy as np

from dpjax.core import check_int

Labels: TypeAlias = tuple[str | int | float, ...]
Spec: TypeAlias = tuple[tuple[str, int | Labels], ...]


class _Pairs(tuple):
    """The entries of a JSON object in order, names given twice included."""


def read_json(source: str | os.PathLike[str] | TextIO) -> tuple[object, ...]:
    """The entries of a JSON object: from a path, its text, or an open file."""
    if isinstance(source, str) and source.lstrip().startswith("{"):
        text = source
    elif isinstance(source, str | os.PathLike):
        text = Path(source).read_text(encoding="utf-8")
    else:
        text = source.read()
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise ValueError(f"a domain must be a JSON object: {error}") from error
    if not isinstance(pairs, _Pairs):
        raise ValueError(f"a domain must be a JSON object, got {type(pairs).__name__}")
    return pairs


def normal_spec(spec: object) -> Spec:
    """Names with a number of codes or a tuple of labels, all checked."""
    if not isinstance(spec, Mapping | list | tuple):
        raise TypeError(f"a domain must be a mapping of attributes, got {type(spec).__name__}")
    pairs = list(spec.items() if isinstance(spec, Mapping) else spec)
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError("a domain must be a mapping or pairs: a name, and a number or labels")
    for name, _ in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of an attribute must be text, got {name!r}")
    normal = tuple((name, _values(name, values)) for name, values in pairs)
    if not normal:
        raise ValueError("a domain must have >= 1 attribute, got none")
    check_distinct("attributes", [name for name, _ in normal])
    return normal


def check_distinct(what: str, names: Sequence[object]) -> None:
    """Raises ValueError if one is given twice."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what} must be distinct, got {twice!r} twice")


def _values(name: str, values: object) -> int | Labels:
    """A number of codes, or distinct labels."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, int | np.integer) and not isinstance(values, bool):
        check_int(f"the size of attribute {name!r}", values, minimum=1)
        return int(values)
    if isinstance(values, _Pairs) or not isinstance(values, list | tuple | range):
        raise TypeError(
            f"attribute {name!r} must be a number of codes or a list of labels, got {values!r}"
        )
    labels = tuple(label.item() if isinstance(label, np.generic) else label for label in values)
    if not labels:
        raise ValueError(f"attribute {name!r} must have >= 1 label, got none")
    for label in labels:
        if not isinstance(label, str | int | float) or label != label:
            raise TypeError(f"labels of {name!r} must be text or numbers, got {label!r}")
    check_distinct(f"labels of {name!r}", labels)
    return labels
