"""From two samples of scores to a lower bound on epsilon."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special, stats

from dpjax.core import check_choice, check_probability

BOUNDS = ("clopper_pearson", "gdp")
_THRESHOLDS = 400
_CAUTION = 20  # events are chosen at a level as many times smaller, or the luckiest one wins


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
    error = (1 - level.confidence) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        low = stats.beta.ppf(error, likely, likely_runs - likely + 1)
        high = stats.beta.ppf(1 - error, unlikely + 1, unlikely_runs - unlikely)
        low = np.where(likely == 0, 0.0, low)
        high = np.where(unlikely == unlikely_runs, 1.0, high)
        if level.bound == "gdp":
            shift = np.nan_to_num(special.ndtri(low) - special.ndtri(high), neginf=0.0)
            return np.maximum(shift, 0.0)
        return np.log(np.maximum((low - level.delta) / high, 1.0))


def _gaussian_epsilon(shift: float, delta: float) -> float:
    """Epsilon at delta of two normals whose means differ by `shift` deviations, exactly."""

    def excess(epsilon: float) -> float:
        far = epsilon / shift
        above = special.ndtr(shift / 2 - far)
        return above - math.exp(epsilon + special.log_ndtr(-shift / 2 - far)) - delta

    if shift <= 0 or excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, shift**2 + 40 * shift))
