"""Long vectors of normal noise, faster on CPU than JAX draws them, and the same to the bit."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core._threefry import written_out_words

# below, a draw is no cost beside the step, and a program of its own takes longer to compile
_LONG = 2**14
_COUNTERS = 2**32


def normal(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """`jax.random.normal(key, shape, dtype)`, value for value.

    On CPU JAX rolls the rounds of Threefry into a loop that passes over memory each time. Written
    out, and in one loop with what makes normals of the words, ten million take half as long. Each
    number depends on the key and on its position alone, so that a sharded array is drawn where its
    shards are.

    Args:
      key: One typed key, of any generator.
      shape: Of the result.
      dtype: Floating.
    """
    size = math.prod(shape)
    ours = (
        str(jax.random.key_impl(key)) == "threefry2x32"
        and jnp.dtype(dtype) == jnp.float32
        and _LONG <= size < _COUNTERS
        and getattr(jax.config, "jax_threefry_partitionable", True)
    )
    if not ours:
        return jax.random.normal(key, shape, dtype)

    def written_out(words: jax.Array) -> jax.Array:
        return _normals(*written_out_words(words, shape, 2))

    def as_jax(words: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.wrap_key_data(words, impl="threefry2x32"), shape, dtype)

    words = jax.random.key_data(key)
    return jax.lax.platform_dependent(words, cpu=written_out, default=as_jax)


def _normals(high: jax.Array, low: jax.Array) -> jax.Array:
    """Normals by the inverse error function from 23 bits, as `jax.random.normal` does."""
    one = np.float32(1)
    mantissa = ((high ^ low) >> np.uint32(9)) | one.view(np.uint32)
    uniform = jax.lax.bitcast_convert_type(mantissa, jnp.float32) - one
    lowest = np.nextafter(-one, np.float32(0))
    symmetric = jnp.maximum(lowest, uniform * (one - lowest) + lowest)
    return np.float32(math.sqrt(2)) * jax.lax.erf_inv(symmetric)
