"""Guarantees as JSON values and back: only known events are built."""

import inspect
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe

from dpjax.privacy._guarantee import Guarantee
from dpjax.privacy.accounting._structure import PureZCDpEvent, event_fields

Json: TypeAlias = Any
"""A nest of dicts, lists, strings, numbers and None."""

_EVENTS = {
    name: kind
    for name, kind in inspect.getmembers(dpe, inspect.isclass)
    if issubclass(kind, dpe.DpEvent) and kind.__module__ == dpe.__name__
} | {PureZCDpEvent.__name__: PureZCDpEvent}


def guarantee_to_json(guarantee: Guarantee) -> dict[str, Json]:
    """The event and failure probability; the relation is the ledger's."""
    return {name: _to_json(getattr(guarantee, name)) for name in ("event", "failure_probability")}


def guarantee_from_json(value: Mapping[str, Json], relation: NeighboringRelation) -> Guarantee:
    """The inverse: equal to what was written, floats to the last bit.

    Raises:
        ValueError: If the value is nothing that `guarantee_to_json` writes.
    """
    try:
        event = _from_json(value["event"])
        return Guarantee(event, relation, _from_json(value["failure_probability"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no guarantee: {value!r} ({error})") from error


def _to_json(value: object) -> Json:
    if isinstance(value, dpe.DpEvent):
        name = type(value).__name__
        if _EVENTS.get(name) is not type(value):
            raise TypeError(f"event must be one of dp_accounting to be stored, got {type(value)}")
        fields = {field: _to_json(entry) for field, entry in event_fields(value).items()}
        return {"class": name, **fields}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [_to_json(entry) for entry in value]
    if isinstance(value, float):  # JSON has no infinity; repr reads back to the last bit
        return float(value) if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, int | str) or value is None:
        return value
    raise TypeError(f"a field of an event cannot be stored: {value!r}")


def _from_json(value: Json) -> Any:
    if isinstance(value, list):
        return [_from_json(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"float"}:
        return float(value["float"])
    if value.get("class") not in _EVENTS:
        raise ValueError(f"no event of dp_accounting: {value.get('class')!r}")
    fields = {name: _from_json(entry) for name, entry in value.items() if name != "class"}
    return _EVENTS[value["class"]](**fields)
