"""The exact privacy curve of adaptive draws of bounded range, from above."""

import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from dp_accounting import dp_event as dpe
from numpy.typing import ArrayLike
from scipy import optimize

from dpjax.core import check_int, check_nonnegative, check_nonnegative_scalar, check_probability
from dpjax.privacy._guarantee import Guarantee

_WORK = 2.0**25  # about the number of points, cells and draws together: half a second
_FEWEST, _MOST = 4, 32  # cells that eta is cut into
_SMALLEST, _LARGEST = 1e-6, 20.0  # eta for which a grid is neither rounded nor too coarse
_SUM_ALONE = 1e100  # an epsilon above which nothing is computed but the sum of the ranges
_FOUND = 1e-7  # relative, on epsilon
_LEAST_RHO = 1e-15  # the accountant takes none that is positive and smaller
_ULP = 2.0**-53
_SMALL = 0.5  # of u = eta / 2; below, the series
_MARGIN = 2e-14  # relative; the formulas round by less than 1e-14
_BISECTIONS = 90


def _coefficients() -> list[float]:
    """Of u^2, u^4, ... in u coth u - 1 + log(sinh u / u), from the Bernoulli numbers."""
    bernoulli = [Fraction(1)]
    for n in range(1, 23):
        lower = sum((math.comb(n + 1, i) * b for i, b in enumerate(bernoulli)), Fraction(0))
        bernoulli.append(-lower / (n + 1))
    powers = range(2, 23, 2)
    return [float(2**n * bernoulli[n] / math.factorial(n) * Fraction(n + 1, n)) for n in powers]


_COEFFICIENTS = _coefficients()


def bounded_range_rho(eta: ArrayLike) -> Any:
    r"""The least rho such that a draw of bounded range eta is rho-zero-concentrated DP.

    $\rho(\eta) = x - 1 - \log x, \quad x = \eta / (1 - e^{-\eta})$

    A draw has bounded range eta if the log-ratios of its probabilities on two neighbours lie in an
    interval of length eta: the softmax of $\beta$ times scores, where eta is $\beta$ times the
    largest less the smallest change of a score. It is at most $\eta^2/8$ and below $\eta$. With
    $u = \eta/2$ the divergence of order $s + 1$ of the worst pair is
    $[(s+1)g((s+1)u) - s\,g(su) - g(u)]/s$, $g(v) = \log(\sinh v/v)$, and as $\rho(\eta)/\eta^2$
    falls it is at most $(s+1)\rho(\eta)$, with equality as $s \to 0$.

    Guarantee: `ZCDpEvent(bounded_range_rho(eta))` for each draw, also if later scores depend on
    earlier draws. Rounded up: an error below 1e-14 of the value, then 2e-14 of it on top; for small
    eta an alternating series, cut after a term that is added.

    Args:
        eta: Finite and >= 0, an array or a number. *Public*.

    Returns:
        rho, a float, or float64 of the shape of eta.

    Raises:
        TypeError: If eta is no number, or array of numbers.
        ValueError: If an eta is negative or not finite.

    Example:
        >>> round(bounded_range_rho(1.0), 5), 1 / 8
        (0.1233, 0.125)

    Source: Dong, Durfee and Rogers (2020), "Optimal differential privacy composition for
    exponential mechanisms"; Cesar and Rogers (2021), "Bounding, concentrating, and truncating";
    that it is tight for every order is shown above.

    Theory: docs/theory/privacy.md, P2.
    """
    value = _numbers("eta", eta)
    u = np.atleast_1d(value / 2)
    small, large = np.minimum(u, _SMALL) ** 2, np.maximum(u, _SMALL)
    series = np.zeros_like(small)
    for coefficient in reversed(_COEFFICIENTS):
        series = (series + coefficient) * small
    tail = -np.expm1(-2 * large)
    direct = large * (1 + np.exp(-2 * large)) / tail - 1 + large + np.log(tail / (2 * large))
    rho = np.where(u < _SMALL, series, direct) * (1 + _MARGIN)
    rho = np.where(u > 0, np.nextafter(rho, np.inf), 0.0)  # where it underflows
    return float(rho[0]) if value.ndim == 0 else rho.reshape(value.shape)


def bounded_range_eta(rho: ArrayLike) -> Any:
    r"""The largest bounded range whose draws are rho-zero-concentrated DP.

    $\max \{\eta : \rho(\eta) \le \rho\}$, see `bounded_range_rho`.

    Guarantee: rounded down, by about 1e-14 of it: `bounded_range_rho` of it is at most rho.

    Args:
        rho: Finite and >= 0, an array or a number; of one draw. *Public*.

    Returns:
        eta, a float, or float64 of the shape of rho; above $\sqrt{8\rho}$.

    Raises:
        TypeError: If rho is no number, or array of numbers.
        ValueError: If a rho is negative or not finite.

    Example:
        >>> bounded_range_rho(bounded_range_eta(0.4744747)) <= 0.4744747
        True
        >>> round(bounded_range_eta(0.4744747), 5)
        2.0

    Source: as `bounded_range_rho`.
    """
    value = _numbers("rho", rho)
    target = np.atleast_1d(value)
    low = math.sqrt(8) * np.sqrt(target) * (1 - 1e-13)
    large = 2 * (np.minimum(target, 8e307) + 1)  # whose double is a float
    high = np.where(target < 0.5, low * (1 + np.minimum(target, 0.5)), large) * (1 + 1e-12)
    for _ in range(_BISECTIONS):
        middle = low + (high - low) / 2
        within = bounded_range_rho(middle) <= target
        low, high = np.where(within, middle, low), np.where(within, high, middle)
    eta = np.where(bounded_range_rho(low) <= target, low, 0.0)
    return float(eta[0]) if value.ndim == 0 else eta.reshape(value.shape)


def _numbers(name: str, value: ArrayLike) -> np.ndarray:
    check_nonnegative(name, value)
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be real numbers, got {value!r}")
    return array.astype(np.float64)


def curve_on_grid(
    eta: float, draws: int, epsilon: float, cells: int, ends: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """D_T of `bounded_range_delta`, never below the exact one, rounding included.

    Args:
        eta: Of each draw.
        draws: T.
        epsilon: One of the points.
        cells: How many eta is cut into.
        ends: The points run from ends[0] - ends[1] to ends[1].

    Returns:
        The points, ascending, and D_T there.
    """
    width = eta / cells * (1 + 4 * _ULP)  # so that the cells together are at least eta
    lowest = max(-draws * eta, ends[0] - ends[1])
    below = math.ceil(max(0.0, epsilon - lowest) / width)
    above = max(1, math.ceil((ends[1] - epsilon) / width))
    points = epsilon + width * np.arange(-below, above + 1)
    x = points - 8 * _ULP * np.maximum(np.abs(points), epsilon)
    curve = _one_draw(x, cells * width)
    for _ in range(draws - 1):
        curve = _another_draw(curve, width, cells)
    return points, curve


def _one_draw(x: np.ndarray, eta: float) -> np.ndarray:
    """D_1: the maximum over t is at the middle of x and eta."""
    inside = np.expm1((np.minimum(x, eta) - eta) / 2) ** 2 / -math.expm1(-eta)
    curve = np.where(x <= -eta, -np.expm1(np.minimum(x, 0.0)), inside)
    return np.minimum(curve * (1 + 32 * _ULP), 1.0)


def _another_draw(curve: np.ndarray, width: float, cells: int) -> np.ndarray:
    """D_j from D_{j-1}, both on the grid."""
    size, norm = curve.size, -math.expm1(-cells * width)
    least, steep = math.exp(-cells * width), -1 / math.expm1(-width)
    padded = np.concatenate([np.ones(cells), curve, np.full(cells, curve[-1])])

    def shifted(cell: int) -> tuple[np.ndarray, np.ndarray]:
        """The curve after the loss t at the start of a cell, and after t - eta."""
        near, far = cells - cell, 2 * cells - cell
        return padded[near : near + size], padded[far : far + size]

    best = np.zeros(size)
    a, c = shifted(0)
    for cell in range(cells + 1):
        stays = -math.expm1((cell - cells) * width) / norm
        np.maximum(best, stays * a + least * math.expm1(cell * width) / norm * c, out=best)
        if cell == cells:
            break
        b, d = shifted(cell + 1)
        # in y = e^t the chords give const - slope y - inverse / y
        start, stop = math.exp(cell * width), math.exp((cell + 1) * width)
        first, second = b - a, d - c
        inverse = start * steep * (first - least * second)
        slope = least * (a - c + steep * (first - second))
        peaked = (inverse > 0) & (slope > 0)  # else the largest value is at an end
        y = np.sqrt(np.where(peaked, inverse, 1.0) / np.where(peaked, slope, 1.0))
        y = np.clip(y, start, stop)
        share = steep * (1 - start / y)
        value = (1 - least * y) * (a + share * first) + least * (y - 1) * (c + share * second)
        np.maximum(best, value / norm, out=best)
        a, c = b, d
    # the last term: what a y that is off by rounding can miss
    return np.minimum(best * (1 + 256 * _ULP) + 256 * _ULP / norm * padded[:size], 1.0)


def bounded_range_delta(eta: float, draws: int, epsilon: float) -> float:
    r"""The delta at epsilon of adaptive draws of bounded range eta each.

    $D_0(x) = (1 - e^x)_+, \quad D_j(x) = \max_{0 \le t \le \eta} p_t D_{j-1}(x - t) + (1 - p_t)
    D_{j-1}(x - t + \eta), \quad p_t = (1 - e^{t - \eta}) / (1 - e^{-\eta}), \quad \delta(\epsilon)
    = D_T(\epsilon)$

    Guarantee: an upper bound, rounding included, and the least of three: $D_T$ on a grid, the
    zCDP of `bounded_range_rho`, and 0 from $T\eta$ on. $y D(x - \log y)$ is convex in the ratio y,
    so two-point losses are the worst, and $D(\log\gamma)$ is convex in $\gamma$, so chords between
    grid points lie above it; the maximum over each cell of t of what the chords give is exact. The
    window is padded by 1 on the left and by its last value on the right. The first draw has a
    closed form. Delta is 1 to 2% too large up to 250 draws, more beyond; above 4,000 draws, or if
    eta is outside [1e-6, 20], zCDP alone. Each draw adds 256 ulps of its largest terms.

    Args:
        eta: Finite and >= 0, the bounded range of each draw under the relation at hand. *Public*.
        draws: Number T of draws, >= 1; each may depend on the earlier ones. *Public*.
        epsilon: Finite and >= 0. *Public*.

    Returns:
        delta in [0, 1].

    Raises:
        TypeError: If an argument is no number.
        ValueError: If a value is outside its bound.

    Example:
        >>> bounded_range_delta(0.1, 10, 1.0 + 1e-9)
        0.0
        >>> bounded_range_delta(0.13, 10, 1.0) < 1e-8
        True

    Source: Dong, Durfee and Rogers (2020), "Optimal differential privacy composition for
    exponential mechanisms", of which this is the adaptive case.

    Theory: docs/theory/privacy.md, P3.
    """
    check_draws(eta, draws)
    check_nonnegative_scalar("epsilon", epsilon)
    return delta_at(float(eta), int(draws), float(epsilon), _MOST)


def bounded_range_epsilon(eta: float, draws: int, delta: float) -> float:
    """The epsilon at delta of adaptive draws of bounded range eta each.

    The inverse of `bounded_range_delta`, rounded up by at most 1e-6 of it.

    Guarantee: as `bounded_range_delta`; at most the number of draws times eta.

    Args:
        eta: As in `bounded_range_delta`. *Public*.
        draws: As in `bounded_range_delta`. *Public*.
        delta: In (0, 1). *Public*.

    Returns:
        epsilon >= 0.

    Raises:
        TypeError: If an argument is no number.
        ValueError: If a value is outside its bound.

    Example:
        >>> zcdp = Guarantee(dpe.ZCDpEvent(100 * bounded_range_rho(0.03))).epsilon(1e-9)
        >>> 0.94 * zcdp < bounded_range_epsilon(0.03, 100, 1e-9) < 0.96 * zcdp
        True

    Source: as `bounded_range_delta`.
    """
    check_draws(eta, draws)
    check_probability("delta", delta)
    return _epsilon_at(float(eta), int(draws), float(delta))


def check_draws(eta: float, draws: int) -> None:
    """Raises unless eta is finite and >= 0, and draws an integer >= 1."""
    check_nonnegative_scalar("eta", eta)
    check_int("draws", draws, minimum=1)


def _concentrated(eta: float, draws: int) -> Guarantee:
    return Guarantee(dpe.ZCDpEvent(max(draws * bounded_range_rho(eta), _LEAST_RHO)))


@functools.lru_cache(maxsize=4096)
def delta_at(eta: float, draws: int, epsilon: float, most: int) -> float:
    """The least of the three bounds, with at most so many cells in eta."""
    if Fraction(eta) * draws <= Fraction(epsilon):
        return 0.0
    concentrated = _concentrated(eta, draws).delta(epsilon)
    cells = _cells(eta, draws, most)
    if cells == 0:
        return concentrated
    # what lies beyond is reached with a probability far below delta
    reach = _reach(eta, draws, 1e-6 * max(concentrated, 1e-250))
    points, curve = curve_on_grid(eta, draws, epsilon, cells, (epsilon, reach))
    return min(concentrated, float(curve[np.searchsorted(points, epsilon)]))


@functools.lru_cache(maxsize=4096)
def _epsilon_at(eta: float, draws: int, delta: float) -> float:
    if eta == 0:
        return 0.0
    high = draws * eta
    if high > _SUM_ALONE:
        return math.nextafter(high, math.inf)
    if Fraction(high) < draws * Fraction(eta):
        high = math.nextafter(high, math.inf)
    high = min(high, _concentrated(eta, draws).epsilon(delta))
    cells = _cells(eta, draws, _MOST)
    if cells == 0 or high == 0:
        return high
    if draws == 1:  # in closed form, rounded up
        root = math.sqrt(delta * -math.expm1(-eta))
        return min(high, max(0.0, (eta + 2 * math.log1p(-root)) * (1 + _FOUND)))
    reach = _reach(eta, draws, 1e-6 * delta)
    points, curve = curve_on_grid(eta, draws, high, cells, (high / 2, reach))
    guess = max(0.0, _crossing(points, curve, delta))

    def excess(epsilon: float) -> float:
        """Of log delta over its target."""
        return math.log(max(delta_at(eta, draws, max(0.0, epsilon), _MOST) / delta, 1e-12))

    low, found = guess - (points[1] - points[0]), guess
    if excess(low) > 0 > excess(guess):
        found = optimize.brentq(excess, low, guess, xtol=_FOUND * high, rtol=1e-14)
    for option in (found, found + _FOUND * high, guess, guess + 1e-5 * high):
        if excess(option) <= 0:
            return min(high, max(0.0, float(option)))
    return high


def _crossing(x: np.ndarray, curve: np.ndarray, delta: float) -> float:
    """Where the chords, straight in e^x, come down to delta."""
    if curve[-1] > delta:
        return float(x[-1])
    stop = int(np.argmax(curve <= delta))
    if stop == 0:
        return float(x[0])
    fall = (curve[stop - 1] - delta) / (curve[stop - 1] - curve[stop])
    return float(x[stop - 1] + np.log1p(fall * np.expm1(x[stop] - x[stop - 1])))


def _cells(eta: float, draws: int, most: int) -> int:
    """How many cells eta is cut into; 0 if the grid would be too large or too coarse."""
    if draws == 1:
        return 1  # in closed form
    afforded = math.isqrt(int(_WORK / (8 * float(draws) ** 1.5)))
    # few draws are cheap, and their curve bends more
    cells = min(most * max(1, 16 // draws), afforded)
    return cells if cells >= _FEWEST and _SMALLEST <= eta <= _LARGEST else 0


def _reach(eta: float, draws: int, probability: float) -> float:
    """A loss that is exceeded with less than this probability."""
    rho = draws * bounded_range_rho(eta)
    return min(draws * eta, rho + 2 * math.sqrt(-rho * math.log(probability)))
