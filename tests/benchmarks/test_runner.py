"""The runner: what is timed, what is compiled, what a result says of its machine."""

import json
import shutil
import socket
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks import _environment, _runner
from benchmarks._runner import Task

TIMED = {"median", "lower_quartile", "upper_quartile", "repeats"}
COMPILED = {
    *("trace_seconds", "compile_seconds"),
    *("argument_bytes", "output_bytes", "temp_bytes", "peak_bytes"),
}


@pytest.fixture(autouse=True)
def _caches(monkeypatch):
    """Other tests keep what they have compiled."""
    monkeypatch.setattr(jax, "clear_caches", lambda: None)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still but for what is added to `clock[0]`."""
    now = [0.0]
    monkeypatch.setattr(_runner.time, "perf_counter", lambda: now[0])
    return now


def test_a_measurement_has_times_compile_times_and_memory():
    x = jnp.ones((8, 16))
    found = _runner.measure({"sum": Task(lambda x: (x * 2).sum(0), (x,))}, repeats=3)["sum"]
    assert set(found) == TIMED | COMPILED
    assert found["repeats"] == 3
    assert found["lower_quartile"] <= found["median"] <= found["upper_quartile"]
    assert (found["argument_bytes"], found["output_bytes"]) == (x.nbytes, x[0].nbytes)
    json.dumps(found)


def test_compiling_is_not_in_the_time_of_a_run(clock):
    traces = []

    def slow_to_trace(x):
        clock[0] += 100.0
        traces.append(x)
        return x + 1

    found = _runner.measure({"f": Task(slow_to_trace, (jnp.zeros(3),))}, repeats=4)["f"]
    assert len(traces) == 1
    assert found["trace_seconds"] == 100.0
    assert found["compile_seconds"] == found["median"] == found["upper_quartile"] == 0.0


def test_calls_are_made_in_turn_and_divided(clock):
    called = []

    def task(name, seconds):
        def function(argument):
            called.append(name)
            clock[0] += seconds * argument
            return 0

        return Task(function, (3.0,), divide=6.0, host=True)

    tasks = {"a": task("a", 1.0), "b": task("b", 2.0)}
    found = _runner.measure(tasks, repeats=2, warmup=2)
    assert "".join(called) == "aabb" + "abab"
    assert (found["a"]["median"], found["b"]["median"]) == (0.5, 1.0)
    assert {found["a"][name] for name in COMPILED} == {None}


def test_one_key_serves_all_calls(key):
    draw = Task(lambda key: jax.random.normal(key, (4,)), (key,))
    assert _runner.measure({"draw": draw}, repeats=2)["draw"]["repeats"] == 2


def test_a_jitted_function_keeps_its_own_settings():
    function = jax.jit(lambda x: x, static_argnames=())
    assert _runner.measure({"f": Task(function, (jnp.zeros(2),))}, repeats=1)["f"]["repeats"] == 1


def test_interleaved_keeps_the_first_call_apart(clock):
    def call():
        clock[0] += 50.0 if not clock[0] else 1.0
        return 0

    found = _runner.interleaved({"a": call}, repeats=3)["a"]
    assert set(found) == TIMED | {"first_call"}
    assert (found["first_call"], found["median"]) == (50.0, 1.0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.0], (2.0, 2.0, 2.0)),
        ([1.0, 3.0], (2.0, 1.0, 3.0)),
        ([1.0, 2.0, 3.0, 4.0, 5.0], (3.0, 1.5, 4.5)),
    ],
)
def test_quartiles(values, expected):
    assert tuple(_runner.quartiles(values).values()) == expected


def test_a_saved_result_says_what_it_was_measured_with(tmp_path):
    _runner.save("some", {"value": 1}, fast=False, folder=tmp_path, seconds=2.0)
    found = _runner.load("some", tmp_path)
    assert (found["study"], found["fast"], found["value"]) == ("some", False, 1)
    assert found["process"]["seconds"] == 2.0
    assert found["process"]["peak_bytes"] > 2**20
    environment = found["environment"]
    assert environment["x64"] == jax.config.jax_enable_x64
    assert environment["versions"]["jax"] == jax.__version__
    assert {"date", "commit", "processor", "cores", "memory_bytes", "load_average"} <= set(
        environment
    )
    assert {"matmul_precision", "prng_impl", "threefry_partitionable"} <= set(environment)
    text = (tmp_path / "some.json").read_text()
    assert str(Path.home()) not in text
    assert str(_environment.ROOT) not in text
    assert socket.gethostname() not in text.replace("localhost", "")
    smoke = _runner.save("some", {}, fast=True, folder=tmp_path, environment={"given": 1})
    assert smoke.name == "some.fast.json"
    assert json.loads(smoke.read_text())["environment"] == {"given": 1}


def test_matmul_precision_is_recorded():
    with jax.default_matmul_precision("highest"):
        assert _environment.environment()["matmul_precision"] == "highest"
    assert _environment.environment()["matmul_precision"] != "highest"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit_tells_changed_code_and_nothing_without_git(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert _environment.commit(tmp_path) is None

    def git(*arguments):
        names = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", tmp_path, *names, *arguments], check=True, capture_output=True)

    (tmp_path / "code.py").write_text("1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = _environment.commit(tmp_path)
    assert len(clean) == 12
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    (results / "a.json").write_text("{}")
    (tmp_path / "README.md").write_text("new")
    assert _environment.commit(tmp_path) == clean
    (tmp_path / "code.py").write_text("2\n")
    assert _environment.commit(tmp_path) == f"{clean}+dirty"
