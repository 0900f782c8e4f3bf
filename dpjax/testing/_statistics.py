"""Statistical checks with a stated false-alarm level and, for scales, a stated power."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from scipy import stats

from dpjax.core import check_positive, check_probability

FALSE_ALARM = 1e-9

_stated: list[float] = []  # of every check that this process has run


def count_false_alarm(probability: float) -> None:
    """Adds to `false_alarms()` an assertion that is statistical and not one of this module's.

    Args:
      probability: That it fails though all is right: for an audit, `1 - confidence`.

    Raises:
      ValueError: If it does not lie in (0, 1).
      TypeError: If it is not a number.

    Example:
      >>> import numpy as np
      >>> draws = np.random.default_rng(0).normal(size=900)
      >>> count_false_alarm(2e-9)  # of six standard errors, two-sided
      >>> assert abs(draws.mean()) < 6 / 30
    """
    check_probability("probability", probability)
    _stated.append(float(probability))


def false_alarms() -> tuple[int, float]:
    """How many statistical checks this process has run, and their false-alarm levels in all.

    The sum bounds the probability that any of them fails though all is right, whatever they share.

    Returns:
      The number of checks, and the sum of the levels that they state.

    Example:
      >>> before, _ = false_alarms()
      >>> p = check_counts([48, 52], [0.5, 0.5])
      >>> false_alarms()[0] - before
      1
    """
    return len(_stated), float(np.sum(_stated))


def check_distribution(
    samples: ArrayLike,
    cdf: Callable[..., Any],
    *,
    false_alarm: float = FALSE_ALARM,
    name: str = "samples",
) -> float:
    """Kolmogorov-Smirnov: raises AssertionError where samples do not follow a continuous law.

    Args:
      samples: Independent draws, any shape.
      cdf: Takes values `[n]`, gives the distribution function `[n]`.
      false_alarm: Probability of raising though the samples follow the law.
      name: Shown in the message.

    Returns:
      The p-value.

    Raises:
      AssertionError: If the p-value is below `false_alarm`, or a sample is not finite.
      TypeError: If `false_alarm` is not a number.
      ValueError: If `false_alarm` does not lie in (0, 1).

    Example:
      >>> import numpy as np, scipy.stats
      >>> p = check_distribution(np.random.default_rng(0).normal(size=100), scipy.stats.norm.cdf)
    """
    check_probability("false_alarm", false_alarm)
    count_false_alarm(false_alarm)
    values = np.asarray(samples, np.float64).ravel()
    if not values.size or not np.all(np.isfinite(values)):
        raise AssertionError(f"{name} must be finite and at least one, got {values}")
    result = stats.kstest(values, cdf)
    if result.pvalue < false_alarm:
        raise AssertionError(
            f"{name} do not follow the distribution: {values.size} samples, largest gap of the "
            f"distribution functions {result.statistic:.3g} at {result.statistic_location:.4g}, "
            f"p = {result.pvalue:.3g} < {false_alarm:.3g}"
        )
    return float(result.pvalue)


def check_scale(
    samples: ArrayLike,
    cdf_of_scale: Callable[[float], Callable[..., Any]],
    scale: float,
    *,
    factors: Sequence[float] = (2 / 3, 3 / 2),
    false_alarm: float = FALSE_ALARM,
    name: str = "samples",
) -> None:
    """Kolmogorov-Smirnov with a power half: accepts the scale and rejects others near it.

    A test that accepts everything proves nothing: this one raises too where these samples are too
    few to tell `scale` from `factor * scale`.

    Args:
      samples: Independent draws, any shape.
      cdf_of_scale: `cdf_of_scale(scale)` is a distribution function.
      scale: The scale they should have, `> 0`.
      factors: Multiples of the scale that must be rejected.
      false_alarm: Probability of raising on a sample of the right scale; also the level at which
        the wrong scales must be rejected.
      name: Shown in the message.

    Raises:
      AssertionError: If the scale is rejected, or a wrong one is not.
      TypeError: If `false_alarm` is not a number.
      ValueError: If `scale` is not positive and finite, or `false_alarm` outside (0, 1).

    Example:
      >>> import numpy as np, scipy.stats
      >>> draws = 3 * np.random.default_rng(0).normal(size=2000)
      >>> check_scale(draws, lambda s: scipy.stats.norm(scale=s).cdf, 3.0)
    """
    check_positive("scale", scale)
    check_distribution(samples, cdf_of_scale(scale), false_alarm=false_alarm, name=name)
    values = np.asarray(samples, np.float64).ravel()
    for factor in factors:
        p = stats.kstest(values, cdf_of_scale(factor * scale)).pvalue
        if not p < false_alarm:
            raise AssertionError(
                f"{name}: {values.size} samples cannot tell the scale {scale:.4g} from "
                f"{factor * scale:.4g} (p = {p:.3g} >= {false_alarm:.3g}); draw more"
            )


def check_counts(
    observed: ArrayLike,
    expected: ArrayLike,
    *,
    false_alarm: float = FALSE_ALARM,
    smallest: float = 5.0,
    name: str = "counts",
) -> float:
    """Chi-square: raises AssertionError where counts do not follow expected ones.

    Cells of small expectation are pooled. A count in a cell that is impossible is an error at once.

    Args:
      observed: Counts of independent draws over all cells, any shape.
      expected: Expected counts, or weights proportional to them, of the same shape.
      false_alarm: Probability of raising though the counts follow.
      smallest: Cells expected to hold fewer are pooled.
      name: Shown in the message.

    Returns:
      The p-value.

    Raises:
      AssertionError: If the p-value is below `false_alarm`, or an impossible cell was drawn.
      ValueError: If shapes differ, or nothing is left to compare after pooling.
      TypeError: If `false_alarm` is not a number.

    Example:
      >>> p = check_counts([48, 52], [0.5, 0.5])
    """
    check_probability("false_alarm", false_alarm)
    count_false_alarm(false_alarm)
    seen = np.asarray(observed, np.float64).ravel()
    want = np.asarray(expected, np.float64).ravel()
    if seen.shape != want.shape:
        raise ValueError(f"observed and expected must agree in shape: {seen.shape}, {want.shape}")
    want = want * (seen.sum() / want.sum())
    impossible = (want == 0) & (seen > 0)
    if np.any(impossible):
        raise AssertionError(f"{name}: drawn though impossible, cells {np.flatnonzero(impossible)}")
    small = want < smallest
    seen = np.append(seen[~small], seen[small].sum())
    want = np.append(want[~small], want[small].sum())
    seen, want = seen[want > 0], want[want > 0]
    if seen.size < 2:
        raise ValueError(f"{name}: {seen.sum():.0f} draws leave fewer than 2 cells to compare")
    result = stats.chisquare(seen, want)
    if result.pvalue < false_alarm:
        worst = int(np.argmax((seen - want) ** 2 / want))
        raise AssertionError(
            f"{name} do not follow: p = {result.pvalue:.3g} < {false_alarm:.3g}; worst cell "
            f"{worst} holds {seen[worst]:.0f}, expected {want[worst]:.1f}"
        )
    return float(result.pvalue)


def check_uncorrelated(
    a: ArrayLike, b: ArrayLike, *, false_alarm: float = FALSE_ALARM, name: str = "draws"
) -> float:
    """Pearson: raises AssertionError where two sequences of draws are correlated.

    Args:
      a: Draws, any shape.
      b: As many draws, any shape.
      false_alarm: Probability of raising though they are independent.
      name: Shown in the message.

    Returns:
      The p-value.

    Raises:
      AssertionError: If the p-value is below `false_alarm`.
      TypeError: If `false_alarm` is not a number.
      ValueError: If `false_alarm` does not lie in (0, 1), or the lengths differ.

    Example:
      >>> import numpy as np
      >>> rng = np.random.default_rng(0)
      >>> p = check_uncorrelated(rng.normal(size=50), rng.normal(size=50))
    """
    check_probability("false_alarm", false_alarm)
    count_false_alarm(false_alarm)
    x, y = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    result = stats.pearsonr(x, y)
    if not result.pvalue >= false_alarm:
        raise AssertionError(
            f"{name} are correlated: r = {result.statistic:.3g} over {x.size}, "
            f"p = {result.pvalue:.3g} < {false_alarm:.3g}"
        )
    return float(result.pvalue)
