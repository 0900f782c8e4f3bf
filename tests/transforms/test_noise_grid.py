"""Releases of floats, every output counted: the grid they are rounded to hides what they hide."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from dpjax.random._normal import normals_of_words
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    SplitNoise,
    add_gaussian,
    add_laplace,
    correlated_noise,
)
from dpjax.transforms.noise import _independent as module
from tests.random.normal_words import short_normals, split_words, words_below

DELTA = 1e-5


def exact_delta(multiplier, epsilon):
    upper, lower = 0.5 / multiplier, epsilon * multiplier
    return stats.norm.cdf(upper - lower) - math.exp(epsilon) * stats.norm.cdf(-upper - lower)


def claimed_epsilon(multiplier):
    return optimize.brentq(lambda e: exact_delta(multiplier, e) - DELTA, 0, 50)


@jax.jit
def released(value, stddev, high, low):
    return module.plus_noise(
        jnp.broadcast_to(value, high.shape), stddev, normals_of_words(high, low)
    )


def law(value, multiplier, parts):
    """Probability of every multiple of the grid, by counts of words: `{multiple: share}`."""
    grid = 2.0 ** math.floor(math.log2(multiplier)) / parts
    ends = [math.floor((value + side * 10 * multiplier) / grid) for side in (-1, 1)]
    multiples = np.arange(*ends)
    below = words_below(
        lambda words: released(np.float32(value), np.float32(multiplier), *split_words(words)),
        (multiples - 0.5) * grid,
    )
    assert (below[0], below[-1]) == (0, 2**64)
    return dict(zip(multiples, np.diff(below).astype(float) / 2.0**64, strict=False))


def largest_delta(one, other, epsilon):
    """Of two laws, whichever way it is larger."""
    outputs = sorted(one.keys() | other.keys())
    p, q = (np.array([law.get(output, 0.0) for output in outputs]) for law in (one, other))
    return max(np.sum(np.maximum(a - math.exp(epsilon) * b, 0)) for a, b in ((p, q), (q, p)))


@pytest.mark.parametrize(("multiplier", "value"), [(1.0, 0.0), (4.0, 0.3), (1.5, 1000.7)])
def test_delta_of_a_release_is_as_claimed(multiplier, value):
    """Sensitivity 1; every number that can leave, counted."""
    laws = [law(start, multiplier, module._PARTS) for start in (value, value + 1)]
    epsilon = claimed_epsilon(multiplier)
    assert 0.99e-5 < largest_delta(*laws, epsilon) < 1.001e-5
    smaller = claimed_epsilon(1.5 * multiplier)
    assert largest_delta(*laws, smaller) > 2e-5


@pytest.mark.parametrize("parts", [8, 128, pytest.param(1024, marks=pytest.mark.slow)])
def test_other_grids(parts, monkeypatch):
    """The table of docs/numerics.md."""
    monkeypatch.setattr(module, "_PARTS", parts)
    released.clear_cache()
    laws = [law(start, 1.0, parts) for start in (0.3, 1.3)]
    released.clear_cache()
    assert largest_delta(*laws, claimed_epsilon(1.0)) < 1.001e-5


@pytest.mark.slow  # eight million numbers, and again
@pytest.mark.parametrize(("parts", "least"), [(32, 3e-5), (1024, 5e-4)])
def test_normals_of_23_bits_are_caught(parts, least, monkeypatch):
    """All of them; rounded to a 32nd of the deviation, or to a thousandth."""
    monkeypatch.setattr(module, "_PARTS", parts)
    noise = short_normals(jnp.arange(2**23))
    laws = []
    for value in (0.0, 1.0):
        made = module.plus_noise(value, 1.0, noise)
        outputs, counts = np.unique(np.asarray(made), return_counts=True)
        laws.append(dict(zip(outputs.tolist(), counts / counts.sum(), strict=True)))
    assert largest_delta(*laws, claimed_epsilon(1.0)) > least


def test_numbers_not_rounded_give_the_value_away():
    """What 0 leaves, and 1 cannot: below 1/2, numbers that are no multiples of 2^-24."""
    words = np.random.default_rng(0).integers(0, 2**32, (2, 10**5), np.uint32)
    noise = np.asarray(normals_of_words(*words), np.float64)
    only_from_zero = (np.abs(noise) < 0.5) & (noise * 2**24 % 1 != 0)
    assert np.mean(only_from_zero) > 0.2
    rounded = np.asarray(released(np.float32(0), np.float32(1), *words), np.float64)
    assert np.all(rounded * 32 % 1 == 0)


@pytest.mark.always  # the grid as claimed
@pytest.mark.parametrize("make", [add_gaussian, add_laplace])
def test_multiples_of_a_power_of_two_by_the_scale(make):
    values = jnp.concatenate([jnp.linspace(-1e3, 1e3, 50), jnp.array([0.0, 1e7, jnp.nan, jnp.inf])])

    def update(values, scale):
        return make(scale).update(values, make(scale).init(values), key=jax.random.key(0))[0]

    traced = jax.jit(update)
    for scale, grid in ((2.0, 2**-4), (3.99, 2**-4), (4.0, 2**-3), (1e-3, 2**-15)):
        for made in (update(values, scale), traced(values, scale)):
            finite = np.asarray(made, np.float64)[:-2]
            assert np.all(finite / grid % 1 == 0)
            assert np.any(finite[20:30] / grid % 2 == 1)
            assert np.isnan(made[-2])
            assert np.isinf(made[-1])


@pytest.mark.parametrize("strategy", [BinaryTree(8), BufferedToeplitz(8), SplitNoise(8)], ids=repr)
def test_correlated_noise_is_on_a_finer_grid(strategy):
    """The scale is that of the noise times the sensitivity of the step."""
    values = jnp.concatenate([jnp.linspace(-1e3, 1e3, 50), jnp.array([0.0, 1e-9])])
    noise = correlated_noise(strategy, 0.7)
    state = noise.init(values)
    for step in range(4):
        made, state = noise.update(values, state, key=jax.random.key(step), sensitivity=3.0)
        multiples = np.asarray(made, np.float64) / (2 / 1024)
        assert np.all(multiples % 1 == 0)
        assert np.any(multiples % 2 == 1)


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-38])
def test_values_stay_where_there_is_no_grid(scale):
    values = jnp.array([0.1, 1e30, -7.0, 0.0])
    noise = add_gaussian(scale)
    made, _ = noise.update(values, noise.init(values), key=jax.random.key(0))
    np.testing.assert_allclose(made, values, rtol=1e-7, atol=1e-36)


def test_grid_in_double_precision(x64):
    values, noise = jnp.array([0.1, 1e9]), add_gaussian(1.0)
    made, _ = noise.update(values, noise.init(values), key=jax.random.key(0))
    assert made.dtype == jnp.float64
    assert np.all(np.asarray(made) * 32 % 1 == 0)
