import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe

from dpjax.privacy import Guarantee
from dpjax.testing import check_counts
from dpjax.transforms import add_discrete_gaussian, discrete_gaussian_shortfall
from dpjax.transforms._discrete_gaussian import _draw, _thresholds


def law_of_code(stddev):
    """Exact probabilities of every value: how many of the 2^64 words give it."""
    high, low = (words.astype(object) for words in _thresholds(stddev))
    ends = [0, *(high * 2**32 + low), 2**64]
    return np.array([float(b - a) / 2.0**64 for a, b in itertools.pairwise(ends)])


def exact_law(stddev, reach):
    x = np.arange(-reach, reach + 1, dtype=np.longdouble)
    weights = np.exp(-(x**2) / (2 * np.longdouble(stddev) ** 2))
    return weights / weights.sum()


@pytest.mark.parametrize("stddev", [0.2, 1.0, 37.5, 4096.0])
def test_probabilities_of_all_values(stddev):
    made = law_of_code(stddev)
    reach = len(made) // 2
    want = exact_law(stddev, reach)
    assert len(made) == 2 * reach + 1
    # long double holds 64 bits
    distance = float(np.sum(np.abs(made - want))) / 2
    assert distance <= discrete_gaussian_shortfall(stddev) + 1e-17 * len(made)
    np.testing.assert_allclose(made, made[::-1], atol=2.0**-63)


def test_words_at_the_thresholds():
    """The bisection counts thresholds <= word, at each of them and one below."""
    high, low = _thresholds(1.5)
    values = [(int(h) << 32) + int(w) for h, w in zip(high, low, strict=True)]
    words = sorted({0, 2**64 - 1, *values, *(max(v - 1, 0) for v in values)})
    want = [sum(v <= word for v in values) - len(values) // 2 for word in words]
    stack = np.array([[w >> 32, w & 0xFFFFFFFF] for w in words], np.uint64).astype(np.uint32).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.asarray(stack))
        made = _draw(jax.random.key(0), (len(words),), high, low)
    assert made.tolist() == want


def test_draws_follow_the_law():
    noise = add_discrete_gaussian(2.0)
    zeros = jnp.zeros(200_000, jnp.int32)
    drawn = np.asarray(jax.jit(noise.update)(zeros, noise.init(zeros), key=jax.random.key(1))[0])
    reach = 40
    counts = np.bincount(drawn + reach, minlength=2 * reach + 1)
    check_counts(counts, exact_law(2.0, reach))
    for factor in (0.97, 1.03):
        with pytest.raises(AssertionError):
            check_counts(counts, exact_law(2.0 * factor, reach))


@pytest.mark.parametrize(("stddev", "sensitivity"), [(0.7, 1), (3.0, 1), (3.0, 2)])
def test_exact_curve_is_below_the_claim(stddev, sensitivity):
    """Hockey-stick divergences of the code's own law against its shift, both ways."""
    law = law_of_code(stddev)
    first = np.concatenate([law, np.zeros(sensitivity)])
    second = np.concatenate([np.zeros(sensitivity), law])
    event = dpe.ZCDpEvent(sensitivity**2 / (2 * stddev**2))
    claim = Guarantee(event, failure_probability=discrete_gaussian_shortfall(stddev))
    small = Guarantee(dpe.ZCDpEvent(sensitivity**2 / (2 * (1.5 * stddev) ** 2)))
    caught = False
    for epsilon in np.linspace(0, 6, 25):
        for p, q in ((first, second), (second, first)):
            exact = float(np.sum(np.maximum(p - np.exp(epsilon) * q, 0)))
            assert exact <= claim.delta(epsilon)
            caught |= exact > small.delta(epsilon)
    assert caught


@pytest.mark.slow
def test_dtypes_and_bad_arguments():
    noise = add_discrete_gaussian(3.0)
    tree = {"a": jnp.zeros(3, jnp.int32), "b": jnp.zeros((2, 2), jnp.uint32)}
    noisy, _ = noise.update(tree, noise.init(tree), key=jax.random.key(0))
    assert {name: leaf.dtype for name, leaf in noisy.items()} == {
        name: leaf.dtype for name, leaf in tree.items()
    }
    for leaf in (jnp.zeros(3), jnp.zeros(3, jnp.int8), jnp.zeros(3, bool)):
        with pytest.raises(TypeError, match="integers of 32 or 64 bits"):
            noise.update(leaf, noise.init(leaf), key=jax.random.key(0))
    for bad in (0.0, -1.0, float("nan"), 5000.0):
        with pytest.raises(ValueError, match="stddev must be"):
            add_discrete_gaussian(bad)
    with pytest.raises(TypeError, match="when the transformation is made"):
        jax.jit(lambda s: add_discrete_gaussian(s).init(None))(1.0)
