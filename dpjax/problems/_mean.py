"""Means over many records that float32 can add up."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpjax.core import PyTree


def mean_over_records(values: Callable[[PyTree], jax.Array], data: PyTree) -> Any:
    """Mean over records of `values(batch) -> [B, *p]`, and gradients of it, block by block.

    Blocks of about sqrt(n) records: sums of n terms in a row, as gradients of one large product
    are, lose three digits at n = 20,000; and no array of all values need exist.

    Args:
      values: Of a batch with leaves `[B, ...]`.
      data: Leaves `[n, ...]`.

    Returns:
      `[*p]`.

    Example:
      >>> import jax.numpy as jnp
      >>> float(mean_over_records(lambda batch: batch["x"], {"x": jnp.arange(5.0)}))
      2.0
    """
    n = jax.tree.leaves(data)[0].shape[0]
    size = math.isqrt(n - 1) + 1 if n else 1
    blocks = n // size
    used = blocks * size
    head = jax.tree.map(lambda a: a[:used].reshape(blocks, size, *a.shape[1:]), data)
    total = jnp.sum(jax.lax.map(lambda batch: jnp.sum(values(batch), axis=0), head), axis=0)
    if used < n:
        total = total + jnp.sum(values(jax.tree.map(lambda a: a[used:], data)), axis=0)
    return total / n


class OnBall:
    """What problems have in common that are means of losses on an l2 ball around 0."""

    radius: ArrayLike | None
    per_example_losses: Callable[[Any, Any], jax.Array]

    def project(self, params: PyTree) -> PyTree:
        """The nearest point of the ball."""
        if self.radius is None:
            return params
        return optax.projections.projection_l2_ball(params, self.radius)

    def mean_loss(self, params: PyTree, data: PyTree) -> jax.Array:
        """Mean loss over `data`, a scalar. **Not private**."""
        return mean_over_records(lambda batch: self.per_example_losses(params, batch), data)
