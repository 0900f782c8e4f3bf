"""Noise against the law that it claims, and the law against the event."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from dp_accounting.dp_event import DpEvent

from dpjax.privacy import Guarantee
from dpjax.testing._statistics import check_scale

_EPSILONS = (0.1, 1.0)
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5  # a law may be a quadrature


def check_noise(draws: np.ndarray, law: Any, event: DpEvent, change: float, name: str) -> None:
    """Raises AssertionError unless draws follow a law whose scale is that of the event.

    Kolmogorov-Smirnov, with the power half of `check_scale`. Then the law and the law shifted by
    `change` must be no further apart than the event claims: by the best threshold, which for a
    log-concave law is the best of all tests.

    Args:
      draws: Independent draws of a coordinate, `[n]`; integers for a law on the integers.
      law: Frozen distribution, or a distribution function.
      event: The event claimed.
      change: How far a record moves the coordinate.
      name: Shown in messages.

    Raises:
      AssertionError: If draws and law, or law and event, do not agree.
    """
    cdf = getattr(law, "cdf", law)
    values, smooth = draws.astype(np.float64), cdf
    if np.issubdtype(draws.dtype, np.integer):
        smooth = _spread_over_cells(cdf)
        values = values + np.random.default_rng(0).uniform(size=values.size)
    check_scale(values, lambda scale: lambda x: smooth(x / scale), 1.0, name=f"{name}: noise")
    guarantee = Guarantee(event)
    cuts = np.concatenate([draws, draws + change]).astype(np.float64)
    below, shifted = cdf(cuts), cdf(cuts - change)
    for epsilon in _EPSILONS:
        growth = math.exp(epsilon)
        found = float(
            max(np.max(below - growth * shifted), np.max((1 - shifted) - growth * (1 - below)))
        )
        claimed = guarantee.delta(epsilon)
        if found > claimed * (1 + _RELATIVE) + _ABSOLUTE:
            raise AssertionError(
                f"{name}: the event claims delta({epsilon}) = {claimed:.6g}, but noise of this law "
                f"gives {found:.6g} for a change by {change:g}: {event}"
            )


def _spread_over_cells(cdf: Callable[..., Any]) -> Callable[..., Any]:
    """The distribution function of an integer plus a uniform number in [0, 1)."""

    def spread(x: np.ndarray) -> Any:
        whole = np.floor(x)
        before = cdf(whole - 1)
        return before + (x - whole) * (cdf(whole) - before)

    return spread
