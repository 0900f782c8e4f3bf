"""Batches of fixed size, cut from one order of the records, once or in every epoch."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import check_choice, check_int, register_dataclass, static_field
from dpjax.sampling._participation import FixedPass, Participation


class _EqualBatches(FixedPass):
    """Disjoint batches of one size, which may come again in every epoch."""

    batch_size: int

    @property
    def sizes(self) -> np.ndarray:
        """Records of each batch, `[steps]`."""
        return np.full(self.steps, self.batch_size)

    @property
    def slots(self) -> int:
        """Rows of a batch."""
        return self.batch_size

    def participation_rate(self, num_records: int) -> float:
        """Share of the records that a batch holds."""
        return self.batch_size / num_records

    def plan(self, key: jax.Array, num_records: int) -> jax.Array:
        """Indices of all batches, `[steps, batch_size]` int32."""
        batches, epochs = self.participation.separation, self.participation.most
        used = self._order(key, num_records)[: batches * self.batch_size]
        return jnp.tile(used.reshape(batches, self.batch_size), (epochs, 1))

    def batch(self, x: jax.Array, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Members of one step: indices `[batch_size]` int32, mask of those in the data."""
        self._check(num_records)
        # of a plan for more records: JAX would take the last in place of those beyond
        return x, x < num_records

    def _check(self, num_records: int) -> None:
        super()._check(num_records)
        batches = self.participation.separation
        if batches * self.batch_size > num_records:
            raise ValueError(
                f"steps * batch_size must be <= num_records = {num_records}, got "
                f"{batches} * {self.batch_size} = {batches * self.batch_size}"
            )


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DisjointPartition(_EqualBatches):
    """Disjoint batches of fixed size; the records left over are not used.

        batch_t = {pi(t * b), ..., pi(t * b + b - 1)},    pi a permutation of the records

    Guarantee: a record takes part in at most one step, whatever the permutation, so under
    replace-one the steps compose in parallel: the event of the run is the event of one step.
    No amplification is claimed. Under add-or-remove-one the number of records is not public,
    and the place of a record in the permutation depends on it: declare replace-one.

    Args:
      steps: number of batches (public, static).
      batch_size: records in each (public, static); `steps * batch_size` records are needed.
      order: `"random"`, a uniformly random permutation drawn by `plan`, or `"given"`, the
        order of the data.

    Raises:
      ValueError: an argument is outside its range, or (by `plan`) too few records.
      TypeError: a number is not an integer.

    Example:
      >>> import jax
      >>> sampler = DisjointPartition(steps=2, batch_size=3, order="given")
      >>> xs = sampler.plan(jax.random.key(0), 7)
      >>> indices, mask = sampler.batch(xs[1], 7)
      >>> indices.tolist(), mask.tolist()
      ([3, 4, 5], [True, True, True])
    """

    steps: int = dataclasses.field(metadata={"static": True})
    batch_size: int = dataclasses.field(metadata={"static": True})
    order: str = dataclasses.field(default="random", metadata={"static": True})

    def __post_init__(self) -> None:
        check_int("steps", self.steps, minimum=1)
        check_int("batch_size", self.batch_size, minimum=1)
        check_choice("order", self.order, ("random", "given"))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class RepeatedPartition(_EqualBatches):
    """Disjoint batches of fixed size, the same ones in the same order in every epoch.

        batch_t = {pi(m i), ..., pi(m i + m - 1)},    i = t mod steps_per_epoch

    pi is one permutation of the records; those left over are not used.

    Guarantee: a record takes part in the steps {j, j + b, j + 2b, ...}, b = `steps_per_epoch`,
    whatever the permutation: the event of the run is that of a step, composed `epochs` times. No
    amplification is claimed. Declare replace-one, as for `DisjointPartition`. For noise that is
    correlated over the steps the order has to be the same in every epoch: in a new one a record may
    come last in one epoch and first in the next.

    Args:
      epochs: how often all batches come (public, static).
      steps_per_epoch: number of batches (public, static).
      batch_size: records in each (public, static).
      order: `"random"`, a uniformly random permutation drawn by `plan`, or `"given"`, the
        order of the data.

    Raises:
      ValueError: an argument is outside its range, or (by `plan`) too few records.
      TypeError: a number is not an integer.

    Example:
      >>> import jax
      >>> sampler = RepeatedPartition(2, steps_per_epoch=2, batch_size=3, order="given")
      >>> sampler.plan(jax.random.key(0), 7).tolist()
      [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]]
    """

    epochs: int = dataclasses.field(metadata={"static": True})
    steps_per_epoch: int = dataclasses.field(metadata={"static": True})
    batch_size: int = dataclasses.field(metadata={"static": True})
    order: str = static_field(default="random")

    def __post_init__(self) -> None:
        for name in ("epochs", "steps_per_epoch", "batch_size"):
            check_int(name, getattr(self, name), minimum=1)
        if self.order not in ("random", "given"):
            raise ValueError(
                f"order must be the same in every epoch for separation {self.steps_per_epoch}: a "
                f"new order each epoch has separation 1; one of ['random', 'given'], got "
                f"{self.order!r}"
            )

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of steps, of all epochs."""
        return self.epochs * self.steps_per_epoch

    @property
    def participation(self) -> Participation:
        """A record is in the same batch of every epoch."""
        return Participation("fixed", self.epochs, self.steps_per_epoch)
