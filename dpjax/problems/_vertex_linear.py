"""Domains with vertices, checks that problems over them share, and losses of one inner product."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.core import PyTree, check_int, check_nonnegative, check_positive, check_shape
from dpjax.geometry import Domain, L1Ball, Polytope, Simplex
from dpjax.problems._mean import mean_over_records
from dpjax.transforms import OuterProduct, PackedSigns


@dataclass(frozen=True)
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
            raise ValueError(f'data must be a dict with the field "{field}"')


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
    check_nonnegative("smoothness", problem.smoothness)
    check_nonnegative("third_order", problem.third_order)
    check_nonnegative("coupling", problem.coupling)


def uniform_point(domain: Domain) -> Any:
    """The mean of all vertices."""
    return domain.point(jnp.full(domain.num_vertices, 1 / domain.num_vertices))
