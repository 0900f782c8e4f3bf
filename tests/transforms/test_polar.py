"""Values at a distribution from a few draws of it, by enumeration of all draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.papers.estimators import polar_estimate, polar_interval

_M = 4
pytestmark = pytest.mark.usefixtures("exact_products")


def _quadratic(seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(_M, _M))
    return 0.3 + rng.normal(), rng.normal(size=_M), root @ root.T, rng.dirichlet(np.ones(_M))


def _mean(values, weights, count, estimate):
    """Of the estimate over all draws of so many vertices."""
    all_draws = np.array(list(itertools.product(range(_M), repeat=count)))
    points = jnp.asarray(np.eye(_M)[all_draws])
    found = np.asarray(jax.vmap(lambda draws: estimate(values, draws))(points), float)
    return np.sum(np.prod(weights[all_draws], axis=1) * found)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_quadratics_have_no_bias_and_played_points_that_of_the_trace(count):
    constant, slope, hessian, x = _quadratic(count)

    def values(point):
        return constant + point @ slope + point @ hessian @ point / 2

    exact = values(x)
    assert _mean(values, x, count, polar_estimate) == pytest.approx(exact, abs=1e-4)
    bias = np.trace(hessian @ (np.diag(x) - np.outer(x, x))) / (2 * count)
    played = _mean(values, x, count, lambda f, draws: f(jnp.mean(draws, axis=0)))
    assert played - exact == pytest.approx(bias, rel=1e-3)
    assert bias > 0.01


def test_the_bias_of_a_cubic_is_its_third_cumulant():
    rng = np.random.default_rng(7)
    direction, x = rng.normal(size=_M), rng.dirichlet(np.ones(_M))

    def values(point):
        return jnp.dot(point, direction) ** 3 / 6

    cumulant = np.sum(x * (direction - x @ direction) ** 3)
    bias = _mean(values, x, 2, polar_estimate) - (x @ direction) ** 3 / 6
    assert bias == pytest.approx(-cumulant / 12, abs=1e-5)
    assert abs(cumulant) > 0.01


@pytest.mark.parametrize("count", [2, 3, 4])
def test_convex_values_stay_in_their_interval(count):
    constant, slope, hessian, _ = _quadratic(10 + count)
    smoothness = float(np.max(np.abs(hessian)))

    def values(point):
        return constant + point @ slope + point @ hessian @ point / 2

    ends = np.asarray(jax.vmap(values)(jnp.eye(_M)))
    inside = np.random.default_rng(0).dirichlet(np.ones(_M), 500)
    low, high = float(np.min(jax.vmap(values)(jnp.asarray(inside)))), float(ends.max())
    least, most = polar_interval(low, high, smoothness, count)
    draws = jnp.asarray(np.array(list(itertools.product(np.eye(_M), repeat=count))))
    found = jax.vmap(lambda points: polar_estimate(values, points))(draws)
    assert np.all(found >= least - 1e-4)
    assert np.all(found <= most + 1e-4)
    assert polar_interval(0.0, 0.5) == (-0.5, 0.5)
    assert polar_interval(0.0, 0.5, 1.0, 4) == pytest.approx((-0.5 / 3, 0.5))


def test_several_values_at_once_and_refusals():
    draws = jnp.eye(_M)[:2]
    both = polar_estimate(lambda point: jnp.stack([jnp.sum(point**2), point[0]]), draws)
    assert np.allclose(both, [0.0, 0.5])
    with pytest.raises(ValueError, match="number of draws"):
        polar_estimate(jnp.sum, draws[:1])
    with pytest.raises(ValueError, match="high"):
        polar_interval(1.0, 0.0)
