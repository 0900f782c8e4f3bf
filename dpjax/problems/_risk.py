"""Mean losses of records: on a ball, over vertices, of one inner product, or any."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from dpjax.core import PyTree, register_dataclass, static_field
from dpjax.core._checks import check_int, check_nonnegative, check_positive, check_shape
from dpjax.geometry import Domain, L1Ball, Polytope, Simplex
from dpjax.problems._dense_layers import layered_gradients
from dpjax.transforms import OuterProduct, PackedSigns


def mean_over_records(values: Callable[[PyTree], jax.Array], data: PyTree) -> Any:
    """Mean over records of `values(batch) -> [B, *p]`, and gradients of it, block by block.

    Blocks of about sqrt(n) records: sums of n terms in a row, as gradients of one large product
    are, lose three digits at n = 20,000; and no array of all values need exist.

    Args:
      values: Of a batch with leaves `[B, ...]`.
      data: Leaves `[n, ...]`.

    Returns:
      `[*p]`.

    Example:
      >>> import jax.numpy as jnp
      >>> float(mean_over_records(lambda batch: batch["x"], {"x": jnp.arange(5.0)}))
      2.0
    """
    n = jax.tree.leaves(data)[0].shape[0]
    size = math.isqrt(n - 1) + 1 if n else 1
    blocks = n // size
    used = blocks * size
    head = jax.tree.map(lambda a: a[:used].reshape(blocks, size, *a.shape[1:]), data)
    total = jnp.sum(jax.lax.map(lambda batch: jnp.sum(values(batch), axis=0), head), axis=0)
    if used < n:
        total = total + jnp.sum(values(jax.tree.map(lambda a: a[used:], data)), axis=0)
    return total / n


class OnBall:
    """What problems have in common that are means of losses on an l2 ball around 0."""

    radius: ArrayLike | None
    per_example_losses: Callable[[Any, Any], jax.Array]

    def project(self, params: PyTree) -> PyTree:
        """The nearest point of the ball."""
        if self.radius is None:
            return params
        return optax.projections.projection_l2_ball(params, self.radius)

    def mean_loss(self, params: PyTree, data: PyTree) -> jax.Array:
        """Mean loss over `data`, a scalar. **Not private**."""
        return mean_over_records(lambda batch: self.per_example_losses(params, batch), data)


@dataclasses.dataclass(frozen=True)
class LinearLoss:
    r"""$\ell(\langle x, w\rangle, y)$ of a record `{"x": [p], "y": []}`; hashable by its link."""

    link_loss: Callable[[jax.Array, jax.Array], jax.Array]

    def __call__(self, w: jax.Array, record: PyTree) -> jax.Array:
        """The loss of one record at w `[p]`."""
        return self.link_loss(jnp.dot(record["x"], w, precision="highest"), record["y"])

    def values(self, margins: jax.Array, batch: PyTree) -> jax.Array:
        """Losses `[B]` at given inner products."""
        return jax.vmap(self.link_loss)(margins, batch["y"])

    def gradients(self, margins: jax.Array, batch: PyTree) -> OuterProduct:
        """Factored gradients in w at given inner products `[B]`."""
        slopes = jax.vmap(jax.grad(self.link_loss))(margins, batch["y"])
        return OuterProduct(batch["x"], slopes[:, None])


class OfRecords:
    """What follows from the loss of one record, be it a `LinearLoss` or any function."""

    loss: Callable[..., jax.Array]

    @property
    def num_params(self) -> int:
        """Number of real parameters."""
        raise NotImplementedError  # abstract: each subclass has its own

    def check(self, data: PyTree) -> None:
        """Raises ValueError unless the records of a loss of one inner product have its shape.

        Of other losses nothing is known. NaN and inf are let through.
        """
        if isinstance(self.loss, LinearLoss):
            check_records(data, self.num_params)

    def per_example_gradients(self, params: PyTree, batch: PyTree) -> PyTree:
        """Gradients of the loss of each record: `[B, *p]`, or an `OuterProduct`."""
        if isinstance(self.loss, LinearLoss):
            return self.loss.gradients(margins_at(batch["x"], params), batch)
        return jax.vmap(jax.grad(self.loss), in_axes=(None, 0))(params, batch)

    def factored_gradients(self, params: PyTree, batch: PyTree) -> PyTree:
        """The same, with `OuterProduct` for the weights of dense layers too."""
        own = type(self).per_example_gradients is not OfRecords.per_example_gradients
        if own or isinstance(self.loss, LinearLoss):
            return self.per_example_gradients(params, batch)
        return layered_gradients(self.loss, params, batch)

    def per_example_losses(self, params: PyTree, batch: PyTree) -> jax.Array:
        """Loss of each record, `[B]`; the loss need not be differentiable."""
        if isinstance(self.loss, LinearLoss):
            return self.loss.values(margins_at(batch["x"], params), batch)
        return jax.vmap(self.loss, in_axes=(None, 0))(params, batch)

    def mean_loss(self, params: PyTree, data: PyTree) -> jax.Array:
        """Mean loss over `data`, a scalar. **Not private**."""
        return mean_over_records(lambda batch: self.per_example_losses(params, batch), data)


def check_fields(data: PyTree, *fields: str) -> None:
    """Raises ValueError unless `data` is a dict that has these fields."""
    for field in fields:
        if not isinstance(data, dict) or field not in data:
            got = type(data).__name__
            if isinstance(data, dict):
                got = "a dict with " + ", ".join(map(repr, [*data][:5]))
            remedy = ""
            if field == "x":  # a table has a column for each feature, perhaps
                remedy = ": pass a matrix of features as x, or the pair (features, labels) to fit"
            raise ValueError(f'data must be a dict with the field "{field}", got {got}{remedy}')


def check_records(data: PyTree, dim: int) -> None:
    """Raises ValueError unless `data` holds inputs `x` `[n, dim]` and labels `y`."""
    check_fields(data, "x", "y")
    check_shape('data["x"]', data["x"], (None, dim))


def mean_margins(domain: Domain, x: jax.Array, indices: jax.Array) -> jax.Array:
    """Inner products `[B]` of inputs `[B, p]` with the mean of vertices `[k]`."""
    if isinstance(domain, Simplex):
        columns, values = indices, jnp.ones(indices.shape)
    elif isinstance(domain, L1Ball):
        columns = indices % domain.dim
        values = jnp.where(indices < domain.dim, 1.0, -1.0) * domain.radius
    else:
        return margins_at(x, domain.average(indices))
    taken = x.columns(columns) if isinstance(x, PackedSigns) else x[:, columns]
    return jnp.matmul(taken.astype(values.dtype), values, precision="highest") / values.shape[0]


def margins_at(x: jax.Array, point: jax.Array) -> jax.Array:
    """Inner products `[B]` of inputs `[B, p]` with a point `[p]`."""
    if isinstance(x, PackedSigns):
        return x.dot(point)
    return jnp.matmul(x, point, precision="highest")


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
    for name in ("smoothness", "third_order", "coupling"):
        check_nonnegative(name, getattr(problem, name))


def uniform_point(domain: Domain) -> Any:
    """The mean of all vertices."""
    return domain.point(jnp.full(domain.num_vertices, 1 / domain.num_vertices))


@register_dataclass
@dataclasses.dataclass(frozen=True)
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

    loss: Callable[..., jax.Array] = static_field()
    vertices: ArrayLike | Domain | None = None
    dim: int | None = static_field(default=None)
    grad_range: ArrayLike | None = None
    smoothness: float | None = static_field(default=None, kw_only=True)
    third_order: float | None = static_field(default=None, kw_only=True)
    grad_from_vertices: Callable[..., Any] | None = static_field(default=None, kw_only=True)

    signs = (1,)
    """The block is minimised over."""
    coupling = 0.0
    """There is no second block."""

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


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Risk(OfRecords, OnBall):
    r"""$\min_{\|\theta\| \le R} \frac1n \sum_i \ell(\theta; z_i)$, for any differentiable loss.

    Guarantee: none of its own. The loss of a record must depend on that record and the parameters
    alone; solvers then clip its gradient, and trust none of the constants below.

    Attributes:
      loss: `loss(params, record) -> scalar`, one record at a time (static).
      init: Parameters to start from (*public*).
      radius: Radius R of an l2 ball around 0 that the parameters stay in, a number; None for no
        bound.
      lipschitz: Largest l2 norm of one record's gradient, a number, and
      smoothness: largest change of it for a unit of displacement, a number; None if not known.
        Guides for solvers, which enforce by clipping what they rely on (*public*).

    Raises:
      ValueError: If `radius`, `lipschitz` or `smoothness` is not positive and finite.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> problem = dpjax.problems.Risk(
      ...     loss=lambda w, rec: (rec["x"] @ w - rec["y"]) ** 2, init=jnp.zeros(3), radius=1.0)
      >>> problem.num_params
      3
    """

    loss: Callable[..., jax.Array] = dataclasses.field(metadata={"static": True})
    init: PyTree
    radius: ArrayLike | None = None
    lipschitz: ArrayLike | None = dataclasses.field(default=None, kw_only=True)
    smoothness: ArrayLike | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("radius", "lipschitz", "smoothness"):
            check_positive(name, getattr(self, name))

    @classmethod
    def linear(
        cls,
        link_loss: Callable[[jax.Array, jax.Array], jax.Array],
        num_features: int,
        radius: ArrayLike | None = None,
        **constants: ArrayLike | None,
    ) -> "Risk":
        r"""A loss of one inner product, $\ell(\langle x, \theta\rangle, y)$, started at 0.

        Gradients are kept factored, so that a step forms no `[B, p]` array but the data.

        Args:
          link_loss: `link_loss(margin, y) -> scalar` (static; keep one object for a sweep).
          num_features: Number of features p.
          radius: A number, as in the class.
          **constants: `lipschitz`, `smoothness`, numbers.

        Returns:
          A problem for data `{"x": [n, p], "y": [n]}`.

        Raises:
          TypeError: If `num_features` is not an integer.
          ValueError: If `num_features < 1`, or a constant is not positive and finite.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.Risk.linear(
          ...     lambda margin, y: (margin - y) ** 2 / 2, num_features=3, radius=1.0)
          >>> problem.init.shape
          (3,)
        """
        check_int("num_features", num_features, minimum=1)
        return cls(LinearLoss(link_loss), jnp.zeros(num_features), radius, **constants)

    @property
    def factored(self) -> bool:
        """Whether gradients are `OuterProduct`, not arrays."""
        return isinstance(self.loss, LinearLoss)

    @property
    def num_params(self) -> int:
        """Number of real parameters d."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.init))


@dataclasses.dataclass(frozen=True)
class PersonLoss:
    r"""The mean loss of one person's rows: in a `Risk`, people are the records.

    `dpjax.fit` makes it of the loss of a row, for `PersonRecords`.

    $$ \ell(\theta; P) = \frac{1}{|P|} \sum_{z \in P} \ell(\theta; z) $$

    Guarantee: none of its own. Solvers sample people, clip the gradient of a person as a whole, and
    so promise what they promise for a record per person, whatever the number of rows.

    | input | effect |
    | --- | --- |
    | a person without rows | loss 0 |
    | NaN in a row | the person contributes nothing |

    Args:
      loss: `loss(params, row) -> scalar`, one row at a time.

    Example:
      >>> import dpjax, jax.numpy as jnp, numpy as np
      >>> visits = {"x": np.ones((5, 2)), "y": np.arange(5.0), "id": np.array([7, 7, 7, 8, 9])}
      >>> people = dpjax.PersonRecords(visits, unit="id", max_rows=2).people()
      >>> people["rows"]["x"].shape, people["present"].tolist()
      ((3, 2, 2), [[True, True], [True, False], [True, False]])
      >>> squares = PersonLoss(lambda w, row: (row["x"] @ w - row["y"]) ** 2)
      >>> problem = dpjax.problems.Risk(squares, jnp.zeros(2))
      >>> problem.per_example_losses(problem.init, people)[1:].tolist()
      [9.0, 16.0]
    """

    loss: Callable[..., jax.Array]

    def __call__(self, params: PyTree, person: PyTree) -> jax.Array:
        """The loss of a person of `PersonRecords.people`: `rows` `[k, ...]` and `present` `[k]`."""
        losses = jax.vmap(self.loss, in_axes=(None, 0))(params, person["rows"])
        present = person["present"]
        return jnp.sum(jnp.where(present, losses, 0)) / jnp.maximum(jnp.sum(present), 1)
