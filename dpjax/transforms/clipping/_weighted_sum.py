r"""Sums over the records of a batch that no record's rounding of the others enters.

Floating-point addition depends on order, and one more record may change the rounding of all others:
in float32 by more than the record itself, if there are many of them. Here each record's term is cut
to a multiple of a public power of two, towards zero, so that no term grows; the multiples are added
as integers, without error and in any order. Where that power is large, what was cut off is added in
floating point, with an error that is small against it. `rounding_allowance` is what that, the last
rounding of the sum and the rest of the arithmetic can add to a sensitivity.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import PyTree, Transform, many_devices, wide
from dpjax.core._apart import apart
from dpjax.core._pairs import Pair, add_pairs, pair_of
from dpjax.transforms.clipping._leaves import PackedSigns, is_outer
from dpjax.transforms.clipping._microbatch import fold_in_parts

# from here on CPU takes rows in parts that stay in the cache: 2 against 120 ms for 1000 x 20000
_LONG_ROW = 2**13
_PART = 8
# at least this many rows of at least this width are summed four rows at a time on CPUs, in half the
# time; shorter rows under vmap would take longer
_WIDE_ROW = _MANY_ROWS = 256
# coarser grids than this may lose small gradients: the bound is far above them
_FINE = 2.0**-16
# more columns of an outer product than these are taken in a loop
_MANY_COLUMNS = 16
# of norms of up to 2^40 numbers, scales, products and bounds, relative to the sensitivity
_ARITHMETIC = 2.0**-12


def rounding_allowance(rows: int, dtype: DTypeLike) -> float:
    r"""By what share of itself rounding may raise the sensitivity of a sum of clipped records.

    $$ 2^{-12} + 4 \epsilon B $$

    with $\epsilon$ the spacing of floats at 1. The sum of B records of norm at most C has norm at
    most BC and is exact but for its last roundings, each of at most $\epsilon / 2$ of it: three, of
    microbatches, of the whole and before the noise, for each of two neighbours; what is added in
    floating point adds less than one more. The constant is for norms, scales and products. Noise
    is scaled to the sensitivity with this added, so that the guarantee is that of the floats that
    are summed.

    Args:
      rows: B, rows of a batch, padding included (*public*).
      dtype: Of the sum.

    Returns:
      The share.

    Example:
      >>> round(rounding_allowance(1024, "float32"), 4)
      0.0007
    """
    return _ARITHMETIC + 4 * float(jnp.finfo(dtype).eps) * rows


def noised_sum(
    noise: Transform, total: PyTree, state: PyTree, *, rows: int, key: jax.Array
) -> tuple[PyTree, Any]:
    """A clipped sum of so many rows with noise that is larger by `rounding_allowance`.

    Args:
      noise: Adds noise for the sensitivity of the sum in real numbers, whatever it is added to.
      total: Leaves `[*p]`.
      state: Of the noise.
      rows: Of the batch, padding included (*public*).
      key: For the noise.

    Returns:
      The noisy sum and the noise's state.
    """
    larger = 1 + max(rounding_allowance(rows, leaf.dtype) for leaf in jax.tree.leaves(total))
    # noise of a smaller sum, and both larger again
    noisy, state = noise.update(jax.tree.map(lambda leaf: leaf / larger, total), state, key=key)
    return jax.tree.map(lambda leaf: leaf * larger, noisy), state


def weighted_sum(leaf: PyTree, scale: jax.Array, bound: ArrayLike | None = None) -> jax.Array:
    """Sum over examples of `scale[b] * leaf[b]`, in at least float32.

    A scale of 0 drops even NaN and inf.

    Args:
      leaf: `[B, *p]` of any real type, `PackedSigns` or an `OuterProduct`.
      scale: `[B]`, floating or bool.
      bound: What no number of any `scale[b] * leaf[b]` exceeds in size, scalar; with it the sum is
        exact up to one rounding, and without it as floating point gives it.

    Returns:
      `[*p]`.

    Example:
      >>> import jax.numpy as jnp
      >>> weighted_sum(jnp.array([[1.0, 2.0], [jnp.inf, 1.0]]), jnp.array([2.0, 0.0])).tolist()
      [2.0, 4.0]
    """
    if bound is not None:
        return bounded_sum(leaf, scale, bound).high
    if is_outer(leaf):
        left, right = _kept(leaf.left, scale), _scaled(leaf.right, scale)
        return jnp.einsum("bp,bk->pk", left, right, precision="highest")
    if isinstance(leaf, PackedSigns):
        return leaf.weighted_sum(scale)
    leaf = jnp.asarray(leaf)
    scale = scale.astype(_dtype(leaf))
    return jnp.tensordot(scale, _kept(leaf, scale), axes=1, precision="highest")


def bounded_sum(
    leaf: PyTree,
    scale: jax.Array,
    bound: ArrayLike,
    centre: jax.Array | None = None,
    *,
    cut: bool = False,
) -> Pair:
    """Sum over examples of `scale[b] * (leaf[b] - centre)`.

    Args:
      leaf: `[B, *p]` of any real type, `PackedSigns` or an `OuterProduct`; where its scale is 0,
        of any value.
      scale: `[B]`.
      bound: What no number of any term exceeds in size, scalar (*public*); may be traced.
      centre: None for 0, `[B, 1]` for a number a row of a leaf `[B, p]`, or `[*p]` for one of all
        examples.
      cut: Whether what terms have below the grid is left out however coarse it is, and above the
        bound too; the sum is then exact.

    Returns:
      A pair of `[*p]`, in at least float32.
    """
    if not is_outer(leaf):
        leaf = leaf if isinstance(leaf, PackedSigns) else jnp.asarray(leaf)
        # integers are as wide as what they are multiplied by
        return _sum_of_rows(_Rows(leaf, None, scale.astype(_dtype(leaf)), centre), bound, cut)
    left = jnp.asarray(leaf.left)
    right = _scaled(leaf.right, scale if centre is None else scale > 0)
    middle = jnp.asarray(0.0 if centre is None else centre, right.dtype)
    columns = jnp.broadcast_to(middle, (left.shape[1], right.shape[1])).T

    def column(at: tuple[jax.Array, jax.Array]) -> Pair:
        if centre is None:  # one product less
            return _sum_of_rows(_Rows(left, None, at[0], None), bound, cut)
        return _sum_of_rows(_Rows(left, at[0], scale.astype(right.dtype), at[1]), bound, cut)

    if right.shape[1] > _MANY_COLUMNS:
        one = functools.partial(jax.lax.map, column)
        if many_devices():
            parts = one((right.T, columns))
        else:
            several = functools.partial(jax.lax.map, column, batch_size=_MANY_COLUMNS)
            parts = jax.lax.platform_dependent((right.T, columns), cpu=one, default=several)
        return Pair(*(part.T for part in parts))
    parts = jax.vmap(column)((right.T, columns))
    return Pair(*(part.T for part in parts))


def normal_or_zero(weights: jax.Array) -> jax.Array:
    """The weights, with 0 for those below the normal range of their type.

    Those have few digits left or none, depending on the device, and times a huge example could
    come to more than its bound.
    """
    return jnp.where(jnp.abs(weights) >= jnp.finfo(weights.dtype).tiny, weights, 0)


def clipping_bound(bound: ArrayLike, dtype: DTypeLike) -> jax.Array:
    """A bound on one example, at least 0 and so small that the sum of 2^28 is finite in float32.

    Norms may be wider than a leaf that is summed. A bound below 2^-100 is 0: noise for it could be
    below the smallest float.
    """
    bound = jnp.clip(jnp.asarray(bound, dtype), 0, float(jnp.finfo(jnp.float32).max) * 2.0**-28)
    return jnp.where(bound < 2.0**-100, 0, bound)


def _dtype(leaf: PyTree) -> Any:
    return jnp.float32 if isinstance(leaf, PackedSigns) else wide(leaf[:0]).dtype


def _scaled(right: jax.Array, scale: jax.Array) -> jax.Array:
    """The second factors `[B, K]` of outer products times the scale."""
    kept = jnp.where((scale != 0)[:, None], wide(right), 0)
    return normal_or_zero(kept * scale[:, None].astype(kept.dtype))


def _kept(rows: jax.Array, weights: jax.Array) -> jax.Array:
    """The examples, widened, with 0 for those of weight 0; integers are finite as they are."""
    rows = jnp.asarray(rows)
    if not jnp.issubdtype(rows.dtype, jnp.inexact):
        return rows.astype(jnp.promote_types(weights.dtype, jnp.float32))
    used = (weights != 0).reshape((-1,) + (1,) * (rows.ndim - 1))
    return jnp.where(used, wide(rows), 0)


class _Rows(NamedTuple):
    """Terms `scale[b] * (rows[b] * factor[b] - centre)`; factor and centre may be missing."""

    rows: PyTree
    factor: jax.Array | None
    scale: jax.Array
    centre: jax.Array | None  # [B, 1] or [1, p]


def _sum_of_rows(terms: _Rows, bound: ArrayLike, cut: bool) -> Pair:
    rows, factor, scale, centre = terms
    num = scale.shape[0]
    shape = rows.shape[1:]
    if not isinstance(rows, PackedSigns):
        # for an empty batch -1 would be ambiguous
        rows = rows.reshape(num, math.prod(shape))
        scale = scale.astype(jnp.promote_types(_dtype(rows), scale.dtype))
    own = centre is not None and centre.shape == (num, 1) and shape != (num, 1)
    if centre is not None:
        centre = centre.astype(scale.dtype).reshape((num, 1) if own else (1, -1))
    most = _most_rows(math.prod(shape))
    bound = jnp.maximum(jnp.asarray(bound, scale.dtype), 0)
    grid = _grid(bound, min(num, most), scale.dtype)
    terms = _Rows(rows, factor, scale, centre)

    def in_turn(terms: _Rows, grid: jax.Array, bound: jax.Array) -> Pair:
        def of(part: _Rows) -> Pair:
            return _sum_on_grid(cut, part, grid, bound)

        return _in_parts(of, terms, most, add_pairs, many_devices())

    if num <= most:
        total = _sum_on_grid(cut, terms, grid, bound)
    elif isinstance(rows, PackedSigns) or many_devices():
        total = in_turn(terms, grid, bound)
    else:
        at_once = functools.partial(_sum_at_once, cut, most)
        total = jax.lax.platform_dependent(terms, grid, bound, cpu=in_turn, default=at_once)
    return Pair(total.high.reshape(shape), total.low.reshape(shape))


def _sum_at_once(cut: bool, size: int, terms: _Rows, grid: jax.Array, bound: jax.Array) -> Pair:
    """The sum of parts of so many rows by one program, where a turn of a loop would be the cost.

    A part's numbers are read once and never written; what is kept is a row of sums a part.
    """
    num = terms.scale.shape[0]
    shared = terms.centre is not None and terms.centre.shape[0] == 1
    centre = terms.centre if shared else None
    each = terms._replace(centre=None) if shared else terms
    whole = num // size * size

    def sum_of(part: _Rows) -> Pair:
        return _sum_on_grid(cut, part._replace(centre=centre) if shared else part, grid, bound)

    head = jax.tree.map(lambda a: a[:whole].reshape(-1, size, *a.shape[1:]), each)
    total = _tree_sum(jax.vmap(sum_of)(head))
    if whole < num:
        total = add_pairs(total, sum_of(jax.tree.map(lambda a: a[whole:], each)))
    return total


def _tree_sum(pairs: Pair) -> Pair:
    """The sum of pairs `[k, p]` over their first axis, by halves."""
    while (number := pairs.high.shape[0]) > 1:
        half = number // 2
        first, second, odd = (
            Pair(*(part[at] for part in pairs))
            for at in (slice(half), slice(half, 2 * half), slice(2 * half, number))
        )
        pairs = add_pairs(first, second)
        if number % 2:
            pairs = Pair(*map(lambda *a: jnp.concatenate(a), pairs, odd))
    return Pair(pairs.high[0], pairs.low[0])


def _in_parts(
    of: Callable[[_Rows], Any], terms: _Rows, size: int, add: Callable[..., Any], strided: bool
) -> Any:
    """The sum of `of` over parts of so many rows."""
    shared = terms.centre is not None and terms.centre.shape[0] == 1
    rest = terms._replace(centre=None) if shared else terms

    def part(rows: _Rows, mask: jax.Array, number: jax.Array) -> Any:
        rows = rows._replace(scale=jnp.where(mask, rows.scale, 0))
        return of(rows._replace(centre=terms.centre) if shared else rows)

    everyone = jnp.ones(terms.scale.shape[0], bool)
    return fold_in_parts(part, rest, everyone, size, add, strided=strided)


def _most_rows(width: int) -> int:
    """So many rows are added at once; more by parts, whose sums are added as pairs.

    What m rows leave over is below 2^-28 m C a number, so their sum is off by at most
    2^-24 m * m * 2^-28 m C sqrt(width) in norm: an eighth of epsilon a row, if m^2 sqrt(width) is
    below 2^27.
    """
    return 2 ** int(math.log2(2**27 / math.sqrt(max(width, 1))) / 2)


def _grid(bound: ArrayLike, rows: int, dtype: DTypeLike) -> jax.Array:
    """A power of two, times which `rows` numbers up to `bound` add up to at most 2^30 (or 2^62)."""
    info = jnp.finfo(dtype)
    bits, bias = (30, 127) if info.bits == 32 else (62, 1023)
    word = jnp.int32 if info.bits == 32 else jnp.int64
    _, exponent = jnp.frexp(jnp.maximum(jnp.asarray(bound, dtype), info.tiny))
    room = bits - max(rows - 1, 0).bit_length() - exponent.astype(word)
    room = jnp.clip(room, info.minexp, info.maxexp - 2)
    return jax.lax.bitcast_convert_type((room + bias) << info.nmant, dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sum_on_grid(cut: bool, terms: _Rows, grid: jax.Array, bound: jax.Array) -> Pair:
    """The terms' multiples of 1 / `grid`, added as integers, and what they leave over, if much."""
    largest = jnp.asarray(bound, grid.dtype) * grid
    word = jnp.int32 if grid.dtype == jnp.float32 else jnp.int64

    def wholes(multiples: jax.Array) -> jax.Array:  # towards zero
        return (jnp.clip(multiples, -largest, largest) if cut else multiples).astype(word)

    counts = _reduced(wholes, terms, grid)
    unit = 1 / grid
    high = counts.astype(grid.dtype)
    low = (counts - high.astype(counts.dtype)).astype(grid.dtype)
    total = Pair(high * unit, low * unit)
    if cut:
        return total

    def lost(turn: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros_like(grid), _reduced(lambda m: m - jnp.trunc(m), terms, turn[0]) * unit

    # Only a coarse grid needs this. It is a pass of its own, since XLA's code for two sums at once
    # is many times slower, in a loop of one turn, since vmap runs both branches of a conditional.
    nothing = jnp.zeros(counts.shape, grid.dtype)
    first = jnp.where(unit > _FINE, grid, 0), nothing
    rests = jax.lax.cond(
        unit > _FINE,
        lambda: jax.lax.while_loop(lambda turn: turn[0] > 0, lost, first)[1],
        lambda: nothing,
    )
    return add_pairs(total, pair_of(rests))


def _reduced(each: Callable[[jax.Array], jax.Array], terms: _Rows, grid: jax.Array) -> jax.Array:
    """The sum over rows of `each` of the terms' multiples of 1 / `grid`."""

    def add_up(terms: _Rows, grid: jax.Array) -> jax.Array:
        multiples = each(_values(terms) * grid)
        return jnp.sum(multiples, axis=0, dtype=multiples.dtype)

    def add_up_parts(terms: _Rows, grid: jax.Array) -> jax.Array:
        return _in_parts(lambda part: add_up(part, grid), terms, _PART, jnp.add, False)

    def add_up_quarters(terms: _Rows, grid: jax.Array) -> jax.Array:
        # the last quarter may overlap the third, and skips the rows that they share
        num = terms.scale.shape[0]
        size = -(-num // 4)
        starts = (0, size, 2 * size, num - size)
        parts = [jax.tree.map(lambda a, at=at: a[at : at + size], terms) for at in starts]
        counted = jnp.arange(size, dtype=jnp.int32) < 4 * size - num
        parts[3] = parts[3]._replace(scale=jnp.where(counted, 0, parts[3].scale))
        multiples = [each(_values(part) * grid) for part in parts]
        return jnp.sum(sum(multiples[1:], multiples[0]), axis=0, dtype=multiples[0].dtype)

    def add_up_apart(terms: _Rows, grid: jax.Array) -> jax.Array:
        # several times slower on rows that are not in memory, such as a dynamic slice
        return apart(lambda: add_up_quarters(terms, grid))

    rows = terms.rows
    if isinstance(rows, PackedSigns):
        return rows.weighted_sum(each(terms.scale * grid))
    long = rows.shape[1] >= _LONG_ROW and rows.shape[0] > _PART
    # XLA may fuse a product and a difference, with one rounding less; one loop does so for all rows
    # or for none, so that a term does not depend on its place
    many = rows.shape[0] >= _MANY_ROWS and rows.shape[1] >= _WIDE_ROW
    quarters = many and terms.centre is None
    if many_devices() or not (long or quarters):
        return add_up(terms, grid)
    on_cpu = add_up_parts if long else add_up_apart
    return jax.lax.platform_dependent(terms, grid, cpu=on_cpu, default=add_up)


@_sum_on_grid.defjvp
def _(cut: bool, primals: PyTree, tangents: PyTree) -> tuple[Pair, Pair]:
    # the slope is that of the sum itself; of its steps it is 0
    _, tangent = jax.jvp(_plain, primals[:1], tangents[:1])
    return _sum_on_grid(cut, *primals), pair_of(tangent)


def _values(terms: _Rows) -> jax.Array:
    values = _kept(terms.rows, terms.scale)
    if terms.factor is not None:
        values = values * terms.factor[:, None]
    if terms.centre is not None:
        values = values - jnp.where((terms.scale != 0)[:, None], terms.centre, 0)
    return values * terms.scale[:, None]


def _plain(terms: _Rows) -> jax.Array:
    if isinstance(terms.rows, PackedSigns):
        return terms.rows.weighted_sum(terms.scale)
    return jnp.sum(_values(terms), axis=0)
