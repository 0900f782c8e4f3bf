"""Tables of records to integer codes, and back."""

from collections.abc import Mapping, Sequence

import numpy as np

from dpjax.queries._domain_spec import Labels


def encode_table(
    attributes: Sequence[str], shape: Sequence[int], labels: Sequence[Labels | None], table: object
) -> np.ndarray:
    """Codes `[n, A]` int32 of a table: see `Domain.encode`."""
    columns = _named_columns(attributes, table)
    if columns is None:  # an array is of codes whatever the labels
        columns, labels = _array_columns(attributes, table), [None] * len(shape)
    lengths = {name: len(column) for name, column in zip(attributes, columns, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns of table must be of one length, got {lengths}")
    if not len(columns[0]):
        raise ValueError("table must have n >= 1 records, got none")
    given = zip(attributes, shape, labels, columns, strict=True)
    return np.stack([_codes(*column) for column in given], axis=1)


def decode_table(
    attributes: Sequence[str], labels: Sequence[Labels | None], codes: np.ndarray
) -> dict[str, np.ndarray]:
    """Columns by name of valid codes `[n, A]`."""
    return {
        name: column if known is None else _array(known)[column]
        for name, known, column in zip(attributes, labels, codes.T, strict=True)
    }


def _named_columns(attributes: Sequence[str], table: object) -> list[np.ndarray] | None:
    """The attributes' columns `[n]` in their order; None where a table has no named columns."""
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
    columns = [np.asarray(table[name]) for name in attributes]
    for name, column in zip(attributes, columns, strict=True):
        if column.ndim != 1:
            raise ValueError(f"column {name!r} must have shape [n], got {list(column.shape)}")
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


def _codes(name: str, size: int, labels: Labels | None, column: np.ndarray) -> np.ndarray:
    """Codes of a column of labels; or of codes, where there are none or only they are text."""
    numeric = column.dtype.kind in "iuf"
    if labels is None or (numeric and all(isinstance(label, str) for label in labels)):
        bound = f"an integer code in [0, {size})"
        if column.dtype.kind not in "biuf":
            each = column.tolist() if column.dtype.kind == "O" else [None] * len(column)
            kinds = (int, float, np.number)
            column = np.array([v if isinstance(v, kinds) else np.nan for v in each], float)
        bad = ~((column >= 0) & (column < size) & (column == np.floor(column)))  # or NaN
    else:
        bound = f"one of its {len(labels)} labels {some(labels)}"
        index = {label: code for code, label in enumerate(labels)}
        known = (
            index.get(v, -1) if isinstance(v, str | int | float) else -1 for v in column.tolist()
        )
        column = np.fromiter(known, np.int32, len(column))
        bad = column < 0
    if bad.any():
        raise ValueError(
            f"column {name!r} must hold {bound}: {int(bad.sum())} of {len(bad)} rows are outside"
        )
    return column.astype(np.int32)


def _array(labels: Labels) -> np.ndarray:
    """Labels as an array, each of its own type."""
    return np.array(labels, None if len(set(map(type, labels))) == 1 else object)


def some(names: Sequence[object], shown: int = 12) -> str:
    """The first few of many names."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{list(names)[:shown]}{more}"
