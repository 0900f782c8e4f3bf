"""Aggregation in microbatches, so that per-example values of a whole batch never coexist."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.core import Aggregator, PyTree, check_int
from dpjax.core._pairs import Pair, add_pairs, pair_of
from dpjax.core._records import filled, shares_of_rows, whole_rows

_MOST_EXAMPLES = 2**16
_MOST_BYTES = 2**28
_CACHED_BYTES = 2**24  # on CPU, 1.4 to 2 times faster than 2^28
_FEW = 64
_MOST_IN_FLOAT32 = 2**24
_EQUAL = 1024


def fold_in_parts(
    of: Callable[[PyTree, jax.Array, jax.Array], PyTree],
    batch: PyTree,
    mask: jax.Array,
    size: int,
    add: Callable[[Any, PyTree], Any],
    *,
    strided: bool = False,
) -> Any:
    """Folds `of(part, part_mask, number)` over parts of at most `size` examples.

    Nothing is copied: parts are consecutive, the last one reaching back over examples of the one
    before it, masked; or, where it comes out even, a part takes every so-manieth example, so that
    each device that holds a share of them has its share of each part.

    Args:
      of: Gives a tree of arrays.
      batch: Tree with leaves `[B, ...]`.
      mask: bool `[B]`.
      size: Examples a part, `< B`.
      add: `add(carry, tree) -> carry`; the first carry is zeros like the tree.
      strided: Whether parts are of every so-manieth example, if so many divide their number.

    Returns:
      The last carry.
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
        begin = jnp.minimum(number * size, num - size)

        def cut(leaf: jax.Array) -> jax.Array:
            return jax.lax.dynamic_slice_in_dim(leaf, begin, size)

        new = begin + jnp.arange(size, dtype=jnp.int32) >= number * size
        return of(jax.tree.map(cut, batch), cut(mask) & new, number)

    part = column_of if strided and num % parts == 0 else slice_of
    shapes = jax.eval_shape(part, jnp.zeros((), jnp.int32))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)

    def body(carry: PyTree, number: jax.Array) -> tuple[Any, None]:
        return add(carry, part(number)), None

    return jax.lax.scan(body, zeros, jnp.arange(parts, dtype=jnp.int32))[0]


def in_whole_parts(
    of: Callable[[PyTree, jax.Array, jax.Array | None], PyTree],
    batch: PyTree,
    mask: jax.Array,
    size: int,
    add: Callable[[Any, PyTree], Any],
    *,
    consecutive: bool = False,
) -> Any:
    """`fold_in_parts` over parts of whole blocks of rows, so that a record's row changes no bits.

    Args:
      of: Gives a tree of arrays; its number is None where there is one part.
      batch: Leaves `[B, ...]`; the last row is repeated, masked, to fill a block.
      mask: bool `[B]`.
      size: Examples a part, rounded down to whole blocks.
      add: `add(carry, tree) -> carry`; the first carry is zeros like the tree.
      consecutive: Whether parts are consecutive on many devices too.

    Returns:
      The last carry; of one part, what `of` gives.
    """
    shares, given = shares_of_rows(), mask.shape[0]
    strided, num = shares > 1 and not consecutive, whole_rows(given, shares) if given else 0
    if strided and num > size:
        least = -(-num // size)
        # none is added, and so none exchanged, where somewhat smaller parts come out even
        even = (k for k in range(least, 2 * least) if num % k == 0 and _is_whole(num // k, shares))
        parts = next(even, least)
        size = whole_rows(-(-num // parts), shares)
        num = parts * size
    elif num > size:  # consecutive parts reach back over others
        size, num = _whole(size, shares), given if shares == 1 else num
    if num > given:
        batch, mask = filled(batch, num), jnp.pad(mask, (0, num - given))
    if num <= size:
        return of(batch, mask, None)
    return fold_in_parts(of, batch, mask, size, add, strided=strided)


def in_equal_parts(
    of: Callable[[PyTree, jax.Array], PyTree], batch: PyTree, mask: jax.Array
) -> PyTree:
    """`of(part, part_mask)` for each record, by one program of 1024 rows whatever their number.

    By the shape of a batch XLA chooses the order in which a row's products are added, and with it
    last bits: counts of what follows from a record could else change for all of them with one more.

    Args:
      of: Gives a tree of arrays with leading axis `[1024]`, a row for each record.
      batch: Tree with leaves `[B, ...]` (*secret*).
      mask: bool `[B]` (*secret*).

    Returns:
      The tree, leaves `[B, ...]`.
    """
    num = mask.shape[0]
    if num == 0:
        return of(batch, mask)
    parts = max(2, -(-num // _EQUAL))  # XLA writes out a loop of one
    whole = filled(batch, parts * _EQUAL), jnp.pad(mask, (0, parts * _EQUAL - num))
    cut = jax.tree.map(lambda leaf: leaf.reshape(parts, _EQUAL, *leaf.shape[1:]), whole)
    found = jax.lax.map(lambda part: of(*part), cut)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:num], found)


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

    Equal to one `aggregator.update` on the whole batch up to rounding; the sum over microbatches is
    carried in twice the precision, since one example would otherwise move the rounding of all the
    others. For aggregators without state.

    Guarantee: the sensitivity of `aggregator`; every example meets it once.

    Args:
      per_example: Takes a slice of `batch` with leading axis `[size]`, gives per-example values
        with leaves `[size, *p]`.
      aggregator: Reduces them to leaves `[*p]`.
      batch: Tree with leaves `[B, ...]` (*secret*).
      mask: bool `[B]` (*secret*).
      size: Examples a microbatch, `>= 1`, on one device rounded down to a multiple of 32, or a
        power of two below that; None for as many as have 256 MiB of per-example values, on CPU 16
        MiB or 64 examples, and at most 65,536.
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

    num = mask.shape[0]
    if size is None:
        # for its shapes a loss is traced once more, which few examples are not worth
        size = _fitting(per_example, batch, num) if num > _FEW else _FEW
    check_int("size", size, minimum=1)

    def of(part: PyTree, part_mask: jax.Array, position: jax.Array | None) -> PyTree:
        part_key = key if key is None or position is None else jax.random.fold_in(key, position)
        values = per_example(part)
        total, _ = aggregator.update(values, aggregator.init(None), mask=part_mask, key=part_key)
        return jax.tree.map(pair_of, total)

    def add(carry: PyTree, term: PyTree) -> PyTree:
        return jax.tree.map(add_pairs, carry, term, is_leaf=_is_pair)

    pairs = in_whole_parts(of, batch, mask, size, add, consecutive=consecutive)
    total = jax.tree.map(lambda pair: pair.high, pairs, is_leaf=_is_pair)
    for leaf in jax.tree.leaves(total):
        if num >= _MOST_IN_FLOAT32 and leaf.dtype == jnp.float32:
            raise ValueError(
                f"a batch must have < {_MOST_IN_FLOAT32} examples to be summed in float32, which "
                f"rounds larger sums by as much as one example adds, got {num}: enable "
                "jax_enable_x64 and hold parameters and data in float64"
            )
    return total


def _is_pair(node: object) -> bool:
    return isinstance(node, Pair)


def _fitting(per_example: Callable[[PyTree], PyTree], batch: PyTree, num: int) -> int:
    """Examples whose values stay within the bound on memory, at least one."""
    leaves = jax.tree.leaves(jax.eval_shape(per_example, batch))
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // max(1, num)
    most = max(1, _MOST_BYTES // max(1, each))
    if jax.default_backend() == "cpu":
        most = min(most, max(_FEW, _CACHED_BYTES // max(1, each)))
    return _whole(min(_MOST_EXAMPLES, most))


def _is_whole(rows: int, shares: int) -> bool:
    return whole_rows(rows, shares) == rows


def _whole(most: int, shares: int = 1) -> int:
    """The largest size up to this one, but at least a row a share, that `whole_rows` leaves."""
    rows = max(1, most // shares)
    return shares * (rows // 32 * 32 if rows >= 32 else 1 << rows.bit_length() - 1)
