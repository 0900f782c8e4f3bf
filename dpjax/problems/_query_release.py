"""Query release: the answers of a workload on records, to be matched by a distribution."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_int, is_traced, register_dataclass, static_field, wide
from dpjax.privacy import RelationLike, resolve_relation
from dpjax.queries import QuerySensitivity

_BYTES = 4 * 8  # float32 vectors over the universe that a solver may hold at once
_MOST_COUNTED = 2**24  # from here on float32 skips whole numbers
_MOST_INDEXED = 2**31 - 1
_RELATIONS = ("replace_one", "add_or_remove_one")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class QueryRelease:
    r"""Find a distribution p over the universe whose answers are those of the records.

    $$ \min_p \max_j |\langle q_j, P_n - p \rangle| $$

    with $P_n$ the distribution of the records, codes `[n, A]` or cells `[n]`, *secret*; all else is
    *public*.

    Guarantee: none of its own. `sensitivity(relation)` bounds how far one record moves sums of the
    queries, from the workload alone; solvers scale noise and event by it. Under replace-special a
    record goes missing, as under add-or-remove-one: no code stands for an empty record. In float32
    sums are exact below 2^24 records, from which on records are refused, but scores, and with them
    their change by one record, are rounded: by up to 0.2% of it in 300 trials at 50,000 records, 7%
    at a million, 19% at four million. In 64-bit types that is nothing.

    Args:
      workload: The queries, a `dpjax.queries.Workload`.
      max_bytes: Most memory that vectors over the universe may take, eight of them in float32
        (static).
      sensitivities: Of the workload under replace-one and add-or-remove-one; computed from it
        (static).

    Raises:
      TypeError: If the workload is none.
      ValueError: If the universe has one cell, or is too large for `max_bytes`.

    Example:
      >>> import dpjax
      >>> domain = dpjax.queries.Domain({"sex": 2, "age": 10})
      >>> problem = QueryRelease(dpjax.queries.Marginals.all_kway(domain, 2))
      >>> problem.sensitivity("replace_one").score_range
      2.0
    """

    workload: Any
    max_bytes: int = static_field(default=16 * 2**30)
    sensitivities: tuple[QuerySensitivity, QuerySensitivity] | None = static_field(default=None)

    def __post_init__(self) -> None:
        check_int("max_bytes", self.max_bytes, minimum=1)
        if self.sensitivities is not None or is_traced(self.workload):
            return
        if not hasattr(self.workload, "answers_of_records"):
            if isinstance(self.workload, str | bytes | int | float | None):
                raise TypeError(f"workload must be of dpjax.queries, got {self.workload!r}")
            return  # a placeholder of a pytree
        size = int(self.workload.universe_size)
        if size < 2:
            raise ValueError(f"the universe must have >= 2 cells, got {size}: nothing is unknown")
        if size * _BYTES > self.max_bytes:
            raise ValueError(
                f"the universe has {size:,} cells, whose vectors take {size * _BYTES / 2**30:.3g} "
                f"GiB, above max_bytes = {self.max_bytes / 2**30:.3g} GiB: drop attributes, merge "
                "categories, or release groups of attributes one by one"
            )
        both = tuple(map(self.workload.sensitivity, _RELATIONS))
        object.__setattr__(self, "sensitivities", both)

    def sensitivity(self, relation: RelationLike) -> QuerySensitivity:
        """How far one record moves sums of the queries (host, static).

        Raises:
          ValueError: If the problem was built under a transformation, of a traced workload.
        """
        if self.sensitivities is None:
            raise ValueError(
                "sensitivities are unknown of a workload that was traced: build the problem "
                "outside jit and vmap, or give it `sensitivities`"
            )
        return self.sensitivities[resolve_relation(relation).name != "REPLACE_ONE"]

    def check(self, records: PyTree) -> None:
        """Raises unless there are records, all of them in the universe, and they can be counted."""
        if np.shape(records)[:1] == (0,):
            raise ValueError("records must be n >= 1 of them, got none")
        self.workload.record_cells(records)
        if not is_traced(self.workload):
            self._check_sensitivities()
        self._check_number(np.shape(records)[0])

    def _check_number(self, number: int) -> None:
        """Raises if sums over so many records are rounded by what one of them changes."""
        if self.sensitivities is None:
            return
        added = self.sensitivity("add_or_remove_one")
        sums = number * max(1.0, added.linf / (added.value_range or 1.0))
        if jnp.zeros(0).dtype == jnp.float32 and sums >= _MOST_COUNTED:
            raise ValueError(
                "records, times the largest entry of a query by its range, must be < "
                f"{_MOST_COUNTED} in float32, which rounds larger sums and with them what one "
                f"record does, got {sums:.3g}: enable jax_enable_x64, or centre the queries"
            )
        if number > _MOST_INDEXED:
            raise ValueError(
                f"records must be <= {_MOST_INDEXED}, as cells are counted in int32, got {number}"
            )
        if number * added.linf < 2**31:
            return
        counts = jax.ShapeDtypeStruct((self.workload.universe_size,), jnp.int32)
        if jnp.issubdtype(jax.eval_shape(self.workload.answers, counts).dtype, jnp.integer):
            raise ValueError(
                f"sums over records must be < 2**31 in int32, got up to {number * added.linf:.3g}: "
                "hold the queries as floats"
            )

    def _check_sensitivities(self) -> None:
        """Raises unless they are of this workload, and not kept by `dataclasses.replace`."""
        for relation in _RELATIONS:
            known, now = self.sensitivity(relation), self.workload.sensitivity(relation)
            if any(a < b * (1 - 1e-9) for a, b in zip(known, now, strict=True)):
                raise ValueError(
                    f"sensitivities must be those of the workload, {now} under {relation}, got "
                    f"{known}: make a new QueryRelease of another workload"
                )

    def answers(self, records: ArrayLike, num_records: Any) -> jax.Array:
        """Sums of the queries over the records by the *public* `num_records`, `[m]` (*secret*)."""
        sums = self.workload.answers(self.workload.histogram(records))
        return sums.astype(float) / num_records

    def targets(self, records: ArrayLike, num_records: Any) -> jax.Array:
        r"""What selections compare with a distribution's answers, `[m]` (*secret*).

        $$ \langle q_j, h \rangle - c_j (\sum_z h_z - 1) $$

        with h the histogram by `num_records` and $c_j$ the mid-range of $q_j$: as if the queries
        were centred there, which halves what a record that comes or goes can do. With as many
        records as `num_records` these are the answers.
        """
        surplus = jnp.shape(records)[0] / num_records - 1
        return self.answers(records, num_records) - wide(self.workload.centre) * surplus
