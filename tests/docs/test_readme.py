"""What the README says is true: its commands and its code."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "readme.py"


def readme(what):
    command = [sys.executable, "-W", "error", str(SCRIPT), what]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_python_blocks_run_as_in_a_fresh_interpreter():
    done = readme("run")
    assert done.returncode == 0, done.stderr
    assert "epsilon   1.0000" in done.stdout


@pytest.mark.parametrize(("purpose", "end"), [("job", "-m dpjax"), ("test", "-n auto")])
def test_each_setup_is_one_command_from_a_bare_clone(purpose, end):
    command = readme(purpose).stdout.strip()
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert command.endswith(end)
    assert "\n" not in command
