"""Poisson batches inside jit: geometric gaps from integer tables, at a cost free of n."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.random._gap_tables import Digit, gap_digits, rounding_error
from dpjax.random._keys import StepKeys


def gaps_shortfall(num_records: int, rate: float, draws: int) -> float:
    """Total variation between one drawn batch and Poisson sampling, but for overflow."""
    return draws * rounding_error(gap_digits(rate, num_records))


def draw_members(
    keys: StepKeys, rate: float, bound: int, num_records: ArrayLike, draws: int
) -> tuple[jax.Array, jax.Array]:
    """First `draws` members of a Poisson batch, ascending.

        i_1 = G_1,   i_k = i_{k-1} + 1 + G_k,   P[G = g] = (1 - rate)^g rate,   while i_k < n

    Args:
      keys: one PRNG key, unwrapped; its stream 0 is used up.
      rate: probability with which each record takes part (static).
      bound: public upper bound on the number of records, for which the tables are made (static).
      num_records: number of records `n`, at most `bound` (it may be traced).
      draws: number of gaps to draw (static).

    Returns:
      Indices `[draws]` int32 (0 where there is no member) and mask `[draws]`.
    """
    digits = [digit for digit in gap_digits(rate, bound) if digit.thresholds]
    # gap + 1, held at n + 1: from a position that is still inside (<= n) the sum stays <= 2n + 1,
    # so the first position outside is seen before uint32 can wrap; after it nothing counts
    stride = jnp.ones((draws,), dtype=jnp.uint32)
    last = jnp.asarray(num_records, jnp.uint32)
    if digits:
        high, low = keys.bits64(0, len(digits) * draws)
        for row, digit in enumerate(digits):
            part = slice(row * draws, (row + 1) * draws)
            stride += _invert(digit, high[part], low[part]) * np.uint32(digit.weight)
        stride = jnp.minimum(stride, last + np.uint32(1))
    position = jnp.cumsum(stride, dtype=jnp.uint32)  # index + 1
    slot = jnp.arange(draws, dtype=jnp.uint32)
    outside = jnp.where(position > last, slot, np.uint32(draws))
    mask = slot < jnp.min(outside)
    indices = jnp.where(mask, position - np.uint32(1), np.uint32(0)).astype(jnp.int32)
    return indices, mask


def _invert(digit: Digit, high: jax.Array, low: jax.Array) -> jax.Array:
    """Number of thresholds that the 64-bit words `(high, low)` reach, `[draws]` uint32."""
    table_high, table_low = (jnp.asarray(words)[:, None] for words in digit.words())
    high, low = high[None, :], low[None, :]
    reached = (high > table_high) | ((high == table_high) & (low >= table_low))
    return jnp.sum(reached, axis=0, dtype=jnp.uint32)


def keep_uniform_subset(
    keys: StepKeys, indices: jax.Array, mask: jax.Array, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Drops the surplus of a batch uniformly at random.

    Each member gets 64 random bits; the `capacity` smallest stay. Ties, of probability at most
    `draws^2 2^-65`, go to the lower index.

    Args:
      keys: the same; its stream 1 is used up.
      indices: `[draws]` int32, ascending where `mask`.
      mask: `[draws]`, which of them are members: the first ones.
      capacity: how many stay.

    Returns:
      Indices `[capacity]` int32, ascending where the mask `[capacity]` is True.
    """
    draws = indices.shape[0]

    def truncate(keys: StepKeys) -> tuple[jax.Array, jax.Array]:
        high, low = keys.bits64(1, draws)
        absent = (~mask).astype(jnp.uint32)
        *_, kept = jax.lax.sort((absent, high, low, indices), num_keys=3, is_stable=True)
        return jnp.sort(kept[:capacity]), jnp.ones((capacity,), dtype=bool)

    def keep(keys: StepKeys) -> tuple[jax.Array, jax.Array]:
        return indices[:capacity], mask[:capacity]

    if draws == capacity:
        return indices, mask
    return jax.lax.cond(mask[capacity], truncate, keep, keys)
