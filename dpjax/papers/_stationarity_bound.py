"""The proved bound, with constants, on the Goldstein norm that `OnlineToNonconvex` reaches."""

import math
from typing import NamedTuple


class Moments(NamedTuple):
    """Mean squares of a private gradient estimate: of its error, and of its own length.

    Attributes:
      error: $G_0^2 \\ge E\\|\\hat g - \\nabla h\\|^2$.
      unbiased: Whether the mean error is 0 given the past.
      lipschitz: L, so that the estimate's own mean square is at most $L^2 + G_0^2$.
    """

    error: float
    unbiased: bool
    lipschitz: float

    @property
    def length(self) -> float:
        """$G_1$, root of a bound on the mean square of an estimate."""
        return math.sqrt(self.lipschitz**2 + self.error)


def direction_excess(dim: int) -> float:
    r"""$A_d^2 = d^2 / (d - 1)$: excess mean square of a gradient from one pair of values, over L^2.

    It is 0 for d = 1, where one pair of points says all.
    """
    return 0.0 if dim == 1 else dim**2 / (dim - 1)


def stationarity_bound(
    moments: Moments, *, gap: float, moves: int, block: int, displacement: float
) -> float:
    r"""Bound on the mean Goldstein norm at the mean of a uniformly drawn block.

    $$ \frac{\Phi}{D T} + \frac{2 G_1}{\sqrt M} + \frac{G_0}{\sqrt M} \quad\text{(unbiased)},
       \qquad \frac{\Phi}{D T} + \frac{2 G_1}{\sqrt M} + 2 G_0 \quad\text{(else)} $$

    for the step size $2 D / (G_1 \sqrt M)$ and a constant schedule, at radius
    $\rho + (M + 1) D / 2$.

    Args:
      moments: Of the estimates.
      gap: $\Phi$, how far the smoothed loss may fall.
      moves: T.
      block: M.
      displacement: D.

    Returns:
      The bound; vacuous where it exceeds L.

    Theory: docs/theory/accuracy.md, A9.
    """
    root = math.sqrt(block)
    error = math.sqrt(moments.error)
    drift = error / root if moments.unbiased else 2 * error
    return gap / (displacement * moves) + 2 * moments.length / root + drift
