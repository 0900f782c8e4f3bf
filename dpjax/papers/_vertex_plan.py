"""Shared parts of plans for methods of one pass over vertices."""

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from dpjax.core import PyTree, check_int
from dpjax.papers._tapered import TaperedPartition
from dpjax.privacy import Budget, check_budget, zcdp_budget
from dpjax.privacy._budget import relation_factor
from dpjax.sampling import IndependentPartition
from dpjax.sampling._capacity import DELTA_SHARE
from dpjax.solvers._vertex_problem import VertexProblem, check_vertices

# what runs show of the bounds' terms: sampling errors, and for one block, where the average of a
# batch is far smaller than a record's gradient may be, the square of the gradient
_TYPICAL_SAMPLING = 0.2
_TYPICAL_GRADIENT = 0.1


class BlockProblem(VertexProblem, Protocol):
    """A problem over vertices with what methods of one pass on its blocks need."""

    @property
    def signs(self) -> tuple[int, ...]:
        """1 where the loss is minimised, -1 where it is maximised."""

    @property
    def coupling(self) -> float | None:
        """The same across blocks."""

    @property
    def third_order(self) -> float | None:
        """Lipschitz constant of all second derivatives; None where unknown."""

    def gradients_at_vertices(self, indices: PyTree, batch: PyTree) -> PyTree:
        """Gradients `[B, p]` of each record at the means of vertices, for each block."""

    def gradients_at(self, points: PyTree, batch: PyTree) -> PyTree:
        """Gradients `[B, p]` of each record at a point of each block."""


class Constants(NamedTuple):
    """Constants in vertex coordinates, one entry a block.

    Attributes:
      log_vertices: log of the numbers of vertices.
      half_ranges: Half the range of a record's gradient.
      smoothness: Largest modulus of second derivatives within a block.
      coupling: The same across blocks.
      third_order: Lipschitz constant of all second derivatives; 0 for quadratics, infinite where
        it is unknown.
    """

    log_vertices: tuple[float, ...]
    half_ranges: tuple[float, ...]
    smoothness: tuple[float, ...]
    coupling: float
    third_order: float

    @property
    def joint_smoothness(self) -> float:
        """Largest modulus of all second derivatives."""
        return max(*self.smoothness, self.coupling)


def constants_of(problem: BlockProblem, one_block: bool = False) -> Constants:
    """The constants a problem states; smoothness defaults to half the gradient's range."""
    check_vertices(problem, one_block)
    half = tuple(float(r) / 2 for r in problem.ranges)
    given = problem.smoothness
    if given is not None and not isinstance(given, tuple | list):
        given = (given,) * len(half)
    smoothness = half if given is None else tuple(map(float, given))
    coupling = min(half) if len(half) > 1 else 0.0
    # what is linear in each block has no third derivatives
    unknown = math.inf if any(smoothness) else 0.0
    return Constants(
        tuple(math.log(domain.num_vertices) for domain in problem.domains),
        half,
        smoothness,
        coupling if problem.coupling is None else float(problem.coupling),
        unknown if problem.third_order is None else float(problem.third_order),
    )


class Setting(NamedTuple):
    """What a plan of a single pass is made from; all of it *public*.

    Attributes:
      constants: Of the problem.
      num_records: n, the number of records.
      rho: Zero-concentrated budget, less what a surplus of records may cost.
      influence: c, how many records' worth a neighbour differs by in one batch sum.
      certified: Whether the bound itself is minimised, rather than what is typical.
    """

    constants: Constants
    num_records: int
    rho: float
    influence: int
    certified: bool = False

    @property
    def typical(self) -> tuple[float, float]:
        """Which part of sampling errors and of squared gradients counts."""
        return (1.0, 1.0) if self.certified else (_TYPICAL_SAMPLING, _TYPICAL_GRADIENT)

    def candidates(
        self, name: str, value: int | None, grid: Callable[[int], np.ndarray]
    ) -> np.ndarray:
        """The value that the caller fixed, or a grid for n records.

        Raises:
          ValueError: If a fixed number of steps exceeds the number of records.
        """
        if value is None:
            return grid(self.num_records)
        check_int(name, value, minimum=1)
        if name == "steps" and value > self.num_records:
            raise ValueError(f"steps must be <= num_records = {self.num_records}, got {value}")
        return np.array([value])

    def about_room(self, steps: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """About `room` with so many draws a step and block."""
        scale = tapered_scale(self.num_records, steps)
        return np.sqrt(2 * self.rho / draws) * scale / self.influence

    def room(self, left: np.ndarray, tail: int = 0) -> np.ndarray:
        """Largest root of sum_b (tau_b L_b)^2 that allows `left` draws after each batch."""
        sizes = draft_sampler(self.num_records, len(left), self.influence, tail=tail).sizes
        # a little less, since the budget's rho is rounded
        root = (1 - 1e-6) * math.sqrt(2 * self.rho) / self.influence
        return np.asarray(root * np.min(sizes / np.sqrt(left)))


def setting_of(
    problem: BlockProblem,
    num_records: int,
    budget: Budget,
    certified: bool = False,
    one_block: bool = False,
) -> Setting:
    """What plans a single pass, replace-one by default.

    Raises:
      ValueError: If delta is 0, for which passes are not planned.
    """
    constants = constants_of(problem, one_block)
    relation = check_budget(budget, num_records).relation_or("replace_one")
    if budget.delta == 0:
        raise ValueError(
            "delta must be > 0 to plan a single pass, got 0.0: use FrankWolfe.for_budget, or set "
            "step_size yourself and read guarantee().epsilon(0.0)"
        )
    factor = relation_factor(relation)
    if factor == 2:
        rho = zcdp_budget(budget, relation="replace_one")
    else:
        failure = DELTA_SHARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
        rho = zcdp_budget(budget, failure_probability=failure)
    return Setting(constants, num_records, rho, factor, certified)


class VertexPlan(NamedTuple):
    """What a plan chose, from public constants alone.

    Attributes:
      steps: Gradient steps S; there are S + 1 iterates.
      num_draws: Vertices K that stand for an iterate.
      refresh: Steps between two draws (anytime method only, else 1).
      step_size: Step size of each block, in units of 1 / gradient.
      output: `"played"` or `"fresh"`; `"anytime"` for that method.
      bound: Bound on the expected duality gap, or excess risk, with the uniform average.
      output_draws: Vertices drawn for the result (anytime method only, else None).
      polar: Whether values of the second block are polar estimates.
      average: `"uniform"` or `"linear"`.
      grad_range: Of each block where it is not the problem's, else None.
    """

    steps: int
    num_draws: int
    refresh: int
    step_size: tuple[float, ...]
    output: str
    bound: float
    output_draws: int | None = None
    polar: bool = False
    average: str = "uniform"
    grad_range: tuple[float, ...] | None = None


def tapered_scale(n: int, steps: np.ndarray) -> np.ndarray:
    """About the least `size_t / sqrt(S - t)` of `tapered_sizes`."""
    return np.maximum((n - steps / 2) / (2 / 3 * (steps + 1) ** 1.5), 1 / np.sqrt(steps))


def draft_sampler(
    num_records: int, steps: int, influence: int, order: str = "random", tail: int = 0
) -> TaperedPartition | IndependentPartition:
    """Disjoint tapered batches: cut from an order under replace-one, else of too few slots."""
    if influence == 2:
        return TaperedPartition(steps, num_records, order, tail)
    return IndependentPartition(steps, num_records, 1, tapered=True, tail=tail)


def geometric(top: int, points: int) -> np.ndarray:
    """At most so many integers from 1 to `top`, about geometric."""
    return np.unique(np.round(np.geomspace(1, top, points)).astype(int))


def draw_grid(n: int) -> np.ndarray:
    """Candidate numbers of draws: all small ones, then about geometric."""
    top = max(2, min(n, 20_000))
    return np.unique(np.concatenate([np.arange(1, min(top, 129)), geometric(top, 200)]))
