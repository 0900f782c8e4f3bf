"""Levels, batches and step size of the multilevel method, from public constants."""

import math
from typing import NamedTuple

import numpy as np

from dpjax.core import check_int, check_positive
from dpjax.solvers.vertices._constants import Constants
from dpjax.solvers.vertices._plan import mean_sizes
from dpjax.transforms import Multilevel, draw_levels, multilevel

_TAPER_GAIN = 1.5


class MultilevelPlan(NamedTuple):
    """What a plan chose.

    Attributes:
      levels: Level of each estimate, drawn without data.
      max_level: Largest level M.
      steps: Batches in all: 3 for an estimate of level 0, 4 * 2^N + 1 for level N.
      step_size: Step size of each block, in units of 1 / gradient.
    """

    levels: tuple[int, ...]
    max_level: int
    steps: int
    step_size: tuple[float, ...]


def batches_of(levels: np.ndarray, estimator: Multilevel) -> np.ndarray:
    """Batches of each estimate."""
    sizes = [estimator.records(level) for level in range(estimator.max_level + 1)]
    return np.array(sizes)[levels]


def draws_left(levels: np.ndarray, estimator: Multilevel) -> np.ndarray:
    """For each batch, the draws of one block after its estimate: 2^(N+1) + 1 in each later one."""
    each = 2 ** (levels.astype(np.int64) + 1) + 1
    after = np.cumsum(each[::-1])[::-1] - each
    return np.repeat(after, batches_of(levels, estimator))


def plan_multilevel(
    constants: Constants,
    num_records: int,
    rho: float,
    influence: int,
    *,
    seed: int = 0,
    max_level: int | None = None,
) -> MultilevelPlan:
    r"""Unit batches such that privacy just allows the step size that the error bound asks for.

    With $G^2 = L_0^2 + L_2^2 + \ell L_1^2$ and U the sum of $2^N$ over estimates, $\tau =
    \sqrt{\ell / (G^2 U)}$ and a unit of $b_0 = c L_0 \sqrt{3 \ell / \rho} / G$ records (for two
    blocks), cut by 1.5 since batches are tapered; $M = \lfloor \log_2 \sqrt U \rfloor$.

    Args:
      constants: Public constants of the problem.
      num_records: Public number of records n.
      rho: Zero-concentrated budget.
      influence: c, how many records' worth a neighbour differs by in one batch sum.
      seed: For the levels, which are *public*.
      max_level: Fixes M.

    Returns:
      The plan.

    Raises:
      ValueError: If there are too few records for two estimates.
    """
    check_int("num_records", num_records, minimum=1)
    check_positive("rho", rho)
    half, log_m = max(constants.half_ranges), sum(constants.log_vertices)
    smooth = constants.joint_smoothness
    blocks = len(constants.half_ranges)
    moment = math.sqrt(half**2 + constants.third_order**2 + log_m * smooth**2)
    unit = influence * half * math.sqrt(1.5 * blocks * log_m / rho) / moment / _TAPER_GAIN
    unit = max(1.0, unit)
    total = max(1.0, num_records / (1 + 5 * unit))
    top = math.floor(math.log2(math.sqrt(total))) if max_level is None else max_level
    size = math.sqrt(log_m / (moment**2 * total))
    batches = int(num_records // unit)
    levels = draw_levels(seed, top, batches)
    used = np.cumsum(batches_of(levels, multilevel(top)))
    levels = levels[: int(np.searchsorted(used, batches, side="right"))]
    step_size = tuple(size for _ in range(blocks))
    # the realised number of draws may exceed its mean: then the last estimates are left out
    while len(levels) and not _fits(levels, top, constants, num_records, rho, influence, size):
        levels = levels[: max(len(levels) - max(1, len(levels) // 50), 0)]
    if len(levels) < 2:  # the last estimate moves nothing that is drawn
        raise ValueError(
            f"num_records = {num_records} is too few for two multilevel estimates at rho = "
            f"{rho:.3g}"
        )
    steps = int(batches_of(levels, multilevel(top)).sum())
    return MultilevelPlan(tuple(int(n) for n in levels), top, steps, step_size)


def _fits(
    levels: np.ndarray,
    top: int,
    constants: Constants,
    n: int,
    rho: float,
    influence: int,
    size: float,
) -> bool:
    steps = int(batches_of(levels, multilevel(top)).sum())
    sizes = mean_sizes(steps, n, influence)
    worst = float(np.max(draws_left(levels, multilevel(top)) / np.square(sizes)))
    spent = sum((influence * size * 2 * half) ** 2 / 8 for half in constants.half_ranges)
    return spent * worst <= rho * (1 - 1e-6)
