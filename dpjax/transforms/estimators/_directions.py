"""Uniform directions of a whole tree, which smoothed oracles share."""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, many_devices, wide
from dpjax.random._threefry import threefry_2x32

KINDS = ("shared", "record")

# accelerators multiply float32 with 10 bits by default, and directions would not be unit vectors
# sin(pi t) = q P(|q|) with q = t (1 - |t|), to 6e-8 on [-1, 1]
_SINE = (3.141586, 3.1418488, 1.1123958, 0.21931567)
_QUARTER = np.uint32(1 << 30)  # of a turn
# a point of the ball of R^d: all but two coordinates of a point of the sphere of R^(d + 2)
_LEFT_OUT = 2


class Directions(NamedTuple):
    """Directions as normal rows and the inverses of their norms, so that no row is rescaled.

    Attributes:
      rows: `[n, d]` float32.
      inverse: `[n]`, at least float32; `inverse[:, None] * rows` are the directions.
    """

    rows: jax.Array
    inverse: jax.Array


def num_entries(params: PyTree) -> int:
    """Number d of real entries of a tree; raises unless there are some, all of a float type."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            where = "params" + jax.tree_util.keystr(path)
            raise TypeError(f"{where} must be of a float type, got {jnp.result_type(leaf)}")
    dim = sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(params))
    if dim < 1:
        raise ValueError(f"params must have at least 1 entry, got {dim}")
    return dim


def batch_size(batch: PyTree) -> int:
    """Number of records: the leading axis of the first leaf."""
    leaves = jax.tree.leaves(batch)
    if not leaves or jnp.ndim(leaves[0]) < 1:
        raise ValueError("batch must have leaves [B, ...], got none or a scalar")
    return jnp.shape(leaves[0])[0]


def wide_type(params: PyTree) -> Any:
    """The type that holds every leaf of a tree, at least float32."""
    return jnp.result_type(*[wide(leaf).dtype for leaf in jax.tree.leaves(params)])


def drawn(params: PyTree, key: jax.Array, *numbers: jax.Array, ball: bool = False) -> Directions:
    """A direction of the whole tree for each number, uniform on the unit sphere or in the ball.

    The norm is that of the tree, not of its leaves. A direction depends on its numbers, the key and
    d alone: not on those drawn with it, nor, but for rounding, on the type of the leaves. None is 0
    or NaN, and for d = 1 those of the sphere are 1 and -1.

    Args:
      params: Tree with d entries.
      key: From which that of a direction is `fold_in(fold_in(key, i), j)`.
      numbers: i, or i and j, `[n]`.
      ball: Whether uniform in the unit ball.
    """
    keys = jax.vmap(lambda *at: functools.reduce(jax.random.fold_in, at, key))(*numbers)
    dim, more = num_entries(params), _LEFT_OUT if ball else 0

    def squares(rows: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(rows.astype(wide_type(params))), axis=1)

    if many_devices() and _counter_based(keys):
        rows = _entries(keys, np.uint32(0), dim, dim + more)
        total = squares(rows) + squares(_entries(keys, np.uint32(dim), more, dim + more))
        return Directions(rows, 1 / jnp.sqrt(total))
    rows = normal_rows(keys, dim + more)
    return Directions(rows[:, :dim], 1 / jnp.sqrt(squares(rows)))


def normal_rows(keys: jax.Array, dim: int) -> jax.Array:
    """Normal numbers, `[n, dim]` float32, a row for each key; no number is 0.

    Box and Muller's, 16 bits for the radius and 16 for the angle: two numbers a word, up to 4.85
    deviations, with signs exactly symmetric. For directions, which are public and so many that
    `jax.random.normal` would take as long as losses do; not for noise that is to hide anything.
    """
    radius, angle = _polar(public_words(keys, _words(dim)))
    rows = jnp.concatenate([radius * _sine(angle + _QUARTER), radius * _sine(angle)], axis=1)
    return rows[:, :dim]


def _entries(keys: jax.Array, first: np.uint32, count: int, dim: int) -> jax.Array:
    """Entries `first`, `first + 1`, ... of `normal_rows(keys, dim)`, each made by itself.

    Twice the work, of which each device does that for its own entries and needs no other's.
    """
    half = np.uint32(_words(dim))
    place = first + jax.lax.iota(jnp.uint32, count)
    word = jnp.where(place < half, place, place - half)

    def words(key: jax.Array) -> jax.Array:
        # as jax.random.bits makes them
        high, low = threefry_2x32(key[0], key[1], jnp.uint32(0), word)
        return high ^ low

    radius, angle = _polar(jax.vmap(words)(jax.random.key_data(keys)))
    turned = jnp.where(place < half, _QUARTER, np.uint32(0))
    return radius * _sine(angle + turned[None])


def _counter_based(keys: jax.Array) -> bool:
    """Whether a word depends on its key and its place alone."""
    partitionable = getattr(jax.config, "jax_threefry_partitionable", True)
    return partitionable and str(jax.random.key_impl(keys)) == "threefry2x32"


def _words(dim: int) -> int:
    """How many words rows of `dim` are made of, an even number."""
    return 2 * -(-dim // 4)


def _polar(words: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Radius and angle, in units of a turn over 2^32, never a multiple of a right angle."""
    radius = jnp.sqrt(-2 * jnp.log((_signed(words >> 16) + 0.5) * 2.0**-16))
    return radius, (words << 16) | np.uint32(1 << 15)


@functools.partial(jax.jit, static_argnums=1)
def public_words(keys: jax.Array, count: int) -> jax.Array:
    """Random words `[n, count]` uint32, that may be drawn again and known to anybody."""

    def words(key: jax.Array) -> jax.Array:
        return jax.random.bits(key, (count,), jnp.uint32)

    if str(jax.random.key_impl(keys)) == "threefry2x32":
        return jax.vmap(words)(keys)
    impl = jax.random.key_impl(keys)
    # what hardware generators draw depends on the whole batch; and a loop over typed keys would,
    # under vmap, count as a use of them
    return jax.lax.map(
        lambda data: words(jax.random.wrap_key_data(data, impl=impl)), jax.random.key_data(keys)
    )


def displaced(params: PyTree, directions: Directions, *lengths: jax.Array) -> PyTree:
    """The points `params + length * direction[i]`, length after length, of at least float32.

    Leaves `[lengths * n, *p]`.
    """

    def move(leaf: PyTree, rows: jax.Array) -> jax.Array:
        at = wide(leaf)[None]
        inverse = jnp.expand_dims(directions.inverse.astype(at.dtype), range(1, at.ndim))
        steps = [length.astype(at.dtype) * inverse for length in lengths]
        return jnp.concatenate([at + step * rows for step in steps])

    return jax.tree.map(move, params, unflatten(directions.rows, params))


def combined(weights: jax.Array, directions: Directions) -> jax.Array:
    """The sums of `weights[..., i] * direction[i]`, `[..., d]`; `unflatten` makes trees of them."""
    inverse = jnp.expand_dims(directions.inverse, range(weights.ndim - 1))
    scaled = weights.astype(inverse.dtype) * inverse
    return jnp.matmul(scaled, directions.rows.astype(scaled.dtype), precision="highest")


def unflatten(flat: jax.Array, params: PyTree) -> PyTree:
    """The vectors `[..., d]` as trees like `params`, leaves `[..., *p]` of at least float32."""
    leaves, treedef = jax.tree.flatten(params)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
    shaped = [
        part.reshape(*flat.shape[:-1], *np.shape(leaf)).astype(wide(leaf).dtype)
        for leaf, part in zip(leaves, jnp.split(flat, ends, axis=-1), strict=True)
    ]
    return jax.tree.unflatten(treedef, shaped)


def _signed(words: jax.Array) -> jax.Array:
    """The words as signed integers, in float32."""
    return words.astype(jnp.int32).astype(jnp.float32)


def _sine(angle: jax.Array) -> jax.Array:
    """Sine of an angle in units of a turn over 2^32."""
    t = _signed(angle) * 2.0**-31
    q = t * (1 - jnp.abs(t))
    modulus = jnp.abs(q)
    value = jnp.full_like(q, _SINE[-1])
    for coefficient in _SINE[-2::-1]:
        value = value * modulus + coefficient
    return q * value
