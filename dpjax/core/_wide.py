"""At least single precision."""

from typing import Any

import jax
import jax.numpy as jnp


def wide(leaf: Any) -> jax.Array:
    """The leaf in at least float32.

    Args:
      leaf: An array of any shape, or a number.

    Returns:
      The same values, of its own type if that is wider.
    """
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
