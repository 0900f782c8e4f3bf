"""What every study shares: timing apart from compiling, memory, files.

A study's `run(*, fast, data)` returns plain JSON values; `save` adds to them what they were
measured with. Times come from `measure` (JAX functions, compiled ahead of time) or `interleaved`
(any calls).
"""

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import jax

from benchmarks import _environment

RESULTS = Path(__file__).parent / "results"
QUARTILES = ("median", "lower_quartile", "upper_quartile")
# names a file: studies that run at once take it to time calls, and compile side by side
TURNS = "DPJAX_BENCHMARK_TURNS"


class Task(NamedTuple):
    """A function and what it is called with.

    Args:
      function: of arrays, compiled for `arguments`. What it closes over is a constant that XLA
        may fold: pass data as arguments. It must not donate them, they serve many calls.
      arguments: its arguments, pytrees of arrays and keys.
      divide: seconds are divided by it, such as a number of steps.
      host: the function is not JAX's: called as it is, without figures of compiling and memory.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    divide: float = 1.0
    host: bool = False


def measure(tasks: dict[str, Task], *, repeats: int, warmup: int = 2) -> dict[str, dict[str, Any]]:
    """Compiles each task by itself, then times the compiled ones in turn, A B C A B C ....

    Caches are cleared before each is traced, so that no task gains by what another left there. On
    an accelerator, whose host has cores to spare, programs compile side by side.

    Args:
      tasks: by name.
      repeats: timed calls of each.
      warmup: untimed calls of each before.

    Returns:
      For each task `median`, `lower_quartile` and `upper_quartile` of the seconds of a call (over
      `divide`), `repeats`, `trace_seconds` and `compile_seconds` (once; not divided), and bytes as
      the compiler counts them: `argument_bytes`, `output_bytes`, `temp_bytes`, and `peak_bytes`,
      which on CPU leaves out temporaries. None where there is no such figure.
    """
    traced = ((task, _traced(task)) for task in tasks.values())
    if jax.default_backend() == "cpu":
        compiled = [_compiled(*each) for each in traced]
    else:
        with ThreadPoolExecutor(_COMPILERS) as pool:
            compiled = [
                each.result() for each in [pool.submit(_compiled, *each) for each in traced]
            ]
    built = dict(zip(tasks, compiled, strict=True))
    calls = {
        name: lambda run=run, task=tasks[name]: run(*task.arguments)
        for name, (run, _) in built.items()
    }
    seconds = _rounds(calls, repeats=repeats, warmup=warmup)[1]
    return {
        name: {
            **quartiles([value / tasks[name].divide for value in values]),
            "repeats": repeats,
            **built[name][1],
        }
        for name, values in seconds.items()
    }


def interleaved(
    calls: dict[str, Callable[[], Any]], *, repeats: int, warmup: int = 2
) -> dict[str, dict[str, float]]:
    """Times calls in turn, A B C A B C ..., so that a drift of the machine hits all alike.

    Returns, for each call, seconds: median, lower and upper quartile, and the first call's
    (compilation included; `measure` has it apart).
    """
    first, seconds = _rounds(calls, repeats=repeats, warmup=warmup)
    return {
        name: {**quartiles(values), "first_call": first[name], "repeats": repeats}
        for name, values in seconds.items()
    }


def quartiles(values: list[float]) -> dict[str, float]:
    """Median and quartiles; of fewer than three values the least and the largest."""
    low, high = min(values), max(values)
    if len(values) > 2:
        low, _, high = statistics.quantiles(values, n=4)
    return dict(zip(QUARTILES, (statistics.median(values), low, high), strict=True))


def scaled(times: dict[str, Any], factor: float) -> dict[str, float]:
    """Median and quartiles in another unit."""
    return {name: times[name] * factor for name in QUARTILES}


def _rounds(
    calls: dict[str, Callable[[], Any]], *, repeats: int, warmup: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Seconds of each call's first run, and of its timed ones."""
    first = {}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with turn():
        for name, call in calls.items():
            first[name] = _seconds(call)
            for _ in range(warmup - 1):
                _seconds(call)
        for _ in range(repeats):
            for name, call in calls.items():
                seconds[name].append(_seconds(call))
    return first, seconds


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Waits until no other study times its calls."""
    if (path := os.environ.get(TURNS)) is None:
        yield
    else:
        with filelock.FileLock(path):
            yield


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def _traced(task: Task) -> tuple[Any, float]:
    """What to compile, and the seconds of tracing it."""
    if task.host:
        return None, 0.0
    jitted = task.function if hasattr(task.function, "lower") else jax.jit(task.function)
    jax.clear_caches()
    start = time.perf_counter()
    return jitted.lower(*task.arguments), time.perf_counter() - start


def _compiled(
    task: Task, traced: tuple[Any, float]
) -> tuple[Callable[..., Any], dict[str, float | int | None]]:
    """What to call, and what it took to make it."""
    if task.host:
        return task.function, dict.fromkeys(
            ("trace_seconds", "compile_seconds", *(f"{part}_bytes" for part in _PARTS))
        )
    lowered, seconds = traced
    start = time.perf_counter()
    compiled = lowered.compile()
    return compiled, {
        "trace_seconds": seconds,
        "compile_seconds": time.perf_counter() - start,
        **_bytes(compiled),
    }


_COMPILERS = 8
_PARTS = {
    "argument": "argument_size_in_bytes",
    "output": "output_size_in_bytes",
    "temp": "temp_size_in_bytes",
    "peak": "peak_memory_in_bytes",
}


def _bytes(compiled: Any) -> dict[str, int | None]:
    try:
        found = compiled.memory_analysis()
    except (NotImplementedError, RuntimeError):  # a backend that cannot tell
        found = None
    return {f"{part}_bytes": getattr(found, name, None) for part, name in _PARTS.items()}


def save(
    study: str,
    result: dict[str, Any],
    *,
    fast: bool,
    folder: Path = RESULTS,
    environment: dict[str, Any] | None = None,
    seconds: float | None = None,
    defaults: dict[str, Any] | None = None,
) -> Path:
    """Writes `study.json` (or `study.fast.json`, which is not kept under version control).

    Args:
      study: its name.
      result: what `run` gave.
      fast: whether it was a smoke run.
      folder: where to.
      environment: as it was before the run; None for now.
      seconds: of the whole run.
      defaults: what solvers it ran by default resolved to; see `_defaults`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{study}.fast.json" if fast else f"{study}.json")
    record = {
        "study": study,
        "fast": fast,
        "environment": _environment.environment() if environment is None else environment,
        "process": {"seconds": seconds, **_environment.peak_memory()},
        **result,
        **({} if defaults is None else {"defaults": defaults}),
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def load(study: str, folder: Path = RESULTS) -> dict[str, Any]:
    """A committed result."""
    return json.loads((folder / f"{study}.json").read_text())
