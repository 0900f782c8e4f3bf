"""Vectors cut into blocks and blocks of blocks, for log-sum-exps and for draws."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

# of a power of blocks this long the log-sum-exps cost one pass, and few Gumbels choose among them:
# with 16 the coarser tables weigh, with the cube root of d the Gumbels, and CPUs sum slower
_SHORT = 32


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


def block_size(dim: int) -> int:
    """Entries in a block: 32, or up to twice that where it divides `dim`.

    Then XLA reads the blocks where they are; a vector that ends within a block is copied first. Of
    several such, the one of which there are a multiple of the highest power of two, so that devices
    can share the blocks.
    """
    even = [size for size in range(_SHORT, 2 * _SHORT) if dim % size == 0]
    return max(even, key=lambda size: dim // size & -(dim // size), default=_SHORT)


def block_lse(
    values: jax.Array, size: int, reduce: Callable[[jax.Array, int], jax.Array] = lse
) -> jax.Array:
    """`reduce` of each block of `size` entries of `values`; the last takes what is left over."""
    used = values.shape[0] // size * size
    table = reduce(values[:used].reshape(-1, size), 1)
    if used == values.shape[0]:
        return table
    return jnp.concatenate([table, reduce(values[used:], 0)[None]])


def coarser(table: jax.Array, size: int) -> list[jax.Array]:
    """`table`, its block log-sum-exps, theirs, and so on until few are left; the last first."""
    tables = [table]
    while tables[0].shape[0] > 2 * size:
        tables.insert(0, block_lse(tables[0], size))
    return tables


def total_lse(values: jax.Array) -> jax.Array:
    """Log-sum-exp of all entries, as accurate as the longest block is short."""
    return lse(coarser(values, block_size(values.shape[0]))[0], 0)


def block_entries(
    values: jax.Array, size: int, block: jax.Array, spread: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One block: `size` entries, which of them are in it, and the index of the first.

    The last block is filled up with entries before it, so that nothing is padded. Blocks of a
    vector that is `spread` over devices are rows of a table: XLA finds a row where it lies, and
    would gather the whole vector for a slice.
    """
    if spread and values.shape[0] % size == 0:
        return values.reshape(-1, size)[block], jnp.ones(size, bool), block * size
    first = jnp.minimum(block * size, values.shape[0] - size)
    mine = first + jnp.arange(size, dtype=first.dtype) >= block * size
    return jax.lax.dynamic_slice_in_dim(values, first, size), mine, first


def draw_from_tables(
    noise: jax.Array, tables: list[jax.Array], size: int, spread: bool
) -> jax.Array:
    """Indices `[k]` into the finest of the tables that `coarser` made, one stage for each."""
    first_width = tables[0].shape[0]
    index = noisy_argmax(tables[0][None], noise[:, :first_width])
    for stage, table in enumerate(tables[1:]):
        values, mine, first = jax.vmap(block_entries, (None, None, 0, None))(
            table, size, index, spread
        )
        start = first_width + stage * size
        weights = jnp.where(mine, values, -jnp.inf)
        index = first + noisy_argmax(weights, noise[:, start : start + size])
    return index


def gumbels(key: jax.Array, k: int, tables: list[jax.Array], size: int, more: int = 0) -> jax.Array:
    """The noise of `k` draws from the tables, and `more` Gumbels for each draw at the end."""
    width = tables[0].shape[0] + (len(tables) - 1) * size + more
    # the default mode's Gumbels have 23 bits: at 10^6 equal logits 7% of the draws tie near 16
    return jax.random.gumbel(key, (k, width), tables[0].dtype, mode="high")


def noisy_argmax(logits: jax.Array, noise: jax.Array) -> jax.Array:
    """Gumbel-max of each row: `logits` `[k or 1, c]`, `noise` `[k, c]`, `[k]` int32."""
    return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)
