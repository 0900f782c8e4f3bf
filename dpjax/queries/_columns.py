"""How far apart the columns of a matrix of queries lie: its sensitivities, on the host."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import sparse

from dpjax.core import check_finite, is_traced, wide

_BLOCK = 1024
_EXACT_WORK = 2.0**33  # multiplications for all pairs of columns
_ROUNDING = 2.0**-49
_CENTRES = 16
_SMALL = 127


def dense_constants(matrix: np.ndarray) -> dict[str, float]:
    """The constants of `query_sensitivity` of a matrix `[m, k]`: see `column_constants`."""
    m, k = matrix.shape

    def columns(start: int) -> np.ndarray:
        return matrix[:, start : start + _BLOCK].astype(np.float64)

    lowest, highest = np.full(m, np.inf), np.full(m, -np.inf)
    for start in range(0, k, _BLOCK):
        block = columns(start)
        lowest = np.minimum(lowest, block.min(axis=1))
        highest = np.maximum(highest, block.max(axis=1))
    return column_constants(lowest, highest, k, columns, float(m))


def sparse_constants(matrix: Any) -> dict[str, float]:
    """The same of a SciPy sparse matrix `[m, k]` without repeated entries."""
    csr, csc = matrix.tocsr().astype(np.float64), matrix.tocsc().astype(np.float64)
    k = matrix.shape[1]

    def columns(start: int) -> Any:
        return csc[:, start : start + _BLOCK]

    lowest, highest = (np.asarray(ends.todense()).ravel() for ends in (csr.min(1), csr.max(1)))
    return column_constants(lowest, highest, k, columns, 1 + csc.nnz / k)


def column_constants(
    lowest: np.ndarray,
    highest: np.ndarray,
    k: int,
    columns: Callable[[int], Any],
    density: float,
) -> dict[str, float]:
    r"""The constants of `query_sensitivity` of a matrix that is looked at in blocks of columns.

    The largest distance of two columns is exact (rounded up) where all pairs can be compared. Else
    it is a bound, the least of: twice the largest distance from a centre, for several centres;
    $(\sum_j R_j^2)^{1/2}$ for the ranges $R_j$ of the rows; and, if nothing is negative,
    $\sqrt 2$ times the largest norm.

    Args:
      lowest: Least entry of each row, `[m]`.
      highest: Largest entry of each row, `[m]`.
      k: Number of columns.
      columns: From the first of a block of columns to the block, dense or sparse.
      density: About the number of entries in a column.
    """
    ranges = highest - lowest
    starts = range(0, k, _BLOCK)
    squares = np.concatenate([_square_norms(columns(start)) for start in starts])
    longest = math.sqrt(squares.max())
    if k * k * density <= _EXACT_WORK:
        apart = _largest_distance(columns, starts, squares)
    else:
        apart = 2 * _least_radius(columns, starts, (lowest + highest) / 2)
        if lowest.min() >= 0:
            apart = min(apart, math.sqrt(2) * longest)
    return {
        "value_range": float(ranges.max()),
        "largest": float(max(np.abs(lowest).max(), np.abs(highest).max())),
        "l2_replaced": min(apart, math.sqrt(math.fsum(ranges**2))) * (1 + _ROUNDING),
        "l2_record": longest * (1 + _ROUNDING),
    }


def _largest_distance(columns: Callable[[int], Any], starts: range, squares: np.ndarray) -> float:
    """Over all pairs, by inner products."""
    largest = 0.0
    for start in starts:
        here = columns(start)
        for other in range(start, starts.stop, _BLOCK):
            inner = _product(here.T, columns(other))
            norms = squares[start : start + _BLOCK, None] + squares[None, other : other + _BLOCK]
            largest = max(largest, float((norms - 2 * inner).max()))
    if largest > 0:  # what inner products lose
        largest += 8 * _ROUNDING * float(squares.max())
    return math.sqrt(largest)


def _least_radius(columns: Callable[[int], Any], starts: range, centre: np.ndarray) -> float:
    """The largest distance from a centre, for the best of a few that move to the farthest."""
    least = math.inf
    for step in range(_CENTRES):
        radius, farthest = 0.0, centre
        for start in starts:
            block = columns(start)
            squares = _square_norms(block) - 2 * _product(centre, block) + centre @ centre
            index = int(np.argmax(squares))
            distance = math.sqrt(max(float(squares[index]), 0.0))
            if distance > radius:
                column = block[:, [index]]
                farthest = np.asarray(column.todense() if sparse.issparse(column) else column)
                radius = distance
        slack = math.sqrt(8 * _ROUNDING * (float(centre @ centre) + radius**2))
        least = min(least, radius + slack * (radius > 0))
        centre = centre + (farthest.ravel() - centre) / (step + 2)
    return least


def _square_norms(block: Any) -> np.ndarray:
    squares = block.multiply(block) if sparse.issparse(block) else block * block
    return np.asarray(squares.sum(axis=0)).ravel()


def _product(left: Any, right: Any) -> np.ndarray:
    product = left @ right
    return np.asarray(product.todense()) if sparse.issparse(product) else np.asarray(product)


def held_entries(name: str, values: ArrayLike) -> jax.Array:
    """Entries as they are computed with: in at least single precision, or int32 if small integers.

    Small is at most 127, so that sums over 2^24 records fit.

    Raises:
      TypeError: If they are no real numbers.
      ValueError: If one is not finite, also in the precision held.
    """
    check_finite(name, values)
    if not isinstance(values, np.ndarray | jax.Array):
        values = np.asarray(values)
    if not jnp.issubdtype(values.dtype, jnp.floating):
        small = values.dtype in (np.bool_, np.int8)
        if small or (not is_traced(values) and _magnitude(values) <= _SMALL):
            return jnp.asarray(values).astype(jnp.int32)
        values = values.astype(float)
    with np.errstate(over="ignore"):
        held = wide(values)
    check_finite(f"{name}, held in {held.dtype},", held)
    return held


def _magnitude(values: Any) -> float:
    return float(np.abs(np.asarray(values, np.float64)).max(initial=0.0))


def known_array(name: str, value: Any) -> np.ndarray:
    """A public constant on the host; raises ValueError if it is traced."""
    if is_traced(value):
        raise ValueError(f"{name} must be known, got a traced array: outside jit and vmap")
    return np.asarray(value)
