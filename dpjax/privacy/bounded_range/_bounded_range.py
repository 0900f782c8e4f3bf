"""zCDP cost of a draw of bounded range, and its inverse."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpjax.core._checks import check_nonnegative

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
