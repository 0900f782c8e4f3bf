"""Means over many records that float32 can add up."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

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
