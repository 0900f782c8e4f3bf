"""The integer tables are right to 96 bits, and jit inverts them exactly."""

import bisect
import itertools
from decimal import Decimal, localcontext
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from dpjax.random._gaps import Digit, _invert, draw_members, gap_digits, gaps_shortfall
from dpjax.random._keys import StepKeys
from dpjax.testing import count_false_alarm

RATES = [0.5, 0.3, 512 / 36_000, 1e-4]


def misses(rate, exponent):
    """`(1 - rate)^exponent`, exactly where that is cheap and to 120 digits elsewhere."""
    if exponent <= 4000:
        return (1 - Fraction(rate)) ** exponent
    with localcontext() as context:
        context.prec = 120
        return Fraction((1 - Decimal(rate)) ** exponent)


def below(digit, value):
    """Realised probability that a digit is below `value`, over words of draw and step."""
    if value <= 0:
        return Fraction(0)
    if value > len(digit.thresholds):
        return Fraction(1)
    return Fraction(digit.thresholds[value - 1] * 2**32 + digit.parts[value - 1], 2**96)


def raised(digit, shared):
    """Thresholds of a step with this word."""
    return [t + (shared < part) for t, part in zip(digit.thresholds, digit.parts, strict=True)]


def threefry_reference(key, count, stream=0):
    """Blocks of the cipher at counters (stream, i), by JAX's own generator."""
    counters = np.concatenate([np.full(count, stream), np.arange(count)]).astype(np.uint32)
    words = np.asarray(threefry_2x32(jax.random.key_data(key), jnp.asarray(counters)))
    return words[:count], words[count:]


@pytest.mark.parametrize("rate", RATES)
def test_thresholds_are_right_to_96_bits(rate):
    digits = gap_digits(rate, 10**9)
    for digit, following in itertools.zip_longest(digits, digits[1:]):
        total = 1 - misses(rate, following.weight) if following else Fraction(1)
        for k in range(len(digit.thresholds)):
            exact = (1 - misses(rate, digit.weight * (k + 1))) / total
            error = abs(below(digit, k + 1) - exact) * 2**96
            assert error <= Fraction(1, 2) + Fraction(1, 10**60)
        assert list(digit.thresholds) == sorted(digit.thresholds)
        if following:
            assert len(digit.thresholds) == following.weight // digit.weight - 1


@pytest.mark.parametrize("rate", RATES)
def test_gap_distribution_to_2_to_minus_92(rate):
    digits = gap_digits(rate, 10**9)
    for gap in [0, 1, 2, 7, 13, 14, 15, 100, 197, 1000, 3000]:
        realised, weight_of_prefix, rest = Fraction(0), Fraction(1), gap + 1
        for digit in reversed(digits):  # P[G < gap + 1], digit by digit from the top
            value, rest = divmod(rest, digit.weight)
            realised += weight_of_prefix * below(digit, value)
            weight_of_prefix *= below(digit, value + 1) - below(digit, value)
        exact = 1 - misses(rate, gap + 1)
        assert abs(realised - exact) < Fraction(1, 2**92)


@pytest.mark.parametrize("rate", [1e-300, 1e-12, 1e-6, 1e-3, 0.9, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("bound", [1, 3, 1000, 2**31 - 1])
def test_tables_stay_small_and_gaps_fit_uint32(rate, bound):
    digits = gap_digits(rate, bound)
    largest = sum(len(d.thresholds) * d.weight for d in digits)
    assert largest + 1 < 2**32
    assert sum(len(d.thresholds) for d in digits) < 200
    assert gaps_shortfall(bound, rate, 1) < 200 * 2.0**-97 + (200 * 2.0**-64) ** 2
    # the longest gap leaves the data set, or longer ones have probability below 2^-97
    assert largest >= bound or (1 - rate) ** (largest + 1) <= 2.0**-96.9


@pytest.mark.parametrize(
    ("rate", "bound", "n"),
    [(0.3, 50, 50), (512 / 36_000, 36_000, 20_000), (1e-6, 10**8, 10**8), (1.0, 40, 9)],
)
def test_jit_inverts_the_tables_exactly(x64, rate, bound, n):
    draws, key = 60, jax.random.key(3)
    digits = [d for d in gap_digits(rate, bound) if d.thresholds]
    draw = jax.jit(draw_members, static_argnums=(2, 3, 4, 5))
    word = StepKeys.of(key[None]).words(2)[0]
    shared = int(threefry_reference(key, 1, stream=2)[0][0])
    assert int(word) == shared
    indices, mask = draw(StepKeys.of(key), word, rate, bound, n, draws)
    want, position = [], -1
    high, low = threefry_reference(key, len(digits) * draws)
    words = (high.astype(object) << 32 | low).reshape(len(digits), draws)
    for column in words.T.tolist():
        gap = sum(
            bisect.bisect_right(raised(d, shared), u) * d.weight
            for d, u in zip(digits, column, strict=True)
        )
        position += 1 + gap
        if position < n:
            want.append(position)
    assert np.asarray(indices)[np.asarray(mask)].tolist() == want
    assert not np.asarray(indices)[~np.asarray(mask)].any()


@pytest.mark.parametrize("shared", [0, 2**31, 2**32 - 1])
def test_words_next_to_a_threshold_land_on_its_two_sides(shared):
    """Also where the word of the step has raised it, over a carry and up to 2^64."""
    (first, *_) = gap_digits(0.3, 50)
    hostile = Digit(1, (0, 2**32 - 1, 2**32, 2**63, 2**64 - 1), (0, 2**32 - 1, 1, 2**31, 2**32 - 1))
    for digit in (first, hostile):
        for k, threshold in enumerate(raised(digit, shared)):
            words = np.array([max(threshold - 1, 0), min(threshold, 2**64 - 1)], dtype=np.uint64)
            high = (words >> np.uint64(32)).astype(np.uint32)
            low = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            parts = (jnp.asarray(part) for part in (high, low, np.array(shared, np.uint32)))
            want = [bisect.bisect_right(raised(digit, shared), int(word)) for word in words]
            assert _invert(digit, *parts).tolist() == want
            assert threshold in (0, 2**64) or want[1] > k >= want[0]


def test_draws_that_share_a_word_are_off_only_to_second_order():
    """Two draws by enumeration, with words of 2 bits in place of 64 and of 2 in place of 32."""
    digit = Digit(1, (2,), (3 << 30,))  # a threshold of 2 3/4 of 4
    exact = Fraction(11, 16)
    low = jnp.arange(4, dtype=jnp.uint32)
    below = [
        Fraction(int(jnp.sum(_invert(digit, jnp.zeros_like(low), low, np.uint32(s << 30)) == 0)), 4)
        for s in range(4)
    ]
    assert sum(below) / 4 == exact
    both = sum(share**2 for share in below) / 4
    assert 0 < abs(both - exact**2) <= (2 * Fraction(1, 4)) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "bound"), [(512 / 36_000, 36_000), (1e-6, 2**31 - 1)])
def test_gaps_are_geometric(rate, bound):
    """Gaps of one long draw against the geometric distribution (KS), and not against 1.05 rate."""
    n = min(bound, int(20_000 / rate))
    keys = StepKeys.of(jax.random.key(0))
    indices, mask = draw_members(keys, jnp.uint32(0), rate, bound, bound, 20_000)
    members = np.asarray(indices)[np.asarray(mask)]
    gaps = np.diff(members[members < n])
    assert len(gaps) > 400

    def pvalue(r):
        # uniform over each atom makes the transform continuous
        u = np.random.default_rng(1).random(len(gaps))
        return stats.kstest(
            -np.expm1((gaps - 1) * np.log1p(-r)) + u * r * np.exp((gaps - 1) * np.log1p(-r)),
            "uniform",
        ).pvalue

    count_false_alarm(1e-7)
    assert pvalue(rate) > 1e-7
    if len(gaps) > 2000:
        assert pvalue(1.5 * rate) < 1e-7


@pytest.mark.parametrize("stream", [0, 1])
def test_words_are_those_of_jax(x64, stream):
    key = jax.random.key(7)
    high, low = jax.jit(lambda k: k.bits64(stream, 100))(StepKeys.of(key))
    want = threefry_reference(key, 100, stream)
    np.testing.assert_array_equal(high, want[0])
    np.testing.assert_array_equal(low, want[1])
    if x64 and not stream and jax.config.jax_threefry_partitionable:
        words = np.asarray(jax.random.bits(key, (100,), "uint64"))
        np.testing.assert_array_equal(words >> np.uint64(32), high)
        np.testing.assert_array_equal(words.astype(np.uint32), low)
