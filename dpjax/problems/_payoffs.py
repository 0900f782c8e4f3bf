"""Payoffs of one record at pairs of vertices: by entry, by row and by column."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax.core import PyTree
from dpjax.geometry import Domain
from dpjax.problems._vertex_domains import uniform_point


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
        start = uniform_point(domain)
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
            row = self.payoffs.row(record, i).astype(y.dtype)
            return jnp.dot(row, y, precision="highest")

        every = jax.lax.map(paid, jnp.arange(self.dims[0], dtype=jnp.int32))
        return jnp.dot(x, every, precision="highest")

    def at_vertices(
        self, rows: jax.Array, columns: jax.Array, batch: PyTree
    ) -> tuple[jax.Array, jax.Array]:
        """Mean of the sampled columns and of the sampled rows of each record."""

        def mean(line: Callable[..., jax.Array], at: jax.Array, record: PyTree) -> jax.Array:
            lines = jax.vmap(lambda index: line(record, index))(at)
            return jnp.mean(lines.astype(jnp.promote_types(lines.dtype, jnp.float32)), axis=0)

        first = jax.vmap(lambda record: mean(self.payoffs.column, columns, record))(batch)
        return first, jax.vmap(lambda record: mean(self.payoffs.row, rows, record))(batch)
