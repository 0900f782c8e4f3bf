"""Rényi divergences of an event at every order of one grid, for filters."""

import functools
import math
from typing import NamedTuple

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from dpjax.privacy._relations import relation_factor
from dpjax.privacy.accounting import _joint
from dpjax.privacy.accounting._renyi_pairs import (
    CENTRAL,
    Mixture,
    discrete_laplace,
    log_moment,
    log_moment_of_atoms,
    sampled,
)
from dpjax.privacy.accounting._structure import (
    SAMPLED,
    EventId,
    at_sensitivity,
    contains,
    flatten,
)
from dpjax.privacy.accounting._support import batch_releases

ORDERS = np.union1d(1 + np.logspace(-1.7, 5, 300), np.arange(2, 65))
_LARGEST_SAMPLED = 512  # the library's sums for sampled events have as many terms as the order


class Renyi(NamedTuple):
    """Upper bounds on an event's divergences at each order, and the mass they leave out.

    Both P and Q are those of the worse neighbour. The mass `infinite` of P, of infinite loss, is
    additive in delta.
    """

    divergence: np.ndarray
    infinite: float


def divergence_at(which: EventId, order: float) -> tuple[float, float]:
    """An event's divergence at one order, and the mass it leaves out."""
    extra = None if order in ORDERS else order  # one of another version's grid
    curve = renyi(which, extra)
    return float(curve.divergence[np.searchsorted(_orders(extra), order)]), curve.infinite


def _orders(extra: float | None) -> np.ndarray:
    return ORDERS if extra is None else np.union1d(ORDERS, [extra])


@functools.lru_cache(maxsize=4096)
def renyi(which: EventId, extra: float | None = None) -> Renyi:
    """The divergences of an event under a relation at `ORDERS` (and at one more order)."""
    orders = _orders(extra)
    total, infinite = np.zeros(orders.size), 0.0
    for part, count in flatten(which.event):
        one = _part(EventId(part, which.relation), extra)
        with np.errstate(invalid="ignore"):
            total = total + count * one.divergence
        infinite += count * one.infinite
    return Renyi(total, infinite)


@functools.lru_cache(maxsize=4096)
def _part(which: EventId, extra: float | None) -> Renyi:
    part, relation, orders = which.event, which.relation, _orders(extra)
    replace = relation == NeighboringRelation.REPLACE_ONE
    match part:
        case dpe.NonPrivateDpEvent():
            return Renyi(np.full(orders.size, math.inf), 1.0)
        case dpe.GaussianDpEvent(noise_multiplier=noise):
            return Renyi(orders * (relation_factor(relation) / noise) ** 2 / 2, 0.0)
        case dpe.DiscreteLaplaceDpEvent(noise_parameter=steep, sensitivity=sensitivity):
            return _from_atoms([discrete_laplace(steep, sensitivity)], orders)
        case dpe.MixtureOfGaussiansDpEvent(standard_deviation=stddev):
            centres = np.asarray(part.sensitivities, float) / stddev
            p = Mixture(np.asarray(part.sampling_probs, float), centres)
            moments = _log_moments([(p, CENTRAL), (CENTRAL, p)], orders)
            return Renyi(moments / (orders - 1), 0.0)
        case dpe.TruncatedSubsampledGaussianDpEvent():
            return Renyi(_truncated(part, replace, orders) / (orders - 1), 0.0)
    releases = batch_releases(part)
    if releases is not None and releases[0]:
        step = _joint.sampled_step(part.sampling_probability, *releases)
        return _from_atoms([step.remove, step.add], orders)
    if releases is not None:
        pairs = _sampled_pairs(part.sampling_probability, releases[1], replace)
        return Renyi(_log_moments(pairs, orders) / (orders - 1), 0.0)
    used = orders[orders <= _LARGEST_SAMPLED] if contains(part, *SAMPLED) else orders
    accountant = RdpAccountant(used, relation).compose(at_sensitivity(part, relation))
    rest = np.full(orders.size - used.size, math.inf)
    return Renyi(np.maximum(np.concatenate([accountant.rdp, rest]), 0.0), 0.0)


def _log_moments(pairs: list[tuple[Mixture, Mixture]], orders: np.ndarray) -> np.ndarray:
    return np.array([max(log_moment(p, q, order) for p, q in pairs) for order in orders])


def _from_atoms(directions: list[_joint.Atoms], orders: np.ndarray) -> Renyi:
    worst = [max(log_moment_of_atoms(atoms, order) for atoms in directions) for order in orders]
    return Renyi(np.array(worst) / (orders - 1), max(atoms.infinite for atoms in directions))


def _sampled_pairs(rate: float, noise: float, replace: bool) -> list[tuple[Mixture, Mixture]]:
    p = sampled(rate, 1 / noise)
    # a replaced record moves from one side of the others' sum to the other, if it takes part
    return [(p, sampled(rate, -1 / noise))] if replace else [(p, CENTRAL), (CENTRAL, p)]


def _truncated(
    event: dpe.TruncatedSubsampledGaussianDpEvent, replace: bool, orders: np.ndarray
) -> np.ndarray:
    """The pair behind the library's PLD: with some probability a batch is full, and swaps."""
    rate, size, n = event.sampling_probability, event.truncated_batch_size, event.dataset_size
    moments = _log_moments(_sampled_pairs(rate, event.noise_multiplier, replace), orders)
    full = float(stats.binom.sf(size - 1, n - 1, rate))
    if full > 0:
        inside = float(stats.binom.sf(size, n, rate)) * size / full / n
        swapped = _log_moments(_sampled_pairs(inside, event.noise_multiplier / 2, True), orders)
        with np.errstate(divide="ignore"):
            moments = np.logaddexp(moments + np.log1p(-full), swapped + np.log(full))
    return np.maximum(moments, 0.0)
