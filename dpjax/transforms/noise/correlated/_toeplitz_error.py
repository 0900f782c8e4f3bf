"""Sensitivity and prefix noise of lower triangular Toeplitz matrices, on the host."""

import numpy as np


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
