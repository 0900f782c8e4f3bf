"""Numbers of records near and beyond what int32 can number."""

import jax
import numpy as np
import pytest

from dpjax.sampling import (
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    PoissonSampler,
    TaperedPartition,
    tapered_sizes,
)

MOST = 2**31 - 1


@pytest.mark.parametrize(
    "build",
    [
        lambda: PoissonSampler(1e-7, 3, MOST + 1),
        lambda: IndependentPartition(3, MOST + 1),
        lambda: TaperedPartition(3, MOST + 1),
        # cut from fewer records than there are
        lambda: DisjointPartition(3, 5, "given").plan(jax.random.key(0), MOST + 1),
        lambda: DisjointPartition(3, 5).batch(np.zeros(5, np.int32), MOST + 1),
        lambda: TaperedPartition(3, 20).plan(jax.random.key(0), MOST + 1),
    ],
)
def test_more_records_than_int32_can_number_are_refused(build):
    # compiled, their indices wrap to negative ones, which count from the end: records come twice
    with pytest.raises(ValueError, match=str(MOST)):
        build()


def test_shards_number_their_own_records():
    assert PoissonSampler(1e-7, 3, 10**10, shards=8).num_records == 10**10
    with pytest.raises(ValueError, match=str(4 * MOST)):
        PoissonSampler(1e-7, 3, 10**10, shards=4)


def test_full_batches_have_no_indices_to_wrap():
    indices, mask = jax.eval_shape(lambda: FullBatch(2).batch(None, MOST + 1))
    assert indices is None
    assert mask.shape == (MOST + 1,)


def test_sizes_can_be_planned_for_any_number_of_records():
    assert 10**10 - 100 < tapered_sizes(100, 10**10).sum() <= 10**10


def test_poisson_batches_of_two_thousand_million_records():
    n, rate, steps = 2_000_000_000, 1e-6, 64
    sampler = PoissonSampler(rate, steps, n)
    assert sampler.failure_probability() < 1e-11
    plan = sampler.plan(jax.random.key(0), n)
    indices, masks = jax.jit(jax.vmap(lambda x: sampler.batch(x, n)))(plan)
    found = [
        row[mask].astype(np.int64)
        for row, mask in zip(np.asarray(indices), np.asarray(masks), strict=True)
    ]
    assert all((np.diff(row) > 0).all() for row in found)
    every = np.concatenate(found)
    assert every.min() >= 0
    assert every.max() < n
    # six standard deviations of a Poisson number, and of a mean of uniforms
    assert abs(every.size - steps * rate * n) < 6 * (steps * rate * n) ** 0.5
    assert abs(every.mean() / n - 0.5) < 6 / np.sqrt(12 * every.size)
    # the last tenth of them, beyond 2^30, is met like any other
    assert abs(np.mean(every > 0.9 * n) - 0.1) < 6 * np.sqrt(0.09 / every.size)


@pytest.mark.slow
def test_one_sampler_a_shard_is_the_sampler_of_all():
    """Beyond int32: n / D records a shard, the same rate, a key for each; failures add up."""
    whole, shard = PoissonSampler(1e-3, 5, 800_000), PoissonSampler(1e-3, 5, 100_000)
    key = jax.random.key(1)
    plans = jax.vmap(lambda k: shard.plan(k, 100_000))(jax.random.split(key, 8))
    _, masks = jax.vmap(jax.vmap(lambda x: shard.batch(x, 100_000)))(plans)
    sizes = np.asarray(masks).sum((0, 2))
    assert (abs(sizes - 800) < 6 * 800**0.5).all()
    assert 8 * shard.failure_probability() < 1e-8
    assert 8 * shard.capacity > whole.capacity  # what independent shards pay: slots
