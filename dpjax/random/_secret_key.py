"""A key that nobody can guess."""

import secrets

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import is_traced


def secret_key() -> jax.Array:
    """A key of the operating system's entropy, for a release.

    All bits of the key are random. `jax.random.key(seed)` has 32 at most unless
    `jax_enable_x64` is set, whatever the seed: they can be tried one after another by whoever sees
    a release, and the noise subtracted.

    Guarantee: none of its own; that of a mechanism needs a key that is as secret as the data.

    Returns:
      A typed key, scalar, of JAX's default generator (*secret*); another one in each call, and in
      each process.

    Raises:
      RuntimeError: Inside `jit`, or a loop of JAX, where it would be a constant of the program.

    Example:
      >>> import dpjax
      >>> bool(dpjax.secret_key() == dpjax.secret_key())
      False
    """
    if is_traced(jnp.zeros(())):
        raise RuntimeError(
            "secret_key must be called outside jit and loops of JAX, where it would be drawn once "
            "for all calls: make the key an argument"
        )
    # nothing is evaluated: how many words a key has
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    words = np.frombuffer(secrets.token_bytes(4 * int(np.prod(shape))), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words).reshape(shape))
