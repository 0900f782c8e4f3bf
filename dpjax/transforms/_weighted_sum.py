"""Weighted sums over the examples of a batch, which aggregators share."""

from typing import Any

import jax
import jax.numpy as jnp

from dpjax.core import many_devices, wide
from dpjax.transforms._microbatch import sum_in_parts
from dpjax.transforms._outer import is_outer
from dpjax.transforms._signs import PackedSigns

# up to here a vector-matrix product for each column beats one transposed matrix product on CPU,
# which copies its inputs: 14 against 37 microseconds for 512 x 98 inputs and 2 columns
_FEW_COLUMNS = 4
# from here on adding row to row beats a product on CPU, which would first write the rows out once
# more, widened and without NaN: 4 against 57 milliseconds for 32 x 10^6
_LONG_ROW = 2**14
# so many rows are added in one pass over the sum
_UNROLL = 32
# from here on CPU takes the rows of an outer product in parts, whose copies without NaN stay in
# the cache: a step on 704 x 5000 then takes 0.7 of the time, but one on 704 x 98 takes 1.1
_WIDE_ROW = 2**9
_PART = 32
# by default accelerators multiply float32 with 10 bits, and the sum could exceed its bound
_EXACT = jax.lax.Precision.HIGHEST


def weighted_sum(leaf: Any, scale: jax.Array) -> jax.Array:
    """Sum over examples of `scale[b] * leaf[b]`, in at least float32.

    A scale of 0 drops even NaN and inf.

    Args:
      leaf: `[B, *p]` of any real type, `PackedSigns` or an `OuterProduct`.
      scale: `[B]`, floating or bool.

    Returns:
      `[*p]`.

    Example:
      >>> import jax.numpy as jnp
      >>> weighted_sum(jnp.array([[1.0, 2.0], [jnp.inf, 1.0]]), jnp.array([2.0, 0.0])).tolist()
      [2.0, 4.0]
    """
    if isinstance(leaf, PackedSigns):
        return leaf.weighted_sum(scale)
    if is_outer(leaf):
        right = jnp.where((scale > 0)[:, None], wide(leaf.right), 0)
        weights = normal_or_zero(right * scale[:, None].astype(right.dtype))
        return _outer_sum(jnp.asarray(leaf.left), weights)
    leaf = jnp.asarray(leaf)
    scale = scale.astype(wide(leaf).dtype)
    if leaf.ndim == 2:
        return sum_rows(leaf, scale)
    return jnp.tensordot(scale, _kept(leaf, scale), axes=1, precision=_EXACT)


def normal_or_zero(weights: jax.Array) -> jax.Array:
    """The weights, with 0 for those below the normal range of their type.

    Those have few digits left or none, depending on the device, and times a huge example could
    come to more than its bound.
    """
    return jnp.where(jnp.abs(weights) >= jnp.finfo(weights.dtype).tiny, weights, 0)


def clipping_bound(bound: Any, dtype: Any) -> jax.Array:
    """A bound on one example, at least 0 and so small that the sum of 2^28 is finite in float32.

    Norms may be wider than a leaf that is summed.
    """
    return jnp.clip(jnp.asarray(bound, dtype), 0, float(jnp.finfo(jnp.float32).max) * 2.0**-28)


def _outer_sum(left: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum of `left[b] weights[b]^T`, `[p, K]`; examples with all weights 0 are dropped."""
    width, few = left.shape[1], weights.shape[1] <= _FEW_COLUMNS and not many_devices()
    if few and width >= _LONG_ROW:
        return jnp.stack([sum_rows(left, column) for column in weights.T], axis=1)
    if few and width >= _WIDE_ROW and left.shape[0] > _PART:
        return jax.lax.platform_dependent(left, weights, cpu=_part_by_part, default=_outer_product)
    return _outer_product(left, weights)


def _outer_product(left: jax.Array, weights: jax.Array) -> jax.Array:
    left = _kept(left, jnp.any(weights != 0, axis=1))
    if weights.shape[1] > _FEW_COLUMNS:
        return jnp.einsum("bp,bk->pk", left, weights, precision=_EXACT)
    columns = [jnp.matmul(column, left, precision=_EXACT) for column in weights.T]
    return jnp.stack(columns, axis=1)


def _part_by_part(left: jax.Array, weights: jax.Array) -> jax.Array:
    def of(part: Any, new: jax.Array, number: jax.Array) -> jax.Array:
        del number
        return _outer_product(part[0], jnp.where(new[:, None], part[1], 0))

    everyone = jnp.ones(left.shape[0], bool)
    return sum_in_parts(of, (left, weights), everyone, _PART, compensated=False, strided=False)


def sum_rows(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum of `weights[b] * rows[b]` over `rows` `[B, p]`; a zero weight drops even NaN and inf."""
    if rows.shape[1] < _LONG_ROW or many_devices():
        return _product(rows, weights)
    return jax.lax.platform_dependent(rows, weights, cpu=_row_by_row, default=_product)


def _product(rows: jax.Array, weights: jax.Array) -> jax.Array:
    return jnp.matmul(weights, _kept(rows, weights), precision=_EXACT)


def _row_by_row(rows: jax.Array, weights: jax.Array) -> jax.Array:
    def add(total: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        row, weight = at
        return total + weight * _kept(row[None], weight[None])[0], None

    zero = jnp.zeros(rows.shape[1], jnp.result_type(weights, wide(rows[:0])))
    unroll = rows.shape[0] if 0 < rows.shape[0] <= _UNROLL else 1
    return jax.lax.scan(add, zero, (rows, weights), unroll=unroll)[0]


def _kept(leaf: jax.Array, weights: jax.Array) -> jax.Array:
    """The examples, widened, with 0 for those of weight 0; integers are finite as they are."""
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        return wide(leaf)
    used = (weights != 0).reshape((-1,) + (1,) * (leaf.ndim - 1))
    return jnp.where(used, wide(leaf), 0)
