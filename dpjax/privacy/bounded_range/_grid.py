"""The worst adaptive draws of bounded range, step by step on a grid of losses, from above."""

import math

import numpy as np

_ULP = 2.0**-53


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
