"""Processes killed at random moments and started again end as one that nobody disturbed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("orbax.checkpoint")

from interruptions import whole_steps
from killed_child import digest_path, folder_of

from tests.entries import one_of_each

KILLS = 5
ONE_STEP = ("GaussianFit", "HistogramRelease")
LIMIT = 900.0  # seconds, for everything


def start(root, with_checkpoints, names):
    """A child in a session of its own; its hash seed is another each time."""
    root.mkdir(exist_ok=True)
    script = str(Path(__file__).with_name("killed_child.py"))
    with (root / "output").open("ab") as output:
        return subprocess.Popen(
            [
                sys.executable,
                script,
                str(root),
                "1" if with_checkpoints else "0",
                json.dumps(names),
            ],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONHASHSEED": "random"},
        )


def digests(root, names):
    return [digest_path(root, name).read_text() for name in names]


def reached(folder, step):
    """Whether a checkpoint of this step or a later one is there, finished or begun."""
    begun = [int(path.name[5:17]) for path in folder.glob("step_*")]
    return any(number >= step for number in begun)


@pytest.mark.slow
def test_killed_runs_end_like_undisturbed_ones(tmp_path):
    names, rng = one_of_each(), random.Random(0)
    child = undisturbed = start(tmp_path / "plain", False, names)
    root, deadline = tmp_path / "killed", time.monotonic() + LIMIT
    # where to strike: some way into a run of a random solver, and a random while later
    # a run of one step has no middle
    longer = [i for i, name in enumerate(names[:-1]) if not name.startswith(ONE_STEP)]
    targets = sorted(rng.sample(longer, KILLS))
    amid = 0
    try:
        for target in targets:
            child = start(root, True, names)
            folder, step = folder_of(root, names[target]), rng.choice([1, 2])
            wait, done = rng.uniform(0.0, 0.03), digest_path(root, names[target])
            while child.poll() is None and not (done.exists() or reached(folder, step)):
                assert time.monotonic() < deadline
                time.sleep(0.001)
            time.sleep(wait)
            assert child.poll() is None, (root / "output").read_text()
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
            amid += bool(whole_steps(folder)) and not done.exists()
        child = start(root, True, names)
        assert child.wait(LIMIT) == 0, (root / "output").read_text()
        assert undisturbed.wait(LIMIT) == 0, (tmp_path / "plain" / "output").read_text()
    finally:
        for process in (child, undisturbed):
            process.kill()
            process.wait()
    assert amid >= KILLS // 2  # resumed after some step but before the end
    assert digests(root, names) == digests(tmp_path / "plain", names)
