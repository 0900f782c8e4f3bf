"""Steps, draws and refreshes of the anytime method that make an explicit error bound small."""

import math

import numpy as np

from dpjax.core import check_int, check_positive
from dpjax.solvers.vertices._constants import Constants
from dpjax.solvers.vertices._plan import (
    TYPICAL_GRADIENT,
    TYPICAL_SAMPLING,
    VertexPlan,
    draw_grid,
    fixed_or,
    mean_sizes,
    tapered_scale,
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
    constants: Constants,
    num_records: int,
    rho: float,
    influence: int,
    *,
    certified: bool = False,
    steps: int | None = None,
    num_draws: int | None = None,
    refresh: int | None = None,
) -> VertexPlan:
    r"""Minimises the bound of the anytime method over integers T, K and q.

    $$ \frac{\ell}{\tau T} + \frac{\tau L^2}{2} + \min\Big(\frac{4 L_2}{K}, \frac{8 L_1}{\sqrt K}
       \Big) + \frac{2 L_1}{K'} + 1_{q > 1} \Big(4 \tau q A_K^2 +
       \frac{4 L_1 q (1 + \log(T/q))}{T}\Big), \qquad \tau \le \frac{1}{4 L q} $$

    with $A_K = 2 L_2 / K + L_1 \sqrt{2 (1 + \log 2m) / K}$, under the privacy budget, and
    K' draws for the result.

    Args:
      constants: Public constants of the problem, one block.
      num_records: Public number of records n.
      rho: Zero-concentrated budget.
      influence: How many records' worth a neighbour differs by in one batch sum.
      certified: As in `plan_mirror_descent`.
      steps: Fixes the number of steps.
      num_draws: Fixes K.
      refresh: Fixes q.

    Returns:
      The best plan found.
    """
    check_int("num_records", num_records, minimum=1)
    check_positive("rho", rho)
    n = num_records
    grids = (
        fixed_or("steps", steps, lambda n: _geometric(n, 250), n),
        fixed_or("num_draws", num_draws, lambda n: draw_grid(n)[:250], n),
        fixed_or("refresh", refresh, lambda n: _geometric(min(n, 2000), 40), n),
    )
    many, draws, every = np.meshgrid(*grids, indexing="ij", sparse=True)
    number = 1 / every + every / many + OUTPUT_SHARE  # of draws a step and K, about
    room = np.sqrt(2 * rho / draws / number) * tapered_scale(n, many) / influence
    weights = (1.0, 1.0) if certified else (TYPICAL_SAMPLING, TYPICAL_GRADIENT)
    last = np.maximum(draws, OUTPUT_SHARE * draws * many / every)
    _, objective = _minimise(constants, many + 1, draws, every, last, room, weights)
    objective = np.where(every <= many + 1, objective, np.inf)
    at = np.unravel_index(int(np.argmin(objective)), objective.shape)
    chosen, k, q = (int(grid[i]) for grid, i in zip(grids, at, strict=True))
    last_k = output_draws(chosen, k, q)
    sizes = mean_sizes(chosen, n, influence, taper_tail(last_k, k, q))
    worst = np.min(sizes / np.sqrt(k * (refreshes_left(chosen, q) - 1) + last_k))
    exact = np.asarray((1 - 1e-6) * math.sqrt(2 * rho) * worst / influence)
    whole = [np.asarray(float(v)) for v in (chosen + 1, k, q, last_k)]
    size, _ = _minimise(constants, whole[0], whole[1], whole[2], whole[3], exact, weights)
    bound = _bound(constants, whole[0], whole[1], whole[2], whole[3], size, (1.0, 1.0))
    half = constants.half_ranges[0]
    return VertexPlan(chosen, k, q, (float(size) / half,), "anytime", float(bound))


def _minimise(
    constants: Constants,
    iterates: np.ndarray,
    draws: np.ndarray,
    every: np.ndarray,
    last: np.ndarray,
    room: np.ndarray,
    weights: tuple[float, float],
) -> tuple[np.ndarray, np.ndarray]:
    """The best size tau L within the room, and the bound there."""
    half, log_m = constants.half_ranges[0], constants.log_vertices[0]
    between = 4 * every * _variation(constants, draws) / half * (every > 1)
    slope = weights[1] * half / 2 + weights[0] * between
    free = np.sqrt(log_m * half / iterates / slope)
    size = np.minimum(np.minimum(free, room), np.where(every > 1, 1 / (4 * every), np.inf))
    return size, _bound(constants, iterates, draws, every, last, size, weights)


def _bound(
    constants: Constants,
    iterates: np.ndarray,
    draws: np.ndarray,
    every: np.ndarray,
    last: np.ndarray,
    size: np.ndarray,
    weights: tuple[float, float],
) -> np.ndarray:
    half, log_m = constants.half_ranges[0], constants.log_vertices[0]
    smooth, third = constants.joint_smoothness, constants.third_order
    sampling = (
        np.minimum(4 * third / draws, 8 * smooth / np.sqrt(draws))
        + 2 * smooth / last
        + np.where(
            every > 1,
            4 * size / half * every * _variation(constants, draws)
            + 4 * smooth * every * (1 + np.log(iterates / every)) / iterates,
            0,
        )
    )
    return log_m * half / (size * iterates) + weights[1] * half * size / 2 + weights[0] * sampling


def _variation(constants: Constants, draws: np.ndarray) -> np.ndarray:
    """A_K^2: mean square of the largest change of a gradient by sampling K vertices."""
    spread = np.sqrt(2 * (1 + math.log(2) + constants.log_vertices[0]) / draws)
    return (2 * constants.third_order / draws + constants.joint_smoothness * spread) ** 2


def _geometric(top: int, points: int) -> np.ndarray:
    return np.unique(np.round(np.geomspace(1, top, points)).astype(int))
