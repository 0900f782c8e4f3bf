"""Problems over domains with vertices, which several families of solvers take."""

import math
from typing import Protocol, TypeGuard

import jax
import numpy as np

from dpjax.core import Problem, PyTree, optional
from dpjax.geometry import Domain


class VertexProblem(Problem, Protocol):
    """A problem over domains with vertices, one entry a block: `Saddle` or `SimplexRisk`."""

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Where each block lies."""

    @property
    def ranges(self) -> tuple[float | jax.Array, ...]:
        """Range of a record's gradient over the vertices."""

    @property
    def smoothness(self) -> float | tuple[float, ...] | None:
        """Largest second derivative within a block."""

    def assemble(self, points: PyTree) -> PyTree:
        """The parameters that a point of each block makes."""


def over_vertices(problem: Problem) -> TypeGuard[VertexProblem]:
    """Whether a problem is one."""
    return bool(optional(problem, "domains"))


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
