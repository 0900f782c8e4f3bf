"""From an event to its privacy curve: the one place that chooses and runs an accountant."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.pld import privacy_loss_distribution as pld_lib
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon

from dpjax.privacy._budget import relation_factor
from dpjax.privacy.accounting import _joint
from dpjax.privacy.accounting import _structure as structure
from dpjax.privacy.accounting._renyi import ORDERS, above_rounding, renyi
from dpjax.privacy.accounting._structure import EventId, Parts, UnsupportedEventError

_INTERVAL = 1e-4
_CELLS_PER_SPREAD = 60  # one step's loss; the relative error of epsilon is about 1e-4 / 2
_MAX_GRID = 2.0**20
_TAIL = 1e-20  # above the mass of one step that the library counts as infinite
# a draw of bounded range needs large orders, a small zCDP budget small ones
_ORDERS = np.union1d(1 + np.logspace(-2, 5, 600), np.arange(2, 65))
# the library's pessimistic PLD of an event from its fields, and whether it is told the relation
_PLDS: dict[type[dpe.DpEvent], tuple[Callable[..., pld_lib.PrivacyLossDistribution], bool]] = {
    dpe.GaussianDpEvent: (pld_lib.from_gaussian_mechanism, True),
    dpe.LaplaceDpEvent: (pld_lib.from_laplace_mechanism, False),
    dpe.DiscreteLaplaceDpEvent: (pld_lib.from_discrete_laplace_mechanism, False),
    dpe.MixtureOfGaussiansDpEvent: (pld_lib.from_mixture_gaussian_mechanism, False),
    dpe.RandomizedResponseDpEvent: (pld_lib.from_randomized_response, True),
    dpe.TruncatedSubsampledGaussianDpEvent: (
        pld_lib.from_truncated_subsampled_gaussian_mechanism,
        True,
    ),
}


class Curve(NamedTuple):
    """Upper bounds on the privacy curve of an event."""

    epsilon: Callable[[float], float]
    delta: Callable[[float], float]


@functools.lru_cache(maxsize=8)
def compose(which: EventId) -> Curve:
    r"""The privacy curve of an event, from the accountant that fits it.

    Privacy loss distributions where every part has one, else Rényi divergences on a dense grid of
    orders. A ZCDpEvent states its rho for the relation at hand. From the pure epsilon on, delta is
    0.
    """
    parts = structure.flatten(which.event)
    chosen = structure.route(parts, which.relation)
    if any(isinstance(part, dpe.NonPrivateDpEvent) for part, _ in parts):
        return Curve(lambda _: math.inf, lambda _: 1.0)
    if not parts:
        return Curve(lambda _: 0.0, lambda _: 0.0)
    try:
        pure = structure.pure_epsilon(parts, which.relation)
    except UnsupportedEventError:
        pure = math.inf
    if chosen == "pld":
        total = compose_pld(parts, which.relation)
        known = Curve(total.get_epsilon_for_delta, total.get_delta_for_epsilon)
        curve = _with_tail(known, parts, which.relation)
    else:
        curve = _renyi(parts, which.relation)
    return Curve(
        lambda d: min(float(curve.epsilon(d)), pure),
        lambda e: 0.0 if e >= pure else max(0.0, float(curve.delta(e))),
    )


def _renyi(parts: Parts, relation: NeighboringRelation) -> Curve:
    sampled = [structure.batch_releases(part) for part, _ in parts if structure.is_sampled(part)]
    if sampled and None not in sampled:  # sums of the library may not end at fractional orders
        total = renyi(EventId(structure.unflatten(parts), relation))
        rdp, infinite = above_rounding(total.divergence), total.infinite
        return Curve(
            lambda d: compute_epsilon(ORDERS, rdp, d - infinite)[0] if d > infinite else math.inf,
            lambda e: min(1.0, compute_delta(ORDERS, rdp, e)[0] + infinite),
        )
    # others that are sampled cost a sum of as many terms as the order: the library's shorter list
    orders = None if sampled else _ORDERS
    scaled = [(structure.at_sensitivity(part, relation), count) for part, count in parts]
    accountant = RdpAccountant(orders, relation).compose(structure.unflatten(scaled))
    # of a divergence below the last bit of 1 the library takes the logarithm of 0
    accountant._rdp = above_rounding(accountant._rdp)
    return Curve(accountant.get_epsilon, accountant.get_delta)


def _with_tail(curve: Curve, parts: Parts, relation: NeighboringRelation) -> Curve:
    """A curve of a PLD, where rounding is much of it the smaller of it and of Rényi's, if any."""
    least = 100 * _rounding(parts) + _TAIL

    @functools.cache
    def other() -> Curve:
        try:
            return _renyi(parts, relation)
        except (UnsupportedEventError, dp_accounting.UnsupportedEventError):
            return Curve(lambda _: math.inf, lambda _: 1.0)

    def epsilon(delta: float) -> float:
        known = float(curve.epsilon(delta))
        return known if delta > least else min(known, float(other().epsilon(delta)))

    def delta(epsilon: float) -> float:
        known = float(curve.delta(epsilon))
        return known if known > least else min(known, float(other().delta(epsilon)))

    return Curve(epsilon, delta)


def _rounding(parts: Parts) -> float:
    """What transforms may take from a delta: up to 0.35 times this was seen in so many steps."""
    composed = sum(count for _, count in parts if count > 1) + len(parts) - 1
    return composed * 2.0**-52


def compose_pld(parts: Parts, relation: NeighboringRelation) -> pld_lib.PrivacyLossDistribution:
    """The privacy loss distribution of parts (from `flatten`) of which each has one."""
    steps = [_own_step(part, relation) for part, _ in parts]
    interval = _interval(parts, steps, relation)
    each = []
    for (part, count), step in zip(parts, steps, strict=True):
        one = step.distribution(interval) if step else library_pld(part, interval, relation)
        each.append(one if count == 1 else one.self_compose(count))
    total = functools.reduce(lambda first, second: first.compose(second), each)
    for pmf in {id(pmf): pmf for pmf in (total._pmf_remove, total._pmf_add)}.values():
        pmf._infinity_mass += _rounding(parts)
    return total


def _own_step(part: dpe.DpEvent, relation: NeighboringRelation) -> _joint.SampledStep | None:
    """One step of a sampled part, where its PLD is ours: joint releases, or very small losses."""
    releases = structure.batch_releases(part)
    if releases is None or relation == NeighboringRelation.REPLACE_ONE:
        return None
    step = _joint.sampled_step(part.sampling_probability, *releases)
    # the library's own PLDs need a grid of 1e-4 or coarser: below it their masses drift from 1
    small = step.spread < _CELLS_PER_SPREAD * _INTERVAL
    return step if small or structure.is_joint(part) else None


def _interval(
    parts: Parts, steps: Sequence[_joint.SampledStep | None], relation: NeighboringRelation
) -> float:
    """The grid: fine against one step's loss, coarse enough for the range of the composed one."""
    spreads = [
        step.spread if step else _gaussian_spread(part, relation)
        for (part, _), step in zip(parts, steps, strict=True)
    ]
    # a loss of unknown spread may have atoms, as Laplace's has, that are rounded up to the grid
    coarsest = _INTERVAL if any(steps) or None in spreads else 10 * _INTERVAL
    known = [(s, n) for s, (_, n) in zip(spreads, parts, strict=True) if s is not None]
    variance = sum(n * s**2 for s, n in known)
    typical = math.sqrt(variance / max(1, sum(n for _, n in known)))
    fine = min(coarsest, typical / _CELLS_PER_SPREAD) if known else coarsest
    if not any(steps):
        fine = max(fine, _INTERVAL)
    reach = max([16 * math.sqrt(variance), *(step.width for step in steps if step)])
    return max(fine, reach / _MAX_GRID)


def _gaussian_spread(event: dpe.DpEvent, relation: NeighboringRelation) -> float | None:
    """About the standard deviation of the loss of a (sampled) Gaussian; None for other events."""
    rate = structure.event_fields(event).get("sampling_probability", 1.0)
    inner = event.event if isinstance(event, dpe.PoissonSampledDpEvent) else event
    if not isinstance(inner, dpe.GaussianDpEvent | dpe.TruncatedSubsampledGaussianDpEvent):
        return None
    shift = relation_factor(relation) / inner.noise_multiplier
    return shift if rate == 1 else min(shift, rate * math.sqrt(math.expm1(min(shift**2, 500.0))))


def library_pld(
    event: dpe.DpEvent, interval: float, relation: NeighboringRelation
) -> pld_lib.PrivacyLossDistribution:
    """The library's pessimistic PLD of one part, which the PLD accountant supports."""
    options = {"value_discretization_interval": interval}
    if isinstance(event, dpe.PoissonSampledDpEvent):
        options["sampling_prob"], event = event.sampling_probability, event.event
    made, of_relation = _PLDS[type(event)]
    if of_relation:
        options["neighboring_relation"] = relation
    return made(*structure.event_fields(event).values(), **options)
