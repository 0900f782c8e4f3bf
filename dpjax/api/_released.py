"""What query release gives its user: answers, a distribution to sample from, and why."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_int, check_key, register_dataclass, static_field
from dpjax.geometry import sample_vertices
from dpjax.privacy import Guarantee
from dpjax.privacy._budget import relation_name
from dpjax.privacy._guarantee import epsilon_line
from dpjax.queries import Domain, Marginals, RowModel, Workload
from dpjax.queries._domain import decode_into, labels_of
from dpjax.queries._row_model import drawn_codes
from dpjax.queries.tables._frames import contained
from dpjax.queries.tables._labels import labelled

NUMBERS_OF_A_TABLE = ("share", "count", "stddev")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Release:
    """Released answers and the distribution behind them; all of it is covered by the guarantee.

    Attributes:
      answers: `[m]`, of the distribution, unless the method says otherwise.
      log_probs: Log probabilities of the cells of the universe, `[k]`; None where it has too many,
        and `model` stands for them.
      stddev: Standard deviation of the noise in the best unbiased estimate of each answer, `[m]`,
        NaN where there is none: an error bar, mostly on the safe side, since the fit smooths. None
        for methods that select.
      workload: The queries.
      guarantee: `guarantee.epsilon(delta)`.
      method: Which method was used.
      reason: Why.
      delta: That of the budget, where there was one: the repr shows epsilon there.
      num_records: The public number of records, by which counts are divided.
      total: The number of records, by which shares are multiplied: under add-or-remove-one what
        the noisy tables say of it, where they do; else `num_records`.
      max_rows: How many rows of one person the guarantee covers; None where it is per row.
      container: What tables are given as: the kind of frame that the data were, or a mapping.
      table_stddev: As `stddev`, of a cell of each table whose noise is known: those measured and
        below, or, of noise on the cells of the universe, those of one and two attributes.
      raw: Noisy answers to the queries of `measured`, before any fit, of a length of their own,
        `[measured.num_queries]`; None for methods that measure no answers.
      measured: What was measured.
      model: The mixture of products behind the answers, a `queries.RowModel`, by `"rows"`.
    """

    answers: jax.Array
    log_probs: jax.Array | None
    stddev: jax.Array | None
    workload: Workload
    guarantee: Guarantee = dataclasses.field(metadata={"static": True})
    method: str = dataclasses.field(metadata={"static": True})
    reason: str = dataclasses.field(metadata={"static": True})
    delta: float | None = static_field(default=None)
    num_records: int | None = static_field(default=None)
    max_rows: int | None = static_field(default=None)
    container: str | type | None = static_field(default=None)
    table_stddev: tuple[tuple[tuple[str, ...], float], ...] = static_field(default=())
    model: RowModel | None = None
    raw: jax.Array | None = None
    measured: Workload | None = None
    total: float | None = static_field(default=None)

    def __repr__(self) -> str:
        """Method, sizes, relation and epsilon in two lines; arrays are of any length."""
        rows = None if self.model is None else self.model.log_weights
        shown = (("answers", self.answers), ("log_probs", self.log_probs), ("rows", rows))
        sizes = [f"{name}={list(np.shape(a))}" for name, a in shown if a is not None]
        deltas = () if self.delta is None else (self.delta,)
        unit = f", per person of at most {self.max_rows} rows" if self.max_rows else ""
        return (
            f"Release(method={self.method!r}, workload={type(self.workload).__name__}, "
            f"{', '.join(sizes)})\n  {epsilon_line(self.guarantee, *deltas)}, "
            f"relation={relation_name(self.guarantee.relation)!r}{unit}"
        )

    def answers_to(self, workload: Workload) -> jax.Array:
        """Answers of the released distribution to other queries, `[m]`: post-processing.

        Raises:
          TypeError: If the universe is too large for queries that are no `Marginals`.
          ValueError: If the queries are over another universe.
        """
        if self.model is not None:
            return self.model.answers(workload)
        return workload.answers(jnp.exp(jnp.asarray(self.log_probs)))

    def sample(self, key: jax.Array, n: int, *, systematic: bool = False) -> jax.Array:
        r"""Synthetic records, as many as wanted: post-processing.

        Sampling adds an error of at most $\sqrt{2 \log(2m) / n} / 2$ to answers of range 1;
        systematic sampling, much less.

        Args:
          key: Typed key, scalar.
          n: Number of records, >= 1.
          systematic: Whether each cell, or of a mixture each row and code, gets its expected number
            of records, rounded up or down, in random order; else records are independent.

        Returns:
          Codes `[n, A]` int32 of a workload over a domain, else cells `[n]` int32.

        Raises:
          TypeError: If the key is not typed, or n is no integer.
          ValueError: If n < 1.
        """
        check_key("key", key)
        check_int("n", n, minimum=1)
        if self.model is not None:
            return jnp.asarray(self.model.sample(key, n, systematic=systematic))
        if systematic:
            offset, order = jax.random.split(key)
            # on the host: single precision cannot add up many small shares
            shares = np.exp(np.asarray(self.log_probs, np.float64))
            places = (np.arange(n) + float(jax.random.uniform(offset))) / n
            found = drawn_codes(shares[None], np.zeros(n, np.int64), places)
            cells = jax.random.permutation(order, jnp.asarray(found, jnp.int32))
        else:
            cells = sample_vertices(key, jnp.asarray(self.log_probs), n)
        return cells if self.workload.domain is None else self.workload.domain.codes(cells)

    def decode(self, codes: ArrayLike, *, key: jax.Array | None = None) -> dict[str, np.ndarray]:
        """Columns by name, in the labels of the domain, from codes `[n, A]`.

        Args:
          codes: `[n, A]`, as of `sample`.
          key: Typed key, required where the domain has `Numeric` or `Date` columns.

        Raises:
          ValueError: If the workload has no domain, or the key is missing.
        """
        return self._domain.decode(codes, key=key)

    def sample_frame(self, n: int, *, key: jax.Array, systematic: bool = False) -> Any:
        """Synthetic records as raw values, in the kind of table that was released.

        Numbers and days are drawn within their bins: see `Domain.decode`. Post-processing.

        Args:
          n: Number of records, >= 1.
          key: Typed key, scalar.
          systematic: As of `sample`.

        Returns:
          A data frame of pandas, polars or pyarrow where the data were one, else a mapping of
          columns `[n]`.

        Raises:
          TypeError: If the key is not typed, or n is no integer.
          ValueError: If n < 1, or the workload has no domain.
        """
        domain = self._domain
        check_key("key", key)
        which, within = jax.random.split(key)
        codes = self.sample(which, n, systematic=systematic)
        return decode_into(domain, self.container, codes, within)

    def table(self, *attributes: str) -> Any:
        """The released distribution of some attributes, with labels: post-processing.

        Args:
          *attributes: Names, the first running slowest. Any may be asked for, but only what the
            workload measures has known noise.

        Returns:
          A table of the kind that was released, one row for each cell: a column for each attribute,
          then `share`, `count`, which is the share of the public number of records, and `stddev` of
          the share, NaN where it is not known.

        Raises:
          TypeError: If names come as a list.
          ValueError: If the workload has no domain, an attribute is unknown, or named like one of
            the other columns.

        Example:
          >>> import dpjax, jax, numpy as np
          >>> domain = dpjax.queries.Domain({"sex": ["F", "M"], "age": 4})
          >>> data = {"sex": np.repeat(["F", "M"], 500), "age": np.arange(1000) % 4}
          >>> budget = dpjax.Budget(1.0, 1e-6)
          >>> released = dpjax.release(domain, data, budget, key=jax.random.key(0))
          >>> list(released.table("sex")), released.table("sex")["sex"].tolist()
          (['sex', 'share', 'count', 'stddev'], ['F', 'M'])
        """
        domain = self._domain
        if any(isinstance(name, list | tuple) for name in attributes):
            raise TypeError(
                f"attributes must be names, one by one as in table('a', 'b'), got {attributes}"
            )
        named = Marginals(domain, (attributes,))
        for name in NUMBERS_OF_A_TABLE:
            if name in attributes:
                raise ValueError(f"attribute {name!r} is also a column of the table: rename it")
        (clique,) = named.cliques
        workload, answers = named, self.answers_to(named)
        known = dict(self.table_stddev).get(clique, math.nan)
        stddev: ArrayLike = np.full(named.num_queries, known)
        if isinstance(self.workload, Marginals) and clique in self.workload.cliques:
            workload, answers = self.workload, self.answers
            stddev = np.full(answers.shape, math.nan) if self.stddev is None else self.stddev
        share = np.asarray(workload.table(answers, attributes), np.float64)
        deviation = np.asarray(workload.table(stddev, attributes), np.float64).ravel()
        columns: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
        for name, codes in zip(attributes, np.indices(share.shape), strict=True):
            columns[name] = labelled(labels_of(domain, name), codes.ravel())
        columns["share"] = share.ravel(), None
        total = self.num_records if self.total is None else self.total
        if total is not None:
            columns["count"] = total * share.ravel(), None
        columns["stddev"] = deviation, None
        return contained(columns, self.container)

    @property
    def _domain(self) -> Domain:
        if self.workload.domain is None:
            raise ValueError(f"workload must be over a domain, got {type(self.workload).__name__}")
        return self.workload.domain
