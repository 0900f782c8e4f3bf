"""How long gradients are: private sums of the logarithms of their lengths."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import Aggregator, PyTree
from dpjax.transforms.clipping import _by_norm as clipping

_LARGEST = math.log(1e4)  # the logarithm of a length is cut to this range
_NARROW = 2.5  # the same around an earlier measure
_PRIOR = math.log(4.0)  # deviation of the logarithm of a length of which nothing is known
_LEAST = 0.25  # of the records expected


def clip_or_measure(max_norm: ArrayLike, measuring: ArrayLike, near: ArrayLike = 0.0) -> Aggregator:
    r"""Sums examples clipped to norm `max_norm`, or the logarithms of their lengths.

    An example adds its clipped value and $(0, 0)$, or where `measuring` 0 and
    $(\log\|g\| / \log 10^4, 1) / \sqrt2$, the first number cut to [-1, 1]. With `near` it is
    $\log(\|g\| / \mathrm{near}) / 2.5$ that is cut.

    Guarantee: l2 sensitivity, under add-or-remove-one, of all that is returned: `max_norm`, or
    where `measuring` 1; enforced here for any input, as by `clip_by_norm`.

    Args:
      max_norm: `C >= 0`, scalar (*public*); may be traced.
      measuring: Whether lengths are summed, `[]` bool (*public*); may be traced.
      near: An earlier measure of lengths, positive scalar (*public*), or 0 for none; may be traced.

    Returns:
      An `Aggregator` of leaves `[B, *p]` (*secret*), whose sum is the tree of the clipped sums,
      leaves `[*p]`, and a `[2]` array.

    Raises:
      ValueError: If `max_norm` is negative or not finite.
      TypeError: If `max_norm` is not a number.
    """
    values = clipping.clip_by_norm(jnp.where(measuring, 0, max_norm))
    lengths = clipping.clip_by_norm(jnp.where(measuring, 1, 0))

    def total(per_example: PyTree, mask: jax.Array | None) -> PyTree:
        norms = clipping.per_example_norm(per_example)
        log = jnp.log(jnp.maximum(norms, jnp.finfo(norms.dtype).tiny))
        known = jnp.asarray(near, log.dtype) > 0
        origin = jnp.log(jnp.where(known, jnp.asarray(near, log.dtype), 1))
        cut = (log - origin) / jnp.where(known, _NARROW, _LARGEST)
        kept = jnp.stack([jnp.clip(cut, -1, 1), jnp.ones_like(cut)], axis=1) / math.sqrt(2)
        kept = jnp.where(jnp.isfinite(norms)[:, None], kept, 0)
        both = (values, per_example), (lengths, kept)
        return tuple(part.update(rows, part.init(None), mask=mask)[0] for part, rows in both)

    return clipping.aggregator_of(total, clipping.sensitivity_of(jnp.where(measuring, 1, max_norm)))


def typical_length(
    total: jax.Array, records: ArrayLike, stddev: ArrayLike, expected: ArrayLike = 1.0
) -> jax.Array:
    r"""The geometric mean of lengths, from noisy sums of `clip_or_measure`; post-processing.

    The mean of the logarithms is drawn towards that of `expected` as a normal prior with a
    deviation of $\log 4$ would do it, so that a sum that is nothing but noise gives about that. A
    second row is of what was measured near the length of the first, and is drawn towards it by what
    that left unknown.

    Args:
      total: Sum of all that was measured, `[2]`, or `[2, 2]`.
      records: How many were expected in all, scalar, or `[2]`, of each row (*public*); 0 where a
        row measured nothing.
      stddev: Deviation of the noise in `total`, scalar, or `[2]`, of each row (*public*).
      expected: Length where noise hides it, scalar (*public*).

    Returns:
      A positive scalar; of one row between 1e-4 and 1e4.
    """
    prior = jnp.log(jnp.asarray(expected, total.dtype)), jnp.asarray(_PRIOR, total.dtype)
    records, stddev = jnp.asarray(records), jnp.asarray(stddev)
    if total.ndim == 1:
        return jnp.exp(_measured(prior, 0, total, records, stddev, _LARGEST)[0])
    prior = _measured(prior, 0, total[0], records[0], stddev[0], _LARGEST)
    return jnp.exp(_measured(prior, prior[0], total[1], records[1], stddev[1], _NARROW)[0])


def _measured(
    prior: tuple[jax.Array, jax.Array],
    origin: ArrayLike,
    total: jax.Array,
    records: ArrayLike,
    stddev: ArrayLike,
    reach: float,
) -> tuple[jax.Array, jax.Array]:
    """Mean and deviation of a logarithm that has this prior, after a noisy sum, if of anything."""
    centre, before = prior
    number = jnp.maximum(total[1], _LEAST * jnp.asarray(records, total.dtype) / math.sqrt(2))
    known = number > 0
    number = jnp.where(known, number, 1)
    mean = origin + reach * jnp.clip(total[0] / number, -1, 1)
    deviation = reach * jnp.asarray(stddev, total.dtype) / number
    both = before**2 + deviation**2  # 0 without noise, after another measure
    share = jnp.where(both > 0, before**2 / jnp.where(both > 0, both, 1), 1)
    after = centre + (mean - centre) * share, deviation * jnp.sqrt(share)
    return jnp.where(known, after[0], centre), jnp.where(known, after[1], before)
