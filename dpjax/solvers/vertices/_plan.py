"""Numbers of steps and draws, and step sizes, that make an explicit error bound small."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpjax.core import check_int
from dpjax.sampling import IndependentPartition, TaperedPartition
from dpjax.solvers.vertices._constants import Constants, Setting

# what runs show of the bounds' terms: sampling errors, and for one block, where the average of a
# batch is far smaller than a record's gradient may be, the square of the gradient
TYPICAL_SAMPLING = 0.2
TYPICAL_GRADIENT = 0.1


class VertexPlan(NamedTuple):
    """What a plan chose, from public constants alone.

    Attributes:
      steps: Gradient steps S; there are S + 1 iterates.
      num_draws: Vertices K that stand for an iterate.
      refresh: Steps between two draws (anytime method only, else 1).
      step_size: Step size of each block, in units of 1 / gradient.
      output: `"played"` or `"fresh"`; `"anytime"` for that method.
      bound: Bound on the expected duality gap, or excess risk.
      output_draws: Vertices drawn for the result (anytime method only, else None).
    """

    steps: int
    num_draws: int
    refresh: int
    step_size: tuple[float, ...]
    output: str
    bound: float
    output_draws: int | None = None


def plan_mirror_descent(
    setting: Setting, output: str, steps: np.ndarray, draws: np.ndarray, certified: bool
) -> tuple[float, VertexPlan]:
    """The least objective of mirror descent over numbers of steps and of draws, and its plan."""
    constants = setting.constants
    steps, draws = steps[:, None], draws[None, :]
    each = draws + (output == "fresh")
    sampling = _sampling_error(constants, steps + 1, draws, output)
    sizes, objective = _step_sizes(
        constants, steps + 1, about_room(setting, steps, each), certified
    )
    objective = objective + (1.0 if certified else TYPICAL_SAMPLING) * sampling
    at = np.unravel_index(int(np.argmin(objective)), objective.shape)
    chosen, count = int(steps[at[0], 0]), int(draws[0, at[1]])
    left = (count + (output == "fresh")) * np.arange(chosen, 0, -1)
    iterates = np.array(chosen + 1)
    sizes, _ = _step_sizes(constants, iterates, exact_room(setting, left), certified)
    bound = _regret(_terms(constants, iterates, True), sizes) + sampling[at]
    step_size = (float(s / r) for s, r in zip(sizes, constants.half_ranges, strict=True))
    plan = VertexPlan(chosen, count, 1, tuple(step_size), output, float(bound))
    return float(objective[at]), plan


def _terms(
    constants: Constants, iterates: np.ndarray, certified: bool
) -> list[tuple[np.ndarray, float]]:
    """(a_b, c_b) of each block, with regret sum_b a_b / s_b + c_b s_b at sizes s_b = tau_b L_b."""
    # a saddle point's comparator depends on the run: a second copy of the regret, and a deviation
    # of up to 2 L, pay for that
    saddle = len(constants.half_ranges) > 1
    far, slope = (2.0, 2.5) if certified and saddle else (1.0, 0.5)
    if not certified and not saddle:
        slope *= TYPICAL_GRADIENT
    pairs = zip(constants.log_vertices, constants.half_ranges, strict=True)
    return [(far * log_m * half / iterates, slope * half) for log_m, half in pairs]


def _regret(terms: list[tuple[np.ndarray, float]], sizes: list[np.ndarray]) -> np.ndarray:
    return np.asarray(sum(a / s + c * s for s, (a, c) in zip(sizes, terms, strict=True)))


def _step_sizes(
    constants: Constants, iterates: np.ndarray, room: np.ndarray, certified: bool
) -> tuple[list[np.ndarray], np.ndarray]:
    """Sizes with sum of squares <= room^2 that make the regret terms small, and these terms."""
    terms = _terms(constants, iterates, certified)
    # where privacy binds, sum a_b / s_b is least at s_b ~ a_b^(1/3); what one block leaves over
    # goes to the other
    norm = np.sqrt(sum(a ** (2 / 3) for a, _ in terms))
    free = [np.sqrt(a / c) for a, c in terms]
    sizes = [
        np.minimum(s, room * a ** (1 / 3) / norm) for s, (a, _) in zip(free, terms, strict=True)
    ]
    for b in range(len(sizes)):
        others = sum(s**2 for i, s in enumerate(sizes) if i != b)
        sizes[b] = np.minimum(free[b], np.sqrt(np.maximum(room**2 - others, sizes[b] ** 2)))
    return sizes, _regret(terms, sizes)


def _sampling_error(
    constants: Constants, iterates: np.ndarray, draws: np.ndarray, output: str
) -> np.ndarray:
    """What standing for an iterate by K of its vertices adds to the bound."""
    smooth, third = constants.joint_smoothness, constants.third_order
    saddle = len(constants.half_ranges) > 1
    if output == "fresh":
        factor = 4 if saddle else 1
        bias = np.minimum(
            4 * factor * third / draws,
            (16 * math.sqrt(2) if saddle else 8.0) * smooth / np.sqrt(draws),
        )
        if not saddle:
            return bias + 2 * smooth / iterates
        log_total = sum(constants.log_vertices)
        return bias + 4 * smooth / iterates + 4 * smooth * np.sqrt(log_total / iterates)
    # gradients at the points that are played; nothing if the loss is linear in each block
    played = 4 * sum(constants.smoothness) / draws
    if third > 0:
        return played + 0 * iterates
    # no third derivative: gradients at sampled points are unbiased, and the average of the points
    # is near that of the iterates in the directions of the m_b columns of the Hessian
    spreads = [np.sqrt(2 * (math.log(2) + m) / (iterates * draws)) for m in constants.log_vertices]
    near = 2 * sum(w * s for w, s in zip(constants.smoothness, spreads, strict=True))
    if saddle:
        near = near + constants.coupling * sum(spreads)
    return np.minimum(played, near)


def about_room(setting: Setting, steps: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """About `exact_room` with so many draws a step and block."""
    scale = tapered_scale(setting.num_records, steps)
    return np.sqrt(2 * setting.rho / draws) * scale / setting.influence


def tapered_scale(n: int, steps: np.ndarray) -> np.ndarray:
    """About the least `size_t / sqrt(S - t)` of `tapered_sizes`."""
    return np.maximum((n - steps / 2) / (2 / 3 * (steps + 1) ** 1.5), 1 / np.sqrt(steps))


def exact_room(setting: Setting, left: np.ndarray, tail: int = 0) -> np.ndarray:
    """Largest root of sum_b (tau_b L_b)^2 that allows `left` draws after each batch that runs."""
    sizes = draft_sampler(setting.num_records, len(left), setting.influence, tail=tail).sizes
    # a little less, since the budget's rho is rounded
    root = (1 - 1e-6) * math.sqrt(2 * setting.rho) / setting.influence
    return np.asarray(root * np.min(sizes / np.sqrt(left)))


def draft_sampler(
    num_records: int, steps: int, influence: int, order: str = "random", tail: int = 0
) -> TaperedPartition | IndependentPartition:
    """Disjoint tapered batches: cut from an order under replace-one, else of too few slots."""
    if influence == 2:
        return TaperedPartition(steps, num_records, order, tail)
    return IndependentPartition(steps, num_records, 1, tapered=True, tail=tail)


def fixed_or(name: str, value: int | None, grid: Callable[[int], np.ndarray], n: int) -> np.ndarray:
    """The value that the caller fixed, or a grid for n records.

    Raises:
      ValueError: If a fixed number of steps exceeds the number of records.
    """
    if value is None:
        return grid(n)
    check_int(name, value, minimum=1)
    if name == "steps" and value > n:
        raise ValueError(f"steps must be <= num_records = {n}, got {value}")
    return np.array([value])


def geometric(top: int, points: int) -> np.ndarray:
    """At most so many integers from 1 to `top`, about geometric."""
    return np.unique(np.round(np.geomspace(1, top, points)).astype(int))


def draw_grid(n: int) -> np.ndarray:
    """Candidate numbers of draws: all small ones, then about geometric."""
    top = max(2, min(n, 20_000))
    return np.unique(np.concatenate([np.arange(1, min(top, 129)), geometric(top, 200)]))
