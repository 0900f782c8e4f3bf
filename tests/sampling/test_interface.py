import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.core import Sampler
from dpjax.sampling import (
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    PoissonSampler,
    TaperedPartition,
)

N = 24
SAMPLERS = {
    "gaps": PoissonSampler(0.2, 6, 30),
    "gaps-truncate": PoissonSampler(0.2, 6, 24, 5, overflow="truncate"),
    "host": PoissonSampler(0.2, 6, 30, method="host"),
    "full": FullBatch(6),
    "partition": DisjointPartition(6, 4),
    "independent": IndependentPartition(6, 30),
    "partition-given": DisjointPartition(6, 4, order="given"),
}


@pytest.fixture(params=SAMPLERS.values(), ids=SAMPLERS.keys())
def sampler(request):
    return request.param


def test_is_a_sampler_and_a_static_pytree(sampler):
    assert isinstance(sampler, Sampler)
    assert jax.tree.leaves(sampler) == []
    assert jax.tree.map(lambda leaf: leaf, sampler) == sampler
    assert hash(sampler) == hash(dataclasses.replace(sampler))
    assert 0 <= sampler.failure_probability() <= 1


def test_one_trace_and_shapes(x64, sampler):
    traces = []

    @jax.jit
    def run(s, xs):
        def body(carry, x):
            traces.append(None)
            return carry, s.batch(x, N)

        return jax.lax.scan(body, 0, xs)[1]

    for seed in range(3):
        xs = sampler.plan(jax.random.key(seed), N)
        assert all(leaf.shape[0] == 6 for leaf in jax.tree.leaves(xs))
        indices, mask = run(sampler, xs)
        assert mask.dtype == bool
        if indices is None:
            assert mask.shape == (6, N)
        else:
            assert indices.dtype == jnp.int32
            assert indices.shape == mask.shape
            assert (np.asarray(indices) >= 0).all()
            assert (np.asarray(indices) < N).all()
    assert len(traces) == 1


def test_same_key_same_batches_other_key_others(sampler):
    @jax.jit
    def run(xs):
        return jax.lax.scan(lambda c, x: (c, sampler.batch(x, N)), 0, xs)[1]

    def draw(seed):
        return run(sampler.plan(jax.random.key(seed), N))

    same = jax.tree.map(np.array_equal, draw(0), draw(0))
    assert all(jax.tree.leaves(same))
    random = not isinstance(sampler, FullBatch) and getattr(sampler, "order", "") != "given"
    assert random != all(jax.tree.leaves(jax.tree.map(np.array_equal, draw(0), draw(1))))


def test_plan_under_vmap(sampler):
    keys = jax.random.split(jax.random.key(0), 3)

    def mask(key):
        return jax.lax.scan(lambda c, x: (c, sampler.batch(x, N)[1]), 0, sampler.plan(key, N))[1]

    if sampler is SAMPLERS["host"]:
        with pytest.raises(TypeError, match=r"concrete key.*use method='gaps'"):
            jax.vmap(mask)(keys)
        with pytest.raises(TypeError, match=r"concrete key.*use method='gaps'"):
            jax.jit(mask)(jax.random.key(0))
    else:
        assert jax.jit(jax.vmap(mask))(keys).shape[:2] == (3, 6)


def _sizes(jaxpr):
    for eqn in jaxpr.eqns:
        yield from (var.aval.size for var in eqn.outvars if hasattr(var.aval, "size"))
        for sub in jax.tree.leaves(
            eqn.params, is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns")
        ):
            sub = getattr(sub, "jaxpr", sub)
            if hasattr(sub, "eqns"):
                yield from _sizes(sub)


@pytest.mark.parametrize("overflow", ["declare", "truncate"])
def test_no_intermediate_grows_with_the_data_set(overflow):
    def sizes(n, rate):
        sampler = PoissonSampler(rate, 10, n, 704, overflow=overflow)
        x = jax.tree.map(lambda a: a[0], sampler.plan(jax.random.key(0), n))
        jaxpr = jax.make_jaxpr(lambda x: sampler.batch(x, n))(x)
        return sorted(_sizes(jaxpr.jaxpr))

    largest = [sizes(n, 512 / n)[-1] for n in (36_000, 3_600_000, 2**31 - 1)]
    assert max(largest) < 40 * 704  # the tables grow with log(1 / rate) alone
    if overflow == "declare":
        assert sizes(10**6, 1e-3) == sizes(10**9, 1e-3)
    # the walk sees what it should: a Bernoulli mask is of size n
    bernoulli = jax.make_jaxpr(jax.jit(lambda x: jax.random.bernoulli(x, 0.1, (36_000,))))
    assert max(_sizes(bernoulli(jax.random.key(0)).jaxpr)) >= 36_000


def test_full_batch():
    indices, mask = FullBatch(2).batch(FullBatch(2).plan(jax.random.key(0), 5)[0], 5)
    assert indices is None
    assert mask.tolist() == [True] * 5
    assert FullBatch(2).failure_probability() == 0.0


@pytest.mark.parametrize("order", ["random", "given"])
def test_partition_covers_without_overlap(order):
    sampler = DisjointPartition(5, 4, order=order)
    for n in (20, 23):
        xs = np.asarray(sampler.plan(jax.random.key(0), n))
        used = xs.ravel()
        assert len(set(used.tolist())) == 20
        assert set(used.tolist()) <= set(range(n))
        if order == "given":
            assert used.tolist() == list(range(20))
    with pytest.raises(ValueError, match=r"num_records = 19, got 5 \* 4 = 20"):
        sampler.plan(jax.random.key(0), 19)


@pytest.mark.parametrize(
    "sampler",
    [
        DisjointPartition(4, 2),
        TaperedPartition(4, 8),
        IndependentPartition(4, 20),
        PoissonSampler(0.3, 4, 20, method="host"),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_indices_beyond_the_data_are_masked(sampler):
    """JAX would take the last record in their place, once for each."""
    xs = sampler.plan(jax.random.key(0), 12)

    @jax.jit
    def take(data, xs):
        return jax.lax.scan(lambda _, x: (None, sampler.batch(x, len(data))), None, xs)[1]

    indices, mask = take(np.zeros(12), xs)
    seen = {}
    for other in (9, 20):
        found, kept = (np.asarray(a) for a in take(np.zeros(other), xs))
        np.testing.assert_array_equal(found, indices)
        np.testing.assert_array_equal(kept, mask & (indices < other))
        seen[other] = found[kept]
        assert seen[other].max() < other
    assert seen[9].size < seen[20].size


@pytest.mark.parametrize("sampler", [FullBatch(4), PoissonSampler(0.3, 4, 20)], ids=["all", "gaps"])
def test_batches_drawn_in_the_loop_are_for_any_number(sampler):
    xs = sampler.plan(jax.random.key(0), 12)
    x = jax.tree.map(lambda leaf: leaf[0], xs)
    for n in (12, 9):
        indices, mask = sampler.batch(x, n)
        assert indices is None or int(indices.max()) < n
        assert mask.sum() <= n


BAD = [
    ({"rate": 0.0}, r"rate must lie in \(0, 1\], got 0.0"),
    ({"rate": 1.01}, r"rate must lie in \(0, 1\], got 1.01"),
    ({"rate": float("nan")}, r"rate must lie in \(0, 1\], got nan"),
    ({"steps": 0}, "steps must be >= 1, got 0"),
    ({"num_records": 0}, "num_records must be >= 1, got 0"),
    ({"num_records": 2**31}, "num_records must be <= 2147483647, got 2147483648"),
    ({"capacity": 0}, "capacity must be >= 1, got 0"),
    ({"method": "bits"}, r"method must be one of \['gaps', 'host'\], got 'bits'"),
    ({"overflow": "ignore"}, r"overflow must be one of \['declare', 'truncate'\], got 'ignore'"),
]


@pytest.mark.parametrize(("kwargs", "message"), BAD)
def test_bad_poisson_sampler(kwargs, message):
    with pytest.raises(ValueError, match=message):
        PoissonSampler(**{"rate": 0.1, "steps": 10, "num_records": 100, **kwargs})


def test_bad_counts_and_keys():
    with pytest.raises(TypeError, match=r"steps must be an integer, got 2.0"):
        FullBatch(2.0)
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        FullBatch(0)
    with pytest.raises(ValueError, match="batch_size must be >= 1, got 0"):
        DisjointPartition(1, 0)
    with pytest.raises(ValueError, match="order must be one of"):
        DisjointPartition(1, 1, order="sorted")
    with pytest.raises(TypeError, match="key is required"):
        SAMPLERS["gaps"].plan(None, N)
    with pytest.raises(TypeError, match="rate shapes the program"):
        jax.jit(lambda r: PoissonSampler(r, 1, 10).rate)(0.1)


@pytest.mark.parametrize("name", ["gaps", "host"])
def test_more_records_than_the_public_bound(name):
    sampler = SAMPLERS[name]
    xs = sampler.plan(jax.random.key(0), 30)
    with pytest.raises(ValueError, match=r"more records.*num_records = 30"):
        sampler.plan(jax.random.key(0), 31)
    with pytest.raises(ValueError, match=r"more records.*num_records = 30"):
        sampler.batch(jax.tree.map(lambda a: a[0], xs), 31)
