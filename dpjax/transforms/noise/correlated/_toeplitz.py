"""Toeplitz matrices, buffered or any: sensitivity, prefix noise and coefficients, on the host."""

import functools
from collections.abc import Callable

import numpy as np
from scipy import optimize, signal, special

Objective = Callable[[np.ndarray, np.ndarray], float]


def pattern_norms(coefficients: np.ndarray, most: int, separation: int) -> np.ndarray:
    r"""$n_j = \| \sum_{e < k} C_{:, j + e b} \|_2$ for j < b, `[min(b, T)]`; the largest is first.

    For coefficients $\ge 0$ that do not increase from index b on, the first is the sensitivity
    for records of at most k = `most` steps at least b = `separation` apart: the sum of $X_{ij}$, $X
    = C^\top C \ge 0$, over pairs of a record's steps is largest where they are 0, b, 2b, ..., for
    moving the a-th of them there keeps all terms of $X_{ij} = \sum_s c_s c_{s + j - i}$, adds more,
    and shrinks no factor.

    Args:
      coefficients: c, `[T]`.
      most: k.
      separation: b.
    """
    steps = len(coefficients)
    rows = -(-steps // separation)
    padded = np.zeros((rows, separation))
    padded.reshape(-1)[:steps] = coefficients
    sums = np.cumsum(padded, axis=0)
    sums[most:] -= sums[:-most].copy() if most < rows else 0
    squares = np.cumsum(sums.reshape(-1)[:steps] ** 2)
    return np.sqrt(squares[::-1][:separation])


def prefix_errors(inverse: np.ndarray) -> np.ndarray:
    r"""$(\sum_{i \le t} B_i^2)^{1/2}$, the deviation of each prefix of $C^{-1} z$, `[T]`.

    Args:
      inverse: The coefficients of $C^{-1}$, `[T]`; B are their running sums.
    """
    return np.sqrt(np.cumsum(np.cumsum(inverse) ** 2))


def root_mean_square(stddev: np.ndarray) -> float:
    """Over the steps."""
    return float(np.sqrt(np.mean(np.square(stddev))))


def coefficients(num_steps: int, omega: np.ndarray, decay: np.ndarray) -> np.ndarray:
    r"""$c_0 = 1$, $c_i = \sum_j \omega_j \lambda_j^{i-1}$, `[num_steps]`."""
    powers = np.arange(num_steps - 1, dtype=np.float64)
    terms = [w * rate**powers for w, rate in zip(omega, decay, strict=True)]
    return np.concatenate([[1.0], np.sum(terms, axis=0) + np.zeros(num_steps - 1)])


def inverse_coefficients(num_steps: int, omega: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Those of the inverse, `[num_steps]`."""
    w, mu = _inverse(omega, decay)
    powers = mu ** np.arange(num_steps - 1, dtype=np.float64)[:, None]
    return np.append(1.0, powers @ w)


def _inverse(omega: np.ndarray, decay: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Weights and decays of the inverse, $d_i = \sum_k w_k \mu_k^{i-1}$."""
    # similar to diag(decay) - 1 omega^T, which moves the buffers on
    root = np.sqrt(omega)
    mu, vectors = np.linalg.eigh(np.diag(decay) - np.outer(root, root))
    return -((root @ vectors) ** 2), mu


def prefix_stddev(a: np.ndarray, omega: np.ndarray, decay: np.ndarray) -> np.ndarray:
    r"""Deviation of $\gamma_t = \sum_{\tau \le t} a_\tau y_\tau$, `[num_steps]`.

    With $y = C^{-1} z$ of coefficients $d_0 = 1$, $d_i = \sum_k w_k \mu_k^{i-1}$ the covariance of
    two $y$ is a sum of powers of $\mu_k$ in their distance, so that $E[\gamma_{t-1} y_t]$ comes
    from one linear recurrence for each k.
    """
    num_steps = len(a)
    w, mu = _inverse(omega, decay)
    before = np.arange(num_steps)  # terms beside d_0 of y_t: t - 1
    variance, covariance = np.ones(num_steps), np.zeros(num_steps)
    for k, rate in enumerate(mu):
        share = np.ones(num_steps)
        for j, other in enumerate(mu):
            total = _geometric(rate * other, before)
            variance += w[k] * w[j] * total
            share += w[j] * rate * total
        covariance += w[k] * signal.lfilter([0.0, 1.0], [1.0, -rate], a * share)
    return np.sqrt(np.cumsum(2 * a * covariance + a**2 * variance))


def _geometric(ratio: float, terms: np.ndarray) -> np.ndarray:
    """1 + ratio + ... of so many terms."""
    if abs(1 - ratio) < 1e-12:
        return terms.astype(np.float64)
    if ratio > 0:
        return -np.expm1(terms * np.log(ratio)) / (1 - ratio)
    return (1 - ratio**terms) / (1 - ratio)


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
