"""At least single precision."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def wide(leaf: ArrayLike) -> jax.Array:
    """The leaf in at least float32.

    Args:
      leaf: An array of any shape, or a number.

    Returns:
      The same values, of its own type if that is wider.
    """
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
