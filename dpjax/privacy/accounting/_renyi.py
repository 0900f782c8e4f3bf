"""Rényi divergences of an event at every order of one grid, for filters."""

import functools
import math
from typing import NamedTuple

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from dpjax.privacy.accounting import _joint
from dpjax.privacy.accounting._accountant import EventId, _is_sampled, _with_halved_noise
from dpjax.privacy.accounting._renyi_pairs import (
    CENTRAL,
    Mixture,
    discrete_laplace,
    log_moment,
    log_moment_of_atoms,
    sampled,
)
from dpjax.privacy.accounting._structure import flatten
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
    # an order of another version's grid is put between this one's
    curve = renyi(which, None if order in ORDERS else order)
    orders = _orders(None if order in ORDERS else order)
    return float(curve.divergence[np.searchsorted(orders, order)]), curve.infinite


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
    if isinstance(part, dpe.NonPrivateDpEvent):
        return Renyi(np.full(orders.size, math.inf), 1.0)
    if isinstance(part, dpe.GaussianDpEvent):
        shift = (2 if replace else 1) / part.noise_multiplier
        return Renyi(orders * shift**2 / 2, 0.0)
    if isinstance(part, dpe.DiscreteLaplaceDpEvent):
        return _from_atoms([discrete_laplace(part.noise_parameter, part.sensitivity)], orders)
    if isinstance(part, dpe.MixtureOfGaussiansDpEvent):
        return _from_mixture(part, orders)
    if isinstance(part, dpe.TruncatedSubsampledGaussianDpEvent):
        return _truncated(part, replace, orders)
    releases = batch_releases(part)
    if releases is not None and not releases[0]:
        return _sampled_gaussian(part.sampling_probability, releases[1], replace, orders)
    if releases is not None:
        step = _joint.sampled_step(part.sampling_probability, *releases)
        return _from_atoms([step.remove, step.add], orders)
    return _from_library(part, relation, orders)


def _sampled_gaussian(rate: float, noise: float, replace: bool, orders: np.ndarray) -> Renyi:
    return Renyi(_log_moments(rate, noise, replace, orders) / (orders - 1), 0.0)


def _log_moments(rate: float, noise: float, replace: bool, orders: np.ndarray) -> np.ndarray:
    p = sampled(rate, 1 / noise)
    # a replaced record moves from one side of the others' sum to the other, if it takes part
    q = sampled(rate, -1 / noise) if replace else CENTRAL
    directions = [(p, q)] if replace else [(p, q), (q, p)]
    return np.array([max(log_moment(a, b, order) for a, b in directions) for order in orders])


def _truncated(
    event: dpe.TruncatedSubsampledGaussianDpEvent, replace: bool, orders: np.ndarray
) -> Renyi:
    """The pair behind the library's PLD: with some probability a batch is full, and swaps."""
    rate, size, n = event.sampling_probability, event.truncated_batch_size, event.dataset_size
    moments = _log_moments(rate, event.noise_multiplier, replace, orders)
    full = float(stats.binom.sf(size - 1, n - 1, rate))
    if full > 0:
        inside = float(stats.binom.sf(size, n, rate)) * size / full / n
        swapped = _log_moments(inside, event.noise_multiplier / 2, True, orders)
        with np.errstate(divide="ignore"):
            moments = np.logaddexp(moments + np.log1p(-full), swapped + np.log(full))
    return Renyi(np.maximum(moments, 0.0) / (orders - 1), 0.0)


def _from_mixture(event: dpe.MixtureOfGaussiansDpEvent, orders: np.ndarray) -> Renyi:
    centres = np.asarray(event.sensitivities, float) / event.standard_deviation
    weights = np.asarray(event.sampling_probs, float)
    p, q = Mixture(weights, centres), CENTRAL
    worst = [max(log_moment(p, q, order), log_moment(q, p, order)) for order in orders]
    return Renyi(np.array(worst) / (orders - 1), 0.0)


def _from_atoms(directions: list[_joint.Atoms], orders: np.ndarray) -> Renyi:
    worst = [max(log_moment_of_atoms(atoms, order) for atoms in directions) for order in orders]
    return Renyi(np.array(worst) / (orders - 1), max(atoms.infinite for atoms in directions))


def _from_library(part: dpe.DpEvent, relation: NeighboringRelation, orders: np.ndarray) -> Renyi:
    if relation == NeighboringRelation.REPLACE_ONE:
        part = _with_halved_noise(part)  # as `_accountant.compose` does, and why is told there
    used = orders[orders <= _LARGEST_SAMPLED] if _is_sampled(part) else orders
    accountant = RdpAccountant(used, relation).compose(part)
    rest = np.full(orders.size - used.size, math.inf)
    return Renyi(np.maximum(np.concatenate([accountant.rdp, rest]), 0.0), 0.0)
