"""A host that dies or hangs ends the others within a bound, and all go on from the checkpoint."""

import signal
import time

import numpy as np
import pytest
from hosts import started

pytest.importorskip("orbax.checkpoint")

STEPS = 40
LIMIT = 240.0  # seconds, for the processes of one run; of them the survivors need a few


def whole_steps(path):
    names = [entry.name.removeprefix("step_") for entry in path.glob("step_*")]
    return sorted(int(name) for name in names if name.isdecimal())


@pytest.mark.slow
def test_a_host_that_dies_or_hangs_ends_the_others_and_all_go_on(tmp_path):
    path, reached = tmp_path / "checkpoint", 0
    arguments = {"processes": 2, "steps": STEPS, "checkpoints": str(path)}
    # one that hangs, as one whose machine is gone, then one that dies, then the one that writes
    for victim, how in ((1, signal.SIGSTOP), (1, signal.SIGKILL), (0, signal.SIGKILL)):
        with started(tmp_path / f"{victim}{how}", "long_run", **arguments) as hosts:
            deadline = time.monotonic() + LIMIT
            while max(whole_steps(path), default=0) < reached + 2:
                assert all(process.poll() is None for process in hosts.processes), hosts.said(0)
                assert time.monotonic() < deadline, hosts.said(0)
                time.sleep(0.001)
            hosts.processes[victim].send_signal(how)
            assert hosts.processes[1 - victim].wait(LIMIT) != 0
            words = hosts.said(1 - victim)
            assert "Gloo" in words or "JAX distributed service detected fatal errors" in words
        assert not list(tmp_path.glob("*/result_*"))
        assert reached < max(whole_steps(path)) < STEPS  # amid
        reached = max(whole_steps(path))
    with started(tmp_path / "last", "long_run", **arguments) as hosts:
        hosts.wait(LIMIT)
    for i in range(2):
        result = dict(np.load(tmp_path / "last" / f"result_{i}.npz"))
        plain = [name for name in result if name.startswith("plain")]
        assert len(plain) > 1
        for name in plain:
            assert result[name].tobytes() == result[name.replace("plain", "resumed")].tobytes()
