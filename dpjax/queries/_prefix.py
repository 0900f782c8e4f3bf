"""Prefixes of an ordered axis: the distribution function at every point but the last."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import check_int, check_shape, register_dataclass, static_field
from dpjax.privacy._relations import RelationLike
from dpjax.queries._domain import Domain
from dpjax.queries._sensitivity import QuerySensitivity, query_sensitivity
from dpjax.queries._workload import CellRecords, check_records, checked_vector, query_index


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Prefix(CellRecords):
    r"""All prefixes of an ordered axis: cumulative sums.

    $q_j(z) = 1[z_a \le j], \quad j = 0, \dots, n_a - 2$

    The prefix of everything is left out: it is 1 for every record. An interval is the difference of
    two prefixes. See `Workload` for the methods; `answers` and `adjoint` cost one pass over the
    cells.

    Guarantee: one record moves an answer by at most 1, and all of them by at most
    $\sqrt{n_a - 1}$ in the l2 norm, under every relation: exact.

    Args:
      universe: The number of cells of a line, or a `Domain` (*public*, static).
      attribute: The ordered attribute of the domain, whose codes are in order; may be left out for
        a line, or a domain of one attribute (*public*, static).

    Raises:
      TypeError: If `universe` is neither an integer nor a `Domain`.
      ValueError: If the axis has fewer than 2 codes, or the attribute is unknown or missing.

    Example:
      >>> import jax.numpy as jnp
      >>> prefix = Prefix(4)
      >>> prefix.answers(jnp.array([3, 0, 2, 5])).tolist()
      [3, 3, 5]
      >>> Prefix(Domain({"sex": 2, "age": 10}), "age").num_queries
      9
    """

    universe: int | Domain = dataclasses.field(metadata={"static": True})
    attribute: str | None = static_field(default=None)

    def __post_init__(self) -> None:
        if isinstance(self.universe, Domain):
            attributes = self.universe.attributes
            if self.attribute is None and len(attributes) == 1:
                object.__setattr__(self, "attribute", attributes[0])
            if self.attribute is None:
                raise ValueError(f"attribute must be one of {list(attributes)}, got None")
            self.universe.axes((self.attribute,))
            self.universe.check_enumerable()
        else:
            check_int("universe", self.universe, minimum=2)
            if self.attribute is not None:
                raise ValueError(
                    f"attribute must be None where the universe is a number, got {self.attribute!r}"
                )
            object.__setattr__(self, "universe", int(self.universe))
        name = "universe" if self.attribute is None else f"the size of {self.attribute!r}"
        check_int(name, self._split[1], minimum=2)

    @property
    def domain(self) -> Domain | None:
        """The domain; None for a line, whose records are indices of cells."""
        return self.universe if isinstance(self.universe, Domain) else None

    @functools.cached_property
    def _split(self) -> tuple[int, int, int]:
        """Cells of the axes before, of the axis, and of those after."""
        if not isinstance(self.universe, Domain):
            return 1, self.universe, 1
        shape = self.universe.shape
        axis = self.universe.attributes.index(self.attribute)
        return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    @property
    def num_queries(self) -> int:
        """Number of prefixes, one less than the axis has codes."""
        return self._split[1] - 1

    @property
    def universe_size(self) -> int:
        """Number of cells."""
        return math.prod(self._split)

    @property
    def centre(self) -> float:
        """Mid-range of every query: 0.5."""
        return 0.5

    def answers(self, p: ArrayLike) -> jax.Array:
        """Cumulative sums along the axis, `[m]`, for `p` `[k]`."""
        cube = checked_vector("p", p, self.universe_size).reshape(self._split)
        return jnp.cumsum(jnp.sum(cube, axis=(0, 2), dtype=cube.dtype))[:-1]

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """Cumulative sums from the other end, `[k]`, for `v` `[m]`."""
        array = checked_vector("v", v, self.num_queries)
        return self._spread(jnp.append(jnp.cumsum(array[::-1])[::-1], jnp.zeros(1, array.dtype)))

    def row(self, j: ArrayLike) -> jax.Array:
        """The indicator of the prefix that ends with code `j`, `[k]`; `j` may be traced."""
        j = query_index(j, self.num_queries)
        return self._spread((jnp.arange(self._split[1]) <= j).astype(float))

    def answer_of_record(self, record: ArrayLike) -> jax.Array:
        """All queries at one record, `[m]` (*secret*)."""
        if self.domain is not None:
            check_shape("record", record, (len(self.domain.shape),))
        cell = self.record_cells(jnp.asarray(record)[None])[0]
        code = cell // self._split[2] % self._split[1]
        return (code <= jnp.arange(self.num_queries)).astype(float)

    def record_cells(self, records: ArrayLike) -> jax.Array:
        """The cells of records: codes `[n, A]` over a domain, else `[n]`; or a TypeError."""
        if self.domain is None:
            return super().record_cells(records)
        check_records(records)
        check_shape("records", records, (None, len(self.domain.shape)))
        return self.domain.cells(records)

    def sensitivity(self, relation: RelationLike) -> QuerySensitivity:
        """How far one record moves the sum over the records; exact."""
        m = self.num_queries
        return query_sensitivity(
            relation,
            value_range=1.0,
            largest=1.0,
            l2_replaced=math.sqrt(m),
            l2_record=math.sqrt(m),
            universe_size=self.universe_size,
        )

    def _spread(self, axis: Any) -> jax.Array:
        """Values of the codes of the axis as values of the cells."""
        return jnp.broadcast_to(axis[None, :, None], self._split).reshape(-1)
