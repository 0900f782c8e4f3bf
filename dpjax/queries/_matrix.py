"""Queries as rows of a matrix, dense or sparse: exact sums, and sensitivities from its columns.

Sums of fractional queries over counts without rounding: as sums of integers.

A sum of floats over many records is rounded by more than what one record adds. So the entries of a
query are held as multiples of a power of two near the largest of them, and their sums are taken as
integers, in as many parts as the integer type needs, and carried as pairs of floats.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.ops import segment_sum
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike
from scipy import sparse

from dpjax.core import register_dataclass, static_field, wide
from dpjax.core._checks import check_finite, check_int, check_shape, is_traced
from dpjax.core._pairs import Pair, add_pairs, pair_of, power_of_two, scale_pair
from dpjax.queries._domain import checked_codes
from dpjax.queries._workload import Workload, checked_sharding, checked_vector, spread_cells

_BLOCK = 1024
_EXACT_WORK = 2.0**33  # multiplications for all pairs of columns
_ROUNDING = 2.0**-49
_CENTRES = 16
_SMALL = 127

Matrix: TypeAlias = np.ndarray | sparse.csc_array
_ROWS = 64  # whose integers are held at once


def column_constants(matrix: Matrix) -> dict[str, float]:
    r"""The constants of `query_sensitivity` of a matrix `[m, k]`, by blocks of columns.

    The largest distance of two columns is exact (rounded up) where all pairs can be compared. Else
    it is a bound, the least of: twice the largest distance from a centre, for several centres;
    $(\sum_j R_j^2)^{1/2}$ for the ranges $R_j$ of the rows; and, if nothing is negative,
    $\sqrt 2$ times the largest norm.

    Args:
      matrix: Dense, or sparse without repeated entries.
    """
    m, k = matrix.shape
    density = 1 + matrix.nnz / k if isinstance(matrix, sparse.csc_array) else m
    lowest, highest = (
        _filled(ends).ravel().astype(np.float64)
        for ends in (matrix.min(axis=1), matrix.max(axis=1))
    )
    ranges, middle = highest - lowest, (lowest + highest) / 2
    longest = math.sqrt(max(_squares(block).max() for _, block in _blocks(matrix)))
    # distances are those of any shift of a row, and inner products of large numbers lose them
    shifted = functools.partial(_blocks, matrix, middle=middle)
    if isinstance(matrix, sparse.csc_array):
        middle = np.where(np.bincount(matrix.indices, minlength=m) == k, middle, 0)
        numbers = matrix.data.astype(np.float64) - middle[matrix.indices]
        moved = sparse.csc_array((numbers, matrix.indices, matrix.indptr), matrix.shape)
        shifted = functools.partial(_blocks, moved)
    if k * k * density <= _EXACT_WORK:
        apart = _largest_distance(shifted, m)
    else:
        apart = 2 * _least_radius(shifted, (lowest + highest) / 2 - middle)
        if lowest.min() >= 0:
            apart = min(apart, math.sqrt(2) * longest)
    apart = max(min(apart, math.sqrt(math.fsum(ranges**2))), ranges.max())
    lengths = {"l2_replaced": float(apart), "l2_record": longest}
    rounded_up = {name: length * (1 + _ROUNDING) for name, length in lengths.items()}
    largest = float(max(np.abs(lowest).max(), np.abs(highest).max()))
    return {"value_range": float(ranges.max()), "largest": largest, **rounded_up}


def _blocks(
    matrix: Matrix, first: int = 0, middle: np.ndarray | None = None
) -> Iterator[tuple[slice, Matrix]]:
    """Some columns at a time, in double precision, less `middle [m]`, and where they are."""
    for start in range(first, matrix.shape[1], _BLOCK):
        place = slice(start, start + _BLOCK)
        block = matrix[:, place].astype(np.float64)
        yield place, block if middle is None else block - middle[:, None]


def _squares(block: Matrix) -> np.ndarray:
    return np.asarray((block * block).sum(axis=0))


def _largest_distance(blocks: Callable[..., Iterator[tuple[slice, Matrix]]], m: int) -> float:
    """Over all pairs, by inner products, with what these may lose."""
    largest = 0.0
    squares = np.concatenate([_squares(block) for _, block in blocks()])
    for here, block in blocks():
        for there, other in blocks(here.start):
            norms = squares[here, None] + squares[None, there]
            largest = max(largest, float((norms - 2 * _filled(block.T @ other)).max()))
    return math.sqrt(largest + (8 + m / 8) * _ROUNDING * float(squares.max()))


def _least_radius(
    blocks: Callable[..., Iterator[tuple[slice, Matrix]]], centre: np.ndarray
) -> float:
    """The largest distance from a centre, for the best of a few that move to the farthest."""
    least = math.inf
    for step in range(_CENTRES):
        radius, farthest = 0.0, centre
        for _, block in blocks():
            squares = _squares(block) - 2 * (centre @ block) + centre @ centre
            index = int(np.argmax(squares))
            distance = math.sqrt(max(float(squares[index]), 0.0))
            if distance >= radius:
                radius, farthest = distance, _filled(block[:, [index]]).ravel()
        lost = (8 + len(centre) / 8) * _ROUNDING
        least = min(least, radius + math.sqrt(lost * (float(centre @ centre) + radius**2)))
        centre = centre + (farthest - centre) / (step + 2)
    return least


def _filled(matrix: Matrix) -> np.ndarray:
    return matrix if isinstance(matrix, np.ndarray) else matrix.toarray()


def held_entries(name: str, values: ArrayLike) -> jax.Array:
    """Entries as they are computed with: in at least single precision, or int32 if small integers.

    Small is at most 127, so that sums over 2^24 records fit.

    Raises:
      TypeError: If they are no real numbers.
      ValueError: If one is not finite, also in the precision held.
    """
    check_finite(name, values)
    array = values if isinstance(values, np.ndarray | jax.Array) else np.asarray(values)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        small = array.dtype in (np.bool_, np.int8)
        if not small and not is_traced(array):
            small = np.abs(np.asarray(array, np.float64)).max(initial=0.0) <= _SMALL
        if small:
            return jnp.asarray(array).astype(jnp.int32)
        array = array.astype(float)
    with np.errstate(over="ignore"):
        held = wide(array)
    check_finite(f"{name}, held in {held.dtype},", held)
    return held


def known_array(name: str, value: ArrayLike) -> np.ndarray:
    """A public constant on the host; raises ValueError if it is traced."""
    if is_traced(value):
        raise ValueError(f"{name} must be known, got a traced array: outside jit and vmap")
    return np.asarray(value)


def unit_of(largest: jax.Array) -> jax.Array:
    """The spacing at which a query's entries are held: twice that of floats at the largest."""
    info = jnp.finfo(largest.dtype)
    return jnp.maximum(power_of_two(largest) * 2.0 ** (1 - info.nmant), info.tiny)


def on_unit(entries: jax.Array, largest: jax.Array) -> jax.Array:
    """Entries rounded to multiples of `unit_of(largest)`; shapes broadcast, integers are kept."""
    if jnp.issubdtype(entries.dtype, jnp.integer):
        return entries
    unit = unit_of(largest)
    return jnp.round(entries / unit) * unit


def exact_sums(
    entries: jax.Array, unit: jax.Array, counted: Callable[[jax.Array], jax.Array], most: int
) -> Pair:
    """Sums of entries times counts, in units, with an error below 2^-20 of a query's largest entry.

    Args:
      entries: Multiples of `unit`, which broadcasts with them.
      unit: Of each entry, as of `unit_of`.
      counted: Sums of integer entries, of the shape of `entries`, times the counts.
      most: Bound on the sum of the counts; static.
    """
    dtype, whole = entries.dtype, jnp.round(entries / unit).astype(int)
    sign, size = jnp.sign(whole), jnp.abs(whole)
    bits = jnp.iinfo(whole.dtype).bits - 1 - most.bit_length()

    def part(start: int) -> Pair:
        sums = counted(sign * ((size >> start) & ((1 << bits) - 1)))
        return scale_pair(pair_of(sums, dtype), 2.0**start)

    starts = reversed(range(0, jnp.finfo(dtype).nmant + 1, bits))
    return functools.reduce(add_pairs, map(part, starts))


@functools.partial(register_dataclass, rechecked=False)
@dataclasses.dataclass(frozen=True, eq=False)
class Dense(Workload):
    r"""Queries given as a matrix of any finite real entries; records are indices of cells.

    $q_j(z) = M_{jz}$

    For few cells or few queries: it holds $mk$ numbers, and reads them all for every answer. See
    `Workload` for the methods. Integers of at most 127 keep counts whole. All else is held in
    floats, rounded to 22 bits (float64: 51) below the largest entry of its row, for exact sums.

    Guarantee: sensitivities come from the entries themselves, in the precision in which they are
    held. All are exact (rounded up) but `l2_answers` under replace-one where $k^2 m > 2^{33}$, then
    an upper bound: at most twice the largest distance of a column from a centre.

    Args:
      matrix: One row a query, `[m, k]`, integers or floats (*public*, data). One whose columns are
        spread over devices (`jax.sharding.NamedSharding`) spreads all vectors over the universe.
      sharding: That of such vectors (static); default: that of the columns.

    Raises:
      TypeError: If the entries are no real numbers.
      ValueError: If the matrix is not of two axes, is empty, or holds a NaN or an infinity.

    Example:
      >>> import jax.numpy as jnp
      >>> dense = Dense([[1, 0, 1], [0, 2, -1]])
      >>> dense.answers(jnp.array([3, 0, 2])).tolist()
      [5, -2]
      >>> dense.sensitivity("replace_one").value_range
      3.0
    """

    matrix: ArrayLike
    sharding: NamedSharding | None = static_field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_shape("matrix", self.matrix, (None, None))
        if 0 in np.shape(self.matrix):
            shape = list(np.shape(self.matrix))
            raise ValueError(f"matrix must have >= 1 row and column, got shape {shape}")
        matrix, sharding = held_entries("matrix", self.matrix), self.sharding
        if sharding is None and not is_traced(matrix):
            own = matrix.sharding
            if isinstance(own, NamedSharding) and len(own.spec) == 2 and own.spec[1] is not None:
                sharding = NamedSharding(own.mesh, PartitionSpec(own.spec[1]))
        sharding = checked_sharding(sharding, matrix.shape[1])
        matrix = on_unit(matrix, jnp.max(jnp.abs(matrix), axis=1, keepdims=True))
        vars(self).update(matrix=matrix, sharding=sharding)

    @functools.cached_property
    def num_queries(self) -> int:
        """Number of rows."""
        return jnp.shape(self.matrix)[0]

    @functools.cached_property
    def universe_size(self) -> int:
        """Number of columns."""
        return jnp.shape(self.matrix)[1]

    @property
    def centre(self) -> jax.Array:
        """Mid-range of each row, `[m]`."""
        array = wide(self.matrix)
        return jnp.min(array, axis=1) / 2 + jnp.max(array, axis=1) / 2

    def answers(self, p: ArrayLike) -> jax.Array:
        """$Mp$, `[m]`, for `p` `[k]`."""
        vector = spread_cells(self, checked_vector("p", p, self.universe_size))
        return jnp.matmul(self.matrix, vector, precision="highest")

    def sums(self, counts: ArrayLike, most: int) -> jax.Array | Pair:
        """$Mc$, `[m]`, for whole counts c `[k]`, whose sum is at most `most`: see `Workload`."""
        if jnp.issubdtype(jnp.asarray(self.matrix).dtype, jnp.integer):
            return super().sums(counts, most)
        vector = spread_cells(self, checked_vector("counts", counts, self.universe_size))

        def of_row(row: jax.Array) -> Pair:
            unit = unit_of(jnp.max(jnp.abs(row)))
            sums = exact_sums(row, unit, lambda whole: jnp.vdot(whole, vector), most)
            return scale_pair(sums, unit)

        return jax.lax.map(of_row, jnp.asarray(self.matrix), batch_size=_ROWS)

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """$M^T v$, `[k]`, for `v` `[m]`."""
        vector = checked_vector("v", v, self.num_queries)
        return spread_cells(self, jnp.matmul(vector, self.matrix, precision="highest"))

    def row(self, j: ArrayLike) -> jax.Array:
        """Row `j`, `[k]`; `j` may be traced."""
        row = jnp.asarray(self.matrix)[checked_codes("j", j, (), self.num_queries)]
        return spread_cells(self, wide(row))

    def answer_of_record(self, record: ArrayLike) -> jax.Array:
        """The column of `record`, a cell: `[m]` (*secret*)."""
        return wide(jnp.asarray(self.matrix)[:, self.record_cell(record)])

    @functools.cached_property
    def _constants(self) -> dict[str, float]:
        return column_constants(known_array("matrix", self.matrix))


@functools.partial(register_dataclass, rechecked=False)
@dataclasses.dataclass(frozen=True, eq=False)
class Sparse(Workload):
    r"""Queries given by coordinates; records are indices of cells.

    $q_j(z) = \sum_{i : (rows_i, columns_i) = (j, z)} values_i$

    Entries given twice add up, once, when it is made. See `Workload` for the methods: each gathers
    and sums over the entries. Integers of at most 127 keep counts whole.

    Guarantee: sensitivities come from the entries themselves, in the precision in which they are
    held. All are exact (rounded up) but `l2_answers` under replace-one where $k^2$ times the
    entries of a column exceeds $2^{33}$, then an upper bound: twice the largest distance of a
    column from a centre, or $\sqrt 2$ times the largest norm if nothing is negative.

    Args:
      rows: The query of each entry, `[e]` integers in [0, m) (*public*, data, known).
      columns: Its cell, `[e]` integers in [0, k) (*public*, data, known).
      values: Its value, `[e]`, any finite integers or floats (*public*, data, known).
      num_queries: m (*public*, static).
      universe_size: k (*public*, static).

    Raises:
      TypeError: If the indices are no integers, or the values no real numbers.
      ValueError: If shapes differ, an index is out of range, a value is NaN or infinite, or one is
        traced.

    Example:
      >>> import jax.numpy as jnp
      >>> sparse = Sparse([0, 0, 1], [0, 2, 1], [1, 1, 2], num_queries=2, universe_size=3)
      >>> sparse.answers(jnp.array([3, 0, 2])).tolist()
      [5, 0]
      >>> sparse.adjoint(jnp.array([1.0, 0.5])).tolist()
      [1.0, 1.0, 1.0]
    """

    rows: ArrayLike
    columns: ArrayLike
    values: ArrayLike
    num_queries: int = dataclasses.field(metadata={"static": True})
    universe_size: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        for name in ("num_queries", "universe_size"):
            check_int(name, getattr(self, name), minimum=1)
        shape = (int(self.num_queries), int(self.universe_size))
        check_shape("values", self.values, (None,))
        where = []
        for name, size in zip(("rows", "columns"), shape, strict=True):
            index = getattr(self, name)
            checked_codes(name, index, np.shape(self.values), size)
            where.append(known_array(name, index).astype(np.int32))
        check_finite("values", self.values)
        given = (known_array("values", self.values), tuple(where))
        # by row, and what is given twice added
        coo = sparse.coo_array(given, shape=shape).tocsr().tocoo()
        rows, columns = (jnp.asarray(places, jnp.int32) for places in (coo.row, coo.col))
        values = held_entries("values", coo.data)
        values = on_unit(values, _largest(values, coo.row, shape[0])[coo.row])
        vars(self).update(rows=rows, columns=columns, values=values)
        vars(self).update(num_queries=shape[0], universe_size=shape[1])

    @classmethod
    def from_matrix(cls, matrix: ArrayLike | sparse.sparray | sparse.spmatrix) -> "Sparse":
        """The queries of a matrix.

        Args:
          matrix: `[m, k]`, a SciPy sparse matrix or an array with many zeros (*public*).

        Returns:
          A row a query.

        Raises:
          ValueError: If it has another number of axes; otherwise as in the class.

        Example:
          >>> Sparse.from_matrix([[0, 0, 1], [2, 0, 0]]).columns.tolist()
          [2, 0]
        """
        coo = sparse.coo_array(matrix)
        check_shape("matrix", coo, (None, None))
        m, k = coo.shape
        return cls(coo.row, coo.col, coo.data, num_queries=m, universe_size=k)

    @property
    def centre(self) -> jax.Array:
        """Mid-range of each row, `[m]`."""
        given = segment_sum(jnp.ones_like(self.rows), self.rows, self.num_queries)
        values, full = wide(self.values), given == self.universe_size
        high = jax.ops.segment_max(values, self.rows, self.num_queries)
        low = jax.ops.segment_min(values, self.rows, self.num_queries)
        # the other entries are 0
        high = jnp.where(full, high, jnp.maximum(high, 0.0))
        low = jnp.where(full, low, jnp.minimum(low, 0.0))
        return high / 2 + low / 2

    def answers(self, p: ArrayLike) -> jax.Array:
        """$Mp$, `[m]`, for `p` `[k]`."""
        vector = checked_vector("p", p, self.universe_size)
        return segment_sum(self.values * vector[self.columns], self.rows, self.num_queries)

    def sums(self, counts: ArrayLike, most: int) -> jax.Array | Pair:
        """$Mc$, `[m]`, for whole counts c `[k]`, whose sum is at most `most`: see `Workload`."""
        values = jnp.asarray(self.values)
        if jnp.issubdtype(values.dtype, jnp.integer):
            return super().sums(counts, most)
        vector = checked_vector("counts", counts, self.universe_size)[self.columns]
        unit = unit_of(_largest(values, self.rows, self.num_queries))

        def counted(whole: jax.Array) -> jax.Array:
            return segment_sum(whole * vector, self.rows, self.num_queries)

        return scale_pair(exact_sums(values, unit[self.rows], counted, most), unit)

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """$M^T v$, `[k]`, for `v` `[m]`."""
        vector = checked_vector("v", v, self.num_queries)
        return segment_sum(self.values * vector[self.rows], self.columns, self.universe_size)

    @functools.cached_property
    def _constants(self) -> dict[str, float]:
        where = (known_array("rows", self.rows), known_array("columns", self.columns))
        values = known_array("values", self.values).astype(np.float64)
        shape = (self.num_queries, self.universe_size)
        return column_constants(sparse.coo_array((values, where), shape=shape).tocsc())


def _largest(values: jax.Array, rows: ArrayLike, num_rows: int) -> jax.Array:
    """The largest size of an entry of each row, `[m]`; 0 where there is none."""
    return jnp.maximum(jax.ops.segment_max(jnp.abs(values), jnp.asarray(rows), num_rows), 0)
