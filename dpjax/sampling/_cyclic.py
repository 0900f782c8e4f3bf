"""Poisson sampling from groups that take turns."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax.core import check_choice, check_int, check_key, register_dataclass, static_field
from dpjax.random._gaps import draw_members, gaps_shortfall, step_words
from dpjax.random._keys import StepKeys
from dpjax.sampling import _participation as base
from dpjax.sampling._capacity import default_capacity, draws_needed, overflow_probability


@register_dataclass
@dataclasses.dataclass(frozen=True)
class CyclicPoisson(base.Planned):
    r"""Groups of records take turns; whoever's turn it is joins the batch independently.

        P[i in batch_t | groups] = rate if group(i) = t mod groups, else 0

    Made for banded noise, which needs `groups - 1` steps between two of a record's: with one group
    it draws the batches of `PoissonSampler`.

    Guarantee: `PoissonSampledDpEvent(rate, M)`, composed ceil(steps / groups) times, for a
    mechanism M of each batch, but for a probability of `failure_probability()` in all. A record's
    group depends on its place in the data and the key alone, and the bound holds given all groups.
    With `assignment="independent"` the other records' groups are the same whether a record is there
    or not: add-or-remove-one. With `"equal"` groups are cut from a permutation of the records,
    whose number is then public: replace-one or replace-special.

    A batch with more members than slots loses those of highest index, as a failure.

    Args:
      rate: probability with which a record joins when it is its group's turn, in (0, 1] (public,
        static); batches have `rate / groups` of the records on average.
      groups: b, number of groups (public, static).
      steps: number of batches (public, static); all are drawn beforehand, `[steps, capacity]`.
      num_records: public upper bound on the number of records (static).
      capacity: slots of a batch (public, static); None as in `PoissonSampler`.
      assignment: `"independent"`, each record draws its group; or `"equal"`, groups of
        floor(n / b) records, the others not used.

    Raises:
      ValueError: an argument is outside its range, or (by `plan`) there are too many records.
      TypeError: a number is not an integer, or `rate` is traced.

    Example:
      >>> import jax
      >>> sampler = CyclicPoisson(rate=0.5, groups=4, steps=8, num_records=1000)
      >>> sampler.participation.most, sampler.participation_rate(1000)
      (2, 0.125)

    Source: Choquette-Choo et al., "(Amplified) banded matrix factorization: a unified approach to
    private training", 2023; groups drawn independently need no divisibility.
    """

    rate: float = static_field()
    groups: int = static_field()
    steps: int = static_field()
    num_records: int = static_field()
    capacity: int = static_field(default=None)
    assignment: str = static_field(default="independent")

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", base.known_rate(self.rate))
        check_int("groups", self.groups, minimum=1)
        check_int("steps", self.steps, minimum=1)
        base.check_num_records(self.num_records)
        check_choice("assignment", self.assignment, ("independent", "equal"))
        if self.groups > self.num_records:
            raise ValueError(
                f"groups must be <= num_records = {self.num_records}, got {self.groups}"
            )
        if self.capacity is None:
            object.__setattr__(self, "capacity", self.capacity_for())
        check_int("capacity", self.capacity, minimum=1)

    def capacity_for(self, delta: float = 1e-5, epsilon: float = 10.0) -> int:
        """Slots with which overflow costs at most a hundredth of delta up to epsilon."""
        return default_capacity(*self._law, self.steps, delta, epsilon)

    @property
    def participation(self) -> base.Participation:
        """A record's steps are those of its group, each with probability `rate`."""
        return base.cyclic(self.rate, self.groups, self.steps)

    @property
    def default_relation(self) -> NeighboringRelation:
        """Add or remove one record; with equal groups replace one."""
        if self.assignment == "equal":
            return NeighboringRelation.REPLACE_ONE
        return NeighboringRelation.ADD_OR_REMOVE_ONE

    def check_relation(self, relation: NeighboringRelation) -> None:
        """Raises ValueError for add-or-remove-one with equal groups."""
        if self.assignment == "equal":
            base.check_fixed_partition(self, relation)

    def participation_rate(self, num_records: int) -> float:
        """`rate / groups`."""
        return self.rate / self.groups

    def plan(self, key: jax.Array, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Indices `[steps, capacity]` int32, ascending, and masks `[steps, capacity]`."""
        self._check(num_records)
        check_key("key", key)
        if self.groups > 1:
            key, own = jax.random.split(key)
            order, sizes = self._grouped(own, num_records)
        else:  # the batches of `PoissonSampler`
            order = jnp.arange(num_records, dtype=jnp.int32)
            sizes = jnp.full(1, num_records, jnp.int32)
        first = jnp.cumsum(sizes) - sizes
        keys, words = step_words(key, self.steps)
        draws = self._draws()

        def step(given: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            data, word, group = given
            own = StepKeys(data, keys.impl)
            size = sizes[group].astype(jnp.uint32)
            place, mask = draw_members(own, word, self.rate, self.num_records, size, draws)
            place, mask = place[: self.capacity], mask[: self.capacity]
            rows = order[jnp.minimum(first[group] + place, num_records - 1)]
            return jnp.where(mask, rows, 0), mask

        turns = jnp.arange(self.steps, dtype=jnp.int32) % self.groups
        return jax.lax.map(step, (keys.data, words, turns))

    def _grouped(self, key: jax.Array, num_records: int) -> tuple[jax.Array, jax.Array]:
        """Records sorted by group, and the groups' sizes `[groups]`."""
        if self.assignment == "equal":
            share = num_records // self.groups
            order = jax.random.permutation(key, jnp.arange(num_records, dtype=jnp.int32))
            used, rest = jnp.split(order, [share * self.groups])
            used = jnp.sort(used.reshape(self.groups, share), axis=1)
            order = jnp.concatenate([used.reshape(-1), rest])
            return order, jnp.full(self.groups, share, jnp.int32)
        bits = jax.random.bits(key, (num_records,), jnp.uint32)
        group = (bits % np.uint32(self.groups)).astype(jnp.int32)
        sizes = jnp.zeros(self.groups, jnp.int32).at[group].add(1)
        return jnp.argsort(group, stable=True).astype(jnp.int32), sizes

    def failure_probability(self) -> float:
        """Bound on the probability that the run deviates from the declared event.

        The sum over all steps of the probability of overflow, with one record more than there may
        be, and of the total variation between the integer tables of gaps and their law.
        """
        records, rate = self._law
        overflow = overflow_probability(records + 1, rate, self.capacity)
        drawn = gaps_shortfall(self.num_records, self.rate, self._draws())
        return min(1.0, self.steps * (overflow + drawn))

    @property
    def _law(self) -> tuple[int, float]:
        """Number of records and rate of the binomial that bounds the size of a batch."""
        if self.assignment == "equal":
            return math.ceil(self.num_records / self.groups), self.rate
        # a residue of 32 bits is at most 2^-32 more likely than another
        share = 1 / self.groups + 2.0**-32 if self.groups > 1 else 1.0
        return self.num_records, min(1.0, self.rate * share)

    def _draws(self) -> int:
        return draws_needed(self.num_records, self.rate, self.capacity, see_all=False)

    def _check(self, num_records: int) -> None:
        base.check_bound(num_records, self.num_records)
