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
    codes = [
        _coded(name, size, column) if _is_coded(known, column) else _labelled(name, known, column)
        for name, size, known, column in zip(attributes, shape, labels, columns, strict=True)
    ]
    return np.stack(codes, axis=1)


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


def _is_coded(labels: Labels | None, column: np.ndarray) -> bool:
    """Whether a column is of codes: there are no labels, or it is of numbers and they are text."""
    numbers = column.dtype.kind in "iuf"
    return labels is None or (numbers and all(isinstance(label, str) for label in labels))


def _labelled(name: str, labels: Labels | None, column: np.ndarray) -> np.ndarray:
    """Codes of a column of labels."""
    assert labels is not None
    index = {label: code for code, label in enumerate(labels)}
    kinds = (str, int, float)
    codes = [index.get(v, -1) if isinstance(v, kinds) else -1 for v in column.tolist()]
    array = np.array(codes, np.int32)
    _refuse(name, column, array < 0, f"one of its {len(labels)} labels {some(labels)}")
    return array


def _coded(name: str, size: int, column: np.ndarray) -> np.ndarray:
    """A column of codes; whole numbers of a floating type pass."""
    bound = f"an integer code in [0, {size})"
    if column.dtype.kind == "O":
        numbers = [isinstance(value, int | float | np.number) for value in column.tolist()]
        _refuse(name, column, ~np.array(numbers, bool), bound)
        column = column.astype(float)
    if column.dtype.kind not in "biuf":
        _refuse(name, column, np.ones(len(column), bool), bound)
    inside = (column >= 0) & (column < size)  # not NaN
    _refuse(name, column, ~inside | (column != np.floor(column)), bound)
    return column.astype(np.int32)


def _refuse(name: str, column: np.ndarray, bad: np.ndarray, bound: str) -> None:
    """Raises ValueError where a value of a column is bad."""
    if bad.any():
        raise ValueError(
            f"column {name!r} must hold {bound}: {int(bad.sum())} of {len(bad)} rows are outside"
        )


def _array(labels: Labels) -> np.ndarray:
    """Labels as an array, each of its own type."""
    return np.array(labels, None if len(set(map(type, labels))) == 1 else object)


def some(names: Sequence[object], shown: int = 12) -> str:
    """The first few of many names."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{list(names)[:shown]}{more}"
