"""Norms and prefix noise of a buffered Toeplitz matrix, on the host."""

import numpy as np
from scipy import signal


def coefficients(num_steps: int, omega: np.ndarray, decay: np.ndarray) -> np.ndarray:
    r"""$c_0 = 1$, $c_i = \sum_j \omega_j \lambda_j^{i-1}$, `[num_steps]`."""
    powers = np.arange(num_steps - 1, dtype=np.float64)
    terms = [w * rate**powers for w, rate in zip(omega, decay, strict=True)]
    return np.concatenate([[1.0], np.sum(terms, axis=0) + np.zeros(num_steps - 1)])


def column_norms(num_steps: int, omega: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Norms of the columns of the lower triangular Toeplitz matrix, `[num_steps]`."""
    return np.sqrt(np.cumsum(coefficients(num_steps, omega, decay) ** 2))[::-1]


def prefix_stddev(scales: np.ndarray, omega: np.ndarray, decay: np.ndarray) -> np.ndarray:
    r"""Deviation of $\gamma_t = \sum_{\tau \le t} a_\tau y_\tau$, $a = \text{scales} \cdot n$.

    With $y = C^{-1} z$ of coefficients $d_0 = 1$, $d_i = \sum_k w_k \mu_k^{i-1}$ the covariance of
    two $y$ is a sum of powers of $\mu_k$ in their distance, so that $E[\gamma_{t-1} y_t]$ comes
    from one linear recurrence for each k.
    """
    num_steps = len(scales)
    a = scales * column_norms(num_steps, omega, decay)
    # similar to diag(decay) - 1 omega^T, which moves the buffers on
    root = np.sqrt(omega)
    mu, vectors = np.linalg.eigh(np.diag(decay) - np.outer(root, root))
    w = -((root @ vectors) ** 2)
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
