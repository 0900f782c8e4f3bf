r"""Tables of Gaussian noise on the integers, discrete or rounded, and draws from them.

A wide one is a sum over lattices: with X from a table on the integers, of deviation s, and Y from
one of deviation t, M X + Y has, for an integer M, the law of Y's kind of variance
$M^2 s^2 + t^2$, up to a ripple. For X discrete Gaussian and Y real, completing the square gives the
density

$$ \propto e^{-y^2 / 2 \sigma^2} \sum_{d \in \mathbb Z} e^{-(d - d_0)^2 / 2 v^2}, \qquad
   v = \frac{s t}{\sigma}, \quad d_0 = \frac{y M s^2}{\sigma^2}, $$

whose sum is, by Poisson's formula, constant but for a factor within
$1 \pm 2 \sum_k e^{-2 \pi^2 v^2 k^2}$. On integers y the same makes a discrete Gaussian of two; and
since M X is an integer, M X + round(Y) = round(M X + Y).
"""

import functools
import itertools
import math
from decimal import Decimal, localcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.random._threefry import random_words

_DIGITS = 60
_COLUMN_BITS = 13
COLUMNS = 2**_COLUMN_BITS
_SHARE_BITS = 64 - _COLUMN_BITS  # of a column, to compare with its threshold
_HIGH_BITS = 32 - _COLUMN_BITS
# odd, as its square: their fractions of 2^32 have partial quotients that add up to 59 at most, so
# that (w, w * _MIX) of all words w fill boxes in proportion to their areas but for 2e-8
_MIX = 0x9E37792B
_TIES = 1e-17  # total variation by two levels that tie, 2e-19, or three, 7e-18
_REACH = math.sqrt(2 * 65 * math.log(2))  # deviations: 2^-64 is beyond
_WIDEST = 430.0  # whose reach has fewer than COLUMNS values
_LEAST_V = 1.65
_RIPPLE = 4 * math.exp(-2 * math.pi**2 * _LEAST_V**2)  # total variation of a sum, twice over


class IntegerTable(NamedTuple):
    """Alias tables of integer noise, a sum of L levels, or such tables of g laws; *public*.

    Attributes:
      packed: For each column the 19 high bits of its threshold and the 13 of its alias,
        `[L, 8192]` or `[g, L, 8192]` uint32.
      low: The low words of the thresholds, as `packed`.
      factors: What each level is multiplied by, `[L]` or `[g, L]` int32.
      least: The smallest value, `[]` or `[g]` int32.
    """

    packed: np.ndarray | jax.Array
    low: np.ndarray | jax.Array
    factors: np.ndarray | jax.Array
    least: np.ndarray | jax.Array


def draw_integers(
    key: jax.Array, shape: tuple[int, ...], table: IntegerTable, group: ArrayLike = 0
) -> jax.Array:
    """Integer noise of this shape, int32: 32 random bits for each level, and 32 for all.

    A level needs the latter, a tie's word, where the share in its own is the high part of the
    threshold, of probability 2^-19, and takes a multiple of it by a power of `_MIX`. So a level
    alone has 64 bits, and two that tie at once, of probability 2^-38, two words that are all but
    independent.

    Of tables of g laws, `group` says which of them is whose, integers in `[0, g)` of this shape.
    """
    count = table.packed.shape[-2]
    words = random_words(key, shape, 2 * count)
    mixes = np.array([pow(_MIX, level, 2**32) for level in range(count)], np.uint32)
    packed, low = (
        jnp.moveaxis(jnp.reshape(part, (-1, count, COLUMNS)), 1, 0).reshape(count, -1)
        for part in (table.packed, table.low)
    )
    factors = jnp.moveaxis(jnp.reshape(table.factors, (-1, count))[group], -1, 0)
    start = jnp.asarray(group) * COLUMNS

    def add(total: jax.Array, level: tuple[Any, ...]) -> tuple[jax.Array, None]:
        first, mix, packed, low, factor = level
        column = (first >> np.uint32(_HIGH_BITS)).astype(jnp.int32)
        place, share = column + start, first & np.uint32(2**_HIGH_BITS - 1)
        packed, low = packed[place], low[place]
        high, alias = packed >> np.uint32(_COLUMN_BITS), packed & np.uint32(COLUMNS - 1)
        own = (share < high) | ((share == high) & (words[1] * mix < low))
        return total + factor * jnp.where(own, column, alias.astype(jnp.int32)), None

    # a loop, so that words are made once, and not again, slowly, where tables are looked into
    xs = (jnp.stack(words[::2]), mixes, packed, low, factors)
    if count == 1:  # XLA unrolls a loop of one turn: one more, of nothing
        xs = jax.tree.map(lambda part: jnp.concatenate([part, jnp.zeros_like(part)]), xs)
    least = jnp.broadcast_to(jnp.reshape(table.least, -1)[group], shape)
    return jax.lax.scan(add, least, xs)[0]


@functools.lru_cache(maxsize=256)
def integer_table(stddev: float, *, rounded: bool) -> IntegerTable:
    """The table of a discrete Gaussian, or of normal noise rounded to integers."""
    parts = levels(stddev, rounded=rounded)
    made = [_alias(shares(s, rounded=kind)) for _, s, kind in parts]
    factors = [factor for factor, _, _ in parts]
    least = -sum(factor * reach(s) for factor, s, _ in parts)
    packed, low = (np.stack(words) for words in zip(*made, strict=True))
    return IntegerTable(packed, low, np.array(factors, np.int32), np.array(least, np.int32))


def shortfall(stddev: float, *, rounded: bool) -> float:
    """Total variation between a draw and the exact law, at most."""
    parts = levels(stddev, rounded=rounded)
    values = sum(2 * reach(s) + 1 for _, s, _ in parts)
    return (values + len(parts)) * 2.0**-64 + (len(parts) - 1) * (_RIPPLE + _TIES)


def reach(stddev: Decimal) -> int:
    """The largest value of a level's table."""
    return math.ceil(float(stddev) * _REACH + 0.5)


def levels(stddev: float, *, rounded: bool) -> list[tuple[int, Decimal, bool]]:
    """Factor, deviation and whether it is rounded normal noise, of the terms of the sum."""
    found, factor, rest = [], 1, Decimal(stddev)
    with localcontext() as context:
        context.prec = _DIGITS
        while rest > Decimal(_WIDEST):
            own = min(Decimal(_WIDEST), rest / Decimal(2).sqrt())
            others = (rest * rest - own * own).sqrt()
            step = math.ceil(others / Decimal(_WIDEST))
            step = min(step, math.floor(own * others / rest / Decimal(_LEAST_V)))
            found.append((factor, own, rounded))
            factor, rest, rounded = factor * step, others / step, False
    return [*found, (factor, rest, rounded)]


def shares(stddev: Decimal, *, rounded: bool) -> list[int]:
    """Multiples of 2^-64 next to the probabilities of -m to m, in all 2^64."""
    most = reach(stddev)
    with localcontext() as context:
        context.prec = _DIGITS
        half = (_rounded if rounded else _discrete)(stddev, most)
        total = 2 * sum(half[1:]) + half[0]
        unit = [int((weight / total * 2**64).to_integral_value()) for weight in half]
    unit[0] += 2**64 - unit[0] - 2 * sum(unit[1:])
    return unit[:0:-1] + unit


def _discrete(stddev: Decimal, most: int) -> list[Decimal]:
    ratio = (-1 / (2 * stddev * stddev)).exp()
    weights, factor = [Decimal(1)], ratio
    for _ in range(most):  # e^(-(x+1)^2 / 2s^2) = e^(-x^2 / 2s^2) ratio^(2x + 1)
        weights.append(weights[-1] * factor)
        factor *= ratio * ratio
    return weights


def _rounded(stddev: Decimal, most: int) -> list[Decimal]:
    if stddev > 4:  # a sum of a discrete Gaussian and a narrow one, of v > 1.9
        narrow = Decimal("2.4")
        near = _rounded(narrow, reach(narrow))
        wide = _discrete((stddev * stddev - narrow * narrow).sqrt(), most + len(near))
        both = np.array(wide[len(near) : 0 : -1] + wide, object)
        shifts = range(-len(near) + 1, len(near))
        terms = [both[len(near) + j :][: most + 1] * near[abs(j)] for j in shifts]
        return list(sum(terms[1:], terms[0]))
    scale = stddev * 2 ** Decimal("0.5")
    below = [_error_function((x + Decimal("0.5")) / scale) for x in range(most + 1)]
    return [below[0], *((b - a) / 2 for a, b in itertools.pairwise(below))]


def _error_function(x: Decimal) -> Decimal:
    """By the series of positive terms, up to a common factor."""
    if x > 12:
        x = Decimal(12)  # 1 - 1e-64
    term, total, n = x, x, 0
    while term > total * Decimal(10) ** -_DIGITS:
        n += 1
        term *= 2 * x * x / (2 * n + 1)
        total += term
    return total * (-x * x).exp()


def _alias(units: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The packed and low words of an alias table of exactly these shares of 2^64."""
    full = 2**_SHARE_BITS
    rest = units + [0] * (COLUMNS - len(units))
    threshold, alias = [0] * COLUMNS, list(range(COLUMNS))
    short = [i for i, share in enumerate(rest) if share < full]
    long = [i for i, share in enumerate(rest) if share > full]
    while short:
        i, j = short.pop(), long[-1]
        threshold[i], alias[i] = rest[i], j
        rest[j] -= full - rest[i]
        if rest[j] <= full:
            long.pop()
            if rest[j] < full:
                short.append(j)
    kept = np.array(threshold, np.uint64)  # of a full column none is, and its alias is itself
    packed = (kept >> np.uint64(32) << np.uint64(_COLUMN_BITS)) | np.array(alias, np.uint64)
    return packed.astype(np.uint32), kept.astype(np.uint32)
