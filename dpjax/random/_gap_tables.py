"""Tables that invert a geometric distribution with integers alone."""

import functools
import math
from typing import NamedTuple

import numpy as np

# Fixed point with this many bits: exact for every float64 rate, subnormal ones included.
_BITS = 1280
_ONE = 1 << _BITS
# Drawing a 64-bit word costs about as much as this many comparisons.
_WORD_COST = 25


class Digit(NamedTuple):
    """One digit of a gap: `sum(u >= thresholds) * weight` for 64 random bits `u`."""

    weight: int
    thresholds: tuple[int, ...]  # ascending, in [0, 2**64)

    def words(self) -> tuple[np.ndarray, np.ndarray]:
        """The thresholds as high and low words, `[entries]` uint32 each."""
        high = np.array([t >> 32 for t in self.thresholds], dtype=np.uint32)
        low = np.array([t & 0xFFFFFFFF for t in self.thresholds], dtype=np.uint32)
        return high, low


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

    Thresholds are `2^64 * P[digit <= k]`, rounded to the nearest integer from 1280-bit fixed
    point. The table of the top digit ends where its thresholds round to `2^64`, or earlier
    where the gap exceeds `num_records` and its value no longer matters.

    Args:
      rate: probability with which each record takes part, in (0, 1].
      num_records: gaps of this length or more need not be told apart.

    Returns:
      The digits, lowest weight first. Every gap they make is below `2**32`.
    """
    numerator, denominator = rate.as_integer_ratio()
    miss = _ONE - (numerator << _BITS) // denominator
    # (1 - rate)^g <= e^(-rate g) is below 2^-65 from here on
    span = max(1, min(num_records, math.ceil(min(65 * math.log(2) / rate, 2.0**53))))
    radices = _radices(span)
    digits, weight = [], 1
    for radix in radices[:-1]:
        digits.append(Digit(weight, _thresholds(_power(miss, weight), radix - 1, radix)))
        weight *= radix
    digits.append(Digit(weight, _thresholds(_power(miss, weight), radices[-1], None)))
    return tuple(digits)


def rounding_error(digits: tuple[Digit, ...]) -> float:
    """Total variation between one gap drawn from the tables and a geometric variable.

    Each threshold is off by at most 2^-65 and moves that much mass between two neighbouring
    values; the last table omits at most 2^-65 besides.
    """
    return (sum(len(digit.thresholds) for digit in digits) + 1) * 2.0**-65


def _radices(span: int) -> list[int]:
    """Radices with product >= span, with the least cost of drawing and comparing."""
    best: tuple[int, list[int]] | None = None
    for count in range(1, 9):
        radix = max(2, round(span ** (1 / count)))
        lower = radix ** (count - 1)
        radices = [radix] * (count - 1) + [-(-span // lower)]
        cost = _WORD_COST * count + sum(radices)
        if best is None or cost < best[0]:
            best = (cost, radices)
    assert best is not None
    return best[1]


def _thresholds(v: int, entries: int, radix: int | None) -> tuple[int, ...]:
    """`2^64 * P[digit <= k]` for k < entries, less those that round to 2^64."""
    total = _ONE if radix is None else _ONE - _power(v, radix)
    thresholds, tail = [], v
    for _ in range(entries):
        threshold = (((_ONE - tail) << 65) // total + 1) >> 1
        if threshold >= 1 << 64:
            break
        thresholds.append(threshold)
        tail = (tail * v) >> _BITS
    return tuple(thresholds)


def _power(base: int, exponent: int) -> int:
    """Fixed-point power by squaring."""
    result = _ONE
    while exponent:
        if exponent & 1:
            result = (result * base) >> _BITS
        base = (base * base) >> _BITS
        exponent >>= 1
    return result
