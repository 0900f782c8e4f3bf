"""Single-pass samplers: each record enters one step, so the steps compose in parallel."""

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe

from dpjax.core._checks import check_key
from dpjax.core._types import PyTree
from dpjax.sampling._participation import Participation, one_step
from dpjax.sampling._records import check_fixed_partition, check_num_records


class Planned:
    """Batches that are all planned in advance, as indices and masks."""

    capacity: int

    @property
    def participation(self) -> Participation:
        """Which steps one record may be in."""
        raise NotImplementedError  # abstract: each subclass has its own

    @property
    def slots(self) -> int:
        """Rows of a batch: `capacity`."""
        return self.capacity

    @property
    def default_relation(self) -> NeighboringRelation:
        """Add or remove one record."""
        return NeighboringRelation.ADD_OR_REMOVE_ONE

    def check_relation(self, relation: NeighboringRelation) -> None:
        """Any relation will do."""

    def _check(self, num_records: int) -> None:
        """Raises ValueError unless the batches suit this many records."""
        check_num_records(num_records)

    def event(self, step: dpe.DpEvent) -> dpe.DpEvent:
        """The event of the steps that one record is in, each of which releases `step`."""
        return self.participation.event(step)

    def batch(self, x: PyTree, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Members of one step: indices `[slots]` int32 and mask `[slots]`."""
        self._check(num_records)
        indices, mask = x
        # of a plan for more records: JAX would take the last in place of those beyond
        return indices, mask & (indices < num_records)

    def failure_probability(self) -> float:
        """Probability that the run deviates from the declared event: none."""
        return 0.0


class SinglePass(Planned):
    """Disjoint batches, planned in advance."""

    steps: int

    @property
    def participation(self) -> Participation:
        """A record is in one step at most: the steps compose in parallel."""
        return one_step(self.steps)


class FixedPass(SinglePass):
    """Batches of fixed sizes, cut from one order of the records."""

    order: str

    @property
    def default_relation(self) -> NeighboringRelation:
        """Replace one record."""
        return NeighboringRelation.REPLACE_ONE

    def check_relation(self, relation: NeighboringRelation) -> None:
        """Raises ValueError for add-or-remove-one, under which places in the order move."""
        check_fixed_partition(self, relation)

    def _order(self, key: jax.Array, num_records: int) -> jax.Array:
        self._check(num_records)
        order = jnp.arange(num_records, dtype=jnp.int32)
        if self.order == "given":
            return order
        check_key("key", key)
        return jax.random.permutation(key, order)
