"""Vectors cut into blocks and blocks of blocks, for log-sum-exps and for draws."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.random._normal import gumbels

# of blocks this long the log-sum-exps cost one pass over a vector: with 16 the table of them
# weighs, and CPUs sum slower
_SHORT = 32
# of tables, which are small; fewer take more stages, more take more Gumbels a draw
_SHORTER = 16


def as_floating(value: ArrayLike) -> jax.Array:
    """`value` in at least float32."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(float)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def as_vector(name: str, value: ArrayLike) -> jax.Array:
    """`value` as a vector of at least one entry, in at least float32."""
    array = as_floating(value)
    if array.ndim != 1 or not array.shape[0]:
        raise ValueError(f"{name} must be a vector of >= 1 entries, got shape {list(array.shape)}")
    return array


def lse(values: jax.Array, axis: int) -> jax.Array:
    """Log-sum-exp; `-inf` where all entries are, without a NaN on the way."""
    top = jnp.max(values, axis=axis, keepdims=True)
    top = jnp.where(jnp.isneginf(top), 0, top)
    return jnp.squeeze(top, axis) + jnp.log(jnp.sum(jnp.exp(values - top), axis=axis))


class Stage(NamedTuple):
    """What a draw chooses from at one level, coarse to fine.

    Attributes:
      logits: Of all blocks of that level, or of all entries, `[c]`.
      size: How many of them are in a block of the level before (static).
    """

    logits: jax.Array
    size: int


def block_size(dim: int, shortest: int = _SHORT) -> int:
    """Entries in a block: the shortest, or up to twice that where it divides `dim`.

    Then XLA reads the blocks where they are; a vector that ends within a block is copied first. Of
    several such, the one of which there are a multiple of the highest power of two, so that devices
    can share the blocks.
    """
    even = [size for size in range(shortest, 2 * shortest) if dim % size == 0]
    return max(even, key=lambda size: dim // size & -(dim // size), default=shortest)


def block_reduce(reduce: Callable[..., jax.Array], size: int, *vectors: jax.Array) -> jax.Array:
    """`reduce` of each block of `size` entries of vectors; the last takes what is left over."""
    used = vectors[0].shape[0] // size * size
    table = reduce(*(vector[:used].reshape(-1, size) for vector in vectors), 1)
    if used == vectors[0].shape[0]:
        return table
    return jnp.concatenate([table, reduce(*(vector[used:] for vector in vectors), 0)[None]])


def stages(logits: jax.Array) -> list[Stage]:
    """Entries, their blocks, the blocks of these, and so on until few are left; the last first."""
    size = block_size(logits.shape[0])
    if logits.shape[0] <= 2 * size:
        return [Stage(logits, logits.shape[0])]
    return [*table_stages(block_reduce(lse, size, logits)), Stage(logits, size)]


def table_stages(table: jax.Array) -> list[Stage]:
    """As `stages`, of a table of blocks, which is small."""
    finer: list[Stage] = []
    while table.shape[0] > 2 * _SHORTER:
        size = block_size(table.shape[0], _SHORTER)
        finer.insert(0, Stage(table, size))
        table = block_reduce(lse, size, table)
    return [Stage(table, table.shape[0]), *finer]


def total_lse(values: jax.Array) -> jax.Array:
    """Log-sum-exp of all entries, as accurate as the longest block is short."""
    return lse(stages(values)[0].logits, 0)


@functools.partial(jax.vmap, in_axes=(None, None, 0, None))
def block_entries(
    values: jax.Array, size: int, block: jax.Array, spread: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Blocks, each: `size` entries, which of them are in it, and the index of the first.

    The last block is filled up with entries before it, so that nothing is padded. Blocks of a
    vector that is `spread` over devices are rows of a table: XLA finds a row where it lies, and
    would gather the whole vector for a slice.
    """
    if spread and values.shape[0] % size == 0:
        return values.reshape(-1, size)[block], jnp.ones(size, bool), block * size
    first = jnp.minimum(block * size, values.shape[0] - size)
    mine = first + jnp.arange(size, dtype=first.dtype) >= block * size
    return jax.lax.dynamic_slice_in_dim(values, first, size), mine, first


def draw(
    key: jax.Array, k: int, levels: list[Stage], spread: bool, more: int = 0
) -> tuple[jax.Array, jax.Array]:
    """Indices `[k]` into the finest of the levels, and `more` Gumbels a draw, `[k, more]`."""
    width = sum(stage.size for stage in levels)
    # made once: else XLA makes them again for each use of a stage
    noise = jax.lax.optimization_barrier(gumbels(key, (k, width + more), levels[0].logits.dtype))
    index = noisy_argmax(levels[0].logits[None], noise[:, : levels[0].size])
    start = levels[0].size
    for logits, size in levels[1:]:
        values, mine, first = block_entries(logits, size, index, spread)
        weights = jnp.where(mine, values, -jnp.inf)
        index = first + noisy_argmax(weights, noise[:, start : start + size])
        start += size
    return index, noise[:, width:]


def noisy_argmax(logits: jax.Array, noise: jax.Array) -> jax.Array:
    """Gumbel-max of each row: `logits` `[k or 1, c]`, `noise` `[k, c]`, `[k]` int32."""
    noisy = logits + noise
    # twice as fast on CPU as argmax, which looks for value and place together
    largest = jnp.max(noisy, axis=-1, keepdims=True)
    places = jnp.arange(noisy.shape[-1], dtype=jnp.int32)[None]
    return jnp.min(jnp.where(noisy == largest, places, noisy.shape[-1] - 1), axis=-1)
