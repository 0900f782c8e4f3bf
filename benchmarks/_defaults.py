"""Defaults that a committed run was made with, and whether they are still the present ones.

A study that measures errors names some of its solvers in `defaults()`, by public numbers alone; the
runner stores their fields beside the result. A test compares them with what the code resolves to
now. Studies that measure times and bytes set sizes by hand and have none.
"""

import dataclasses
import enum
import importlib
import json
import math
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import _runner

# Studies whose committed run is older than the present defaults, or that have none: run them again
# (`python -m benchmarks run STUDY`), and take them off. The page of results names them.
RUN_AGAIN: tuple[str, ...] = ()
TOLERANCE = 1e-3  # relative: other versions calibrate noise to within less than this
_DIGITS = 6
# change no released number's law
_OF_EXECUTION = {"capacity", "method", "microbatch_size", "sharding", "shards"}
# fields newer than some runs, at the values that leave a solver as it was
_NEWER = {
    "looks": None,
    "narrow_looks": 0,
    "rate_power": 1,
    "clip_floor": 0.0,
    "length_bound": None,
    "proportional_gain": 0.0,
    "swing_bound": None,
    "slope_share": None,
    "gram_stddev": None,
    "metric_longer": 4,
    "centre_range": None,
    "centres": 4096,
    "adaptive": False,
}
_SHOWN = 4  # entries of an array that are stored one by one


def resolved(value: Any) -> Any:
    """A solver's public fields as JSON: classes and functions by name, numbers to six digits."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value) if not f.name.startswith("_")]
        fields = {n: resolved(getattr(value, n)) for n in names if n not in _OF_EXECUTION}
        same = [n for n, neutral in _NEWER.items() if n in fields and fields[n] == neutral]
        kept = {n: each for n, each in fields.items() if n not in same}
        return {"class": type(value).__name__, **kept}
    if isinstance(value, dict):
        return {str(name): resolved(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return _array(np.asarray(value)) if _numbers(value) else [resolved(v) for v in value]
    if isinstance(value, int | float | np.generic | np.ndarray | jax.Array):
        return _array(np.asarray(value))
    return getattr(value, "__name__", type(value).__name__)


def of(study: str) -> dict[str, Any] | None:
    """The present defaults of a study's solvers by cell; None for a study that names none."""
    module = importlib.import_module(f"benchmarks.{study}")
    if not hasattr(module, "defaults"):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of settings that the study takes on purpose
        return {cell: resolved(solver) for cell, solver in module.defaults().items()}


def stored(study: str) -> dict[str, Any] | None:
    """The defaults that the committed run was made with; None where it has none."""
    if not (_runner.RESULTS / f"{study}.json").exists():
        return None
    return _runner.load(study).get("defaults")


def store(study: str) -> Path:
    """Adds to a committed run the present defaults of cells of which it has none.

    Raises:
      ValueError: the study names no solver, has no committed run, is to be run again, or was run
        with other defaults.
    """
    now, path = of(study), _runner.RESULTS / f"{study}.json"
    if now is None or not path.exists():
        raise ValueError(f"{study} names no solver, or has no committed run")
    then = stored(study) or {}
    differing = differences(then, {cell: now[cell] for cell in then if cell in now})
    if differing or study in RUN_AGAIN:
        why = differing[0] if differing else "it is named in RUN_AGAIN"
        raise ValueError(f"{study} must be run again: {why}")
    path.write_text(json.dumps(_runner.load(study) | {"defaults": now}, indent=1) + "\n")
    return path


def differences(then: Any, now: Any, place: str = "") -> list[str]:
    """What differs beyond the tolerance, a line each."""
    if isinstance(then, dict) and isinstance(now, dict):
        found = []
        for name in dict.fromkeys([*then, *now]):
            inner = f"{place}, {name}" if place else name
            if name in then and name in now:
                found += differences(then[name], now[name], inner)
            else:
                found.append(f"{inner}: only in the {'run' if name in then else 'code'}")
        return found
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [d for i, pair in pairs for d in differences(*pair, f"{place}[{i}]")]
    if _number(then) and _number(now) and math.isclose(then, now, rel_tol=TOLERANCE):
        return []
    same = then == now and isinstance(then, bool) == isinstance(now, bool)
    return [] if same else [f"{place}: {then} in the run, {now} now"]


def sentence() -> str:
    """What the page of results says of the studies to be run again; empty where there are none."""
    have = {study: (_runner.RESULTS / f"{study}.json").exists() for study in RUN_AGAIN}
    older = ", ".join(f"`{study}`" for study in have if have[study])
    none = ", ".join(f"`{study}`" for study in have if not have[study])
    parts = [f"Run before the present defaults, and due again: {older}."] if older else []
    return " ".join([*parts, *([f"Without a committed run: {none}."] if none else [])])


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(values: Any) -> bool:
    return len(values) > 0 and all(_number(v) for v in values)


def _array(values: np.ndarray) -> Any:
    if values.dtype == object or values.dtype.kind not in "biuf":
        return str(values.dtype)
    if values.ndim == 0:
        return _rounded(values.item())
    if values.size <= _SHOWN:
        return [_rounded(v) for v in values.ravel().tolist()]
    ends = {
        "first": values.ravel()[0],
        "last": values.ravel()[-1],
        "mean": values.mean(dtype=float),
    }
    return {"shape": list(values.shape), **{k: _rounded(v.item()) for k, v in ends.items()}}


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else str(value)
