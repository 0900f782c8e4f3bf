"""Computations that XLA keeps apart from their uses."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def apart(compute: Callable[[], jax.Array]) -> jax.Array:
    """`compute()`, whose result is computed once, from operands that are in memory.

    XLA on CPUs fuses through optimization barriers: it recomputes the values in each use, one at a
    time where the last axis is short. It does not fuse into the branches of a conditional.
    """
    always = jax.lax.optimization_barrier(jnp.array(True))
    result = jax.eval_shape(compute)
    return jax.lax.cond(always, compute, lambda: jnp.zeros(result.shape, result.dtype))
