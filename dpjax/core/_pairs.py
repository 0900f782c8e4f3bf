"""Numbers of twice a float's precision, and exact powers of two."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from dpjax.core._types import PyTree


def in_dtypes_of(tree: PyTree, like: PyTree) -> PyTree:
    """The tree in the dtypes that the parameters of a problem have."""
    return jax.tree.map(lambda x, p: x.astype(jnp.result_type(p)), tree, like)


def wide(leaf: ArrayLike) -> jax.Array:
    """The leaf in at least float32.

    Args:
      leaf: An array of any shape, or a number.

    Returns:
      The same values, of its own type if that is wider.
    """
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


class Pair(NamedTuple):
    """A number as the sum of two floats, the second at most half a unit in the first's last place.

    Attributes:
      high: The number, rounded.
      low: What rounding left over.
    """

    high: jax.Array
    low: jax.Array


def pair_of(value: jax.Array | Pair, dtype: DTypeLike = float) -> Pair:
    """A float, or an integer of up to twice the precision of `dtype`, as a pair; exactly."""
    if isinstance(value, Pair):
        return value
    if not jnp.issubdtype(value.dtype, jnp.integer):
        return Pair(value, jnp.zeros_like(value))
    high = value.astype(dtype)
    return Pair(high, (value - high.astype(value.dtype)).astype(high.dtype))


def scale_pair(pair: Pair, by: ArrayLike) -> Pair:
    """A pair times a power of two, exactly."""
    return Pair(pair.high * by, pair.low * by)


def add_pairs(first: Pair, second: Pair) -> Pair:
    """Their sum, to about the square of a float's precision (Knuth 1969; Dekker 1971)."""
    total = first.high + second.high
    added = total - first.high
    lost = (first.high - (total - added)) + (second.high - added)
    low = first.low + second.low + lost
    high = total + low
    return Pair(high, low - (high - total))


def times_whole(value: jax.Array, number: int) -> Pair:
    """A float times an integer that is one in its type, from 0: to the square of its precision."""
    half = (jnp.finfo(value.dtype).nmant + 1) // 2
    integers = jnp.dtype(f"int{8 * value.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(value, integers) & (np.array(-1, integers) << half)
    high = jax.lax.bitcast_convert_type(bits, value.dtype)
    # products of halves are exact
    upper, lower = float(number >> half << half), float(number & ((1 << half) - 1))
    products = (high * upper, (value - high) * upper, high * lower, (value - high) * lower)
    return functools.reduce(add_pairs, map(pair_of, products))


def power_of_two(scale: jax.Array) -> jax.Array:
    """The largest power of two up to a float `>= 0`, exactly; 0 for 0."""
    integers = jnp.dtype(f"int{8 * scale.dtype.itemsize}")
    exponent = np.array(-1, integers) << jnp.finfo(scale.dtype).nmant
    bits = jax.lax.bitcast_convert_type(scale, integers) & exponent
    return jax.lax.bitcast_convert_type(bits, scale.dtype)
