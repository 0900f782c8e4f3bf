"""Steps, draws and refreshes of the anytime method that make an explicit error bound small."""

import math
from typing import NamedTuple

import numpy as np

from dpjax.solvers.vertices._constants import Constants, Setting
from dpjax.solvers.vertices._plan import (
    TYPICAL_GRADIENT,
    TYPICAL_SAMPLING,
    VertexPlan,
    about_room,
    exact_room,
)

OUTPUT_SHARE = 0.1  # of all draws, for the result


def output_draws(steps: int, num_draws: int, refresh: int) -> int:
    """Draws for the result: a tenth of all others, since they are drawn only once."""
    return max(num_draws, math.ceil(OUTPUT_SHARE * num_draws * refreshes_left(steps, refresh)[0]))


def taper_tail(output: int, num_draws: int, refresh: int) -> int:
    """The draws for the result in units of a step's draws."""
    return (output - num_draws) * refresh // num_draws


def refreshes_left(steps: int, refresh: int) -> np.ndarray:
    """Draws after each batch, `[steps]`: at times 2..q, at multiples of q, and after the last.

    Batch t (from 0) is used between times t + 1 and t + 2; there are steps + 1 times.
    """
    times = np.arange(1, steps + 2)
    drawn = (times <= refresh) | (times % refresh == 0) | (times == steps + 1)
    return np.cumsum(drawn[::-1])[::-1][1:]


def plan_anytime(
    setting: Setting, steps: np.ndarray, draws: np.ndarray, refreshes: np.ndarray, certified: bool
) -> VertexPlan:
    """The best plan of the anytime method over numbers of steps, draws and refreshes."""
    grids = (steps, draws, refreshes)
    many, count, every = np.meshgrid(*grids, indexing="ij", sparse=True)
    weights = (1.0, 1.0) if certified else (TYPICAL_SAMPLING, TYPICAL_GRADIENT)
    last = np.maximum(count, OUTPUT_SHARE * count * many / every)
    number = count * (1 / every + every / many + OUTPUT_SHARE)  # of draws a step, about
    candidates = _Bound(setting.constants, many + 1, count, every, last)
    sizes = candidates.best_size(about_room(setting, many, number), weights)
    objective = np.where(every <= many + 1, candidates.at(sizes, weights), np.inf)
    at = np.unravel_index(int(np.argmin(objective)), objective.shape)
    chosen, k, q = (int(grid[i]) for grid, i in zip(grids, at, strict=True))
    last_k = output_draws(chosen, k, q)
    left = k * (refreshes_left(chosen, q) - 1) + last_k
    room = exact_room(setting, left, taper_tail(last_k, k, q))
    bound = _Bound(setting.constants, *(np.asarray(float(v)) for v in (chosen + 1, k, q, last_k)))
    size = bound.best_size(room, weights)
    step_size = (float(size) / setting.constants.half_ranges[0],)
    stated = float(bound.at(size, (1.0, 1.0)))
    return VertexPlan(chosen, k, q, step_size, "anytime", stated, last_k)


class _Bound(NamedTuple):
    """The bound of the anytime method, for arrays of T iterates, K draws, q, and K' at the end.

    `weights` multiply sampling errors and squared gradients.
    """

    constants: Constants
    iterates: np.ndarray
    draws: np.ndarray
    every: np.ndarray
    last: np.ndarray

    def best_size(self, room: np.ndarray, weights: tuple[float, float]) -> np.ndarray:
        """The best size tau L within the room."""
        half, log_m = self.constants.half_ranges[0], self.constants.log_vertices[0]
        slope = weights[1] * half / 2 + weights[0] * self._drift()
        free = np.sqrt(log_m * half / self.iterates / slope)
        most = np.where(self.every > 1, 1 / (4 * self.every), np.inf)
        return np.minimum(np.minimum(free, room), most)

    def at(self, size: np.ndarray, weights: tuple[float, float]) -> np.ndarray:
        """The bound at a size tau L."""
        half, log_m = self.constants.half_ranges[0], self.constants.log_vertices[0]
        smooth, third = self.constants.joint_smoothness, self.constants.third_order
        held = 4 * smooth * self.every * (1 + np.log(self.iterates / self.every)) / self.iterates
        sampling = (
            np.minimum(4 * third / self.draws, 8 * smooth / np.sqrt(self.draws))
            + 2 * smooth / self.last
            + size * self._drift()
            + np.where(self.every > 1, held, 0)
        )
        regret = log_m * half / (size * self.iterates) + weights[1] * half * size / 2
        return regret + weights[0] * sampling

    def _drift(self) -> np.ndarray:
        """How gradients change between two draws, in units of tau L; A_K^2 is its last factor.

        That is the mean square of the largest change of a gradient by sampling K vertices.
        """
        smooth, third = self.constants.joint_smoothness, self.constants.third_order
        spread = np.sqrt(2 * (1 + math.log(2) + self.constants.log_vertices[0]) / self.draws)
        variation = (2 * third / self.draws + smooth * spread) ** 2
        return 4 * self.every * variation / self.constants.half_ranges[0] * (self.every > 1)
