"""From an event to its privacy curve: the one place that chooses and runs an accountant."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from dp_accounting.rdp import RdpAccountant

from dpjax.privacy.accounting import _joint
from dpjax.privacy.accounting._pure import pure_or_infinity
from dpjax.privacy.accounting._structure import (
    event_fields,
    event_key,
    flatten,
    unflatten,
    with_inner,
)
from dpjax.privacy.accounting._support import UnsupportedEventError, batch_releases, is_joint, route

_INTERVAL = 1e-4
_CELLS_PER_SPREAD = 60  # one step's loss; the relative error of epsilon is about 1e-4 / 2
_MAX_GRID = 2.0**20
# a draw of bounded range needs large orders, a small zCDP budget small ones
_ORDERS = np.union1d(1 + np.logspace(-2, 5, 600), np.arange(2, 65))


class Curve(NamedTuple):
    """Upper bounds on the privacy curve of an event, and the accountant they come from."""

    epsilon: Callable[[float], float]
    delta: Callable[[float], float]
    accountant: str


class EventId:
    """An event under a relation, hashable and comparable whatever its fields hold."""

    def __init__(self, event: dpe.DpEvent, relation: NeighboringRelation):
        self.event = event
        self.relation = relation
        self._key = (event_key(event), relation)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EventId) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def check_supported(event: dpe.DpEvent, relation: NeighboringRelation) -> None:
    """Raises UnsupportedEventError unless an accountant can compose the event (cheap)."""
    route(flatten(event), relation)


@functools.lru_cache(maxsize=8)
def compose(which: EventId) -> Curve:
    r"""The privacy curve of an event, from the accountant that fits it.

    Privacy loss distributions where every part has one, else Rényi divergences on a dense grid of
    orders. A noise multiplier is always noise / *add-or-remove* sensitivity. Under replace_one the
    sensitivity is twice that: the library's PLDs double it, its RDP does not, so the RDP route
    halves the multipliers here. A ZCDpEvent states its rho for the relation at hand.
    """
    parts = flatten(which.event)
    chosen = route(parts, which.relation)
    if any(isinstance(part, dpe.NonPrivateDpEvent) for part, _ in parts):
        return Curve(lambda _: math.inf, lambda _: 1.0, chosen)
    if not parts:
        return Curve(lambda _: 0.0, lambda _: 0.0, chosen)
    pure = pure_or_infinity(parts, which.relation)
    if chosen == "pld":
        total = _compose_pld(parts, which.relation)
        return _capped(total.get_epsilon_for_delta, total.get_delta_for_epsilon, chosen, pure)
    if which.relation == NeighboringRelation.REPLACE_ONE:
        parts = [(_with_halved_noise(part), count) for part, count in parts]
    # sampled Gaussians cost a sum of as many terms as the order: the library's shorter list
    orders = None if any(_is_sampled(part) for part, _ in parts) else _ORDERS
    accountant = RdpAccountant(orders, which.relation).compose(unflatten(parts))
    return _capped(accountant.get_epsilon, accountant.get_delta, chosen, pure)


def _capped(
    epsilon: Callable[[float], float], delta: Callable[[float], float], chosen: str, pure: float
) -> Curve:
    """The accountant's curve, and delta 0 from the pure epsilon on."""
    return Curve(
        lambda d: min(float(epsilon(d)), pure),
        lambda e: 0.0 if e >= pure else float(delta(e)),
        chosen,
    )


def _compose_pld(
    parts: Sequence[tuple[dpe.DpEvent, int]], relation: NeighboringRelation
) -> pld_lib.PrivacyLossDistribution:
    steps = [_own_step(part, relation) for part, _ in parts]
    interval = _interval(parts, steps, relation)
    total = None
    for (part, count), step in zip(parts, steps, strict=True):
        one = step.distribution(interval) if step else _library_pld(part, interval, relation)
        many = one if count == 1 else one.self_compose(count)
        total = many if total is None else total.compose(many)
    return total


def _own_step(part: dpe.DpEvent, relation: NeighboringRelation) -> _joint.SampledStep | None:
    """One step of a sampled part, where its PLD is ours: joint releases, or very small losses."""
    releases = batch_releases(part)
    if releases is None or relation == NeighboringRelation.REPLACE_ONE:
        return None
    step = _joint.sampled_step(part.sampling_probability, *releases)
    # the library's own PLDs need a grid of 1e-4 or coarser: below it their masses drift from 1
    small = step.spread < _CELLS_PER_SPREAD * _INTERVAL
    return step if small or is_joint(part) else None


def _interval(
    parts: Sequence[tuple[dpe.DpEvent, int]],
    steps: Sequence[_joint.SampledStep | None],
    relation: NeighboringRelation,
) -> float:
    """The grid: fine against one step's loss, coarse enough for the range of the composed one."""
    spreads = [
        step.spread if step else _gaussian_spread(part, relation)
        for (part, _), step in zip(parts, steps, strict=True)
    ]
    counts = [count for _, count in parts]
    # a loss of unknown spread may have atoms, as Laplace's has, that are rounded up to the grid
    coarsest = _INTERVAL if any(steps) or None in spreads else 10 * _INTERVAL
    known = [(s, n) for s, n in zip(spreads, counts, strict=True) if s is not None]
    variance = sum(n * s**2 for s, n in known)
    typical = math.sqrt(variance / max(1, sum(n for _, n in known)))
    fine = min(coarsest, typical / _CELLS_PER_SPREAD) if known else coarsest
    if not any(steps):
        fine = max(fine, _INTERVAL)
    reach = max([16 * math.sqrt(variance), *(step.width for step in steps if step)])
    return max(fine, reach / _MAX_GRID)


def _gaussian_spread(event: dpe.DpEvent, relation: NeighboringRelation) -> float | None:
    """About the standard deviation of the loss of a (sampled) Gaussian; None for other events."""
    rate = getattr(event, "sampling_probability", 1.0)
    inner = event.event if isinstance(event, dpe.PoissonSampledDpEvent) else event
    if not isinstance(inner, dpe.GaussianDpEvent | dpe.TruncatedSubsampledGaussianDpEvent):
        return None
    shift = (2 if relation == NeighboringRelation.REPLACE_ONE else 1) / inner.noise_multiplier
    return shift if rate == 1 else min(shift, rate * math.sqrt(math.expm1(min(shift**2, 500.0))))


def _library_pld(
    event: dpe.DpEvent, interval: float, relation: NeighboringRelation
) -> pld_lib.PrivacyLossDistribution:
    """The library's pessimistic PLD of one part, which the PLD accountant supports."""
    match event:
        case dpe.GaussianDpEvent(noise_multiplier=noise):
            return pld_lib.from_gaussian_mechanism(
                noise, value_discretization_interval=interval, neighboring_relation=relation
            )
        case dpe.PoissonSampledDpEvent(
            sampling_probability=rate, event=dpe.GaussianDpEvent(noise_multiplier=noise)
        ):
            return pld_lib.from_gaussian_mechanism(
                noise,
                sampling_prob=rate,
                value_discretization_interval=interval,
                neighboring_relation=relation,
            )
        case dpe.LaplaceDpEvent(noise_multiplier=noise):
            return pld_lib.from_laplace_mechanism(noise, value_discretization_interval=interval)
        case dpe.PoissonSampledDpEvent(
            sampling_probability=rate, event=dpe.LaplaceDpEvent(noise_multiplier=noise)
        ):
            return pld_lib.from_laplace_mechanism(
                noise, sampling_prob=rate, value_discretization_interval=interval
            )
        case dpe.DiscreteLaplaceDpEvent(noise_parameter=noise, sensitivity=sensitivity):
            return pld_lib.from_discrete_laplace_mechanism(
                noise, sensitivity, value_discretization_interval=interval
            )
        case dpe.MixtureOfGaussiansDpEvent():
            return pld_lib.from_mixture_gaussian_mechanism(
                **event_fields(event), value_discretization_interval=interval
            )
        case dpe.RandomizedResponseDpEvent():
            return pld_lib.from_randomized_response(
                **event_fields(event),
                value_discretization_interval=interval,
                neighboring_relation=relation,
            )
        case dpe.TruncatedSubsampledGaussianDpEvent():
            return pld_lib.from_truncated_subsampled_gaussian_mechanism(
                **event_fields(event),
                value_discretization_interval=interval,
                neighboring_relation=relation,
            )
    raise UnsupportedEventError(f"no privacy loss distribution is known for {event}")


def _is_sampled(event: dpe.DpEvent) -> bool:
    sampled = dpe.PoissonSampledDpEvent | dpe.SampledWithoutReplacementDpEvent
    if isinstance(event, dpe.ComposedDpEvent):
        return any(_is_sampled(inner) for inner in event.events)
    inner = getattr(event, "event", None)
    return isinstance(event, sampled) or (inner is not None and _is_sampled(inner))


def _with_halved_noise(event: dpe.DpEvent) -> dpe.DpEvent:
    if isinstance(event, dpe.GaussianDpEvent):
        return dpe.GaussianDpEvent(event.noise_multiplier / 2)
    if isinstance(event, dpe.ComposedDpEvent):
        return dpe.ComposedDpEvent([_with_halved_noise(inner) for inner in event.events])
    if getattr(event, "event", None) is not None:
        return with_inner(event, _with_halved_noise(event.event))
    return event
