"""Sizes of `OnlineToNonconvex` that minimise what is proved of it, and the proved bound."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dpjax.solvers.nonconvex._plan import first_share, mean_absolute_coordinate
from dpjax.transforms import BufferedToeplitz, SplitNoise

_MOST_MOVES = 10**8
_MOST_IN_BLOCK = 10**6
_MOST_PASSES = 1000


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


class Setting(NamedTuple):
    """What a plan is made for; all *public*.

    Attributes:
      num_records: n.
      dim: d.
      lipschitz: L, also where records are clipped.
      gap: How far the loss may fall.
      smoothing: Radius of the smoothing.
      reach: Largest distance of a block's points from their mean.
      multiplier: Noise of one release that may cost the whole budget, in units of what a record
        adds, and twice that where a neighbour has another record in its place.
      directions: Pairs of opposite points for a record's estimate; None for gradients.
    """

    num_records: int
    dim: int
    lipschitz: float
    gap: float
    smoothing: float
    reach: float
    multiplier: float
    directions: int | None = None


class Plan(NamedTuple):
    """Sizes, and the bound on the mean Goldstein norm that they give.

    Attributes:
      bound: See `stationarity_bound`.
      period: Moves in a period.
      moves: T, a multiple of the period and of the block.
      block: M.
      displacement: D.
      first_records: Records of the first estimate of a period.
      change_records: Records of each change, 0 without.
      learning_rate: $2 D / (G_1 \\sqrt M)$.
    """

    bound: float
    period: int
    moves: int
    block: int
    displacement: float
    first_records: int
    change_records: int
    learning_rate: float


def plan_single_pass(setting: Setting, periods: tuple[int, ...] = (1,)) -> Plan:
    """The best sizes where each record takes part once, over a grid."""
    return _least(_single_pass(setting, periods), setting, periods)


def plan_full_batch(
    setting: Setting, periods: tuple[int, ...] = (1,), most_moves: int = _MOST_PASSES
) -> Plan:
    """The best sizes where all records take part in all moves, over a grid."""
    return _least(_full_batch(setting, periods, most_moves), setting, periods)


def _least(plans: Iterator[Plan], setting: Setting, periods: tuple[int, ...]) -> Plan:
    best = min(plans, key=lambda plan: plan.bound, default=None)
    if best is None:
        raise ValueError(
            f"period must be smaller for num_records = {setting.num_records} and the number of "
            f"moves: nothing fits period = {min(periods)}"
        )
    return best


def change_clip(setting: Setting, displacement: float) -> float:
    """Where a record's change over two displacements is clipped: few or none are larger."""
    slope = setting.lipschitz
    return min(2 * slope, math.sqrt(_change_square(setting, displacement)))


def first_clip(setting: Setting) -> float:
    """Where what a record gives is clipped: at L for gradients, 3/2 of its root mean square."""
    if setting.directions is None:
        return setting.lipschitz
    return 1.5 * setting.lipschitz * math.sqrt(1 + setting.dim / setting.directions)


def _single_pass(setting: Setting, periods: tuple[int, ...]) -> Iterator[Plan]:
    n, z = setting.num_records, setting.multiplier
    for period in periods:
        for block in _grid(1, min(n, _MOST_IN_BLOCK)):
            for moves in _grid(block, min(n, _MOST_MOVES), per_decade=12):
                moves = _multiple(moves, block, period)
                count = moves // period
                for share in (0.25, 0.5, 0.75) if period > 1 else (1.0,):
                    first = int(n * share / count)
                    change = (n - first * count) // (moves - count) if period > 1 else 0
                    if first < 1 or (period > 1 and change < 1):
                        continue
                    far = 2 * setting.reach / (block + 1)
                    variance = (z * first_clip(setting) / first) ** 2
                    if period > 1:
                        unit = BufferedToeplitz(period - 1).prefix_stddev()
                        later = z * change_clip(setting, far) / change
                        variance += later**2 * float(np.sum(unit**2)) / period
                    yield _plan(setting, variance, period, moves, block, first, change)


def _full_batch(setting: Setting, periods: tuple[int, ...], most_moves: int) -> Iterator[Plan]:
    n, z = setting.num_records, setting.multiplier
    for period in periods:
        for block in _grid(1, min(most_moves, _MOST_IN_BLOCK)):
            for moves in _grid(block, most_moves, per_decade=12):
                moves = _multiple(moves, block, period)
                if moves > most_moves:
                    continue
                far = 2 * setting.reach / (block + 1)
                first, change = first_clip(setting), change_clip(setting, far)
                noise = SplitNoise(period, first_share(period, first, change), 0.0)
                scales = np.where(np.arange(period) == 0, first, change)
                unit = float(np.mean(noise.prefix_stddev(scales) ** 2))
                variance = (z / n) ** 2 * (moves // period) * unit
                yield _plan(setting, variance, period, moves, block, n, n if period > 1 else 0)


def _plan(
    setting: Setting, variance: float, period: int, moves: int, block: int, first: int, change: int
) -> Plan:
    far = 2 * setting.reach / (block + 1)
    full = first == setting.num_records
    square = setting.lipschitz**2
    spread = 0.0 if setting.directions is None else direction_excess(setting.dim)
    spread /= setting.directions or 1
    # over all records, those of the sample are the target, and only directions are random
    error = square * ((0.0 if full and setting.directions else 1.0) + spread) / first
    if period > 1:
        error += period / 2 * _change_square(setting, far) / change
    moments = Moments(error + setting.dim * variance, period == 1, setting.lipschitz)
    bound = stationarity_bound(
        moments,
        gap=setting.gap + setting.lipschitz * setting.smoothing,
        moves=moves,
        block=block,
        displacement=far,
    )
    rate = 2 * far / (moments.length * math.sqrt(block))
    return Plan(bound, period, moves, block, far, first, change, rate)


def _change_square(setting: Setting, displacement: float) -> float:
    """Bound on the mean square of a record's change over two displacements."""
    ratio = 2 * displacement / setting.smoothing
    turn = (mean_absolute_coordinate(setting.dim) * ratio) ** 2
    if setting.directions is None:
        return setting.lipschitz**2 * min(4.0, turn + 2.0)
    return setting.lipschitz**2 * (turn + (setting.dim * ratio) ** 2 / setting.directions)


def _multiple(moves: int, block: int, period: int) -> int:
    unit = math.lcm(block, period)
    return max(unit, moves // unit * unit)


def _grid(least: int, most: int, per_decade: int = 8) -> list[int]:
    """Whole numbers that grow by a factor."""
    count = max(1, math.ceil(per_decade * math.log10(max(most / least, 1.0)))) + 1
    return sorted({int(v) for v in np.geomspace(least, max(least, most), count)})
