"""What `many_devices` measures, in a process of its own with eight simulated devices."""

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import dpjax
from benchmarks import _runner
from benchmarks._exchanges import collectives, compiled_loop, job_of
from dpjax.geometry import L1Ball
from dpjax.problems import QueryRelease, RateConstrained, Risk, SimplexRisk
from dpjax.queries import Domain, Marginals
from dpjax.runtime import _loop
from dpjax.sampling import DisjointPartition, FullBatch, PoissonSampler
from dpjax.solvers import DPFTRL, DPSGD, FrankWolfe, FrankWolfeRelease
from dpjax.transforms import BinaryTree

DEVICES = (1, 2, 4, 8)
SHARDS = max(DEVICES)
STEPS = 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--fast", action="store_true")
    args = parser.parse_args()
    makes = {
        "records": _records,
        "records, across shares": _records_across,
        "parameters": _parameters,
        "vertices": _vertices,
        "universe": _universe,
    }
    rows = [row for name, make in makes.items() for row in _rows(name, make, fast=args.fast)]
    args.path.write_text(json.dumps(rows))


def _rows(name: str, make: Callable[..., Any], *, fast: bool) -> list[dict[str, Any]]:
    """One row for each number of devices, timed in turn."""
    rows, calls = [], {}
    for devices in DEVICES[:: len(DEVICES) - 1] if fast else DEVICES:
        mesh = Mesh(np.array(jax.devices()[:devices]), ("axis",))
        size, solver, problem, data = make(mesh, fast=fast)
        job = job_of(solver, problem, data, jax.random.key(0))
        program, state = compiled_loop(job), job.start()
        memory = program.memory_analysis()
        exchanged = collectives(program)
        rows.append(
            {
                "axis": name,
                "solver": type(solver).__name__,
                "size": size,
                "devices": devices,
                "argument_bytes": memory.argument_size_in_bytes,
                "temp_bytes": memory.temp_size_in_bytes,
                "data_bytes": _largest_share(job.data),
                "state_bytes": _largest_share(state),
                "exchanges": [
                    {"kind": kind, "array": array, "bytes": bytes_, "times": times}
                    for (kind, array, bytes_), times in sorted(exchanged.items())
                ],
            }
        )
        calls[str(devices)] = _call(job, program, state)
    seconds = _runner.interleaved(calls, repeats=2 if fast else 5)
    for row, times in zip(rows, seconds.values(), strict=True):
        row["milliseconds_per_step"] = _runner.scaled(times, 1e3 / STEPS)
    return rows


def _call(job: _loop.Job, program: Any, state: Any) -> Callable[[], Any]:
    def call() -> Any:
        outputs = _loop.blanks(job.steps, job.output_shapes())
        return program(job, state, outputs, np.int32(0), np.int32(job.steps))

    return call


def _largest_share(tree: Any) -> int:
    """Bytes on the device that holds most."""
    held: dict[Any, int] = {}
    for leaf in jax.tree.leaves(_loop.words(tree)):
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.nbytes
    return max(held.values())


def _put(array: Any, mesh: Mesh, *spec: str | None) -> jax.Array:
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))


@functools.lru_cache(maxsize=1)
def _table(num: int, dim: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num, dim), np.float32) / np.float32(dim**0.5)


def _descent(sampler: Any, num: int) -> DPSGD:
    return DPSGD(sampler, 1.0, 1.0, 0.5, float(num), decay=0.9)


def _records(mesh: Mesh, *, fast: bool, shards: int = SHARDS) -> tuple[Any, ...]:
    num, dim = (2**14, 32) if fast else (2**20, 64)
    x = _table(num, dim)
    sampler = PoissonSampler(1024 / num, STEPS, num, shards=shards)
    records = dpjax.shard_records(
        {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}, mesh, "axis", rows=num
    )
    return num, _descent(sampler, 1024), RateConstrained.linear(dim, 2), records


def _records_across(mesh: Mesh, *, fast: bool) -> tuple[Any, ...]:
    return _records(mesh, fast=fast, shards=1)


def _squares(margin: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * (margin - y) ** 2


def _columns(mesh: Mesh, fast: bool) -> tuple[int, int, Any]:
    num, dim = (64, 2**15) if fast else (128, 10**6)
    x = _table(num, dim)
    return num, dim, {"x": _put(x, mesh, None, "axis"), "y": _put(x[:, 0], mesh)}


def _parameters(mesh: Mesh, *, fast: bool) -> tuple[Any, ...]:
    num, dim, data = _columns(mesh, fast)
    problem = Risk.linear(_squares, dim)
    init = _put(jnp.zeros(dim), mesh, "axis")
    sampler, noise = DisjointPartition(STEPS, num // STEPS), BinaryTree(STEPS)
    solver = DPFTRL(sampler, 1.0, 1.0, 0.5, num / STEPS, noise=noise, relation="replace_one")
    return dim, solver, dataclasses.replace(problem, init=init), data


def _vertices(mesh: Mesh, *, fast: bool) -> tuple[Any, ...]:
    num, dim, data = _columns(mesh, fast)
    problem = SimplexRisk.linear(_squares, L1Ball(dim, 2.0), grad_range=1.0, third_order=0.0)
    return dim, FrankWolfe(FullBatch(STEPS), 50.0, 1.0, float(num)), problem, data


def _universe(mesh: Mesh, *, fast: bool) -> tuple[Any, ...]:
    sizes = (8, 4, 4, 4, 8, 4) if fast else (8, 8, 8, 8, 8, 8, 8)
    domain = Domain({f"a{i}": size for i, size in enumerate(sizes)})
    sharding = NamedSharding(mesh, PartitionSpec("axis")) if mesh.size > 1 else None
    problem = QueryRelease(Marginals.all_kway(domain, 2, sharding=sharding))
    options = {"steps": STEPS}
    solver = FrankWolfeRelease.for_budget(problem, 10_000, dpjax.Budget(1.0, 1e-5), **options)
    cells = np.random.default_rng(1).integers(0, domain.universe_size, 10_000).astype(np.int32)
    return domain.universe_size, solver, problem, domain.codes(cells)


if __name__ == "__main__":
    main()
