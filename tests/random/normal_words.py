"""Noise as a function of 64 random bits: how many of the 2^64 words give what."""

import jax
import jax.numpy as jnp
import numpy as np

import dpjax.random._normal as module


def split_words(words):
    """High and low words of Python integers, taken modulo 2^64."""
    words = np.array([int(word) % 2**64 for word in words], np.uint64)
    return (words >> np.uint64(32)).astype(np.uint32), words.astype(np.uint32)


def normals(words, double=False):
    """The library's normal number of every signed word, float64."""
    return np.asarray(module.normals_of_words(*split_words(words), double), np.float64)


@jax.jit
def short_normals(bits):
    """The numbers that `jax.random.normal` makes of 23 bits, float32."""
    one = np.float32(1)
    uniform = bits.astype(jnp.float32) * np.float32(2.0**-22) - one
    symmetric = jnp.maximum(uniform, np.nextafter(-one, np.float32(0)))
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(symmetric)


def words_below(made, levels):
    """How many of the 2^64 signed words give less than each level, for an increasing map."""
    least = np.full(len(levels), -(2**63), object)
    most = np.full(len(levels), 2**63, object)
    while np.any(least < most):
        middle = (least + most) // 2
        below = np.asarray(made(np.minimum(middle, 2**63 - 1))) < levels
        open_ = least < most
        least = np.where(open_ & below, middle + 1, least)
        most = np.where(open_ & ~below, middle, most)
    return least + 2**63
