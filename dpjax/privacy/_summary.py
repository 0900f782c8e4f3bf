"""Events and epsilons in a few words, for reprs."""

import decimal
import math
from collections.abc import Callable, Sequence
from typing import Any

from dp_accounting import dp_event as dpe

from dpjax.privacy.accounting._structure import event_fields, flatten

_PRECISION = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
_MOST_PARTS = 4  # each may take the accountant a quarter of a second
_MOST_ELEMENTS = 4


def epsilon_summary(
    epsilon: Callable[[float], float], event: dpe.DpEvent, deltas: Sequence[float]
) -> str:
    """Epsilon at some deltas, rounded up to four digits; says so where it is not known. Total.

    Guarantee: none is given; nothing is released.

    Args:
      epsilon: Gives it at a delta.
      event: Whose epsilon it is; with many different parts it is not computed.
      deltas: At least one.

    Returns:
      A line.
    """
    try:
        if len(flatten(event)) > _MOST_PARTS:
            return "epsilon takes long to compute: ask .epsilon(delta)"
        values = [epsilon(delta) for delta in deltas]
    except Exception as error:  # a repr must not raise
        return f"epsilon not known: {type(error).__name__}"
    shown = [
        f"{_rounded_up(value)} at delta {delta:g}"
        for value, delta in zip(values, deltas, strict=True)
    ]
    private = "" if min(values) < math.inf else " (not private)"
    return f"epsilon {', '.join(shown)}{private}"


def event_summary(event: Any) -> str:
    """An event's structure and numbers, without class suffixes and field names, on one line."""
    if isinstance(event, dpe.SelfComposedDpEvent):
        return f"{event.count} x {event_summary(event.event)}"
    if isinstance(event, dpe.DpEvent):
        inner = ", ".join(map(event_summary, event_fields(event).values()))
        return f"{type(event).__name__.removesuffix('DpEvent')}({inner})"
    if isinstance(event, Sequence) and not isinstance(event, str):
        shown = [event_summary(each) for each in event[:_MOST_ELEMENTS]]
        return ", ".join(shown + [f"... {len(event)} in all"] * (len(event) > _MOST_ELEMENTS))
    return f"{event:.4g}" if isinstance(event, float) else str(event)


def _rounded_up(epsilon: float) -> str:
    return "inf" if epsilon == math.inf else str(_PRECISION.create_decimal_from_float(epsilon))
