"""Constants of problems over vertices, in vertex coordinates."""

import math

import numpy as np

from dpjax.solvers._vertex_problem import VertexProblem, over_vertices


def check_vertices(problem: VertexProblem, one_block: bool = True) -> None:
    """Raises unless this is a problem over vertices, of one block if that is asked."""
    if not over_vertices(problem):
        raise TypeError(
            "problem must be one over vertices, such as SimplexRisk or Saddle of dpjax.problems, "
            f"got {type(problem).__name__}"
        )
    if one_block and len(problem.domains) != 1:
        raise ValueError(
            f"problem must have 1 block, got {len(problem.domains)}: use SaddleMirrorDescent"
        )


def one_block(problem: VertexProblem) -> tuple[float, float]:
    """log of the number of vertices, and smoothness: half the range where none is stated."""
    check_vertices(problem)
    smooth = problem.ranges[0] / 2 if problem.smoothness is None else problem.smoothness
    return math.log(problem.domains[0].num_vertices), np.ravel(smooth).item()
