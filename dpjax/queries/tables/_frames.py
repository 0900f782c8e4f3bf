"""Data frames of pandas, polars and pyarrow, by narwhals; imported where one is given."""

import datetime
import decimal
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax.queries.tables._kinds import zone_message
from dpjax.queries.tables._labels import NUMBERS, as_float

_LIBRARIES = ("pandas", "polars", "pyarrow")
_HOLES: dict[str, float | np.datetime64] = {"f": np.nan, "M": np.datetime64("NaT", "D")}
_TYPES = {"i": "Int64", "f": "Float64", "b": "Boolean", "U": "String"}


def narwhal(table: object) -> Any:
    """A data frame as one of narwhals; whatever is none as it is.

    Raises:
      ImportError: If it is one of a library, and narwhals is not installed.
      TypeError: If it is lazy.
    """
    library = _library(table)
    if library is None:
        return table
    try:
        narwhals = importlib.import_module("narwhals")
    except ImportError:
        raise ImportError(
            f"a frame of {library} needs narwhals: pip install 'dpjax[frames]', or pass a "
            "dictionary of arrays"
        ) from None
    if hasattr(table, "collect"):
        raise TypeError("the frame is lazy: collect() it first")
    return narwhals.from_native(table, eager_only=True)


def named_columns(table: Any) -> dict[str, Any]:
    """The columns of a mapping or of a data frame, as they come."""
    if isinstance(table, Mapping):
        return dict(table)
    names = getattr(table, "column_names", table.columns)  # of pyarrow, whose columns are arrays
    return {str(name): table[name] for name in names}


def column_of(table: object, name: str) -> Any:
    """A column of a table that has names."""
    return (table if isinstance(table, np.ndarray | Mapping) else narwhal(table))[name]


def column_names(table: object) -> list[str]:
    """Names of the columns of a table, none of an array of codes."""
    if isinstance(table, np.ndarray):
        return list(table.dtype.names or ())
    return list(table if isinstance(table, Mapping) else getattr(narwhal(table), "columns", ()))


def container_of(table: object) -> str | type | None:
    """What `contained` makes tables like this of; None for an array of codes."""
    if isinstance(table, np.ndarray):
        return None if table.dtype.names is None else dict
    if isinstance(table, Mapping):
        return dict
    return _library(table) or (type(table) if hasattr(table, "columns") else None)


def contained(
    columns: Mapping[str, tuple[np.ndarray, np.ndarray | None]], container: str | type | None
) -> Any:
    """Columns by name, with masks of missing values, as a frame of a library or as a mapping.

    Types follow from the columns' alone, not from which rows are missing: with a mask, integers and
    booleans are nullable in pandas, and objects in a mapping.
    """
    if container not in _LIBRARIES:
        plain = {name: _filled(*column) for name, column in columns.items()}
        return plain if container in (None, dict) else container(plain)  # type: ignore[operator]
    narwhals = importlib.import_module("narwhals")
    series = {}
    for name, (values, absent) in columns.items():
        column, dtype = _filled(values, absent), None
        if absent is not None and values.dtype.kind in _TYPES:
            dtype = getattr(narwhals, _TYPES[values.dtype.kind])
            column = _with_none(values, absent).tolist()
            if container == "pandas" and values.dtype.kind in "ib":  # those of numpy have no null
                nullable = "Int64" if values.dtype.kind == "i" else "boolean"
                column, dtype = importlib.import_module("pandas").array(column, nullable), None
        series[name] = narwhals.new_series(name, column, dtype, backend=container)
    return narwhals.from_dict(series).to_native()


def _filled(values: np.ndarray, absent: np.ndarray | None) -> np.ndarray:
    """Values with NaN, NaT or, of other types, None where they are missing."""
    if absent is None:
        return values
    hole = _HOLES.get(values.dtype.kind)
    return _with_none(values, absent) if hole is None else np.where(absent, hole, values)


def _with_none(values: np.ndarray, absent: np.ndarray) -> np.ndarray:
    objects = values.astype(object)
    objects[absent] = None
    return objects


def present_values(name: str, column: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values of a column that are not missing, and which rows `[n]` these are.

    Raises:
      ValueError: If the column has a time zone.
    """
    # of those with a missing value NumPy would make floats of integers
    if hasattr(column, "to_pylist"):  # an array of pyarrow
        column = column.to_pylist()
    elif type(column).__module__.startswith("polars"):
        column = importlib.import_module("narwhals").from_native(column, series_only=True)
    if hasattr(column, "to_native"):  # a series of narwhals
        if getattr(column.dtype, "time_zone", None) is not None:
            raise ValueError(zone_message(name))
        present = ~column.is_null().to_numpy()
        values = column.drop_nulls().to_numpy()
    else:
        if isinstance(column, np.ma.MaskedArray):
            column = _with_none(column.data, np.ma.getmaskarray(column))
        if isinstance(column, list | tuple):  # as they are: one value may turn all others to text
            values = np.empty(len(column), object)
            values[:] = column
        else:
            values = np.asarray(column)
        present = np.ones(len(values), bool)
    if values.dtype.kind == "O":
        items = values.tolist()
        # one look at each type: most have no missing value
        doubtful = {kind for kind in set(map(type, items)) if _has_missing(kind)}
        there = np.array([type(v) not in doubtful or not _missing(v) for v in items], bool)
    else:
        there = values == values  # neither NaN nor NaT
    present[present] = there
    return values[there], present


def typed_by_rows(column: object) -> bool:
    """Whether the type of a column follows from its rows: a list, or of a data frame."""
    return isinstance(column, list | tuple) or hasattr(column, "to_numpy")


def float_array(name: str, column: Any) -> np.ndarray:
    """Numbers `[n]`, or `[n, ...]` of several columns, as float64; NaN where they are missing.

    Raises:
      TypeError: If the column holds anything but numbers.
    """
    if hasattr(column, "columns"):
        return np.stack([float_array(str(each), column[each]) for each in column.columns], axis=1)
    array = np.asarray(column)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    values, present = present_values(name, column)
    wrong = sum(not isinstance(value, NUMBERS) for value in values)
    if wrong:
        raise TypeError(
            f"column {name!r} must hold numbers: {wrong} of {len(present)} rows do not; give "
            "codes, such as 0 and 1, or leave it out"
        )
    floats = np.full(len(present), np.nan)
    floats[present] = [as_float(value) for value in values]
    return floats


def _library(table: object) -> str | None:
    """Which library a frame is of, by the module of its class; None if it is no frame."""
    module = type(table).__module__.split(".")[0]
    return module if module in _LIBRARIES and hasattr(type(table), "columns") else None


def _has_missing(kind: type) -> bool:
    if kind in (type(None), decimal.Decimal) or kind.__name__ == "NAType":
        return True
    return issubclass(kind, float | np.floating | np.datetime64 | datetime.date)


def _missing(value: object) -> bool:
    """Whether a value of such a type is missing."""
    if value is None or type(value).__name__ == "NAType":  # of pandas, which compares as itself
        return True
    return value.is_nan() if isinstance(value, decimal.Decimal) else bool(value != value)
