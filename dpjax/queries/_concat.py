"""Several families of queries over one universe as one."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import check_shape, register_dataclass, static_field, wide
from dpjax.privacy._relations import RelationLike
from dpjax.queries._domain import Domain
from dpjax.queries._sensitivity import QuerySensitivity
from dpjax.queries._workload import CellRecords, check_records, checked_vector, query_index


@register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Concat(CellRecords):
    r"""The queries of several workloads, one after the other.

    $M = [M_1; M_2; \dots]$

    If one of them is over a `Domain`, so is the whole: a record is its codes, and families over
    cells see the cell of those codes (`domain.cells`). Else it is the index of a cell. See
    `Workload` for the methods.

    Guarantee: `value_range`, `score_range` and `linf` are the largest of the parts, exact if theirs
    are. `l2_answers` is $(\sum_i \Delta_i^2)^{1/2}$, exact where one record (or pair) moves every
    part the most, as any record does to marginals under add/remove; else an upper bound.

    Args:
      workloads: One or more, over one universe (*public*, data).

    Raises:
      TypeError: If one is no workload.
      ValueError: If there is none, or universes or domains differ.

    Example:
      >>> from dpjax.queries import Dense, Prefix
      >>> both = Concat([Prefix(3), Dense([[1, 0, 2]])])
      >>> both.num_queries, both.answer_of_record(2).tolist()
      (3, [0.0, 0.0, 2.0])
    """

    workloads: Sequence[Any]
    _checked: bool = static_field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self._checked:  # when it was made: a pytree is rebuilt often, and of placeholders
            return
        workloads = tuple(self.workloads)
        if not workloads:
            raise ValueError("workloads must be >= 1 of them, got none")
        for workload in workloads:
            if not hasattr(workload, "answer_of_record"):
                raise TypeError(f"workloads must be of queries, got {type(workload).__name__}")
        sizes = [workload.universe_size for workload in workloads]
        if len(set(sizes)) > 1:
            raise ValueError(f"workloads must be over one universe, got {sizes} cells")
        domains = {_domain(workload) for workload in workloads} - {None}
        if len(domains) > 1:
            raise ValueError(f"workloads must be over one domain, got {sorted(map(str, domains))}")
        object.__setattr__(self, "workloads", workloads)
        object.__setattr__(self, "_checked", True)

    @property
    def domain(self) -> Domain | None:
        """The domain of the parts that have one; None if records are indices of cells."""
        known = [_domain(workload) for workload in self.workloads]
        return next((domain for domain in known if domain is not None), None)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where the queries of each part start in `[m]`."""
        return (0, *itertools.accumulate(w.num_queries for w in self.workloads))[:-1]

    @property
    def num_queries(self) -> int:
        """Number of queries of all parts."""
        return sum(workload.num_queries for workload in self.workloads)

    @property
    def universe_size(self) -> int:
        """Number of cells of every part."""
        return self.workloads[0].universe_size

    @property
    def centre(self) -> jax.Array:
        """Mid-range of each query, `[m]`."""
        each = [jnp.broadcast_to(wide(w.centre), (w.num_queries,)) for w in self.workloads]
        return jnp.concatenate(each)

    def answers(self, p: ArrayLike) -> jax.Array:
        """The answers of the parts, `[m]`, for `p` `[k]`."""
        return jnp.concatenate([workload.answers(p) for workload in self.workloads])

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """The sum of the adjoints of the parts, `[k]`, for `v` `[m]`."""
        vector = checked_vector("v", v, self.num_queries)
        parts = [
            workload.adjoint(vector[start : start + workload.num_queries])
            for start, workload in zip(self.offsets, self.workloads, strict=True)
        ]
        return functools.reduce(jnp.add, parts)

    def row(self, j: ArrayLike) -> jax.Array:
        """Query `j`, `[k]`; `j` may be traced: only its part is asked, unless under vmap."""
        j = query_index(j, self.num_queries)
        part = jnp.searchsorted(jnp.asarray(self.offsets, jnp.int32), j, side="right") - 1
        return jax.lax.switch(part, [self._row_of(i) for i in range(len(self.workloads))], j)

    def answer_of_record(self, record: ArrayLike) -> jax.Array:
        """All queries at one record, `[m]` (*secret*)."""
        cell = record
        if self.domain is not None and None in map(_domain, self.workloads):
            check_shape("record", record, (len(self.domain.shape),))
            cell = self.domain.cells(record)
        return jnp.concatenate(
            [
                workload.answer_of_record(cell if _domain(workload) is None else record)
                for workload in self.workloads
            ]
        )

    def record_cells(self, records: ArrayLike) -> jax.Array:
        """The cells of records: codes `[n, A]` over a domain, else `[n]`; or a TypeError."""
        if self.domain is None:
            return super().record_cells(records)
        check_records(records)
        check_shape("records", records, (None, len(self.domain.shape)))
        return self.domain.cells(records)

    def sensitivity(self, relation: RelationLike) -> QuerySensitivity:
        """How far one record moves the sum over the records."""
        parts = [workload.sensitivity(relation) for workload in self.workloads]
        return QuerySensitivity(
            value_range=max(part.value_range for part in parts),
            score_range=max(part.score_range for part in parts),
            l2_answers=math.hypot(*(part.l2_answers for part in parts)),
            l2_histogram=max(part.l2_histogram for part in parts),
            linf=max(part.linf for part in parts),
        )

    def _row_of(self, part: int) -> Callable[[jax.Array], jax.Array]:
        workload, start = self.workloads[part], self.offsets[part]

        def row(j: jax.Array) -> jax.Array:
            # in other branches too it may be traced with any j
            own = jnp.clip(j - start, 0, workload.num_queries - 1)
            return jnp.asarray(workload.row(own)).astype(float)

        return row


def _domain(workload: Any) -> Domain | None:
    return getattr(workload, "domain", None)
