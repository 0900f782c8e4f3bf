"""What events are made of, which accountant takes them, and their pure epsilon."""

import dataclasses
import math
from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

import attr
import jax
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax.core import check_between, check_int, check_nonnegative, check_probability, is_traced
from dpjax.privacy._budget import relation_factor

# a rate above which 1 - rate has too few digits for the library: as 1, which costs more
_ALL = 1 - 1e-10
_NOISES = ("noise_multiplier", "noise_parameter", "standard_deviation", "rho", "xi", "epsilon")

Parts: TypeAlias = list[tuple[dpe.DpEvent, int]]
"""Events and how often each is repeated."""
_REPLACE_ONE = NeighboringRelation.REPLACE_ONE
_SAMPLED = (dpe.SampledWithoutReplacementDpEvent, dpe.SampledWithReplacementDpEvent)


def effective_noise_multiplier(*multipliers: float) -> float:
    r"""The one Gaussian equal to several Gaussians on the same records.

    $z = (\sum_i z_i^{-2})^{-1/2}$

    Guarantee: exact, under any relation: stacking the releases, each divided by its noise,
    gives one Gaussian release of sensitivity $(\sum_i z_i^{-2})^{1/2}$.

    Args:
        multipliers: Noise multipliers (noise standard deviation / l2 sensitivity), each >= 0. One
            that is 0 gives 0 (no privacy); infinity stands for nothing released. *Public*.

    Returns:
        The effective noise multiplier.

    Raises:
        ValueError: If none is given, or one is negative or NaN.

    Example:
        >>> effective_noise_multiplier(1.0, 1.0)
        0.7071067811865475
    """
    if not multipliers:
        raise ValueError("effective_noise_multiplier needs at least 1 multiplier, got 0")
    for value in map(float, multipliers):
        if not value >= 0:
            raise ValueError(f"noise multiplier must be >= 0, got {value!r}")
    least = float(min(multipliers))
    if least == 0 or math.isinf(least):
        return least
    return least / math.sqrt(math.fsum((least / value) ** 2 for value in map(float, multipliers)))


def split_noise_multiplier(effective: float, histogram_share: float) -> tuple[float, float]:
    r"""The noise multipliers of two Gaussian releases of one batch that together cost `effective`.

    $z_h = z / \sqrt{\phi}, \quad z_g = z / \sqrt{1 - \phi}$

    Guarantee: $(z_h^{-2} + z_g^{-2})^{-1/2} = z$, exactly the cost of one release at z.

    Args:
        effective: Effective noise multiplier z >= 0. *Public*.
        histogram_share: Share phi in (0, 1) of the precision that the histogram gets. *Public*.

    Returns:
        The multipliers of the histogram and of the gradient.

    Raises:
        ValueError: If a value is outside its bound.
        TypeError: If one is no number.

    Example:
        >>> split_noise_multiplier(3.0, 0.5) == (3.0 * 2**0.5, 3.0 * 2**0.5)
        True
    """
    check_nonnegative("effective", effective)
    check_probability("histogram_share", histogram_share)
    histogram = effective / math.sqrt(histogram_share)
    gradient = effective / math.sqrt(1 - histogram_share)
    if effective > 0:  # rounding must not cost privacy
        shortfall = effective / effective_noise_multiplier(histogram, gradient)
        if shortfall > 1:
            return histogram * shortfall, gradient * shortfall
    return histogram, gradient


@dataclasses.dataclass(frozen=True)
class EventId:
    """An event under a relation, hashable and comparable whatever its fields hold."""

    event: dpe.DpEvent = dataclasses.field(compare=False)
    relation: NeighboringRelation
    _key: Hashable = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_key", event_key(self.event))


def event_fields(event: dpe.DpEvent) -> dict[str, Any]:
    """The fields of an event by name, in the order of its constructor."""
    return {name: getattr(event, name) for name in type(event).__match_args__}


def contains(event: dpe.DpEvent, *kinds: type[dpe.DpEvent]) -> bool:
    """Whether an event, or one inside of it, is of one of these classes."""
    fields = event_fields(event)
    inner = fields.get("events", [fields["event"]] if fields.get("event") else [])
    return isinstance(event, kinds) or any(contains(each, *kinds) for each in inner)


def is_sampled(event: dpe.DpEvent) -> bool:
    """Whether an event, or one inside of it, is of a sampled batch."""
    return contains(event, dpe.PoissonSampledDpEvent, dpe.SampledWithoutReplacementDpEvent)


def event_key(value: object) -> Hashable:
    """A hashable stand-in for an event: equal for events with equal fields, lists included."""
    if is_traced(value):
        raise TypeError(
            f"a privacy event holds a traced value ({value}): events are made on the host, so make "
            "it outside jit and vmap, from static fields"
        )
    if isinstance(value, dpe.DpEvent):
        return (type(value).__name__, *map(event_key, event_fields(value).values()))
    if isinstance(value, list | tuple):
        return tuple(event_key(item) for item in value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return event_key(value.tolist())
    return value


def at_sensitivity(event: dpe.DpEvent, relation: NeighboringRelation) -> dpe.DpEvent:
    """The event with the multipliers of its Gaussians relative to the relation's sensitivity.

    A noise multiplier is noise / *add-or-remove* sensitivity under every relation. The library's
    PLDs double the sensitivity under replace_one, its RDP does not.
    """
    match event:
        case dpe.GaussianDpEvent(noise_multiplier=noise):
            return dpe.GaussianDpEvent(noise / relation_factor(relation))
        case dpe.ComposedDpEvent(events=events):
            return dpe.ComposedDpEvent([at_sensitivity(inner, relation) for inner in events])
    inner = event_fields(event).get("event")
    return attr.evolve(event, event=at_sensitivity(inner, relation)) if inner else event


def flatten(event: dpe.DpEvent) -> Parts:
    """The event as a list of (part, count), with nesting, no-ops and equal parts gone.

    Gaussians on the same records become one; a sampling rate of 0 or 1 disappears; several
    releases from one Poisson batch become `PoissonSampled(rate, Composed([Laplace..., Gaussian]))`;
    whatever has no noise becomes one `NonPrivateDpEvent`.
    """
    parts: dict[Hashable, tuple[dpe.DpEvent, int]] = {}
    for part, count in _walk(event, 1):
        key = event_key(part)
        parts[key] = (part, count + parts.get(key, (part, 0))[1])
    rest, multipliers = [], []
    for part, count in parts.values():
        if isinstance(part, dpe.GaussianDpEvent):
            multipliers.append(float(part.noise_multiplier) / math.sqrt(count))
        else:
            rest.append((part, count))
    if multipliers:
        rest.append((dpe.GaussianDpEvent(effective_noise_multiplier(*multipliers)), 1))
    return rest


def unflatten(parts: Iterable[tuple[dpe.DpEvent, int]]) -> dpe.DpEvent:
    """One event out of (part, count) pairs."""
    events = [part if count == 1 else dpe.SelfComposedDpEvent(part, count) for part, count in parts]
    return events[0] if len(events) == 1 else dpe.ComposedDpEvent(events)


def _walk(event: dpe.DpEvent, count: int) -> Parts:
    match event:
        case dpe.NoOpDpEvent():
            return []
        case dpe.NonPrivateDpEvent():
            return [(event, 1)] if count else []
        case dpe.SelfComposedDpEvent(event=inner, count=times):
            check_int("count", times, minimum=0)
            return _walk(inner, count * int(times))
        case dpe.ComposedDpEvent(events=events):
            return [part for inner in events for part in _walk(inner, count)]
        case dpe.DpEvent():
            return _walk_leaf(event, count) if count else []
    raise TypeError(f"event must be a dp_accounting.DpEvent, got {type(event).__name__}")


def _walk_leaf(event: dpe.DpEvent, count: int) -> Parts:
    fields = event_fields(event)
    noise = {name: fields[name] for name in _NOISES if name in fields}
    for name, value in noise.items():
        if not value >= 0:
            raise ValueError(f"{name} of {event} must be >= 0, got {value!r}")
    match event:
        case dpe.PoissonSampledDpEvent(sampling_probability=rate):
            check_between("sampling_probability", rate, 0, 1)
            if rate == 0:
                return []
            if rate > _ALL:
                return [(part, count * times) for part, times in flatten(event.event)]
        case dpe.TruncatedSubsampledGaussianDpEvent(sampling_probability=rate):
            check_between("sampling_probability", rate, 0, 1)
            if 0 in (rate, event.truncated_batch_size, event.dataset_size):
                return []
        case dpe.RandomizedResponseDpEvent(noise_parameter=noisy, num_buckets=buckets):
            check_int("num_buckets", buckets, minimum=1)
            if buckets == 1:
                return []
            check_between("noise_parameter", noisy, 0, 1)
        case dpe.MixtureOfGaussiansDpEvent(sensitivities=sensitivities):
            if not np.any(sensitivities):
                return []
        case dpe.ZCDpEvent(rho=rho, xi=xi):
            if math.isinf(rho + xi):
                return [(dpe.NonPrivateDpEvent(), 1)]
            return [(event, count)] if rho + xi > 0 else []
        case dpe.DiscreteLaplaceDpEvent(noise_parameter=steep, sensitivity=sensitivity):
            if not 0 < steep < math.inf:  # falls as the noise grows
                raise ValueError(f"noise_parameter of {event} must be finite and > 0")
            check_int("sensitivity", sensitivity, minimum=1)
            return [(event, count)]
    first = next(iter(noise.values()), 1.0)
    if first == 0:
        return [(dpe.NonPrivateDpEvent(), 1)]
    if math.isinf(first):
        return []
    if isinstance(event, dpe.GaussianDpEvent | dpe.LaplaceDpEvent):
        return [(type(event)(float(event.noise_multiplier)), count)]
    if "event" not in fields:
        return [(event, count)]
    inner = flatten(event.event)  # sampled, or repeated in a way that stays as it is
    if any(isinstance(part, dpe.NonPrivateDpEvent) for part, _ in inner):
        return [(dpe.NonPrivateDpEvent(), 1)]
    if isinstance(event, dpe.PoissonSampledDpEvent):
        event = attr.evolve(event, sampling_probability=float(event.sampling_probability))
        kinds = dpe.GaussianDpEvent | dpe.LaplaceDpEvent
        if all(isinstance(part, kinds) for part, _ in inner):
            # one batch, all its releases, the Gaussian (merged) last
            inner = [(part, 1) for part, times in inner for _ in range(times)]
            inner.sort(key=lambda item: isinstance(item[0], dpe.GaussianDpEvent))
    return [(attr.evolve(event, event=unflatten(inner)), count)] if inner else []


class UnsupportedEventError(ValueError):
    """An event that no accountant can compose under the relation asked for."""


def route(parts: Parts, relation: NeighboringRelation) -> str:
    """The accountant for these parts (from `flatten`): "pld" where it takes them all, else "rdp".

    Raises:
        UnsupportedEventError: If neither takes them all; it names one part and a substitute.
    """
    no_pld, no_rdp = (
        [part for part, _ in parts if not supports(part, relation)]
        for supports in (_pld_supports, _rdp_supports)
    )
    if not (no_pld and no_rdp):
        return "rdp" if no_pld else "pld"
    nowhere = [event for event in no_pld if event in no_rdp]
    if nowhere:
        raise UnsupportedEventError(
            f"no accountant composes {nowhere[0]} under {relation.name.lower()}; "
            f"nearest supported: {_substitute(nowhere[0], relation)}"
        )
    raise UnsupportedEventError(
        f"no single accountant composes both {no_pld[0]} (RDP only) and {no_rdp[0]} (PLD only) "
        f"under {relation.name.lower()}; nearest supported: {_companion(no_rdp[0], relation)}"
    )


def batch_releases(event: dpe.DpEvent) -> tuple[tuple[float, ...], float] | None:
    """The (Laplace scales, Gaussian multiplier) of what is released from one Poisson batch.

    None for anything else; the multiplier is infinite where there is no Gaussian. The event is a
    part from `flatten`, so that several Gaussians are one already.
    """
    if not isinstance(event, dpe.PoissonSampledDpEvent):
        return None
    joint = isinstance(event.event, dpe.ComposedDpEvent)
    scales, multiplier = [], float("inf")
    for inner in event.event.events if joint else [event.event]:
        if isinstance(inner, dpe.LaplaceDpEvent):
            scales.append(inner.noise_multiplier)
        elif isinstance(inner, dpe.GaussianDpEvent):
            multiplier = inner.noise_multiplier
        else:
            return None
    return tuple(scales), multiplier


def is_joint(event: dpe.DpEvent) -> bool:
    """Whether several releases come from one Poisson batch, all Laplace or Gaussian."""
    return batch_releases(event) is not None and isinstance(event.event, dpe.ComposedDpEvent)


def _pld_supports(event: dpe.DpEvent, relation: NeighboringRelation) -> bool:
    if is_joint(event):
        return relation != _REPLACE_ONE
    return PLDAccountant(relation).supports(event)


def _rdp_supports(event: dpe.DpEvent, relation: NeighboringRelation) -> bool:
    if contains(event, dpe.LaplaceDpEvent) and relation == _REPLACE_ONE:
        return False  # the library takes it at the add-or-remove sensitivity: half of what is due
    return RdpAccountant(neighboring_relation=relation).supports(event)


def _companion(event: dpe.DpEvent, relation: NeighboringRelation) -> str:
    """What to put for a PLD-only part so that the RDP accountant takes it."""
    if isinstance(event, dpe.PoissonSampledDpEvent):
        if relation == _REPLACE_ONE:
            return "relation add_or_remove_one, or the releases without Poisson sampling"
        return "a Gaussian in place of the Laplace: PoissonSampledDpEvent(rate, GaussianDpEvent)"
    return "GaussianDpEvent(noise_multiplier) in its place"


def _substitute(event: dpe.DpEvent, relation: NeighboringRelation) -> str:
    if isinstance(event, _SAMPLED):
        rate = event.sample_size / event.source_dataset_size
        poisson = f"PoissonSampledDpEvent({rate:.6g}, GaussianDpEvent) with Poisson batches"
        if isinstance(event, _SAMPLED[0]) and relation != _REPLACE_ONE:
            return f"{poisson}, or relation replace_one with Gaussians inside"
        return poisson
    if relation == _REPLACE_ONE and contains(event, dpe.LaplaceDpEvent):
        return (
            "a Gaussian histogram (GaussianDpEvent), or the add_or_remove_one guarantee by group "
            "privacy: 2 epsilon, (1 + e^epsilon) delta"
        )
    if isinstance(event, dpe.PoissonSampledDpEvent):
        return (
            "PoissonSampledDpEvent(rate, ComposedDpEvent([LaplaceDpEvent, GaussianDpEvent])), the "
            "joint release of one batch (joint_poisson_event makes it)"
        )
    if isinstance(event, dpe.SingleEpochTreeAggregationDpEvent):
        return "relation replace_special, or GaussianDpEvent(noise_multiplier / sqrt(tree height))"
    if isinstance(event, dpe.RandomizedResponseDpEvent):
        return "relation replace_one or replace_special"
    if isinstance(event, dpe.DiscreteLaplaceDpEvent | dpe.MixtureOfGaussiansDpEvent):
        return "relation add_or_remove_one, or GaussianDpEvent"
    return (
        "GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent of these, or "
        "ZCDpEvent(eta**2 / 8) for a draw of bounded range eta"
    )


@attr.s(frozen=True, slots=True, auto_attribs=True)
class PureZCDpEvent(dpe.ZCDpEvent):
    r"""A mechanism that is both zero-concentrated and $\epsilon$-DP, such as a draw.

    $D_\alpha \le \xi + \rho\alpha$ for all $\alpha > 1$, and $D_\infty \le \epsilon$

    A draw of bounded range eta is `PureZCDpEvent(bounded_range_rho(eta), epsilon=eta)`. As a
    `ZCDpEvent` alone it would have no epsilon at delta = 0.

    Guarantee: both bounds are the caller's, for the relation at hand.

    Attributes:
        rho: As in `ZCDpEvent`. *Public*.
        xi: As in `ZCDpEvent`. *Public*.
        epsilon: The pure epsilon, >= 0; infinity where none is known. *Public*.

    Example:
        >>> from dpjax.privacy import Guarantee
        >>> Guarantee(dpe.SelfComposedDpEvent(PureZCDpEvent(0.005, epsilon=0.2), 3)).epsilon(0.0)
        0.6000000000000001
    """

    rho: float
    xi: float = 0.0
    epsilon: float = math.inf


def pure_epsilon(parts: Parts, relation: NeighboringRelation) -> float:
    """The epsilon at delta = 0 of parts (from `flatten`); infinite where one is not private at all.

    Raises:
        UnsupportedEventError: If a part has no pure epsilon, such as Gaussian noise.
    """
    return math.fsum(count * _of_part(part, relation) for part, count in parts)


def _of_part(part: dpe.DpEvent, relation: NeighboringRelation) -> float:
    factor = relation_factor(relation)
    match part:
        case dpe.NonPrivateDpEvent():
            return math.inf
        case dpe.LaplaceDpEvent(noise_multiplier=noise):
            return factor / noise
        case dpe.DiscreteLaplaceDpEvent(noise_parameter=noise, sensitivity=sensitivity):
            return factor * noise * sensitivity
        case dpe.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=buckets):
            return math.log1p(buckets * (1 - noise) / noise)
        case PureZCDpEvent(epsilon=epsilon) if epsilon < math.inf:
            return float(epsilon)
        case dpe.PoissonSampledDpEvent(sampling_probability=rate, event=inner):
            # Balle, Barthe and Gaboardi (2018): log(1 + rate (e^epsilon - 1)), without overflow
            epsilon = pure_epsilon(flatten(inner), relation)
            if epsilon > 30:
                return epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))
            return math.log1p(rate * math.expm1(epsilon))
    raise UnsupportedEventError(
        f"{part} has no pure epsilon (delta = 0): ask for delta > 0, or use what has one, such as "
        "Laplace or K-norm noise, OnlineToBatch with noise='pure_tree', or draws of vertices "
        "(FrankWolfe, FrankWolfeRelease, SaddleRelease)"
    )
