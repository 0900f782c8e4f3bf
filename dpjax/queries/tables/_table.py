"""Tables of records to integer codes, and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax.queries.tables._domain_spec import Spec
from dpjax.queries.tables._frames import narwhal, present_values
from dpjax.queries.tables._kinds import Categorical, Column
from dpjax.queries.tables._labels import Labels, label_array, label_codes


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
            columns[name] = column if isinstance(values, int) else label_array(values)[column], None
    return columns


def size_of(values: int | Labels | Column) -> int:
    """Number of codes of an attribute."""
    if isinstance(values, int):
        return values
    return values.size if isinstance(values, Column) else len(values)


def _named_columns(attributes: Sequence[str], table: object) -> list[Any] | None:
    """The attributes' columns `[n]` in their order; None where a table has no named columns."""
    if not isinstance(table, np.ndarray | Mapping):
        table = narwhal(table)
    if isinstance(table, Mapping):
        names = list(table)
    elif isinstance(table, np.ndarray):
        if table.dtype.names is None:
            return None
        names = list(table.dtype.names)
    elif hasattr(table, "columns") and hasattr(table, "__getitem__"):
        names = list(table.columns)
    else:
        return None
    for name in attributes:
        if name not in names:
            raise ValueError(f"table lacks column {name!r}: it has {some(names)}")
    columns = [table[name] for name in attributes]
    for name, column in zip(attributes, columns, strict=True):
        shape = np.shape(column) if hasattr(column, "shape") else np.asarray(column).shape
        if len(shape) != 1:
            raise ValueError(f"column {name!r} must have shape [n], got {list(shape)}")
    return columns


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
        codes[present] = label_codes(values, given, or_codes=True)
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
