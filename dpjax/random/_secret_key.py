"""A PRNG key that cannot be guessed."""

import secrets

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import is_traced


def secret_key() -> jax.Array:
    """A PRNG key from the operating system's entropy, for a release.

    All bits of the key are random. Unless `jax_enable_x64` is set, `jax.random.key(seed)` keeps 32
    bits of any seed: an attacker who sees a release can try them all and subtract the noise.

    Guarantee: none of its own; every mechanism assumes a key as secret as the data.

    Returns:
      A typed scalar key of JAX's default generator (*secret*); each call and each process gets its
      own.

    Raises:
      RuntimeError: Inside `jit` or a JAX loop, where the key would be a constant of the program.

    Example:
      >>> import dpjax
      >>> bool(dpjax.secret_key() == dpjax.secret_key())
      False
    """
    if is_traced(jnp.zeros(())):
        raise RuntimeError(
            "secret_key must be called outside jit and JAX loops, where one key would serve every "
            "call: pass the key as an argument"
        )
    # the number of words in a key; nothing is evaluated
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    words = np.frombuffer(secrets.token_bytes(4 * int(np.prod(shape))), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words).reshape(shape))
