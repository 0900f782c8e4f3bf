"""The attributes of a table and the cells of their product."""

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_choice, check_key, check_shape, check_type, register_dataclass
from dpjax.core._checks import is_traced
from dpjax.core._records import held, spans_processes
from dpjax.queries.tables import _table as tables
from dpjax.queries.tables._frames import contained
from dpjax.queries.tables._kinds import Column
from dpjax.queries.tables._labels import Labels, check_distinct

_MOST_CELLS = 2**31


def checked_codes(
    name: str, codes: ArrayLike, shape: tuple[int | None, ...], size: int
) -> jax.Array:
    """Codes in [0, size) as int32; traced ones are clipped to that range.

    Raises:
      TypeError: If they are not integers.
      ValueError: If the shape is another, or a known code is out of range.
    """
    check_shape(name, codes, shape)
    array = integers(name, codes)
    check_range(name, array, size)
    return jnp.clip(array, 0, size - 1).astype(jnp.int32)


def integers(name: str, values: ArrayLike) -> np.ndarray | jax.Array:
    """Integers of at least 32 bits, on the host unless they are traced or lie on several hosts."""
    away = is_traced(values) or spans_processes(values)
    array = jnp.asarray(values) if away else np.asarray(values)
    if array.size == 0 and array.dtype == np.float64 and not away:  # an empty list
        array = array.astype(np.int32)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name} must be of an integer type, got {array.dtype}")
    # unsigned ones that do not fit become negative, which is out of range
    return array.astype(np.int32 if array.dtype.itemsize <= 4 else np.int64)


def check_range(name: str, values: np.ndarray | jax.Array, size: int) -> None:
    """Raises ValueError if a known value is outside [0, size)."""
    if is_traced(values):
        return
    here = held(values)
    bad = np.sum((here < 0) | (here >= size))
    if bad:
        # of records: how many, not which
        raise ValueError(f"{name} must lie in [0, {size}): {bad} of {here.size} are outside")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Domain:
    r"""The categorical attributes of a table, with the values each may take.

    The universe is their product: $k = \prod_a n_a$ cells, numbered in C order over the attributes
    in the order given, so that the last attribute runs fastest. It is a public constant, and must
    not be read off the data. A domain is hashable, equal by value, and a pytree without leaves.

    Args:
      spec: For each attribute, by name, its number of codes, the list of its labels, which stand
        for 0, 1, ... in turn, or a column: `Numeric`, `Categorical` or `Date`. A mapping, or pairs
        (*public*, static).

    Raises:
      TypeError: If a name is no text, or a value neither an integer nor a list of labels.
      ValueError: If there is no attribute, one is named twice, a size is `< 1`, or labels repeat
        or stand for one value, as "1" and "01" do.

    Example:
      >>> domain = Domain({"sex": ["F", "M"], "age": 10})
      >>> domain.attributes, domain.shape, domain.universe_size
      (('sex', 'age'), (2, 10), 20)
      >>> codes = domain.encode({"age": [3, 9], "sex": ["M", "F"]})
      >>> domain.cells(codes).tolist()
      [13, 9]
    """

    spec: Any = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", tables.normal_spec(self.spec))

    @classmethod
    def from_columns(cls, columns: Mapping[str, Column]) -> "Domain":
        """A domain of raw columns: what they may hold, from a codebook and never from the data.

        Args:
          columns: For each, by name, `Numeric`, `Categorical` or `Date` (*public*).

        Returns:
          The domain; `encode` takes raw tables, and `decode` gives values of the columns' types.

        Raises:
          TypeError: If one is no column, or a table is given.

        Example:
          >>> from dpjax.queries import Categorical, Numeric
          >>> domain = Domain.from_columns({
          ...     "age": Numeric(17, 90, bins=8, integer=True),
          ...     "sex": Categorical(["F", "M"], missing=True)})
          >>> domain.shape, domain.encode({"age": [30, 200], "sex": ["M", None]}).tolist()
          ((8, 3), [[1, 1], [7, 2]])
        """
        more = ": what they may hold is public and must not be read off the data"
        check_type("columns", columns, Mapping, "a mapping of names to columns", more)
        for name, column in columns.items():
            check_type(f"column {name!r}", column, Column, "Numeric, Categorical or Date", more)
        return cls(columns)

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | TextIO) -> "Domain":
        """A domain from JSON: of `to_json`, or such as `{"sex": 2, "race": ["white", "black"]}`.

        Args:
          source: A path, the text itself (it begins with a brace), or an open file (*public*).

        Returns:
          The domain, its attributes in the order of the text.

        Raises:
          ValueError: If the text is no JSON object, or as for a mapping.

        Example:
          >>> Domain.from_json('{"sex": 2, "age": 10}').shape
          (2, 10)
        """
        return cls(tables.read_json(source))

    def to_json(self) -> str:
        """The domain as a JSON text, a schema for people to read and for `from_json`.

        Example:
          >>> domain = Domain({"sex": ["F", "M"]})
          >>> Domain.from_json(domain.to_json()) == domain
          True
        """
        return tables.written_json(self.spec)

    @functools.cached_property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes, in order."""
        return tuple(name for name, _ in self.spec)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of codes of each attribute."""
        return tuple(tables.size_of(values) for _, values in self.spec)

    @functools.cached_property
    def labels(self) -> tuple[Labels | None, ...]:
        """What stands for each attribute's codes; None where there are only codes.

        Of bins and periods it is text; a missing value is None.
        """
        return tuple(_labels(values) for _, values in self.spec)

    @property
    def universe_size(self) -> int:
        """Number of cells $k$, exactly; it may be far too large to enumerate."""
        return math.prod(self.shape)

    def axes(self, attributes: Iterable[str]) -> tuple[int, ...]:
        """Positions of some attributes, in the domain's order.

        Raises:
          TypeError: If `attributes` is one text and not several.
          ValueError: If one is unknown, or given twice.
        """
        if isinstance(attributes, str):
            raise TypeError(f"attributes must be several names, got {attributes!r}: write a tuple")
        known = {name: axis for axis, name in enumerate(self.attributes)}
        names = list(attributes)
        for name in names:
            check_choice("attribute", name, self.attributes)
        check_distinct("attributes", names)
        return tuple(sorted(known[name] for name in names))

    def project(self, attributes: Iterable[str]) -> "Domain":
        """The domain of some attributes alone, in this domain's order.

        Raises:
          ValueError: If one is unknown or given twice, or there are none.

        Example:
          >>> Domain({"a": 2, "b": 3, "c": 4}).project(("c", "a")).attributes
          ('a', 'c')
        """
        return Domain(tuple(self.spec[axis] for axis in self.axes(attributes)))

    def encode(self, table: object) -> np.ndarray:
        """The codes of a table's records.

        Raw values where the attribute is a column such as `Numeric`. Where it is a list of labels,
        labels; or, in a named column and if no label reads as a number, numbers that are codes.
        Other columns of the table are left out. A record outside the public domain is an error,
        never a new category; an error tells that there is one, so let secret tables have columns
        that take whatever comes: `Categorical(..., other="other", missing=True)`.

        What a value stands for follows from it and the domain alone, since readers type a column by
        all of its records: 1, 1.0, True, "1", "01" and "true" are one label. What else a reader
        infers, such as which texts are missing or days, is out of reach here: give it the types of
        the columns, as `dtype=` of `pandas.read_csv`.

        Args:
          table: Codes `[n, A]`; or columns `[n]` by name: a mapping, a structured array, or a data
            frame of pandas, polars or pyarrow (*secret*).

        Returns:
          Codes `[n, A]` int32, column a in `[0, shape[a])` (*secret*).

        Raises:
          TypeError: If `table` is none of these.
          ImportError: If it is a data frame and narwhals is not installed.
          ValueError: If a value is outside its domain (names the column and the number of rows), a
            column is missing, lengths differ, or there are no records.

        Example:
          >>> Domain({"sex": ["F", "M"], "age": 10}).encode({"sex": ["M"], "age": [3]}).tolist()
          [[1, 3]]
        """
        return tables.encode_table(self.spec, table)

    def decode(self, codes: ArrayLike, *, key: jax.Array | None = None) -> dict[str, np.ndarray]:
        """The columns `[n]` behind codes `[n, A]`: labels where there are any, else codes.

        Numbers and days are drawn within their bins. The type of a column follows from the domain
        alone: float64, int64, datetime64[D], or that of its labels. A missing value is NaN or NaT;
        among integers, booleans and text it is None, in an array of objects.

        Args:
          codes: `[n, A]`.
          key: Typed key, required where there are `Numeric` or `Date` columns.

        Raises:
          TypeError: If the codes are not integers.
          ValueError: If one is outside its domain, the shape is another, or the key is missing.

        Example:
          >>> Domain({"sex": ["F", "M"], "age": 10}).decode([[1, 3]])["sex"].tolist()
          ['M']
        """
        return decode_into(self, dict, codes, key)

    def cells(self, codes: ArrayLike) -> jax.Array:
        """The cells that records lie in.

        Args:
          codes: Integers `[..., A]`; a traced code out of range counts as the nearest (*secret*).

        Returns:
          Indices in `[0, k)`, `[...]` int32.

        Raises:
          TypeError: If the codes are not integers.
          ValueError: If the last axis is not A, a known code is out of range (names its column), or
            there are $2^{31}$ cells or more.
        """
        self.check_enumerable()
        return self.record_codes(codes) @ jnp.asarray(strides(self.shape), jnp.int32)

    def codes(self, cells: ArrayLike) -> jax.Array:
        """The codes `[..., A]` int32 of cells `[...]` in `[0, k)`: the inverse of `cells`."""
        self.check_enumerable()
        known = checked_codes("cells", cells, np.shape(cells), self.universe_size)
        pairs = zip(strides(self.shape), self.shape, strict=True)
        return jnp.stack([known // step % count for step, count in pairs], axis=-1)

    def record_codes(self, codes: ArrayLike) -> jax.Array:
        """`codes` `[..., A]` as int32: checked where known, clipped to their range where traced."""
        got = np.shape(codes)
        if not got or got[-1] != len(self.shape):
            raise ValueError(
                f"codes must have shape [..., {len(self.shape)}], one column for each of "
                f"{list(self.attributes)}, got {list(got)}"
            )
        array = integers("codes", codes)
        for i, (name, size) in enumerate(zip(self.attributes, self.shape, strict=True)):
            check_range(f"codes of {name!r}", array[..., i], size)
        last = np.reshape(self.shape, (1,) * (len(got) - 1) + (-1,)) - 1
        return jnp.clip(array, 0, last.astype(array.dtype)).astype(jnp.int32)

    def check_enumerable(self) -> None:
        """Raises ValueError unless there are fewer than $2^{31}$ cells."""
        size = self.universe_size
        if size >= _MOST_CELLS:
            raise ValueError(
                f"the universe must have < 2**31 cells to be enumerated, got {size} "
                f"(2**{math.log2(size):.1f}) from shape {list(self.shape)}: drop attributes "
                "(Domain.project) or merge categories"
            )


def decode_into(
    domain: Domain, container: str | type | None, codes: ArrayLike, key: jax.Array | None
) -> Any:
    """As `Domain.decode`, as what `container_of` says of a table."""
    check_shape("codes", codes, (None, len(domain.shape)))
    if key is not None:
        check_key("key", key)
    known = np.asarray(domain.record_codes(codes))
    return contained(tables.decode_table(domain.spec, known, key), container)


def labels_of(domain: Domain, name: str) -> tuple[Any, ...]:
    """What stands for the codes of an attribute: its labels, or the codes themselves."""
    (axis,) = domain.axes([name])
    return domain.labels[axis] or tuple(range(domain.shape[axis]))


def _labels(values: int | Labels | Column) -> tuple[Any, ...] | None:
    if isinstance(values, Column):
        return values.texts + (None,) * values.missing
    return None if isinstance(values, int) else values


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Distance in C order between neighbours along each axis."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
