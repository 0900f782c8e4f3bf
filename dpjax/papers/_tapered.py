"""Disjoint batches of falling sizes, for methods whose later releases depend on each batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import check_choice, check_int, register_dataclass, static_field
from dpjax.sampling._participation import FixedPass, check_num_records


def tapered_sizes(steps: int, num_records: int, tail: int = 0) -> np.ndarray:
    r"""Batch sizes $\lceil c \sqrt{S - t + r} \rceil$, t from 0 to S - 1, c as large as fits.

    Where all S - t + r releases that follow batch t depend on it, with weight 1 / size, this makes
    the sum of squares of these weights about equal for all batches, and the largest least.

    Args:
      steps: Number of batches S, at most `num_records`.
      num_records: Bound on the sum of the sizes.
      tail: Releases r after the last batch, beyond one for each batch.

    Returns:
      Integers `[steps]`, read-only.

    Raises:
      ValueError: If there are more batches than records.
      TypeError: If a number is not an integer.

    Example:
      >>> tapered_sizes(4, 12).tolist()
      [4, 3, 3, 2]
    """
    check_int("steps", steps, minimum=1)
    check_int("num_records", num_records, minimum=1)
    check_int("tail", tail, minimum=0)
    if steps > num_records:
        raise ValueError(f"steps must be <= num_records = {num_records}, got {steps}")
    return _tapered_sizes(int(steps), int(num_records), int(tail))


@functools.lru_cache(maxsize=64)
def _tapered_sizes(steps: int, num_records: int, tail: int) -> np.ndarray:
    roots = np.sqrt(np.arange(steps, 0, -1) + tail)
    low, high = 0.0, num_records / roots.sum()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _sizes(middle, roots).sum() <= num_records else (low, middle)
    sizes = _sizes(low, roots)
    sizes.setflags(write=False)
    return sizes


def _sizes(scale: float, roots: np.ndarray) -> np.ndarray:
    return np.maximum(1, np.ceil(scale * roots - 1e-9)).astype(np.int64)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class TaperedPartition(FixedPass):
    r"""Disjoint batches of `tapered_sizes`; the records left over are not used.

        batch_t = next size_t of the records in the order pi,    size_t ~ sqrt(steps - t + tail)

    Made for methods whose every later release depends on a batch, with weight 1 / size: against
    equal batches of the same records it lowers the worst record's share by about 9 / 4.

    Guarantee: as `DisjointPartition`: a record takes part in at most one step, whatever the order.
    Declare replace-one.

    Args:
      steps: number of batches (public, static).
      num_records: records that are used at most; the data must have as many (public, static).
      order: `"random"`, a uniformly random permutation drawn by `plan`, or `"given"`, the
        order of the data.
      tail: releases after the last batch, beyond one for each batch (public, static).

    Raises:
      ValueError: an argument is outside its range, or (by `plan`) too few records.
      TypeError: a number is not an integer.

    Example:
      >>> sampler = TaperedPartition(steps=4, num_records=12, order="given")
      >>> import jax
      >>> indices, mask = sampler.plan(jax.random.key(0), 12)
      >>> indices[3].tolist(), mask[3].tolist()
      ([10, 11, 0, 0], [True, True, False, False])
    """

    steps: int = dataclasses.field(metadata={"static": True})
    num_records: int = dataclasses.field(metadata={"static": True})
    order: str = static_field(default="random")
    tail: int = static_field(default=0)

    def __post_init__(self) -> None:
        check_int("steps", self.steps, minimum=1)
        check_int("tail", self.tail, minimum=0)
        check_num_records(self.num_records)
        check_choice("order", self.order, ("random", "given"))
        tapered_sizes(self.steps, self.num_records, self.tail)

    @property
    def sizes(self) -> np.ndarray:
        """Records of each batch, `[steps]`."""
        return tapered_sizes(self.steps, self.num_records, self.tail)

    @property
    def slots(self) -> int:
        """Rows of a batch: those of the largest."""
        return int(self.sizes.max())

    def participation_rate(self, num_records: int) -> float:
        """Share of the records that the average batch holds."""
        return float(self.sizes.mean()) / num_records

    def plan(self, key: jax.Array, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Indices `[steps, sizes.max()]` int32 and masks of all batches."""
        order, sizes = self._order(key, num_records), self.sizes
        first = jnp.asarray(np.cumsum(sizes) - sizes, jnp.int32)[:, None]
        slots = jnp.arange(self.slots, dtype=jnp.int32)[None, :]
        mask = slots < jnp.asarray(sizes, jnp.int32)[:, None]
        return jnp.where(mask, order[jnp.where(mask, first + slots, 0)], 0), mask

    def _check(self, num_records: int) -> None:
        super()._check(num_records)
        if num_records < self.num_records:
            raise ValueError(
                f"the data have {num_records} records, fewer than the num_records = "
                f"{self.num_records} that the batches are cut for"
            )
