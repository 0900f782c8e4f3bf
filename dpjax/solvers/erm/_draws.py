"""Draws of how large labels mostly are, and how long inputs, by the exponential mechanism."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike

from dpjax.core import PyTree
from dpjax.core._checks import check_finite
from dpjax.geometry import sample_vertices
from dpjax.problems import LinearModel
from dpjax.problems._as_linear_model import UNSTATED
from dpjax.solvers.vertices._steps import shrunk
from dpjax.transforms.clipping._microbatch import in_equal_parts

CENTRES, _FEW_CENTRES = 4096, 256  # intervals of labels: many empty ones outweigh few records
_SIZES = 256  # that may be drawn, to a four-billionth
_PER_OCTAVE = 8  # each below the next by the eighth root of 2
# Thresholds: labels nearer to the centre do not count, because most may be one value, such as the
# zeros of counts. Chosen on nine kinds of labels, n = 800 to 30,000: the squared error in excess of
# least squares fell to 0.02 to 1 times what it was on the four with many zeros, and hardly changed
# on the others. On three fresh ones, n = 2,000, it fell to 0.5 to 0.87 times.
LABEL_OCTAVES = 10
# of logits, towards small sizes within so many bins of the bound: few records tell them from much
# larger ones, and all that are tiny together must not outweigh the others
_TILT, _TILTED = 3 / 64, 80
_RECORDS = 60.0  # n times the range of a draw: with fewer, what is drawn may be far off
# n epsilon / sqrt(d) for each of one in so many rows, labels, and rows in a metric, beyond
_TOLD = 1500.0, 400.0, 150.0
LEAST_BEYOND, _MOST_BEYOND = 4, 1000
_SURE = 12.0  # n times the range, over one in how many: with less, much larger ones are drawn too
_SHARES = 0.01, 0.12  # of epsilon, least and most
# with fewer records, of draws of labels alone
_FEW_RECORDS, _FEW_SHARE = 40.0, 0.3
_LEAST_CONSTANT = 2.0**-16  # of an intercept, over its own


def length_range(num_records: int, epsilon: float) -> float:
    """The range of the draw of a length; 0, for none, where it would cost too much of epsilon."""
    check_finite("epsilon", epsilon)
    share = _RECORDS / (num_records * epsilon)
    return max(share, _SHARES[0]) * epsilon if share <= _SHARES[1] else 0.0


def label_draws(problem: LinearModel, num_records: int, epsilon: float) -> tuple[float, float, int]:
    """Ranges of the draws of a Huber loss's threshold, and of a median of labels; 0 for none.

    The third is the number of intervals in which the median may be.

    With too few records for a length, but an intercept and no ball, it is still worth knowing where
    labels are: without that, all noise and what parameters shrink to follow from the bound.
    """
    if problem.link != "huber" or problem.threshold is not None:
        return 0.0, 0.0, CENTRES
    own, free = length_range(num_records, epsilon), problem.radius is None
    free &= problem.intercept is not None
    few = _FEW_RECORDS / num_records
    if not own and free and few <= _FEW_SHARE * epsilon:
        return few, few, _FEW_CENTRES
    return own, own if free else 0.0, CENTRES


def beyond_drawn(num_records: int, epsilon: float, dim: int) -> tuple[int, int, int]:
    """One in how many rows and labels should exceed what is drawn: their bias is that of noise.

    The third is of rows in the metric of second moments, where more differ in length.
    """
    told = num_records * epsilon / math.sqrt(dim)
    wanted = [told / each for each in _TOLD]
    wanted[2] = min(wanted[2], num_records * length_range(num_records, epsilon) / _SURE)
    rows, labels, further = (min(max(int(a + 0.5), LEAST_BEYOND), _MOST_BEYOND) for a in wanted)
    return rows, labels, further


def drawn_share(
    key: jax.Array,
    sizes_of: Callable[[PyTree], jax.Array],
    batch: PyTree,
    mask: jax.Array,
    beyond: int,
    eta: ArrayLike,
    *,
    octaves: int = _SIZES // _PER_OCTAVE,
    none_at: int | None = None,
) -> jax.Array:
    """The size that one in `beyond` exceeds, rounded up, over the bound.

    Where few count, logits hardly tell sizes apart, and tiny ones, to which all inputs would be
    scaled down, are drawn: where most rows may be 0, as of indicators, count these with `none_at`.

    Guarantee: of bounded range eta, and so eta-DP, whatever the sizes.

    Args:
      key: Typed key, scalar (*secret*).
      sizes_of: Sizes of the records of a batch over their bound, `[B]`, each from its own record.
      batch: Leaves `[n, ...]` (*secret*).
      mask: Which count, `[n]` (*secret*).
      beyond: One in `beyond` sizes should be larger, an integer >= 2 (*public*).
      eta: Bounded range of the draw, a number; 0 for no draw (*public*).
      octaves: Sizes below 2 to the minus this neither count nor are drawn (*public*).
      none_at: Those that are 0 or NaN count as 2 to the minus this; None for not at all (*public*).

    Returns:
      A scalar, 1 without a draw, else one of so many powers of the eighth root of 2 up to 1.
    """
    eta, number = jnp.asarray(eta, float), octaves * _PER_OCTAVE

    def bins(part: PyTree, here: jax.Array) -> jax.Array:
        sizes = sizes_of(part)
        least = 0.0 if number == _SIZES else 2.0**-octaves
        counted = here & (sizes > least)
        smaller = jnp.floor(-_PER_OCTAVE * jnp.log2(jnp.where(counted, sizes, 1)))
        place = number - 1 - jnp.clip(smaller, 0, number - 1).astype(jnp.int32)
        place = jnp.where(counted, place, number)
        if none_at is None:
            return place
        nothing = here & ~(sizes > 0)
        return jnp.where(nothing, number - 1 - none_at * _PER_OCTAVE, place)

    counts = jnp.zeros(number, jnp.int32)
    counts = counts.at[in_equal_parts(bins, batch, mask)].add(1, mode="drop")
    drawn = sample_vertices(key, quantile_logits(counts, beyond, eta), 1)[0]
    share = jnp.exp2((drawn - (number - 1)).astype(eta.dtype) / _PER_OCTAVE)
    return jnp.where(eta > 0, share, 1)


def typical_octaves(problem: LinearModel) -> int:
    """Octaves from a bound on features to their length, of no stated bound about 1 a feature."""
    own = UNSTATED * math.sqrt(problem.num_features)
    return int(math.log2(UNSTATED)) if problem.feature_bound == own else 0


def sizes_of_labels(bound: ArrayLike) -> Callable[[PyTree], jax.Array]:
    """Sizes of the labels of a batch over a bound, `[B]`; NaN where one is infinite."""

    def sizes(batch: PyTree) -> jax.Array:
        y = batch["y"].astype(float)
        return jnp.where(jnp.isinf(y), jnp.nan, jnp.abs(y)) / bound

    return sizes


def drawn_centre(
    key: jax.Array, labels: jax.Array, mask: jax.Array, eta: ArrayLike, intervals: int = CENTRES
) -> jax.Array:
    """About the median of labels in [-1, 1], the middle of one of so many intervals.

    Guarantee: of bounded range eta, and so eta-DP, whatever the labels.

    Args:
      key: Typed key, scalar (*secret*).
      labels: Over their bound, `[n]`; clipped to [-1, 1], NaN does not count (*secret*).
      mask: Which count, `[n]` (*secret*).
      eta: Bounded range of the draw, a number; 0 for no draw (*public*).
      intervals: Of equal width (*public*).

    Returns:
      A scalar in (-1, 1); 0 without a draw.
    """
    eta, counted = jnp.asarray(eta, float), mask & ~jnp.isnan(labels)
    at = (jnp.clip(jnp.where(counted, labels, 0), -1, 1) + 1) * (intervals / 2)
    bins = jnp.minimum(jnp.floor(at), intervals - 1).astype(jnp.int32)
    counts = jnp.zeros(intervals, jnp.int32).at[bins].add(counted.astype(jnp.int32))
    drawn = sample_vertices(key, quantile_logits(counts, 2, eta, tilt=0.0), 1)[0]
    centre = (drawn.astype(eta.dtype) + 0.5) * (2 / intervals) - 1
    return jnp.where(eta > 0, centre, 0)


def shorter_inputs(problem: LinearModel, share: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Inputs beside features of at most a share of their bound, and an intercept's constant.

    The constant c falls as far as the share, but not below the features' bound, nor a 65,536th of
    c, since the Hessian's condition would be beyond float64. The ball and the parameters stay those
    of c: their last coordinate is the factor times that of inputs with the shorter constant, for
    which noise and regulariser are.

    Returns:
      Largest norm of such inputs over `input_bound`, and what a coordinate of their parameters is
      multiplied by, `[num_params]`.
    """
    bound, factors = share * problem.feature_bound, jnp.ones(problem.num_params, share.dtype)
    if problem.intercept is None:
        return share, factors
    longest = max(problem.intercept, problem.feature_bound)
    factor = jnp.clip(share * longest / problem.intercept, _LEAST_CONSTANT, 1)
    constant = factor * problem.intercept
    factors = factors.at[-1].set(factor)
    return jnp.hypot(bound, constant) / problem.input_bound, factors


def quantile_logits(
    counts: jax.Array, beyond: int, eta: jax.Array, tilt: float = _TILT
) -> jax.Array:
    """Logits of the upper edges of bins, highest at the bin that one in `beyond` records exceeds.

    Fallen by eta / 2 for each record that would have to move for a bin to be that one, and by a
    little, whatever the records, for each bin below it. The numbers of records below both edges of
    a bin, minus their target, change by at most 1 with one record, under either relation; the
    changes of the logits have range at most eta.

    Args:
      counts: Records in each bin, int32 `[bins]` (*secret*).
      beyond: One in `beyond` records should lie above (*public*).
      eta: Bounded range of the draw, a number (*public*).
      tilt: How much logits fall from a bin to the next, in the highest 80 (*public*).

    Returns:
      `[bins]`.
    """
    total, below = jnp.sum(counts), jnp.cumsum(counts)
    wanted = total - total // beyond
    off = jnp.maximum(jnp.maximum(wanted - below, below - counts - wanted), 0)
    bins = counts.shape[0]
    slant = tilt * jnp.maximum(jnp.arange(bins, dtype=eta.dtype), bins - _TILTED)
    # exact up to here; logits up to 45 below the largest are at most 57, and rounded once more
    return -off.astype(eta.dtype) * shrunk(eta / 2, eta, eta.dtype, logit=150.0) - slant


def pure_event(epsilon: float, relation: str) -> dpe.DpEvent:
    """An event that dominates all that is epsilon-DP, which every accountant composes (host).

    Under replace-one two outcomes with odds e^epsilon, the worst there is. No accountant of zCDP
    takes these under add-or-remove-one; Laplace noise of slightly larger pure epsilon dominates
    them: docs/theory/privacy.md, P9.11.
    """
    if relation == "replace_one":
        return dpe.RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2)
    return dpe.LaplaceDpEvent(1 / (2 * math.log((1 + math.exp(epsilon)) / 2)))
