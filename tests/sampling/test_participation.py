"""Who takes part in which steps: what samplers state, by enumeration and by draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from scipy import stats

from dpjax.core._fields import register_dataclass
from dpjax.sampling import (
    CyclicPoisson,
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    Participation,
    PoissonSampler,
    RepeatedPartition,
)
from dpjax.testing import Entry, SamplerCase, check_sampler
from tests.sampling._membership import accept, members

GAUSSIAN = dpe.GaussianDpEvent(1.0)


def patterns(schema, steps):
    """All index sets of a schema of so many steps, with those within them."""
    found = set()
    for size in range(min(schema.most, steps) + 1):
        for chosen in itertools.combinations(range(steps), size):
            gaps = np.diff(chosen)
            if schema.kind == "min_separation":
                allowed = np.all(gaps >= schema.separation)
            else:
                first = chosen[0] if chosen else 0
                run = set(range(first, steps, schema.separation))
                allowed = set(chosen) <= set(sorted(run)[: schema.most])
            if allowed:
                found.add(chosen)
    return found


@pytest.mark.parametrize("steps", [1, 4, 6])
def test_a_schema_within_another_has_no_other_patterns(steps):
    schemas = [
        Participation(kind, most, apart)
        for kind in ("fixed", "min_separation", "cyclic")
        for most in range(1, steps + 1)
        for apart in range(1, steps + 1)
    ]
    inside = 0
    for first, second in itertools.product(schemas, schemas):
        # strategies state fixed patterns that cover their steps
        covers = second.kind == "min_separation" or second.most * second.separation >= steps
        if second.kind != "cyclic" and covers and first.within(second):
            inside += 1
            assert patterns(first, steps) <= patterns(second, steps), (first, second)
    assert inside > len(schemas)


def test_the_chain_of_schemas():
    once = DisjointPartition(12, 2).participation
    fixed = RepeatedPartition(3, 4, 2).participation
    apart = Participation("min_separation", 3, 4)
    looser = Participation("min_separation", 5, 2)
    every = FullBatch(12).participation
    chain = [once, fixed, apart, looser, every]
    for i, j in itertools.product(range(5), range(5)):
        assert chain[i].within(chain[j]) == (i <= j)
    cyclic = CyclicPoisson(0.3, 4, 12, 40).participation
    assert cyclic.within(fixed)
    assert not fixed.within(cyclic)
    assert IndependentPartition(12, 40, epochs=3).participation == fixed


def test_events_are_of_the_stated_number_of_turns():
    twice = dpe.SelfComposedDpEvent(GAUSSIAN, 3)
    assert RepeatedPartition(3, 4, 2).event(GAUSSIAN) == twice
    assert IndependentPartition(12, 40, epochs=3).event(GAUSSIAN) == twice
    assert IndependentPartition(12, 40).event(GAUSSIAN) == GAUSSIAN
    for steps, turns in ((12, 3), (13, 4), (3, 1)):  # the first groups have the most turns
        sampled = dpe.PoissonSampledDpEvent(0.3, GAUSSIAN)
        want = dpe.SelfComposedDpEvent(sampled, turns)
        assert CyclicPoisson(0.3, 4, steps, 40).event(GAUSSIAN) == want
    one = CyclicPoisson(0.3, 1, 9, 40)
    assert one.event(GAUSSIAN) == PoissonSampler(0.3, 9, 40).event(GAUSSIAN)
    assert one.participation == PoissonSampler(0.3, 9, 40).participation
    # a cut batch has another event: no rate is claimed
    cut = PoissonSampler(0.3, 9, 40, 20, overflow="truncate")
    assert cut.participation == FullBatch(9).participation


def test_one_group_has_the_members_of_a_poisson_sampler(x64):
    for n in (40, 33):
        plain = PoissonSampler(0.3, 9, 40)
        same = CyclicPoisson(0.3, 1, 9, 40)
        assert same.capacity == plain.capacity
        assert same.failure_probability() == pytest.approx(plain.failure_probability(), rel=1e-9)
        np.testing.assert_array_equal(members(same, 5, n), members(plain, 5, n))


@pytest.mark.slow
@pytest.mark.parametrize("assignment", ["independent", "equal"])
def test_groups_take_turns_and_records_join_by_themselves(assignment):
    rate, groups, steps, n = 0.4, 4, 400, 60
    sampler = CyclicPoisson(rate, groups, steps, n, n + 1, assignment)
    table = members(sampler, 0, n)
    turns = np.stack([table[j::groups] for j in range(groups)])  # [groups, turns, n]
    own = turns.any(axis=1)
    assert own.sum(axis=0).tolist() == [1] * n
    group = own.argmax(axis=0)
    here = turns[group, :, np.arange(n)].T  # [turns, n], whether each came at its turn
    z = (here.sum() - here.size * rate) / np.sqrt(here.size * rate * (1 - rate))
    accept(2 * stats.norm.sf(abs(z)))
    centred = (here - rate) / np.sqrt(rate * (1 - rate))
    for products in (centred[1:] * centred[:-1], centred[:, 1:] * centred[:, :-1]):
        accept(2 * stats.norm.sf(abs(products.sum()) / np.sqrt(products.size)))
    if assignment == "equal":
        assert np.bincount(group).tolist() == [15] * 4
    counts = np.zeros((2, groups))
    for seed in range(60):
        turned = members(CyclicPoisson(1.0, groups, groups, n, n + 1, assignment), seed, n)
        counts[0] += turned[:, 7]
        counts[1] += turned.sum(axis=1)
        first = turned.argmax(axis=0)
        counts[0] += turned[:, 8]
    accept(stats.chisquare(counts[0]).pvalue)
    accept(stats.chisquare(counts[1]).pvalue)
    assert first.size == n


def test_batches_overflow_as_rarely_as_declared():
    sampler = CyclicPoisson(0.9, 2, 6, 9, 7)
    tail = stats.binom.sf(7, 10, 0.45)
    assert sampler.failure_probability() == pytest.approx(6 * tail, rel=1e-6)
    equal = CyclicPoisson(0.5, 2, 6, 9, 5, "equal")
    assert equal.failure_probability() == pytest.approx(6 * stats.binom.sf(5, 6, 0.5), rel=1e-6)
    assert 6 * CyclicPoisson(0.01, 4, 3000, 36_000).failure_probability() < 1e-6
    once, thrice = IndependentPartition(4, 9, 6), IndependentPartition(12, 9, 6, epochs=3)
    assert once.failure_probability() == thrice.failure_probability() > 0
    assert once.capacity == IndependentPartition(12, 9, 6, epochs=3).capacity


@pytest.mark.parametrize(
    "sampler", [RepeatedPartition(3, 5, 4), IndependentPartition(15, 24, epochs=3)]
)
def test_every_epoch_has_the_same_batches(sampler):
    table = members(sampler, 1, 23).reshape(3, 5, 23)
    np.testing.assert_array_equal(table[1], table[0])
    np.testing.assert_array_equal(table[2], table[0])
    assert table[0].sum(axis=0).max() == 1
    assert table[0].sum() == (20 if isinstance(sampler, RepeatedPartition) else 23)
    assert sampler.participation == Participation("fixed", 3, 5)


SLOW = [pytest.mark.slow]


@register_dataclass
class Reshuffled(RepeatedPartition):
    """A new order each epoch, which may have a record in two steps in a row."""

    def plan(self, key, num_records):
        epoch = DisjointPartition(self.steps_per_epoch, self.batch_size)
        keys = jax.random.split(key, self.epochs)
        return jnp.concatenate([epoch.plan(k, num_records) for k in keys])


@register_dataclass
class Sticky(CyclicPoisson):
    """A record that came to its first turn comes to all."""

    def plan(self, key, num_records):
        indices, mask = super().plan(key, num_records)
        turn = jnp.arange(self.steps) % self.groups
        return indices[turn], mask[turn]


@register_dataclass
class FromOneGroup(CyclicPoisson):
    """Whoever comes does so from all records: separation 1."""

    def plan(self, key, num_records):
        return CyclicPoisson(self.rate, 1, self.steps, self.num_records, self.capacity).plan(
            key, num_records
        )


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Reshuffled(3, 4, 3), "but a record is in the steps"),
        pytest.param(Sticky(0.4, 3, 9, 24, 25), "pairs of steps 3 apart", marks=SLOW),
        pytest.param(FromOneGroup(0.4, 3, 9, 24, 25), "but a record is in the steps", marks=SLOW),
    ],
    ids=["reshuffled", "sticky", "one group"],
)
def test_samplers_that_state_more_than_they_do_are_found(sampler, message):
    entry = Entry(type(sampler).__name__, "sampler", lambda: SamplerCase(sampler, 14))
    with pytest.raises(AssertionError, match=message):
        check_sampler(entry)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Participation("some", 1, 1), "kind must be one of .*got 'some'"),
        (lambda: Participation("fixed", 2, 3, 0.5), "rate must be 1 with kind='fixed', got 0.5"),
        (lambda: IndependentPartition(7, 9, epochs=2), "multiple of epochs = 2, got 7"),
        (
            lambda: IndependentPartition(8, 9, tapered=True, epochs=2),
            "epochs must be 1 with tapered=True, got 2",
        ),
        (
            lambda: RepeatedPartition(2, 7, 3, "reshuffled"),
            "same in every epoch for separation 7: a new order each epoch has separation 1",
        ),
        (lambda: CyclicPoisson(0.3, 8, 8, 7), "groups must be <= num_records = 7, got 8"),
    ],
    ids=range(6),
)
def test_wrong_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
