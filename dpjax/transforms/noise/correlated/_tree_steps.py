"""One step of binary tree noise."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree
from dpjax.transforms.noise.correlated._strategy import Draw, computed_once, valid_scale, wide_zeros
from dpjax.transforms.noise.correlated._tree_nodes import own_weights


class BinaryTreeState(NamedTuple):
    """State of `BinaryTree`, h = `num_steps.bit_length()`.

    Attributes:
      count: Number of steps so far, `[]` int32 (*public*).
      maxima: Largest scale since the last node of each level, `[h]` (*public*).
      prefixes: Noise of the prefix that ends at the last node of each level, leaves `[h, *p]`
        (*secret*).
    """

    count: jax.Array  # type: ignore[assignment]
    maxima: jax.Array
    prefixes: PyTree


def init_tree(params: PyTree, levels: int) -> BinaryTreeState:
    """The state before the first step."""

    def level_zeros(leaf: PyTree) -> jax.Array:
        zero = wide_zeros(leaf)
        return jnp.broadcast_to(zero, (levels, *zero.shape))

    maxima = jnp.zeros(levels, jnp.result_type(float))
    return BinaryTreeState(jnp.zeros((), jnp.int32), maxima, jax.tree.map(level_zeros, params))


def advance_tree(
    draw: Draw,
    scale: ArrayLike,
    state: BinaryTreeState,
    *,
    factor: ArrayLike,
    num_steps: int,
    exponent: float = 0.0,
    variance_reduced: bool = False,
) -> tuple[PyTree, BinaryTreeState]:
    """One step whose node has deviation `factor` times the largest scale under it."""
    dtype, levels = state.maxima.dtype, state.maxima.size
    t = state.count + 1
    growth = t.astype(dtype) ** exponent if exponent else jnp.ones((), dtype)
    scale = valid_scale(scale, state.count, num_steps, dtype)
    maxima = jnp.maximum(state.maxima, scale / growth)
    stddev = jnp.asarray(factor, dtype) * growth * maxima
    level = _trailing_zeros(t)
    # an index beyond the last level is clamped to it, where there are zeros until its own turn
    parent, before = _trailing_zeros(t & (t - 1)), _trailing_zeros(t - 1)
    own = jax.tree.map(
        lambda noise, at: (
            stddev[0 if variance_reduced else level].astype(at.dtype) * noise.astype(at.dtype)
        ),
        draw(0),
        state.prefixes,
    )
    if variance_reduced:
        own = _completed(own, draw, stddev, level, parent, state.prefixes)
    live = state.count < num_steps

    def advance(prefixes: jax.Array, node: jax.Array) -> jax.Array:
        return computed_once(_at(prefixes, parent) - _at(prefixes, before) + node, live)

    def store(prefixes: jax.Array, step: jax.Array) -> jax.Array:
        now = computed_once(_at(prefixes, before) + step, live)
        return jax.lax.dynamic_update_index_in_dim(prefixes, now, level, 0)

    steps = jax.tree.map(advance, state.prefixes, own)
    prefixes = jax.tree.map(store, state.prefixes, steps)
    maxima = jnp.where(jnp.arange(levels) <= level, 0, maxima)
    return steps, BinaryTreeState(t, maxima, prefixes)


def _completed(
    leaf: PyTree,
    draw: Draw,
    stddev: jax.Array,
    level: jax.Array,
    parent: jax.Array,
    prefixes: PyTree,
) -> PyTree:
    """The noise of node t as estimated from itself and all its descendants."""
    weights = jnp.asarray(own_weights(stddev.size), stddev.dtype)

    def merge(at: jax.Array, right: PyTree) -> PyTree:
        start = jnp.where(at < level, at, parent)  # where the prefix ends that lacks both children

        def combine(right: jax.Array, noise: jax.Array, prefixes: jax.Array) -> jax.Array:
            left = _at(prefixes, at - 1) - _at(prefixes, start)
            weight, sd = weights[at].astype(right.dtype), stddev[at].astype(right.dtype)
            return weight * sd * noise.astype(right.dtype) + (1 - weight) * (left + right)

        return jax.tree.map(combine, right, draw(at), prefixes)

    return jax.lax.fori_loop(1, level + 1, merge, leaf)


def _trailing_zeros(t: jax.Array) -> jax.Array:
    """Number of trailing zero bits, 32 of 0."""
    return jax.lax.population_count((t & -t) - 1)


def _at(prefixes: jax.Array, level: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(prefixes, level, 0, keepdims=False)
