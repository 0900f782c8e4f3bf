"""Checks of fields that the constructors of solvers have in common."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from dpjax.core import check_choice, check_int, check_nonnegative, check_positive
from dpjax.sampling import FullBatch

RELATIONS = ("replace_one", "add_or_remove_one", "replace_special")


def check_values(
    solver: Any,
    *,
    positive: Iterable[str] = (),
    nonnegative: Iterable[str] = (),
    counts: Iterable[str] = (),
    **choices: Sequence[object],
) -> None:
    """Raises unless the named fields of a solver hold what they may.

    Args:
      solver: A dataclass with these fields.
      positive: Fields of numbers > 0; None passes.
      nonnegative: Fields of numbers >= 0; None passes.
      counts: Fields of integers >= 1; None passes where it is the default.
      **choices: What other fields may be, by field.

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If a value is no number, or a count no integer.
    """
    for name in positive:
        check_positive(name, getattr(solver, name))
    for name in nonnegative:
        check_nonnegative(name, getattr(solver, name))
    unset = {field.name: field.default for field in dataclasses.fields(solver)}
    for name in counts:
        value = getattr(solver, name)
        if value is not None or unset[name] is not None:
            check_int(name, value, minimum=1)
    for name, allowed in choices.items():
        check_choice(name, getattr(solver, name), allowed)


def check_once(sampler: object) -> None:
    """Raises TypeError unless a step of all records is the only one."""
    if not isinstance(sampler, FullBatch) or sampler.steps != 1:
        raise TypeError(f"sampler must be FullBatch(1), since noise is drawn once, got {sampler!r}")
