"""Problems over domains with vertices, which several families of solvers take."""

from typing import Protocol, TypeGuard

import jax

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
