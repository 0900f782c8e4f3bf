"""Aggregation in microbatches, so that per-example values of a whole batch never coexist."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.core import Aggregator, PyTree, check_int, many_devices

# the rounding of a float32 sum of so many is moved by one of them by less than a hundredth of it
MOST_AT_ONCE = 2**16
_MOST_IN_FLOAT32 = 2**24


def microbatched_sum(
    per_example: Callable[[PyTree], PyTree],
    aggregator: Aggregator,
    batch: PyTree,
    mask: jax.Array,
    *,
    size: int | None,
    key: jax.Array | None = None,
    consecutive: bool = False,
) -> PyTree:
    """Sum of `aggregator` over a batch, `size` examples in memory at a time.

    Equal to one `aggregator.update` on the whole batch up to the order of summation; of more than
    65,536 examples the sum over microbatches is compensated, since in float32 one example would
    otherwise move the rounding of all the others. For aggregators without state.

    Guarantee: the sensitivity of `aggregator`; every example meets it once.

    Args:
      per_example: Takes a slice of `batch` with leading axis `[size]`, gives per-example values
        with leaves `[size, *p]`.
      aggregator: Reduces them to leaves `[*p]`.
      batch: Tree with leaves `[B, ...]` (*secret*).
      mask: bool `[B]` (*secret*).
      size: Examples a microbatch, `>= 1`; None for as many as there are, up to 65,536.
      key: Passed on to the aggregator, folded with the position of the microbatch.
      consecutive: Whether microbatches are of consecutive examples on many devices too, where it
        moves examples between them; for values that depend on how a batch is cut.

    Returns:
      The sum, leaves `[*p]`.

    Raises:
      ValueError: If `size < 1`, or there are 2^24 examples or more and their sum is float32.
      TypeError: If `size` is not an integer.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> x = jnp.arange(10.0).reshape(5, 2)
      >>> dpjax.transforms.microbatched_sum(
      ...     lambda b: 2 * b, dpjax.transforms.clip_by_norm(100.0), x, jnp.ones(5, bool), size=2)
      Array([40., 50.], dtype=float32)
    """

    def reduce(part: PyTree, part_mask: jax.Array, part_key: jax.Array | None) -> PyTree:
        values = per_example(part)
        total, _ = aggregator.update(values, aggregator.init(None), mask=part_mask, key=part_key)
        return total

    num = mask.shape[0]
    if size is not None:
        check_int("size", size, minimum=1)

    def of(part: PyTree, part_mask: jax.Array, position: jax.Array) -> PyTree:
        part_key = None if key is None else jax.random.fold_in(key, position)
        return reduce(part, part_mask, part_key)

    size = MOST_AT_ONCE if size is None else size
    if num <= size:
        total = reduce(batch, mask, key)
        _check_number(num, total)
        return total
    strided = many_devices() and not consecutive
    return sum_in_parts(of, batch, mask, size, compensated=num > MOST_AT_ONCE, strided=strided)


def sum_in_parts(
    of: Callable[[PyTree, jax.Array, jax.Array], PyTree],
    batch: PyTree,
    mask: jax.Array,
    size: int,
    *,
    compensated: bool,
    strided: bool,
) -> PyTree:
    """Sum of `of(part, part_mask, number)` over parts of at most `size` examples.

    Nothing is copied: parts are consecutive, the last one reaching back over examples of the one
    before it, masked; or, where it comes out even, a part takes every so-manieth example, so that
    each device that holds a share of them has its share of each part.

    Args:
      of: Gives a tree of arrays.
      batch: Tree with leaves `[B, ...]`.
      mask: bool `[B]`.
      size: Examples a part, `< B`.
      compensated: Whether the sum over parts is, so that its rounding stays small against what one
        of many examples adds.
      strided: Whether parts are of every so-manieth example, if so many divide their number.

    Raises:
      ValueError: If there are 2^24 examples or more and their sum is float32.
    """
    num = mask.shape[0]
    least = max(1, -(-num // size))
    even = (parts for parts in range(least, 2 * least) if num % parts == 0)
    parts = next(even, least) if strided else least

    def column_of(number: jax.Array) -> PyTree:
        def column(leaf: jax.Array) -> jax.Array:
            return leaf.reshape(num // parts, parts, *leaf.shape[1:])[:, number]

        return of(jax.tree.map(column, batch), column(mask), number)

    def slice_of(number: jax.Array) -> PyTree:
        start = jnp.minimum(number * size, num - size)

        def cut(leaf: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(leaf, start, size)

        new = start + jnp.arange(size, dtype=jnp.int32) >= number * size
        return of(jax.tree.map(cut, batch), cut(mask) & new, number)

    part = column_of if strided and num % parts == 0 else slice_of
    shapes = jax.eval_shape(part, jnp.zeros((), jnp.int32))
    _check_number(num, shapes)
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def plain(total: PyTree, number: jax.Array) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, part(number)), None

    def careful(carry: tuple[PyTree, PyTree], number: jax.Array) -> tuple[Any, None]:
        pairs = jax.tree.map(add_compensated, *carry, part(number))
        return jax.tree.transpose(jax.tree.structure(zero), jax.tree.structure((0, 0)), pairs), None

    numbers = jnp.arange(parts, dtype=jnp.int32)
    if not compensated:
        return jax.lax.scan(plain, zero, numbers)[0]
    total, lost = jax.lax.scan(careful, (zero, zero), numbers)[0]
    return jax.tree.map(jnp.subtract, total, lost)


def _check_number(num: int, total: PyTree) -> None:
    """Raises if the sum itself is rounded by more than what one example adds."""
    for leaf in jax.tree.leaves(total):
        if num >= _MOST_IN_FLOAT32 and leaf.dtype == jnp.float32:
            raise ValueError(
                f"a batch must have < {_MOST_IN_FLOAT32} examples to be summed in float32, which "
                f"rounds larger sums by as much as one example adds, got {num}: enable "
                "jax_enable_x64 and hold parameters and data in float64"
            )


def add_compensated(
    total: jax.Array, lost: jax.Array, term: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """`total + term` and what rounding lost of it (Kahan 1965)."""
    corrected = term.astype(total.dtype) - lost
    after = total + corrected
    return after, (after - total) - corrected
