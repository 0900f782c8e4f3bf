"""Normal numbers as a function of 64 random bits, far out too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import dpjax.testing as dpt
from dpjax.random._normal import normal
from tests.random.normal_words import normals, short_normals, words_below


def chosen_words():
    """Magnitudes whose tail probabilities are 2^-k, random ones of each octave, and near 0."""
    rng = np.random.default_rng(0)
    beyond = [2**k for k in range(1, 63)]
    beyond += [2**k + int(share * 2**k) for k in range(1, 62) for share in rng.random(8)]
    return [2**63 - far for far in beyond] + beyond


def exact(words):
    """The normal number of the middle of each cell of 2 words, by SciPy in double precision."""
    cells = [int(word) >> 1 for word in words]
    x = np.array([(cell + 0.5) * 2.0**-62 for cell in cells])
    beyond = np.array([(2**62 - cell - 0.5) * 2.0**-62 for cell in cells])
    centre = np.sqrt(2) * special.erfinv(np.minimum(x, 0.5))
    return np.where(x < 0.5, centre, -special.ndtri(beyond / 2)), beyond


def test_values_and_tails_at_chosen_words():
    words = chosen_words()
    want, beyond = exact(words)
    made = normals(words)
    assert made.max() > 9
    np.testing.assert_allclose(made, want, rtol=3e-7)
    tails = special.log_ndtr(-made) + np.log(2)
    np.testing.assert_allclose(tails, np.log(beyond), atol=2e-5)
    for wrong in (
        made * 2 / 3,
        made * 3 / 2,
        np.abs(short_normals(np.array([(w + 2**63) >> 41 for w in words], np.int32))),
    ):
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(wrong, want, rtol=1e-3)


def test_double_precision_at_chosen_words(x64):
    words = chosen_words()
    want, _ = exact(words)
    np.testing.assert_allclose(normals(words, double=True), want, rtol=1e-13)


def test_odd_and_increasing():
    words = np.sort(np.array(chosen_words(), object))
    made = normals(words)
    np.testing.assert_array_equal(normals(-1 - words), -made)
    distinct = np.concatenate([[True], np.diff(exact(words)[0]) > 1e-6 * made[1:]])
    assert np.all(np.diff(made[distinct]) > 0)


def tail_counts(made):
    levels = np.array([0.5, 2.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    found = 2**64 - words_below(made, levels)
    return found.astype(float), 2.0**64 * stats.norm.sf(levels)


def test_words_beyond_far_levels():
    """Of the 2^64 words, exactly as many as the tail asks for: within a hundred-thousandth."""
    found, want = tail_counts(normals)
    np.testing.assert_array_less(np.abs(found - want), 1e-5 * want + 1)
    for factor in (2 / 3, 3 / 2):
        found, want = tail_counts(lambda words, factor=factor: factor * normals(words))
        assert np.all(np.abs(found - want) > 0.15 * want)


def test_the_same_looks_refuse_23_bits():
    made = short_normals(np.arange(2**23))
    far = np.array([4.5, 5.0, 6.0])
    shares = np.array([jnp.mean(made > level) for level in far])
    assert np.all(np.abs(shares / stats.norm.sf(far) - 1) > 1e-3)
    assert made.max() < 5.5


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("shape", [(), (3000,), (7, 3, 100)])
def test_draws_follow_the_law(shape, impl):
    key = jax.random.key(3, impl=impl)
    made = jax.jit(lambda key: normal(key, shape, jnp.float32))(key)
    assert made.dtype == jnp.float32
    assert made.shape == shape
    if made.size > 1:
        dpt.check_scale(made.ravel(), lambda s: stats.norm(scale=s).cdf, 1.0)


def test_draws_under_vmap_and_in_double_precision(x64):
    keys = jax.random.split(jax.random.key(4), 2)
    both = jax.vmap(lambda key: normal(key, (3000,), jnp.float32))(jax.random.clone(keys))
    for key, row in zip(keys, both, strict=True):
        np.testing.assert_array_equal(normal(jax.random.clone(key), (3000,), jnp.float32), row)
        wide = normal(key, (3000,), jnp.float64)
        assert wide.dtype == jnp.float64
        np.testing.assert_allclose(wide, row, rtol=3e-7)
