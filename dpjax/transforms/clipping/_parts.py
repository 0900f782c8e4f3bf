"""A fold over a batch cut into parts, so that what is made of a whole batch never coexists."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.core import PyTree


def fold_in_parts(
    of: Callable[[PyTree, jax.Array, jax.Array], PyTree],
    batch: PyTree,
    mask: jax.Array,
    size: int,
    add: Callable[[Any, PyTree], Any],
    *,
    start: Callable[[PyTree], Any] = lambda zeros: zeros,
    strided: bool = False,
) -> Any:
    """Folds `of(part, part_mask, number)` over parts of at most `size` examples.

    Nothing is copied: parts are consecutive, the last one reaching back over examples of the one
    before it, masked; or, where it comes out even, a part takes every so-manieth example, so that
    each device that holds a share of them has its share of each part.

    Args:
      of: Gives a tree of arrays.
      batch: Tree with leaves `[B, ...]`.
      mask: bool `[B]`.
      size: Examples a part, `< B`.
      add: `add(carry, tree) -> carry`.
      start: Makes the first carry of zeros like the tree.
      strided: Whether parts are of every so-manieth example, if so many divide their number.

    Returns:
      The last carry.
    """
    num = mask.shape[0]
    least = max(1, -(-num // size))
    even = (parts for parts in range(least, 2 * least) if num % parts == 0)
    parts = next(even, least) if strided else least

    def column_of(number: jax.Array) -> PyTree:
        def column(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(num // parts, parts, *leaf.shape[1:])[:, number]

        return of(jax.tree.map(column, batch), column(mask), number)

    def slice_of(number: jax.Array) -> PyTree:
        begin = jnp.minimum(number * size, num - size)

        def cut(leaf: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(leaf, begin, size)

        new = begin + jnp.arange(size, dtype=jnp.int32) >= number * size
        return of(jax.tree.map(cut, batch), cut(mask) & new, number)

    part = column_of if strided and num % parts == 0 else slice_of
    shapes = jax.eval_shape(part, jnp.zeros((), jnp.int32))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def body(carry: PyTree, number: jax.Array) -> tuple[Any, None]:
        return add(carry, part(number)), None

    return jax.lax.scan(body, start(zeros), jnp.arange(parts, dtype=jnp.int32))[0]
