"""The probability simplex."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpjax.core import check_int, check_shape, register_dataclass
from dpjax.geometry._blocks import as_floating
from dpjax.geometry._domain import check_last_axis, check_num_vertices
from dpjax.geometry._vertices import DrawnByScores, maurey


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Simplex(DrawnByScores):
    r"""The probability simplex, $\{x \in R^p : x \ge 0, \sum_j x_j = 1\}$; its vertices are $e_j$.

    See `Domain` for the methods.

    Args:
      dim: Number of coordinates, and of vertices, `>= 1` (*public*, static).

    Raises:
      ValueError: If `dim` is not in [1, 2^31); in methods, if an argument has another shape.
      TypeError: If `dim` is not an integer.

    Example:
      >>> import jax.numpy as jnp
      >>> simplex = Simplex(3)
      >>> float(simplex.spread(jnp.array([2.0, -1.0, 0.0])))
      3.0
      >>> simplex.average(jnp.array([0, 2])).tolist()
      [0.5, 0.0, 0.5]
    """

    dim: int = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        check_int("dim", self.dim, minimum=1)
        check_num_vertices(self.num_vertices)

    @property
    def num_vertices(self) -> int:
        """Number of vertices: `dim`."""
        return self.dim

    @property
    def log_num_vertices(self) -> float:
        """Logarithm of the number of vertices."""
        return math.log(self.dim)

    @property
    def diameter(self) -> float:
        """Largest l1 distance of two vertices: 2, or 0 for a single one."""
        return 2.0 if self.dim > 1 else 0.0

    @property
    def radius_l1(self) -> float:
        """Largest l1 distance of a vertex from the origin, which is the best centre: 1."""
        return 1.0 if self.dim > 1 else 0.0

    def scores(self, v: ArrayLike) -> jax.Array:
        """Inner products of the vertices with `v` `[p]`: `v` itself."""
        check_shape("v", v, (self.dim,))
        return jnp.asarray(v)

    def point(self, weights: ArrayLike) -> jax.Array:
        """The point with these weights `[p]`: the weights themselves."""
        check_shape("weights", weights, (self.dim,))
        return jnp.asarray(weights)

    def average(self, indices: ArrayLike) -> jax.Array:
        """The mean of the vertices `indices` `[k]`: `maurey(indices, dim)`."""
        return maurey(indices, self.dim)

    def spread(self, v: ArrayLike) -> jax.Array:
        """Largest less smallest entry along the last axis of `v` `[..., p]`."""
        check_last_axis("v", v, self.dim)
        array = as_floating(v)
        return jnp.max(array, axis=-1) - jnp.min(array, axis=-1)

    def project(self, v: ArrayLike) -> jax.Array:
        """The nearest point of the simplex in the l2 norm, `[p]`."""
        check_shape("v", v, (self.dim,))
        return optax.projections.projection_simplex(as_floating(v))
