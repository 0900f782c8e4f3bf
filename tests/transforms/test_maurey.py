import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.rdp import RdpAccountant

import dpjax
import dpjax.testing as dpt
from dpjax.geometry import maurey, sample_vertices
from dpjax.papers.estimators import MaureySampleState, maurey_sample

DRAWS = 20_000


def run(logits, num_draws, seed=0, count=0):
    state = MaureySampleState(jnp.asarray(count, jnp.int32))
    return maurey_sample(num_draws).update(logits, state, key=jax.random.key(seed))


@pytest.mark.always  # the claim
def test_distribution_is_the_softmax_and_no_flatter_or_steeper(rng):
    logits = rng.normal(size=30)
    indices, state = run(jnp.asarray(logits, jnp.float32), DRAWS)
    assert indices.shape == (DRAWS,)
    assert indices.dtype == jnp.int32
    assert int(state.count) == 1
    observed = np.bincount(np.asarray(indices), minlength=30)
    dpt.check_counts(observed, np.exp(logits))
    for factor in (2 / 3, 3 / 2):
        with pytest.raises(AssertionError):
            dpt.check_counts(observed, np.exp(factor * logits))
    # the average is Maurey's, of mean softmax: coordinates have variance below 1 / (4 K)
    error = np.asarray(maurey(indices, 30)) - np.exp(logits) / np.exp(logits).sum()
    dpt.count_false_alarm(1e-9)
    assert np.max(np.abs(error)) < 7 * 0.5 / DRAWS**0.5


def test_key_is_folded_with_call_and_leaf():
    logits = {"a": jnp.zeros(50), "b": jnp.zeros(50)}
    indices, _ = run(logits, 20, count=3)
    now = jax.random.fold_in(jax.random.key(0), 3)
    for i, name in enumerate(logits):
        want = sample_vertices(jax.random.fold_in(now, i), logits[name], 20)
        np.testing.assert_array_equal(indices[name], want)


def test_leaves_calls_and_keys_are_independent():
    logits = {"a": jnp.zeros(1000), "b": jnp.zeros(1000)}
    first, state = run(logits, DRAWS)
    second, _ = run(logits, DRAWS, count=int(state.count))
    other, _ = run(logits, DRAWS, seed=1)
    dpt.check_uncorrelated(first["a"], first["b"], name="leaves")
    dpt.check_uncorrelated(first["a"], second["a"], name="calls")
    dpt.check_uncorrelated(first["a"], other["a"], name="keys")


def test_runs_in_a_chain(key):
    chain = dpjax.chain(dpjax.transforms.add_gaussian(0.0), maurey_sample(5))
    logits = jnp.array([-jnp.inf, 0.0, -jnp.inf])
    indices, _ = chain.update(logits, chain.init(logits), key=key)
    np.testing.assert_array_equal(indices, [1] * 5)


@pytest.mark.parametrize("eta", [0.1, 2.0])
def test_event_bounds_the_divergence_of_a_draw(rng, eta):
    """Logits that differ by range eta give draws of Renyi divergence at most order * eta^2 / 8."""
    logits = 2 * rng.normal(size=(3000, 6))
    shift = rng.uniform(size=logits.shape)
    shift[:2000] = np.round(shift[:2000])
    shift = eta * shift + rng.normal(size=(3000, 1))
    p, q = (s - np.log(np.exp(s).sum(axis=1, keepdims=True)) for s in (logits, logits + shift))
    assert np.max(np.abs(p - q)) <= eta * (1 + 1e-9)
    worst = 0.0
    for order in (1.01, 2.0, 8.0):
        renyi = np.log(np.exp(order * p + (1 - order) * q).sum(axis=1)) / (order - 1)
        worst = max(worst, np.max(renyi) / (order * eta**2 / 8))
    assert worst <= 1 + 1e-9
    if eta < 1:
        assert worst > 0.95


def test_event_of_a_call_is_accounted():
    eta, draws, leaves = 0.1, 10, 2
    event = dpe.SelfComposedDpEvent(dpe.ZCDpEvent(eta**2 / 8), draws * leaves)
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    epsilon = accountant.compose(event).get_epsilon(1e-6)
    rho = draws * leaves * eta**2 / 8
    assert 0 < epsilon <= rho + 2 * (rho * np.log(1e6)) ** 0.5


def test_errors(key):
    with pytest.raises(ValueError, match="num_draws must be >= 1, got 0"):
        maurey_sample(0)
    with pytest.raises(TypeError, match="num_draws"):
        maurey_sample(2.0)
    transform = maurey_sample(2)
    with pytest.raises(TypeError, match="key is required"):
        transform.update(jnp.zeros(3), transform.init(None))
    with pytest.raises(ValueError, match="logits must be a vector"):
        transform.update(jnp.zeros((3, 2)), transform.init(None), key=key)
