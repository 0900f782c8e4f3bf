"""Kinds of columns: which code a raw value has, and which values a code stands for."""

import abc
import dataclasses
import datetime
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax.core import check_choice, check_int, check_type
from dpjax.queries.tables._labels import NUMBERS, Labels, checked_labels, label_array, label_codes

_BINS = 16
_DERIVED: Any = None  # stands for what follows from the other fields
_LAST = np.iinfo(np.int64)
_CALENDAR = {"day": "D", "month": "M", "quarter": "3M", "year": "Y"}  # as NumPy names them
_NOT_READ_OFF = (
    "bounds are public and must not be read off the data: give low and high, or edges, from a "
    "codebook"
)


@dataclasses.dataclass(frozen=True)
class Column(abc.ABC):
    """A kind of column, hashable and equal by value; all of it is *public*.

    Args:
      missing: Whether a missing value (None, NaN, NaT, NA, null) has a code of its own, the last.

    Raises:
      TypeError: If `missing` is neither True nor False.
    """

    missing: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_type("missing", self.missing, bool, "True or False")

    @property
    @abc.abstractmethod
    def texts(self) -> tuple[object, ...]:
        """What tables show for each code but that of missing values."""

    @abc.abstractmethod
    def _codes(self, name: str, values: np.ndarray) -> np.ndarray:
        """Codes `[n]` of values `[n]`, none of them missing; `name` is for messages."""

    @abc.abstractmethod
    def _draw(self, codes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Values `[n]` with these codes `[n]`."""

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.texts) + self.missing


@dataclasses.dataclass(frozen=True)
class Numeric(Column):
    r"""Numbers in a public range, in bins: $[e_i, e_{i+1})$, the last bin closed.

    Numbers outside count as the nearest end. Decoded, a number is uniform in its bin, a float64, or
    uniform among its integers, an int64. Integers are compared exactly, whatever their size; but
    from 2^53 on give pandas `Int64`, since it makes floats of integers among which one is missing.

    Args:
      low: The least number (*public*).
      high: The largest (*public*).
      bins: How many, of equal width or, of integers, as equal as can be; 16, or one for each
        integer where there are fewer (*public*).
      edges: The ends of the bins in place of these, increasing (*public*).
      scale: `"linear"`, or `"log"` for long tails such as of incomes: ends of bins have equal
        ratios, decoded numbers are uniform in their logarithm, and `low` is > 0 (*public*).
      integer: Whether the column is of integers: its ends must be. A fraction counts as the integer
        below.
      missing: As of all columns.

    Raises:
      TypeError: If neither range nor edges are given, or they are not numbers.
      ValueError: If they are not finite or do not increase, there are more bins than integers, or
        a log scale has a number of 0 or below.

    Example:
      >>> Numeric(0, 99, bins=3, integer=True).edges
      (0, 33, 66, 99)
      >>> Numeric(1, 1000, bins=3, scale="log", integer=True).edges
      (1, 10, 100, 1000)
      >>> Numeric(edges=[0, 0.5, 10]).texts
      ('[0.0, 0.5)', '[0.5, 10.0]')
    """

    low: float = _DERIVED
    high: float = _DERIVED
    bins: int = _DERIVED
    edges: Sequence[float] = dataclasses.field(default=_DERIVED, kw_only=True)
    scale: str = dataclasses.field(default="linear", kw_only=True)
    integer: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("integer", self.integer, bool, "True or False")
        check_choice("scale", self.scale, ("linear", "log"))
        if self.edges is not None:
            edges = tuple(self._end("edges", edge) for edge in self.edges)
            if len(edges) < 2:
                raise ValueError(f"edges must be >= 2 of them, got {len(edges)}")
        else:
            edges = self._equal()
        if self.scale == "log" and edges[0] <= 0:
            raise ValueError(
                f"low must be > 0 on a log scale, got {edges[0]}: give the least positive number "
                "that matters, since values below an end count as it"
            )
        steps = [after - before for before, after in itertools.pairwise(edges)]
        steps[-1] += self.integer  # the last bin may hold one integer
        if min(steps) <= 0:
            raise ValueError(f"edges must increase, got {list(edges)}")
        given = (self.low, self.high, self.bins)
        derived = (edges[0], edges[-1], len(edges) - 1)
        if any(one is not None and one != two for one, two in zip(given, derived, strict=True)):
            raise ValueError("give low, high and bins, or edges: these do not agree")
        vars(self).update(low=edges[0], high=edges[-1], bins=len(edges) - 1, edges=edges)

    def _end(self, name: str, end: object) -> float:
        """One end, an int or a float."""
        if isinstance(end, bool) or not isinstance(end, int | float | np.number):
            raise TypeError(f"{name} must be numbers, got {type(end).__name__}: {_NOT_READ_OFF}")
        if not math.isfinite(end):
            raise ValueError(f"{name} must be finite, got {end}: values beyond an end count as it")
        if not self.integer:
            return float(end)
        if end != int(end) or not _LAST.min <= end <= _LAST.max:
            raise ValueError(f"{name} of integers must be integers of 64 bits, got {end}")
        return int(end)

    def _equal(self) -> tuple[float, ...]:
        if self.low is None or self.high is None:
            raise TypeError(_NOT_READ_OFF)
        low, high = self._end("low", self.low), self._end("high", self.high)
        if self.bins is not None:
            check_int("bins", self.bins, minimum=1)
        if not (low < high or (self.integer and low == high)):
            raise ValueError(f"low must be < high, got {low} and {high}")
        log = self.scale == "log" and low > 0  # else it is refused
        if not self.integer:
            spaced = np.geomspace if log else np.linspace
            return tuple(spaced(low, high, (self.bins or _BINS) + 1).tolist())
        count = int(high) - int(low) + 1
        bins = self.bins or min(_BINS, max(count, 1))
        if bins > count:
            raise ValueError(f"bins must be <= {count}, the integers from low to high, got {bins}")
        starts = [int(low) + i * count // bins for i in range(bins)]
        if log:
            ratio = high / low
            starts = [round(low * ratio ** (i / bins)) for i in range(bins)]
            for i in range(1, bins):  # at least one integer in each
                starts[i] = max(starts[i], starts[i - 1] + 1)
        return (*starts, high)

    @functools.cached_property
    def texts(self) -> tuple[object, ...]:
        """The bins as intervals; an integer alone in its bin by itself."""
        edges = self._edges.tolist()
        texts = [f"[{low}, {high})" for low, high in itertools.pairwise(edges)]
        texts[-1] = texts[-1][:-1] + "]"
        if self.integer:  # the last bin is closed
            after = [*edges[:-1], edges[-1] + 1]
            alone = [high - low == 1 for low, high in itertools.pairwise(after)]
            texts = [str(e) if one else t for e, t, one in zip(edges, texts, alone, strict=False)]
        return tuple(texts)

    def _codes(self, name: str, values: np.ndarray) -> np.ndarray:
        """The bin of each number."""
        low, high = self._edges[0].item(), self._edges[-1].item()
        wrong = len(values) * (values.dtype.kind not in "biuf")
        if values.dtype.kind == "O":
            items = values.tolist()
            right = {kind for kind in set(map(type, items)) if issubclass(kind, NUMBERS)}
            wrong = sum(type(item) not in right for item in items)
            if not wrong:
                whole = math.floor if self.integer else float
                held = [whole(min(max(item, low), high)) for item in items]
                values = np.array(held, self._edges.dtype)
        if wrong:
            raise ValueError(
                f"column {name!r} must hold numbers: {wrong} of {len(values)} rows that are not "
                "missing are outside; convert it, or declare it Categorical or Date"
            )
        if self.integer and values.dtype.kind == "f":  # 2^63 itself does not fit
            values = np.clip(np.floor(values.astype(np.float64)), -(2.0**63), 2.0**63 - 1024)
        elif self.integer and values.dtype.kind == "u":
            values = np.minimum(values, np.uint64(_LAST.max))
        values = np.clip(values.astype(self._edges.dtype), low, high)
        return np.searchsorted(self._edges[:-1], values, side="right") - 1

    def _draw(self, codes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """A number of each bin."""
        below, above = self._edges[codes], self._edges[codes + 1]
        last = codes == self.bins - 1
        inside = above - 1 if self.integer else np.nextafter(above, -np.inf)
        top = np.where(last, above, inside)
        if self.scale == "log":
            low, high = np.log(below), np.log(above.astype(float) + (last & self.integer))
            drawn = np.exp(low + (high - low) * generator.random(len(codes)))
            if self.integer:
                drawn = np.minimum(np.floor(drawn), 2.0**63 - 1024).astype(np.int64)
        elif self.integer:
            drawn = generator.integers(below, top, endpoint=True)
        else:
            share = generator.random(len(codes))
            drawn = below * (1 - share) + above * share
        return np.clip(drawn, below, top)

    @functools.cached_property
    def _edges(self) -> np.ndarray:
        return np.array(self.edges, np.int64 if self.integer else np.float64)


@dataclasses.dataclass(frozen=True)
class Categorical(Column):
    """Values out of a public list.

    Args:
      labels: Text, numbers or booleans, for codes 0, 1, ... in turn (*public*). Text of a number
        stands for that number, as in `Domain.encode`.
      other: A label more for whatever is not among them; None refuses such rows, and that it does
        tells of the data (*public*).
      missing: As of all columns.

    Raises:
      TypeError: If a label is neither text nor a number.
      ValueError: If there is none, one is given twice, or two stand for one value.

    Example:
      >>> Categorical(["cat", "dog"], "other", missing=True).size
      4
    """

    labels: Labels
    other: str | int | float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        more = () if self.other is None else (self.other,)
        labels = checked_labels("labels", self.labels)
        checked_labels("labels and other", labels + more)
        vars(self).update(labels=labels)

    @property
    def texts(self) -> tuple[object, ...]:
        """The labels."""
        return self.labels if self.other is None else (*self.labels, self.other)

    def _codes(self, name: str, values: np.ndarray) -> np.ndarray:
        """The place of each label."""
        codes = label_codes(self.labels, values)
        unknown = codes < 0
        if self.other is None and unknown.any():
            raise ValueError(
                f"column {name!r} holds labels that are not declared: {int(unknown.sum())} of "
                f"{len(codes)} rows that are not missing; add them, or give "
                "Categorical(..., other='other')"
            )
        return np.where(unknown, len(self.labels), codes)

    def _draw(self, codes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """The labels."""
        return label_array(self.texts)[codes]


@dataclasses.dataclass(frozen=True)
class Date(Column):
    """Days of a public range, by calendar periods.

    Days outside count as the nearest end; times of day are cut off. Decoded, a day is uniform in
    its period, as datetime64[D].

    Args:
      start: The first day, as `"2020-01-31"` or a date (*public*).
      end: The last (*public*).
      unit: `"day"`, `"week"` (from Monday), `"month"`, `"quarter"` or `"year"` (*public*).
      missing: As of all columns.

    Raises:
      ValueError: If an end is no day, or they are out of order, or the unit is another.

    Example:
      >>> Date("2020-02-10", "2020-04-01").texts
      ('2020-02', '2020-03', '2020-04')
    """

    start: str | datetime.date | np.datetime64
    end: str | datetime.date | np.datetime64
    unit: str = "month"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("unit", self.unit, ("day", "week", "month", "quarter", "year"))
        for name in ("start", "end"):
            value = getattr(self, name)
            try:
                day = np.datetime64(value, "D")
            except (ValueError, TypeError):
                day = np.datetime64("NaT", "D")
            if np.isnat(day):
                raise ValueError(f"{name} must be a day like '2020-01-31', got {value!r}")
            vars(self)[name] = str(day)
        if self._ends[0] > self._ends[1]:
            raise ValueError(f"start must be <= end, got {self.start} and {self.end}")

    @functools.cached_property
    def texts(self) -> tuple[object, ...]:
        """The periods: 2020-03-01, 2020-03, 2020Q1 or 2020; a week by its Monday."""
        first, last = self._period(self._ends)
        if self.unit == "quarter":
            return tuple(f"{1970 + each // 4}Q{each % 4 + 1}" for each in range(first, last + 1))
        days = self._first_day(np.arange(first, last + 1))
        return tuple(map(str, days.astype(f"datetime64[{_CALENDAR.get(self.unit, 'D')}]")))

    def _codes(self, name: str, values: np.ndarray) -> np.ndarray:
        """The period of each day."""
        wrong = len(values) * (values.dtype.kind != "M")
        if values.dtype.kind == "O":
            items = values.tolist()
            if any(getattr(item, "tzinfo", None) is not None for item in items):
                raise ValueError(zone_message(name))
            wrong = sum(not isinstance(item, datetime.date | np.datetime64) for item in items)
            if not wrong:
                values = np.array(items, "datetime64[us]")
        if wrong:
            raise ValueError(
                f"column {name!r} must hold dates: {wrong} of {len(values)} rows that are not "
                "missing are outside; convert it by pandas.to_datetime, or to datetime64[D]"
            )
        days = np.clip(values.astype("datetime64[D]"), *self._ends)
        return self._period(days) - self._period(self._ends)[0]

    def _draw(self, codes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """A day of each period."""
        periods = codes + self._period(self._ends)[0]
        first = np.maximum(self._first_day(periods), self._ends[0]).astype(np.int64)
        end = self._ends[1] + np.timedelta64(1, "D")
        after = np.minimum(self._first_day(periods + 1), end).astype(np.int64)
        return generator.integers(first, after).astype("datetime64[D]")

    @functools.cached_property
    def _ends(self) -> np.ndarray:
        return np.array([self.start, self.end], "datetime64[D]")

    def _period(self, days: np.ndarray) -> np.ndarray:
        """Number of the period of each day, since 1970."""
        if self.unit == "week":
            return (days.astype(np.int64) + 3) // 7  # 1970 began on a Thursday
        return days.astype(f"datetime64[{_CALENDAR[self.unit]}]").astype(np.int64)

    def _first_day(self, periods: np.ndarray) -> np.ndarray:
        """The first day of each period."""
        if self.unit == "week":
            return (7 * periods - 3).astype("datetime64[D]")
        return periods.astype(f"datetime64[{_CALENDAR[self.unit]}]").astype("datetime64[D]")


def zone_message(name: str) -> str:
    """What to do about a time zone."""
    return (
        f"column {name!r} has a time zone: convert it to a public one and drop that, as "
        "column.dt.tz_convert('UTC').dt.tz_localize(None) of pandas does"
    )
