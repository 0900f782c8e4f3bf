"""Levels, batches and step size of the multilevel method, from public constants."""

import math
from typing import NamedTuple

import numpy as np

from dpjax.solvers.vertices._constants import Setting
from dpjax.solvers.vertices._plan import draft_sampler
from dpjax.transforms import draw_levels, multilevel

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


def batches_of(levels: np.ndarray, max_level: int) -> np.ndarray:
    """Batches of each estimate."""
    sizes = [multilevel(max_level).records(level) for level in range(max_level + 1)]
    return np.array(sizes)[levels]


def draws_left(levels: np.ndarray, max_level: int) -> np.ndarray:
    """For each batch, the draws of one block after its estimate: 2^(N+1) + 1 in each later one."""
    each = 2 ** (levels.astype(np.int64) + 1) + 1
    after = np.cumsum(each[::-1])[::-1] - each
    return np.repeat(after, batches_of(levels, max_level))


def plan_multilevel(setting: Setting, seed: int, max_level: int | None) -> MultilevelPlan:
    """Unit batches such that privacy just allows the step size that the error bound asks for."""
    constants, rho, influence = setting.constants, setting.rho, setting.influence
    half, log_m = max(constants.half_ranges), sum(constants.log_vertices)
    smooth = constants.joint_smoothness
    blocks = len(constants.half_ranges)
    moment = math.sqrt(half**2 + constants.third_order**2 + log_m * smooth**2)
    unit = influence * half * math.sqrt(1.5 * blocks * log_m / rho) / moment / _TAPER_GAIN
    unit = max(1.0, unit)
    total = max(1.0, setting.num_records / (1 + 5 * unit))
    top = math.floor(math.log2(math.sqrt(total))) if max_level is None else max_level
    size = math.sqrt(log_m / (moment**2 * total))
    batches = int(setting.num_records // unit)
    levels = draw_levels(seed, top, batches)
    used = np.cumsum(batches_of(levels, top))
    levels = levels[: int(np.searchsorted(used, batches, side="right"))]
    spent = sum((influence * size * 2 * half) ** 2 / 8 for half in constants.half_ranges)
    # the realised number of draws may exceed its mean: then the last estimates are left out
    while len(levels) and spent * _worst(setting, levels, top) > rho * (1 - 1e-6):
        levels = levels[: max(len(levels) - max(1, len(levels) // 50), 0)]
    if len(levels) < 2:  # the last estimate moves nothing that is drawn
        raise ValueError(
            f"num_records = {setting.num_records} is too few for two multilevel estimates at "
            f"rho = {rho:.3g}"
        )
    steps = int(batches_of(levels, top).sum())
    return MultilevelPlan(tuple(int(n) for n in levels), top, steps, (size,) * blocks)


def _worst(setting: Setting, levels: np.ndarray, top: int) -> float:
    """The largest number of draws after a batch over its squared size."""
    left = draws_left(levels, top)
    sizes = draft_sampler(setting.num_records, len(left), setting.influence).sizes
    return float(np.max(left / np.square(sizes)))
