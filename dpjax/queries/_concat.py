"""Several families of queries over one universe as one."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import check_type, register_dataclass, wide
from dpjax.core._pairs import Pair, pair_of
from dpjax.privacy._budget import RelationLike
from dpjax.queries._domain import Domain
from dpjax.queries._workload import QuerySensitivity, Workload, checked_vector


@functools.partial(register_dataclass, rechecked=False)
@dataclasses.dataclass(frozen=True, eq=False)
class Concat(Workload):
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

    workloads: Sequence[Workload]

    def __post_init__(self) -> None:
        workloads = tuple(self.workloads)
        if not workloads:
            raise ValueError("workloads must be >= 1 of them, got none")
        for workload in workloads:
            check_type("workloads", workload, Workload, "of queries")
        sizes = [workload.universe_size for workload in workloads]
        if len(set(sizes)) > 1:
            raise ValueError(f"workloads must be over one universe, got {sizes} cells")
        domains = {workload.domain for workload in workloads} - {None}
        if len(domains) > 1:
            raise ValueError(f"workloads must be over one domain, got {sorted(map(str, domains))}")
        vars(self).update(workloads=workloads)

    @functools.cached_property
    def domain(self) -> Domain | None:
        """The domain of the parts that have one; None if records are indices of cells."""
        return next((w.domain for w in self.workloads if w.domain is not None), None)

    @functools.cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where the queries of each part start in `[m]`."""
        return (0, *itertools.accumulate(w.num_queries for w in self.workloads))[:-1]

    @functools.cached_property
    def num_queries(self) -> int:
        """Number of queries of all parts."""
        return sum(workload.num_queries for workload in self.workloads)

    @functools.cached_property
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

    def sums(self, counts: ArrayLike, most: int) -> jax.Array | Pair:
        """Those of the parts, `[m]`, for whole counts `[k]` whose sum is at most `most`."""
        parts = [workload.sums(counts, most) for workload in self.workloads]
        if any(isinstance(part, Pair) for part in parts):
            parts = [pair_of(part) for part in parts]
        return jax.tree.map(lambda *each: jnp.concatenate(each), *parts)

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """The sum of the adjoints of the parts, `[k]`, for `v` `[m]`."""
        vector = checked_vector("v", v, self.num_queries)
        parts = [
            workload.adjoint(vector[start : start + workload.num_queries])
            for start, workload in zip(self.offsets, self.workloads, strict=True)
        ]
        return functools.reduce(jnp.add, parts)

    def answer_of_record(self, record: ArrayLike) -> jax.Array:
        """All queries at one record, `[m]` (*secret*)."""
        cell = self.record_cell(record)
        parts = ((w, cell if w.domain is None else record) for w in self.workloads)
        return jnp.concatenate([workload.answer_of_record(own) for workload, own in parts])

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
