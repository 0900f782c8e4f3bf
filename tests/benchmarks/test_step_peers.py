"""Steps of other libraries: they take the very steps that they are timed for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from benchmarks import _step_peers

STEPS, RECORDS, BATCH = 5, 60, 10


@pytest.fixture
def setting(rng):
    x = rng.normal(size=(RECORDS, 4)).astype(np.float32) * 5  # long enough for clipping to matter
    y = (x[:, 0] > 0).astype(np.int32)
    problem = dpjax.problems.RateConstrained.linear(4, 2, None)
    sampler = dpjax.sampling.PoissonSampler(BATCH / RECORDS, STEPS, RECORDS)
    return problem, sampler, {"x": jnp.asarray(x), "y": jnp.asarray(y)}


def by_hand(sampler, records, clip):
    """Clipped sums of the gradients of logistic losses over the number of slots, without noise."""
    plan_key, _ = jax.random.split(jax.random.key(0))
    drawn = jax.vmap(lambda x: sampler.batch(x, RECORDS))(sampler.plan(plan_key, RECORDS))
    x = np.asarray(records["x"], np.float64)
    true = np.eye(2)[np.asarray(records["y"])]
    w, b = np.zeros((4, 2)), np.zeros(2)
    for rows, mask in zip(*map(np.asarray, drawn), strict=True):
        mine = rows[mask]
        scores = np.exp(x[mine] @ w + b)
        off = scores / scores.sum(1, keepdims=True) - true[mine]
        # the gradient is an outer product, of w and of the constant 1
        norm = np.linalg.norm(off, axis=1) * np.sqrt(1 + np.sum(x[mine] ** 2, axis=1))
        off *= np.minimum(1, clip / norm)[:, None]
        w -= _step_peers.RATE * x[mine].T @ off / sampler.capacity
        b -= _step_peers.RATE * off.sum(0) / sampler.capacity
    return {"b": b, "w": w}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning")
@pytest.mark.parametrize("library", ["optax.contrib", "jax_privacy"])
def test_steps_without_noise_are_clipped_sums(library, setting, monkeypatch):
    monkeypatch.setattr(_step_peers, "NOISE", 0.0)
    _, sampler, records = setting
    if library == "optax.contrib":
        tasks = _step_peers.optax_contrib(*setting)
    else:
        pytest.importorskip("jax_privacy")
        tasks = _step_peers.jax_privacy(*setting, sampler.capacity)
    if not tasks:
        pytest.skip("this version takes no key")
    task = tasks[f"DP-SGD ({library})"]
    assert task.divide == STEPS
    params, count = jax.jit(task.function)(*task.arguments)
    assert int(count) == STEPS
    expected = by_hand(sampler, records, _step_peers.CLIP)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), params, expected)
    assert float(jnp.abs(params["w"]).max()) > 0.01


def test_noise_is_of_the_stated_size(setting, monkeypatch):
    monkeypatch.setattr(_step_peers, "RATE", 1.0)
    problem, sampler, records = setting
    nothing = jax.tree.map(jnp.zeros_like, records)  # gradients of w are zero
    tasks = _step_peers.optax_contrib(problem, sampler, nothing)
    if not tasks:
        pytest.skip("this version takes no key")
    task = tasks["DP-SGD (optax.contrib)"]
    keys = jax.random.split(jax.random.key(3), 200)
    moved = jax.jit(jax.vmap(task.function, in_axes=(0, None)))(keys, nothing)[0]["w"]
    expected = _step_peers.CLIP * _step_peers.NOISE / sampler.capacity * np.sqrt(STEPS)
    assert float(jnp.std(moved)) == pytest.approx(expected, rel=0.1)
