"""`dpjax.seeded` inside optax's chain: the sum that is noised, the state, the draws."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import dpjax

PARAMS = {"w": np.zeros((50, 3), np.float32), "b": np.zeros(3, np.float32)}


def optimizer(key, stddev=2.0):
    noise = dpjax.seeded(dpjax.transforms.add_gaussian(stddev), key)
    return optax.chain(noise, optax.scale(1 / 8), optax.adam(optax.cosine_decay_schedule(0.1, 9)))


def updates(chain, state, steps):
    """What a chain makes of zeros in turn, and its last state."""
    step, made = jax.jit(chain.update), []
    for _ in range(steps):
        update, state = step(PARAMS, state, PARAMS)
        made.append(update)
    return made, state


@pytest.mark.slow
def test_the_chain_is_the_keyed_noise_then_what_optax_does():
    """The draws are those of the keyed transformation, with keys split off one after another."""
    chain = optimizer(jax.random.key(0))
    made, _ = updates(chain, chain.init(PARAMS), 3)
    keyed, after = (
        dpjax.transforms.add_gaussian(2.0),
        optax.chain(optax.scale(1 / 8), optax.adam(optax.cosine_decay_schedule(0.1, 9))),
    )
    noise_state, state, rest = keyed.init(PARAMS), after.init(PARAMS), jax.random.key(0)
    for update in made:
        rest, now = jax.random.split(rest)
        noisy, noise_state = keyed.update(PARAMS, noise_state, key=now)
        expected, state = after.update(noisy, state, PARAMS)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), update, expected)


def test_no_draw_comes_twice_over_steps_stages_leaves_and_keys(key, monkeypatch):
    # noisy numbers lie on a grid, where many are equal: the draws themselves do not
    plain = lambda values, scale, draws: values + scale * draws  # noqa: E731
    monkeypatch.setattr("dpjax.transforms.noise._independent.plus_noise", plain)
    keys = jax.random.split(key, 3)
    noises = [dpjax.seeded(dpjax.transforms.add_gaussian(1.0), k) for k in keys]
    seen = []
    for chain in (optax.chain(noises[0]), optax.chain(noises[1], noises[2])):
        made, _ = updates(chain, chain.init(PARAMS), 4)
        seen += [np.ravel(leaf) for update in made for leaf in jax.tree.leaves(update)]
    values = np.concatenate(seen)
    # of 1224 draws of 24 bits some pairs would be equal by chance once in twenty runs: three never
    assert len(np.unique(values)) >= len(values) - 2


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 2])
def test_a_run_that_goes_on_from_a_checkpoint_draws_what_it_would_have_drawn(tmp_path, after):
    chain, alike = (optimizer(jax.random.key(0)) for _ in range(2))
    whole, last = updates(chain, chain.init(PARAMS), 4)
    _, state = updates(alike, alike.init(PARAMS), after)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", state)
    rest, end = updates(chain, restored, 4 - after)
    jax.tree.map(np.testing.assert_array_equal, rest, whole[after:])
    assert end[0].key == last[0].key
    assert end[0].key != restored[0].key


def test_a_second_run_from_one_init_is_caught_where_jax_looks_for_reused_keys(key):
    with jax.debug_key_reuse(True):
        chain = optimizer(key)
        updates(chain, chain.init(PARAMS), 1)
        with pytest.raises(jax.errors.KeyReuseError):
            updates(chain, chain.init(PARAMS), 1)


def test_clipping_is_refused_where_its_mask_would_be_lost(key):
    with pytest.raises(TypeError, match="aggregator"):
        dpjax.seeded(dpjax.transforms.clip_by_norm(1.0), key)


def test_schedules_and_masks_of_optax_leave_the_noise_alone(key):
    """`inject_hyperparams` and `masked` around later stages are post-processing."""
    noise = dpjax.seeded(dpjax.transforms.add_gaussian(1.0), key)
    chain = optax.chain(
        noise,
        optax.masked(optax.scale(0.0), {"w": True, "b": False}),
        optax.inject_hyperparams(optax.sgd)(optax.linear_schedule(1.0, 0.0, 4)),
    )
    made, _ = updates(chain, chain.init(PARAMS), 2)
    for update, rate in zip(made, (1.0, 0.75), strict=True):
        assert not np.any(update["w"])
        assert 0.01 < float(jnp.std(update["b"])) / rate < 10
