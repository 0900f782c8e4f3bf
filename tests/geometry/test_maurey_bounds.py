"""The average of vertices drawn, by enumerating all of the draws."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.geometry import maurey, sample_vertices
from dpjax.testing import count_false_alarm

LAWS = [np.array([0.2, 0.5, 0.3]), np.array([0.9, 0.05, 0.05]), np.array([0.0, 0.5, 0.5])]


def averages(law, draws):
    """All averages of `draws` vertices and their probabilities, as an expectation to sum."""
    tuples = np.array(list(itertools.product(range(law.size), repeat=draws)))
    points = jax.vmap(lambda indices: maurey(indices, law.size))(jnp.asarray(tuples))
    return np.asarray(points, np.float64), law[tuples].prod(axis=1)


def multinomial_averages(law, draws):
    """The same, with one entry for each vector of counts, so that many draws are few entries."""
    counts = np.array([c for c in itertools.product(range(draws + 1), repeat=3) if sum(c) == draws])
    ways = [math.factorial(draws) / math.prod(map(math.factorial, c)) for c in counts]
    indices = [np.repeat(np.arange(3), c) for c in counts]
    points = jax.vmap(lambda i: maurey(i, 3))(jnp.asarray(np.array(indices)))
    return np.asarray(points, np.float64), np.array(ways) * (law**counts).prod(axis=1)


def test_is_the_mean_of_unit_vectors(rng):
    indices = rng.integers(7, size=20)
    np.testing.assert_allclose(
        maurey(jnp.asarray(indices), 7), np.eye(7)[indices].mean(axis=0), atol=1e-6
    )
    assert float(jnp.sum(maurey(jnp.zeros(1000, int), 3))) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("draws", [1, 4])
def test_mean_is_the_law(law, draws):
    points, probability = averages(law, draws)
    np.testing.assert_allclose(probability @ points, law, atol=1e-6)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("draws", [2, 5])
def test_quadratic_exactly(law, draws, rng):
    root = rng.normal(size=(3, 3))
    hessian, linear = root @ root.T, rng.normal(size=3)

    def value(x):
        return np.einsum("...i,ij,...j->...", x, hessian, x) / 2 + x @ linear

    points, probability = averages(law, draws)
    excess = probability @ value(points) - value(law)
    covariance = np.diag(law) - np.outer(law, law)
    assert excess == pytest.approx(np.trace(hessian @ covariance) / (2 * draws), abs=1e-5)
    assert excess >= -1e-6
    assert excess <= 2 * np.abs(hessian).max() / draws


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("draws", [1, 2, 12])
def test_played_point(law, draws, rng):
    """0 <= K E<grad F(xhat), xhat - x> <= 4 L1, for F smooth, convex and not quadratic."""
    slopes = 3 * rng.normal(size=(6, 3))
    points, probability = multinomial_averages(law, draws)
    assert probability.sum() == pytest.approx(1)
    np.testing.assert_allclose(probability @ points, law, atol=1e-6)

    def gradient(x):  # of the mean of log(1 + exp(<a, x>))
        return (slopes[None] / (1 + np.exp(-x @ slopes.T))[..., None]).mean(axis=1)

    gradient_at = (slopes[None] / (1 + np.exp(-points @ slopes.T))[..., None]).mean(axis=1)
    np.testing.assert_allclose(gradient_at, gradient(points))
    smoothness = np.abs(slopes[:, :, None] * slopes[:, None, :]).mean(axis=0).max() / 4
    played = draws * probability @ np.sum(gradient(points) * (points - law), axis=1)
    assert 0.001 * smoothness < played <= 4 * smoothness


def test_draws_average_to_the_law(key, rng):
    logits = jnp.asarray(rng.normal(size=50), jnp.float32)
    law = np.asarray(jax.nn.softmax(logits))
    count = 100_000
    average = np.asarray(maurey(sample_vertices(key, logits, count), 50))
    error = np.abs(average - law) / np.sqrt(law * (1 - law) / count)
    count_false_alarm(1e-7)  # of all vertices
    assert error.max() < 6.5


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"dim must be >= 1, got 0"):
        maurey(jnp.zeros(2, int), 0)
    for bad in (jnp.zeros(2), jnp.zeros((2, 2), int), jnp.zeros(0, int)):
        with pytest.raises(ValueError, match="indices must be a vector of >= 1 integers"):
            maurey(bad, 3)
