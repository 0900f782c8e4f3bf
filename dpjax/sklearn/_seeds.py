"""From `random_state` to a typed key."""

import hashlib
import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.random import secret_key
from dpjax.runtime.checkpoint._digest import value_digest


def key_for(random_state: object, *inputs: object) -> jax.Array:
    """The key of one fit: never the same for two different inputs.

    Estimators are cloned, seed included, and fitted on other records, as by every cross-validation.
    One key for all of these would give them one noise, which cancels in the difference of two of
    them. So the key is a keyed hash of all that the fit depends on.

    Args:
      random_state: None takes fresh bits of the operating system. An integer, or a `RandomState` or
        `Generator`, which is advanced, gives a key that the same call gives again (*secret*).
      *inputs: Records, and parameters by name (*secret*): arrays to their last bit, containers,
        workloads and domains, functions with what they close over, other objects as `pickle` sees
        them. Equal numbers of two types, 1 and 1.0, give two keys.

    Returns:
      A typed key, scalar, of JAX's default generator (*secret*).

    Raises:
      ValueError: If `random_state` is none of these.
      TypeError: If a parameter holds what cannot be read, such as a generator or an open file.
    """
    fresh = secret_key()
    if random_state is None:
        return fresh
    shape = jax.random.key_data(fresh).shape  # how many words a key has
    digest = hashlib.blake2b(key=_seed(random_state), digest_size=4 * math.prod(shape))
    for value in inputs:
        named = value if isinstance(value, dict) else {"": value}
        for name, entry in named.items():
            digest.update(value_digest(name, strict=True) + _digest(name, entry))
        digest.update(value_digest(len(named), strict=True))
    words = np.frombuffer(digest.digest(), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words).reshape(shape))


def _seed(random_state: object) -> bytes:
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return hashlib.sha256(str(int(random_state)).encode()).digest()
    if isinstance(random_state, np.random.RandomState | np.random.Generator):
        return random_state.bytes(32)
    raise ValueError(
        "random_state must be None, an integer, a RandomState or a Generator, got "
        f"{type(random_state).__name__}"
    )


def _digest(name: str, value: object) -> bytes:
    try:
        return value_digest(value, strict=True)
    except TypeError as error:
        raise TypeError(
            f"{name or 'records'} must be of arrays, numbers, text, functions and objects made of "
            f"these, by which the key of a fit is told from others, got {error}"
        ) from error
