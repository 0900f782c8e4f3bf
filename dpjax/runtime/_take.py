"""The rows of a batch, taken where they lie."""

from typing import Any

import jax
import jax.numpy as jnp

from dpjax.core._optional import optional
from dpjax.core._records import Records, num_rows
from dpjax.core._types import PyTree, Sampler
from dpjax.runtime.devices._placement import Placement


def take(
    sampler: Sampler, x: PyTree, data: Records, placement: Placement | None, padded: bool = True
) -> tuple[PyTree, jax.Array]:
    """The batch of one step, leaves `[B, ...]`, and its mask `[B]`.

    A sampler of `shards` draws within equal shares of the rows, one after the other in a batch, and
    so are they taken: where shares lie on devices of their own, no record is moved.

    Args:
      sampler: Which records enter each step.
      x: One slice of the sampler's plan.
      data: Rows `[rows, ...]` (*secret*).
      placement: How they lie on several devices.
      padded: Whether a batch of all records may have the rows that pad them, masked.
    """
    rows = num_rows(data.arrays)
    shards = optional(sampler, "shards")
    if shards > 1:
        return _take_by_shards(sampler, x, data, rows)

    def batch(x: PyTree) -> tuple[jax.Array | None, jax.Array]:
        return sampler.batch(x, data.num_records)

    if placement is None or jax.eval_shape(batch, x)[0] is None:
        indices, mask = batch(x)
    else:
        indices, mask = placement.everywhere(batch, x)
    if indices is None and not padded:
        return jax.tree.map(lambda a: a[: data.num_records], data.arrays), mask
    if indices is None:
        padding = jnp.zeros(rows - data.num_records, bool)
        return data.arrays, jnp.concatenate([mask, padding]) if padding.size else mask
    return jax.tree.map(lambda a: a[indices], data.arrays), mask


def _take_by_shards(sampler: Any, x: PyTree, data: Records, rows: int) -> tuple[PyTree, jax.Array]:
    if rows != sampler.rows:
        raise ValueError(
            f"data must have the {sampler.rows} rows of a sampler of {sampler.shards} shards, got "
            f"{rows}: use dpjax.shard_records(data, mesh, rows=sampler.rows)"
        )
    own, mask = sampler.batch_of_shards(x, data.num_records)

    def of_shards(leaf: jax.Array) -> jax.Array:
        parts = leaf.reshape(sampler.shards, rows // sampler.shards, *leaf.shape[1:])
        return jax.vmap(lambda part, i: part[i])(parts, own).reshape(-1, *leaf.shape[1:])

    return jax.tree.map(of_shards, data.arrays), mask.reshape(-1)
