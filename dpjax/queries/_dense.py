"""Queries given as a matrix."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from dpjax.core import check_shape, is_traced, register_dataclass, static_field, wide
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
from dpjax.queries._workload import Workload, checked_sharding, checked_vector, spread_cells

_ROWS = 64  # whose integers are held at once


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
