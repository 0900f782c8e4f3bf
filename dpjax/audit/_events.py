"""From runs on two data sets to scores that tell them apart, and a lower bound on epsilon."""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

from dpjax.core import check_choice, check_probability

BOUNDS = ("clopper_pearson", "gdp")
_THRESHOLDS = 400
_CAUTION = 20  # events are chosen at a level as many times smaller, or the luckiest one wins
_RIDGES = (1e-8, 1e-4, 1e-2, 1.0)
_MOST_COLUMNS = 400
_MOST_QUADRATIC = 60
_SUBSETS = (6, 24, 96)
_MOST_VALUES = 16
_LARGEST = 1e100  # of a released number: squares of larger ones overflow

Score = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Level:
    """Delta, the confidence of a bound at it, and the kind of bound."""

    delta: float
    confidence: float
    bound: str = "clopper_pearson"

    def __post_init__(self) -> None:
        check_choice("bound", self.bound, BOUNDS)
        check_probability("delta", self.delta)
        check_probability("confidence", self.confidence)


class Event(NamedTuple):
    """Outputs whose score is on one side of a threshold, and under which data they are likelier."""

    threshold: float
    above: bool
    swapped: bool


def lower_bound_of_scores(
    first: ArrayLike,
    second: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    bound: str = "clopper_pearson",
) -> float:
    r"""A lower bound on epsilon from scores of runs on two neighbours.

    $$ \epsilon \ge \log \frac{P(s(M(D')) \in E) - \delta}{P(s(M(D)) \in E)} $$

    for the one event E, `s >= t` or `s < t`, in the one direction, that the first half of the runs
    makes look best; its two probabilities come from the second half.

    Guarantee: none, scores are raw. The bound is above the true epsilon with probability at most
    `1 - confidence`, for any score: each probability is bounded by Clopper and Pearson's interval
    of one side at half of that. With `bound="gdp"` that holds only if the true trade-off is that of
    two Gaussians, as for one Gaussian mechanism without sampling; then it is much closer.

    Args:
      first: Scores of independent runs on one data set `[n]`; NaN counts as the lowest of all.
      second: Scores of independent runs on its neighbour `[m]`.
      delta: In (0, 1).
      confidence: In (0, 1).
      bound: `"clopper_pearson"` or `"gdp"`.

    Returns:
      The lower bound, `>= 0`.

    Raises:
      ValueError: If fewer than 4 scores are given of one, or a value is outside its bound.
      TypeError: If `delta` or `confidence` is not a number.

    Example:
      >>> import numpy as np
      >>> rng = np.random.default_rng(0)
      >>> noise = rng.normal(size=(2, 20_000))
      >>> 2.0 < lower_bound_of_scores(noise[0], 1 + noise[1], delta=1e-3) < 3.03
      True

    Source: Jagielski, Ullman and Oprea 2020; Nasr et al. 2023 for Gaussian trade-offs.
    """
    level = Level(delta, confidence, bound)
    samples = [np.asarray(scores, np.float64).ravel() for scores in (first, second)]
    samples = [np.where(np.isnan(scores), -np.inf, scores) for scores in samples]
    for name, scores in zip(("first", "second"), samples, strict=True):
        if scores.size < 4:
            raise ValueError(f"{name} must hold at least 4 scores, got {scores.size}")
    one, other = samples
    half, rest = one.size // 2, other.size // 2
    event, _ = best_event(one[:half], other[:rest], level)
    return bound_at(event, one[half:], other[rest:], level)


def best_event(first: np.ndarray, second: np.ndarray, level: Level) -> tuple[Event, float]:
    """The event that looks best on these scores, and how it looks."""
    level = dataclasses.replace(level, confidence=1 - (1 - level.confidence) / _CAUTION)
    pooled = np.concatenate([first, second])
    # more thresholds in the tails, where the ratio is large
    quantiles = special.expit(np.linspace(-1, 1, _THRESHOLDS) * math.log(pooled.size))
    thresholds = np.unique(np.quantile(pooled, quantiles, method="higher"))
    below = [np.searchsorted(np.sort(scores), thresholds) for scores in (first, second)]
    sizes = first.size, second.size
    found = []
    for above in (True, False):
        counts = [n - k if above else k for k, n in zip(below, sizes, strict=True)]
        for swapped in (False, True):
            i, j = (0, 1) if swapped else (1, 0)
            values = bounds(counts[i], counts[j], sizes[i], sizes[j], level)
            best = int(np.argmax(values))
            found.append((float(values[best]), Event(float(thresholds[best]), above, swapped)))
    value, event = max(found, key=lambda pair: pair[0])
    return event, value


def bound_at(event: Event, first: np.ndarray, second: np.ndarray, level: Level) -> float:
    """The lower bound that one event, fixed before, gives on these scores."""
    likely, unlikely = (first, second) if event.swapped else (second, first)
    met = [np.sum((scores >= event.threshold) == event.above) for scores in (likely, unlikely)]
    value = float(bounds(met[0], met[1], likely.size, unlikely.size, level))
    return _gaussian_epsilon(value, level.delta) if level.bound == "gdp" else value


def bounds(
    likely: np.ndarray, unlikely: np.ndarray, likely_runs: int, unlikely_runs: int, level: Level
) -> np.ndarray:
    """Epsilon, or the shift of two Gaussians, from how often the event was met.

    In runs where it is likely, and in others.
    """
    low, high = _rates(likely, unlikely, likely_runs, unlikely_runs, level.confidence)
    with np.errstate(invalid="ignore", divide="ignore"):
        if level.bound == "gdp":
            shift = np.nan_to_num(special.ndtri(low) - special.ndtri(high), neginf=0.0)
            return np.maximum(shift, 0.0)
        return np.log(np.maximum((low - level.delta) / high, 1.0))


def _rates(
    likely: ArrayLike, unlikely: ArrayLike, likely_runs: int, unlikely_runs: int, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """A lower bound on the one probability of an event and an upper bound on the other."""
    likely, unlikely, error = np.asarray(likely), np.asarray(unlikely), (1 - confidence) / 2
    with np.errstate(invalid="ignore"):
        low = stats.beta.ppf(error, likely, likely_runs - likely + 1)
        high = stats.beta.ppf(1 - error, unlikely + 1, unlikely_runs - unlikely)
    return np.where(likely == 0, 0.0, low), np.where(unlikely == unlikely_runs, 1.0, high)


def _gaussian_epsilon(shift: float, delta: float) -> float:
    """Epsilon at delta of two normals whose means differ by `shift` deviations, exactly."""

    def excess(epsilon: float) -> float:
        far = epsilon / shift
        above = special.ndtr(shift / 2 - far)
        return above - math.exp(epsilon + special.log_ndtr(-shift / 2 - far)) - delta

    if shift <= 0 or excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, shift**2 + 40 * shift))


def distance_of_scores(first: np.ndarray, second: np.ndarray, confidence: float) -> float:
    """A lower bound on the total variation distance of two laws of scores `[n]`, 0 or above.

    As `lower_bound_of_scores`: delta at epsilon 0, of an event that half of the runs choose.
    """
    half, rest = len(first) // 2, len(second) // 2
    chosen = first[:half], second[:rest]
    thresholds = np.unique(np.concatenate(chosen))
    below = [np.searchsorted(np.sort(scores), thresholds) / len(scores) for scores in chosen]
    gap = below[0] - below[1]
    at = int(np.argmax(np.abs(gap)))
    sides = (first[half:], second[rest:]) if gap[at] > 0 else (second[rest:], first[half:])
    likely, unlikely = (int(np.sum(scores < thresholds[at])) for scores in sides)
    low, high = _rates(likely, unlikely, len(sides[0]), len(sides[1]), confidence)
    return max(0.0, float(low - high))


def learn_score(first: np.ndarray, second: np.ndarray, level: Level) -> Score:
    """A score of released values `[n, F]`, learnt from runs on two neighbours.

    Discriminants of Gaussians with one covariance and with two, of few columns and of many, at
    several ridges, learnt on two thirds of the runs; what looks best on the others is taken.
    """
    features = _features(first, second)
    one, other = features(first), features(second)
    size, rest = (2 * len(first)) // 3, (2 * len(second)) // 3

    def quality(score: Score) -> float:
        return best_event(score(one[size:]), score(other[rest:]), level)[1]

    best = max(_candidates(one[:size], other[:rest]), key=quality)
    return lambda runs: best(features(runs))


def _features(first: np.ndarray, second: np.ndarray) -> Score:
    """From released values `[n, F]` to columns `[n, C]` of about unit spread.

    Few integer values become indicators; that a value is not finite, where that happens at times,
    becomes a column of its own.
    """
    both = np.concatenate([first, second])
    finite, clean = np.isfinite(both), _finite(both)
    bad = np.flatnonzero(finite.any(0) & ~finite.all(0))
    kept = np.flatnonzero(np.ptp(clean, axis=0) > 0)
    if kept.size > _MOST_COLUMNS:
        half = len(first)
        gap = np.abs(clean[:half].mean(0) - clean[half:].mean(0))
        noise = clean[:half].std(0) + clean[half:].std(0)
        power = (gap / np.maximum(noise, 1e-12 * np.abs(clean).max(0) + 1e-300))[kept]
        kept = np.sort(kept[np.argsort(power)[-_MOST_COLUMNS:]])
    values = []
    for column in kept:
        seen = np.unique(clean[: 10 * _MOST_VALUES, column])
        if seen.size <= _MOST_VALUES and np.all(seen == np.round(seen)):
            seen = np.unique(clean[:, column])
            if 2 < seen.size <= _MOST_VALUES:
                values.append((column, seen))

    def columns(runs: np.ndarray) -> np.ndarray:
        clean, not_finite = _finite(runs), ~np.isfinite(runs)
        indicators = [(clean[:, [column]] == seen).astype(float) for column, seen in values]
        parts = [clean[:, kept], not_finite[:, bad].astype(float), *indicators]
        return np.concatenate(parts, axis=1)

    made = columns(both)
    centre, spread = made.mean(0), made.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    return lambda runs: (columns(runs) - centre) / spread


def _finite(runs: np.ndarray) -> np.ndarray:
    return np.clip(np.where(np.isfinite(runs), runs, 0.0), -_LARGEST, _LARGEST)


def _candidates(first: np.ndarray, second: np.ndarray) -> list[Score]:
    """Discriminants of the columns that differ most between the two, of few and of many."""
    power = np.abs(first.mean(0) - second.mean(0)) / (first.std(0) + second.std(0) + 1e-9)
    order = np.argsort(-power)
    sizes = {min(size, order.size) for size in (*_SUBSETS, order.size)} - {0}
    if not sizes:
        return [lambda runs: np.zeros(len(runs))]
    return [
        _of_columns(order[:size], score)
        for size in sorted(sizes)
        for score in _discriminants(first[:, order[:size]], second[:, order[:size]])
    ]


def _discriminants(first: np.ndarray, second: np.ndarray) -> list[Score]:
    columns = first.shape[1]
    means = [runs.mean(0) for runs in (first, second)]
    spreads = [np.cov(runs, rowvar=False).reshape(columns, columns) for runs in (first, second)]
    pooled, gap = (spreads[0] + spreads[1]) / 2, means[1] - means[0]
    found = [_linear(np.linalg.solve(pooled + ridge * np.eye(columns), gap)) for ridge in _RIDGES]
    if columns <= _MOST_QUADRATIC:
        found += [_quadratic(means, spreads, ridge) for ridge in _RIDGES[1:3]]
    return found


def _of_columns(columns: np.ndarray, score: Score) -> Score:
    return lambda runs: score(runs[:, columns])


def _linear(weights: np.ndarray) -> Score:
    return lambda runs: runs @ weights


def _quadratic(means: list[np.ndarray], spreads: list[np.ndarray], ridge: float) -> Score:
    eye = np.eye(len(means[0]))
    roots = [np.linalg.cholesky(np.linalg.inv(spread + ridge * eye)) for spread in spreads]

    def score(runs: np.ndarray) -> np.ndarray:
        pairs = zip(means, roots, strict=True)
        far = [np.sum(((runs - mean) @ root) ** 2, axis=1) for mean, root in pairs]
        return far[0] - far[1]

    return score
