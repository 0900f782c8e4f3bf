"""Helpers for settings as published."""

import importlib
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

from dpjax.privacy import Budget


def log_inverse_delta(budget: Budget) -> float:
    """log(1 / delta), which published settings are made of.

    Raises:
      ValueError: If delta is 0.
    """
    if budget.delta == 0:
        raise ValueError("delta must be > 0 with as_published, whose formulas need it, got 0.0")
    return math.log(1 / budget.delta)


def moved_setting(module: str, name: str, spelling: str, depth: int = 4) -> Callable[..., Any]:
    """What a spelling of 0.1 stands for in `dpjax.papers`, with a warning."""
    home = f"dpjax.papers.{module}"
    warnings.warn(
        f"{spelling} is {home}.{name} since 0.2: the old spelling goes in 0.3",
        DeprecationWarning,
        stacklevel=depth,
    )
    return operator.attrgetter(name)(importlib.import_module(home))
