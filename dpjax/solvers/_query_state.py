"""What the methods of query release share: their result, their state and their exact draws."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.core import wide
from dpjax.geometry import L1Ball, log_normalize, sample_vertices
from dpjax.queries import Marginals
from dpjax.queries._workload import check_counted, spread_cells
from dpjax.transforms._laplace import laplace

_SHARPEST = 1e30  # stands for infinity, of which no multiple of 0 is 0


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
      targets: What is compared with answers, `[m]`, or the histogram `[k]` if noise is added to it
        in each step. Follows from the data: *secret* (but for `histogram-once`), and redacted.
      count: Steps so far, `[]` int32.
      key: For the draws (*secret*).
    """

    weights: jax.Array
    current: jax.Array
    average: Any
    averaged: Any
    targets: Any
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


def distribution(workload: Any, weights: jax.Array) -> jax.Array:
    """The softmax over the universe of the weighted sum of queries, `[k]`."""
    return jnp.exp(log_normalize(wide(workload.adjoint(weights))))


def counts(workload: Any, records: Any, mask: jax.Array) -> jax.Array:
    """How many records that are not masked lie in each cell, `[k]` int32 (*secret*)."""
    zeros = spread_cells(workload, jnp.zeros(workload.universe_size, jnp.int32))
    check_counted(mask.shape[0])
    cells = workload.record_cells(records)
    return spread_cells(workload, zeros.at[cells].add(mask.astype(jnp.int32)))


def log_of(probabilities: jax.Array) -> jax.Array:
    """Log probabilities that sum to 1, of nonnegative numbers that nearly do, `[k]`."""
    return log_normalize(jnp.log(probabilities))


def select_query(key: jax.Array, gaps: jax.Array, sharpness: Any) -> SelectionInfo:
    r"""Draws a query and a sign from the softmax of `sharpness` times $\pm$ the gaps `[m]`."""
    size = gaps.shape[0]
    drawn = L1Ball(size, jnp.minimum(sharpness, _SHARPEST)).sample(key, gaps, 1)[0]
    sign = jnp.where(drawn < size, 1, -1).astype(jnp.int8)
    return SelectionInfo(drawn % size, sign[None])


def loudest_query(key: jax.Array, gaps: jax.Array, scale: Any) -> SelectionInfo:
    r"""The query and sign whose $\pm$ gap with fresh Laplace noise of this scale is largest."""
    scores = jnp.concatenate([gaps, -gaps])
    noise = scale * laplace(key, scores.shape, scores.dtype)
    drawn = jnp.argmax(scores + noise).astype(jnp.int32)
    size = gaps.shape[0]
    return SelectionInfo(drawn % size, jnp.where(drawn < size, 1, -1).astype(jnp.int8)[None])


def select_marginal(
    key: jax.Array, workload: Marginals, gaps: jax.Array, sharpness: Any
) -> SelectionInfo:
    r"""Draws a marginal S and a sign of each of its cells, by the exponential mechanism.

    $$ P[S, s] \propto 2^{-|S|} \exp(\beta \sum_{c \in S} s_c d_c) $$

    which factorises: S by $\sum_c \log\cosh(\beta d_c)$, then each sign by a logistic function.
    """
    which, sign = jax.random.split(key)
    sharpness = jnp.minimum(sharpness, _SHARPEST)
    energy = jnp.abs(gaps) * sharpness
    log_cosh = energy + jnp.log1p(jnp.exp(-2 * energy)) - jnp.log(2.0).astype(gaps.dtype)
    sums = jnp.zeros(len(workload.sizes), gaps.dtype).at[jnp.asarray(workload.clique_of)]
    index = sample_vertices(which, sums.add(log_cosh), 1)[0]
    # signs of the chosen marginal alone, by Gumbels whose tails reach far enough
    largest = max(workload.sizes)
    start = jnp.asarray(workload.offsets)[index]
    cells = jnp.arange(largest)
    inside = cells < jnp.asarray(workload.sizes)[index]
    chosen = jnp.where(inside, gaps[jnp.minimum(start + cells, gaps.shape[0] - 1)], 0)
    up, down = jax.random.gumbel(sign, (2, largest), gaps.dtype, mode="high")
    signs = jnp.where(chosen * sharpness + up >= down - chosen * sharpness, 1, -1)
    return SelectionInfo(index, jnp.where(inside, signs, 0).astype(jnp.int8))


def direction(workload: Any, info: SelectionInfo, vertices: str, dtype: Any) -> jax.Array:
    """The vertex that was selected, as weights of the queries, `[m]`."""
    zeros = jnp.zeros(workload.num_queries, dtype)
    if vertices == "queries":
        return zeros.at[info.index].set(info.signs[0].astype(dtype))
    start = jnp.asarray(workload.offsets)[info.index]
    places = start + jnp.arange(info.signs.shape[0])
    return zeros.at[places].add(info.signs.astype(dtype), mode="drop")
