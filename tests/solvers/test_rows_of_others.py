"""In which row of a batch a record is, and how many rows there are, changes nothing of it.

XLA computes the rows left over from a block in another order, and a loss with a kink turns a last
bit into all of a gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import dpjax
from dpjax.core._records import whole_rows
from dpjax.problems import Risk
from dpjax.runtime._loop import take
from dpjax.sampling import CyclicPoisson, FullBatch, IndependentPartition, PoissonSampler
from dpjax.solvers import DPSGD
from dpjax.transforms import clip_by_norm, microbatched_sum

DIM = 33


def _start():
    return np.random.default_rng(0).normal(size=(DIM, 1)).astype(np.float32)


def _kink(*shapes):
    """An input and a label between what its margin is in some rows of these shapes, and in others.

    The label of any other where this machine computes all rows alike.
    """
    start, rng = _start(), np.random.default_rng(1)
    margins = jax.jit(lambda x: jax.vmap(lambda row: row @ start)(x))
    for _ in range(60):
        x = (rng.normal(size=DIM) * 10.0 ** rng.uniform(0, 3)).astype(np.float32)
        # nearly 0 by cancellation
        x[-1] = -np.float32(x[:-1].astype(float) @ start[:-1, 0].astype(float) / start[-1, 0])
        found = {float(m) for rows in shapes for m in margins(np.repeat(x[None], rows, 0))[:, 0]}
        if len(found) > 1:
            break
    return x, np.float32((min(found) + max(found)) / 2)


def _problem():
    return Risk(lambda p, r: jnp.sum(jnp.abs(r["x"] @ p["w"] - r["y"])), {"w": _start()})


def _change(released, x, y, num):
    """Distance of what is released of these records and of all but the first, which is far off."""
    records = {"x": np.repeat(x[None], num, 0), "y": np.full((num, 1), y)}
    records["y"][0] += 1e9
    fewer = {name: a[1:] for name, a in records.items()}
    one, other = (np.asarray(released(r)["w"], float) for r in (records, fewer))
    return np.linalg.norm(one - other)


@pytest.mark.parametrize("rows", [1, 2, 5, 31, 37, 64, 101])
@pytest.mark.parametrize("size", [None, 24, 50])
def test_a_record_adds_the_same_in_every_row(rows, size):
    x, start = jnp.asarray(np.repeat(_kink(rows)[0][None], rows, 0)), jnp.asarray(_start())

    @jax.jit
    def total(mask):
        return microbatched_sum(
            lambda part: jax.vmap(lambda row: row @ start)(part),
            clip_by_norm(1e6),
            x,
            mask,
            size=size,
        )

    assert len({total(mask).tobytes() for mask in np.eye(rows, dtype=bool)}) == 1


@pytest.mark.parametrize(("num", "capacity"), [(36, 37), (60, 61), (100, 101), (100, None)])
@pytest.mark.once  # the claim
def test_one_record_moves_a_sum_of_a_poisson_batch_by_its_own(num, capacity):
    sampler = PoissonSampler(1.0, 1, num, capacity=capacity)
    solver = DPSGD(sampler, 0.0, 1.0, 1.0, 1.0, average="last")

    def released(records):
        return dpjax.solve(solver, _problem(), records, key=jax.random.key(0)).params

    assert _change(released, *_kink(capacity or num + 1), num) <= 1.1


@pytest.mark.parametrize(("devices", "num", "size"), [(8, 88, None), (3, 60, None), (8, 690, 96)])
def test_nor_on_many_devices(devices, num, size):
    """Each of which has a share of a batch, and of a microbatch."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("records",))
    sampler = PoissonSampler(1.0, 1, num)
    solver = DPSGD(sampler, 0.0, 1.0, 1.0, 1.0, average="last", microbatch_size=size)

    def released(records):
        spread = dpjax.shard_records(records, mesh)
        return dpjax.solve(solver, _problem(), spread, key=jax.random.key(0)).params

    uneven = -(-sampler.slots // devices) if size is None else 11
    assert _change(released, *_kink(uneven), num) <= 1.1


@pytest.mark.parametrize(
    "sampler",
    [
        PoissonSampler(0.9, 3, 50),
        PoissonSampler(0.5, 3, 900, shards=3),
        CyclicPoisson(0.9, 2, 4, 90),
        CyclicPoisson(0.9, 2, 4, 90, capacity=37),
        IndependentPartition(2, 90),
    ],
)
def test_batches_are_of_whole_blocks(sampler):
    rows = sampler.rows if getattr(sampler, "shards", 1) > 1 else 30
    data = dpjax.Records({"x": jnp.ones((rows, 2))}, 30)
    x = jax.tree.map(lambda a: a[0], sampler.plan(jax.random.key(0), 30))
    batch, mask = take(sampler, x, data, None)
    assert batch["x"].shape[0] == mask.shape[0] == whole_rows(mask.shape[0]) >= sampler.slots
    if sampler.capacity != 37:
        assert whole_rows(sampler.slots) == sampler.slots


def test_tuning_has_a_public_number_of_rows():
    """Under `jit`, which does not see how many there may be."""
    solver = DPSGD(FullBatch(1), 1.0, 1.0, 1.0, 1.0, average="last")

    def released(records):
        return dpjax.tune(
            [solver],
            DPSGD,
            _problem(),
            records,
            dpjax.Budget(1e4, 1e-5, "add_or_remove_one"),
            key=jax.random.key(3),
            num_records=100,
            trials=1,
            score=lambda params: jnp.zeros(()),
        ).params

    for num in (36, 96):
        assert _change(released, *_kink(num, num - 1), num) <= 1.1


@pytest.mark.parametrize("shares", [1, 3, 8])
def test_whole_rows(shares):
    for number in range(1, 600):
        rows = whole_rows(number, shares)
        local = rows // shares
        assert rows >= number
        assert rows % shares == 0
        assert local % 32 == 0 or local in (1, 2, 4, 8, 16)
        assert whole_rows(rows, shares) == rows
