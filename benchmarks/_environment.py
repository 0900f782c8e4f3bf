"""What a result was measured with: machine, load, versions, settings, commit."""

import datetime
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

PACKAGES = (
    "dpjax",
    "jax",
    "jaxlib",
    "optax",
    "numpy",
    "dp-accounting",
    "jax-privacy",
    "opacus",
    "torch",
    "diffprivlib",
    "scikit-learn",
    "mbi",
)
ROOT = Path(__file__).parents[1]


def environment() -> dict[str, Any]:
    """The machine, its load, the versions and the settings at this moment; no path, no host."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": _usable_cores(),
        "memory_bytes": _memory(),
        "load_average": _load(),
        "system": platform.system(),
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "devices": [d.device_kind for d in jax.devices()],
        "x64": bool(jax.config.jax_enable_x64),
        "matmul_precision": jax.config.jax_default_matmul_precision or "default",
        "prng_impl": str(jax.config.jax_default_prng_impl),
        "threefry_partitionable": bool(getattr(jax.config, "jax_threefry_partitionable", True)),
        "versions": {package: _version(package) for package in PACKAGES},
    }


def commit(root: Path = ROOT) -> str | None:
    """Short hash of the checkout, "+dirty" where code differs from it; DPJAX_COMMIT if set."""
    if told := os.environ.get("DPJAX_COMMIT"):  # by who took a copy elsewhere
        return told
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD").strip()
        # results and pages are what a run writes: they do not change what it measures
        changed = _git(root, "status", "--porcelain", "--", ".", ":!benchmarks/results", ":!*.md")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+dirty" if changed.strip() else "")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def peak_memory() -> dict[str, int | None]:
    """Peak bytes so far: of this process, and of the first device where it keeps count."""
    unit = 1 if sys.platform == "darwin" else 1024
    try:
        device = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    except (AttributeError, RuntimeError):  # a backend without such counts
        device = None
    return {
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
        "device_peak_bytes": device,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _usable_cores() -> int | None:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _load() -> list[float] | None:
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except OSError:
        return None
