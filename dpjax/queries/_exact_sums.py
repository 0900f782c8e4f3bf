"""Sums of fractional queries over counts without rounding: as sums of integers.

A sum of floats over many records is rounded by more than what one record adds. So the entries of a
query are held as multiples of a power of two near the largest of them, and their sums are taken as
integers, in as many parts as the integer type needs, and carried as pairs of floats.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.core._pairs import Pair, add_pairs, pair_of, power_of_two, scale_pair


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
