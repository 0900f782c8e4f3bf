"""A distribution over a universe of any size: a mixture of products."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_choice, check_int, check_key, register_dataclass
from dpjax.queries._domain import Domain, labels_of
from dpjax.queries._marginals import Marginals
from dpjax.queries._workload import Workload

_CELLS_AT_ONCE = 2048  # of tables of three attributes or more


class TableCells(NamedTuple):
    """Where the codes of the cells of marginal tables lie among those of all attributes.

    Attributes:
      pairs: Of cells of one or two attributes, `[m2, 2]` int32; one past the end for no code.
      larger: Of the others, likewise, `[m3, order]`.
      order: What sorts the two, one after the other, into the answers, `[m]` int32.
    """

    pairs: np.ndarray
    larger: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, workload: Marginals) -> "TableCells":
        """Those of a workload (host)."""
        shape = workload.domain.shape
        start = np.concatenate([[0], np.cumsum(shape)])
        width = max(2, *(len(clique) for clique in workload.cliques))
        cells = np.full((workload.num_queries, width), start[-1], np.int32)
        tables = zip(workload._axes, workload.offsets, workload.sizes, strict=True)
        for axes, offset, size in tables:
            codes = np.indices([shape[axis] for axis in axes]).reshape(len(axes), -1).T
            cells[offset : offset + size, : len(axes)] = codes + start[list(axes)]
        small = np.all(cells[:, 2:] == start[-1], axis=1)
        order = np.argsort(np.concatenate([np.flatnonzero(small), np.flatnonzero(~small)]))
        return cls(cells[small, :2], cells[~small], order.astype(np.int32))


def table_answers(rows: jax.Array, weights: jax.Array, cells: TableCells) -> jax.Array:
    """The probabilities of cells `[m]` under rows `[K, D]` of products of weights `[K]`."""
    wide = jnp.concatenate([rows, jnp.ones((rows.shape[0], 1), rows.dtype)], axis=1)
    # all pairs of codes at once; with the ones, single codes as well
    product = jnp.matmul(wide.T, weights[:, None] * wide, precision="highest")
    parts = [product[cells.pairs[:, 0], cells.pairs[:, 1]]]
    if len(cells.larger):

        def answer(codes: jax.Array) -> jax.Array:
            return weights @ jnp.prod(wide[:, codes], axis=1)

        parts.append(jax.lax.map(answer, jnp.asarray(cells.larger), batch_size=_CELLS_AT_ONCE))
    return jnp.concatenate(parts)[cells.order]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RowModel:
    r"""A mixture of K rows, in each of which attributes are independent.

    $$ p(z) = \sum_k w_k \prod_a p_{ka}(z_a) $$

    Nothing of the size of the universe is formed: K numbers for each code of each attribute.

    Guarantee: that of the release it was fitted to; all it gives is post-processing.

    Attributes:
      domain: The attributes (static).
      log_rows: $\log p_{ka}$, for each attribute `[K, n_a]`.
      log_weights: $\log w_k$, `[K]`.
    """

    domain: Domain = dataclasses.field(metadata={"static": True})
    log_rows: Sequence[jax.Array]
    log_weights: jax.Array

    def answers(self, workload: Workload) -> jax.Array:
        """The tables of a workload over the domain, `[m]`, whether they were measured or not.

        Raises:
          TypeError: If the workload is no marginals.
          ValueError: If it is over another domain.
        """
        if not isinstance(workload, Marginals):
            raise TypeError(
                f"{type(workload).__name__} needs a universe in memory: ask for Marginals, or "
                "release a domain of fewer attributes (Domain.project)"
            )
        if workload.domain != self.domain:
            raise ValueError(f"workload must be over {self.domain}, got {workload.domain}")
        rows = jnp.exp(jnp.concatenate(list(self.log_rows), axis=1))
        return _answers(rows, jnp.exp(self.log_weights), TableCells.of(workload))

    def log_prob(self, codes: ArrayLike) -> jax.Array:
        """Log probability of each record of codes `[n, A]`, `[n]`."""
        known = self.domain.record_codes(codes)
        terms = [rows[:, known[:, a]] for a, rows in enumerate(self.log_rows)]
        return jax.nn.logsumexp(self.log_weights[:, None] + sum(terms), axis=0)

    def condition(self, **labels: object) -> "RowModel":
        """The distribution given the labels (or codes, where there are none) of some attributes.

        Raises:
          ValueError: If an attribute or a label is unknown.
        """
        log_rows, log_weights = list(self.log_rows), self.log_weights
        for axis in self.domain.axes(labels):
            name = self.domain.attributes[axis]
            known = labels_of(self.domain, name)
            check_choice(repr(name), labels[name], known)
            code = known.index(labels[name])
            log_weights = log_weights + log_rows[axis][:, code]
            one = jnp.arange(len(known)) == code
            log_rows[axis] = jnp.broadcast_to(jnp.where(one, 0.0, -jnp.inf), log_rows[axis].shape)
        return RowModel(self.domain, tuple(log_rows), jax.nn.log_softmax(log_weights))

    def sample(self, key: jax.Array, n: int, *, systematic: bool = False) -> np.ndarray:
        """Records, codes `[n, A]` int32 (host).

        Args:
          key: Typed key, scalar.
          n: Number of records, >= 1.
          systematic: Whether rows, and codes within a row, get the numbers expected of them but for
            rounding, in random order; else records are independent.

        Raises:
          TypeError: If the key is not typed, or n is no integer.
          ValueError: If n < 1.
        """
        check_key("key", key)
        check_int("n", n, minimum=1)
        which, shuffle, *keys = jax.random.split(key, 2 + len(self.log_rows))
        places = np.asarray(jax.random.uniform(which, (n,)), np.float64)
        if systematic:
            places = (np.arange(n) + places[0]) / n
        weights = np.exp(np.asarray(self.log_weights, np.float64))
        row = np.sort(drawn_codes(weights[None], np.zeros(n, np.int64), places))
        start, size = np.searchsorted(row, row), np.bincount(row, minlength=len(weights))[row]
        codes = np.empty((n, len(keys)), np.int32)
        for axis, (one, log_rows) in enumerate(zip(keys, self.log_rows, strict=True)):
            places, order = np.asarray(jax.random.uniform(one, (2, n)), np.float64)
            if systematic:
                # records of a row in random order, one in each of as many equal parts
                rank = np.empty(n, np.int64)
                rank[np.lexsort((order, row))] = np.arange(n) - start
                places = (rank + places) / size
            codes[:, axis] = drawn_codes(np.exp(np.asarray(log_rows, np.float64)), row, places)
        return codes[np.asarray(jax.random.permutation(shuffle, n))]


_answers = jax.jit(table_answers)


def drawn_codes(shares: np.ndarray, row: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The codes at places in [0, 1) of the distribution functions of rows `[K, n]`."""
    edges = np.cumsum(shares, axis=1)
    edges = edges / edges[:, -1:] + np.arange(len(edges))[:, None]
    found = np.searchsorted(edges.ravel(), row + places, side="right") - row * shares.shape[1]
    return np.minimum(found, shares.shape[1] - 1)
