"""Gaussian noise on the integers, drawn exactly: no floating point in what is released."""

import functools
import math
from decimal import Decimal, localcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import Transform, check_positive, check_scalar, is_traced
from dpjax.transforms._noise import noise_on_leaves

_LARGEST = 4096.0
_DIGITS = 60
_WORDS = 2  # 64 random bits a draw


def add_discrete_gaussian(stddev: float) -> Transform:
    r"""Adds independent discrete Gaussian noise to every integer of a tree.

    $$ P[X = x] = \frac{e^{-x^2 / 2\sigma^2}}{\sum_{y \in \mathbb Z} e^{-y^2 / 2\sigma^2}},
       \qquad x \in \mathbb Z $$

    Guarantee: with integer updates of l2 sensitivity $\Delta$, each call is
    `ZCDpEvent(Delta**2 / (2 * stddev**2))` for the relation of $\Delta$, as for the Gaussian of
    that deviation; and the draws of a call are within
    `discrete_gaussian_shortfall(stddev) * number of integers` of the exact law in total variation,
    the `failure_probability` to declare (1e-13 for a thousand integers at deviation 100). **Nothing
    else is idealised**: unlike noise of floating point, what is released has no low bits that could
    give the data away. Use it where the sums are integers: counts, histograms, tables.

    | input | effect |
    | --- | --- |
    | leaf of floats | TypeError, since rounding would move the sensitivity |
    | sum beyond int32 | wraps, as integers do, which is post-processing |

    Args:
      stddev: $\sigma$ of the table the draws come from, in (0, 4096] (*public*, static).

    Returns:
      A transformation for trees of integers, whose dtypes are kept;
      `update(updates, state, params=None, *, key)`.

    Raises:
      ValueError: If `stddev` is outside its bound.
      TypeError: If `stddev` is traced; at `update`, if a leaf is not of integers of 32 or 64 bits,
        or the key is missing or not typed.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> noise = dpjax.transforms.add_discrete_gaussian(3.0)
      >>> counts = jnp.array([10, 0, 7])
      >>> noisy, _ = noise.update(counts, noise.init(counts), key=jax.random.key(0))
      >>> noisy.dtype == counts.dtype
      True

    Source: Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy",
    theorem 4.
    """
    high, low = _thresholds(_checked(stddev))

    def noisy(leaf: Any, key: jax.Array) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if leaf.dtype not in (jnp.int32, jnp.int64, jnp.uint32, jnp.uint64):
            raise TypeError(f"updates must be integers of 32 or 64 bits, got {leaf.dtype}")
        return leaf + _draw(key, leaf.shape, high, low).astype(leaf.dtype)

    return noise_on_leaves(noisy)


def discrete_gaussian_shortfall(stddev: float) -> float:
    r"""Total variation between one draw of `add_discrete_gaussian` and the exact law, at most.

    A draw compares 64 random bits with thresholds rounded to multiples of 2^-64 below 1, in a table
    that ends where less than 2^-64 is left.

    Args:
      stddev: As there.

    Returns:
      The bound, about $20\,\sigma\, 2^{-64}$.

    Raises:
      ValueError: If `stddev` is outside its bound.

    Example:
      >>> discrete_gaussian_shortfall(100.0) < 1.1e-16
      True
    """
    return (2 * _reach(_checked(stddev)) + 3) * 2.0**-64


def _checked(stddev: float) -> float:
    if is_traced(stddev):
        raise TypeError("stddev must be known when the transformation is made: it sets a table")
    check_scalar("stddev", stddev)
    check_positive("stddev", stddev)
    if float(stddev) > _LARGEST:
        raise ValueError(f"stddev must be <= {_LARGEST:g}, got {stddev!r}")
    return float(stddev)


def _reach(stddev: float) -> int:
    """The largest value in the table: P[|X| > m] <= 2 e^(-m^2 / 2 sigma^2) beyond it."""
    return math.ceil(stddev * math.sqrt(2 * 65 * math.log(2)))


@functools.lru_cache(maxsize=32)
def _thresholds(stddev: float) -> tuple[np.ndarray, np.ndarray]:
    """2^64 P[X <= x] for x from -m to m - 1, to the nearest integer, as high and low words."""
    reach = _reach(stddev)
    with localcontext() as context:
        context.prec = _DIGITS
        ratio = (-1 / (2 * Decimal(stddev) ** 2)).exp()
        weights, factor = [Decimal(1)], ratio
        for _ in range(reach):  # e^(-(x+1)^2 / 2s^2) = e^(-x^2 / 2s^2) ratio^(2x + 1)
            weights.append(weights[-1] * factor)
            factor *= ratio * ratio
        law = weights[:0:-1] + weights
        total, below, found = sum(law), Decimal(0), []
        for weight in law[:-1]:
            below += weight
            found.append(min(int((below / total * 2**64).to_integral_value()), 2**64 - 1))
    words = np.array([[t >> 32, t & 0xFFFFFFFF] for t in found], np.uint64).astype(np.uint32)
    return words[:, 0], words[:, 1]


def _draw(key: jax.Array, shape: tuple[int, ...], high: Any, low: Any) -> jax.Array:
    """How many thresholds are at most 64 random bits, less the largest value: by bisection."""
    size = len(high)
    first, second = jax.random.bits(key, (_WORDS, *shape), jnp.uint32)
    high, low = jnp.asarray(high), jnp.asarray(low)
    start = jnp.zeros(shape, jnp.int32)

    def halve(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[Any, None]:
        least, most = carry
        middle = (least + most) // 2
        here = jnp.minimum(middle, size - 1)
        reached = (high[here] < first) | ((high[here] == first) & (low[here] <= second))
        open_ = least < most
        least = jnp.where(open_ & reached, middle + 1, least)
        most = jnp.where(open_ & ~reached, middle, most)
        return (least, most), None

    steps = size.bit_length() + 1
    (count, _), _ = jax.lax.scan(halve, (start, start + size), length=steps)
    return count - (size // 2)
