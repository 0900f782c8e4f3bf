"""The probability simplex, and the hull of any vertices."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike
from scipy.spatial.distance import cdist

from dpjax.core import check_finite, check_int, check_shape, is_traced, register_dataclass
from dpjax.geometry._blocks import as_floating
from dpjax.geometry._vertices import (
    VertexSet,
    as_indices,
    check_last_axis,
    check_num_vertices,
    maurey,
)

# on accelerators float32 products keep 10 bits by default, and scores are privacy-relevant
_BLOCK = 512


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Simplex(VertexSet):
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


@register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Polytope(VertexSet):
    r"""The convex hull of given points, $\{V^\top w : w \in \Delta_m\}$, $V$ the `[m, p]` matrix.

    See `Domain` for the methods.

    Args:
      vertices: The points `[m, p]`, finite (*public*); may be traced.

    Raises:
      ValueError: If `vertices` is no matrix with `m >= 1` and `p >= 1`, or not finite; in methods,
        if an argument has another shape.

    Example:
      >>> import jax.numpy as jnp
      >>> triangle = Polytope(jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]]))
      >>> triangle.scores(jnp.array([1.0, 1.0])).tolist()
      [0.0, 1.0, 2.0]
      >>> triangle.diameter
      3.0
    """

    vertices: jax.Array

    def __post_init__(self) -> None:
        check_finite("vertices", self.vertices)
        if isinstance(self.vertices, np.ndarray | list):
            object.__setattr__(self, "vertices", jnp.asarray(self.vertices))
        # tree transformations rebuild with placeholders, batches or one number for the leaf
        shape = getattr(self.vertices, "shape", ())
        if shape and (len(shape) < 2 or 0 in shape):
            raise ValueError(f"vertices must have shape [m, p] with m, p >= 1, got {list(shape)}")

    @property
    def dim(self) -> int:
        """Ambient dimension $p$."""
        return int(self._matrix.shape[1])

    @property
    def num_vertices(self) -> int:
        """Number of vertices $m$."""
        return int(self._matrix.shape[0])

    @functools.cached_property
    def diameter(self) -> float:
        r"""Largest l1 distance of two vertices; on the host, $O(m^2 p)$ in blocks, remembered."""
        points = self._on_host("diameter")
        blocks = [points[i : i + _BLOCK] for i in range(0, len(points), _BLOCK)]
        pairs = itertools.combinations_with_replacement(blocks, 2)
        return max(float(cdist(one, other, "cityblock").max()) for one, other in pairs)

    @functools.cached_property
    def radius_l1(self) -> float:
        r"""Upper bound on $\min_c \max_i \|v_i - c\|_1$; on the host, $O(mp)$, remembered.

        The smallest over four centres: origin, mean, median, middle of the range. The exact value
        is a linear program.
        """
        points = self._on_host("radius_l1")
        middle = (points.max(axis=0) + points.min(axis=0)) / 2
        centres = (0.0, points.mean(axis=0), np.median(points, axis=0), middle)
        return min(float(np.abs(points - centre).sum(axis=1).max()) for centre in centres)

    def scores(self, v: ArrayLike) -> jax.Array:
        """Inner products of the vertices with `v` `[p]`, `[m]`."""
        check_shape("v", v, (self.dim,))
        return jnp.matmul(self._matrix, jnp.asarray(v), precision="highest")

    def point(self, weights: ArrayLike) -> jax.Array:
        """The point with these weights `[m]`, `[p]`."""
        check_shape("weights", weights, (self.num_vertices,))
        return jnp.matmul(jnp.asarray(weights), self._matrix, precision="highest")

    def average(self, indices: ArrayLike) -> jax.Array:
        """The mean of the vertices `indices` `[k]`, by gathering `k` rows, `[p]`."""
        return jnp.mean(self._matrix[as_indices(indices)], axis=0)

    def spread(self, v: ArrayLike) -> jax.Array:
        """Largest less smallest score of `v` `[..., p]`."""
        check_last_axis("v", v, self.dim)
        scores = jnp.matmul(jnp.asarray(v), self._matrix.T, precision="highest")
        return jnp.max(scores, axis=-1) - jnp.min(scores, axis=-1)

    def project(self, v: ArrayLike) -> jax.Array:
        """Not available: the projection on a general polytope is a quadratic program.

        Raises:
          NotImplementedError: Always.
        """
        raise NotImplementedError(
            f"Polytope of {self.num_vertices} vertices has no closed Euclidean projection: "
            "optimise the weights, a point of Simplex(num_vertices), and map back by point(weights)"
        )

    def _on_host(self, what: str) -> np.ndarray:
        if is_traced(self.vertices):
            raise TypeError(f"Polytope.{what} is computed on the host, but vertices are traced")
        return np.asarray(self._matrix, np.float64)

    @property
    def _matrix(self) -> jax.Array:
        check_shape("vertices", self.vertices, (None, None))
        return self.vertices
