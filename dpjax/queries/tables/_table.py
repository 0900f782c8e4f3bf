"""Tables of records to integer codes, and back."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import jax
import numpy as np

from dpjax.core import check_choice, check_int, check_shape, check_type
from dpjax.queries.tables import _labels
from dpjax.queries.tables._frames import column_names, container_of, narwhal, present_values
from dpjax.queries.tables._kinds import Categorical, Column, Date, Numeric
from dpjax.queries.tables._labels import Labels, label_array

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
        log = ("scale",) if values.scale == "log" else ()  # files without it stay as they were
        fields = {name: fields[name] for name in ("edges", *log, "integer", "missing")}
    return {"kind": kind, **fields}


def normal_spec(spec: Mapping[str, object] | Sequence[tuple[str, object]]) -> Spec:
    """Names with a number of codes or a tuple of labels, all checked."""
    check_type("a domain", spec, Mapping | list | tuple, "a mapping of attributes")
    pairs = list(spec.items() if isinstance(spec, Mapping) else spec)
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError("a domain must be a mapping or pairs: a name, and a number or labels")
    for name, _ in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of an attribute must be text, got {name!r}")
    normal = tuple((name, _values(name, values)) for name, values in pairs)
    if not normal:
        raise ValueError("a domain must have >= 1 attribute, got none")
    _labels.check_distinct("attributes", [name for name, _ in normal])
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
    return _labels.checked_labels(f"labels of {name!r}", values)


def _column(name: str, pairs: _Pairs) -> Column:
    """A column as `written_json` writes it."""
    _labels.check_distinct(f"fields of column {name!r}", [field for field, _ in pairs])
    fields = dict(pairs)
    kind = fields.pop("kind", None)
    check_choice(f"column {name!r}: kind", kind, list(_KINDS))
    every = dataclasses.fields(_KINDS[kind])
    known = [field.name for field in every]
    for field in fields:
        if field not in known:
            raise ValueError(f"column {name!r}: {kind} has no field {field!r}, only {known}")
    for one in every:
        if one.default is one.default_factory is dataclasses.MISSING and one.name not in fields:
            raise ValueError(f"column {name!r}: {kind} needs the field {one.name!r}")
    try:
        return _KINDS[kind](**fields)
    except (TypeError, ValueError) as error:
        raise type(error)(f"column {name!r}: {error}") from None


def encode_table(spec: Sequence[tuple[str, int | Labels | Column]], table: object) -> np.ndarray:
    """Codes `[n, A]` int32 of a table: see `Domain.encode`."""
    columns = _named_columns([name for name, _ in spec], table)
    if columns is None:  # an array is of codes whatever the labels
        columns = _array_columns([name for name, _ in spec], table)
        spec = [(name, size_of(values)) for name, values in spec]
    lengths = {name: len(column) for (name, _), column in zip(spec, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of table must be of one length, got {lengths}")
    if not len(columns[0]):
        raise ValueError("table must have n >= 1 records, got none")
    pairs = zip(spec, columns, strict=True)
    return np.stack([_codes(name, values, column) for (name, values), column in pairs], axis=1)


def decode_table(
    spec: Spec, codes: np.ndarray, key: jax.Array | None
) -> dict[str, tuple[np.ndarray, np.ndarray | None]]:
    """Columns by name of valid codes `[n, A]`, and which rows are missing; None: none can be."""
    columns: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
    for axis, (name, values) in enumerate(spec):
        column = codes[:, axis]
        if isinstance(values, Column):
            if key is None and not isinstance(values, Categorical):
                raise ValueError(
                    f"key is required: column {name!r} is drawn within its bins; pass a typed key"
                )
            seed = [] if key is None else np.asarray(jax.random.key_data(key)).ravel().tolist()
            generator = np.random.default_rng([*seed, axis])
            absent = column == values.size - 1 if values.missing else None
            # a missing value has some value under its mask
            shown = column if absent is None else np.minimum(column, values.size - 2)
            columns[name] = values._draw(shown, generator), absent
        else:
            shown = column if isinstance(values, int) else label_array(values)[column]
            columns[name] = shown, None
    return columns


def size_of(values: int | Labels | Column) -> int:
    """Number of codes of an attribute."""
    if isinstance(values, int):
        return values
    return values.size if isinstance(values, Column) else len(values)


def _named_columns(attributes: Sequence[str], table: object) -> list[Any] | None:
    """The attributes' columns `[n]` in their order; None where a table has no named columns."""
    if container_of(table) is None:
        return None
    frame, names = narwhal(table), column_names(table)
    for name in attributes:
        if name not in names:
            raise ValueError(f"table lacks column {name!r}: it has {some(names)}")
        check_shape(f"column {name!r}", frame[name], (None,))
    return [frame[name] for name in attributes]


def _array_columns(attributes: Sequence[str], table: object) -> list[np.ndarray]:
    try:
        array = np.asarray(table)
    except ValueError:  # ragged
        raise ValueError(f"table must have shape [n, {len(attributes)}], got ragged rows") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(
            "table must be an array of codes, a mapping of columns by name or a data frame, got "
            f"{type(table).__name__} of {array.dtype}"
        )
    if array.ndim != 2 or array.shape[1] != len(attributes):
        raise ValueError(
            f"table must have shape [n, {len(attributes)}], one column for each of "
            f"{list(attributes)}, got {list(array.shape)}"
        )
    return list(array.T)


def _codes(name: str, values: int | Labels | Column, column: Any) -> np.ndarray:
    """Codes of a column: of raw values, or of labels or codes."""
    if isinstance(values, int):
        return _checked_codes(name, values, np.asarray(column))
    given, present = present_values(name, column)
    if not isinstance(values, Column):
        codes = np.full(len(present), -1, np.int32)
        codes[present] = _labels.label_codes(values, given, or_codes=True)
        _refuse(name, f"one of its {len(values)} labels {some(values)}", codes < 0)
        return codes
    absent = int(np.sum(~present))
    if absent and not values.missing:
        raise ValueError(
            f"column {name!r} holds {absent} missing values in {len(present)} rows: give "
            f"{type(values).__name__}(..., missing=True), or fill them"
        )
    codes = np.full(len(present), values.size - 1, np.int32)
    if len(given):  # else their type says nothing
        codes[present] = values._codes(name, given)
    return codes


def _checked_codes(name: str, size: int, column: np.ndarray) -> np.ndarray:
    """Codes of a column without labels."""
    if column.dtype.kind not in "biuf":
        each = column.tolist() if column.dtype.kind == "O" else [None] * len(column)
        kinds = (int, float, np.number)
        column = np.array([v if isinstance(v, kinds) else np.nan for v in each], float)
    inside = (column >= 0) & (column < size) & (column == np.floor(column))  # no NaN
    _refuse(name, f"an integer code in [0, {size})", ~inside)
    return column.astype(np.int32)


def _refuse(name: str, bound: str, bad: np.ndarray) -> None:
    if bad.any():
        raise ValueError(
            f"column {name!r} must hold {bound}: {int(bad.sum())} of {len(bad)} rows are outside"
        )


def some(names: Sequence[object], shown: int = 12) -> str:
    """The first few of many names."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{list(names)[:shown]}{more}"
