import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

from dpjax.random._threefry import positions, random_words

MANY = 2**11


def test_positions_count_in_row_major_order():
    np.testing.assert_array_equal(
        positions((2, 3, 4)), np.arange(24, dtype=np.uint32).reshape(2, 3, 4)
    )


@pytest.mark.parametrize("shape", [(MANY,), (8, MANY // 8), (3, 10, 100)])
def test_many_words_are_blocks_at_their_positions(key, shape):
    """By JAX's own cipher: counters (0, i) make the first two arrays, (1, i) the others."""
    words = random_words(key, shape, 4)
    for number in range(2):
        counters = jnp.arange(np.prod(shape), dtype=jnp.uint32)
        counters = jnp.concatenate([jnp.full_like(counters, number), counters])
        block = threefry_2x32(jax.random.key_data(key), counters)
        np.testing.assert_array_equal(
            np.stack(words[2 * number : 2 * number + 2]), block.reshape(2, *shape)
        )


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("size", [MANY - 1, MANY])
def test_no_word_stands_for_two(key, size, count):
    words = np.stack(random_words(key, (size,), count))
    assert words.shape == (count, size)
    # of c words of 32 bits about c^2 / 2^33 pairs are equal by chance, here .008
    assert np.unique(words).size >= words.size - 1


def test_few_words_and_other_generators_are_those_of_jax():
    for impl, size in (("threefry2x32", MANY - 1), ("rbg", MANY)):
        key = jax.random.key(3, impl=impl)
        theirs = jax.random.bits(jax.random.clone(key), (2, size), jnp.uint32)
        np.testing.assert_array_equal(np.stack(random_words(key, (size,), 2)), theirs)
