"""Population risk over a simplex or a polytope given by its vertices."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.typing import ArrayLike

from dpjax.core import PyTree, register_dataclass, static_field
from dpjax.geometry import Domain
from dpjax.problems._vertex_linear import (
    LinearLoss,
    OfRecords,
    check_constants,
    domain_of,
    mean_margins,
    uniform_point,
)


@register_dataclass
@dataclass(frozen=True)
class SimplexRisk(OfRecords):
    r"""$\min_{w \in \mathrm{conv}(v_1, \dots, v_m)} \mathbb E_z\, \ell(w; z)$, convex in w.

    Guarantee: none of its own. The loss of a record must depend on that record and the point alone;
    solvers then clip its gradient to `grad_range`, so that a value that is too small costs accuracy
    and never privacy. The other constants only guide plans.

    Attributes:
      loss: `loss(w, record) -> scalar`, one record at a time, w `[p]` (static).
      vertices: Matrix `[m, p]` whose rows span the domain, or a domain of `dpjax.geometry`
        (`L1Ball(p, radius)`); None for the simplex of dimension `dim` (*public*).
      dim: Dimension p; may be left out where `vertices` tells (static).
      grad_range: Range $\max_i \langle g, v_i\rangle - \min_i \langle g, v_i\rangle$ of the
        gradient g of one record (*public*). On the simplex largest minus smallest coordinate: 2 if
        they lie in [-1, 1]; on an l1 ball of radius R $2R\|g\|_\infty$.
      smoothness: Largest $|v_i^\top \nabla^2 \ell\, v_j|$, up to shifts of the vertices; None for
        half of `grad_range` (static).
      third_order: Lipschitz constant of these second derivatives in the l1 norm of the weights; 0
        for quadratics; None where it is unknown: then plans rely on `smoothness` alone (static).
      grad_from_vertices: `(indices [k], batch) -> per-example gradients` at the mean of k
        vertices, `[B, p]` or `OuterProduct([B, p], [B, 1])`, where that is cheaper than
        differentiating `loss`; None for autodiff (static).

    Raises:
      ValueError: If a constant is outside its bound, or `dim` contradicts the vertices.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> problem = dpjax.problems.SimplexRisk(
      ...     loss=lambda w, rec: -jnp.log(rec["x"] @ w), dim=3, grad_range=4.0)
      >>> problem.init.tolist() == [jnp.float32(1 / 3)] * 3
      True
    """

    loss: Callable[..., jax.Array] = dataclasses.field(metadata={"static": True})
    vertices: ArrayLike | Domain | None = None
    dim: int | None = static_field(default=None)
    grad_range: ArrayLike | None = None
    smoothness: float | None = static_field(default=None, kw_only=True)
    third_order: float | None = static_field(default=None, kw_only=True)
    grad_from_vertices: Callable[..., Any] | None = static_field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.grad_range is None:
            raise ValueError("grad_range is required: the range of one record's gradient")
        check_constants(self)
        domain_of(self.vertices, self.dim)

    @classmethod
    def linear(
        cls,
        link_loss: Callable[[jax.Array, jax.Array], jax.Array],
        vertices: ArrayLike | Domain | None = None,
        dim: int | None = None,
        **constants: Any,
    ) -> "SimplexRisk":
        r"""A loss of one inner product, $\ell(\langle x, w\rangle, y)$.

        Gradients at sampled vertices gather k columns of x, and are kept factored, so that a step
        reads a batch about twice and forms no other `[B, p]` array.

        Args:
          link_loss: `link_loss(margin, y) -> scalar` (static; keep one object for a sweep).
          vertices: `[m, p]` or a domain, as in the class.
          dim: As in the class.
          **constants: The other fields.

        Returns:
          A problem for data `{"x": [n, p], "y": [n]}`; x may be of an integer type or
          `dpjax.transforms.PackedSigns`.

        Example:
          >>> import dpjax
          >>> ball = dpjax.geometry.L1Ball(100, radius=1.0)
          >>> problem = dpjax.problems.SimplexRisk.linear(
          ...     lambda margin, y: 0.5 * (margin - y) ** 2, ball, grad_range=4.0,
          ...     third_order=0.0)
        """
        return cls(LinearLoss(link_loss), vertices, dim, **constants)

    @property
    def domains(self) -> tuple[Any]:
        """The one block: the domain of w."""
        return (domain_of(self.vertices, self.dim),)

    @property
    def ranges(self) -> tuple[Any]:
        """The one block's `grad_range`."""
        return (self.grad_range,)

    @property
    def signs(self) -> tuple[int]:
        """The block is minimised over."""
        return (1,)

    @property
    def coupling(self) -> float:
        """There is no second block."""
        return 0.0

    @property
    def init(self) -> jax.Array:
        """The mean of the vertices, `[p]`, from which Euclidean methods start."""
        return uniform_point(self.domains[0])

    @property
    def num_params(self) -> int:
        """Dimension p."""
        return self.domains[0].dim

    def assemble(self, points: tuple[jax.Array]) -> jax.Array:
        """The parameters that the block's point stands for."""
        return points[0]

    def gradients_at_vertices(self, indices: tuple[jax.Array], batch: PyTree) -> tuple[Any]:
        """Gradient of each record at the mean of vertices `[k]`: `[B, p]` or an `OuterProduct`."""
        if self.grad_from_vertices is not None:
            return (self.grad_from_vertices(indices[0], batch),)
        if isinstance(self.loss, LinearLoss):
            margins = mean_margins(self.domains[0], batch["x"], indices[0])
            return (self.loss.gradients(margins, batch),)
        return (self.per_example_gradients(self.domains[0].average(indices[0]), batch),)

    def gradients_at(self, points: tuple[jax.Array], batch: PyTree) -> tuple[Any]:
        """Gradient of each record at points of the blocks."""
        return (self.per_example_gradients(points[0], batch),)

    def project(self, params: jax.Array) -> jax.Array:
        """The nearest point of the domain."""
        return self.domains[0].project(params)
