"""Bounds on one record's gradient, for losses of one inner product."""

import dataclasses
import functools
import math

import numpy as np
from scipy.special import expit

from dpjax.core._checks import check_nonnegative, check_positive_scalar

_ANGLES = 4096  # cells of the angle in which the slope is maximised over records
_FIRST, _HALVINGS = 64, 10  # cells of the angle between w and the bisector, and their halvings


@dataclasses.dataclass(frozen=True)
class SlopeBounds:
    r"""Bounds on one record's part of the gradient, $\varphi(\langle x, w\rangle, y)\,x$.

    The link $\varphi$, the derivative of the loss in the margin, is nondecreasing and Lipschitz
    in the margin for every y. Losses with jumps in it (hinge, absolute value) have no such bounds.

    Guarantee: none of its own. `ObjectivePerturbationGuarantee` holds for what these numbers
    bound: monotonicity, `curvature` and `slope` of a link of yours are your assertion.

    Args:
        curvature: Largest $\beta |x|^2$, with $\beta$ the Lipschitz constant of the link. *Public*.
        slope: Largest $|\varphi|\,|x|$. *Public*.
        two_sided: Whether $\varphi$ takes both signs for one y (least squares), or one (logistic).
        change: Largest $|\varphi x - \varphi' x'|$ over two records at one w, at most twice
            `slope`, which is the default. *Public*.
        adaptive: Whether inputs depend on an earlier Gaussian release, whose ratio `tolerance` of
            the guarantee has: bounds that maximise over the angle between two inputs are then left
            out.

    Raises:
        TypeError: If a value is no number.
        ValueError: If one is not positive and finite, or `change` above twice `slope`.

    Example:
        >>> SlopeBounds(1.0, 0.5, True).change
        1.0

    Source: Chaudhuri, Monteleoni and Sarwate 2011; Kifer, Smith and Thakurta 2012.
    """

    curvature: float
    slope: float
    two_sided: bool
    change: float | None = None
    adaptive: bool = False

    def __post_init__(self) -> None:
        check_positive_scalar("curvature", self.curvature)
        check_positive_scalar("slope", self.slope)
        largest = 2 * float(self.slope)
        change = largest if self.change is None else float(self.change)
        check_positive_scalar("change", change)
        if change > largest:
            raise ValueError(f"change must be at most 2 slope = {largest}, got {change}")
        vars(self).update(curvature=float(self.curvature), slope=float(self.slope), change=change)

    @property
    def largest_change(self) -> float:
        """`change`, as a number."""
        assert self.change is not None
        return self.change


def logistic_slopes(radius: float | None, input_bound: float = 1.0) -> SlopeBounds:
    r"""Bounds for the logistic loss on an l2 ball, or on the whole space.

    $\beta = 1/4$, $h = \mathrm{sigmoid}(\rho R)$ and change $\rho\,\Delta(\rho R)$ of
    `logistic_change`, with $\rho$ the input bound.

    Guarantee: labels are -1 and 1, and slopes are taken at points of the ball alone.

    Args:
        radius: R > 0 of the ball around 0; None for no ball. *Public*.
        input_bound: Largest l2 norm of x, an intercept's constant included. *Public*.

    Returns:
        `SlopeBounds`.

    Raises:
        TypeError: If an argument is no number.
        ValueError: If a value is not positive and finite.

    Example:
        >>> round(logistic_slopes(2.0).slope, 4)
        0.8808
    """
    check_positive_scalar("input_bound", input_bound)
    size = float(input_bound)
    if radius is None:
        return SlopeBounds(size**2 / 4, size, False)
    check_positive_scalar("radius", radius)
    slope, change = float(expit(size * radius)), logistic_change(size * float(radius))
    return SlopeBounds(size**2 / 4, size * slope, False, size * min(change, 2 * slope))


def squared_slopes(label_bound: float, radius: float, input_bound: float = 1.0) -> SlopeBounds:
    r"""Bounds for half the squared error on an l2 ball: $\beta = 1$, $L = \rho R + Y$.

    Guarantee: labels are clipped to [-Y, Y].

    Args:
        label_bound: Y > 0. *Public*.
        radius: R > 0 of the ball around 0. *Public*.
        input_bound: Largest l2 norm $\rho$ of x. *Public*.

    Returns:
        `SlopeBounds`.

    Raises:
        TypeError: If an argument is no number.
        ValueError: If a value is not positive and finite.

    Example:
        >>> squared_slopes(1.0, 1.0).slope
        2.0
    """
    check_positive_scalar("label_bound", label_bound)
    check_positive_scalar("radius", radius)
    check_positive_scalar("input_bound", input_bound)
    slope = input_bound * (input_bound * radius + label_bound)
    return SlopeBounds(input_bound * input_bound, slope, True)


def huber_slopes(threshold: float, input_bound: float = 1.0) -> SlopeBounds:
    r"""Bounds for the Huber loss at $\tau$: $\beta = 1$, $L = \tau$, whatever y is.

    Guarantee: needs no bound on labels, nor a ball.

    Args:
        threshold: $\tau > 0$, the residual from which on the loss is linear. *Public*.
        input_bound: Largest l2 norm of x. *Public*.

    Returns:
        `SlopeBounds`.

    Raises:
        TypeError: If an argument is no number.
        ValueError: If a value is not positive and finite.

    Example:
        >>> huber_slopes(0.3).change
        0.6
    """
    check_positive_scalar("threshold", threshold)
    check_positive_scalar("input_bound", input_bound)
    return SlopeBounds(input_bound * input_bound, input_bound * threshold, True)


@functools.lru_cache(maxsize=256)
def logistic_change(radius: float) -> float:
    r"""Upper bound on the change of one logistic gradient, over w in the ball and unit inputs.

    $$ \Delta(R) = \max_\theta F(R \sin\theta, R \cos\theta) + F(-R \sin\theta, R \cos\theta),
    \quad F(a, b) = \max_\phi \sin\phi\ \mathrm{sigmoid}(a \sin\phi + b \cos\phi) $$

    The maximum was only ever found at theta = 0; here it is bounded over cells of both angles, of
    which those that cannot hold it are left out.

    Guarantee: an upper bound, above the value at theta = 0 by less than 0.002 for R up to 20.

    Args:
        radius: R >= 0. *Public*.

    Returns:
        A number in (0, 2).

    Raises:
        TypeError: If an argument is no number.
        ValueError: If the radius is negative or not finite.

    Example:
        >>> 1.269841 < logistic_change(2.0) < 1.2705
        True
    """
    check_nonnegative("radius", radius)
    found = change_at_bisector(radius)
    edges = np.linspace(0.0, math.pi / 2, _FIRST + 1)
    low, high = edges[:-1], edges[1:]
    above = found
    for halving in range(_HALVINGS + 1):
        across = radius * np.cos(low)
        bound = _slope(radius * np.sin(high), across) + _slope(-radius * np.sin(low), across)
        open_ = bound > found
        if not open_.any():
            return found
        above, low, high = float(bound.max()), low[open_], high[open_]
        if halving < _HALVINGS:
            middle = (low + high) / 2
            low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
    return min(above, 2.0) * (1 + 1e-12)


def change_at_bisector(radius: float) -> float:
    """The change at theta = 0 on a fine grid: below the maximum, by rounding and spacing alone."""
    cosine = np.linspace(-1.0, 1.0, 200001)
    values = expit(radius * np.sqrt((1 + cosine) / 2)) * np.sqrt(2 * (1 - cosine))
    return float(values.max())


def _slope(along: np.ndarray, across: np.ndarray) -> np.ndarray:
    """An upper bound on F(along, across) for arrays `[m]`, by cells of phi."""
    edges = np.linspace(0.0, math.pi / 2, _ANGLES + 1)
    sine, cosine = np.sin(edges), np.cos(edges)
    result = np.empty_like(along)
    for first in range(0, along.size, 256):
        part = slice(first, first + 256)
        a, b = along[part, None], across[part, None]
        margin = np.maximum(a * sine[:-1], a * sine[1:]) + b * cosine[:-1]
        result[part] = (sine[1:] * expit(margin)).max(axis=1)
    return result
