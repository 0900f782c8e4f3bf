import jax
import numpy as np
import pytest
from scipy import stats

from dpjax.sampling import IndependentPartition
from dpjax.testing import count_false_alarm


def plan(sampler, n, seed=0):
    indices, mask = sampler.plan(jax.random.key(seed), n)
    return np.asarray(indices), np.asarray(mask)


@pytest.mark.slow
def test_everybody_takes_part_exactly_once():
    sampler = IndependentPartition(steps=7, num_records=200)
    indices, mask = plan(sampler, 190)
    assert sorted(indices[mask].tolist()) == list(range(190))


@pytest.mark.slow
def test_batches_are_uniform_and_independent():
    sampler = IndependentPartition(steps=4, num_records=2000)
    counts = np.array([plan(sampler, 2000, seed)[1].sum(axis=1) for seed in range(50)])
    chi2 = ((counts - 500) ** 2 / 500).sum()
    count_false_alarm(2e-8)
    assert 1e-8 < stats.chi2.sf(chi2, 3 * 50) < 1 - 1e-8
    # pairs of records meet with probability 1 / steps
    indices, mask = plan(sampler, 2000)
    batch = np.empty(2000, int)
    for step in range(4):
        batch[indices[step][mask[step]]] = step
    together = (batch[::2] == batch[1::2]).mean()
    count_false_alarm(1e-8)
    assert abs(together - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 1000)


def test_overflow_is_as_likely_as_declared():
    sampler = IndependentPartition(steps=2, num_records=9, capacity=6)
    # either batch of 10 records has more than 6 members
    assert sampler.failure_probability() == pytest.approx(2 * stats.binom.sf(6, 10, 0.5))
    assert IndependentPartition(10, 10_000).failure_probability() < 1e-6 * 0.01
    assert IndependentPartition(3, 5).capacity == 8  # cannot overflow


def test_refuses_more_records_than_declared():
    with pytest.raises(ValueError, match="num_records = 10"):
        IndependentPartition(2, 10).plan(jax.random.key(0), 11)
