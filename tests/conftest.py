"""Strict settings for every test: no warning, no implicit broadcasting, no key used twice."""

import gc
import json
import math
import os
import sys
import zlib
from importlib.metadata import version
from pathlib import Path

# read when XLA starts; most programs here run once on tiny arrays, and compiling is all their cost
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        # gone from jaxlib 0.11.1 on, whose XLA stops at a flag that it does not know
        "--xla_cpu_use_fusion_emitters=false"
        if tuple(map(int, version("jaxlib").split(".")[:3])) < (0, 11, 1)
        else "",
        "--xla_cpu_parallel_codegen_split_count=1",
        # one core for each worker
        f"--xla_cpu_multi_thread_eigen={'PYTEST_XDIST_WORKER' not in os.environ}".lower(),
        # for tests of programs over several; all others run on the first
        "--xla_force_host_platform_device_count=8",
        os.environ.get("XLA_FLAGS", ""),
    ]
).strip()

import jax
import numpy as np
import pytest

X64 = os.environ.get("DPJAX_TEST_X64", "0") == "1"

jax.config.update("jax_numpy_rank_promotion", "raise")
# keys are used the same way with types of any size; to follow them is a tenth of the time
jax.config.update("jax_debug_key_reuse", not X64)
jax.config.update("jax_enable_x64", X64)

import tests.entries  # noqa: E402, F401  (fills `dpjax.testing.registry`)
from dpjax.transforms.noise.correlated import _strategy  # noqa: E402

# The probability that any statistical check of a session fails though all is right.
FALSE_ALARMS_ALLOWED = 1e-4
_of_workers = pytest.StashKey[list[tuple[int, float]]]()
# Seconds of CPU time of tests, by node id; written by `--write-durations`. A test that takes longer
# than the first is slow, and of a test of several cases all that take longer than the second but
# the fastest, unless it is marked `always`; what is slow and takes longer than the third is
# exhaustive.
DURATIONS = Path(__file__).with_name("durations.json")
_SLOW, _CASE, _EXHAUSTIVE = 0.75, 0.3, 3.0
_KEPT = 0.2
_durations: dict[str, float] = {}
_began = pytest.StashKey[float]()

# A warning of somebody else's code that has no consequence here goes on this list, as narrowly as
# it can be matched: "ignore:message:category:module".
_THIRD_PARTY_NOISE: tuple[str, ...] = (
    # SLSQP of scipy 1.13, whose steps pass a bound by a rounding; scipy clips them itself
    "ignore:Values in x were outside bounds:RuntimeWarning:scipy.optimize._slsqp_py",
    # matplotlib 3.9 uses names that pyparsing 3.3 renamed
    "ignore:.* deprecated - use:DeprecationWarning:matplotlib._fontconfig_pattern",
    "ignore:.* deprecated - use:DeprecationWarning:matplotlib._mathtext",
)


def pytest_addoption(parser):
    parser.addoption("--share", help="K/N: of the tests chosen, one share of N, K = 0..N-1")
    parser.addoption(
        "--write-durations", action="store_true", help=f"notes how long tests take in {DURATIONS}"
    )


def pytest_configure(config):
    # a session holds millions of objects of traced programs, which are not garbage: to look for it
    # among them at Python's usual pace is a seventh of the time
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    config.stash[_of_workers] = []
    config.addinivalue_line("filterwarnings", "error")
    # tests run on a handful of records; tests/solvers/test_swamped.py looks at the warning itself
    config.addinivalue_line("filterwarnings", "ignore::dpjax.privacy.NoiseWarning")
    for line in _THIRD_PARTY_NOISE:
        config.addinivalue_line("filterwarnings", line)


def pytest_report_header(config):
    return f"jax {jax.__version__} on {jax.default_backend()}, x64 {'on' if X64 else 'off'}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks tests by how long they take, and leaves out what is not wanted.

    With 64-bit types on, tests that turn them on by themselves have nothing to add.
    """
    times = json.loads(DURATIONS.read_text())
    first: dict[str, pytest.Item] = {}  # the fastest case of each test
    for item in items:
        name = item.nodeid.partition("[")[0]
        if item.get_closest_marker("slow"):
            continue
        if times.get(item.nodeid, 0.0) < times.get(first.setdefault(name, item).nodeid, 0.0):
            first[name] = item
    for item in items:
        seconds = times.get(item.nodeid, 0.0)
        least = _CASE
        if item is first.get(item.nodeid.partition("[")[0]):
            least = math.inf if item.get_closest_marker("once") else _SLOW
        if seconds > least and not item.get_closest_marker("always"):
            item.add_marker(pytest.mark.slow)
        if seconds > _EXHAUSTIVE and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.exhaustive)
    if share := config.getoption("share"):
        place, shares = map(int, share.split("/"))
        others = [i for i in items if zlib.crc32(i.nodeid.encode()) % shares != place]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    if X64:
        alone = [
            i for i in items if {"x64", "everywhere_x64"} & set(getattr(i, "fixturenames", ()))
        ]
        config.hook.pytest_deselected(items=alone)
        items[:] = [item for item in items if item not in alone]


def _cpu_seconds():
    """Of this process and of those that it started and that ended."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_began] = _cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("seconds", _cpu_seconds() - item.stash[_began]))
    return report


def pytest_runtest_logreport(report):
    _durations.update(
        (report.nodeid, value) for name, value in report.user_properties if name == "seconds"
    )


def false_alarms(config):
    """Number and summed levels of the statistical checks of this process and of its workers."""
    statistics = sys.modules.get("dpjax.testing._statistics")
    own = statistics.false_alarms() if statistics else (0, 0.0)
    counts, levels = zip(own, *config.stash[_of_workers], strict=True)
    return sum(counts), sum(levels)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    """A worker of xdist is done."""
    if told := getattr(node, "workeroutput", {}).get("false_alarms"):
        node.config.stash[_of_workers].append(tuple(told))


def pytest_sessionfinish(session):
    count, level = false_alarms(session.config)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["false_alarms"] = (count, level)
    elif level > FALSE_ALARMS_ALLOWED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    worker = hasattr(session.config, "workeroutput")
    if session.config.getoption("write_durations") and not worker:
        known = json.loads(DURATIONS.read_text()) | _durations
        known = {name: round(t, 1) for name, t in sorted(known.items()) if t > _KEPT}
        DURATIONS.write_text(json.dumps(known, indent=0) + "\n")


def pytest_terminal_summary(terminalreporter, config):
    count, level = false_alarms(config)
    if count:
        terminalreporter.write_line(
            f"statistical checks: {count}, false alarms below {level:.2g} in all, were seeds to "
            f"change (allowed: {FALSE_ALARMS_ALLOWED:g})",
            red=level > FALSE_ALARMS_ALLOWED,
        )
    from tests.harness import digests

    if names := digests.missing():
        terminalreporter.write_line(f"without a digest: {', '.join(names)}", yellow=True)


@pytest.fixture(autouse=True)
def _fixed_seed():
    """NumPy's global generator, which nothing should use, is at least the same in every test."""
    np.random.seed(0)  # noqa: NPY002


@pytest.fixture
def unrounded_steps(monkeypatch):
    """Steps with correlated noise as real numbers: rounding them is post-processing."""
    monkeypatch.setattr(_strategy, "to_grid", lambda values, grid: values)


@pytest.fixture
def elsewhere(monkeypatch):
    """What is written for other devices than a CPU, run here."""

    def default(*arguments, default, **_):
        return default(*arguments)

    monkeypatch.setattr(jax.lax, "platform_dependent", default)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")


@pytest.fixture
def exact_products():
    """For losses of a test's own, whose products an accelerator rounds as a caller's."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def key():
    """A fresh typed key, the same in every test."""
    return jax.random.key(0)


@pytest.fixture
def rng():
    """A NumPy generator, the same in every test."""
    return np.random.default_rng(0)


@pytest.fixture
def x64():
    """Double precision within one test, where an oracle is exact."""
    if hasattr(jax, "enable_x64"):
        with jax.enable_x64(True):
            yield
    else:  # before jax 0.8
        from jax.experimental import enable_x64

        with enable_x64():
            yield


@pytest.fixture
def everywhere_x64():
    """The same in all threads, such as those that call back into Python."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)
