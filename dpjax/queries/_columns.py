"""Matrices of queries: sensitivities from distances of columns (host), and exact sums."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import sparse

from dpjax.core import check_finite, is_traced, wide
from dpjax.core._pairs import Pair, add_pairs, pair_of, power_of_two, scale_pair

_BLOCK = 1024
_EXACT_WORK = 2.0**33  # multiplications for all pairs of columns
_ROUNDING = 2.0**-49
_CENTRES = 16
_SMALL = 127

Matrix: TypeAlias = np.ndarray | sparse.csc_array


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
    ranges = highest - lowest
    squares = np.concatenate([(block * block).sum(axis=0) for _, block in _blocks(matrix)])
    longest = math.sqrt(squares.max())
    if k * k * density <= _EXACT_WORK:
        apart = _largest_distance(matrix, squares)
    else:
        apart = 2 * _least_radius(matrix, (lowest + highest) / 2)
        if lowest.min() >= 0:
            apart = min(apart, math.sqrt(2) * longest)
    return {
        "value_range": float(ranges.max()),
        "largest": float(max(np.abs(lowest).max(), np.abs(highest).max())),
        "l2_replaced": min(apart, math.sqrt(math.fsum(ranges**2))) * (1 + _ROUNDING),
        "l2_record": longest * (1 + _ROUNDING),
    }


def _blocks(matrix: Matrix, first: int = 0) -> Iterator[tuple[slice, Matrix]]:
    """Some columns at a time, in double precision, and where they are."""
    for start in range(first, matrix.shape[1], _BLOCK):
        place = slice(start, start + _BLOCK)
        yield place, matrix[:, place].astype(np.float64)


def _largest_distance(matrix: Matrix, squares: np.ndarray) -> float:
    """Over all pairs, by inner products."""
    largest = 0.0
    for here, block in _blocks(matrix):
        for there, other in _blocks(matrix, here.start):
            norms = squares[here, None] + squares[None, there]
            largest = max(largest, float((norms - 2 * _filled(block.T @ other)).max()))
    if largest > 0:  # what inner products lose
        largest += 8 * _ROUNDING * float(squares.max())
    return math.sqrt(largest)


def _least_radius(matrix: Matrix, centre: np.ndarray) -> float:
    """The largest distance from a centre, for the best of a few that move to the farthest."""
    least = math.inf
    for step in range(_CENTRES):
        radius, farthest = 0.0, centre
        for _, block in _blocks(matrix):
            squares = (block * block).sum(axis=0) - 2 * (centre @ block) + centre @ centre
            index = int(np.argmax(squares))
            distance = math.sqrt(max(float(squares[index]), 0.0))
            if distance > radius:
                radius, farthest = distance, _filled(block[:, [index]]).ravel()
        slack = math.sqrt(8 * _ROUNDING * (float(centre @ centre) + radius**2))
        least = min(least, radius + slack * (radius > 0))
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
