"""Tables in which a person has several rows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpjax.core import check_choice, check_int
from dpjax.core._records import num_rows
from dpjax.privacy import Guarantee
from dpjax.queries import Domain, Workload
from dpjax.queries.tables import _frames as frames
from dpjax.queries.tables._labels import NUMBERS, reading

_METHODS = ("auto", "gaussian_fit", "histogram", "rows")


@dataclasses.dataclass(frozen=True)
class PersonRecords:
    r"""A table whose rows belong to people, of whom each contributes a bounded number.

    Of a person's rows, in the order of the table, those are kept whose places come first in one
    public random order of the places 1, 2, ...: a rule that looks at no row of anybody else. So
    when a person joins or leaves, all other rows that are kept stay the same.

    Guarantee: `dpjax.release` covers a person joining or leaving with all rows: a sum of queries
    moves by at most `max_rows` times what one row moves it, and the noise is that much larger.
    Solvers that are given `people()` cover a person as one record, whose gradient is clipped as a
    whole; under replace-one all rows of a person are replaced, and the identity stays.

    Args:
      table: Over a domain whatever `Domain.encode` takes; to train on, a mapping of arrays
        `[n, ...]` or a data frame of numbers (*secret*); types of arrays are *public*.
      unit: Who each row belongs to: the name of a column, or identities `[n]` (*secret*). Equal
        identities are one person: 1 and 1.0 are, 1 and "1" are not and may not occur together.
      max_rows: Rows kept of each person, >= 1 (*public*).
      seed: Of the public order of places, >= 0 (*public*).

    Raises:
      TypeError: If `max_rows` or `seed` is no integer.
      ValueError: If one is out of range.

    Example:
      >>> import dpjax
      >>> domain = dpjax.queries.Domain({"sex": ["F", "M"]})
      >>> visits = {"id": [7, 7, 7, 9], "sex": ["F", "F", "F", "M"]}
      >>> dpjax.PersonRecords(visits, unit="id", max_rows=2).codes(domain).tolist()
      [[0], [0], [1]]
    """

    table: object = dataclasses.field(repr=False)
    unit: str | ArrayLike = dataclasses.field(kw_only=True, repr=False)
    max_rows: int = dataclasses.field(kw_only=True)
    seed: int = dataclasses.field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_int("max_rows", self.max_rows, minimum=1)
        check_int("seed", self.seed, minimum=0)

    def codes(self, domain: Domain) -> np.ndarray:
        """Codes `[kept, A]` of the rows that are kept, in the order of the table (*secret*).

        Raises:
          TypeError: If identities have no hash.
          ValueError: If a row has no identity, identities are ambiguous, or a record is outside the
            domain.
        """
        codes = domain.encode(self.table)
        _, place = self._places(len(codes))
        return codes[place < self.max_rows]

    def people(self) -> dict[str, Any]:
        """The rows that are kept, by person: data for a problem of `problems.PersonLoss`.

        Lists and columns of frames become float64, NaN where a number is missing: their own type
        follows from the rows.

        Returns:
          `rows`: the arrays `[people, max_rows, ...]` but for the column of identities, and
          `present`: bool `[people, max_rows]`. Where a person has fewer rows, one is repeated and
          not present (*secret*).

        Raises:
          TypeError: If the table is neither a mapping of arrays nor a data frame of numbers, or
            identities have no hash.
          ValueError: If a row has no identity, identities are ambiguous, or there is no row.
        """
        if not (isinstance(self.table, Mapping) or hasattr(self.table, "columns")):
            raise TypeError(
                "table must be a mapping of arrays [n, ...] or a data frame, got "
                f"{type(self.table).__name__}"
            )
        arrays = frames.named_columns(self.table)
        if isinstance(self.unit, str):
            arrays.pop(self.unit, None)
        for name, array in arrays.items():
            typed = frames.typed_by_rows(array)
            arrays[name] = frames.float_array(name, array) if typed else np.asarray(array)
        person, place = self._places(num_rows(arrays))
        rows = np.flatnonzero(place < self.max_rows)
        found = np.full((person.max() + 1, self.max_rows), -1)
        found[person[rows], place[rows]] = rows
        present = found >= 0
        found = np.where(present, found, found[:, :1])  # the first is there
        return {"rows": {name: array[found] for name, array in arrays.items()}, "present": present}

    def _places(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each row the person, as a number, and the place among that person's rows, `[n]`."""
        column = self.unit
        if isinstance(self.unit, str):
            check_choice("unit", self.unit, frames.column_names(self.table))
            column = frames.column_of(self.table, self.unit)
        values, present = frames.present_values("unit", column)
        if not number:
            raise ValueError("table must have n >= 1 rows, got none")
        if len(present) != number:
            raise ValueError(f"unit must have shape [{number}], one a row, got [{len(present)}]")
        if not present.all():
            raise ValueError(
                f"unit must name a person in every row: {int(np.sum(~present))} of {number} rows "
                "have none; give each of these one of its own, or leave them out"
            )
        person = _numbered(values)
        rows = np.argsort(person, kind="stable")  # of one person after another
        start = np.searchsorted(person[rows], person[rows], side="left")
        # the order of the first places is the same however many there are
        order = np.random.default_rng(self.seed).random(number)[np.arange(number) - start]
        rank = np.argsort(np.lexsort((order, person[rows])))
        return person, (rank - start)[np.argsort(rows)]


def _numbered(values: np.ndarray) -> np.ndarray:
    """The number of each identity's person, `[n]`: one for all that are equal."""
    if values.dtype.kind in "biumMUS":
        return np.unique(values, return_inverse=True)[1]
    # sorting would part what is equal where the order is partial
    people: dict[Any, int] = {}
    try:
        person = [people.setdefault(value, len(people)) for value in values.tolist()]
    except TypeError:
        raise TypeError(
            "unit must hold identities that have a hash: give each person a number or a text"
        ) from None
    if any(map(_differs_from_itself, people)):
        raise ValueError("unit must name a person in every row: an identity holds NaN")
    digits = np.finfo(values.dtype if values.dtype.kind == "f" else float).nmant + 1
    if any(isinstance(v, float | np.floating) and abs(v) >= 2**digits for v in people):
        raise ValueError(
            f"unit must not be of floats from 2^{digits} on, where several identities become one: "
            "give integers or text"
        )
    numbers = {reading(v) for v in people if isinstance(v, NUMBERS)}
    if numbers and any(reading(v) in numbers for v in people if isinstance(v, str | bytes)):
        raise ValueError(
            "unit must not hold a number and text of that number: are these one person? Give all "
            "as numbers, or all as text"
        )
    # by the identities alone: who comes first must not depend on a person's rows, nor on others
    place = {v: i for i, v in enumerate(sorted(people, key=_order))}
    return np.array([place[v] for v in people])[np.array(person, int)]


def _order(identity: object) -> tuple[Any, ...]:
    """What identities of any kinds are sorted by."""
    for rank, kinds in enumerate((NUMBERS, (str,), (bytes,))):
        if isinstance(identity, kinds):
            return (rank, "", identity)
    return (3, type(identity).__name__, repr(identity))


def _differs_from_itself(value: object) -> bool:
    """Whether a value is, or holds, one like NaN: of no two rows is it the same."""
    if isinstance(value, tuple | frozenset) and any(map(_differs_from_itself, value)):
        return True
    return bool(value != value)


def check_people(
    workload: Workload, relation: str, method: str, spent: Sequence[Guarantee]
) -> None:
    """Raises ValueError for what has no guarantee per person."""
    if spent:
        raise ValueError(
            "spent must be empty for PersonRecords: what private_edges and other releases of rows "
            "cost is per row; give the columns public edges"
        )
    if workload.domain is None:
        raise ValueError("PersonRecords need a workload over a domain")
    if relation != "add_or_remove_one":
        raise ValueError(
            f"a guarantee per person is for add_or_remove_one, got {relation}: the number of "
            "rows depends on who is in; leave Budget(relation=) out and give num_records"
        )
    if method not in _METHODS:
        raise ValueError(
            f"method must be one of {_METHODS} for PersonRecords, got {method!r}: draws of "
            "queries and sampled rows have no guarantee per person here"
        )
