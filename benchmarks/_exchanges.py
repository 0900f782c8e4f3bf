"""What devices exchange in the compiled loop of a solver."""

import collections
import math
import re
from typing import Any

import jax
import numpy as np

from dpjax import Records
from dpjax.core import _records
from dpjax.runtime import _loop
from dpjax.runtime.devices import _placement

_BYTES = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2}
_MOVES = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
_INSTRUCTION = re.compile(rf"= (.*?) ({_MOVES})(?:-start)?\(")
_ARRAY = re.compile(r"\b([a-z]+[0-9]*)\[([0-9,]*)\]")


def job_of(solver: Any, problem: Any, data: Any, key: jax.Array) -> _loop.Job:
    """The job that `dpjax.solve` would make of these."""
    if not isinstance(data, Records):
        data = Records(data, _records.num_rows(data))
    solver, problem, data = _placement.automatic((solver, problem, data))
    init_key, plan_key = jax.random.split(key)
    xs = solver.sampler.plan(plan_key, data.num_records)
    placement = _placement.placement_of(data.arrays, getattr(problem, "init", None))
    return _loop.Job(solver, problem, data, init_key, xs, False, placement)


def compiled_loop(job: _loop.Job) -> Any:
    """The program of the loop over all steps."""
    outputs = _loop.blanks(job.steps, job.output_shapes())
    bounds = np.int32(0), np.int32(job.steps)
    return _loop.advance.lower(job, job.start(), outputs, *bounds).compile()


def collectives(compiled: Any) -> dict[tuple[str, str, int], int]:
    """What is exchanged: `(kind, array, bytes)` with how often it is in the program.

    A step is in it once, whatever their number. Of a gather the bytes are those of the whole.
    """
    found: dict[tuple[str, str, int], int] = collections.Counter()
    for line in compiled.as_text().splitlines():
        if match := _INSTRUCTION.search(line):
            for dtype, shape in _ARRAY.findall(match.group(1)):
                sizes = [int(size) for size in shape.split(",") if size]
                size = _BYTES.get(dtype, 1) * math.prod(sizes)
                found[match.group(2), f"{dtype}{sizes}", size] += 1
    return dict(found)
