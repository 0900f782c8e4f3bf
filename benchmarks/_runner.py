"""What every study shares: the record of machine and versions, timing, files."""

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "dpjax",
    "jax",
    "jaxlib",
    "optax",
    "numpy",
    "dp-accounting",
    "jax-privacy",
    "opacus",
    "diffprivlib",
    "mbi",
)


def environment() -> dict[str, Any]:
    """The machine and the versions that a result was measured with."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "devices": [d.device_kind for d in jax.devices()],
        "x64": bool(jax.config.jax_enable_x64),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def interleaved(
    calls: dict[str, Callable[[], Any]], *, repeats: int, warmup: int = 2
) -> dict[str, dict[str, float]]:
    """Times calls in turn, A B C A B C ..., so that a drift of the machine hits all alike.

    Returns, for each call, seconds: median, lower and upper quartile, and the first call's
    (compilation included).
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    first = {}
    for name, call in calls.items():
        first[name] = _seconds(call)
        for _ in range(warmup - 1):
            _seconds(call)
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(_seconds(call))
    return {
        name: {
            "median": statistics.median(values),
            "lower_quartile": statistics.quantiles(values, n=4)[0],
            "upper_quartile": statistics.quantiles(values, n=4)[2],
            "first_call": first[name],
            "repeats": repeats,
        }
        for name, values in seconds.items()
    }


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start


def save(study: str, result: dict[str, Any], *, fast: bool, folder: Path = RESULTS) -> Path:
    """Writes `study.json` (or `study.fast.json`, which is not kept under version control)."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{study}.fast.json" if fast else f"{study}.json")
    record = {"study": study, "fast": fast, "environment": environment(), **result}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def load(study: str, folder: Path = RESULTS) -> dict[str, Any]:
    """A committed result."""
    return json.loads((folder / f"{study}.json").read_text())
