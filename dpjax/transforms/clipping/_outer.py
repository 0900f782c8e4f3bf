"""Per-example gradients of linear layers, kept as the two factors of their outer product."""

from typing import NamedTuple

import jax


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
