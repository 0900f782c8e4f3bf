"""Per-example clipping, by norm or by range: the aggregators that bound sensitivity."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import (
    Aggregator,
    PyTree,
    check_choice,
    check_int,
    check_mask,
    check_nonnegative_scalar,
    check_shape,
    is_traced,
    wide,
)
from dpjax.geometry import Domain, L1Ball, Polytope, Simplex
from dpjax.privacy import RelationLike
from dpjax.privacy._budget import relation_factor
from dpjax.transforms.clipping._leaves import PackedSigns, is_outer
from dpjax.transforms.clipping._weighted_sum import (
    Pair,
    bounded_sum,
    clipping_bound,
    normal_or_zero,
    rounding_allowance,
    weighted_sum,
)

_NORMS = ("l1", "l2", "linf")
# of 2^40 numbers the sum of blocks of so many is off by at most 1e-4 of itself in float32
_BLOCK = 512
# on a polytope, which has no coordinates to centre: scores lie at most so many times further from 0
# than the bound lets them lie from each other, since the grid of a sum follows from the largest
_SHIFT = 32


def clip_by_norm(max_norm: ArrayLike, norm: str = "l2") -> Aggregator:
    r"""Clips every example to norm `max_norm` and sums over the batch.

    $$ \sum_{b:\,\mathrm{mask}_b} g_b \, \min(1, C / \|g_b\|) $$

    The norm is taken over the whole tree of one example. Leaves may be `OuterProduct`, the factored
    gradient of a linear layer; its per-example gradients are then never formed.

    Guarantee: sensitivity `C` in `norm` under add-or-remove-one (and replace-special, where the
    other record counts as zero), `2C` under replace-one; enforced here for any input whatever.
    `sensitivity(relation, rows=B)` is that of the floating-point sum: records are added as integers
    on a public grid, and what rounding remains is in it (`rounding_allowance`).

    | input | contribution |
    | --- | --- |
    | `mask` False, or a batch of none | exactly 0 |
    | NaN or inf anywhere in an example | exactly 0 |
    | `"l2"`: a norm whose square is beyond the float range, in float32 from 1.8e19 on | exactly 0 |
    | a norm so large that `C / norm` is below 1.2e-38, the normal float32 range | exactly 0 |
    | norm 0 | 0 |
    | `max_norm` 0 | all 0 |
    | `max_norm` above 1.2e30 | as with 1.2e30, or the sum could overflow |

    Args:
      max_norm: `C >= 0`, scalar (*public*); may be traced.
      norm: `"l1"`, `"l2"` or `"linf"`.

    Returns:
      An `Aggregator`. `update(per_example, state, params=None, *, mask, key=None)` takes leaves
      `[B, *p]` (*secret*) and `mask: bool[B]` (*secret*), and gives leaves `[*p]` of at least
      float32, so that no rounding follows the bound before the noise.

    Raises:
      ValueError: If `max_norm` is negative or not finite, or the norm is unknown.
      TypeError: If `max_norm` is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> clip = dpjax.transforms.clip_by_norm(1.0)
      >>> total, _ = clip.update(
      ...     jnp.array([[3.0, 4.0], [0.3, 0.4]]), clip.init(None), mask=jnp.array([True, True]))
      >>> [round(float(v), 4) for v in total]
      [0.9, 1.2]
      >>> clip.sensitivity("replace_one")
      2.0

    Source: Abadi et al., "Deep learning with differential privacy", 2016, algorithm 1.
    """
    check_choice("norm", norm, _NORMS)
    check_nonnegative_scalar("max_norm", max_norm)

    def total(per_example: PyTree, mask: jax.Array | None) -> PyTree:
        _check_rows(per_example)
        scale = clip_scale(per_example, mask, max_norm, norm)
        bound = clipping_bound(max_norm, scale.dtype)
        return jax.tree.map(lambda g: weighted_sum(g, scale, bound), per_example, is_leaf=is_outer)

    return aggregator_of(total, sensitivity_of(max_norm))


def aggregator_of(
    total: Callable[[Any, jax.Array | None], PyTree], sensitivity: Callable[..., Any]
) -> Aggregator:
    """The aggregator of `total(per_example, mask)`, without state and without draws."""

    def init(params: PyTree) -> optax.EmptyState:
        return optax.EmptyState()

    def update(
        per_example: PyTree,
        state: optax.EmptyState,
        params: PyTree = None,
        *,
        mask: jax.Array | None = None,
        **extra: object,
    ) -> tuple[PyTree, optax.EmptyState]:
        return total(per_example, mask), state

    return Aggregator(init, update, sensitivity)


def sensitivity_of(bound: ArrayLike, larger: int = 1) -> Callable[..., Any]:
    """The `sensitivity` of an aggregator whose every example is clipped to `bound`.

    Its sum has numbers that are up to `larger` times their share of the bound.
    """

    def sensitivity(
        relation: RelationLike, rows: int | None = None, dtype: DTypeLike = jnp.float32
    ) -> Any:
        factor: float = relation_factor(relation)
        if rows is not None:
            check_int("rows", rows, minimum=0)
            factor *= 1 + larger * rounding_allowance(rows, dtype)
        largest: Any = factor * bound
        return largest if is_traced(largest) else float(largest)

    return sensitivity


def _check_rows(per_example: PyTree) -> None:
    shapes = [list(jnp.shape(leaf)) for leaf in jax.tree.leaves(per_example)]
    if len({tuple(shape[:1]) for shape in shapes}) != 1 or not shapes[0]:
        raise ValueError(
            f"per_example must have one leading axis in all leaves, a row for each record, got "
            f"shapes {shapes}; a mean gradient has none, jax.vmap(jax.grad(loss), (None, 0)) has"
        )


def clip_scale(
    per_example: PyTree, mask: ArrayLike | None, max_norm: ArrayLike, norm: str
) -> jax.Array:
    """The factors by which clipping multiplies each example; 0 for those left out.

    Args:
      per_example: Tree with leaves `[B, *p]` (*secret*).
      mask: Which rows count, `[B]` bool (*secret*).
      max_norm: `C >= 0`, scalar (*public*); may be traced, and negative then counts as 0.
      norm: `"l1"`, `"l2"` or `"linf"`.

    Returns:
      `[B]` in [0, 1] (*secret*).

    Raises:
      TypeError: If `mask` holds other things than bools.
      ValueError: If `mask` is not `[B]`.
    """
    norms = per_example_norm(per_example, norm)
    return factors_within(norms, norms, mask, max_norm)


def per_example_norm(per_example: PyTree, norm: str = "l2") -> jax.Array:
    """Norm of each example over the whole tree.

    Args:
      per_example: Tree with leaves `[B, *p]` or `OuterProduct` (*secret*).
      norm: `"l1"`, `"l2"` or `"linf"`.

    Returns:
      `[B]` in at least float32 (*secret*).
    """
    leaves = jax.tree.leaves(per_example, is_leaf=is_outer)
    if norm == "linf":
        return functools.reduce(jnp.maximum, [_reduce(g, norm) for g in leaves])
    total = functools.reduce(operator.add, [_reduce(g, norm) for g in leaves])
    return jnp.sqrt(total) if norm == "l2" else total


def _reduce(leaf: PyTree, norm: str) -> jax.Array:
    """Sum of squares, sum of moduli or largest modulus of each example, `[B]`.

    Squares and products below the normal range are lost; what they could add up to is added, or a
    factor of 1e-20 in one half of an outer product would hide 1e19 in the other.
    """
    if is_outer(leaf):
        product = _reduce(leaf.left, norm) * _reduce(leaf.right, norm)
        return product + jnp.finfo(product.dtype).tiny
    values = wide(leaf)
    axes = tuple(range(1, values.ndim))
    if norm == "l2":
        lost = jnp.finfo(values.dtype).tiny * max(1, math.prod(values.shape[1:]))
        return _sum_in_blocks(values * values) + lost
    if norm == "l1":
        return _sum_in_blocks(abs(values))
    # a maximum of many may pass NaN over, as XLA computes it on CPU
    largest = jnp.max(abs(values), axes, initial=0)
    return jnp.where(jnp.any(jnp.isnan(values), axes), jnp.nan, largest)


def _sum_in_blocks(values: jax.Array) -> jax.Array:
    """Sums `[B]` of `[B, *p]`, blocks first: rounding grows with the longest run of additions."""
    if values.ndim == 1:
        return values
    values = values.reshape(values.shape[0], math.prod(values.shape[1:]))
    rests = []  # added at the end: XLA for GPUs takes long to put them beside the sums of blocks
    while values.shape[1] > _BLOCK:
        used = values.shape[1] // _BLOCK * _BLOCK
        if used < values.shape[1]:
            rests.append(jnp.sum(values[:, used:], axis=1))
        values = jnp.sum(values[:, :used].reshape(values.shape[0], -1, _BLOCK), axis=2)
    return functools.reduce(operator.add, rests, jnp.sum(values, axis=1))


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
    if clipped:
        scale = factors_within(spread * abs(factor), reach * abs(factor), mask, bound)
    else:
        scale = check_mask(mask, spread.shape[0]).astype(spread.dtype)
    weight = jnp.maximum(jnp.asarray(weight, scale.dtype), 0)
    kept = jnp.where(scale > 0, factor.astype(scale.dtype) * scale, 0)
    largest = weight * clipping_bound(bound, scale.dtype) / 2
    if isinstance(domain, L1Ball):
        largest = largest / jnp.abs(jnp.asarray(domain.radius, scale.dtype))
    elif isinstance(domain, Polytope):
        largest = largest * 2 * _SHIFT / jnp.maximum(_radius(domain), jnp.finfo(scale.dtype).tiny)
    return bounded_sum(rows, normal_or_zero(kept * weight), largest, centre, cut=cut)


def factors_within(
    spread: jax.Array, reach: jax.Array, mask: ArrayLike | None, bound: ArrayLike
) -> jax.Array:
    """The factors `[B]` by which clipping multiplies each example; 0 for those left out."""
    mask = check_mask(mask, spread.shape[0])
    tiny = jnp.finfo(spread.dtype).tiny
    # a traced one may be negative: nothing then, not what is as long as its modulus
    bound = clipping_bound(bound, spread.dtype)
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
