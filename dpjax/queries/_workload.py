"""What a family of linear queries is, and what all families have in common."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from dpjax.core import check_shape, is_traced, wide
from dpjax.core._addressable import held, spans_processes
from dpjax.privacy._relations import RelationLike
from dpjax.queries._sensitivity import QuerySensitivity

_MOST_COUNTED = 2**24  # from here on float32 skips whole numbers
_MOST_INDEXED = 2**31 - 1


class Workload(Protocol):
    r"""A family of $m$ linear queries $q_j \in R^k$ over a universe of $k$ cells.

    A frozen dataclass registered as a pytree; all of it is *public*. The matrix $M$ of rows $q_j$
    is never formed where its structure is known. A record is the codes `[A]` of its attributes in a
    family over a `Domain`, and the index of its cell, a scalar, in the others.
    """

    @property
    def num_queries(self) -> int:
        """Number of queries $m$."""

    @property
    def universe_size(self) -> int:
        """Number of cells $k$."""

    @property
    def centre(self) -> Any:
        """Mid-range of each query, $(\\max_z q_j(z) + \\min_z q_j(z)) / 2$: `[m]`, or a scalar."""

    def answers(self, p: ArrayLike) -> jax.Array:
        r"""$Mp$, `[m]`, for `p` `[k]`; counts give counts, where all queries are 0/1."""

    def adjoint(self, v: ArrayLike) -> jax.Array:
        r"""$M^\top v$, `[k]`, for `v` `[m]`."""

    def row(self, j: ArrayLike) -> jax.Array:
        """The query $q_j$, `[k]`; `j` may be traced."""

    def answer_of_record(self, record: ArrayLike) -> jax.Array:
        """All queries at one record, `[m]`."""

    def answers_of_records(self, records: ArrayLike) -> jax.Array:
        """All queries averaged over the records, `[m]`."""

    def histogram(self, records: ArrayLike) -> jax.Array:
        """How many records lie in each cell, `[k]` int32."""

    def sensitivity(self, relation: RelationLike) -> QuerySensitivity:
        """How far one record moves the sum over the records."""


class CellRecords:
    """Methods of a workload whose records are indices of cells; a base for all families.

    A subclass has `universe_size`, `num_queries`, `answers` and `adjoint`. One over a `Domain`
    overrides `record_cells`.
    """

    universe_size: Any
    num_queries: Any
    answers: Callable[[Any], jax.Array]
    adjoint: Callable[[Any], jax.Array]

    def record_cells(self, records: ArrayLike) -> jax.Array:
        """The cells `[n]` int32 of records `[n]`; a traced one out of range counts as the nearest.

        Raises:
          TypeError: If the records are no array, or not integers.
          ValueError: If they are not `[n]`, or a known one is outside the universe.
        """
        check_records(records)
        return checked_codes("records", records, (None,), self.universe_size)

    def histogram(self, records: ArrayLike) -> jax.Array:
        """How many records lie in each cell, `[k]` int32 (*secret*); zeros for no records."""
        cells = self.record_cells(records)
        zeros = spread_cells(self, jnp.zeros(self.universe_size, jnp.int32))
        return spread_cells(self, zeros.at[cells].add(1))

    def answers_of_records(self, records: ArrayLike) -> jax.Array:
        """All queries averaged over the records, `[m]` (*secret*), by the counts of the cells.

        Raises:
          TypeError: If the records are no array, or not integers.
          ValueError: If there are no records.
        """
        check_records(records)
        n = num_records(records)
        return self.answers(self.histogram(records)).astype(float) / n

    def answer_of_record(self, record: ArrayLike) -> jax.Array:
        """All queries at one record, `[m]` (*secret*)."""
        cell = self.record_cells(jnp.asarray(record)[None])[0]
        return self.answers(one_hot(cell, self.universe_size))

    def row(self, j: ArrayLike) -> jax.Array:
        """The query $q_j$, `[k]`; `j` in [0, m) may be traced."""
        return self.adjoint(one_hot(query_index(j, self.num_queries), self.num_queries))


def spread_cells(workload: Any, vector: jax.Array) -> jax.Array:
    """A vector of cells `[k]`, spread over devices where the workload's `sharding` says so."""
    sharding = getattr(workload, "sharding", None)
    return vector if sharding is None else jax.lax.with_sharding_constraint(vector, sharding)


def checked_sharding(sharding: Any, universe_size: int) -> NamedSharding | None:
    """The sharding of a vector of cells, on a mesh whose axes XLA partitions by itself.

    Raises:
      TypeError: If it is no `NamedSharding`.
      ValueError: If it is not of one axis, or the cells do not divide among the devices.
    """
    if sharding is None:
        return None
    if not isinstance(sharding, NamedSharding):
        raise TypeError(f"sharding must be a jax.sharding.NamedSharding, got {sharding!r}")
    mesh, spec = sharding.mesh, sharding.spec
    if len(spec) != 1:
        raise ValueError(f"sharding must be of the one axis of cells, got {spec}")
    names = (spec[0],) if isinstance(spec[0], str) else spec[0] or ()
    shares = math.prod(mesh.shape[name] for name in names)
    if universe_size % shares:
        raise ValueError(
            f"sharding must divide the {universe_size} cells evenly, got {shares} shares"
        )
    if hasattr(jax.sharding, "AxisType"):
        auto = (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
        mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=auto)
    return NamedSharding(mesh, PartitionSpec(spec[0]))


def sums_dtype(workload: Any) -> Any:
    """The type of answers to counts, an integer one where all queries are integers."""
    histogram = jax.ShapeDtypeStruct((workload.universe_size,), jnp.int32)
    return jax.eval_shape(workload.answers, histogram).dtype


def one_hot(index: jax.Array, size: int) -> jax.Array:
    """The unit vector of the default float type, `[size]`; zeros for an index out of range."""
    return (jnp.arange(size, dtype=jnp.int32) == index).astype(float)


def is_workload(value: Any) -> bool:
    """Whether it has what all families of queries have."""
    return all(hasattr(value, name) for name in ("answers", "adjoint", "sensitivity"))


def check_records(records: Any) -> None:
    """Raises unless `records` is an array, or nested lists, of which the columns have no names.

    Raises:
      TypeError: If it is anything else.
    """
    plain = isinstance(records, list | tuple | jax.Array) or hasattr(records, "__array__")
    named = hasattr(records, "columns") or getattr(getattr(records, "dtype", None), "names", None)
    if not plain or named:
        raise TypeError(
            "records must be an array of integers, codes [n, A] over a domain or else cells [n], "
            f"got {type(records).__name__}: domain.encode(table) makes codes of a table"
        )


def num_records(records: Any) -> int:
    """The length of `records`; raises ValueError if there are none, whose mean is undefined."""
    shape = np.shape(records)
    if not shape or shape[0] == 0:
        raise ValueError(f"records must be n >= 1 of them, got shape {list(shape)}")
    return shape[0]


def check_counted(number: int, largest: float = 1.0) -> None:
    """Raises ValueError if sums over so many records are rounded by what one of them changes.

    Args:
      number: Of records (static, so that it is known under a trace too).
      largest: Entry of a query, by the range of its entries.
    """
    sums = number * max(1.0, largest)
    if jnp.zeros(0).dtype == jnp.float32 and sums >= _MOST_COUNTED:
        raise ValueError(
            "records, times the largest entry of a query by its range, must be < "
            f"{_MOST_COUNTED} in float32, which rounds larger sums and with them what one "
            "record does: enable jax_enable_x64, or centre the queries"
        )
    if number > _MOST_INDEXED:
        raise ValueError(f"records must be <= {_MOST_INDEXED}, as cells are counted in int32")


def query_index(j: ArrayLike, num_queries: int) -> jax.Array:
    """The index of a query as an int32 scalar.

    Raises:
      TypeError: If it is no integer.
      ValueError: If it is no scalar, or known and outside [0, m).
    """
    return checked_codes("j", j, (), num_queries)


def checked_codes(name: str, codes: Any, shape: tuple[int | None, ...], size: int) -> jax.Array:
    """Codes in [0, size) as int32; traced ones are clipped to that range.

    Raises:
      TypeError: If they are not integers.
      ValueError: If the shape is another, or a known code is out of range.
    """
    check_shape(name, codes, shape)
    if not is_traced(codes) and not spans_processes(codes):
        codes = np.asarray(codes)
        if codes.size == 0 and codes.dtype == np.float64:  # an empty list
            codes = codes.astype(np.int32)
    if not jnp.issubdtype(codes.dtype, jnp.integer):
        raise TypeError(f"{name} must be of an integer type, got {codes.dtype}")
    if not is_traced(codes):
        here = held(codes)
        bad = np.sum((here < 0) | (here >= size))
        if bad:
            raise ValueError(f"{name} must lie in [0, {size}): {bad} of {here.size} are outside")
    codes = codes.astype(jnp.promote_types(codes.dtype, jnp.int32))
    return jnp.clip(codes, 0, size - 1).astype(jnp.int32)


def checked_vector(name: str, value: ArrayLike, size: int) -> jax.Array:
    """A vector `[size]` in at least single precision; integers stay integers, at least 32 bits.

    Raises:
      TypeError: If it is complex, or no numbers.
      ValueError: If the shape is another.
    """
    check_shape(name, value, (size,))
    array = jnp.asarray(value)
    if array.dtype == jnp.bool_ or jnp.issubdtype(array.dtype, jnp.integer):
        return array.astype(jnp.promote_types(array.dtype, jnp.int32))
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    return wide(array)
