"""Aggregation in microbatches, so that per-example values of a whole batch never coexist."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.core import Aggregator, PyTree, check_int


def microbatched_sum(
    per_example: Callable[[PyTree], PyTree],
    aggregator: Aggregator,
    batch: PyTree,
    mask: jax.Array,
    *,
    size: int | None,
    key: jax.Array | None = None,
) -> PyTree:
    """Sum of `aggregator` over a batch, `size` examples in memory at a time.

    Equal to one `aggregator.update` on the whole batch up to the order of summation. Microbatch j
    of k holds examples j, j + k, j + 2k, ...; the last ones are padded and masked where k does not
    divide their number. For aggregators without state.

    Guarantee: the sensitivity of `aggregator`; every example meets it once.

    Args:
      per_example: Takes a slice of `batch` with leading axis `[size]`, gives per-example values
        with leaves `[size, *p]`.
      aggregator: Reduces them to leaves `[*p]`.
      batch: Tree with leaves `[B, ...]` (*secret*).
      mask: bool `[B]` (*secret*).
      size: Examples a microbatch, `>= 1`; None for all at once.
      key: Passed on to the aggregator, folded with the position of the microbatch.

    Returns:
      The sum, leaves `[*p]`.

    Raises:
      ValueError: If `size < 1`.

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
    if size is None or size >= num > 0:
        return reduce(batch, mask, key)
    parts = number_of_parts(num, size)
    length = -(-num // parts)

    def split(a: jax.Array) -> jax.Array:
        if missing := parts * length - num:
            a = jnp.concatenate([a, jnp.zeros((missing, *a.shape[1:]), a.dtype)])
        return a.reshape(length, parts, *a.shape[1:])

    columns, masks = jax.tree.map(split, batch), split(mask)

    def reduce_part(position: jax.Array) -> PyTree:
        part, part_mask = jax.tree.map(lambda a: a[:, position], (columns, masks))
        part_key = None if key is None else jax.random.fold_in(key, position)
        return reduce(part, part_mask, part_key)

    def body(total: PyTree, position: jax.Array) -> tuple[PyTree, None]:
        return jax.tree.map(jnp.add, total, reduce_part(position)), None

    shapes = jax.eval_shape(reduce_part, jnp.zeros((), jnp.int32))
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    total, _ = jax.lax.scan(body, zero, jnp.arange(parts, dtype=jnp.int32))
    return total


def number_of_parts(num: int, size: int) -> int:
    """The least number of parts of at most `size`, or up to twice that where it divides `num`.

    A part takes every so-manieth example, so that each device that holds a share of them has its
    share of each part; padding would move examples between devices.
    """
    least = max(1, -(-num // size))
    return next((parts for parts in range(least, 2 * least) if num % parts == 0), least)
