"""Leaves that stand for larger arrays: outer products, and signs packed into words."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_int, check_shape, register_dataclass, wide

_WORD = 32
_SIGN = 0x8000_0000


class OuterProduct(NamedTuple):
    r"""The per-example matrices $x_b c_b^\top$, never formed.

    A leaf of a per-example tree, standing for an array `[B, p, K]`. Since
    $\|x c^\top\| = \|x\|\,\|c\|$ entrywise in l1, l2 and linf, clipping needs the factors only, and
    the clipped sum is one matrix product.

    Attributes:
      left: Inputs of the layer, `[B, p]`.
      right: Cotangents of its outputs, `[B, K]`.
    """

    left: jax.Array
    right: jax.Array

    def materialize(self) -> jax.Array:
        """The array `[B, p, K]` this stands for."""
        return self.left[:, :, None] * self.right[:, None, :]


def is_outer(leaf: object) -> bool:
    """Whether a node of a per-example tree is an `OuterProduct` leaf."""
    return isinstance(leaf, OuterProduct)


def combination(a: ArrayLike, first: PyTree, b: ArrayLike, second: PyTree) -> PyTree:
    """`a * first + b * second`, kept factored where both have the same inputs."""

    def add(x: PyTree, y: PyTree) -> PyTree:
        if is_outer(x) and is_outer(y) and x.left is y.left:
            return OuterProduct(x.left, a * x.right + b * y.right)
        x, y = (leaf.materialize() if is_outer(leaf) else leaf for leaf in (x, y))
        return a * x + b * y

    return jax.tree.map(add, first, second, is_leaf=is_outer)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PackedSigns:
    r"""A matrix `[n, p]` of signs at an eighth of a byte an entry, for p in the millions.

    Feature j is bit `j // W` of word `j % W`, `W = ceil(p / 32)`, so that neighbouring words hold
    neighbouring features and products run along words. A bit of 1 stands for +1. As `data["x"]` of
    `dpjax.problems.SimplexRisk.linear` it is indexed by records like an array.

    Attributes:
      words: `[n, W]` uint32 (*secret*).
      dim: Number of features p (static).

    Raises:
      ValueError: If the words have another width than `dim` asks for.
      TypeError: If `dim` is not an integer.

    Example:
      >>> import jax.numpy as jnp
      >>> signs = PackedSigns.pack(jnp.array([[1, -1, 1], [-1, -1, 1]]))
      >>> signs.weighted_sum(jnp.array([1.0, 2.0])).tolist()
      [-1.0, -3.0, 3.0]
    """

    words: jax.Array
    dim: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        check_int("dim", self.dim, minimum=1)
        if hasattr(self.words, "ndim"):
            check_shape("words", self.words, (*self.words.shape[:-1], -(-self.dim // _WORD)))

    @classmethod
    def pack(cls, signs: ArrayLike) -> "PackedSigns":
        """Packs a matrix of signs.

        Args:
          signs: `[n, p]`; entries > 0 become +1, all others -1.

        Returns:
          The same, at a bit an entry.
        """
        signs = jnp.asarray(signs)
        n, dim = signs.shape
        width = -(-dim // _WORD)
        bits = jnp.pad(signs > 0, ((0, 0), (0, width * _WORD - dim)))
        planes = bits.reshape(n, _WORD, width).astype(jnp.uint32)
        shifts = jnp.arange(_WORD, dtype=jnp.uint32)[None, :, None]
        return cls(jnp.sum(planes << shifts, axis=1, dtype=jnp.uint32), dim)

    @property
    def shape(self) -> tuple[int, int]:
        """`(n, p)`."""
        return self.words.shape[0], self.dim

    def unpack(self) -> jax.Array:
        """The matrix `[n, p]`, int8."""
        shifts = jnp.arange(_WORD, dtype=jnp.uint32)[None, :, None]
        bits = (self.words[:, None, :] >> shifts) & 1
        flat = bits.reshape(self.words.shape[0], -1)[:, : self.dim]
        return 2 * flat.astype(jnp.int8) - 1

    def columns(self, indices: jax.Array) -> jax.Array:
        """Features `indices` `[k]` of every record, `[n, k]` float."""
        width = self.words.shape[1]
        words = self.words[:, indices % width]
        bits = (words >> (indices // width).astype(jnp.uint32)[None, :]) & 1
        return 2 * bits.astype(float) - 1

    def dot(self, point: ArrayLike) -> jax.Array:
        """Inner products `[n]` with a point `[p]`, one record at a time."""
        width = self.words.shape[1]
        padded = jnp.pad(wide(point), (0, width * _WORD - self.dim))
        planes = padded.reshape(_WORD, width)
        return jax.lax.map(lambda words: jnp.sum(_flip(planes, words)), self.words)

    def weighted_sum(self, weights: ArrayLike) -> jax.Array:
        """Sum of the records times `weights` `[n]`, `[p]`, in one pass over the words.

        Of integers of 32 or 64 bits the sum is of integers; all other weights are widened to
        float32.
        """
        weights = jnp.asarray(weights)
        if weights.dtype not in (jnp.int32, jnp.int64):
            weights = weights.astype(jnp.promote_types(weights.dtype, jnp.float32))

        # record by record: XLA's CPU compiler vectorises this loop, and none with several at once
        def add(total: jax.Array, record: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            words, weight = record
            return total + _flip(jnp.broadcast_to(weight, total.shape), words), None

        zeros = jnp.zeros((_WORD, self.words.shape[1]), weights.dtype)
        return jax.lax.scan(add, zeros, (self.words, weights))[0].reshape(-1)[: self.dim]


def _flip(values: jax.Array, words: jax.Array) -> jax.Array:
    """Values `[32, W]` where the bit is 1, their negatives where it is 0."""
    shifts = jnp.arange(_WORD, dtype=jnp.uint32)[:, None]
    bits = (words[None, :] >> shifts) & 1
    if jnp.issubdtype(values.dtype, jnp.integer):
        negative = bits.astype(values.dtype) - 1  # all bits where the sign changes
        return (values ^ negative) - negative
    if values.dtype != jnp.float32:
        return jnp.where(bits.astype(bool), values, -values)
    # the bit moves to the place of the sign: half the work of a selection
    signs = (~words[None, :] << (_WORD - 1 - shifts)) & jnp.uint32(_SIGN)
    flipped = jax.lax.bitcast_convert_type(values, jnp.uint32) ^ signs
    return jax.lax.bitcast_convert_type(flipped, jnp.float32)
