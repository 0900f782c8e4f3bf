"""Per-example clipping by range over the vertices of a domain."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpjax.core import (
    Aggregator,
    PyTree,
    check_mask,
    check_nonnegative,
    check_scalar,
    check_shape,
    is_traced,
    wide,
)
from dpjax.geometry import Domain, L1Ball, Polytope, Simplex
from dpjax.privacy import resolve_relation
from dpjax.transforms._outer import is_outer
from dpjax.transforms._signs import PackedSigns
from dpjax.transforms._weighted_sum import clipping_bound, normal_or_zero, weighted_sum

# an example whose scores lie this many times further from 0 than its bound lets them lie from each
# other would by rounding wipe out what the other examples add to the sum
_SHIFT = 1024


def clip_by_range(bound: ArrayLike, domain: Domain) -> Aggregator:
    r"""Clips every example to range `bound` over the vertices of a domain and sums over the batch.

    $$ \sum_{b:\,\mathrm{mask}_b} g_b \, \min\Bigl(1, \frac{C}{|g_b|_V}\Bigr), \qquad
       |g|_V = \max_{ij} \langle g, v_i - v_j\rangle $$

    The range $|g|_V$, `domain.spread(g)`, is what a softmax over the vertices sees of a gradient:
    largest less smallest entry on the simplex, $2R \max_j |g_j|$ on the l1 ball. It is a seminorm:
    a vector that gives all vertices one score, such as a constant on the simplex, has range 0,
    passes as it is, and changes no draw.

    Guarantee: sensitivity `C` in the seminorm $|\cdot|_V$ under add-or-remove-one (and
    replace-special, where the other record counts as zero), `2C` under replace-one; enforced here
    for any input whatever. In no norm is the sum bounded, so additive noise does not make it
    private; draws from the softmax of its scores do (`maurey_sample`, `domain.sample`). Idealised
    in one respect: ranges and sums are computed in floating point, at least float32.

    | input | contribution |
    | --- | --- |
    | `mask` False, or a batch of none | exactly 0 |
    | NaN or inf anywhere in an example, or a range beyond the float range | exactly 0 |
    | a range so large that `C / range` is below 1.2e-38, the normal float32 range | exactly 0 |
    | range 0 | as it is |
    | scores beyond `1024 C`, of any range | scaled to `1024 C`, or rounding would hide others |
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
      [6.0, 5.0]
      >>> clip.sensitivity("replace_one")
      2.0

    Source: the range of a score, in place of its modulus, as the sensitivity of the exponential
    mechanism: McSherry and Talwar, "Mechanism design via differential privacy", 2007.
    """
    check_scalar("bound", bound)
    check_nonnegative("bound", bound)

    def init(params: PyTree) -> optax.EmptyState:
        del params
        return optax.EmptyState()

    def update(
        per_example: PyTree,
        state: optax.EmptyState,
        params: PyTree = None,
        *,
        mask: jax.Array | None = None,
        key: jax.Array | None = None,
        **extra: Any,
    ) -> tuple[PyTree, optax.EmptyState]:
        del params, key, extra
        leaves, treedef = jax.tree.flatten(per_example, is_leaf=is_outer)
        if len(leaves) != 1:
            raise ValueError(f"per_example must hold 1 leaf, one domain's, got {len(leaves)}")
        return jax.tree.unflatten(treedef, [_clipped_sum(leaves[0], mask, bound, domain)]), state

    def sensitivity(relation: Any) -> float:
        factor = 2 if resolve_relation(relation).name == "REPLACE_ONE" else 1
        largest: Any = factor * bound
        return largest if is_traced(bound) else float(largest)

    return Aggregator(init, update, sensitivity)


def _clipped_sum(leaf: Any, mask: Any, bound: ArrayLike, domain: Domain) -> jax.Array:
    rows = leaf.left if is_outer(leaf) else leaf
    rows = rows if isinstance(rows, PackedSigns) else jnp.asarray(rows)
    check_shape("per_example", rows, (None, domain.dim))
    spread, reach = _spread_and_reach(rows, domain)
    if not is_outer(leaf):
        return weighted_sum(rows, _scale(spread, reach, mask, bound))
    check_shape("right", leaf.right, (rows.shape[0], 1))
    factor = wide(leaf.right)[:, 0]
    scale = _scale(spread * abs(factor), reach * abs(factor), mask, bound)
    weights = jnp.where(scale > 0, factor * scale.astype(factor.dtype), 0)
    return weighted_sum(rows, normal_or_zero(weights))


def _scale(spread: jax.Array, reach: jax.Array, mask: Any, bound: ArrayLike) -> jax.Array:
    """The factors `[B]` by which clipping multiplies each example; 0 for those left out."""
    tiny = jnp.finfo(spread.dtype).tiny
    bound = clipping_bound(bound, spread.dtype)  # a traced one may be negative
    allowed = bound / jnp.maximum(jnp.maximum(spread, reach / _SHIFT), tiny)
    scale = normal_or_zero(jnp.minimum(1, allowed))
    mask = check_mask(mask, spread.shape[0])
    return jnp.where(mask & jnp.isfinite(spread) & jnp.isfinite(reach), scale, 0)


def _spread_and_reach(rows: Any, domain: Domain) -> tuple[jax.Array, jax.Array]:
    """Of each row its range over the vertices and a bound on the moduli of its scores, `[B]`."""
    # vertices alike in all coordinates: the extreme ones have the range of all
    symmetric = isinstance(domain, Simplex | L1Ball) and domain.dim > 1
    if isinstance(rows, PackedSigns):
        both = jnp.tile(jnp.array([[-1, 1]], jnp.int8), (rows.shape[0], 1))
        rows = both if symmetric else rows.unpack()
    if jnp.issubdtype(rows.dtype, jnp.inexact):
        rows = wide(rows)
    low, high = (wide(a) for a in _extremes(rows))
    if symmetric:
        domain = dataclasses.replace(domain, dim=2)  # type: ignore[type-var]
        rows = jnp.stack([low, high], axis=1)
    modulus = jnp.maximum(high, -low)
    radius = jnp.asarray(_radius(domain), modulus.dtype)
    # what is lost below the normal range must not grow with the other factor of a product
    lost = radius * jnp.finfo(modulus.dtype).tiny
    return domain.spread(wide(rows)) + 2 * lost, radius * modulus + lost


def _radius(domain: Domain) -> Any:
    """An upper bound on the l1 norm of the vertices, for vertices that may be traced."""
    if isinstance(domain, Polytope):
        return jnp.max(jnp.sum(jnp.abs(wide(domain.vertices)), axis=1))
    return 1.0 if isinstance(domain, Simplex) else domain.radius_l1


@jax.custom_jvp
def _extremes(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Smallest and largest entry of each row, in one pass and the type of the rows."""
    floating = jnp.issubdtype(rows.dtype, jnp.inexact)
    lowest, highest = (-jnp.inf, jnp.inf) if floating else _limits(rows.dtype)
    start = (jnp.asarray(highest, rows.dtype), jnp.asarray(lowest, rows.dtype))

    def wider(a: Any, b: Any) -> Any:
        return jax.lax.min(a[0], b[0]), jax.lax.max(a[1], b[1])

    low, high = jax.lax.reduce((rows, rows), start, wider, (1,))
    return low, high


@_extremes.defjvp
def _(primals: Any, tangents: Any) -> Any:
    return jax.jvp(lambda rows: (jnp.min(rows, axis=1), jnp.max(rows, axis=1)), primals, tangents)


def _limits(dtype: Any) -> tuple[Any, Any]:
    if dtype == jnp.bool_:
        return False, True
    return jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
