"""Keys of the system's entropy: every bit is random, and none is drawn at compile time."""

import jax
import numpy as np
import pytest

import dpjax


def test_every_bit_is_random():
    words = np.stack([jax.random.key_data(dpjax.secret_key()) for _ in range(64)])
    assert words.shape[1] == 2
    bits = (words[:, :, None] >> np.arange(32, dtype=np.uint32)) & 1
    assert (bits.min(axis=0) == 0).all()  # each fails with probability 2^-57
    assert (bits.max(axis=0) == 1).all()
    assert len(np.unique(words, axis=0)) == 64


def test_a_seed_has_fewer():
    if not jax.config.jax_enable_x64:
        assert (jax.random.key_data(jax.random.key(2**40 + 1))[0]) == 0


def test_it_is_refused_where_it_would_be_a_constant():
    def draw(carry, _):
        return carry, jax.random.normal(dpjax.secret_key())

    for program in (lambda: draw(0, 0)[1], lambda: jax.lax.scan(draw, 0, None, length=2)):
        with pytest.raises(RuntimeError, match="outside jit"):
            jax.jit(program)()
    with pytest.raises(RuntimeError, match="outside jit"):
        jax.lax.scan(draw, 0, None, length=2)
