"""At least single precision."""

from typing import Any

import jax
import jax.numpy as jnp


def wide(leaf: Any) -> jax.Array:
    """The leaf in at least float32."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
