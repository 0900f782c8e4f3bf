"""Shared results, states and exact draws of query release."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import PyTree, wide
from dpjax.core._pairs import Pair, add_pairs, pair_of
from dpjax.geometry import L1Ball, log_normalize, sample_vertices
from dpjax.queries import Marginals, Workload
from dpjax.queries._workload import check_counted, spread_cells
from dpjax.random._normal import laplace
from dpjax.solvers.queries._budget import Number

SHARPEST = 1e30  # stands for infinity, of which no multiple of 0 is 0


class ReleasedDistribution(NamedTuple):
    """The result of a method of query release; post-processing of what its guarantee covers.

    Attributes:
      log_probs: Of each cell of the universe, `[k]`; they sum to 1 as probabilities.
      answers: Released answers, `[m]`: those of the distribution, unless the method says otherwise.
    """

    log_probs: jax.Array
    answers: jax.Array


class SelectionState(NamedTuple):
    """State of a method that moves a distribution towards queries it selects.

    Attributes:
      weights: Of the queries, `[m]`; the distribution is the softmax of their `adjoint`.
      current: Its answers, `[m]`.
      average: Running average of the distributions, `[k]`; None where none is kept.
      averaged: Its answers, `[m]`, or None.
      targets: What is compared with a distribution: `QueryRelease.targets`, `[m]`; or noisy
        answers (`histogram-once`); or the histogram `[k]`, if noise is added to it in each step.
        Follows from the data: *secret* (but for `histogram-once`), and redacted.
      count: Steps so far, `[]` int32.
      key: For the draws (*secret*).
    """

    weights: jax.Array
    current: jax.Array
    average: PyTree
    averaged: PyTree
    targets: PyTree
    count: jax.Array  # type: ignore[assignment]
    key: jax.Array


class SelectionInfo(NamedTuple):
    """Released in a step: what was selected.

    Attributes:
      index: Of the query, or of the marginal, `[]` int32.
      signs: 1 or -1: `[1]` of the query, or of the cells of the marginal and 0 beyond, `[largest]`;
        int8.
    """

    index: jax.Array  # type: ignore[assignment]
    signs: jax.Array


def distribution(workload: Workload, weights: jax.Array) -> jax.Array:
    """The softmax over the universe of the weighted sum of queries, `[k]`."""
    return jnp.exp(log_normalize(wide(workload.adjoint(weights))))


def counts(workload: Workload, records: ArrayLike, mask: jax.Array) -> jax.Array:
    """How many records that are not masked lie in each cell, `[k]` int32 (*secret*)."""
    zeros = spread_cells(workload, jnp.zeros(workload.universe_size, jnp.int32))
    check_counted(mask.shape[0])
    cells = workload.record_cells(records)
    return spread_cells(workload, zeros.at[cells].add(mask.astype(jnp.int32)))


def log_of(probabilities: jax.Array) -> jax.Array:
    """Log probabilities that sum to 1, of nonnegative numbers that nearly do, `[k]`."""
    return log_normalize(jnp.log(probabilities))


def select_query(
    key: jax.Array, gaps: jax.Array, sharpness: Number, rest: ArrayLike = 0.0
) -> SelectionInfo:
    r"""Draws a query and a sign from the softmax of `sharpness` times $\pm$ the gaps.

    Args:
      key: For the draw.
      gaps: `[m]`; integers are not rounded before the largest is subtracted.
      sharpness: Scalar.
      rest: Added to the gaps, small against them or their unit: `[m]`.
    """
    high, low = _rounded(gaps, rest)
    size = gaps.shape[0]
    drawn = L1Ball(size, jnp.minimum(sharpness, SHARPEST)).sample(key, high, 1, low=low)[0]
    return _signed_query(drawn, size)


def loudest_query(
    key: jax.Array, gaps: jax.Array, scale: Number, rest: ArrayLike = 0.0
) -> SelectionInfo:
    r"""The query and sign whose $\pm$ gap with fresh Laplace noise of this scale is largest.

    Gaps and rest are as for `select_query`.
    """
    top = jnp.max(jnp.abs(gaps))
    rest = jnp.broadcast_to(jnp.asarray(rest), gaps.shape)
    behind = jnp.concatenate([gaps - top, -gaps - top]).astype(float)
    behind = behind + jnp.concatenate([rest, -rest])
    noise = scale * laplace(key, behind.shape, behind.dtype)
    return _signed_query(jnp.argmax(behind + noise).astype(jnp.int32), gaps.shape[0])


def _signed_query(drawn: jax.Array, size: int) -> SelectionInfo:
    return SelectionInfo(drawn % size, jnp.where(drawn < size, 1, -1).astype(jnp.int8)[None])


def _rounded(gaps: jax.Array, rest: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """The gaps as floats, and what that left over with the rest."""
    high = gaps.astype(float)
    low = (gaps - high.astype(gaps.dtype)).astype(high.dtype)
    return high, low + rest


def select_marginal(
    key: jax.Array,
    workload: Marginals,
    gaps: jax.Array,
    sharpness: Number,
    rest: ArrayLike = 0.0,
) -> SelectionInfo:
    r"""Draws a marginal S and a sign of each of its cells, by the exponential mechanism.

    $$ P[S, s] \propto 2^{-|S|} \exp(\beta \sum_{c \in S} s_c d_c) $$

    which factorises: S by $\sum_c \log\cosh(\beta d_c)$, then each sign by a logistic function.

    Args:
      key: For the draw.
      workload: The marginals.
      gaps: d, `[m]`: integers, or floats of size at most 2^26.
      sharpness: beta, scalar.
      rest: Added to integer gaps, at most 1/2: `[m]`.
    """
    which, sign = jax.random.split(key)
    if not jnp.issubdtype(gaps.dtype, jnp.integer):
        whole = jnp.round(gaps)
        gaps, rest = whole.astype(int), gaps - whole
    rest = jnp.broadcast_to(jnp.asarray(rest), gaps.shape)
    sharpness = jnp.minimum(sharpness, SHARPEST).astype(rest.dtype)
    index = sample_vertices(which, marginal_logits(workload, gaps, sharpness, rest), 1)[0]
    # signs of the chosen marginal alone, by Gumbels whose tails reach far enough
    largest = max(workload.sizes)
    start = jnp.asarray(workload.offsets)[index]
    cells = jnp.arange(largest)
    inside = cells < jnp.asarray(workload.sizes)[index]
    places = jnp.minimum(start + cells, gaps.shape[0] - 1)
    chosen = jnp.where(inside, gaps[places].astype(rest.dtype) + rest[places], 0)
    up, down = jax.random.gumbel(sign, (2, largest), rest.dtype, mode="high")
    signs = jnp.where(chosen * sharpness + up >= down - chosen * sharpness, 1, -1)
    return SelectionInfo(index, jnp.where(inside, signs, 0).astype(jnp.int8))


def marginal_logits(
    workload: Marginals, gaps: jax.Array, sharpness: jax.Array, rest: jax.Array
) -> jax.Array:
    r"""Of each marginal, up to a common shift: $\sum_c \log\cosh(\beta d_c)$.

    With $\log\cosh x = |x| + \log(1 + e^{-2 |x|}) - \log 2$. All sums over cells are of integers,
    to which cells that a record is not in add the same in neighbours: the moduli of integer gaps,
    and of `rest` and logarithms multiples of a power of two. Differences from the marginal of the
    largest are rounded last.

    Args:
      workload: The marginals, N.
      gaps: Integers `[m]`.
      sharpness: beta, scalar.
      rest: `[m]`; d is the gaps and these.

    Returns:
      `[N]`.
    """
    cell = fixed_point(workload, rest.dtype)
    signs = jnp.where(gaps == 0, jnp.sign(rest), jnp.sign(gaps).astype(rest.dtype))
    energy = jnp.abs(gaps.astype(rest.dtype) + rest) * sharpness
    logs = jnp.log1p(jnp.exp(-2 * energy)) - jnp.log(2.0).astype(rest.dtype)
    parts = [jnp.abs(gaps)]
    parts += [jnp.round(part * cell).astype(gaps.dtype) for part in (signs * rest, logs)]
    zeros = jnp.zeros(len(workload.sizes), gaps.dtype).at[jnp.asarray(workload.clique_of)]
    sums = [zeros.add(part) for part in parts]
    top = jnp.argmax(sums[0])
    moduli, rests, least = (Pair(*_rounded(each - each[top], 0.0)) for each in sums)
    total = add_pairs(
        _times(add_pairs(moduli, Pair(rests.high / cell, rests.low / cell)), sharpness),
        Pair(least.high / cell, least.low / cell),
    )
    return add_pairs(total, pair_of(jnp.broadcast_to(-jnp.max(total.high), total.high.shape))).high


def fixed_point(workload: Marginals, dtype: DTypeLike) -> float:
    """A power of two, such multiples of whose inverse below 1 add up over any marginal's cells."""
    bits = 30 if jnp.finfo(dtype).bits == 32 else 62
    return 2.0 ** (bits - (max(workload.sizes) - 1).bit_length())


def _times(pair: Pair, factor: jax.Array) -> Pair:
    """The product, to about the square of a float's precision (Veltkamp 1968; Dekker 1971)."""
    splitter = 2.0 ** ((jnp.finfo(factor.dtype).nmant + 2) // 2) + 1

    def halves(value: jax.Array) -> tuple[jax.Array, jax.Array]:
        large = splitter * value
        high = large - (large - value)
        return high, value - high

    product = pair.high * factor
    (a, b), (c, d) = halves(pair.high), halves(factor)
    lost = ((a * c - product) + a * d + b * c) + b * d
    return add_pairs(pair_of(product), pair_of(lost + pair.low * factor))
