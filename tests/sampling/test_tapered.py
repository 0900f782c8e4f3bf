"""Batches that shrink: sizes, who takes part, what tapering is for."""

import jax
import numpy as np
import pytest

from dpjax.sampling import IndependentPartition, TaperedPartition, tapered_sizes
from dpjax.testing import count_false_alarm

GRID = [(1, 1), (1, 9), (4, 12), (7, 7), (13, 40), (50, 1000), (999, 1000), (300, 100_000)]


@pytest.mark.parametrize("tail", [0, 5])
@pytest.mark.parametrize(("steps", "n"), GRID)
def test_sizes_are_the_largest_of_their_form_that_fit(steps, n, tail):
    sizes = tapered_sizes(steps, n, tail)
    roots = np.sqrt(np.arange(steps, 0, -1) + tail)
    assert sizes.shape == (steps,)
    assert sizes.sum() <= n
    assert sizes.min() >= 1
    assert (np.diff(sizes) <= 0).all()
    # within rounding up of one multiple of the roots
    assert (sizes - 1 < sizes[0] / roots[0] * roots + 1e-6).all()
    # one more of the steps at which a size grows would not fit: at most all sizes grow
    scale = min(sizes / roots)
    larger = np.maximum(1, np.ceil(scale * 1.001 * roots + 1e-6))
    assert larger.sum() > n or np.array_equal(np.ceil(scale * roots - 1e-6), larger) or steps == n


@pytest.mark.parametrize(("steps", "n"), GRID)
def test_the_worst_share_is_never_above_that_of_equal_batches(steps, n):
    left = np.arange(steps, 0, -1)
    tapered = (left / tapered_sizes(steps, n) ** 2).max()
    equal = (left / (n // steps) ** 2).max()
    assert tapered <= equal


def test_the_worst_share_falls_by_nine_quarters():
    left = np.arange(200, 0, -1)
    tapered = (left / tapered_sizes(200, 10**6) ** 2).max()
    equal = (left / 5000**2).max()
    assert equal / tapered == pytest.approx(9 / 4, rel=0.02)
    # and all batches have about the same
    shares = left / tapered_sizes(200, 10**6) ** 2
    assert shares.min() > 0.98 * shares.max()


def test_a_tail_keeps_late_batches_large():
    sizes = tapered_sizes(100, 10**5, tail=400)
    assert sizes[-1] / sizes[0] == pytest.approx(np.sqrt(401 / 500), rel=0.01)


def test_sizes_are_remembered_and_cannot_be_changed():
    assert tapered_sizes(5, 50) is tapered_sizes(5, 50)
    with pytest.raises(ValueError, match="read-only"):
        tapered_sizes(5, 50)[0] = 1


@pytest.mark.parametrize("order", ["random", "given"])
@pytest.mark.parametrize(("steps", "n", "records"), [(4, 13, 13), (4, 13, 20), (9, 9, 9)])
def test_nobody_takes_part_twice(order, steps, n, records):
    sampler = TaperedPartition(steps, n, order)
    indices, mask = sampler.plan(jax.random.key(0), records)
    indices, mask = np.asarray(indices), np.asarray(mask)
    np.testing.assert_array_equal(mask.sum(axis=1), sampler.sizes)
    assert indices.shape == mask.shape == (steps, sampler.sizes.max())
    members = indices[mask]
    assert len(set(members.tolist())) == len(members) == sampler.sizes.sum()
    assert members.max() < records
    if order == "given":
        np.testing.assert_array_equal(members, np.arange(len(members)))
    assert sampler.failure_probability() == 0


def test_every_record_is_in_a_batch_as_often_as_the_batch_is_large():
    sampler = TaperedPartition(3, 12)
    keys = jax.random.split(jax.random.key(1), 4000)
    indices, mask = jax.jit(jax.vmap(lambda key: sampler.plan(key, 12)))(keys)
    indices, mask = np.asarray(indices), np.asarray(mask)
    for t, size in enumerate(sampler.sizes):
        counts = np.bincount(indices[:, t][mask[:, t]], minlength=12) / len(keys)
        deviation = np.sqrt(size / 12 * (1 - size / 12) / len(keys))
        count_false_alarm(1e-8)
        assert np.abs(counts - size / 12).max() < 6.5 * deviation


def test_batches_of_one_shape_in_a_scan():
    sampler = TaperedPartition(4, 13, "given")

    def body(carry, x):
        indices, mask = sampler.batch(x, 13)
        return carry, indices.sum(where=mask)

    _, sums = jax.lax.scan(body, None, sampler.plan(jax.random.key(0), 13))
    ends = np.cumsum(sampler.sizes)
    want = [
        np.arange(13)[end - size : end].sum() for end, size in zip(ends, sampler.sizes, strict=True)
    ]
    np.testing.assert_array_equal(sums, want)


def test_tapered_shares_of_independent_batches():
    sampler = IndependentPartition(20, 500, tapered=True, tail=3)
    roots = np.sqrt(np.arange(20, 0, -1) + 3)
    np.testing.assert_allclose(sampler.shares, roots / roots.sum(), atol=1e-9)
    np.testing.assert_allclose(sampler.sizes, 500 * sampler.shares)
    keys = jax.random.split(jax.random.key(2), 20)
    _, mask = jax.jit(jax.vmap(lambda key: sampler.plan(key, 500)))(keys)
    counts = np.asarray(mask).sum(axis=(0, 2))
    assert counts.sum() == 20 * 500
    chi2 = ((counts - 20 * sampler.sizes) ** 2 / (20 * sampler.sizes)).sum()
    assert chi2 < 60  # 19 degrees of freedom: 1e-6
    assert sampler.failure_probability() < 1e-8


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"steps": 0}, "steps"),
        ({"num_records": 0}, "num_records"),
        ({"steps": 14}, "steps must be <= num_records = 13, got 14"),
        ({"order": "sorted"}, "order"),
        ({"tail": -1}, "tail"),
    ],
)
def test_refuses_what_is_out_of_bounds(fields, match):
    with pytest.raises(ValueError, match=match):
        TaperedPartition(**({"steps": 4, "num_records": 13} | fields))


def test_refuses_fewer_records_than_it_was_cut_for():
    with pytest.raises(ValueError, match="12 records, fewer than the num_records = 13"):
        TaperedPartition(4, 13).plan(jax.random.key(0), 12)
