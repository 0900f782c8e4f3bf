import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.core import Aggregator
from dpjax.transforms import add_gaussian, clip_by_norm

ZERO = {"w": jnp.zeros((4, 3)), "b": jnp.zeros(3)}


def run(transform, updates, key, **extra):
    out, _ = transform.update(updates, transform.init(updates), key=key, **extra)
    return out


def same(a, b):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def test_position_is_folded_into_the_key(key):
    noise = add_gaussian(1.0)
    alone = run(dpjax.chain(noise), ZERO, key)
    assert same(alone, run(noise, ZERO, jax.random.fold_in(key, 0)))
    second = run(dpjax.chain(optax.identity(), noise), ZERO, key)
    assert same(second, run(noise, ZERO, jax.random.fold_in(key, 1)))
    assert not same(alone, second)
    # two equal stages do not double one draw
    twice = run(dpjax.chain(noise, noise), ZERO, key)
    assert same(twice, jax.tree.map(jnp.add, alone, second))


def test_nested_chain_draws_apart_from_its_neighbours(key):
    noise = add_gaussian(1.0)
    nested = dpjax.chain(dpjax.chain(noise, noise), dpjax.chain(noise), noise)

    def folded(*path):
        k = key
        for p in path:
            k = jax.random.fold_in(k, p)
        return run(noise, ZERO, k)

    parts = [folded(0, 0), folded(0, 1), folded(1, 0), folded(2)]
    want = jax.tree.map(lambda *leaves: sum(leaves), *parts)
    got = run(nested, ZERO, key)
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: np.allclose(a, b, atol=1e-6), got, want)))
    for i, part in enumerate(parts):
        assert not any(same(part, other) for other in parts[:i])


def test_states_of_stages_advance(key):
    noise = dpjax.chain(add_gaussian(1.0), optax.trace(0.9))
    state = noise.init(ZERO)
    first, state = noise.update(ZERO, state, key=key)
    second, state = noise.update(ZERO, state, key=key)
    assert int(state[0].count) == 2
    assert not same(first, second)


def test_aggregator_first_makes_an_aggregator(key):
    private = dpjax.chain(clip_by_norm(1.5), add_gaussian(0.0), optax.scale(2.0))
    assert isinstance(private, Aggregator)
    assert private.sensitivity("replace_one") == 3.0
    mask = jnp.array([True, True, False])
    out = run(private, jnp.full((3, 4), 9.0), key, mask=mask)
    np.testing.assert_allclose(out, np.full(4, 2 * 2 * 0.75), rtol=1e-6)


def test_extra_arguments_and_params_reach_every_stage(key):
    def update(updates, state, params=None, *, factor, **extra):
        return updates * factor + params, state

    stage = optax.GradientTransformationExtraArgs(lambda params: (), update)
    chained = dpjax.chain(stage, optax.scale(1.0), stage)
    out, _ = chained.update(jnp.ones(2), chained.init(None), jnp.ones(2), key=key, factor=3.0)
    np.testing.assert_array_equal(out, [13.0, 13.0])


def test_empty_chain_is_the_identity(key):
    assert same(run(dpjax.chain(), ZERO, key), ZERO)


def test_errors(key):
    with pytest.raises(TypeError, match="stage 1 of chain is no transformation: 3"):
        dpjax.chain(add_gaussian(1.0), 3)
    with pytest.raises(TypeError, match="stage 0 of a chain, got one at 1"):
        dpjax.chain(add_gaussian(1.0), clip_by_norm(1.0))
    chained = dpjax.chain(add_gaussian(1.0))
    with pytest.raises(TypeError, match="key is required"):
        chained.update(ZERO, chained.init(ZERO))
    with pytest.raises(TypeError, match="typed key"):
        chained.update(ZERO, chained.init(ZERO), key=jnp.zeros(2, jnp.uint32))
    with pytest.raises(ValueError, match=r"one key, got shape \[2\]"):
        chained.update(ZERO, chained.init(ZERO), key=jax.random.split(key))
    with pytest.raises(ValueError, match="state has 0 entries, the chain has 1 stages"):
        chained.update(ZERO, (), key=key)


def test_seeded_in_an_optax_chain(key):
    def steps(k):
        optimizer = optax.chain(dpjax.seeded(add_gaussian(1.0), k), optax.sgd(0.5))
        state, outs = optimizer.init(ZERO), []
        for _ in range(2):
            out, state = optimizer.update(ZERO, state, ZERO)
            outs.append(out)
        return outs

    first, second = steps(key)
    again, _ = steps(jax.random.key(0))
    other, _ = steps(jax.random.key(1))
    assert same(first, again)
    assert not same(first, second)
    assert not same(first, other)


def test_seeded_passes_extra_arguments_and_plain_optax_through(key):
    out = run_seeded(dpjax.chain(optax.scale(3.0)), key)
    np.testing.assert_array_equal(out, [3.0, 3.0])


def run_seeded(transform, key):
    wrapped = dpjax.seeded(transform, key)
    out, _ = wrapped.update(jnp.ones(2), wrapped.init(None), irrelevant=1)
    return out


def test_seeded_errors(key):
    with pytest.raises(TypeError, match="typed key"):
        dpjax.seeded(add_gaussian(1.0), 0)
    with pytest.raises(TypeError, match="key is required"):
        dpjax.seeded(add_gaussian(1.0), None)
    with pytest.raises(TypeError, match="aggregator"):
        dpjax.seeded(clip_by_norm(1.0), key)


def test_vmap_over_keys_equals_loop():
    noise = dpjax.chain(add_gaussian(1.0), add_gaussian(2.0))
    keys = jax.random.split(jax.random.key(3), 4)
    data = jax.random.key_data(keys)
    one = jax.jit(lambda d: run(noise, ZERO, jax.random.wrap_key_data(d)))
    many = jax.vmap(one)(data)
    for i in range(4):
        np.testing.assert_allclose(many["w"][i], one(data[i])["w"], rtol=1e-6)
