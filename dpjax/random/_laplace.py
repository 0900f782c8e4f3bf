"""Laplace numbers with an exponential tail that float32 does not cut at 16."""

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dpjax.random._threefry import random_words


def laplace(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Laplace numbers of scale 1, `shape`, of at least float32.

    64 bits make the exponent of the uniform number whose logarithm is taken, 23 its fraction (52 in
    float64), and one the sign.
    """
    high, low, fine, finer = random_words(key, shape, 4)
    # U = 2^-zeros F with F uniform on [1/2, 1): the leading zeros are geometric
    zeros = jnp.where(high > 0, jax.lax.clz(high), 32 + jax.lax.clz(low)).astype(dtype)
    fraction = 0.5 + (fine >> 9).astype(dtype) * 2.0**-24
    if jnp.dtype(dtype) == jnp.float64:
        fraction += (finer >> 3).astype(dtype) * 2.0**-53
    magnitude = zeros * math.log(2.0) - jnp.log(fraction)
    return jnp.where((fine & 1).astype(bool), magnitude, -magnitude)
