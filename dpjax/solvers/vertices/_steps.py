"""Shared steps of methods over vertices: clipped gradients, summed scores, draws."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import PyTree, wide
from dpjax.core._pairs import Pair, add_pairs, pair_of
from dpjax.geometry import Domain, Polytope, Simplex
from dpjax.transforms import OuterProduct, PackedSigns
from dpjax.transforms.clipping._by_norm import range_sum


class VertexInfo(NamedTuple):
    """Released in a step.

    Attributes:
      indices: The vertices drawn, `[draws]` int32 for each block; -1 where none was drawn.
    """

    indices: tuple[jax.Array, ...]


def coordinates(domain: Domain) -> Domain:
    """The domain in whose coordinates scores are kept.

    On a polytope a record gives a score to each vertex, and from there on it is a simplex: sums of
    gradients may be far larger than any difference of scores, which they would round.
    """
    return Simplex(domain.num_vertices) if isinstance(domain, Polytope) else domain


def sum_in_coordinates(
    domain: Domain,
    leaf: PyTree,
    mask: jax.Array,
    bound: ArrayLike,
    weight: ArrayLike,
    assume_bounded: bool,
) -> Pair:
    """Weighted sum over the batch of a block's gradients, of bounded range, in `coordinates`.

    One record moves it by a vector of range at most the weight times the bound, whatever the
    others are.
    """
    if isinstance(domain, Polytope):
        vertices = domain.vertices

        def scores(rows: jax.Array | PackedSigns) -> jax.Array:
            rows = wide(rows.unpack() if isinstance(rows, PackedSigns) else rows)
            return jnp.matmul(rows, vertices.T, precision="highest")

        outer = isinstance(leaf, OuterProduct)
        leaf = leaf._replace(left=scores(leaf.left)) if outer else scores(leaf)
    space, clipped = coordinates(domain), not assume_bounded
    return range_sum(leaf, mask, bound, space, weight=weight, clipped=clipped, cut=True)


def shrunk(
    weight: float | jax.Array,
    moved: float | jax.Array,
    dtype: DTypeLike,
    logit: float = 0.0,
    total: float = 0.0,
) -> jax.Array:
    r"""The weight of a sum, less what rounding may add to the range of its draws.

    A draw's logits are differences from the largest, rounded three times by at most
    $\epsilon / 2$ of themselves. A vertex whose logit is 45 below the largest has a probability of
    3e-20, which is not counted, and the weights of blocks are sums of some tens of terms. So two
    neighbours' logits, moved by a vector of range eta, differ by one of range at most
    $\eta + 300 \epsilon$: two logits of each, off by 68 epsilon. The weight is smaller by
    that share, and by $2^{-18}$ for scales and products: what is drawn is then of range eta.

    Args:
      weight: Of the sum, scalar.
      moved: eta, by which one record moves the logits without rounding, scalar.
      dtype: Of the logits.
      logit: Further roundings of a logit, in units of epsilon.
      total: Roundings of the sum, in units of epsilon times eta.

    Returns:
      The smaller weight; 0 where rounding is all there is.
    """
    eps = float(jnp.finfo(dtype).eps)
    added = (300 + logit) * eps / jnp.maximum(moved, jnp.finfo(dtype).tiny)
    return weight * jnp.maximum(1 - 2.0**-18 - total * eps - added, 0)


def no_scores(domain: Domain) -> Pair:
    """Scores before any record."""
    return pair_of(jnp.zeros(coordinates(domain).dim))


def add_scores(domain: Domain, score: Pair, term: Pair, sign: int) -> Pair:
    """The score less `sign` times a term; on the simplex up to a shift that makes the largest 0.

    Draws ignore a common shift, but its digits would be lost to what one record moves.
    """
    total = add_pairs(score, Pair(-sign * term.high, -sign * term.low))
    if not isinstance(coordinates(domain), Simplex):
        return total
    return add_pairs(total, pair_of(jnp.broadcast_to(-jnp.max(total.high), total.high.shape)))


def draw_vertices(key: jax.Array, domain: Domain, score: Pair, k: int) -> jax.Array:
    """`k` vertices from the softmax of a block's scores, `[k]` int32."""
    space = coordinates(domain)
    # on a simplex the largest score is 0, and what rounding left over is small against any other
    low = None if isinstance(space, Simplex) else score.low
    return space.sample(key, score.high, k, low=low)
