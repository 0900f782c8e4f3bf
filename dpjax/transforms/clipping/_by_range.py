"""Per-example clipping by range over the vertices of a domain."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import Aggregator, PyTree, check_mask, check_nonnegative_scalar, check_shape, wide
from dpjax.geometry import Domain, L1Ball, Polytope, Simplex
from dpjax.transforms.clipping._by_norm import aggregator_of, sensitivity_of
from dpjax.transforms.clipping._leaves import PackedSigns, is_outer
from dpjax.transforms.clipping._weighted_sum import (
    Pair,
    bounded_sum,
    clipping_bound,
    normal_or_zero,
)

# on a polytope, which has no coordinates to centre: scores lie at most so many times further from 0
# than the bound lets them lie from each other, since the grid of a sum follows from the largest
_SHIFT = 32


def clip_by_range(bound: ArrayLike, domain: Domain) -> Aggregator:
    r"""Clips every example to range `bound` over the vertices of a domain and sums over the batch.

    $$ \sum_{b:\,\mathrm{mask}_b} g_b \, \min\Bigl(1, \frac{C}{|g_b|_V}\Bigr), \qquad
       |g|_V = \max_{ij} \langle g, v_i - v_j\rangle $$

    The range $|g|_V$, `domain.spread(g)`, is what a softmax over the vertices sees of a gradient:
    largest less smallest entry on the simplex, $2R \max_j |g_j|$ on the l1 ball. It is a seminorm:
    a vector that gives all vertices one score, such as a constant on the simplex, has range 0 and
    changes no draw. On the simplex every example is centred at its mid-range first, so that what
    all entries have in common takes no digits from what one record changes.

    Guarantee: sensitivity `C` in the seminorm $|\cdot|_V$ under add-or-remove-one (and
    replace-special, where the other record counts as zero), `2C` under replace-one; enforced here
    for any input whatever. In no norm is the sum bounded, so additive noise does not make it
    private; draws from the softmax of its scores do (`maurey_sample`, `domain.sample`).
    `sensitivity(relation, rows=B)` is that of the floating-point sum, as for `clip_by_norm`.

    | input | contribution |
    | --- | --- |
    | `mask` False, or a batch of none | exactly 0 |
    | NaN or inf anywhere in an example, or a range beyond the float range | exactly 0 |
    | a range so large that `C / range` is below 1.2e-38, the normal float32 range | exactly 0 |
    | range 0 | no range: 0 on simplex and l1 ball, as it is on a polytope |
    | scores beyond `32 C`, of any range, on a polytope | scaled to `32 C` |
    | `bound` 0 | all 0 |
    | `bound` above 1.2e30 | as with 1.2e30 |

    Args:
      bound: `C >= 0`, scalar (*public*); may be traced.
      domain: Whose vertices count: `dpjax.geometry.Simplex`, `L1Ball` or `Polytope` (*public*).

    Returns:
      An `Aggregator`. `update(per_example, state, params=None, *, mask, key=None)` takes a tree of
      one leaf (*secret*) and `mask: bool[B]` (*secret*). The leaf is an array `[B, p]` or
      `OuterProduct(left [B, p], right [B, 1])`, whose product is not formed. Left and array may
      hold integers, which are not copied to floats; left may be `PackedSigns`, each row of which is
      taken to hold both signs. It gives the tree with `[p]` in the place of the leaf, of at least
      float32.

    Raises:
      ValueError: If `bound` is negative or not finite, or the tree has another form.
      TypeError: If `bound` is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> from dpjax.geometry import Simplex
      >>> clip = dpjax.transforms.clip_by_range(1.0, Simplex(2))
      >>> total, _ = clip.update(
      ...     jnp.array([[4.0, 0.0], [5.0, 5.0]]), clip.init(None), mask=jnp.array([True, True]))
      >>> total.tolist()
      [0.5, -0.5]
      >>> clip.sensitivity("replace_one")
      2.0

    Source: the range of a score, in place of its modulus, as the sensitivity of the exponential
    mechanism: McSherry and Talwar, "Mechanism design via differential privacy", 2007.
    """
    check_nonnegative_scalar("bound", bound)

    def total(per_example: PyTree, mask: jax.Array | None) -> PyTree:
        leaves, treedef = jax.tree.flatten(per_example, is_leaf=is_outer)
        if len(leaves) != 1:
            raise ValueError(f"per_example must hold 1 leaf, one domain's, got {len(leaves)}")
        return jax.tree.unflatten(treedef, [range_sum(leaves[0], mask, bound, domain).high])

    # of a polytope the entries of a sum may be so much larger
    larger = 2 * _SHIFT if isinstance(domain, Polytope) else 1
    return aggregator_of(total, sensitivity_of(bound, larger))


def range_sum(
    leaf: PyTree,
    mask: ArrayLike | None,
    bound: ArrayLike,
    domain: Domain,
    *,
    weight: ArrayLike = 1.0,
    clipped: bool = True,
    cut: bool = False,
) -> Pair:
    """`weight` times the sum of `clip_by_range`, as a pair.

    Args:
      leaf: Examples, as there.
      mask: Which rows count, `[B]` bool.
      bound: C, scalar.
      domain: Whose vertices count.
      weight: `>= 0`, scalar; may be traced.
      clipped: Whether examples are scaled to the bound; if not, the caller answers for it.
      cut: As for `bounded_sum`.

    Returns:
      A pair of `[p]`.
    """
    outer = is_outer(leaf)
    rows = leaf.left if outer else leaf
    rows = rows if isinstance(rows, PackedSigns) else jnp.asarray(rows)
    check_shape("per_example", rows, (None, domain.dim))
    spread, reach, centre = _spread_reach_centre(rows, domain)
    factor = jnp.ones_like(spread)
    if outer:
        check_shape("right", leaf.right, (rows.shape[0], 1))
        factor = wide(leaf.right)[:, 0]
    scale = _scale(spread * abs(factor), reach * abs(factor), mask, bound, clipped)
    weight = jnp.maximum(jnp.asarray(weight, scale.dtype), 0)
    kept = jnp.where(scale > 0, factor.astype(scale.dtype) * scale, 0)
    largest = weight * clipping_bound(bound, scale.dtype) / 2
    if isinstance(domain, L1Ball):
        largest = largest / jnp.abs(jnp.asarray(domain.radius, scale.dtype))
    elif isinstance(domain, Polytope):
        largest = largest * 2 * _SHIFT / jnp.maximum(_radius(domain), jnp.finfo(scale.dtype).tiny)
    return bounded_sum(rows, normal_or_zero(kept * weight), largest, centre, cut=cut)


def _scale(
    spread: jax.Array, reach: jax.Array, mask: ArrayLike | None, bound: ArrayLike, clipped: bool
) -> jax.Array:
    """The factors `[B]` by which clipping multiplies each example; 0 for those left out."""
    mask = check_mask(mask, spread.shape[0])
    if not clipped:
        return mask.astype(spread.dtype)
    tiny = jnp.finfo(spread.dtype).tiny
    bound = clipping_bound(bound, spread.dtype)  # a traced one may be negative
    scale = normal_or_zero(jnp.minimum(1, bound / jnp.maximum(jnp.maximum(spread, reach), tiny)))
    return jnp.where(mask & jnp.isfinite(spread) & jnp.isfinite(reach), scale, 0)


def _spread_reach_centre(
    rows: PyTree, domain: Domain
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Of each row its range over the vertices, what it must not exceed besides, and its centre.

    `[B]`, `[B]`, and `[B, 1]` or None for 0.
    """
    if isinstance(domain, Simplex | L1Ball):
        if isinstance(rows, PackedSigns):
            both = jnp.ones(rows.shape[0])
            low, high = -both, both
        else:
            if jnp.issubdtype(rows.dtype, jnp.inexact):
                rows = wide(rows)
            low, high = (wide(a) for a in _extremes(rows))
        # what is lost below the normal range must not grow with the other factor of a product
        lost = 2 * jnp.finfo(low.dtype).tiny
        modulus = jnp.maximum(high, -low)
        if isinstance(domain, L1Ball):
            radius = jnp.abs(jnp.asarray(domain.radius, low.dtype))  # a traced one may be negative
            return radius * (2 * modulus + lost), radius * modulus, None
        centre = None if isinstance(rows, PackedSigns) else (low / 2 + high / 2)[:, None]
        # NaN and inf, which a difference may lose
        return high - low + lost, 0 * modulus, centre
    rows = rows.unpack() if isinstance(rows, PackedSigns) else wide(rows)
    modulus = jnp.max(jnp.abs(wide(rows)), axis=1)
    largest: Any = _radius(domain).astype(modulus.dtype)
    lost = largest * jnp.finfo(modulus.dtype).tiny
    return domain.spread(wide(rows)) + 2 * lost, (largest * modulus + lost) / _SHIFT, None


def _radius(domain: Any) -> jax.Array:
    """An upper bound on the l1 norm of the vertices, which may be traced."""
    return jnp.max(jnp.sum(jnp.abs(wide(domain.vertices)), axis=1))


@jax.custom_jvp
def _extremes(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Smallest and largest entry of each row, in one pass and the type of the rows."""
    floating = jnp.issubdtype(rows.dtype, jnp.inexact)
    lowest, highest = (-jnp.inf, jnp.inf) if floating else _limits(rows.dtype)
    start = (jnp.asarray(highest, rows.dtype), jnp.asarray(lowest, rows.dtype))

    def wider(a: PyTree, b: PyTree) -> Any:
        return jax.lax.min(a[0], b[0]), jax.lax.max(a[1], b[1])

    low, high = jax.lax.reduce((rows, rows), start, wider, (1,))
    return low, high


@_extremes.defjvp
def _(primals: PyTree, tangents: PyTree) -> PyTree:
    return jax.jvp(lambda rows: (jnp.min(rows, axis=1), jnp.max(rows, axis=1)), primals, tangents)


def _limits(dtype: DTypeLike) -> tuple[Any, Any]:
    if dtype == jnp.bool_:
        return False, True
    return jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
