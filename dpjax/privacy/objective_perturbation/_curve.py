"""Privacy curves of objective perturbation: one bounded determinant, one draw of noise."""

import math

import numpy as np
from dp_accounting import NeighboringRelation
from scipy.special import log_ndtr, ndtr

from dpjax.privacy.objective_perturbation._slopes import SlopeBounds

_REPLACE_ONE = NeighboringRelation.REPLACE_ONE
_ANGLES, _COARSE = 2000, 20  # cells of the angle between two records; joined where dear
_RADII = 600  # cells of the length of the noise in the plane of two records
_SURE, _BEYOND = 9.0, 4.0  # deviations around the length at which the profile rises


def gaussian_profile(epsilon: float | np.ndarray, shift: float | np.ndarray) -> np.ndarray:
    """Hockey-stick divergence of unit Gaussians at distance `shift`, for real epsilon."""
    epsilon, shift = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(shift, float))
    safe = np.where(shift > 0, shift, 1.0)
    with np.errstate(over="ignore"):
        second = np.exp(epsilon + log_ndtr(-safe / 2 - epsilon / safe))
        moved = np.maximum(ndtr(safe / 2 - epsilon / safe) - second, 0.0)
        still = np.maximum(-np.expm1(epsilon), 0.0)
    return np.where(shift > 0, moved, still)


def determinant_epsilon(curvature: float, lam: float) -> float:
    """log(1 + beta / lam): what the Jacobian of noise to minimiser costs, once."""
    return math.log1p(curvature / lam)


def noise_delta(
    epsilon: float, bounds: SlopeBounds, scale: float, relation: NeighboringRelation, hidden: float
) -> float:
    """Delta of the Gaussian draw at epsilon >= 0, beyond the determinant's share.

    `hidden` is the distance, in deviations, of the approximate minimisers under their own noise.
    """
    # a sum of Gaussian profiles over the corners of a box of slopes that contains 0
    length = bounds.slope / scale
    if relation != _REPLACE_ONE:
        shifts = [length, length if bounds.two_sided else 0.0]
    elif not bounds.two_sided:
        shifts = [0.0, length, length, 2 * length]
    else:  # squares of two pairs add up to (2 length)^2
        largest = 4 * length**2 + hidden**2
        convex = largest <= 2 * (math.hypot(1.0, epsilon) - 1) and not bounds.adaptive
        shifts = [2 * length, 2 * length, *2 * [0.0 if convex else 2**0.5 * length]]
    corners = float(gaussian_profile(epsilon, np.hypot(shifts, hidden)).sum())
    if bounds.two_sided or bounds.adaptive or relation != _REPLACE_ONE or epsilon <= 0:
        return min(1.0, corners)
    return min(1.0, corners, _cone(epsilon, bounds, scale, hidden))


def _cone(epsilon: float, bounds: SlopeBounds, scale: float, hidden: float) -> float:
    """The maximum over the angle between two records of slopes of one sign.

    The longest difference is `slope` up to an angle of pi / 3, where the cone of differences is
    widest at 0, and grows from there on.
    """
    cells = _ANGLES // _COARSE if hidden else _ANGLES
    edges = np.linspace(math.pi / 3, math.pi, cells + 1)
    right = np.minimum(bounds.largest_change, 2 * bounds.slope * np.sin(edges[1:] / 2))
    shifts = np.concatenate([[min(bounds.slope, bounds.largest_change)], right]) / scale
    shares = np.concatenate([[0.5], (math.pi - edges[:-1]) / (2 * math.pi)])
    # from the first cell on in which the shift is largest, the share falls
    last = int(np.argmax(shifts)) + 1
    shifts, shares = shifts[:last], shares[:last]
    outside = gaussian_profile(epsilon, np.hypot(shifts, hidden))
    if hidden == 0:
        log_value = epsilon + log_ndtr(-epsilon / shifts - shifts / 2)
        value = math.sqrt(2 * math.pi) * shifts * np.exp(log_value)
        ray = np.where(shifts**2 <= 2 * epsilon, np.minimum(value, 1.0), 1.0)
        return float(np.max(shares * ray + outside))
    still = (1 - shares) * gaussian_profile(epsilon, hidden)
    return float(np.max(shares * _hidden_ray(epsilon, shifts, hidden) + outside + still))


def _hidden_ray(epsilon: float, shifts: np.ndarray, hidden: float) -> np.ndarray:
    """An upper sum over cells of a Rayleigh length: the profile grows with the length."""
    shift = shifts[:, None]
    rise, width = (epsilon - shift**2 / 2) / shift, _SURE * hidden / shift
    first = np.maximum(rise - width, 0.0)
    edges = first + np.linspace(0.0, 1.0, _RADII + 1) * (2 * width + _BEYOND)
    tail = np.exp(-(edges**2) / 2)
    weights = -np.diff(tail, axis=1)
    values = gaussian_profile(epsilon - edges * shift - shift**2 / 2, hidden)
    below = (1 - tail[:, 0]) * values[:, 0]
    return below + np.sum(weights * values[:, 1:], axis=1) + tail[:, -1]
