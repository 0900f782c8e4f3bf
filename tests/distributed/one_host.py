"""What each process of a run on many hosts does: `python one_host.py WHAT JOB`.

WHAT names functions below, with commas between them, and JOB is JSON. What they return is written
to the job's folder.
"""

import dataclasses
import inspect
import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpjax
from dpjax.runtime.checkpoint._checkpoint import CheckpointFolder

sys.path.append(str(Path(__file__).parents[2]))  # where `tests` is
DIM = 16
HEARTBEAT = 6


def main(what, job):
    """Joins the others and runs one of the functions below."""
    jax.config.update("jax_enable_x64", os.environ["DPJAX_TEST_X64"] == "1")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    if job["processes"] > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        address = f"127.0.0.1:{job['port']}"
        jax.distributed.initialize(
            address,
            job["processes"],
            job["process"],
            coordinator_bind_address=address,
            initialization_timeout=60,
            **heartbeat(),
        )
    results = {}
    for each in what.split(","):
        results |= globals()[each](job)
    np.savez(Path(job["folder"]) / f"result_{job['process']}.npz", **results)


def heartbeat():
    """That the others hear soon of one that hangs; before jax 0.7 there is no such argument."""
    known = inspect.signature(jax.distributed.initialize).parameters
    return {"heartbeat_timeout_seconds": HEARTBEAT} if "heartbeat_timeout_seconds" in known else {}


def mesh_of(**axes):
    """All devices of all processes."""
    return Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes))


def entry(name):
    """The solver, problem and data of a registry entry."""
    import dpjax.testing as dpt
    import tests.entries  # noqa: F401  makes arrays, which must wait for the other processes

    case = dpt.registry()[name].make()
    return case.build(case.values[0]), case.problem, case.data


def noise_alone():
    """A solver whose one step gives back the noise; gradients are 0."""

    def loss(w, record):
        return 0 * jnp.sum(w) + 0 * jnp.sum(record)

    sampler = dpjax.sampling.PoissonSampler(0.5, 1, 16)
    solver = dpjax.solvers.DPSGD(sampler, 1.0, 1.0, 1.0, 8.0, average="last")
    return solver, dpjax.problems.Risk(loss, jnp.zeros(DIM)), np.ones((16, 3), np.float32)


def many_parameters(noise=1.0):
    """A few steps with real gradients."""

    def loss(w, record):
        return jnp.sum((w - jnp.tile(record, 4)) ** 2)

    sampler = dpjax.sampling.PoissonSampler(0.5, 6, 16)
    solver = dpjax.solvers.DPSGD(sampler, 1.0, noise, 0.5, 8.0)
    data = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    return solver, dpjax.problems.Risk(loss, jnp.ones(DIM)), data


def by_shards():
    """Batches that each of four shares of the records draws by itself."""
    solver, problem, data = many_parameters()
    sampler = dpjax.sampling.PoissonSampler(0.5, 3, 16, shards=4)
    return dataclasses.replace(solver, sampler=sampler), problem, data


def seeds(mesh=None):
    """Parameters of three runs in one call under `vmap`."""
    solver, problem, data = many_parameters()
    if mesh is not None:
        data = dpjax.shard_records(data, mesh)

    def one(key):
        return run((solver, problem, data), key=key).params

    return jax.vmap(one)(jax.random.split(jax.random.key(1), 3))


def cells(mesh=None):
    """Query release whose vectors over the universe are spread, and whose records are not."""
    domain = dpjax.queries.Domain({"a": 4, "b": 3})
    sharding = mesh and NamedSharding(mesh, PartitionSpec("universe"))
    problem = dpjax.problems.QueryRelease(
        dpjax.queries.Marginals(domain, (("a",), ("b",)), sharding=sharding)
    )
    budget = dpjax.Budget(2.0, 1e-5)
    solver = dpjax.solvers.MWEM.for_budget(problem, 24, budget, steps=3)
    return solver, problem, np.stack([np.arange(24) % 4, np.arange(24) % 3], 1)


def spread_init(problem, mesh, axis="params"):
    """The problem with its parameters over an axis of the mesh."""
    sharding = NamedSharding(mesh, PartitionSpec(axis))
    init = np.asarray(problem.init)
    init = jax.make_array_from_callback(init.shape, sharding, lambda part: init[part])
    return dpjax.problems.Risk(problem.loss, init)


def run(job, **options):
    """`dpjax.solve` under the usual key."""
    options = {"key": jax.random.key(7), "progress": False} | options
    return dpjax.solve(*job, **options)


def parts(prefix, tree):
    """What this process holds of each leaf: pieces of its first axis under their starts."""
    found = {}
    for i, leaf in enumerate(jax.tree.leaves(tree)):
        for shard in leaf.addressable_shards:
            start = shard.index[0].start if shard.index else None
            found[f"{prefix}/{i}/{start or 0}"] = np.asarray(shard.data)
        if leaf.is_fully_replicated:  # then every process can read it
            assert np.array_equal(np.asarray(leaf), leaf.addressable_data(0), equal_nan=True)
    return found


def raised(job, **options):
    """The message of what a run raises."""
    try:
        run(job, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


class Interrupted(Exception):
    """Stands for the death of one process that the others hear of."""


def interrupt_first(step):
    """Makes the first process raise when the save of this step is done."""
    save = CheckpointFolder.save

    def failing(self, at, tree):
        save(self, at, tree)
        if at == step:
            CheckpointFolder.save = save
            raise Interrupted("by the test")

    CheckpointFolder.save = failing


def solvers(job):
    """Registered solvers with records over all devices, and one with spread parameters too."""
    results = {}
    mesh = jax.make_mesh((4,), ("records",))
    for name in job["names"]:
        solver, problem, data = entry(name)
        # of a public number where theirs is secret
        solution = run((solver, problem, dpjax.shard_records(data, mesh, rows=64)))
        results |= parts(f"{name}/params", solution.params) | parts(f"{name}/info", solution.info)
    mesh = mesh_of(records=2, params=2)
    for name in ("noise_alone", "many_parameters"):
        solver, problem, data = globals()[name]()
        data = dpjax.shard_records(data, mesh)
        results |= parts(name, run((solver, spread_init(problem, mesh), data)).params)
    solver, problem, data = by_shards()
    data = dpjax.shard_records(data, mesh_of(records=4), rows=solver.sampler.rows)
    results |= parts("by_shards", run((solver, problem, data)).params)
    results |= parts("cells", run(cells(mesh_of(universe=4))).params)
    results |= parts("seeds", seeds(mesh))
    return results


def refusals(job):
    """Calls that are not the same on all hosts, or not right on one."""
    mesh = mesh_of(records=4)
    solver, problem, data = entry("RateConstrainedSGDA(gaussian, hard)")
    shared = dpjax.shard_records(data, mesh)
    other = jax.random.key(jax.process_index())
    results = {"keys": raised((solver, problem, shared), key=other)}
    bad = dict(data) | {"y": np.asarray(data["y"]).copy()}
    bad["y"][-2] = 9  # in the last share; rows that pad it repeat the last record
    bad = dpjax.shard_records(bad, mesh)
    results["codes"] = raised((solver, problem, bad))
    solver, problem, data = entry("GaussianFit(one noise)")
    bad = np.asarray(data).copy()
    bad[-2, 1] = 9
    bad = dpjax.shard_records(bad, mesh)
    results["cells"] = raised((solver, problem, bad))
    return results


def checkpoints(job):
    """Runs with checkpoints, interrupted by an error in one process; then other runs."""
    results, mesh = {}, mesh_of(records=2, params=2)
    solver, problem, data = many_parameters()
    spread = solver, spread_init(problem, mesh), dpjax.shard_records(data, mesh)
    solver, problem, data = entry("OnlineToBatch(buffered)")
    whole = solver, problem, dpjax.shard_records(data, mesh_of(records=4))
    for name, each in (("spread", spread), ("whole", whole)):
        there = {"checkpoint": Path(job["checkpoints"]) / name, "every": 1}
        results |= parts(f"{name}/plain", run(each)[:3:2])
        interrupt_first(3)
        results[f"{name}/interrupted"] = raised(each, **there)
        results |= parts(f"{name}/resumed", run(each, **there)[:3:2])
    solver, problem, data = many_parameters(noise=2.0)
    other = solver, spread[1], spread[2]
    there = {"checkpoint": Path(job["checkpoints"]) / "spread", "every": 1}
    results["noise"] = raised(other, **there)
    data[-1, -1] += 1  # in the share of the last process
    changed = spread[0], spread[1], dpjax.shard_records(data, mesh)
    results["data"] = raised(changed, **there)
    results["progress"] = raised(spread, progress=True)
    return results


def resume_elsewhere(job):
    """The same run on other processes."""
    mesh = mesh_of(records=2, params=2)
    solver, problem, data = many_parameters()
    spread = solver, spread_init(problem, mesh), dpjax.shard_records(data, mesh)
    there = {"checkpoint": Path(job["checkpoints"]) / "spread", "every": 1}
    return {"elsewhere": raised(spread, **there)}


def long_run(job):
    """A run with a checkpoint after every step, and undisturbed."""
    solver, problem, data = many_parameters()
    mesh = mesh_of(records=1, params=job["processes"])
    sampler = dpjax.sampling.PoissonSampler(0.5, job["steps"], 16)
    solver = dataclasses.replace(solver, sampler=sampler)
    spread = solver, spread_init(problem, mesh), dpjax.shard_records(data, mesh)
    resumed = run(spread, checkpoint=job["checkpoints"], every=1)
    return parts("resumed", resumed[:3:2]) | parts("plain", run(spread)[:3:2])


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
