"""From what a user says of a domain to the domain, and checks that problems over vertices share."""

from typing import Any

import jax.numpy as jnp

from dpjax.core import check_int, check_nonnegative, check_positive
from dpjax.geometry import Domain, Polytope, Simplex


def domain_of(vertices: Any, dim: int | None) -> Domain:
    """The simplex, the hull of the rows of a matrix `[m, p]`, or a ready domain.

    Raises:
      ValueError: If neither is given, or `dim` contradicts the vertices.
    """
    if vertices is None:
        if dim is None:
            raise ValueError("dim is required where no vertices are given")
        check_int("dim", dim, minimum=1)
        return Simplex(int(dim))
    domain = vertices if hasattr(vertices, "scores") else Polytope(jnp.asarray(vertices))
    if dim is not None and dim != domain.dim:
        raise ValueError(f"dim must be that of the vertices, {domain.dim}, got {dim}")
    return domain


def check_constants(problem: Any) -> None:
    """Raises ValueError where a public constant of the problem is outside its bound."""
    check_positive("grad_range", problem.grad_range)
    check_nonnegative("smoothness", problem.smoothness)
    check_nonnegative("third_order", problem.third_order)
    check_nonnegative("coupling", problem.coupling)


def uniform_point(domain: Domain) -> Any:
    """The mean of all vertices."""
    return domain.point(jnp.full(domain.num_vertices, 1 / domain.num_vertices))
