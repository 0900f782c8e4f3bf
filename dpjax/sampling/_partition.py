"""Single pass: each record takes part in at most one step."""

import dataclasses

import jax
import numpy as np

from dpjax.core._checks import check_choice, check_int
from dpjax.core._fields import register_dataclass
from dpjax.sampling._single_pass import FixedPass


@register_dataclass
@dataclasses.dataclass(frozen=True)
class DisjointPartition(FixedPass):
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

    @property
    def sizes(self) -> np.ndarray:
        """Records of each batch, `[steps]`."""
        return np.full(self.steps, self.batch_size)

    @property
    def slots(self) -> int:
        """Rows of a batch."""
        return self.batch_size

    def participation_rate(self, num_records: int) -> float:
        """Share of the records that the average batch holds."""
        return self.batch_size / num_records

    def plan(self, key: jax.Array, num_records: int) -> jax.Array:
        """Indices of all batches, `[steps, batch_size]` int32."""
        used = self.steps * self.batch_size
        return self._order(key, num_records)[:used].reshape(self.steps, self.batch_size)

    def batch(self, x: jax.Array, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Members of one step: indices `[batch_size]` int32, mask of those in the data."""
        self._check(num_records)
        # of a plan for more records: JAX would take the last in place of those beyond
        return x, x < num_records

    def _check(self, num_records: int) -> None:
        super()._check(num_records)
        if self.steps * self.batch_size > num_records:
            raise ValueError(
                f"steps * batch_size must be <= num_records = {num_records}, got "
                f"{self.steps} * {self.batch_size} = {self.steps * self.batch_size}"
            )
