"""A run over many devices goes on from its checkpoints to the bit, on the same devices alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpjax

pytest.importorskip("orbax.checkpoint")

from interruptions import Interrupted, case_of, identical, interrupt, solve, until_done

# on CPU there are always eight (conftest), and fewer must fail
# never on CPU, which conftest makes eight devices of; an accelerator has as many as it has
pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu" and jax.device_count() < 8, reason="needs 8 devices"
)

QUICK = ("DPSGD(linear)",)
SLOW = (
    "OnlineToBatch(buffered)",
    "OnlineToNonconvex(first)",
    "RateConstrainedSGDA(gaussian, hard)",
    "MultilevelSaddle",
    "MWEM",
)
NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def mesh_of(**axes):
    return Mesh(np.array(jax.devices()[:8]).reshape(tuple(axes.values())), tuple(axes))


def distance(w, record):
    return jnp.sum((w - jnp.tile(record, 4)) ** 2)


def records():
    return np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


def alone():
    """The same run on one device."""
    return spread_job()[0], dpjax.problems.Risk(distance, jnp.ones(16)), records()


def spread_job(value=0.0, noise=1.0, **axes):
    """Records over one axis of the devices, parameters and their noise over another."""
    mesh = mesh_of(**(axes or {"records": 2, "params": 4}))
    init = jax.device_put(jnp.ones(16), NamedSharding(mesh, PartitionSpec("params")))
    data = records()
    data[3, 1] += value
    sampler = dpjax.sampling.PoissonSampler(0.5, 6, 16)
    solver = dpjax.solvers.DPSGD(sampler, 1.0, noise, 0.5, 8.0)
    return solver, dpjax.problems.Risk(distance, init), dpjax.shard_records(data, mesh)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_records_over_many_devices(name, tmp_path, monkeypatch):
    solver, problem, data = case_of(name)
    job = solver, problem, dpjax.shard_records(data, mesh_of(records=8))
    plain = solve(job)
    step = min(2, solver.sampler.steps)
    interrupt(monkeypatch, {step})
    resumed, attempts = until_done(job, tmp_path)
    assert attempts == 1
    assert identical(resumed, plain)


@pytest.fixture(scope="module")
def plain():
    return solve(spread_job())


@pytest.mark.slow
def test_parameters_over_many_devices(plain, tmp_path, monkeypatch):
    interrupt(monkeypatch, {2, 5})
    resumed, attempts = until_done(spread_job(), tmp_path, everies=(1, 5))
    assert attempts == 2
    assert identical(resumed, plain)
    for each in (plain, resumed):
        assert each.params.sharding.spec == PartitionSpec("params")
        assert each.params.addressable_shards[0].data.shape == (4,)
    monkeypatch.setattr("dpjax.runtime._loop.chunk_length", lambda steps: 2)
    assert identical(solve(spread_job(), progress=True), plain)


OTHERS = {
    "another record": (lambda: spread_job(value=1e-6), "data"),
    "other noise": (lambda: spread_job(noise=2.0), "solver"),
    "axes of other sizes": (
        lambda: spread_job(records=4, params=2),
        "program, devices (8 of 1 processes as records=2 x params=4",
    ),
    "axes in another order": (lambda: spread_job(params=4, records=2), "program, devices"),
    "one device": (alone, "program, devices (8 of 1 processes"),
}


@pytest.mark.slow
def test_other_runs_and_other_devices_are_refused(plain, tmp_path, monkeypatch):
    interrupt(monkeypatch, {2})
    with pytest.raises(Interrupted):
        solve(spread_job(), checkpoint=tmp_path, every=1)
    for what, (other, differs) in OTHERS.items():
        with pytest.raises(ValueError, match="belongs to another run") as error:
            solve(other(), checkpoint=tmp_path, every=1)
        assert f"it differs in {differs}" in str(error.value), what
    assert identical(solve(spread_job(), checkpoint=tmp_path), plain)


def test_many_devices_do_not_go_on_for_one(tmp_path):
    assert identical(solve(alone(), checkpoint=tmp_path), solve(alone()))
    with pytest.raises(ValueError, match=r"devices \(one there, 8 of 1 processes"):
        solve(spread_job(), checkpoint=tmp_path)
