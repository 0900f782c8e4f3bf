"""Partitions under add-or-remove-one: each record picks its batch by itself."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpjax.core import check_int, check_key, register_dataclass, static_field
from dpjax.sampling._capacity import default_capacity
from dpjax.sampling._participation import Participation, Planned, check_bound, check_num_records


@register_dataclass
@dataclasses.dataclass(frozen=True)
class IndependentPartition(Planned):
    """Disjoint batches of random size: each record joins one of them on its own.

        P[i in batch_t] = share_t,    independently for all i

    With several epochs these batches come again in the same order.

    Guarantee: add-or-remove-one. A record takes part in one step of each epoch, which does not
    depend on the other records, so with the divisors of the run public its absence is the same as a
    record that contributes nothing; steps compose in parallel, and epochs one after the other. A
    batch with more members than slots loses the surplus, which is a failure: it costs
    `(1 + e^epsilon) * failure_probability()` of delta, once for all epochs. No amplification is
    claimed.

    Args:
      steps: number of steps, a multiple of `epochs` (public, static).
      num_records: public upper bound on the number of records (static).
      capacity: slots of a batch (public, static); None for one that costs at most a hundredth of
        a delta of 1e-6 up to epsilon 10, rounded up to a multiple of 32.
      tapered: whether shares fall as `sqrt(steps - t + tail)`, as in `TaperedPartition`, or are
        equal (public, static).
      tail: as in `TaperedPartition`.
      epochs: how often all batches come, of equal shares if more than once (public, static).

    Raises:
      ValueError: an argument is outside its range, or (by `plan`) there are too many records.
      TypeError: a number is not an integer.

    Example:
      >>> import jax
      >>> sampler = IndependentPartition(steps=10, num_records=1000)
      >>> _, masks = sampler.plan(jax.random.key(0), 900)
      >>> int(masks.sum())
      900
    """

    steps: int = dataclasses.field(metadata={"static": True})
    num_records: int = dataclasses.field(metadata={"static": True})
    capacity: int = static_field(default=None)
    tapered: bool = static_field(default=False)
    tail: int = static_field(default=0)
    epochs: int = static_field(default=1)

    def __post_init__(self) -> None:
        check_int("steps", self.steps, minimum=1)
        check_num_records(self.num_records)
        check_int("tail", self.tail, minimum=0)
        check_int("epochs", self.epochs, minimum=1)
        if self.steps % self.epochs:
            raise ValueError(
                f"steps must be a multiple of epochs = {self.epochs}, got {self.steps}"
            )
        if self.tapered and self.epochs > 1:
            raise ValueError(f"epochs must be 1 with tapered=True, got {self.epochs}")
        if self.capacity is None:
            object.__setattr__(self, "capacity", self.capacity_for())
        check_int("capacity", self.capacity, minimum=1)

    def capacity_for(self, delta: float = 1e-6, epsilon: float = 10.0) -> int:
        """Slots with which overflow costs at most a hundredth of delta up to epsilon."""
        largest = float(self.shares.max())
        return default_capacity(self.num_records, largest, self._batches, delta, epsilon)

    @property
    def shares(self) -> np.ndarray:
        """The chance of each batch, `[steps]`."""
        once = np.diff(_table(self._batches, self.tapered, self.tail), prepend=0) / 2.0**32
        return np.tile(once, self.epochs)

    @property
    def participation(self) -> Participation:
        """A record is in the same batch of every epoch."""
        return Participation("fixed", self.epochs, self._batches)

    @property
    def sizes(self) -> np.ndarray:
        """Public sizes to divide by: `num_records * shares`, `[steps]`."""
        return self.num_records * self.shares

    def participation_rate(self, num_records: int) -> float:
        """One step of each epoch."""
        return self.epochs / self.steps

    def plan(self, key: jax.Array, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Indices `[steps, capacity]` int32 and masks `[steps, capacity]` of all batches."""
        self._check(num_records)
        check_key("key", key)
        last = (_table(self._batches, self.tapered, self.tail)[:-1] - 1).astype(np.uint32)
        bits = jax.random.bits(key, (num_records,), jnp.uint32)
        batch = jnp.searchsorted(jnp.asarray(last), bits, side="left").astype(jnp.int32)
        order = jnp.argsort(batch).astype(jnp.int32)
        counts = jnp.zeros(self._batches, jnp.int32).at[batch].add(1)
        ends = jnp.cumsum(counts)
        slots = jnp.arange(self.capacity, dtype=jnp.int32)
        mask = slots[None, :] < counts[:, None]
        place = (ends - counts)[:, None] + slots[None, :]
        indices = jnp.where(mask, order[jnp.minimum(place, num_records - 1)], 0)
        return jnp.tile(indices, (self.epochs, 1)), jnp.tile(mask, (self.epochs, 1))

    def failure_probability(self) -> float:
        """Bound on the probability that any batch has more members than slots, in all epochs."""
        shares, counts = np.unique(self.shares[: self._batches], return_counts=True)
        tails = stats.binom.sf(self.capacity, self.num_records + 1, shares)
        return min(1.0, float(counts @ tails))

    @property
    def _batches(self) -> int:
        return self.steps // self.epochs

    def _check(self, num_records: int) -> None:
        check_bound(num_records, self.num_records)


@functools.lru_cache(maxsize=64)
def _table(steps: int, tapered: bool, tail: int) -> np.ndarray:
    """Cumulative chances of the batches, `[steps]`, in units of 2^-32; the last is 2^32."""
    weights = np.sqrt(np.arange(steps, 0, -1) + tail) if tapered else np.ones(steps)
    table = np.round(np.cumsum(weights) / weights.sum() * 2.0**32).astype(np.int64)
    table[-1] = 2**32
    return table
