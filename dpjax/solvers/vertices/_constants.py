"""Public constants of a problem over vertices, as plans need them."""

import math
from typing import Any, NamedTuple


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


def constants_of(problem: Any) -> Constants:
    """The constants a problem states; smoothness defaults to half the gradient's range."""
    _check_vertices(problem)
    half = tuple(float(r) / 2 for r in problem.ranges)
    given = problem.smoothness
    if given is not None and not isinstance(given, tuple | list):
        given = (given,) * len(half)
    smoothness = half if given is None else tuple(map(float, given))
    coupling = min(half) if len(half) > 1 else 0.0
    return Constants(
        tuple(math.log(domain.num_vertices) for domain in problem.domains),
        half,
        smoothness,
        coupling if problem.coupling is None else float(problem.coupling),
        float(problem.third_order),
    )


def check_one_block(problem: Any) -> None:
    """Raises unless it is one player's problem over vertices."""
    _check_vertices(problem)
    if len(problem.domains) != 1:
        raise ValueError(
            f"problem must have 1 block, got {len(problem.domains)}: use SaddleMirrorDescent"
        )


def _check_vertices(problem: Any) -> None:
    if not hasattr(problem, "domains"):
        raise TypeError(
            "problem must be one over vertices, such as SimplexRisk or Saddle of dpjax.problems, "
            f"got {type(problem).__name__}"
        )
