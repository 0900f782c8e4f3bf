"""Events and epsilons in a few words, for reprs."""

import decimal
import math
from collections.abc import Sequence

from dp_accounting import dp_event as dpe

from dpjax.privacy.accounting._structure import event_fields

_PRECISION = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
_MOST_ELEMENTS = 4


def event_summary(event: object) -> str:
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


def rounded_up(epsilon: float) -> str:
    """Four digits, never below."""
    return "inf" if epsilon == math.inf else str(_PRECISION.create_decimal_from_float(epsilon))
