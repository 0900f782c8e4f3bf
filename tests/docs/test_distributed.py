"""What docs/distributed.md says to write runs, and what it says of JAX is so."""

import contextlib
import inspect
import os
import re
import runpy
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
BLOCKS = [
    block.code
    for block in runpy.run_path(str(ROOT / "scripts" / "readme.py"))["blocks"](PAGE, "python")
]
KNOWN = inspect.signature(jax.distributed.initialize).parameters
LIMIT = 240.0  # seconds


@pytest.mark.slow
def test_blocks_for_one_machine_run():
    namespace = {}
    for block in BLOCKS[:-1]:
        exec(compile(block, "docs/distributed.md", "exec"), namespace)
    assert namespace["count"] == jax.device_count()
    (params, *_) = jax.tree.leaves(namespace["tables"].params)
    assert len(params.sharding.device_set) == jax.device_count()


@pytest.mark.slow
def test_the_block_for_a_cluster_runs_in_two_processes(tmp_path):
    """As SLURM would start it."""
    if "heartbeat_timeout_seconds" not in KNOWN:
        pytest.skip("before jax 0.7")
    pytest.importorskip("orbax.checkpoint")
    (tmp_path / "train.py").write_text(BLOCKS[-1])
    with contextlib.ExitStack() as stack:
        held = stack.enter_context(socket.socket())
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        slurm = {
            "SLURM_JOB_ID": "17",
            "SLURM_STEP_NODELIST": "127.0.0.1",
            "SLURM_NTASKS": "2",
            "SLURM_LOCALID": "0",
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_COORDINATOR_BIND_ADDRESS": address,
            "JAX_PLATFORMS": "cpu",
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "PYTHONPATH": str(ROOT),
            "RUN_SEED": "17",
            "RUN_FOLDER": str(tmp_path / "run"),
        }
        processes = []
        for i in range(2):
            output = stack.enter_context((tmp_path / f"output_{i}").open("wb"))
            process = subprocess.Popen(
                [sys.executable, "train.py"],
                cwd=tmp_path,
                stdout=output,
                stderr=output,
                env=os.environ | slurm | {"SLURM_PROCID": str(i)},
            )
            processes.append(process)
            stack.callback(process.wait)
            stack.callback(process.kill)
        deadline = time.monotonic() + LIMIT
        for i, process in enumerate(processes):
            code = process.wait(max(1.0, deadline - time.monotonic()))
            assert code == 0, (tmp_path / f"output_{i}").read_text()
    params = np.load(tmp_path / "params.npz")
    assert sorted(params) == ["b", "w"]
    assert (tmp_path / "run" / "run.json").exists()


def test_defaults_of_jax_are_as_said():
    names = ("heartbeat_timeout_seconds", "shutdown_timeout_seconds")
    said = map(int, re.search(r"are (\d+) and (\d+) seconds", PAGE).groups())
    if not set(names) <= set(KNOWN):
        pytest.skip("before these were arguments")
    assert [KNOWN[name].default for name in names] == list(said)
