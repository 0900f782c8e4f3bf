"""The typical length of gradients, from clipped sums of logarithms."""

import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import Aggregator, PyTree
from dpjax.transforms.clipping._by_norm import (
    aggregator_of,
    clip_by_norm,
    per_example_norm,
    sensitivity_of,
)

_LARGEST = math.log(1e4)  # the logarithm of a length is cut to this range
_PRIOR = math.log(4.0)  # deviation of the logarithm of a length of which nothing is known
_LEAST = 0.25  # of the records expected


def clip_or_measure(max_norm: ArrayLike, measuring: ArrayLike) -> Aggregator:
    r"""Sums examples clipped to norm `max_norm`, or the logarithms of their lengths.

    An example adds its clipped value and $(0, 0)$, or where `measuring` 0 and
    $(\log\|g\| / \log 10^4, 1) / \sqrt2$, the first number cut to [-1, 1].

    Guarantee: l2 sensitivity, under add-or-remove-one, of all that is returned: `max_norm`, or
    where `measuring` 1; enforced here for any input, as by `clip_by_norm`.

    Args:
      max_norm: `C >= 0`, scalar (*public*); may be traced.
      measuring: Whether lengths are summed, `[]` bool (*public*); may be traced.

    Returns:
      An `Aggregator` of leaves `[B, *p]` (*secret*), whose sum is the tree of the clipped sums,
      leaves `[*p]`, and a `[2]` array.

    Raises:
      ValueError: If `max_norm` is negative or not finite.
      TypeError: If `max_norm` is not a number.
    """
    values = clip_by_norm(jnp.where(measuring, 0, max_norm))
    lengths = clip_by_norm(jnp.where(measuring, 1, 0))

    def total(per_example: PyTree, mask: jax.Array | None) -> PyTree:
        norms = per_example_norm(per_example)
        log = jnp.log(jnp.maximum(norms, jnp.finfo(norms.dtype).tiny)) / _LARGEST
        kept = jnp.stack([jnp.clip(log, -1, 1), jnp.ones_like(log)], axis=1) / math.sqrt(2)
        kept = jnp.where(jnp.isfinite(norms)[:, None], kept, 0)
        return (
            values.update(per_example, values.init(None), mask=mask)[0],
            lengths.update(kept, lengths.init(None), mask=mask)[0],
        )

    return aggregator_of(total, sensitivity_of(jnp.where(measuring, 1, max_norm)))


def typical_length(total: jax.Array, records: ArrayLike, stddev: ArrayLike) -> jax.Array:
    r"""The geometric mean of lengths, from noisy sums of `clip_or_measure`; post-processing.

    The mean of the logarithms is drawn towards 0 as a normal prior with a deviation of $\log 4$
    would do it, so that a sum that is nothing but noise gives a length of about 1.

    Args:
      total: Sum of all that was measured, `[2]`.
      records: How many were expected in all, scalar (*public*).
      stddev: Deviation of the noise in `total`, scalar (*public*).

    Returns:
      A positive scalar, between 1e-4 and 1e4.
    """
    number = jnp.maximum(total[1], _LEAST * jnp.asarray(records, total.dtype) / math.sqrt(2))
    mean = _LARGEST * jnp.clip(total[0] / number, -1, 1)
    deviation = _LARGEST * jnp.asarray(stddev, total.dtype) / number
    return jnp.exp(mean * _PRIOR**2 / (_PRIOR**2 + deviation**2))
