"""Coefficients of a buffered Toeplitz matrix that minimise the noise of the prefixes."""

import functools
from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from dpjax.transforms.noise.correlated._toeplitz import (
    coefficients,
    inverse_coefficients,
    pattern_norms,
    prefix_errors,
    root_mean_square,
)

Objective = Callable[[np.ndarray, np.ndarray], float]


@functools.lru_cache(maxsize=64)
def fitted(
    num_steps: int, most: int, separation: int, num_buffers: int = 3, objective: str = "mean"
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Weights and decays for `most` participations; of the starts' results the best one."""

    def error(omega: np.ndarray, decay: np.ndarray) -> float:
        norms = pattern_norms(coefficients(num_steps, omega, decay), most, separation)
        errors = prefix_errors(inverse_coefficients(num_steps, omega, decay))
        size = root_mean_square(errors) if objective == "mean" else float(errors[-1])
        return float(np.log(norms[0] * size))

    reaches = {num_steps, separation, min(4 * separation, num_steps)}
    starts = [spread(reach, num_buffers) for reach in sorted(reaches)]
    # a decay of nearly 1 and little weight, which makes the largest prefix smaller
    starts.append(np.append(starts[0][:-1], np.log(num_steps) + 8))
    starts[-1][num_buffers - 1] -= 2
    return minimised(error, starts, num_steps)


def minimised(
    error: Objective, starts: list[np.ndarray], num_steps: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Weights and decays of least error, by L-BFGS from each start, in order of decay."""
    # beyond this a decay is 0 or 1, a weight 0, as far as so many steps can tell
    reach = np.log(max(num_steps, 2)) + 10

    def objective(x: np.ndarray) -> float:
        return error(*_decode(x))

    best = min(starts, key=objective)
    for start in starts:
        found = optimize.minimize(
            objective,
            start,
            jac="3-point",
            method="L-BFGS-B",
            bounds=[(-reach, reach)] * len(start),
            options={"maxiter": 500, "ftol": 1e-11, "gtol": 1e-7},
        )
        if found.fun < objective(best):
            best = found.x
    omega, decay = _decode(best)
    order = np.argsort(decay)
    return tuple(omega[order].tolist()), tuple(decay[order].tolist())


def _decode(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights that are positive and sum to less than 1, and decays in (0, 1)."""
    logits, decay = np.split(x, 2)
    return special.softmax(np.append(logits, 0.0))[:-1], special.expit(decay)


def spread(reach: int, num_buffers: int) -> np.ndarray:
    """Decays 1 - 1/scale for time scales from 1 to `reach`, weights like their -1/2 power."""
    scales = 1 + np.geomspace(1, max(reach, 2), num_buffers + 2)[1:-1]
    omega = 0.5 * scales**-0.5 / np.sum(scales**-0.5)
    return np.concatenate([np.log(omega / (1 - omega.sum())), special.logit(1 - 1 / scales)])
