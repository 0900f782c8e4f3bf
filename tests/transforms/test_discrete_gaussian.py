import itertools
import math
from decimal import Decimal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from scipy import special, stats

from dpjax.privacy import Guarantee
from dpjax.random import _integer_tables as module
from dpjax.random._integer_tables import COLUMNS, draw_integers, integer_table, levels
from dpjax.testing import check_counts
from dpjax.transforms import (
    add_discrete_gaussian,
    add_rounded_gaussian,
    discrete_gaussian_shortfall,
    rounded_gaussian_shortfall,
)

KINDS = {
    "discrete": (add_discrete_gaussian, discrete_gaussian_shortfall),
    "rounded": (add_rounded_gaussian, rounded_gaussian_shortfall),
}


def tables(stddev, kind):
    """Of each level its factor, and the exact shares of 2^64 of its values, from the columns."""
    table = integer_table(stddev, rounded=kind == "rounded")
    found = []
    for packed, low, factor in zip(table.packed, table.low, table.factors, strict=True):
        kept = (packed >> 13).astype(object) * 2**32 + low.astype(object)
        units = np.zeros(COLUMNS, object)
        np.add.at(units, np.arange(COLUMNS), kept)
        np.add.at(units, packed & (COLUMNS - 1), 2**51 - kept)
        found.append((int(factor), np.trim_zeros(units, "b")))
    return found, int(table.least)


def law_of_code(stddev, kind):
    """Probabilities of -m to m, the levels' laws summed up."""
    found, least = tables(stddev, kind)
    law = np.ones(1, np.longdouble)
    for factor, units in found:
        assert sum(units) == 2**64
        spread = np.zeros((len(units) - 1) * factor + 1, np.longdouble)
        spread[::factor] = [np.longdouble(int(unit)) / np.longdouble(2**64) for unit in units]
        law = np.convolve(law, spread)
    reach = max(-least, len(law) - 1 + least)
    return np.pad(law, (reach + least, reach - (len(law) - 1 + least)))


def exact_law(stddev, reach, kind):
    x = np.arange(-reach, reach + 1, dtype=np.longdouble)
    if kind == "discrete":
        weights = np.exp(-(x**2) / (2 * np.longdouble(stddev) ** 2))
    else:  # from the nearer end, where differences keep their bits
        far = np.abs(np.asarray(x, float))
        upper = special.erfc((far - 0.5) / stddev / np.sqrt(2))
        weights = (upper - special.erfc((far + 0.5) / stddev / np.sqrt(2))) / 2
    return weights / weights.sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stddev", [0.2, 1.0, 3.9, 37.5])
def test_probabilities_of_all_values(kind, stddev):
    made = law_of_code(stddev, kind)
    want = exact_law(stddev, len(made) // 2, kind)
    # SciPy's error function is of 53 bits
    slack = 1e-17 * len(made) if kind == "discrete" else 1e-15 + 1e-16 * len(made)
    assert float(np.sum(np.abs(made - want))) / 2 <= KINDS[kind][1](stddev) + slack
    np.testing.assert_allclose(made, made[::-1], rtol=0, atol=2.0**-63)
    other = exact_law(1.5 * stddev, len(made) // 2, kind)
    assert float(np.sum(np.abs(made - other))) / 2 > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_lattices_have_the_law_of_one_table(kind, monkeypatch):
    """With widest tables of deviation 12, three levels make a deviation of 110."""
    monkeypatch.setattr(module, "_WIDEST", 12.0)
    integer_table.cache_clear()
    made = law_of_code(110.0, kind)
    assert len(levels(110.0, rounded=kind == "rounded")) == 3
    integer_table.cache_clear()
    want = exact_law(110.0, len(made) // 2, kind)
    assert float(np.sum(np.abs(made - want))) / 2 < 1e-13
    # steps of 4 are too wide for a deviation of 2.4: v is 0.59, and the ripple shows
    coarse = [(1, Decimal("2.4"), kind == "rounded"), (4, Decimal(3), False)]
    monkeypatch.setattr(module, "levels", lambda *_, **__: coarse)
    stddev = math.hypot(2.4, 12.0)
    made = law_of_code(stddev, kind)
    integer_table.cache_clear()
    want = exact_law(stddev, len(made) // 2, kind)
    assert float(np.sum(np.abs(made - want))) / 2 > 1e-4


@pytest.mark.parametrize("stddev", [0.01, 430.0, 430.01, 431.0, 7e3, 1.1e5, 3e6, 1e7])
def test_levels_add_up_to_the_deviation(stddev):
    parts = levels(stddev, rounded=True)
    assert len(parts) <= 3
    assert [rounded for *_, rounded in parts] == [True, *[False] * (len(parts) - 1)]
    variance = sum((factor * float(s)) ** 2 for factor, s, _ in parts)
    assert variance == pytest.approx(stddev**2, rel=1e-12)
    rest = stddev
    for (factor, own, _), (following, *_) in itertools.pairwise(parts):
        others = np.sqrt(rest**2 - float(own) ** 2)
        step = following // factor
        assert others / step * float(own) / rest >= 1.65
        rest = others / step
    assert rounded_gaussian_shortfall(stddev) < 2e-15


def test_words_at_the_thresholds(monkeypatch):
    """A word below a column's threshold gives the column, and from there on its alias."""
    table = integer_table(1.5, rounded=True)
    columns = np.repeat(np.arange(COLUMNS), 3)
    packed, low = table.packed[0][columns], table.low[0][columns]
    kept = (packed >> 13).astype(object) * 2**32 + low.astype(object)
    share = np.clip(kept + np.tile([-1, 0, 1], COLUMNS), 0, 2**51 - 1)
    first = (columns * 2**19 + share // 2**32).astype(np.uint32)
    second = (share % 2**32).astype(np.uint32)
    words = [jnp.asarray(first), jnp.asarray(second)]
    monkeypatch.setattr(module, "random_words", lambda *_: words)
    made = draw_integers(jax.random.key(0), columns.shape, table)
    want = np.where(share < kept, columns, packed & (COLUMNS - 1)) + table.least
    np.testing.assert_array_equal(made, want)


def test_levels_share_the_word_of_ties(monkeypatch):
    """Each is made of it by another odd factor, and compared with the level's own threshold."""
    table = integer_table(1e4, rounded=True)
    rng = np.random.default_rng(0)
    columns, tie = rng.integers(COLUMNS, size=(2, 9000)), rng.integers(2**32, size=9000)
    want = np.full(9000, int(table.least))
    words = [None] * 4
    for level, factor in enumerate(table.factors):
        packed, low = table.packed[level][columns[level]], table.low[level][columns[level]]
        words[2 * level] = jnp.asarray((columns[level] * 2**19 + (packed >> 13)).astype(np.uint32))
        below = tie * module._MIX**level % 2**32 < low
        want += factor * np.where(below, columns[level], packed & (COLUMNS - 1))
    words[1] = jnp.asarray(tie.astype(np.uint32))
    monkeypatch.setattr(module, "random_words", lambda *_: words)
    np.testing.assert_array_equal(draw_integers(jax.random.key(0), (9000,), table), want)


def test_multiples_of_a_word_are_as_good_as_independent():
    """The discrepancy of (w, w m) is below 2 and the partial quotients of m / 2^32, over 2^32."""
    for factor, enough in ((module._MIX, True), (module._MIX**2, True), (3, False)):
        above, below, total = 2**32, factor % 2**32, 0
        assert below % 2 == 1  # so that a multiple of a uniform word is uniform
        while below:
            total += above // below
            above, below = below, above % below
        assert (total <= 59) == enough
    of_two = 3 * 2.0**-38 * 2 * (61 / 2**32)
    assert of_two + 2.0**-57 < 2 * module._TIES


def drawn(noise, size, seed):
    zeros = jnp.zeros(size, jnp.int32)
    return np.asarray(jax.jit(noise.update)(zeros, noise.init(zeros), key=jax.random.key(seed))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_the_law(kind):
    reach = 40
    counts = np.bincount(drawn(KINDS[kind][0](2.0), 200_000, 1) + reach, minlength=2 * reach + 1)
    check_counts(counts, exact_law(2.0, reach, kind))
    for factor in (0.97, 1.03):
        with pytest.raises(AssertionError):
            check_counts(counts, exact_law(2.0 * factor, reach, kind))


@pytest.mark.parametrize("stddev", [1e4, 1e7])
def test_wide_draws_follow_the_law(stddev):
    made = drawn(add_rounded_gaussian(stddev), 100_000, 2)
    edges = np.linspace(-4, 4, 41)
    counts = np.histogram(made / stddev, np.concatenate([[-np.inf], edges, [np.inf]]))[0]

    def law(scale):
        return np.diff(np.concatenate([[0], stats.norm.cdf(edges / scale), [1]]))

    check_counts(counts, law(1.0))
    for factor in (2 / 3, 0.97, 1.03, 3 / 2):
        with pytest.raises(AssertionError):
            check_counts(counts, law(factor))
    assert len(np.unique(made % 24)) == 24


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("stddev", "sensitivity"), [(0.7, 1), (3.0, 1), (3.0, 2)])
def test_exact_curve_is_below_the_claim(kind, stddev, sensitivity):
    """Hockey-stick divergences of the code's own law against its shift, both ways."""
    law = law_of_code(stddev, kind).astype(float)
    first = np.concatenate([law, np.zeros(sensitivity)])
    second = np.concatenate([np.zeros(sensitivity), law])

    def event(scale):
        ratio = scale * stddev / sensitivity
        if kind == "discrete":
            return dpe.ZCDpEvent(1 / (2 * ratio**2))
        return dpe.GaussianDpEvent(ratio)

    claim = Guarantee(event(1), failure_probability=sensitivity * KINDS[kind][1](stddev))
    small = Guarantee(event(1.5))
    caught = False
    for epsilon in np.linspace(0, 6, 25):
        for p, q in ((first, second), (second, first)):
            exact = float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0)))
            assert exact <= claim.delta(epsilon)
            caught |= exact > small.delta(epsilon)
    assert caught


@pytest.mark.slow
@pytest.mark.parametrize("make", [add_discrete_gaussian, add_rounded_gaussian])
def test_dtypes_and_bad_arguments(make):
    noise = make(3.0)
    tree = {"a": jnp.zeros(3, jnp.int32), "b": jnp.zeros((2, 2), jnp.uint32)}
    noisy, _ = noise.update(tree, noise.init(tree), key=jax.random.key(0))
    assert {name: leaf.dtype for name, leaf in noisy.items()} == {
        name: leaf.dtype for name, leaf in tree.items()
    }
    for leaf in (jnp.zeros(3), jnp.zeros(3, jnp.int8), jnp.zeros(3, bool)):
        with pytest.raises(TypeError, match="integers of 32 or 64 bits"):
            noise.update(leaf, noise.init(leaf), key=jax.random.key(0))
    for bad in (0.0, -1.0, float("nan"), 2e7):
        with pytest.raises(ValueError, match="stddev must be"):
            make(bad)
    with pytest.raises(TypeError, match="when the transformation is made"):
        jax.jit(lambda s: make(s).init(None))(1.0)
