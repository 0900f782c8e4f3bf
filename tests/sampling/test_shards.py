"""Poisson batches drawn by shards: the same law, no padding, and a failure for each shard."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.random._gaps import gaps_shortfall
from dpjax.sampling import PoissonSampler
from dpjax.sampling._capacity import overflow_probability

from ._membership import (
    ALARM,
    accept,
    pair_pvalue,
    rate_pvalue,
    size_pvalue,
    step_pvalue,
    subset_pvalue,
)

N, STEPS, SHARDS = 50, 4000, 4


def members_of_rows(sampler, seed, num_records):
    """Who takes part, `[steps, rows]` bool; checks that nobody does so twice."""

    @jax.jit
    def draw(xs):
        return jax.lax.scan(lambda c, x: (c, sampler.batch(x, num_records)), None, xs)[1]

    indices, mask = map(np.asarray, draw(sampler.plan(jax.random.key(seed), num_records)))
    assert indices.shape == (sampler.steps, sampler.shards * sampler.capacity)
    count = np.zeros((sampler.steps, sampler.rows), int)
    np.add.at(count, (np.nonzero(mask)[0], indices[mask]), 1)
    assert count.max() <= 1
    return count.astype(bool)


@pytest.fixture(scope="module")
def table():
    sampler = PoissonSampler(0.3, STEPS, N, shards=SHARDS)
    rows = members_of_rows(sampler, 0, N)
    assert sampler.rows == rows.shape[1] == 52
    assert not rows[:, N:].any()  # padding is never drawn
    return rows[:, :N]


def test_each_record_joins_with_its_probability_and_by_itself(table):
    accept(rate_pvalue(table, 0.3))
    accept(size_pvalue(table, 0.3))
    accept(step_pvalue(table, 0.3))
    assert rate_pvalue(table, 0.3 * 1.05) < ALARM
    assert size_pvalue(table, 0.3 * 1.05) < ALARM
    assert step_pvalue(np.repeat(table[: STEPS // 2], 2, axis=0), 0.3) < ALARM


@pytest.mark.parametrize("lag", [1, 13])  # within a shard, and at the same place in the next
def test_records_of_one_shard_and_of_two_are_independent(table, lag):
    accept(pair_pvalue(table, 0.3, lag))
    # shards that draw with one key
    share = table[:, :13]
    assert pair_pvalue(np.concatenate([share, share], axis=1), 0.3, 13) < ALARM


def test_all_subsets_of_four_records_in_two_shards():
    table = members_of_rows(PoissonSampler(0.3, 10_000, 4, shards=2), 1, 4)

    def probability(rate):
        return lambda s: np.prod(np.where(s, rate, 1 - rate))

    accept(subset_pvalue(table, probability(0.3)))
    assert subset_pvalue(table, probability(0.33)) < ALARM


@pytest.mark.parametrize("present", [1, 13, 14, 40])
def test_rows_beyond_the_records_are_never_drawn(present):
    """Fewer records than the public bound: also of shards that are empty or cut."""
    sampler = PoissonSampler(1.0, 2, N, shards=SHARDS)
    rows = members_of_rows(sampler, 0, present)
    np.testing.assert_array_equal(rows, np.tile(np.arange(52) < present, (2, 1)))


def test_failures_of_a_tiny_sampler_by_enumeration():
    """A shard's part of a batch is too small: for its share and one record more."""
    rate, steps, shards, capacity = 0.3, 5, 2, 2
    sampler = PoissonSampler(rate, steps, 6, capacity, shards=shards)
    joined = np.array(list(itertools.product([0, 1], repeat=4)))  # three, and a neighbour's
    odds = np.prod(np.where(joined, rate, 1 - rate), axis=1)
    overflow = odds[joined.sum(1) > capacity].sum()
    tables = gaps_shortfall(3, rate, sampler._draws())
    assert overflow == pytest.approx(overflow_probability(4, rate, capacity))
    exact = 1 - (1 - odds[joined.sum(1) > capacity].sum()) ** (steps * shards)
    bound = sampler.failure_probability()
    assert bound >= exact
    assert bound == pytest.approx(min(1.0, steps * shards * (overflow + tables)))
    assert tables < 1e-15


def test_slots_of_all_shards_cost_as_much_as_those_of_one():
    """By default the failures of a run, over all shards, are as rare as without them."""
    for shards in (1, 8, 64):
        sampler = PoissonSampler(0.01, 1000, 64_000, shards=shards)
        assert sampler.failure_probability() < 1e-8
        assert sampler.capacity * shards < 8 * 640


def test_the_event_is_that_of_one_shard():
    problem = dpjax.problems.RateConstrained.linear(2, 2)
    samplers = [PoissonSampler(0.1, 10, 1000, shards=shards) for shards in (1, 4)]
    kind, budget = dpjax.solvers.DPSGD, dpjax.Budget(1.0, 1e-5)
    one, four = (kind(sampler, 1.7, 1.0, 0.5, 100.0, decay=0.9) for sampler in samplers)
    assert four.guarantee().event == one.guarantee().event
    one, four = (kind.for_budget(problem, 1000, budget, sampler=each) for each in samplers)
    # the chances of failure differ, by which delta is less
    assert four.noise_multiplier == pytest.approx(one.noise_multiplier, rel=1e-6)


@pytest.mark.parametrize("options", [{"method": "host"}, {"overflow": "truncate"}])
def test_methods_without_shards_are_refused(options):
    with pytest.raises(ValueError, match="shards = 2 needs method='gaps'"):
        PoissonSampler(0.3, 4, N, shards=2, **options)


def test_data_of_other_rows_are_refused():
    sampler = PoissonSampler(0.3, 4, N, shards=SHARDS)
    solver = dpjax.solvers.DPSGD(sampler, 1.0, 0.7, 0.5, 15.0, decay=0.9)
    problem = dpjax.problems.RateConstrained.linear(2, 2)
    data = {"x": np.ones((N, 2), np.float32), "y": np.ones(N, np.int32)}
    with pytest.raises(ValueError, match="must have the 52 rows of a sampler of 4 shards"):
        dpjax.solve(solver, problem, data, key=jax.random.key(0))


def test_more_records_than_indices_can_count():
    """2^33 records in 8 shards: each counts its own."""
    sampler = PoissonSampler(1e-7, 10, 2**33, shards=8)
    assert sampler.rows == 2**33
    assert sampler.failure_probability() < 1e-8
    x = jax.tree.map(lambda a: a[0], sampler.plan(jax.random.key(0), 2**33))
    own, mask = jax.eval_shape(lambda x: sampler.batch_of_shards(x, 2**33), x)
    assert own.shape == mask.shape == (8, sampler.capacity)
    assert own.dtype == jnp.int32
    with pytest.raises(ValueError, match="do not fit int32: use batch_of_shards"):
        sampler.batch(x, 2**33)
    with pytest.raises(ValueError, match="num_records must be <= "):
        PoissonSampler(1e-7, 10, 2**34, shards=8)
    drawn, present = map(np.asarray, jax.jit(lambda x: sampler.batch_of_shards(x, 2**33))(x))
    assert present.any(axis=1).all()
    assert drawn[present].max() > 2**29  # not the first records alone
    assert drawn.min() >= 0
