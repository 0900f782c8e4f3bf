import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
import dpjax.testing as dpt
from dpjax.random._normal import gumbels, laplace, normal


def words(seed=0):
    return jax.random.key_data(jax.random.key(seed))


def keyed(fn):
    return lambda data: fn(jax.random.wrap_key_data(data))


def test_sees_draws_under_every_transformation():
    def program(key):
        a = jax.jit(jax.random.normal)(jax.random.fold_in(key, 0))

        def body(carry, i):
            return carry, jax.random.uniform(jax.random.fold_in(key, i))

        _, b = jax.lax.scan(body, 0, jnp.arange(1, 4))
        c = jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i)))(jnp.arange(4, 9))

        # custom derivatives and checkpoint count as users of what they close over
        spare = [jax.random.clone(key) for _ in range(3)]

        @jax.custom_jvp
        def d(x):
            return x * jax.random.normal(jax.random.fold_in(spare[0], 9))

        d.defjvp(lambda p, t: (d(*p), t[0]))

        @jax.custom_vjp
        def e(x):
            return x * jax.random.normal(jax.random.fold_in(spare[1], 10))

        e.defvjp(lambda x: (e(x), x), lambda r, g: (g,))
        f = jax.checkpoint(lambda x: x * jax.random.normal(jax.random.fold_in(spare[2], 11)))(1.0)
        return a, b, c, d(1.0), e(1.0), f

    found = dpt.keys_drawn(keyed(program), words())
    want = [jax.random.key_data(jax.random.fold_in(jax.random.key(0), i)) for i in range(12)]
    assert {row.tobytes() for row in found} == {np.asarray(row).tobytes() for row in want}
    assert len(found) == 12
    dpt.check_draws_differ([found], "program")


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: normal(key, (2**14,), jnp.float32),
        lambda key: laplace(key, (2**11,), jnp.float32),
        lambda key: gumbels(key, (2**11,), jnp.float32),
    ],
    ids=["normal", "laplace", "gumbels"],
)
def test_sees_draws_whose_bits_are_not_made_by_jax(draw):
    """Of long vectors, by the platform that runs; alone, in a loop and for several keys at once."""

    def program(data):
        key = jax.random.wrap_key_data(data)
        keys = jax.random.split(key, 5)
        _, looped = jax.lax.scan(lambda _, k: (0, draw(k)), 0, keys[:2])
        return draw(keys[2]), looped, jax.vmap(draw)(keys[3:])

    expected = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), 5)))
    seen = dpt.keys_drawn(program, words())
    assert sorted(seen.tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize("which", [0, 1])
def test_of_a_branch_only_the_one_taken_counts(which):
    def program(key):
        def one(k):
            return jax.random.normal(k)

        def two(k):
            left, right = jax.random.split(k)
            return jax.random.normal(left) + jax.random.normal(right)

        index = jax.random.key_data(key)[0].astype(jnp.int32) * 0 + which
        return jax.lax.switch(index, [one, two], key)

    assert len(dpt.keys_drawn(keyed(program), words())) == which + 1


def test_reuse_is_found_within_and_between_runs():
    def twice(key):
        return jax.random.normal(jax.random.fold_in(key, 1)) + jax.random.normal(
            jax.random.fold_in(key, 1), (3,)
        )

    with pytest.raises(AssertionError, match="draw 1 of run 0 uses the key of draw 0 of run 0"):
        dpt.check_draws_differ([dpt.keys_drawn(keyed(twice), words())], "twice")

    def constant(key):
        return jax.random.normal(jax.random.key(7)) + 0 * jax.random.key_data(key)[0]

    runs = [dpt.keys_drawn(keyed(constant), words(seed)) for seed in (0, 1)]
    dpt.check_draws_differ(runs[:1], "constant")
    with pytest.raises(AssertionError, match="draw 0 of run 1 uses the key of draw 0 of run 0"):
        dpt.check_draws_differ(runs, "constant")


def test_directions_may_be_drawn_again_but_noise_may_not():
    def losses(w, batch):
        return jnp.abs(batch @ w)

    zeroth = dpjax.transforms.smooth_zeroth_order(losses, 0.1, 2)

    def program(key, noise_key):
        v = zeroth.coordinates(jnp.ones(3), jnp.ones((4, 3)), key=key)
        g = zeroth.gradient(v[0], jnp.ones(3), key=key)
        return g + jax.random.normal(noise_key, (3,))

    def run(data):
        return program(jax.random.wrap_key_data(data), jax.random.key(5))

    assert len(dpt.keys_drawn(run, words())) == 1


def test_no_draws():
    assert dpt.keys_drawn(lambda x: x + 1, jnp.zeros(2)).shape == (0, 2)
