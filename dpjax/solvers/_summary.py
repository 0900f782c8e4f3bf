"""Reprs of solvers, and of what they release in a step: a few lines, and no arrays."""

import dataclasses
import functools
import inspect
import textwrap
from typing import Any, TypeVar, get_args

import jax
import numpy as np

from dpjax.core import is_traced, optional, register_dataclass
from dpjax.core._moved import current_names
from dpjax.privacy import Budget, resolve_relation
from dpjax.privacy._guarantee import SHOWN_DELTA, epsilon_line
from dpjax.sampling import FullBatch

_Class = TypeVar("_Class", bound=type)
_WIDTH = 96
_MOST_NUMBERS = 4
_ELSEWHERE = {"sampler", "relation", "primal", "noise_multiplier", "clip_norm", "batch_size"}


def register_solver(cls: _Class) -> _Class:
    """Registers a dataclass as a pytree, with a repr of a few lines, `summary`, as of its info.

    What `for_budget` makes, and its guarantee, show epsilon at the budget's delta.

    Args:
      cls: A solver with `guarantee`, `sampler` and `relation`, or a `primal` that has them.

    Returns:
      The class.
    """
    cls.__repr__ = summary  # type: ignore[assignment]
    for info in get_args(cls.step.__annotations__.get("return"))[1:]:  # type: ignore[attr-defined]
        if hasattr(info, "_fields"):
            info.__repr__ = _released
    made, guarantee = cls.for_budget.__func__, cls.guarantee  # type: ignore[attr-defined]
    parameters = inspect.signature(made)

    @functools.wraps(made)
    def for_budget(*args: Any, **fields: Any) -> Any:
        fields = current_names(cls, fields)
        given = parameters.bind(*args, **fields).arguments
        if isinstance(given["problem"], int | float | str | tuple | list | dict | Budget | None):
            got = type(given["problem"]).__name__
            raise TypeError(
                "problem must be a problem such as those of dpjax.problems, got "
                f"{got}: the arguments are problem, num_records, budget"
            )
        check_single_constants(given["problem"])
        solver = made(*args, **fields)
        delta = given["budget"].delta
        # for reprs alone: no field, and gone after a change of one
        object.__setattr__(solver, SHOWN_DELTA, delta)
        return solver

    @functools.wraps(guarantee)
    def with_delta(solver: Any) -> Any:
        result = guarantee(solver)
        if SHOWN_DELTA in vars(solver):
            object.__setattr__(result, SHOWN_DELTA, vars(solver)[SHOWN_DELTA])
        return result

    cls.for_budget, cls.guarantee = classmethod(for_budget), with_delta  # type: ignore[attr-defined]
    return register_dataclass(cls)


def check_single_constants(problem: object) -> None:
    """Raises ValueError where a problem has several values of a constant: a plan is for one."""
    for name in ("lipschitz", "smoothness", "radius"):
        value = optional(problem, name)
        if isinstance(value, jax.Array | np.ndarray) and value.ndim:
            raise ValueError(
                f"{name} must be one number, got shape {list(value.shape)}: make a solver for each "
                "problem, and sweep over the fields of one solver"
            )


def summary(solver: Any) -> str:
    """What a solver promises and runs, from its *public* fields; for any values of them.

    The noise is that in a coordinate of the mean gradient of a batch, over the clip norm. Of
    stacked or traced fields, whose guarantee is not one, their shapes are shown.

    Args:
      solver: Made by `register_solver`.

    Returns:
      At most eight lines.
    """
    descent = getattr(solver, "primal", solver)
    relation = resolve_relation(descent.relation).name.lower()
    head = f"{type(solver).__name__}(relation={relation!r})"
    lines = [head, _privacy(solver), _batches(descent), *_noise(descent), *_others(solver)]
    return "\n  ".join(lines)


def _privacy(solver: Any) -> str:
    if is_traced(solver):
        return "epsilon not known: traced by a transformation"
    try:
        return epsilon_line(solver.guarantee())
    except ValueError:  # as of stacked fields
        return "epsilon not known of stacked fields: ask guarantee() of each run"
    except Exception as error:  # a repr must not raise
        return f"epsilon not known: {type(error).__name__}"


def _batches(descent: Any) -> str:
    sampler = descent.sampler
    kind, steps = type(sampler).__name__, sampler.steps
    records = getattr(sampler, "num_records", None)
    if isinstance(sampler, FullBatch):
        size = "batches of all records"
    elif records is not None:
        expected = _number(records * sampler.participation_rate(records))
        size = f"expected batch {expected} of {records} records"
    else:
        size = f"batch {_number(getattr(sampler, 'batch_size', getattr(descent, 'batch_size', 0)))}"
    return f"{steps} step{'s' * (steps != 1)}, {size} ({kind})"


def _noise(descent: Any) -> list[str]:
    """Of solvers that add it to sums of clipped gradients, or of differences of values."""
    names = ("noise_multiplier", "batch_size", "clip_norm")
    z, m, clip_norm = (getattr(descent, name, None) for name in names)
    if z is None or m is None or clip_norm is None:
        return []
    unit = " lengths" if getattr(descent, "looks", None) is not None else ""
    line = f"noise {_number(z)} x clip norm {_number(clip_norm)}{unit} in a sum"
    if np.shape(z) != () or np.shape(m) != () or is_traced(z, m):
        return [line]
    strategy = getattr(descent, "noise", None)
    first = 1.0 if strategy is None else strategy.prefix_stddev()[0]
    which = "each" if strategy is None else "the first"
    try:
        share = _number(first * float(z) / float(m))
    except TypeError:  # objects that stand for leaves
        return [line]
    return [f"{line}; {share} x clip norm in a coordinate of {which} mean of {_number(m)}"]


def _others(solver: Any) -> list[str]:
    """Fields that have no default, or another value."""
    shown = []
    for holder in (solver, getattr(solver, "primal", None)):
        for field in dataclasses.fields(holder) if holder is not None else ():
            value = getattr(holder, field.name)
            if field.name not in _ELSEWHERE and not _same(value, field.default):
                shown.append(f"{field.name}={_shown(value)}")
    return textwrap.wrap(", ".join(shown), _WIDTH, break_long_words=False)


def _same(value: object, default: object) -> bool:
    plain = value if isinstance(value, tuple) else (value,)  # arrays compare by entry
    return value is default or (
        all(isinstance(each, int | float | str) for each in plain) and bool(value == default)
    )


def _shown(value: Any) -> str:
    """A value in a few characters: arrays by shape, objects by class."""
    if value is None or isinstance(value, str | bool):
        return repr(value)
    if type(value) is tuple and len(value) <= _MOST_NUMBERS:
        return f"({', '.join(map(_shown, value))})"
    if type(value) in (tuple, list):
        return f"{type(value).__name__} of {len(value)}"
    return _number(value)


def _released(info: tuple[object, ...]) -> str:
    """A line for each leaf of an info: its value, or what its entries are."""
    leaves = jax.tree_util.tree_leaves_with_path(info)
    lines = [f"{jax.tree_util.keystr(path)[1:]}: {_entries(leaf)}" for path, leaf in leaves]
    return "\n  ".join([type(info).__name__, *lines])


def _entries(leaf: jax.Array) -> str:
    if is_traced(leaf) or not (np.shape(leaf) and np.size(leaf)):
        return _number(leaf)
    try:
        values = np.asarray(leaf, float)
    except (TypeError, RuntimeError):  # shapes alone; an array that is gone
        return _number(leaf)
    first, last, least, most = values.flat[0], values.flat[-1], values.min(), values.max()
    shape = f"{leaf.dtype} {list(values.shape)}"
    return f"{shape}, {first:.4g} ... {last:.4g}, from {least:.4g} to {most:.4g}"


def _number(value: Any) -> str:
    if is_traced(value):
        return f"traced {list(np.shape(value))}"
    if isinstance(value, jax.Array | np.ndarray) and np.shape(value):
        return f"array {list(np.shape(value))}"
    try:
        return f"{float(value):.4g}"
    except (TypeError, ValueError, RuntimeError):  # an object; an array that is gone
        return getattr(value, "__name__", type(value).__name__)
