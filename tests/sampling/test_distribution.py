"""Batches are Poisson batches; each test also rejects a sampler that is not."""

import jax
import numpy as np
import pytest
from scipy import stats

from dpjax.sampling import PoissonSampler
from dpjax.testing import count_false_alarm

from ._membership import (
    ALARM,
    accept,
    batches,
    members,
    pair_pvalue,
    rate_pvalue,
    size_pvalue,
    step_pvalue,
    subset_pvalue,
)

N, STEPS = 50, 5000
METHODS = ["gaps", "host"]


@pytest.fixture(scope="module", params=METHODS)
def table(request):
    return members(PoissonSampler(0.3, STEPS, N, method=request.param), 0, N)


@pytest.fixture(scope="module")
def fixed_size():
    """Not a Poisson sampler: batches of exactly rate * n records."""
    order = np.random.default_rng(0).random((STEPS, N)).argsort(1)
    return order < 15


def test_inclusion_rate(table):
    accept(rate_pvalue(table, 0.3))
    assert rate_pvalue(table, 0.3 * 1.05) < ALARM
    assert rate_pvalue(table, 0.3 / 1.05) < ALARM


@pytest.mark.parametrize("lag", [1, 2, 7, 25])
def test_records_are_independent(table, fixed_size, lag):
    accept(pair_pvalue(table, 0.3, lag))
    # n = 50 in 15 slots: the correlation is -1 / 49
    accept(rate_pvalue(fixed_size, 0.3))
    assert pair_pvalue(fixed_size, 0.3, lag) < 1e-6


def test_steps_are_independent(table):
    accept(step_pvalue(table, 0.3))
    assert step_pvalue(np.repeat(table[: STEPS // 2], 2, axis=0), 0.3) < ALARM


def test_batch_size(table, fixed_size):
    accept(size_pvalue(table, 0.3))
    assert size_pvalue(fixed_size, 0.3) < ALARM
    assert size_pvalue(table, 0.3 * 1.05) < ALARM


@pytest.mark.parametrize("method", METHODS)
def test_all_subsets_of_three(method):
    table = members(PoissonSampler(0.3, 10_000, 3, method=method), 1, 3)

    def probability(rate):
        return lambda s: np.prod(np.where(s, rate, 1 - rate))

    accept(subset_pvalue(table, probability(0.3)))
    assert subset_pvalue(table, probability(0.33)) < ALARM


def test_gaps_and_host_agree():
    """Size, lowest and highest member in distribution, where a gap has three digits."""
    rate, n, steps = 512 / 36_000, 36_000, 1000
    values = {}
    for method in METHODS:
        indices, mask = batches(PoissonSampler(rate, steps, n, method=method), 2, n)
        values[method] = (mask.sum(1), indices[:, 0], np.where(mask, indices, 0).max(1))
    for gaps, host in zip(values["gaps"], values["host"], strict=True):
        accept(stats.ks_2samp(gaps, host).pvalue)
    assert stats.ks_2samp(values["gaps"][0], values["host"][0] * 1.05).pvalue < ALARM
    sizes = values["gaps"][0]
    z = (sizes.sum() - steps * n * rate) / np.sqrt(steps * n * rate * (1 - rate))
    count_false_alarm(2e-7)
    assert abs(z) < 5.3
    assert abs(z + 0.05 * np.sqrt(steps * n * rate)) > 5.3


@pytest.mark.parametrize(
    ("rate", "n"), [(1e-6, 10**8), (1e-9, 2**31 - 1), (0.5, 20), (1 - 2**-40, 30)]
)
def test_extreme_rates(rate, n):
    """Sizes, uniform positions and no wrap-around, up to the largest data set."""
    steps = 400
    indices, mask = batches(PoissonSampler(rate, steps, n), 5, n)
    assert (np.diff(mask.astype(int), axis=1) <= 0).all()  # members first, padding after
    inside = mask[:, 1:]
    assert (np.diff(indices.astype(np.int64), axis=1)[inside] > 0).all()
    total, spread = steps * n * rate, np.sqrt(steps * n * rate * (1 - rate))
    count_false_alarm(2e-7)
    assert abs(mask.sum() - total) <= 5.3 * spread + 1e-6
    if rate < 0.1:
        accept(stats.kstest((indices[mask] + 0.5) / n, "uniform").pvalue)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("overflow", ["declare", "truncate"])
def test_rate_one_takes_everybody(method, overflow):
    sampler = PoissonSampler(1.0, 3, 40, method=method, overflow=overflow)
    assert members(sampler, 0, 40).all()


@pytest.mark.parametrize("method", METHODS)
def test_empty_batch(method):
    indices, mask = batches(PoissonSampler(1e-12, 4, 100, method=method), 0, 100)
    assert not mask.any()
    assert not indices.any()


def truncated(s, n=4, rate=0.6, capacity=2):
    """Probability of a subset after the surplus was dropped uniformly at random."""
    size = int(np.sum(s))
    pmf = stats.binom(n, rate)
    mass = pmf.pmf(size) if size < capacity else pmf.sf(capacity - 1) if size == capacity else 0.0
    return mass / stats.binom.pmf(size, n, 0.5) / 2**n


@pytest.mark.parametrize("method", METHODS)
def test_truncation_is_uniform(method):
    sampler = PoissonSampler(0.6, 10_000, 4, 2, method, "truncate")
    accept(subset_pvalue(members(sampler, 3, 4), truncated))


def test_dropping_the_highest_is_not_uniform():
    sampler = PoissonSampler(0.6, 10_000, 4, 2, "gaps", "declare")
    assert subset_pvalue(members(sampler, 3, 4), truncated) < ALARM


def test_truncation_of_a_large_batch_spares_no_place():
    """Dropped members lie uniformly among the members; lowest-first fails the same test."""
    n, steps = 2000, 400
    for overflow, uniform in [("truncate", True), ("declare", False)]:
        table = members(PoissonSampler(0.1, steps, n, 180, "gaps", overflow), 4, n)
        assert table.sum(1).max() == 180
        places = np.nonzero(table)[1] / n
        pvalue = stats.kstest(places, "uniform").pvalue
        if uniform:
            accept(pvalue)
        else:
            assert pvalue < ALARM


@pytest.mark.parametrize(("overflow", "capacity"), [("declare", None), ("truncate", 12)])
def test_vmap_over_keys_equals_loop(overflow, capacity):
    sampler = PoissonSampler(0.3, 3, 40, capacity, overflow=overflow)

    def run(key):
        return jax.lax.scan(lambda c, x: (c, sampler.batch(x, 40)), None, sampler.plan(key, 40))[1]

    together = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 4))
    alone = jax.jit(run)
    for i, key in enumerate(jax.random.split(jax.random.key(0), 4)):
        indices, mask = alone(key)
        np.testing.assert_array_equal(together[0][i], indices)
        np.testing.assert_array_equal(together[1][i], mask)


def test_other_key_implementation():
    sampler = PoissonSampler(0.3, 50, 40, 20, overflow="truncate")
    xs = sampler.plan(jax.random.key(0, impl="rbg"), 40)
    mask = jax.lax.scan(lambda c, x: (c, sampler.batch(x, 40)[1]), None, xs)[1]
    count_false_alarm(2e-7)
    assert abs(mask.sum() - 600) < 5.3 * np.sqrt(2000 * 0.21)
