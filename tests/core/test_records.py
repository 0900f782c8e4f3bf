"""Records with rows that pad them: what is spread, and that padding takes part in nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import dpjax
from dpjax.core._records import Records, num_rows, shard_records, whole_rows
from dpjax.problems import RateConstrained
from dpjax.sampling import DisjointPartition, FullBatch, PoissonSampler
from dpjax.solvers import DPSGD

N, D = 21, 3


def mesh_of(devices, *names):
    # never on CPU, which conftest makes eight devices of; an accelerator has as many as it has
    if jax.default_backend() != "cpu" and jax.device_count() < devices:
        pytest.skip(f"needs {devices} devices")
    return Mesh(
        np.array(jax.devices()[:devices]).reshape([devices] + [1] * (len(names) - 1)), names
    )


def data_of(num):
    x = np.random.default_rng(0).normal(size=(num, D)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}


def test_equal_shares_in_order_the_last_record_repeated():
    records = shard_records(data_of(N), mesh_of(4, "records"), rows=28)
    assert records.num_records == N
    x = records.arrays["x"]
    assert x.sharding.spec == PartitionSpec("records")
    assert [shard.data.shape for shard in x.addressable_shards] == [(7, D)] * 4
    np.testing.assert_array_equal(x[:N], data_of(N)["x"])
    np.testing.assert_array_equal(x[N:], np.tile(data_of(N)["x"][-1], (7, 1)))


@pytest.mark.parametrize("num", [1, 8, 21, 127, 1000, 12_345])
def test_rows_are_the_next_number_that_divides_well(num):
    rows = num_rows(shard_records({"y": np.zeros(num)}, mesh_of(8, "records")).arrays)
    assert rows % 8 == 0
    assert num <= rows < max(2 * num + 8, num + 8 * 32, 1.02 * num)
    assert rows == whole_rows(rows, 8)
    assert rows < 1.02 * num or rows % 64 or num < 10_000


def test_types_are_those_of_jax_arrays():
    data = {"a": np.zeros(8), "b": np.zeros(8, np.int64), "c": np.ones(8, bool)}
    spread = shard_records(data, mesh_of(2, "records")).arrays
    for name, leaf in data.items():
        assert spread[name].dtype == jnp.asarray(leaf).dtype


def test_several_axes_of_a_mesh():
    mesh = Mesh(mesh_of(4, "records").devices.reshape(2, 2), ("hosts", "devices"))
    both = shard_records(data_of(8), mesh, ("hosts", "devices")).arrays["x"]
    one = shard_records(data_of(8), mesh, "hosts").arrays["x"]
    assert both.addressable_shards[0].data.shape == (2, D)
    assert one.addressable_shards[0].data.shape == (4, D)  # copies on the other axis


@pytest.mark.parametrize(
    "sampler", [FullBatch(3), PoissonSampler(0.5, 3, N), DisjointPartition(3, 7)], ids=repr
)
def test_padding_takes_part_in_nothing(sampler):
    """Also where it holds what no record may: the run is that of the records alone."""
    problem = RateConstrained.linear(D, 2)
    single_pass = isinstance(sampler, DisjointPartition)
    relation = "replace_one" if single_pass else "add_or_remove_one"
    solver = DPSGD(sampler, 1.0, 0.7, 0.5, 8.0, decay=0.9, relation=relation)
    data = data_of(N)
    padded = {
        "x": jnp.concatenate([data["x"], jnp.full((11, D), jnp.nan)]),
        "y": jnp.pad(data["y"], (0, 11)),
    }
    alone = dpjax.solve(solver, problem, data, key=jax.random.key(0), sensitive=True)
    with_more = dpjax.solve(
        solver, problem, Records(padded, N), key=jax.random.key(0), sensitive=True
    )
    np.testing.assert_array_equal(with_more.sensitive["batch_size"], alone.sensitive["batch_size"])
    for a, b in zip(jax.tree.leaves(with_more.params), jax.tree.leaves(alone.params), strict=True):
        # more rows, larger noise by what rounding of so many may add
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_row_more_would_be_seen():
    """As for the check above."""
    problem, data = RateConstrained.linear(D, 2), data_of(N)
    solver = DPSGD(FullBatch(3), 1.0, 0.7, 0.5, 8.0, decay=0.9)
    runs = [
        dpjax.solve(solver, problem, Records(data, num), key=jax.random.key(0)).params["w"]
        for num in (N, N - 1)
    ]
    assert np.abs(runs[0] - runs[1]).max() > 1e-3


@pytest.mark.slow
def test_a_prologue_sees_records_alone():
    """The histogram of query release counts no padding."""
    domain = dpjax.queries.Domain({"a": 2, "b": 4})
    problem = dpjax.problems.QueryRelease(dpjax.queries.Marginals.all_kway(domain, 1))
    fields = {"num_records": float(N), "score_range": 100.0, "alpha": 0.3, "offset": 3.0}
    solver = dpjax.solvers.MirrorDescentRelease(FullBatch(3), 0.0, **fields, noise="histogram-once")
    codes = domain.codes(np.arange(N, dtype=np.int32) % 8)
    padded = Records(jnp.concatenate([codes, jnp.ones((5, 2), codes.dtype)]), N)
    runs = [dpjax.solve(solver, problem, d, key=jax.random.key(0)) for d in (codes, padded)]
    np.testing.assert_array_equal(runs[0].params.answers, runs[1].params.answers)


def test_refusals():
    mesh = mesh_of(4, "records")
    with pytest.raises(ValueError, match="axis 'rows' is not in the mesh"):
        shard_records(data_of(N), mesh, "rows")
    with pytest.raises(ValueError, match="rows must be >= 21"):
        shard_records(data_of(N), mesh, rows=20)
    with pytest.raises(ValueError, match="rows must be a multiple of 4"):
        shard_records(data_of(N), mesh, rows=22)
    with pytest.raises(ValueError, match="data holds no arrays"):
        shard_records({}, mesh)
    with pytest.raises(ValueError, match="must share one leading axis"):
        shard_records({"x": np.zeros((3, 2)), "y": np.zeros(4)}, mesh)
    with pytest.raises(ValueError, match="num_records must be >= 1"):
        Records(data_of(N), 0)
    problem = RateConstrained.linear(D, 2)
    solver = DPSGD(FullBatch(3), 1.0, 0.7, 0.5, 8.0, decay=0.9)
    with pytest.raises(ValueError, match="data must have at least num_records = 22 rows"):
        dpjax.solve(solver, problem, Records(data_of(N), 22), key=jax.random.key(0))
