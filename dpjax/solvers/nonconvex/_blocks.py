"""Averages over blocks of consecutive points, and the one of them to return."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax.core import PyTree

SELECTIONS = ("last", "uniform", "min_norm")


class BlocksState(NamedTuple):
    """State of the averages.

    Attributes:
      points: Sum of the block's points so far.
      gradients: Sum of the private gradients there.
      norm: l2 norm of the mean of these, `[]`.
      count: Number of points seen, `[]` int32.
      chosen: Number of the block to return, where it is drawn beforehand, `[]` int32.
      best: Smallest norm of a whole block so far, `[]`.
      result: Mean of the points of the selected block; the start before there is one.
    """

    points: PyTree
    gradients: PyTree
    norm: jax.Array
    count: jax.Array  # type: ignore[assignment]
    chosen: jax.Array
    best: jax.Array
    result: PyTree


def init_blocks(start: PyTree, num_blocks: int, selection: str, key: jax.Array) -> BlocksState:
    """No points yet; the key draws a block uniformly."""
    zeros = jax.tree.map(jnp.zeros_like, start)
    norm, count = jnp.zeros((), jnp.result_type(float)), jnp.zeros((), jnp.int32)
    chosen = count
    if selection == "uniform":
        chosen = jax.random.randint(key, (), 0, num_blocks, jnp.int32)
    return BlocksState(zeros, zeros, norm, count, chosen, jnp.full_like(norm, jnp.inf), start)


def add_to_block(
    state: BlocksState, point: PyTree, gradient: PyTree, size: int, selection: str
) -> BlocksState:
    """One more point; a block of `size` points that it completes may become the result."""
    place = state.count % size

    def added(total: PyTree, new: PyTree) -> PyTree:
        return jax.tree.map(
            lambda t, x: jnp.where(place == 0, 0, t) + x.astype(t.dtype), total, new
        )

    points, gradients = added(state.points, point), added(state.gradients, gradient)
    norm = (optax.tree.norm(gradients) / (place + 1)).astype(state.norm.dtype)
    take = place == size - 1
    if selection == "uniform":
        take &= state.count // size == state.chosen
    if selection == "min_norm":
        take &= norm < state.best
    result = jax.tree.map(
        lambda old, total: jnp.where(take, total / size, old), state.result, points
    )
    best = jnp.where(take, norm, state.best)
    return BlocksState(points, gradients, norm, state.count + 1, state.chosen, best, result)
