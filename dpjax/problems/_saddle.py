"""Convex-concave saddle points over two simplices or polytopes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from dpjax.core import PyTree, check_shape, register_dataclass, static_field
from dpjax.geometry import Domain
from dpjax.problems import _risk as risks
from dpjax.problems._gaps import GapBounds, duality_gap, matrix_game_gap

Arrays: TypeAlias = tuple[jax.Array, jax.Array]
"""Of the two players."""


class Payoffs(NamedTuple):
    """What a record adds to a game at vertices, never more than one row or column at a time.

    Attributes:
      entry: `entry(record, i, j) -> []`.
      row: `row(record, i) -> [dy]`.
      column: `column(record, j) -> [dx]`.
    """

    entry: Callable[..., jax.Array]
    row: Callable[..., jax.Array]
    column: Callable[..., jax.Array]


def payoffs_of_affine(loss: Callable[..., jax.Array], first: Domain, second: Domain) -> Payoffs:
    """Payoffs at vertices of a loss affine in each block, `loss(x, y, record)`.

    A row or column is a value and a gradient, never one evaluation an entry: at a vertex v of X the
    loss is affine in y, and its values at the vertices of Y follow from the slope at any point.
    """

    def line(of: Callable[[jax.Array], jax.Array], domain: Domain) -> jax.Array:
        start = risks.uniform_point(domain)
        value, slope = jax.value_and_grad(of)(start)
        return value + domain.scores(slope) - jnp.vdot(slope, start, precision="highest")

    def vertex(domain: Domain, index: jax.Array) -> jax.Array:
        return domain.average(jnp.reshape(index, 1))

    def entry(record: PyTree, i: jax.Array, j: jax.Array) -> jax.Array:
        return loss(vertex(first, i), vertex(second, j), record)

    def row(record: PyTree, i: jax.Array) -> jax.Array:
        return line(lambda y: loss(vertex(first, i), y, record), second)

    def column(record: PyTree, j: jax.Array) -> jax.Array:
        return line(lambda x: loss(x, vertex(second, j), record), first)

    return Payoffs(entry, row, column)


@dataclass(frozen=True)
class PayoffGame:
    """The loss of a game given by functions of a record and of strategies; hashable."""

    entry: Callable[..., jax.Array]
    dims: tuple[int, int]
    row: Callable[..., jax.Array] | None = None
    column: Callable[..., jax.Array] | None = None

    @property
    def payoffs(self) -> Payoffs:
        """Entries, rows and columns."""
        first, second = (jnp.arange(size, dtype=jnp.int32) for size in self.dims)
        row, column = jax.vmap(self.entry, (None, None, 0)), jax.vmap(self.entry, (None, 0, None))
        return Payoffs(
            self.entry,
            self.row or (lambda record, i: row(record, i, second)),
            self.column or (lambda record, j: column(record, first, j)),
        )

    def __call__(self, x: jax.Array, y: jax.Array, record: PyTree) -> jax.Array:
        """x^T A y, row by row."""

        def paid(i: jax.Array) -> jax.Array:
            return jnp.dot(self.payoffs.row(record, i).astype(y.dtype), y, precision="highest")

        every = jax.lax.map(paid, jnp.arange(self.dims[0], dtype=jnp.int32))
        return jnp.dot(x, every, precision="highest")

    def at_vertices(self, rows: jax.Array, columns: jax.Array, batch: PyTree) -> Arrays:
        """Mean of the sampled columns and of the sampled rows of each record."""

        def mean(line: Callable[..., jax.Array], at: jax.Array, record: PyTree) -> jax.Array:
            lines = jax.vmap(lambda index: line(record, index))(at)
            return jnp.mean(lines.astype(jnp.promote_types(lines.dtype, jnp.float32)), axis=0)

        first = jax.vmap(lambda record: mean(self.payoffs.column, columns, record))(batch)
        return first, jax.vmap(lambda record: mean(self.payoffs.row, rows, record))(batch)


@register_dataclass
@dataclass(frozen=True)
class Saddle:
    r"""$\min_{x \in X} \max_{y \in Y} \mathbb E_z\, f(x, y; z)$, f convex in x and concave in y.

    X and Y are simplices, or polytopes given by their vertices.

    Guarantee: none of its own. The loss of a record must depend on that record and the point alone;
    solvers then clip its gradient in each block to `grad_range`, so that a value that is too small
    costs accuracy and never privacy. The other constants only guide plans.

    Attributes:
      loss: `loss(x, y, record) -> scalar`, one record at a time (static).
      dims: Dimensions of x and y; may be left out where `vertices` tells (static).
      grad_range: For each block the range of one record's gradient over the vertices,
        $\max_i \langle g, v_i\rangle - \min_i \langle g, v_i\rangle$ (*public*); on a simplex
        largest minus smallest coordinate: 2 if they lie in [-1, 1]. One number stands for both.
      vertices: For each block a matrix `[m, p]` of vertices, a domain of `dpjax.geometry`, or None
        for the simplex (*public*).
      smoothness: For each block the largest second derivative within it, in vertex coordinates;
        (0, 0) for matrix games; None for half of `grad_range` (static).
      coupling: Largest second derivative across blocks; None for half the smaller range (static).
      third_order: Lipschitz constant of all second derivatives, those across blocks included; 0
        where the loss is quadratic in (x, y) jointly; None where it is unknown: then plans rely on
        `smoothness` alone (static).
      grad_from_vertices: `(x_indices [k], y_indices [k], batch) -> (gx [B, p], gy [B, q])`, the
        gradients at the means of vertices, where that is cheaper than differentiating `loss`
        (static).
      payoff_interval: Interval of a record's loss at every pair of vertices, for the methods of
        games; None where it is unknown (*public*, static).

    Raises:
      ValueError: If a constant is outside its bound, or dims contradict the vertices.
      TypeError: If `dims` is not a tuple of two integers.

    Example:
      >>> import dpjax
      >>> problem = dpjax.problems.Saddle(
      ...     loss=lambda x, y, rec: x @ rec["A"] @ y, dims=(3, 4), grad_range=(2.0, 2.0))
      >>> [domain.num_vertices for domain in problem.domains]
      [3, 4]
    """

    loss: Callable[..., jax.Array] = static_field()
    dims: tuple[int | None, int | None] = static_field(default=(None, None))
    grad_range: Any = None
    vertices: tuple[Any, Any] = (None, None)
    smoothness: tuple[float, float] | None = static_field(default=None, kw_only=True)
    coupling: float | None = static_field(default=None, kw_only=True)
    third_order: float | None = static_field(default=None, kw_only=True)
    grad_from_vertices: Callable[..., Any] | None = static_field(default=None, kw_only=True)
    payoff_interval: tuple[float, float] | None = static_field(default=None, kw_only=True)

    signs = (1, -1)
    """x is minimised over, y maximised."""

    def __post_init__(self) -> None:
        if self.grad_range is None:
            raise ValueError("grad_range is required: the ranges of one record's gradients")
        risks.check_constants(self)
        if isinstance(self.grad_range, int | float):
            object.__setattr__(self, "grad_range", (float(self.grad_range),) * 2)
        if not isinstance(self.dims, tuple | list) or len(self.dims) != 2:
            raise TypeError(f"dims must be a tuple of 2 integers or None, got {self.dims!r}")
        object.__setattr__(self, "dims", tuple(self.dims))
        _ = self.domains

    @classmethod
    def matrix_game(
        cls, dims: tuple[int, int], value_range: float = 2.0, field: str = "A"
    ) -> "Saddle":
        r"""$x^\top A y$ with one matrix `[dx, dy]` a record, its entries in an interval.

        Gradients at sampled vertices gather k rows and k columns of each matrix.

        Args:
          dims: Numbers of pure strategies (static).
          value_range: Length of the interval: 2 for entries in [-1, 1] (*public*). The methods of
            games take it to be centred at 0.
          field: Where records keep their matrix (static).

        Returns:
          A problem for data `{field: [n, dx, dy]}` of any real type.

        Example:
          >>> import dpjax
          >>> dpjax.problems.Saddle.matrix_game((3, 4)).smoothness
          (0.0, 0.0)
        """
        return cls._bilinear(MatrixGame(field), dims, (-value_range / 2, value_range / 2))

    @classmethod
    def game(
        cls,
        entry: Callable[..., jax.Array],
        dims: tuple[int, int],
        *,
        interval: tuple[float, float] = (-1.0, 1.0),
        row: Callable[..., jax.Array] | None = None,
        column: Callable[..., jax.Array] | None = None,
    ) -> "Saddle":
        r"""$x^\top A y$ with payoffs that functions compute, so that no matrix need be formed.

        Args:
          entry: `entry(record, i, j) -> scalar`, what the row player pays (static; keep one object
            for a sweep).
          dims: Numbers of pure strategies (static).
          interval: Where payoffs lie (*public*).
          row: `row(record, i) -> [dims[1]]`, where that is cheaper than `entry` for each (static).
          column: `column(record, j) -> [dims[0]]`, likewise (static).

        Returns:
          A problem for any records.

        Raises:
          ValueError: If the interval is empty.

        Example:
          >>> import dpjax, jax.numpy as jnp
          >>> def entry(record, i, j):
          ...     return record["u"][i] * record["v"][j]
          >>> problem = dpjax.problems.Saddle.game(entry, (3, 4))
          >>> problem.payoffs.row({"u": jnp.ones(3), "v": jnp.ones(4)}, 0).shape
          (4,)
        """
        return cls._bilinear(PayoffGame(entry, (dims[0], dims[1]), row, column), dims, interval)

    @classmethod
    def _bilinear(
        cls, loss: Callable[..., jax.Array], dims: tuple[int, int], interval: tuple[float, float]
    ) -> "Saddle":
        low, high = interval
        affine: dict[str, Any] = {"smoothness": (0.0, 0.0), "third_order": 0.0}
        return cls(loss, dims, (high - low,) * 2, payoff_interval=(low, high), **affine)

    @property
    def payoffs(self) -> Payoffs:
        """A record's loss at pairs of vertices, the payoffs of a game.

        Raises:
          ValueError: If the loss is not stated to be affine in each block, `smoothness=(0, 0)`.
        """
        if self.smoothness is None or any(self.smoothness):
            raise ValueError(
                "smoothness must be (0, 0), that of losses affine in each block, which payoffs at "
                f"vertices determine, got {self.smoothness}"
            )
        if isinstance(self.loss, MatrixGame | PayoffGame) and self.vertices == (None, None):
            return self.loss.payoffs
        return payoffs_of_affine(self.loss, *self.domains)

    @property
    def domains(self) -> tuple[Any, Any]:
        """The domains of x and y."""
        first, second = self.vertices
        return risks.domain_of(first, self.dims[0]), risks.domain_of(second, self.dims[1])

    @property
    def ranges(self) -> tuple[Any, Any]:
        """`grad_range` of each block."""
        return tuple(self.grad_range)

    @property
    def init(self) -> Arrays:
        """The means of the vertices, from which Euclidean methods start."""
        first, second = self.domains
        return risks.uniform_point(first), risks.uniform_point(second)

    @property
    def num_params(self) -> int:
        """Number of coordinates of both blocks."""
        return sum(domain.dim for domain in self.domains)

    def assemble(self, points: Arrays) -> Arrays:
        """The pair of points itself."""
        return points

    def check(self, data: PyTree) -> None:
        """Raises ValueError unless the records of a matrix game hold a matrix of its shape."""
        if isinstance(self.loss, MatrixGame):
            field, (first, second) = self.loss.field, self.domains
            risks.check_fields(data, field)
            check_shape(f'data["{field}"]', data[field], (None, first.dim, second.dim))

    def gradients_at_vertices(self, indices: Arrays, batch: PyTree) -> tuple[Any, Any]:
        """Gradients `[B, p]` and `[B, q]` of each record at the means of vertices."""
        fast = self.grad_from_vertices or getattr(self.loss, "at_vertices", None)
        if fast is not None:
            return fast(*indices, batch)
        first, second = self.domains
        return self.gradients_at((first.average(indices[0]), second.average(indices[1])), batch)

    def gradients_at(self, points: Arrays, batch: PyTree) -> tuple[Any, Any]:
        """Gradients `[B, p]` and `[B, q]` of each record at a pair of points."""
        if isinstance(self.loss, MatrixGame):
            return self.loss.at_points(*points, batch)
        gradient = jax.grad(self.loss, argnums=(0, 1))
        return jax.vmap(gradient, in_axes=(None, None, 0))(*points, batch)

    def per_example_gradients(self, params: Arrays, batch: PyTree) -> tuple[Any, Any]:
        """Directions that descend for both players: the gradient in x, and minus that in y.

        With these any method that descends along per-example gradients, `DPSGD` among them, is
        descent-ascent; average its iterates uniformly.
        """
        first, second = self.gradients_at(params, batch)
        return first, -second

    def gap(self, params: Arrays, data: PyTree, steps: int = 300) -> GapBounds:
        """Bounds on the duality gap of the mean loss over `data`. **Not private**.

        Args:
          params: A point of each domain.
          data: Records, leaves `[n, ...]`.
          steps: Steps of each best response; one is exact where f is linear in a block.

        Returns:
          Certified lower and upper bounds.
        """
        if isinstance(self.loss, MatrixGame) and self.vertices == (None, None):
            gap = matrix_game_gap(self.loss.mean(data), *params)
            return GapBounds(gap, gap)

        def mean(x: jax.Array, y: jax.Array) -> jax.Array:
            return self.mean_loss((x, y), data)

        return duality_gap(mean, self.domains, *params, steps=steps)

    def project(self, params: Arrays) -> Arrays:
        """The nearest point of each domain."""
        first, second = self.domains
        return first.project(params[0]), second.project(params[1])

    def mean_loss(self, params: Arrays, data: PyTree) -> jax.Array:
        """Mean of f over `data`, a scalar. **Not private**."""
        losses = jax.vmap(self.loss, in_axes=(None, None, 0))
        return risks.mean_over_records(lambda batch: losses(*params, batch), data)


@dataclass(frozen=True)
class MatrixGame:
    """The payoff of one record's matrix, with its fast path; hashable."""

    field: str

    @property
    def payoffs(self) -> Payoffs:
        """Entries, rows and columns of a record's matrix."""
        return Payoffs(
            lambda record, i, j: record[self.field][i, j],
            lambda record, i: record[self.field][i],
            lambda record, j: record[self.field][:, j],
        )

    def __call__(self, x: jax.Array, y: jax.Array, record: PyTree) -> jax.Array:
        """x^T A y."""
        matrix = record[self.field].astype(x.dtype)
        # exact enough that gradients stay in a range which a caller answers for
        return jnp.dot(x, jnp.matmul(matrix, y, precision="highest"), precision="highest")

    def at_vertices(self, rows: jax.Array, columns: jax.Array, batch: PyTree) -> Arrays:
        """Mean of the sampled columns and of the sampled rows of each matrix."""
        matrices = batch[self.field]
        wide = jnp.promote_types(matrices.dtype, jnp.float32)
        return (
            jnp.mean(matrices[:, :, columns].astype(wide), axis=2),
            jnp.mean(matrices[:, rows, :].astype(wide), axis=1),
        )

    def mean(self, data: PyTree) -> jax.Array:
        """The mean matrix, `[dx, dy]`."""
        return risks.mean_over_records(lambda batch: batch[self.field].astype(float), data)

    def at_points(self, x: jax.Array, y: jax.Array, batch: PyTree) -> Arrays:
        """A y and A^T x of each matrix, as sums: batched products are slow on CPU."""
        matrices = batch[self.field].astype(jnp.result_type(x, y))
        return (
            jnp.sum(matrices * y[None, None, :], axis=2),
            jnp.sum(matrices * x[None, :, None], axis=1),
        )
