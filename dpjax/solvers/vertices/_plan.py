"""Numbers of steps and draws, and step sizes, that make an explicit error bound small."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpjax.core import check_int, check_positive
from dpjax.sampling import IndependentPartition, tapered_sizes
from dpjax.solvers.vertices._constants import Constants

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
    """

    steps: int
    num_draws: int
    refresh: int
    step_size: tuple[float, ...]
    output: str
    bound: float


def plan_mirror_descent(
    constants: Constants,
    num_records: int,
    rho: float,
    influence: int,
    output: str | None = None,
    *,
    certified: bool = False,
    steps: int | None = None,
    num_draws: int | None = None,
) -> VertexPlan:
    r"""Minimises the bound of mirror descent with vertex sampling over integers.

    With blocks b of half-ranges $L_b$ and $\ell_b = \log m_b$, after T iterates of K draws,

    $$ \sum_b \frac{2 \ell_b}{\tau_b T} + \frac52 \tau_b L_b^2 + \text{(sampling error)}, \qquad
       \sum_b (\tau_b L_b)^2 \le \frac{2 \rho}{c^2 K'} \min_t \frac{b_t^2}{T - 1 - t} $$

    for saddle points, and $\ell / (\tau T) + \tau L^2 / 2$ for one block. The second inequality is
    the privacy budget: c is 2 under replace-one, else 1, K' the draws a step and block, and $b_t$
    the sizes of tapered batches.

    Args:
      constants: Public constants of the problem.
      num_records: Public number of records n.
      rho: Zero-concentrated budget.
      influence: c, how many records' worth a neighbour differs by in one batch sum.
      output: `"played"`, `"fresh"`, or None for the better bound.
      certified: Whether to minimise the bound itself, rather than what is typical: the bound
        without its worst case over comparators, with a fifth of the sampling error and, for one
        block, a tenth of the squared gradients, which is about what runs on synthetic games and
        regressions show. Either way `bound` is the bound.
      steps: Fixes the number of steps.
      num_draws: Fixes K.

    Returns:
      The best plan found.
    """
    check_int("num_records", num_records, minimum=1)
    check_positive("rho", rho)
    grid = (
        fixed_or("steps", steps, step_grid, num_records)[:, None],
        fixed_or("num_draws", num_draws, draw_grid, num_records)[None, :],
    )
    plans = [
        _best(constants, num_records, rho, influence, kind, *grid, certified)
        for kind in (("played", "fresh") if output is None else (output,))
    ]
    return min(plans)[1]


def _best(
    constants: Constants,
    n: int,
    rho: float,
    influence: int,
    output: str,
    steps: np.ndarray,
    draws: np.ndarray,
    certified: bool,
) -> tuple[float, VertexPlan]:
    each = draws + (output == "fresh")
    room = np.sqrt(2 * rho / each) * tapered_scale(n, steps) / influence
    sampling = sampling_error(constants, steps + 1, draws, output)
    sizes, objective = _step_sizes(constants, steps + 1, room, certified)
    objective = objective + (1.0 if certified else TYPICAL_SAMPLING) * sampling
    at = np.unravel_index(int(np.argmin(objective)), objective.shape)
    chosen, count = int(steps[at[0], 0]), int(draws[0, at[1]])
    exact = exact_room(rho, count + (output == "fresh"), chosen, n, influence)
    sizes, _ = _step_sizes(constants, np.array(chosen + 1), exact, certified)
    bound = _regret(constants, np.array(chosen + 1), sizes) + sampling[at]
    plan = VertexPlan(
        chosen,
        count,
        1,
        tuple(float(s / r) for s, r in zip(sizes, constants.half_ranges, strict=True)),
        output,
        float(bound),
    )
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


def _regret(constants: Constants, iterates: np.ndarray, sizes: list[np.ndarray]) -> np.ndarray:
    terms = zip(sizes, _terms(constants, iterates, True), strict=True)
    return np.asarray(sum(a / s + c * s for s, (a, c) in terms))


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
    regret = sum(a / s + c * s for s, (a, c) in zip(sizes, terms, strict=True))
    return sizes, np.asarray(regret)


def sampling_error(
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


def tapered_scale(n: int, steps: np.ndarray) -> np.ndarray:
    """About the least `size_t / sqrt(S - t)` of `tapered_sizes`."""
    return np.maximum((n - steps / 2) / (2 / 3 * (steps + 1) ** 1.5), 1 / np.sqrt(steps))


def exact_room(rho: float, draws: int, steps: int, n: int, influence: int) -> np.ndarray:
    """Largest root of sum_b (tau_b L_b)^2 that the budget allows with the batches that run."""
    sizes = mean_sizes(steps, n, influence)
    share = np.min(sizes / np.sqrt(np.arange(steps, 0, -1)))
    # a little less, since the budget's rho is rounded
    return np.asarray((1 - 1e-6) * math.sqrt(2 * rho / draws) * share / influence)


def mean_sizes(steps: int, n: int, influence: int, tail: int = 0) -> np.ndarray:
    """Public sizes of the batches that `single_pass_sampler` makes."""
    if influence == 2:
        return tapered_sizes(steps, n, tail)
    return IndependentPartition(steps, n, 1, tapered=True, tail=tail).sizes


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


def step_grid(n: int) -> np.ndarray:
    """Candidate numbers of steps, about geometric."""
    return np.unique(np.round(np.geomspace(1, n, 2000)).astype(int))


def draw_grid(n: int) -> np.ndarray:
    """Candidate numbers of draws: all small ones, then about geometric."""
    top = max(2, min(n, 20_000))
    grid = np.round(np.geomspace(1, top, 200)).astype(int)
    return np.unique(np.concatenate([np.arange(1, min(top, 129)), grid]))
