"""Base class of families of linear queries, and several families as one."""

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import PyTree, check_nonnegative_scalar, check_shape, check_type, register_dataclass
from dpjax.core._pairs import Pair, pair_of, wide
from dpjax.privacy import RelationLike, resolve_relation
from dpjax.queries._domain import Domain, checked_codes

_MOST_COUNTED = 2**24  # from here on float32 skips whole numbers
_MOST_INDEXED = 2**31 - 1


class QuerySensitivity(NamedTuple):
    r"""Largest changes between neighbours of $n$ times the mean answers, $\sum_i q_j(z_i)$.

    Divide by the number of records, which is public under replace-one, or under add/remove by a
    public normaliser. All values are *public*: they depend on the workload and the relation alone.

    Attributes:
      value_range: $R = \max_j (\max_z q_j(z) - \min_z q_j(z))$, whatever the relation.
      score_range: Over the symmetric class $\{q_j, -q_j\}$, the largest change of a score less the
        smallest: $2R$ for replace-one. For add/remove $R$, **of queries centred at mid-range**
        ($q_j$ less `workload.centre`), which a selection must score then. A draw from the softmax
        of $\beta$ times the scores is of bounded range $\beta$ times this.
      l2_answers: Of the vector of all answers, in the l2 norm (queries as they are, not centred).
      l2_histogram: Of the counts of the cells, in the l2 norm: $\sqrt 2$, or 1 for add/remove.
      linf: Of a single answer (not centred).
    """

    value_range: float
    score_range: float
    l2_answers: float
    l2_histogram: float
    linf: float


def query_sensitivity(
    relation: RelationLike,
    *,
    value_range: float,
    largest: float,
    l2_replaced: float,
    l2_record: float,
    universe_size: int,
) -> QuerySensitivity:
    r"""The sensitivities of a workload from four constants of its queries.

    Guarantee: they bound every pair of neighbours if the constants are what they say. Relation:
    any; replace-special, where a record becomes the zero record, moves as much as add/remove.

    Args:
        relation: A `dp_accounting.NeighboringRelation` or its lower-case name (*public*).
        value_range: $\max_j(\max_z q_j(z) - \min_z q_j(z))$.
        largest: $\max_{j,z} |q_j(z)|$.
        l2_replaced: $\max_{z,z'} \|q(z) - q(z')\|_2$, $q(z)$ the answers of one record.
        l2_record: $\max_z \|q(z)\|_2$.
        universe_size: Number of cells; in a universe of one cell nothing can be replaced.

    Returns:
        A `QuerySensitivity` of Python floats.

    Raises:
        ValueError: The relation is unknown, or a constant is negative or not finite.
        TypeError: If a constant is not a number.

    Example:
        >>> query_sensitivity("add_or_remove_one", value_range=1.0, largest=1.0, l2_replaced=2**0.5,
        ...                   l2_record=1.0, universe_size=2).score_range
        1.0
    """
    names = ("value_range", "largest", "l2_replaced", "l2_record")
    for name, value in zip(names, (value_range, largest, l2_replaced, l2_record), strict=True):
        check_nonnegative_scalar(name, value)
    if resolve_relation(relation).name == "REPLACE_ONE":
        histogram = math.sqrt(2) if universe_size > 1 else 0.0
        changes = (2 * value_range, l2_replaced, histogram, value_range)
    else:
        changes = (value_range, l2_record, 1.0, largest)
    return QuerySensitivity(float(value_range), *map(float, changes))


class Workload(abc.ABC):
    r"""A family of $m$ linear queries $q_j \in R^k$ over a universe of $k$ cells.

    A frozen dataclass registered as a pytree; all of it is *public*. The matrix $M$ of rows $q_j$
    is never formed where its structure is known. A record is the codes `[A]` of its attributes in a
    family over a `Domain`, and the index of its cell, a scalar, in the others.

    Guarantee: none by itself. `sensitivity` says how far one record moves sums of the queries, by
    constants of the family alone; a family of yours is responsible for its own.

    A family defines `num_queries`, `universe_size`, `centre`, `answers`, `adjoint` and either
    `sensitivity` or, as `_constants`, what `query_sensitivity` takes.
    """

    sharding: NamedSharding | None = None
    """How vectors of cells are spread over devices; None: as XLA sees fit."""

    @functools.cached_property
    def num_queries(self) -> int:
        """Number of queries $m$."""
        raise self._lacks("num_queries")  # no abstract member: it may be a field

    @functools.cached_property
    def universe_size(self) -> int:
        """Number of cells $k$."""
        raise self._lacks("universe_size")

    @property
    @abc.abstractmethod
    def centre(self) -> ArrayLike:
        r"""Mid-range of each query, $(\max_z q_j(z) + \min_z q_j(z)) / 2$: `[m]`, or a scalar."""

    @functools.cached_property
    def domain(self) -> Domain | None:
        """What records are codes over; None where they are indices of cells."""
        return None

    @functools.cached_property
    def sums_dtype(self) -> DTypeLike:
        """The type of answers to counts, an integer one where all queries are integers."""
        histogram = jax.ShapeDtypeStruct((self.universe_size,), jnp.int32)
        return jax.eval_shape(self.answers, histogram).dtype

    @functools.cached_property
    def _constants(self) -> dict[str, float]:
        raise self._lacks("sensitivity(relation), or _constants")

    def _lacks(self, member: str) -> NotImplementedError:
        return NotImplementedError(f"{type(self).__name__} must define {member}")

    @abc.abstractmethod
    def answers(self, p: ArrayLike) -> jax.Array:
        r"""$Mp$, `[m]`, for `p` `[k]`; counts give counts, where all queries are integers."""

    @abc.abstractmethod
    def adjoint(self, v: ArrayLike) -> jax.Array:
        r"""$M^\top v$, `[k]`, for `v` `[m]`."""

    def row(self, j: ArrayLike) -> jax.Array:
        """The query $q_j$, `[k]`; `j` in [0, m) may be traced.

        Raises:
          TypeError: If `j` is no integer.
          ValueError: If it is no scalar, or known and outside [0, m).
        """
        index = checked_codes("j", j, (), self.num_queries)
        return self.adjoint(jax.nn.one_hot(index, self.num_queries))

    def sensitivity(self, relation: RelationLike) -> QuerySensitivity:
        """How far one record moves the sum over the records (host; computed once).

        Args:
          relation: A `dp_accounting.NeighboringRelation` or its lower-case name (*public*).

        Raises:
          ValueError: If the relation is unknown, or the workload traced.
        """
        return query_sensitivity(relation, **self._constants, universe_size=self.universe_size)

    def record_cells(self, records: ArrayLike) -> jax.Array:
        """The cells `[n]` int32 of records `[n]`, or of codes `[n, A]` over a domain.

        A traced index or code out of range counts as the nearest.

        Raises:
          TypeError: If the records are no array, or not integers.
          ValueError: If they are of another shape, or a known one is outside the universe.
        """
        check_records(records)
        if self.domain is None:
            return checked_codes("records", records, (None,), self.universe_size)
        check_shape("records", records, (None, len(self.domain.shape)))
        return self.domain.cells(records)

    def record_cell(self, record: ArrayLike) -> jax.Array:
        """The cell of one record, `[]` int32, as by `record_cells`.

        Raises:
          TypeError: If the record is not of integers.
          ValueError: If it is of another shape, or known and outside the universe.
        """
        check_shape("record", record, () if self.domain is None else (len(self.domain.shape),))
        return self.record_cells(jnp.asarray(record)[None])[0]

    def histogram(self, records: ArrayLike) -> jax.Array:
        """How many records lie in each cell, `[k]` int32 (*secret*); zeros for no records."""
        cells = self.record_cells(records)
        zeros = spread_cells(self, jnp.zeros(self.universe_size, jnp.int32))
        return spread_cells(self, zeros.at[cells].add(1))

    def sums(self, counts: ArrayLike, most: int) -> jax.Array | Pair:
        r"""$Mc$ for whole counts c `[k]`, `[m]` (*secret*): not rounded by what a record adds.

        Integers where all queries are; else pairs of floats. Families of this package are right to
        2^-20 of a query's largest entry. One of yours in floats should override this: here it
        rounds.

        Args:
          counts: Integers (*secret*).
          most: Bound on their sum, static (*public*).
        """
        sums = self.answers(counts)
        return sums if jnp.issubdtype(sums.dtype, jnp.integer) else pair_of(sums)

    def answers_of_records(self, records: ArrayLike) -> jax.Array:
        """All queries averaged over the records, `[m]` (*secret*), by the counts of the cells.

        Raises:
          TypeError: If the records are no array, or not integers.
          ValueError: If there are no records.
        """
        return self.answers(self.histogram(records)).astype(float) / num_records(records)

    def answer_of_record(self, record: ArrayLike) -> jax.Array:
        """All queries at one record, `[m]` (*secret*)."""
        return self.answers(jax.nn.one_hot(self.record_cell(record), self.universe_size))


class Tables(Workload):
    """A family of the cells of several tables, one after another, each of which has any record."""

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Cells of each table."""
        raise self._lacks("sizes")

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each table begins among the answers."""
        return (0, *itertools.accumulate(self.sizes))[:-1]

    @functools.cached_property
    def clique_of(self) -> np.ndarray:
        """Which table each query belongs to, `[m]` int32."""
        return np.repeat(np.arange(len(self.sizes), dtype=np.int32), self.sizes)

    @functools.cached_property
    def num_queries(self) -> int:
        """Number of queries m: the cells of all tables."""
        return sum(self.sizes)

    @functools.cached_property
    def sums_dtype(self) -> DTypeLike:
        """Integers: tables of counts are counts."""
        return jnp.int32

    @functools.cached_property
    def _constants(self) -> dict[str, float]:
        # replacing a record moves two cells of each table that has more than one
        varied = sum(size > 1 for size in self.sizes)
        lengths = {"l2_replaced": math.sqrt(2 * varied), "l2_record": math.sqrt(len(self.sizes))}
        return {"value_range": min(varied, 1), "largest": 1, **lengths}


def spread_cells(workload: Workload, vector: jax.Array) -> jax.Array:
    """A vector of cells `[k]`, spread over devices where the workload's `sharding` says so."""
    if workload.sharding is None:
        return vector
    return jax.lax.with_sharding_constraint(vector, workload.sharding)


def checked_sharding(sharding: NamedSharding | None, universe_size: int) -> NamedSharding | None:
    """The sharding of a vector of cells, on a mesh whose axes XLA partitions by itself.

    Raises:
      TypeError: If it is no `NamedSharding`.
      ValueError: If it is not of one axis, or the cells do not divide among the devices.
    """
    if sharding is None:
        return None
    check_type("sharding", sharding, NamedSharding, "a jax.sharding.NamedSharding")
    mesh, spec = sharding.mesh, sharding.spec
    if len(spec) != 1:
        raise ValueError(f"sharding must be of the one axis of cells, got {spec}")
    names = (spec[0],) if isinstance(spec[0], str) else spec[0] or ()
    shares = math.prod(mesh.shape[name] for name in names)
    if universe_size % shares:
        raise ValueError(
            f"sharding must divide the {universe_size} cells evenly, got {shares} shares"
        )
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    return NamedSharding(mesh, PartitionSpec(spec[0]))


def check_records(records: object) -> None:
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


def num_records(records: PyTree) -> int:
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


def check_sums(number: int, added: QuerySensitivity) -> None:
    """As `check_counted`, by the sensitivities of the queries under add-or-remove-one."""
    check_counted(number, added.linf / (added.value_range or 1.0))


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


@functools.partial(register_dataclass, rechecked=False)
@dataclasses.dataclass(frozen=True, eq=False)
class Concat(Workload):
    r"""The queries of several workloads, one after the other.

    $M = [M_1; M_2; \dots]$

    If one of them is over a `Domain`, so is the whole: a record is its codes, and families over
    cells see the cell of those codes (`domain.cells`). Else it is the index of a cell. See
    `Workload` for the methods.

    Guarantee: `value_range`, `score_range` and `linf` are the largest of the parts, exact if theirs
    are. `l2_answers` is $(\sum_i \Delta_i^2)^{1/2}$, exact where one record (or pair) moves every
    part the most, as any record does to marginals under add/remove; else an upper bound.

    Args:
      workloads: One or more, over one universe (*public*, data).

    Raises:
      TypeError: If one is no workload.
      ValueError: If there is none, or universes or domains differ.

    Example:
      >>> from dpjax.queries import Dense, Prefix
      >>> both = Concat([Prefix(3), Dense([[1, 0, 2]])])
      >>> both.num_queries, both.answer_of_record(2).tolist()
      (3, [0.0, 0.0, 2.0])
    """

    workloads: Sequence[Workload]

    def __post_init__(self) -> None:
        workloads = tuple(self.workloads)
        if not workloads:
            raise ValueError("workloads must be >= 1 of them, got none")
        for workload in workloads:
            check_type("workloads", workload, Workload, "of queries")
        sizes = [workload.universe_size for workload in workloads]
        if len(set(sizes)) > 1:
            raise ValueError(f"workloads must be over one universe, got {sizes} cells")
        domains = {workload.domain for workload in workloads} - {None}
        if len(domains) > 1:
            raise ValueError(f"workloads must be over one domain, got {sorted(map(str, domains))}")
        vars(self).update(workloads=workloads)

    @functools.cached_property
    def domain(self) -> Domain | None:
        """The domain of the parts that have one; None if records are indices of cells."""
        return next((w.domain for w in self.workloads if w.domain is not None), None)

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where the queries of each part start in `[m]`."""
        return (0, *itertools.accumulate(w.num_queries for w in self.workloads))[:-1]

    @functools.cached_property
    def num_queries(self) -> int:
        """Number of queries of all parts."""
        return sum(workload.num_queries for workload in self.workloads)

    @functools.cached_property
    def universe_size(self) -> int:
        """Number of cells of every part."""
        return self.workloads[0].universe_size

    @property
    def centre(self) -> jax.Array:
        """Mid-range of each query, `[m]`."""
        each = [jnp.broadcast_to(wide(w.centre), (w.num_queries,)) for w in self.workloads]
        return jnp.concatenate(each)

    def answers(self, p: ArrayLike) -> jax.Array:
        """The answers of the parts, `[m]`, for `p` `[k]`."""
        return jnp.concatenate([workload.answers(p) for workload in self.workloads])

    def sums(self, counts: ArrayLike, most: int) -> jax.Array | Pair:
        """Those of the parts, `[m]`, for whole counts `[k]` whose sum is at most `most`."""
        parts = [workload.sums(counts, most) for workload in self.workloads]
        if any(isinstance(part, Pair) for part in parts):
            parts = [pair_of(part) for part in parts]
        return jax.tree.map(lambda *each: jnp.concatenate(each), *parts)

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """The sum of the adjoints of the parts, `[k]`, for `v` `[m]`."""
        vector = checked_vector("v", v, self.num_queries)
        parts = zip(self.workloads, jnp.split(vector, self.offsets[1:]), strict=True)
        return functools.reduce(jnp.add, [workload.adjoint(part) for workload, part in parts])

    def sensitivity(self, relation: RelationLike) -> QuerySensitivity:
        """How far one record moves the sum over the records."""
        parts = [workload.sensitivity(relation) for workload in self.workloads]
        largest = QuerySensitivity(*map(max, zip(*parts, strict=True)))
        return largest._replace(l2_answers=math.hypot(*(part.l2_answers for part in parts)))
