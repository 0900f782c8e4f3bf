"""Which steps a record may be in, and what samplers that state it have in common."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe

from dpjax.core import PyTree, Sampler, check_choice, check_int, check_key, check_rate, is_traced

_KINDS = ("fixed", "min_separation", "cyclic")
# indices are int32, and compiled code wraps larger ones without a word: a record would come twice
MOST_RECORDS = 2**31 - 1


def check_num_records(num_records: int) -> None:
    """Raises unless there is a record, and int32 can number all of them.

    Raises:
      TypeError: If it is no integer.
      ValueError: If it is below 1 or above 2^31 - 1.
    """
    check_int("num_records", num_records, minimum=1)
    if num_records > MOST_RECORDS:
        raise ValueError(
            f"num_records must be <= {MOST_RECORDS}, which int32 can number, got {num_records}: "
            "give each shard of the data its own sampler"
        )


def known_rate(rate: float) -> float:
    """A rate in (0, 1] that is no tracer, as a float."""
    if is_traced(rate):
        raise TypeError("rate shapes the program and must be a number, got a tracer")
    check_rate("rate", rate)
    return float(rate)


def check_fixed_partition(sampler: object, relation: NeighboringRelation) -> None:
    """Raises for a relation under which neighbours differ in the number that batches are cut from.

    Raises:
      ValueError: If it is add-or-remove-one.
    """
    if relation == NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            f"relation must be replace_one or replace_special with {type(sampler).__name__}, whose "
            "batches depend on the number of records, got add_or_remove_one; IndependentPartition "
            "takes it"
        )


def check_bound(num_records: int, bound: int) -> None:
    """Raises unless the number of records is one, and within a sampler's public bound.

    Raises:
      TypeError: If it is no integer.
      ValueError: If it is below 1 or above the bound.
    """
    check_int("num_records", num_records, minimum=1)
    if num_records > bound:
        raise ValueError(
            f"the data have more records than the sampler's public bound num_records = {bound}"
        )


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Participation:
    r"""The steps in which one record may take part: `most` of them, `separation` apart.

    $$ \text{fixed: } \{j, j + b, j + 2b, \dots\}, \; j < b; \qquad
       \text{min\_separation: any } k \text{ steps with gaps} \ge b $$

    `"cyclic"` is `"fixed"` with each of the steps kept with probability `rate`, independently of
    everything else. A record in one step at most has k = 1 and b the number of steps; one that is
    in every step has b = 1.

    Guarantee: none of its own. A sampler claims it as `participation`, and answers for it under the
    relations that it takes; `dpjax.testing.check_sampler` compares it with batches.

    Args:
      kind: `"fixed"`, `"min_separation"` or `"cyclic"` (*public*).
      most: k, the most steps of one record, `>= 1` (*public*).
      separation: b, the least distance between two of them, `>= 1` (*public*).
      rate: Probability with which `"cyclic"` keeps each step, in (0, 1]; 1 for the others
        (*public*).

    Raises:
      TypeError: If `most` or `separation` is no integer.
      ValueError: If a value is outside its bound.

    Example:
      >>> twice = Participation("fixed", most=2, separation=5)
      >>> twice.within(Participation("min_separation", most=3, separation=4))
      True

    Source: the schemas of Choquette-Choo, McMahan, Rush and Thakurta, "Multi-epoch matrix
    factorization mechanisms for private machine learning", 2023.
    """

    kind: str
    most: int
    separation: int
    rate: float = 1.0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, _KINDS)
        check_int("most", self.most, minimum=1)
        check_int("separation", self.separation, minimum=1)
        check_rate("rate", self.rate)
        if self.rate < 1 and self.kind != "cyclic":
            raise ValueError(f"rate must be 1 with kind={self.kind!r}, got {self.rate!r}")

    def within(self, other: "Participation") -> bool:
        """Whether these steps are among those of `other`, whose `most` cover the run if fixed."""
        if other.kind == "cyclic":
            return self == other
        if other.kind == "min_separation":
            apart = self.most == 1 or self.separation >= other.separation
            return self.most <= other.most and apart
        if self.kind == "min_separation" and self.most > 1:
            return other.separation == 1
        if self.separation == other.separation:
            return self.most <= other.most
        return self.most == 1 or self.separation % other.separation == 0

    def event(self, step: dpe.DpEvent) -> dpe.DpEvent:
        """The event of a run whose steps release `step` each, apart from one another."""
        if self.rate < 1:
            step = dpe.PoissonSampledDpEvent(float(self.rate), step)
        if self.most == 1 and self.rate == 1:
            return step
        return dpe.SelfComposedDpEvent(step, int(self.most))


def one_step(steps: int) -> Participation:
    """Of records that are in one of these steps at most."""
    return Participation("fixed", 1, steps)


def every_step(steps: int) -> Participation:
    """Of records that may be in all of these steps."""
    return Participation("fixed", steps, 1)


def cyclic(rate: float, groups: int, steps: int) -> Participation:
    """Of records that join every `groups`-th step with this probability."""
    return Participation("cyclic", math.ceil(steps / groups), groups, rate)


def participation_of(sampler: Sampler) -> Participation | None:
    """What the sampler states, or None: solvers of correlated noise then refuse it."""
    return getattr(sampler, "participation", None)


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


class FixedPass(Planned):
    """Disjoint batches of fixed sizes, cut from one order of the records."""

    steps: int
    order: str

    @property
    def participation(self) -> Participation:
        """A record is in one step at most: the steps compose in parallel."""
        return one_step(self.steps)

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
