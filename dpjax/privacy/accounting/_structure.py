"""Events as nested values: a key to compare and hash them, and one flat normal form."""

import math
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.core._checks import check_int, check_nonnegative, is_traced
from dpjax.privacy.accounting._multipliers import effective_noise_multiplier

_NOISE_FIELDS = (
    "noise_multiplier",
    "noise_parameter",
    "standard_deviation",
    "rho",
    "xi",
    "epsilon",
)


def event_fields(event: dpe.DpEvent) -> dict[str, Any]:
    """The fields of an event by name, in the order of its constructor."""
    return {name: getattr(event, name) for name in type(event).__match_args__}


def with_inner(event: Any, inner: dpe.DpEvent) -> dpe.DpEvent:
    """The same event of another inner event."""
    return type(event)(**event_fields(event) | {"event": inner})


def event_key(value: Any) -> Hashable:
    """A hashable stand-in for an event: equal for events with equal fields, lists included."""
    if is_traced(value):
        raise TypeError(
            f"a privacy event holds a traced value ({value}): events are made on the host, so make "
            "it outside jit and vmap, from static fields"
        )
    if isinstance(value, dpe.DpEvent):
        return (type(value).__name__, *map(event_key, event_fields(value).values()))
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, list | tuple):
        return tuple(event_key(item) for item in value)
    if hasattr(value, "tolist"):
        return event_key(value.tolist())
    return value


def flatten(event: dpe.DpEvent) -> list[tuple[dpe.DpEvent, int]]:
    """The event as a list of (part, count), with nesting, no-ops and equal parts gone.

    Gaussians on the same records become one; a sampling rate of 0 or 1 disappears; several
    releases from one Poisson batch become `PoissonSampled(rate, Composed([Laplace..., Gaussian]))`;
    whatever has no noise becomes one `NonPrivateDpEvent`.
    """
    parts: dict[Hashable, tuple[dpe.DpEvent, int]] = {}
    for part, count in _walk(event, 1):
        key = event_key(part)
        parts[key] = (part, count + parts.get(key, (part, 0))[1])
    return _merge_gaussians(parts.values())


def unflatten(parts: Iterable[tuple[dpe.DpEvent, int]]) -> dpe.DpEvent:
    """One event out of (part, count) pairs."""
    events = [part if count == 1 else dpe.SelfComposedDpEvent(part, count) for part, count in parts]
    return events[0] if len(events) == 1 else dpe.ComposedDpEvent(events)


def _merge_gaussians(
    parts: Iterable[tuple[dpe.DpEvent, int]],
) -> list[tuple[dpe.DpEvent, int]]:
    rest, multipliers = [], []
    for part, count in parts:
        if isinstance(part, dpe.GaussianDpEvent):
            multipliers.append(float(part.noise_multiplier) / math.sqrt(count))
        else:
            rest.append((part, count))
    if multipliers:
        rest.append((dpe.GaussianDpEvent(effective_noise_multiplier(*multipliers)), 1))
    return rest


def _walk(event: dpe.DpEvent, count: int) -> list[tuple[dpe.DpEvent, int]]:
    if not isinstance(event, dpe.DpEvent):
        raise TypeError(f"event must be a dp_accounting.DpEvent, got {type(event).__name__}")
    if isinstance(event, dpe.NoOpDpEvent) or count == 0:
        return []
    if isinstance(event, dpe.NonPrivateDpEvent):
        return [(event, 1)]
    if isinstance(event, dpe.SelfComposedDpEvent):
        check_int("count", event.count, minimum=0)
        return _walk(event.event, count * int(event.count))
    if isinstance(event, dpe.ComposedDpEvent):
        return [part for inner in event.events for part in _walk(inner, count)]
    if isinstance(event, dpe.PoissonSampledDpEvent):
        return _walk_poisson(event, count)
    return _walk_leaf(event, count)


def _walk_poisson(event: dpe.PoissonSampledDpEvent, count: int) -> list[tuple[dpe.DpEvent, int]]:
    rate = _sampling_probability(event.sampling_probability)
    inner = flatten(event.event)
    if rate == 0 or not inner:
        return []
    if rate == 1:
        return [(part, count * times) for part, times in inner]
    if any(isinstance(part, dpe.NonPrivateDpEvent) for part, _ in inner):
        return [(dpe.NonPrivateDpEvent(), 1)]
    kinds = dpe.GaussianDpEvent | dpe.LaplaceDpEvent
    if all(isinstance(part, kinds) for part, _ in inner):
        # one batch, all its releases, the Gaussian (merged) last
        inner = [(part, 1) for part, times in inner for _ in range(times)]
        inner.sort(key=lambda item: isinstance(item[0], dpe.GaussianDpEvent))
    return [(dpe.PoissonSampledDpEvent(rate, unflatten(inner)), count)]


def _walk_leaf(event: dpe.DpEvent, count: int) -> list[tuple[dpe.DpEvent, int]]:
    for name in _NOISE_FIELDS:
        value = getattr(event, name, 0.0)
        if not value >= 0:
            raise ValueError(f"{name} of {event} must be >= 0, got {value!r}")
    if isinstance(event, dpe.TruncatedSubsampledGaussianDpEvent):
        rate = _sampling_probability(event.sampling_probability)
        if 0 in (rate, event.truncated_batch_size, event.dataset_size):
            return []
    if isinstance(event, dpe.RandomizedResponseDpEvent):
        if event.num_buckets == 1:
            return []
        if event.noise_parameter > 1:
            raise ValueError(f"noise_parameter must lie in [0, 1], got {event.noise_parameter!r}")
    if isinstance(event, dpe.MixtureOfGaussiansDpEvent) and not np.any(event.sensitivities):
        return []
    if isinstance(event, dpe.ZCDpEvent):
        if math.isinf(event.rho) or math.isinf(event.xi):
            return [(dpe.NonPrivateDpEvent(), 1)]
        return [(event, count)] if event.rho + event.xi > 0 else []
    if isinstance(event, dpe.DiscreteLaplaceDpEvent):  # the one whose noise falls as it grows
        if not 0 < event.noise_parameter < math.inf:
            raise ValueError(f"noise_parameter of {event} must be finite and > 0")
        return [(event, count)]
    noise = [getattr(event, name) for name in _NOISE_FIELDS if hasattr(event, name)]
    if noise and noise[0] == 0:
        return [(dpe.NonPrivateDpEvent(), 1)]
    if noise and math.isinf(noise[0]):
        return []
    if isinstance(event, dpe.GaussianDpEvent | dpe.LaplaceDpEvent):
        return [(type(event)(float(event.noise_multiplier)), count)]
    if not hasattr(event, "event"):
        return [(event, count)]
    inner = flatten(event.event)  # sampled or repeated in a way that stays as it is
    if any(isinstance(part, dpe.NonPrivateDpEvent) for part, _ in inner):
        return [(dpe.NonPrivateDpEvent(), 1)]
    return [(with_inner(event, unflatten(inner)), count)] if inner else []


def _sampling_probability(rate: float) -> float:
    check_nonnegative("sampling_probability", rate)
    if rate > 1:
        raise ValueError(f"sampling_probability must lie in [0, 1], got {rate!r}")
    return float(rate)
