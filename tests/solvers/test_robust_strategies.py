"""Strategies for payoffs that are known up to noise: limits, references, and what they gain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from dpjax.solvers.games._equilibrium import equilibrium
from dpjax.solvers.games._robust import Belief, belief, expected_loss, robust_strategies


def _all(shape):
    return jnp.ones(shape[0], bool), jnp.ones(shape[1], bool)


@jax.jit
def _played(payoffs, stddev):
    here, there = _all(payoffs.shape)
    start = equilibrium(payoffs)[:2]
    precision = jnp.full(payoffs.shape, stddev**-2)
    return start, robust_strategies(payoffs, precision, here, there, start)


def _gap(matrix, strategies):
    x, y = (np.asarray(s, float) for s in strategies)
    return np.max(x @ matrix) - np.min(matrix @ y)


def _uniform(rng, rows, columns):
    return jnp.asarray(rng.uniform(-1, 1, (rows, columns)), jnp.float32)


def test_without_noise_they_are_the_equilibrium():
    payoffs = _uniform(np.random.default_rng(0), 6, 5)
    (_, _), (x, y) = _played(payoffs, 1e-6)
    assert _gap(np.asarray(payoffs, float), (x, y)) < 1e-4


def test_noise_alone_leads_to_nearly_uniform_play():
    payoffs = 3.0 * jnp.asarray(np.random.default_rng(1).normal(size=(20, 20)), jnp.float32)
    start, found = _played(payoffs, 3.0)
    for before, after in zip(start, found, strict=True):
        assert np.max(before) > 0.15
        assert np.max(after) < 0.1


@pytest.mark.parametrize("stddev", [0.1, 0.4])
def test_with_noise_they_lose_less_than_its_equilibrium(stddev):
    rng = np.random.default_rng(2)
    lost = []
    for _ in range(40):
        truth = np.asarray(_uniform(rng, 12, 12), float)
        noisy = jnp.asarray(truth + stddev * rng.normal(size=truth.shape), jnp.float32)
        lost.append([_gap(truth, played) for played in _played(noisy, stddev)])
    equilibria, robust = np.mean(lost, axis=0)
    assert robust < 0.95 * equilibria


def test_the_few_payoffs_that_matter_are_not_taken_for_noise():
    rng = np.random.default_rng(12)
    truth = np.zeros((200, 200))
    truth[:3, 3:], truth[3:, :3] = -1, 1
    truth[:3, :3] = [[-0.8, -0.7, 0.6], [1.0, 0.2, 0.9], [0.1, 0.4, 0.6]]
    noisy = jnp.asarray(truth + 0.19 * rng.normal(size=truth.shape), jnp.result_type(float))
    mean, variance = belief(noisy, jnp.full_like(noisy, 0.19**-2), *_all(truth.shape))
    off = np.abs(np.asarray(mean - noisy)) / 0.19
    assert 2.9 < np.max(off) < 3 + 1e-4
    doubted = np.isclose(variance, 0.19**2, rtol=1e-5)
    assert 0 < np.mean(doubted) < 0.005
    assert np.min(off[doubted]) > 2.9


def test_rows_and_columns_that_differ_are_found():
    """A core that all others lose to, in noise as large as any payoff."""
    rng = np.random.default_rng(3)
    truth = np.zeros((50, 50))
    truth[5:, :5], truth[:5, 5:] = 1, -1
    noisy = jnp.asarray(truth + rng.normal(size=truth.shape), jnp.float32)
    mean = belief(noisy, jnp.ones((50, 50)), *_all((50, 50))).mean
    error = np.sqrt(np.mean((np.asarray(mean) - truth) ** 2))
    assert error < 0.3
    assert _gap(truth, _played(noisy, 1.0)[1]) < 0.5


def test_a_belief_shrinks_payoffs_by_their_noise():
    rng = np.random.default_rng(4)
    truth = rng.normal(size=(60, 60))
    noisy = jnp.asarray(truth + 0.5 * rng.normal(size=truth.shape), jnp.float32)
    found = belief(noisy, jnp.full((60, 60), 4.0), *_all((60, 60)))
    # share .8 for the prior, of which a share .8 is trusted
    assert np.allclose(found.mean, 0.96 * noisy, atol=0.02)
    assert np.allclose(found.variance, 0.2, atol=0.02)
    assert np.mean((np.asarray(found.mean) - truth) ** 2) < 0.25


def test_the_bound_is_above_the_expected_loss():
    rng = np.random.default_rng(5)
    mean, variance = rng.uniform(-1, 1, (4, 6)), rng.uniform(0.01, 0.3, (4, 6))
    x = np.array([0.4, 0.3, 0.2, 0.1])
    draws = mean + np.sqrt(variance) * rng.normal(size=(20_000, 4, 6))
    loss = np.mean(np.max(np.einsum("i,mij->mj", x, draws), axis=1))
    given = Belief(jnp.asarray(mean, jnp.float32), jnp.asarray(variance, jnp.float32))
    bound = float(expected_loss(given, jnp.ones(6, bool), jnp.asarray(x, jnp.float32)))
    assert loss < bound < loss + 0.2


def test_they_have_nearly_the_least_bound():
    rng = np.random.default_rng(6)
    noisy = _uniform(rng, 5, 5)
    here, there = _all((5, 5))
    given = belief(noisy, jnp.full((5, 5), 25.0), here, there)
    given = given._replace(variance=given.variance / 2)
    x, _ = _played(noisy, 0.2)[1]
    bound = jax.jit(lambda z: expected_loss(given, there, jax.nn.softmax(z)))
    least = min(
        optimize.minimize(bound, rng.normal(size=5), method="Nelder-Mead", tol=1e-5).fun
        for _ in range(3)
    )
    assert float(expected_loss(given, there, x)) < least + 0.01


def test_what_is_absent_is_not_played_and_does_not_matter():
    rng = np.random.default_rng(7)
    payoffs = _uniform(rng, 4, 5)
    here, there = jnp.array([True, False, True, True]), jnp.array([True, True, False, True, True])
    both = here[:, None] & there[None, :]
    precision = jnp.where(both, 9.0, 0.0)
    x, y = robust_strategies(
        jnp.where(both, payoffs, 7.0), precision, here, there, equilibrium(payoffs, here, there)[:2]
    )
    small = payoffs[jnp.flatnonzero(here)][:, jnp.flatnonzero(there)]
    _, (first, second) = _played(small, 1 / 3)
    assert x[1] == 0
    assert y[2] == 0
    assert np.allclose(x[here], first, atol=1e-4)
    assert np.allclose(y[there], second, atol=1e-4)


@pytest.mark.parametrize("stddev", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("payoffs", [jnp.zeros((3, 2)), jnp.full((1, 1), 2.0), jnp.eye(3)])
def test_degenerate_games_have_strategies(payoffs, stddev):
    _, found = _played(payoffs, stddev)
    for strategy in found:
        assert np.sum(strategy) == pytest.approx(1, abs=1e-5)
        assert np.all(np.asarray(strategy) >= 0)
