"""The script for accelerators, as far as it can be tried without one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import _on_device, _runner

SCRIPT = Path(_on_device.__file__).with_name("run_gpu.sh")
REPORT = """<testsuites><testsuite tests="4">
<testcase classname="tests.a" name="test_good" />
<testcase classname="tests.a" name="test_bad"><failure>no</failure></testcase>
<testcase classname="tests.b" name="test_ugly"><error>no</error></testcase>
<testcase classname="tests.b" name="test_left_out"><skipped /></testcase>
</testsuite></testsuites>"""


def said(*arguments, **environment):
    """What the script would do."""
    given = (
        os.environ
        | {"DRY": "1", "VENV": "", "WHEELS": "", "DATA": "", "XLA_FLAGS": ""}
        | environment
    )
    done = subprocess.run([SCRIPT, *arguments], env=given, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_a_bare_clone_is_installed_tested_and_timed():
    status, text = said()
    assert status == 0
    assert "python3 -m venv .venv-gpu" in text
    assert "pip install jax[cuda12] -e .[test,bench]" in text
    # the settings of the tests are for CPUs: later ones hold
    assert "--xla_backend_optimization_level=3" in text
    assert "--xla_gpu_deterministic_ops=true" in text
    assert "-m pytest -q -n 2 --junitxml .venv-gpu/tests.xml" in text
    assert "-m benchmarks._on_device gpu --study scaling\n" in text
    assert "--fast" not in text


def test_the_studies_are_there():
    named = re.findall(r"--study (\w+)", said()[1])
    assert named == [
        "roofline",
        "scaling",
        "hot_paths",
        "noise_throughput",
        "sampling_cost",
        "step_time",
        "query_universe",
    ]


def test_studies_that_start_at_once_are_all_waited_for():
    assert said("--no-tests")[1].splitlines() == said("--no-tests", "--at-once")[1].splitlines()


def test_what_is_missing_is_installed_from_a_folder(tmp_path):
    asked = ("cpu", "--no-tests", "--no-studies")
    made, installed, _ = said(*asked, WHEELS="a b")[1].splitlines()
    assert made == "+ python3 -m venv .venv-cpu"
    assert installed.endswith("-m pip install --no-index --find-links a b -e .[bench]")
    assert "-e .[test,bench]" in said("gpu", WHEELS="w")[1]
    # an environment that is there is taken as it is
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    first, _ = said(*asked, WHEELS="w", VENV=str(tmp_path))[1].splitlines()
    assert first.startswith(f"+ {python} -m pip install --no-index")


def test_a_python_without_an_environment():
    text = said("--no-install", "--no-studies", PYTHON="python3.99", TMPDIR="/t")[1]
    assert "pip" not in text
    assert text.startswith("+ python3.99 -m benchmarks._on_device gpu\n")
    assert "python3.99 -m pytest -q -n 2 --junitxml /t/tests.gpu.xml" in text


def test_options_choose():
    assert "-m slow or not slow" in said("--slow")[1]
    status, text = said("cpu", "--fast", "--no-tests", "--no-install", "step_time", DATA="a b")
    assert status == 0
    first, second = text.splitlines()
    assert first.endswith("-m benchmarks._on_device cpu")
    assert second.endswith("-m benchmarks._on_device cpu --study step_time --fast --data a b")
    assert said("--bogus")[0] == 2


def test_the_outcome_of_tests_names_what_failed(tmp_path, monkeypatch):
    report = tmp_path / "tests.xml"
    report.write_text(REPORT)
    assert _on_device.outcome(report) == {
        "passed": 1,
        "failed": ["tests.a::test_bad", "tests.b::test_ugly"],
        "skipped": ["tests.b::test_left_out"],
    }


def test_another_device_than_asked_for_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(_runner, "save", lambda *_, **__: pytest.fail("saved"))
    assert _on_device.main(["abacus", "--study", "step_time"]) == 1
    assert "wanted abacus, found" in capsys.readouterr().err
