"""Records spread over eight devices: every solver gives what it gives on one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from placements import (
    assert_same,
    collectives,
    compiled_loop,
    job_of,
    mesh_of,
    moved,
    put,
    with_params,
)

import dpjax
from dpjax.problems import RateConstrained
from dpjax.sampling import FullBatch, PoissonSampler
from dpjax.solvers import DPSGD, OnlineToNonconvex
from dpjax.testing import entries
from tests.entries import PROGRAMS

ROWS = 64  # of 24 or 36 records: three to five of the devices hold padding alone
QUICK = ("DPSGD(linear)", "FrankWolfe(linear)")
SOLVERS = {entry.name: entry for entry in entries("solver")}


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS],
)
def test_every_solver_gives_what_it_gives_on_one_device(name):
    case = SOLVERS[name].make()
    solver = case.build(case.values[0])
    one = dpjax.solve(solver, case.problem, case.data, key=jax.random.key(5))
    # who draws by shards says how many rows there are to be
    shards = getattr(solver.sampler, "shards", 1)
    devices, rows = (shards, solver.sampler.rows) if shards > 1 else (8, ROWS)
    records = dpjax.shard_records(case.data, mesh_of(devices), rows=rows)
    many = dpjax.solve(solver, case.problem, records, key=jax.random.key(5))
    # rows that pad a batch add to what rounding may move, and so to the deviation; steps with
    # correlated noise lie on a grid
    assert_same((many.params, many.info), (one.params, one.info), tolerance=2e-4)
    other = dpjax.solve(solver, case.problem, records, key=jax.random.key(6))
    with pytest.raises(AssertionError):
        assert_same((other.params, other.info), (one.params, one.info))


def test_the_solvers_named_are_registered():
    assert set(QUICK) <= set(PROGRAMS)


N, D = 203, 6


def _data():
    x = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}


def _dpsgd(sampler, batch=N / 5):
    # else one device pads its rows, by which noise is rounded
    relation = "replace_one" if isinstance(sampler, FullBatch) else "add_or_remove_one"
    return DPSGD(sampler, 1.0, 0.7, 0.5, batch, decay=0.9, relation=relation)


def _run(solver, records, problem=None, **options):
    problem = RateConstrained.linear(D, 2) if problem is None else problem
    return dpjax.solve(solver, problem, records, key=jax.random.key(1), **options)


@pytest.mark.slow
def test_any_number_of_devices_and_any_mesh():
    # as many slots as several devices pad to, by which noise is rounded
    solver, data = _dpsgd(PoissonSampler(0.2, 5, N, capacity=128)), _data()
    want = _run(solver, data).params
    for devices in (1, 2, 4):
        records = dpjax.shard_records(data, mesh_of(devices))
        assert_same(_run(solver, records).params, want)
    # over two axes at once
    two = mesh_of(2, 4)
    both = dpjax.shard_records(data, two, axis=("records", "params"))
    assert both.arrays["x"].addressable_shards[0].data.shape[0] == both.arrays["x"].shape[0] // 8
    assert_same(_run(solver, both).params, want)


@pytest.mark.slow
def test_meshes_of_explicit_axes():
    """As `jax.make_mesh` makes them, where there are such."""
    mesh = jax.make_mesh((8,), ("records",))
    solver = _dpsgd(FullBatch(3), N)
    spread = dpjax.shard_records(_data(), mesh)
    # of as many rows, by which noise is rounded
    alone = dpjax.Records(jax.tree.map(np.asarray, spread.arrays), N)
    assert_same(_run(solver, spread).params, _run(solver, alone).params)


@pytest.mark.slow
def test_draws_by_shards_do_not_depend_on_the_number_of_devices():
    solver = _dpsgd(PoissonSampler(0.2, 5, N, shards=8))
    rows = solver.sampler.rows
    runs = []
    for devices in (1, 2, 8):
        records = dpjax.shard_records(_data(), mesh_of(devices), rows=rows)
        runs.append(_run(solver, records, sensitive=True))
    for run in runs[1:]:
        assert_same(run.params, runs[0].params)
        np.testing.assert_array_equal(run.sensitive["batch_size"], runs[0].sensitive["batch_size"])
    assert len(np.unique(runs[0].sensitive["batch_size"])) > 1


def test_what_devices_exchange_in_a_step():
    """Sums of gradients, and of a batch across shares its records; nothing else of any size."""
    mesh, problem = mesh_of(8), RateConstrained.linear(D, 2)
    gradients = 4 * 2 * (D + 1)

    def program(sampler, **options):
        rows = getattr(sampler, "rows", None) if getattr(sampler, "shards", 1) > 1 else None
        records = dpjax.shard_records(_data(), mesh, rows=rows)
        solver = DPSGD(sampler, 1.0, 0.7, 0.5, 40.0, decay=0.9, **options)
        return compiled_loop(job_of(solver, problem, records, jax.random.key(0)))

    local = (FullBatch(3), PoissonSampler(0.2, 3, N, shards=8))
    for compiled in (*map(program, local), program(FullBatch(3), microbatch_size=104)):
        found = collectives(compiled)
        assert moved(compiled) == 0, found
        assert 0 < sum(size * count for (_, _, size), count in found.items()) <= 2 * gradients, (
            found
        )
    across = program(PoissonSampler(0.2, 3, N))
    slots = PoissonSampler(0.2, 3, N).capacity
    assert moved(across) <= 4 * N * D  # no more than the records; here there are few
    assert sum(s * c for (_, _, s), c in collectives(across).items()) <= 4 * (N + slots) * (D + 4)


@pytest.mark.slow
def test_wide_records_stay_where_they_are():
    """On one CPU they are added in parts, which would cut across the devices."""
    width = 2**9
    x = np.random.default_rng(0).normal(size=(512, width)).astype(np.float32)
    data = {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}
    problem, solver = RateConstrained.linear(width, 2), _dpsgd(FullBatch(2), 512)
    records = dpjax.shard_records(data, mesh_of(8))
    compiled = compiled_loop(job_of(solver, problem, records, jax.random.key(1)))
    assert moved(compiled) == 0, collectives(compiled)
    assert_same(_run(solver, records, problem).params, _run(solver, data, problem).params)


def test_the_check_of_exchanges_sees_a_gather():
    mesh = mesh_of(8)
    spread = put(jnp.arange(64.0), mesh, "records")
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    gather = jax.jit(lambda a: 2 * a, out_shardings=whole).lower(spread).compile()
    assert moved(gather) == spread.nbytes


@pytest.mark.slow
def test_an_ordered_batch_is_not_padded():
    """Its records would fall into other parts of it: 7 records in a batch, over 8 devices."""
    case = SOLVERS["OnlineToNonconvex(as published)"].make()
    solver = case.build(0.5)
    assert solver.ordered_batches
    assert solver.sampler.batch_size % 8 == 7
    shared = SOLVERS["OnlineToNonconvex(first)"].make().build(0.5)
    assert not shared.ordered_batches
    # nor are all records followed by rows that pad them
    case = SOLVERS["OnlineToNonconvex(first, periods)"].make()
    solver = OnlineToNonconvex(
        FullBatch(2), 1.0, 0.7, 0.5, 0.1, 4.0, 0.05, directions="record", microbatch_size=6
    )
    records = jax.tree.map(lambda a: jnp.concatenate([a, a[:4]]), case.data)
    want, got = (
        dpjax.solve(solver, case.problem, data, key=jax.random.key(3)).params
        for data in (case.data, dpjax.Records(records, 24))
    )
    assert_same(got, want)


@pytest.mark.slow
def test_parameters_in_a_tree():
    """Weights over features and a bias, on a mesh of both axes."""
    problem, mesh = RateConstrained.linear(8, 2), mesh_of(2, 4)
    x = np.random.default_rng(1).normal(size=(64, 8)).astype(np.float32)
    data = {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}
    placed = {"x": put(x, mesh, "records", "params"), "y": put(data["y"], mesh, "records")}
    solver = _dpsgd(FullBatch(3), 64)
    spread = with_params(problem, mesh, axes=lambda leaf: leaf.shape[0] == 8)
    got = _run(solver, placed, spread)
    assert got.params["w"].addressable_shards[0].data.shape == (2, 2)
    assert_same(got.params, _run(solver, data, problem).params)
