"""What plans of methods over vertices are made from: public constants and a budget."""

import math
from typing import NamedTuple

from dpjax.privacy import Budget, RelationLike, check_budget, resolve_relation, zcdp_budget
from dpjax.sampling._capacity import DELTA_SHARE
from dpjax.solvers._vertex_problem import VertexProblem, over_vertices


class Constants(NamedTuple):
    """Constants in vertex coordinates, one entry a block.

    Attributes:
      log_vertices: log of the numbers of vertices.
      half_ranges: Half the range of a record's gradient.
      smoothness: Largest modulus of second derivatives within a block.
      coupling: The same across blocks.
      third_order: Lipschitz constant of second derivatives; 0 for quadratics.
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


class Setting(NamedTuple):
    """What a plan of a single pass is made from; all of it *public*.

    Attributes:
      constants: Of the problem.
      num_records: n, the number of records.
      rho: Zero-concentrated budget, less what a surplus of records may cost.
      influence: c, how many records' worth a neighbour differs by in one batch sum.
    """

    constants: Constants
    num_records: int
    rho: float
    influence: int


def influence(relation: RelationLike) -> int:
    """By how many records' gradients a batch sum of two neighbours may differ."""
    return 2 if resolve_relation(relation).name == "REPLACE_ONE" else 1


def constants_of(problem: VertexProblem) -> Constants:
    """The constants a problem states; smoothness defaults to half the gradient's range."""
    if not over_vertices(problem):
        raise TypeError(
            "problem must be one over vertices, such as SimplexRisk or Saddle of dpjax.problems, "
            f"got {type(problem).__name__}"
        )
    half = tuple(float(r) / 2 for r in problem.ranges)
    given = problem.smoothness
    if given is not None and not isinstance(given, tuple | list):
        given = (given,) * len(half)
    coupling = min(half) if len(half) > 1 else 0.0
    return Constants(
        tuple(math.log(domain.num_vertices) for domain in problem.domains),
        half,
        half if given is None else tuple(map(float, given)),
        coupling if problem.coupling is None else float(problem.coupling),
        float(problem.third_order),
    )


def one_block_constants(problem: VertexProblem) -> Constants:
    """The same; raises ValueError unless it is one player's problem."""
    constants = constants_of(problem)
    if len(problem.domains) != 1:
        raise ValueError(
            f"problem must have 1 block, got {len(problem.domains)}: use SaddleMirrorDescent"
        )
    return constants


def setting_of(constants: Constants, num_records: int, budget: Budget) -> Setting:
    """What plans a single pass, replace-one unless told otherwise.

    Raises:
      ValueError: If delta is 0, for which passes are not planned.
    """
    relation = check_budget(budget, num_records).relation_or("replace_one")
    if budget.delta == 0:
        raise ValueError(
            "delta must be > 0 to plan a single pass, got 0.0: use FrankWolfe.for_budget, or set "
            "step_size yourself and read guarantee().epsilon(0.0)"
        )
    factor = influence(relation)
    if factor == 2:
        rho = zcdp_budget(budget, relation="replace_one")
    else:
        failure = DELTA_SHARE * budget.delta / (1 + math.exp(min(budget.epsilon, 700.0)))
        rho = zcdp_budget(budget, failure_probability=failure)
    return Setting(constants, num_records, rho, factor)
