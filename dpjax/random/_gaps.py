"""Poisson batches inside jit: geometric gaps from integer tables, at a cost free of n."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.random._keys import StepKeys

# Fixed point with this many bits: exact for every float64 rate, subnormal ones included.
_BITS = 1280
_ONE = 1 << _BITS
# Of thresholds: 64 bits of a draw, 32 of the step's shared word, and rounding.
_SPREAD = 97
# Drawing a 64-bit word costs about as much as this many comparisons.
_WORD_COST = 25


class Digit(NamedTuple):
    """One digit of a gap: `sum(u >= thresholds) * weight` for 64 random bits `u`.

    Thresholds are floors, each raised by 1 where the word of the step is below its part, so that
    their means are right to 96 bits.
    """

    weight: int
    thresholds: tuple[int, ...]  # ascending, in [0, 2**64)
    parts: tuple[int, ...]  # what the floors leave out, in units of 2**-32, in [0, 2**32)


@functools.lru_cache(maxsize=64)
def gap_digits(rate: float, num_records: int) -> tuple[Digit, ...]:
    """Splits a geometric gap into independent digits, each with a table of its CDF.

    The number `G` of records passed over before the next member has
    `P[G >= g] = (1 - rate)^g`. Written with mixed radices, `G = sum_i digit_i * weight_i`,
    its digits are independent: `P[G = g]` is a product over them. Each lower digit is a
    truncated geometric variable on `{0, ..., radix - 1}`, the top one a whole geometric
    variable, both with success probability `1 - (1 - rate)^weight`:

        P[lower <= k] = (1 - v^(k+1)) / (1 - v^radix),   P[top <= k] = 1 - v^(k+1),
        v = (1 - rate)^weight

    Thresholds are `2^64 * P[digit <= k]`, to 32 bits behind the point, from 1280-bit fixed point.
    The table of the top digit ends where at most 2^-97 is left, or earlier where the gap exceeds
    `num_records` and its value no longer matters.

    Args:
      rate: probability with which each record takes part, in (0, 1].
      num_records: gaps of this length or more need not be told apart.

    Returns:
      The digits, lowest weight first. Every gap they make is below `2**32`.
    """
    numerator, denominator = rate.as_integer_ratio()
    miss = _ONE - (numerator << _BITS) // denominator
    radices = _radices(_span(rate, num_records, 65))
    digits, weight = [], 1
    for radix in radices[:-1]:
        digits.append(Digit(weight, *_thresholds(_power(miss, weight), radix - 1, radix)))
        weight *= radix
    entries = -(-_span(rate, num_records, _SPREAD) // weight)
    digits.append(Digit(weight, *_thresholds(_power(miss, weight), entries, None)))
    return tuple(digits)


def _span(rate: float, num_records: int, bits: int) -> int:
    """Where gaps end: `(1 - rate)^g <= e^(-rate g)` is below 2^-bits from here on."""
    return max(1, min(num_records, math.ceil(min(bits * math.log(2) / rate, 2.0**53))))


def gaps_shortfall(num_records: int, rate: float, draws: int) -> float:
    """Total variation between one drawn batch and Poisson sampling, but for overflow.

    A threshold's mean is off by at most 2^-97, and the last table omits as much. Given the word
    that all draws of a step share, m thresholds move at most m 2^-64 of the mass of each gap. By
    the mean over words that is nothing to first order; to second order all draws together are off
    by the square of what they move.

    Args:
      num_records: for which the tables are made.
      rate: of the sampling.
      draws: of the step, those of all shards.
    """
    digits = gap_digits(rate, num_records)
    count = sum(len(digit.thresholds) for digit in digits)
    moved = draws * count * 2.0**-64
    return min(1.0, draws * (count + 1) * 2.0**-_SPREAD + moved**2 * math.exp(2 * moved))


def _radices(span: int) -> list[int]:
    """Radices with product >= span, with the least cost of drawing and comparing."""

    def equal(count: int) -> list[int]:
        radix = max(2, round(span ** (1 / count)))
        return [radix] * (count - 1) + [-(-span // radix ** (count - 1))]

    return min(map(equal, range(1, 9)), key=lambda each: _WORD_COST * len(each) + sum(each))


def _thresholds(v: int, entries: int, radix: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`2^64 * P[digit <= k]` for k < entries, but for those that are all but 2^64: floor, rest."""
    total = _ONE if radix is None else _ONE - _power(v, radix)
    thresholds, parts, tail = [], [], v
    for _ in range(entries):
        fine = (((_ONE - tail) << _SPREAD) // total + 1) >> 1
        if fine >= 1 << 96:
            break
        floor, part = divmod(fine, 1 << 32)
        thresholds.append(floor)
        parts.append(part)
        tail = (tail * v) >> _BITS
    return tuple(thresholds), tuple(parts)


def _power(base: int, exponent: int) -> int:
    """Fixed-point power by squaring."""
    result = _ONE
    while exponent:
        if exponent & 1:
            result = (result * base) >> _BITS
        base = (base * base) >> _BITS
        exponent >>= 1
    return result


def step_words(key: jax.Array, steps: int) -> tuple[StepKeys, jax.Array]:
    """Keys of steps, unwrapped, and the word `[steps]` uint32 that all draws of one share.

    Outside the loop over steps: inside it XLA would draw the word again for each comparison.
    """
    keys = StepKeys.of(jax.random.split(key, steps))
    return keys, keys.words(2)


def draw_members(
    keys: StepKeys,
    shared: jax.Array,
    rate: float,
    bound: int,
    num_records: ArrayLike,
    draws: int,
) -> tuple[jax.Array, jax.Array]:
    """First `draws` members of a Poisson batch, ascending.

        i_1 = G_1,   i_k = i_{k-1} + 1 + G_k,   P[G = g] = (1 - rate)^g rate,   while i_k < n

    Args:
      keys: one PRNG key, unwrapped; its stream 0 is used up.
      shared: the word of `StepKeys.words` that all draws of a step share, `[]` uint32.
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
            stride += _invert(digit, high[part], low[part], shared) * np.uint32(digit.weight)
        stride = jnp.minimum(stride, last + np.uint32(1))
    position = jnp.cumsum(stride, dtype=jnp.uint32)  # index + 1
    slot = jnp.arange(draws, dtype=jnp.uint32)
    outside = jnp.where(position > last, slot, np.uint32(draws))
    mask = slot < jnp.min(outside)
    indices = jnp.where(mask, position - np.uint32(1), np.uint32(0)).astype(jnp.int32)
    return indices, mask


def _invert(digit: Digit, high: jax.Array, low: jax.Array, shared: jax.Array) -> jax.Array:
    """Number of thresholds that the words `(high, low)` reach, `[draws]` uint32.

    `shared` is the word `[]` that raises thresholds.
    """
    thresholds = np.array(digit.thresholds, np.uint64)[:, None]
    table_high = (thresholds >> np.uint64(32)).astype(np.uint32)
    table_low = thresholds.astype(np.uint32)
    late = shared < np.array(digit.parts, np.uint32)[:, None]
    high, low = high[None, :], low[None, :]
    reached = (high > table_high) | ((high == table_high) & (low >= table_low))
    # apart: one sum over all of it takes up to four times as long
    missed = (high == table_high) & (low == table_low) & late
    return jnp.sum(reached, axis=0, dtype=jnp.uint32) - jnp.sum(missed, axis=0, dtype=jnp.uint32)


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
