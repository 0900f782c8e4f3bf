"""Long normal noise is that of `jax.random.normal`, whatever it is made with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.transforms import _normal
from dpjax.transforms._normal import normal

LONG = _normal._LONG


def normals(key, shape, dtype=jnp.float32):
    return jax.jit(lambda key: normal(key, shape, dtype))(jax.random.clone(key))


def assert_same(got, want):
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    # some processors contract a product and a sum, in one program and not in another
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape", [(LONG,), (LONG + 1,), (64, 3, 100), (LONG - 1,), ()])
def test_equals_jax(shape):
    key = jax.random.key(3)
    assert_same(normals(key, shape), jax.random.normal(key, shape, jnp.float32))


def test_equals_jax_under_vmap():
    keys = jax.random.split(jax.random.key(4), 3)
    got = jax.vmap(lambda key: normal(key, (LONG,), jnp.float32))(jax.random.clone(keys))
    assert_same(got, jax.vmap(lambda key: jax.random.normal(key, (LONG,), jnp.float32))(keys))


def test_equals_jax_with_the_older_counters():
    with jax.threefry_partitionable(False):
        key = jax.random.key(5)
        want = jax.random.normal(jax.random.clone(key), (LONG,), jnp.float32)
        assert_same(normals(key, (LONG,)), want)
    other = jax.random.normal(key, (LONG,), jnp.float32)
    assert not np.array_equal(want, other)  # the setting makes a difference


def test_other_types_and_generators(x64):
    assert_same(
        normals(jax.random.key(6), (LONG,), jnp.float64),
        jax.random.normal(jax.random.key(6), (LONG,), jnp.float64),
    )
    key = jax.random.key(6, impl="rbg")
    assert_same(normals(key, (LONG,)), jax.random.normal(key, (LONG,), jnp.float32))


def test_it_is_what_long_noise_is_made_of(key, monkeypatch):
    noise = dpjax.transforms.add_gaussian(1.0)
    made = []
    words = _normal.written_out_words
    monkeypatch.setattr(
        _normal, "written_out_words", lambda *args: made.append(args) or words(*args)
    )
    noise.update(jnp.zeros(LONG, jnp.float32), noise.init(None), key=jax.random.clone(key))
    assert len(made) == 1
    noise.update(jnp.zeros(LONG - 1, jnp.float32), noise.init(None), key=key)
    assert len(made) == 1
