"""Queries given by their entries that are not zero."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ops import segment_sum
from jax.typing import ArrayLike
from scipy import sparse

from dpjax.core import check_finite, check_int, check_shape, register_dataclass, wide
from dpjax.core._pairs import Pair, scale_pair
from dpjax.queries._cells import checked_codes
from dpjax.queries._columns import (
    column_constants,
    exact_sums,
    held_entries,
    known_array,
    on_unit,
    unit_of,
)
from dpjax.queries._workload import Workload, checked_vector


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
        for name, index, size in zip(
            ("rows", "columns"), (self.rows, self.columns), shape, strict=True
        ):
            checked_codes(name, index, np.shape(self.values), size)
            where.append(known_array(name, index).astype(np.int32))
        check_finite("values", self.values)
        given = (known_array("values", self.values), tuple(where))
        # by row, and what is given twice added
        coo = sparse.coo_array(given, shape=shape).tocsr().tocoo()
        values = held_entries("values", coo.data)
        vars(self).update(
            rows=jnp.asarray(coo.row, jnp.int32),
            columns=jnp.asarray(coo.col, jnp.int32),
            values=on_unit(values, _largest(values, coo.row, shape[0])[coo.row]),
            num_queries=shape[0],
            universe_size=shape[1],
        )

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
    sizes = jax.ops.segment_max(jnp.abs(values), jnp.asarray(rows), num_rows)
    return jnp.maximum(sizes, 0)
