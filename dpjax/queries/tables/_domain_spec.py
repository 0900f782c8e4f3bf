"""What a user may write for a domain, and its normal form."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO, TypeAlias

import numpy as np

from dpjax.core import check_int
from dpjax.queries.tables._kinds import Categorical, Column, Date, Numeric
from dpjax.queries.tables._labels import Labels, check_distinct, checked_labels

Spec: TypeAlias = tuple[tuple[str, int | Labels | Column], ...]

_VERSION = 1
_KINDS: dict[str, type[Column]] = {"numeric": Numeric, "categorical": Categorical, "date": Date}


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
    schema = dict(pairs)
    if not isinstance(schema.get("columns"), _Pairs):
        return pairs
    if schema.get("version") != _VERSION or len(schema) > 2:
        raise ValueError(
            f"a schema must have version {_VERSION} and columns, got {list(schema)} and version "
            f"{schema.get('version')!r}"
        )
    return schema["columns"]


def written_json(spec: Spec) -> str:
    """A schema of this spec, which `read_json` reads."""
    columns = {name: _written(values) for name, values in spec}
    return json.dumps({"version": _VERSION, "columns": columns}, indent=2, ensure_ascii=False)


def _written(values: int | Labels | Column) -> object:
    if not isinstance(values, Column):
        return values
    kind = next(name for name, known in _KINDS.items() if isinstance(values, known))
    fields = dataclasses.asdict(values)
    if isinstance(values, Numeric):  # which say all of it
        fields = {name: fields[name] for name in ("edges", "integer", "missing")}
    return {"kind": kind, **fields}


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


def _values(name: str, values: object) -> int | Labels | Column:
    """A number of codes, distinct labels, or a kind of column."""
    if isinstance(values, Column):
        return values
    if isinstance(values, _Pairs):
        return _column(name, values)
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, int | np.integer) and not isinstance(values, bool):
        check_int(f"the size of attribute {name!r}", values, minimum=1)
        return int(values)
    if not isinstance(values, list | tuple | range):
        raise TypeError(
            f"attribute {name!r} must be a number of codes, a list of labels or a column such as "
            f"Numeric, got {values!r}"
        )
    return checked_labels(f"labels of {name!r}", values)


def _column(name: str, pairs: _Pairs) -> Column:
    """A column as `written_json` writes it."""
    check_distinct(f"fields of column {name!r}", [field for field, _ in pairs])
    fields = dict(pairs)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"column {name!r}: kind must be one of {list(_KINDS)}, got {kind!r}")
    known = [field.name for field in dataclasses.fields(_KINDS[kind])]
    for field in fields:
        if field not in known:
            raise ValueError(f"column {name!r}: {kind} has no field {field!r}, only {known}")
    try:
        return _KINDS[kind](**fields)
    except (TypeError, ValueError) as error:
        raise type(error)(f"column {name!r}: {error}") from None
