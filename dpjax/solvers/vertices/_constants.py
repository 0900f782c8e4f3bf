"""Constants of problems over vertices, in vertex coordinates."""

import math
from typing import NamedTuple

from dpjax.solvers._vertex_problem import VertexProblem, over_vertices


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


def constants_of(problem: VertexProblem, one_block: bool = False) -> Constants:
    """The constants a problem states; smoothness defaults to half the gradient's range."""
    if not over_vertices(problem):
        raise TypeError(
            "problem must be one over vertices, such as SimplexRisk or Saddle of dpjax.problems, "
            f"got {type(problem).__name__}"
        )
    if one_block and len(problem.domains) != 1:
        raise ValueError(
            f"problem must have 1 block, got {len(problem.domains)}: use SaddleMirrorDescent"
        )
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
