"""Normal, Laplace and Gumbel numbers from random words."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from dpjax.random._threefry import random_words

# sqrt(2) erfinv(x) / x, highest power first: least maxima of the relative error, 1.4e-8 and 4e-9,
# by reweighted least squares of degree 11 on Chebyshev nodes, then shifted
_SPLIT = 8.0  # in w = -log(1 - x^2)
_CENTRE = (
    *(-4.583613285e-11, 1.525096988e-09, -1.910617261e-08, 8.189698895e-08),
    *(4.837143888e-07, -6.861161389e-06, 1.057054017e-05, 3.053862301e-04),
    *(-2.392830750e-03, -2.783409288e-03, 3.532252923e-01, 1.947676434e00),
)  # in powers of w - 2
_TAIL = (
    *(-1.731707704e-07, 6.486692285e-07, -1.881046471e-07, -9.713996497e-07),
    *(-2.442696081e-06, 1.246657366e-05, -3.966712692e-05, 1.469353156e-04),
    *(-4.311644541e-04, 7.757691185e-05, 1.428814395e00, 6.501601165e00),
)  # in powers of sqrt(w) - 4.75, for w up to 44.5
_ONES = np.int32(2**31 - 1)
_BITS = 23  # of a float32 between 1 and 2


def normal(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Standard normal numbers, by the inverse error function of 64 random bits.

    One bit is the sign and 62 are a uniform number x in (0, 1), whose distance to 1 is taken in
    integers: it goes down to 2^-63, 9.1 deviations, and loses no bits on the way. Each number
    depends on the key and on its position alone, so that a sharded array is drawn where its shards
    are.

    Args:
      key: One typed key, of any generator.
      shape: Of the result.
      dtype: float32 or float64.

    Source: the form in w = -log(1 - x^2) is that of Giles, "Approximating the erfinv function",
    2010.
    """
    high, low = random_words(key, shape, 2)
    return normals_of_words(high, low, jnp.dtype(dtype) == jnp.float64).astype(dtype)


@functools.partial(jax.jit, static_argnums=2)
def normals_of_words(high: jax.Array, low: jax.Array, double: bool = False) -> jax.Array:
    """What `normal` makes of random words: an odd, increasing function of the signed 64 bits."""
    real = np.float64 if double else np.float32
    signed = jax.lax.bitcast_convert_type(high, jnp.int32)
    negative = signed >> 31
    # the complement of a negative number; what is converted to floats is signed, which is faster
    first = signed ^ negative
    second = ((jax.lax.bitcast_convert_type(low, jnp.int32) ^ negative) >> 1) & _ONES
    x = _unit(first, second, real)
    beyond = _unit(first ^ _ONES, second ^ _ONES, real)  # 1 - x
    w = -jnp.log(beyond * (2 - beyond))
    centre = w < _SPLIT
    u = jnp.where(centre, w - real(2), jnp.sqrt(w) - real(4.75))
    ratio = jnp.zeros_like(u)
    for inner, outer in zip(_CENTRE, _TAIL, strict=True):
        ratio = ratio * u + jnp.where(centre, real(inner), real(outer))
    value = x * ratio
    if double:  # one step by Newton, from 1e-8 to 1e-14
        y = value * math.sqrt(0.5)
        excess = jnp.where(x < 0.5, jax.lax.erf(y) - x, beyond - jax.lax.erfc(y))
        value = value - excess * jnp.exp(y * y) * math.sqrt(math.pi / 2)
    return jnp.where(negative < 0, -value, value)


def _unit(first: jax.Array, second: jax.Array, real: Any) -> jax.Array:
    """The middle of the cell of (0, 1) that 31 and 31 bits name, to full relative precision."""
    second = (second.astype(real) + real(0.5)) * real(2.0**-62)
    return first.astype(real) * real(2.0**-31) + second


def gumbels(key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
    """Gumbel numbers of high resolution, 46 bits in float32.

    The law of `jax.random.gumbel(key, shape, dtype, mode="high")`: the default mode has 23 bits, of
    which at 10^6 equal logits 7% of the draws tie near 16. Of many by Threefry, one block makes a
    number where JAX takes two, and its rounds are written out.
    """
    if jnp.dtype(dtype) != jnp.float32:
        return jax.random.gumbel(key, shape, dtype, mode="high")
    high, low = (_uniform(words) for words in random_words(key, shape, 2))
    fine = high + np.float32(2.0**-_BITS) * low + np.finfo(np.float32).tiny
    # from a half on the sum may be rounded up to 1
    return -jnp.log(-jnp.log1p(-jnp.where(high >= 0.5, high, fine)))


def _uniform(words: jax.Array) -> jax.Array:
    """Numbers in `[0, 1)`, multiples of 2^-23."""
    one = np.float32(1)
    mantissa = (words >> np.uint32(32 - _BITS)) | one.view(np.uint32)
    return jax.lax.bitcast_convert_type(mantissa, jnp.float32) - one


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
