"""Coefficients of a banded Toeplitz matrix that minimise the noise of the prefixes."""

import functools

import numpy as np
from scipy import optimize, signal

_OVERFLOWS = 1e3  # in place of the logarithm of an infinite error


@functools.lru_cache(maxsize=256)
def fitted_bands(num_steps: int, bands: int) -> tuple[float, ...]:
    r"""Coefficients of least $\|c\|^2 \sum_t \sum_{i \le t} B_i^2$, B the sums of those of 1/c.

    By L-BFGS from square-root and from geometric coefficients: in long runs of few bands either one
    may stop short.
    """
    if bands == 1:
        return (1.0,)
    j = np.arange(1, bands)
    starts = (np.cumprod((2 * j - 1) / (2 * j)), 0.6**j)
    found = [
        optimize.minimize(
            _log_error,
            start,
            (num_steps,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 1000, "maxfun": 2000, "ftol": 1e-13, "gtol": 1e-9},
        )
        for start in starts
    ]
    best = min(found, key=lambda result: result.fun)
    return (1.0, *best.x.tolist())


def _log_error(rest: np.ndarray, num_steps: int) -> tuple[float, np.ndarray]:
    """Of the mean square, with its gradient in all coefficients but the first, which is 1."""
    c = np.append(1.0, rest)
    weights = np.arange(num_steps, 0, -1) / num_steps
    with np.errstate(over="ignore", invalid="ignore"):
        sums = signal.lfilter([1.0], c, np.ones(num_steps))
        error = weights @ sums**2
        if not np.isfinite(error) or error > 1e100:
            return _OVERFLOWS, np.zeros_like(rest)
        back = signal.lfilter([1.0], c, (weights * sums)[::-1])[::-1]
        slope = np.array([back[j:] @ sums[: num_steps - j] for j in range(1, len(c))])
    square = c @ c
    return float(np.log(error) + np.log(square)), -2 * slope / error + 2 * rest / square
