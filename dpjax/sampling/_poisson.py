"""Poisson sampling: each record takes part in each step with the same probability."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe

from dpjax.core import PyTree, check_choice, check_int, check_key, is_traced
from dpjax.core._fields import register_dataclass, static_field
from dpjax.random._gaps import draw_members, gaps_shortfall, keep_uniform_subset, step_words
from dpjax.random._keys import StepKeys
from dpjax.sampling import _participation as base
from dpjax.sampling._capacity import default_capacity, draws_needed, overflow_probability


@register_dataclass
@dataclasses.dataclass(frozen=True)
class PoissonSampler:
    """Batches that each record joins independently, in slots of fixed number.

        P[i in batch_t] = rate, independently for all i and t

    Guarantee: add-or-remove-one. A mechanism `M` on these batches has event
    `PoissonSampledDpEvent(rate, M)`, but for a probability of `failure_probability()` in all,
    which costs `(1 + e^epsilon) * failure_probability()` of delta. With
    `overflow="truncate"`, under replace-one and for a Gaussian mechanism, the event is
    `TruncatedSubsampledGaussianDpEvent(num_records, rate, capacity, ...)`, in which
    overflow is accounted for. It counts on records being cut, so it claims too little for fewer
    than `num_records` records: their number has to be exact, and public.

    A batch with more members than slots loses the surplus: with `overflow="declare"` in any
    way (`"gaps"` keeps the lowest indices), as a failure; with `"truncate"` uniformly at random.

    | case                    | batch                                             |
    |-------------------------|---------------------------------------------------|
    | no member               | mask all False                                    |
    | padding                 | mask False, index 0                               |
    | more members than slots | mask all True, surplus dropped as `overflow` says |
    | `rate` 1                | everybody, if `capacity` allows                   |

    Args:
      rate: probability with which each record takes part, in (0, 1] (public, static).
      steps: number of batches (public, static).
      num_records: public upper bound on the number of records, below 2^31 a shard; with
        `overflow="truncate"` their exact number (static).
      capacity: slots of a batch, or of a shard's part of it (public, static); None for
        `default_capacity`.
      method: `"gaps"` draws each batch inside the compiled loop, at a cost that does not grow
        with `num_records`; `"host"` draws them all in `plan` with NumPy, to double precision.
      overflow: `"declare"` or `"truncate"`.
      shards: number of equal shares of the rows, each of which draws its own members with a key
        and slots of its own (static): where shares lie on several devices, no record is moved.
        Draws depend on this number, but not on how many devices there are. The data need `rows`
        rows, see `dpjax.shard_records`; with `"gaps"` and `"declare"` only.

    Raises:
      ValueError: an argument is outside its range, or (by `plan` and `batch`) there are more
        records than `num_records`, or fewer with `overflow="truncate"`.
      TypeError: `rate` is traced, or (by `plan`) the key is, with `method="host"`.

    Example:
      >>> import jax
      >>> sampler = PoissonSampler(rate=0.01, steps=100, num_records=36_000)
      >>> sampler.capacity
      512
      >>> xs = sampler.plan(jax.random.key(0), 36_000)
      >>> count = lambda total, x: (total + sampler.batch(x, 36_000)[1].sum(), None)
      >>> total, _ = jax.lax.scan(count, 0, xs)
      >>> bool(35_000 < total < 37_000)
      True
    """

    rate: float = static_field()
    steps: int = static_field()
    num_records: int = static_field()
    capacity: int = static_field(default=None)
    method: str = static_field(default="gaps")
    overflow: str = static_field(default="declare")
    shards: int = static_field(default=1)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", base.known_rate(self.rate))
        for name in ("steps", "num_records", "shards"):
            check_int(name, getattr(self, name), minimum=1)
        if self._share > base.MOST_RECORDS:
            most = base.MOST_RECORDS * self.shards
            raise ValueError(f"num_records must be <= {most}, got {self.num_records}")
        check_choice("method", self.method, ("gaps", "host"))
        check_choice("overflow", self.overflow, ("declare", "truncate"))
        if self.shards > 1 and (self.method, self.overflow) != ("gaps", "declare"):
            raise ValueError(
                f"shards = {self.shards} needs method='gaps' and overflow='declare', got "
                f"{self.method!r} and {self.overflow!r}"
            )
        if self.capacity is None:
            object.__setattr__(self, "capacity", self.capacity_for())
        check_int("capacity", self.capacity, minimum=1)

    def capacity_for(self, delta: float = 1e-5, epsilon: float = 10.0) -> int:
        """Slots with which overflow costs at most a hundredth of delta up to epsilon."""
        steps = self.steps * self.shards
        return default_capacity(self._share, self.rate, steps, delta, epsilon)

    @property
    def participation(self) -> base.Participation:
        """A record may be in every step; `rate` counts with `overflow="declare"` alone."""
        if self.overflow == "truncate" or self.rate == 1:
            return base.every_step(self.steps)
        return base.cyclic(self.rate, 1, self.steps)

    @property
    def slots(self) -> int:
        """Rows of a batch: `shards * capacity`."""
        return self.shards * self.capacity

    @property
    def default_relation(self) -> NeighboringRelation:
        """Add or remove one record; with `overflow="truncate"` replace one."""
        truncates = self.overflow == "truncate"
        return getattr(NeighboringRelation, "REPLACE_ONE" if truncates else "ADD_OR_REMOVE_ONE")

    def check_relation(self, relation: NeighboringRelation) -> None:
        """Raises ValueError for all but replace-one with `overflow="truncate"`."""
        if self.overflow == "truncate" and relation != NeighboringRelation.REPLACE_ONE:
            raise ValueError(
                "relation must be replace_one with overflow='truncate', whose event holds for one "
                f"public number of records alone, got {relation.name.lower()}; overflow='declare' "
                "takes any relation"
            )

    def event(self, step: dpe.DpEvent) -> dpe.DpEvent:
        """The event of `steps` Poisson batches, each of which releases `step`.

        Raises:
          ValueError: `overflow="truncate"` with a `step` that is not one Gaussian.
        """
        if self.overflow == "declare":
            sampled = dpe.PoissonSampledDpEvent(self.rate, step)
            return dpe.SelfComposedDpEvent(sampled, int(self.steps))
        if not isinstance(step, dpe.GaussianDpEvent):
            raise ValueError(
                f"overflow='truncate' has no accountant for {step}: release Gaussian noise alone, "
                "or use overflow='declare'"
            )
        cut = dpe.TruncatedSubsampledGaussianDpEvent(
            dataset_size=int(self.num_records),
            sampling_probability=self.rate,
            truncated_batch_size=int(self.capacity),
            noise_multiplier=step.noise_multiplier,
        )
        return dpe.SelfComposedDpEvent(cut, int(self.steps))

    def participation_rate(self, num_records: int) -> float:
        """The `rate`; with `overflow="truncate"` records are in fewer batches."""
        return self.rate

    def plan(self, key: jax.Array, num_records: int) -> Any:
        """What a scan iterates over, leading axis `[steps]`.

        Args:
          key: PRNG key; concrete with `method="host"`.
          num_records: number of records there are (static).

        Returns:
          With `"gaps"` a key and a word of each step; with `"host"` indices
          `[steps, capacity]` int32 and masks `[steps, capacity]`.
        """
        self._check(num_records)
        check_key("key", key)
        if self.method == "gaps":
            return step_words(key, self.steps)
        return self._drawn_on_host(key, num_records)

    def _drawn_on_host(self, key: jax.Array, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Draws all batches: a binomial count each, then that many records without replacement.

        A Poisson batch given its size is a uniform subset of that size, so a size cut to
        `capacity` is the batch with its surplus dropped uniformly at random.
        """
        if is_traced(key):
            raise TypeError(
                "method='host' draws with NumPy and needs a concrete key, got a traced one "
                "(under jit, vmap or scan): use method='gaps'"
            )
        seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
        rng = np.random.default_rng(np.random.SeedSequence(seed))
        counts = rng.binomial(num_records, self.rate, size=self.steps)
        counts = np.minimum(counts, self.capacity)
        indices = np.zeros((self.steps, self.capacity), dtype=np.int32)
        for row, count in zip(indices, counts, strict=True):
            row[:count] = np.sort(rng.choice(num_records, size=count, replace=False, shuffle=False))
        return jnp.asarray(indices), jnp.asarray(np.arange(self.capacity) < counts[:, None])

    def batch(self, x: PyTree, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Members of one step, by ascending index.

        Args:
          x: one slice of `plan`.
          num_records: number of records there are (static).

        Returns:
          Indices `[shards * capacity]` int32 and mask of that shape, both *secret*; the shards'
          parts one after the other, indices of unused slots those of the shard's first row.
        """
        self._check(num_records)
        if self.method == "host":
            indices, mask = x
            return indices, mask & (indices < num_records)
        if self.shards > 1:
            if self.rows > base.MOST_RECORDS:
                raise ValueError(
                    f"indices of {self.rows} rows do not fit int32: use batch_of_shards"
                )
            own, mask = self.batch_of_shards(x, num_records)
            first = self._share * jnp.arange(self.shards, dtype=jnp.int32)
            return (own + first[:, None]).reshape(-1), mask.reshape(-1)
        bound, draws = self.num_records, self._draws()
        indices, mask = draw_members(x[0], x[1], self.rate, bound, num_records, draws)
        if self.overflow == "declare":
            return indices[: self.capacity], mask[: self.capacity]
        return keep_uniform_subset(x[0], indices, mask, self.capacity)

    def batch_of_shards(self, x: PyTree, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Members of one step by shards.

        Args:
          x: one slice of `plan`.
          num_records: number of records there are, in the first of the `rows` rows (static).

        Returns:
          Indices within the shard `[shards, capacity]` int32 and their mask, both *secret*.
        """
        self._check(num_records)
        (keys, shared), share, draws = x, self._share, self._draws()
        present = np.clip(num_records - share * np.arange(self.shards), 0, share)

        def members(given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            data, present = given
            own = StepKeys(data, keys.impl)
            indices, mask = draw_members(own, shared, self.rate, share, present, draws)
            return indices[: self.capacity], mask[: self.capacity]

        given = (keys.split(self.shards).data, jnp.asarray(present, jnp.uint32))
        indices, mask = keys.each(members, given)
        return indices, mask

    @property
    def rows(self) -> int:
        """Rows that data have to have with several shards: `num_records`, and padding."""
        return self.shards * self._share

    @property
    def _share(self) -> int:
        return -(-self.num_records // self.shards)

    def failure_probability(self) -> float:
        """Bound on the probability that the run deviates from the declared event.

        The sum over all steps and shards of: with `overflow="declare"`, the probability of
        overflow with one record more than a shard may hold (a neighbour may have one more); with
        `"gaps"`, the total variation between its integer tables and the distributions they stand
        for (and, with `"truncate"`, the probability that there were more members than it can see).
        """
        steps, draws = self.steps * self.shards, self._draws()
        total = 0.0
        if self.overflow == "declare":
            total += steps * overflow_probability(self._share + 1, self.rate, self.capacity)
        if self.method == "gaps":
            total += self.steps * gaps_shortfall(self._share, self.rate, draws * self.shards)
            if self.overflow == "truncate":
                total += steps * overflow_probability(self.num_records + 1, self.rate, draws)
                total += steps * draws**2 * 2.0**-65
        return min(1.0, total)

    def _draws(self) -> int:
        see_all = self.overflow == "truncate"
        return draws_needed(self._share, self.rate, self.capacity, see_all=see_all)

    def _check(self, num_records: int) -> None:
        base.check_bound(num_records, self.num_records)
        if self.overflow == "truncate" and num_records < self.num_records:
            raise ValueError(
                f"the data have {num_records} records, but overflow='truncate' needs exactly "
                f"num_records = {self.num_records}: fewer are cut more rarely than is accounted"
            )
