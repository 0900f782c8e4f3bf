"""Clipped per-record changes of the gradient between two points."""

import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import Aggregator, PyTree
from dpjax.privacy import RelationLike
from dpjax.transforms import clip_by_norm, per_example_norm
from dpjax.transforms.clipping._by_norm import aggregator_of, factors_within
from dpjax.transforms.clipping._leaves import combination, is_outer
from dpjax.transforms.clipping._weighted_sum import bounded_sum, clipping_bound

CLIPS = ("centred", "plain", "whole")


class Gradients(NamedTuple):
    """Gradients of the records of a batch, at the point before and now: trees `[B, *p]`."""

    before: PyTree
    now: PyTree


class IncrementBound(NamedTuple):
    """What one record may add to the estimate; scalars, which may be traced.

    Attributes:
      old_weight: Weight of its gradient at the point before.
      weight: Weight of the change of its gradient.
      clip_norm: Bound on the gradient, or, with `"whole"`, on all it adds.
      radius: Bound on the change less the centre.
    """

    old_weight: jax.Array
    weight: jax.Array
    clip_norm: jax.Array
    radius: jax.Array

    def sensitivity(self, clip: str) -> jax.Array:
        """The most one record adds in norm, against the null record, which adds the centre."""
        if clip == "whole":
            return jnp.asarray(self.clip_norm)
        # where a traced bound is negative, nothing is added and nothing may be taken off the other
        clip_norm, radius = jnp.maximum(self.clip_norm, 0), jnp.maximum(self.radius, 0)
        return jnp.asarray(self.old_weight * clip_norm + self.weight * radius)


def clipped_increments(bound: IncrementBound, clip: str, norm: str, centre: PyTree) -> Aggregator:
    r"""The sum over records of what each adds to the estimate beyond the centre.

    $$ \sum_b a\,\mathrm{clip}_G(g_b) + \theta\,\mathrm{clip}_r(g'_b - g_b - o) $$

    with `"whole"` $\sum_b \mathrm{clip}_G(a\, g_b + \theta (g'_b - g_b))$.

    Guarantee: one record changes the sum by at most `bound.sensitivity(clip)` in `norm` under
    add-or-remove-one, for any gradients whatever; records with NaN or inf add nothing.

    Args:
      bound: The weights $a, \theta$ and the bounds G, r.
      clip: One of `CLIPS`; o is 0 unless `"centred"`, which takes the norm l2.
      norm: `"l2"` or `"linf"`.
      centre: The tree o, like the parameters.

    Returns:
      An aggregator of `Gradients`.
    """

    def total(per_example: Gradients, mask: jax.Array | None) -> PyTree:
        before, now = per_example
        if clip == "whole":
            both = combination(bound.old_weight - bound.weight, before, bound.weight, now)
            whole, _ = clip_by_norm(bound.clip_norm, norm).update(both, None, mask=mask)
            return _shaped(whole, centre)
        old, _ = clip_by_norm(bound.clip_norm, norm).update(before, None, mask=mask)
        change = combination(-1.0, before, 1.0, now)
        if clip == "centred":
            new = _clip_around(centre, change, mask, bound.radius)
        else:
            new, _ = clip_by_norm(bound.radius, norm).update(change, None, mask=mask)
        return jax.tree.map(
            lambda a, b: bound.old_weight * a + bound.weight * b,
            _shaped(old, centre),
            _shaped(new, centre),
        )

    def sensitivity(relation: RelationLike) -> Any:
        return bound.sensitivity(clip)

    return aggregator_of(total, sensitivity)


def clipped_share(
    bound: IncrementBound, clip: str, norm: str, centre: PyTree, per_example: Gradients
) -> dict[str, jax.Array]:
    """Which records `[B]` clipping changes, of each bound. **Not private**."""
    before, now = per_example
    if clip == "whole":
        both = combination(bound.old_weight - bound.weight, before, bound.weight, now)
        return {"clipped": per_example_norm(both, norm) > bound.clip_norm}
    change = combination(-1.0, before, 1.0, now)
    size = _distance(centre, change) if clip == "centred" else per_example_norm(change, norm)
    # the rounding of a change within its bound is no clipping
    return {
        "clipped": per_example_norm(before, norm) > bound.clip_norm,
        "clipped_changes": size > bound.radius * (1 + 1e-3),
    }


def _clip_around(
    centre: PyTree, change: PyTree, mask: jax.Array | None, radius: ArrayLike
) -> PyTree:
    """Sum over records of the change less the centre, clipped to the radius in l2."""
    norms = _distance(centre, change)
    scale, bound = factors_within(norms, norms, mask, radius), clipping_bound(radius, norms.dtype)

    def total(leaf: PyTree, offset: jax.Array) -> jax.Array:
        if is_outer(leaf):
            around = offset.reshape(leaf.left.shape[1], leaf.right.shape[1])
        else:
            around, leaf = offset, leaf.reshape(leaf.shape[0], *offset.shape)
        return bounded_sum(leaf, scale, bound, around).high.reshape(offset.shape)

    return jax.tree.map(total, change, centre, is_leaf=is_outer)


def _distance(centre: PyTree, change: PyTree) -> jax.Array:
    """l2 norms `[B]` of the change less the centre, rounded up."""
    squares = jax.tree.map(_squared_distance, change, centre, is_leaf=is_outer)
    return jnp.sqrt(functools.reduce(operator.add, jax.tree.leaves(squares)))


def _squared_distance(leaf: PyTree, offset: jax.Array) -> jax.Array:
    if not is_outer(leaf):
        leaf = leaf.reshape(leaf.shape[0], *offset.shape)
        # in the offset's dtype, at least float32, as the sum has it
        return jnp.square(per_example_norm(leaf - offset[None]))
    left, right = (jnp.asarray(a) for a in leaf)
    flat = offset.reshape(left.shape[1], right.shape[1])
    cross = jnp.matmul(left.astype(flat.dtype), flat, precision="highest")
    size = jnp.square(per_example_norm(leaf)) + jnp.sum(jnp.square(offset))
    # the difference of large numbers: what rounding may have lost is added
    lost = 8 * jnp.finfo(size.dtype).eps * size
    return jnp.maximum(size - 2 * jnp.sum(cross * right, axis=1), 0) + lost


def _shaped(total: PyTree, like: PyTree) -> PyTree:
    """A sum of factored gradients may have a trailing axis of one that the parameters have not."""
    return jax.tree.map(lambda t, o: t.reshape(o.shape), total, like)
