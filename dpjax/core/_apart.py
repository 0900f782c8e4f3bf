"""Computations that XLA keeps apart from their uses."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def apart(compute: Callable[[], jax.Array]) -> jax.Array:
    """`compute()`, whose result is computed once, from operands that are in memory.

    On CPUs XLA fuses through its own barriers: into each use, where it computes all anew and,
    where the last axis is short, one by one. It does not fuse into the branches of a conditional.
    """
    always = jax.lax.optimization_barrier(jnp.array(True))
    result = jax.eval_shape(compute)
    return jax.lax.cond(always, compute, lambda: jnp.zeros(result.shape, result.dtype))
