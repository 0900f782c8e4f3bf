"""Rényi divergences of an event at every order of one grid, for filters.

Rényi divergences of explicit pairs of distributions, with high relative precision.

All functions return log E_Q[(P/Q)^a] for one order a. Amplified steps have moments within 1e-8 of
1, so the sum is of (P/Q)^a - 1 - a (P/Q - 1) >= 0, whose mean is the moment less 1.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.rdp import RdpAccountant
from scipy import special, stats

from dpjax.privacy._budget import relation_factor
from dpjax.privacy.accounting import _joint
from dpjax.privacy.accounting import _structure as structure
from dpjax.privacy.accounting._structure import EventId

ORDERS = np.union1d(1 + np.logspace(-1.7, 5, 300), np.arange(2, 65))
_LARGEST_SAMPLED = 512  # the library's sums for sampled events have as many terms as the order
_REACH = 12.0  # standard deviations past the last stationary point: a factor below e^-72
_ROUNDING = 1e-9  # relative, far above the error of the sums, so that they are upper bounds
_NEAR = 0.5  # exponents within it are summed as a series, of relative error 0.5^17 / 17!
_TERMS = 18
_LARGEST = 500.0  # exponents beyond it are summed in logs
_NOT_WORTH_IT = 30.0  # a divergence at which sampling no longer helps, and is not counted


def above_rounding(divergences: np.ndarray) -> np.ndarray:
    """Divergences that are 0 or at least the last bit of 1, below which the library has log(0)."""
    return np.where(divergences == 0, 0.0, np.maximum(divergences, 2.0**-52))


class Mixture(NamedTuple):
    """sum_i weights[i] N(centres[i], 1)."""

    weights: np.ndarray
    centres: np.ndarray

    def log_ratio(self, x: np.ndarray) -> np.ndarray:
        """log of its density over that of N(0, 1)."""
        losses = np.outer(self.centres, x) - self.centres[:, None] ** 2 / 2
        if self.centres.size == 1:
            return losses[0]
        change = self.weights @ np.expm1(np.minimum(losses, 30.0))
        far = np.abs(change) >= 0.5
        ratio = np.log1p(np.where(far, 0.0, change))
        ratio[far] = special.logsumexp(losses[:, far], axis=0, b=self.weights[:, None])
        return ratio


CENTRAL = Mixture(np.ones(1), np.zeros(1))


def sampled(rate: float, centre: float) -> Mixture:
    """(1 - rate) N(0, 1) + rate N(centre, 1)."""
    return Mixture(np.array([1 - rate, rate]), np.array([0.0, centre]))


def log_moment(p: Mixture, q: Mixture, order: float) -> float:
    """log E_Q[(P/Q)^order] of Gaussian mixtures, by the trapezoid rule.

    The rule is exact to e^-39 here: the integrand is analytic in a strip that the step resolves.
    Where the divergence is beyond use, that of the two furthest centres stands in, as an upper
    bound (quasi-convexity).
    """
    low_p, high_p = p.centres.min(), p.centres.max()
    low_q, high_q = q.centres.min(), q.centres.max()
    spread = max(high_p, high_q) - min(low_p, low_q)
    least = min(float(p.weights[p.weights > 0].min()), float(q.weights[q.weights > 0].min()))
    if order * spread**2 / 2 > _NOT_WORTH_IT - 2 * math.log(least):
        return (order - 1) * order * spread**2 / 2
    # the log of the integrand has its stationary points between these
    low = order * low_p - (order - 1) * high_q - _REACH
    high = order * high_p - (order - 1) * low_q + _REACH
    step = min(0.1, 0.7 / (spread * math.sqrt(order)))
    x = np.linspace(low, high, math.ceil((high - low) / step) + 1)
    step = x[1] - x[0]
    log_p, log_q = p.log_ratio(x), q.log_ratio(x)
    base = log_q - x**2 / 2 - 0.5 * math.log(2 * math.pi)
    return _log_mean(base + math.log(step), log_p - log_q, order)


def _log_mean(log_q: np.ndarray, loss: np.ndarray, order: float) -> float:
    """log sum q e^(order loss), where sum q = sum q e^loss = 1."""
    exponent = log_q + order * loss
    if exponent.max() > _LARGEST:
        return float(special.logsumexp(exponent)) + _ROUNDING
    q = np.exp(log_q)
    near = np.abs(order * loss) < _NEAR
    small = q * _curvature(order, np.where(near, loss, 0.0))
    large = np.exp(exponent) - q - order * (np.exp(log_q + loss) - q)
    excess = float(np.where(near, small, large).sum())
    return math.log1p(max(excess, 0.0) * (1 + _ROUNDING))


def _curvature(order: float, loss: np.ndarray) -> np.ndarray:
    """e^(order loss) - 1 - order (e^loss - 1) by its series; near 0 the difference cancels."""
    total, power, growth = np.zeros_like(loss), loss, order - 1
    for k in range(2, _TERMS):
        power = power * loss / k
        total += order * growth * power  # order^k - order = order * (order^(k - 1) - 1)
        growth = order * growth + order - 1
    return total


def log_moment_of_atoms(atoms: _joint.Atoms, order: float) -> float:
    """log sum mass e^((order - 1) loss) over the finite losses under P; at least 0."""
    exponent = (order - 1) * atoms.loss
    if exponent.max() > _LARGEST:
        return max(float(special.logsumexp(exponent, b=atoms.mass)), 0.0) + _ROUNDING
    excess = float(np.dot(atoms.mass, np.expm1(exponent)))
    return math.log1p(max(excess, 0.0) * (1 + _ROUNDING))


def discrete_laplace(parameter: float, sensitivity: int) -> _joint.Atoms:
    """The losses of noise P(x) ~ e^(-parameter |x|) on integers `sensitivity` apart."""
    inside = np.arange(1, sensitivity)
    tail = 1 / (1 + math.exp(-parameter))
    loss = parameter * np.concatenate([[sensitivity], sensitivity - 2.0 * inside, [-sensitivity]])
    mass = math.tanh(parameter / 2) * np.exp(-parameter * inside)
    ends = tail, tail * math.exp(-parameter * sensitivity)
    return _joint.Atoms(loss, np.concatenate([ends[:1], mass, ends[1:]]), 0.0)


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
    for part, count in structure.flatten(which.event):
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
            return Renyi(_log_moments([(p, CENTRAL), (CENTRAL, p)], orders) / (orders - 1), 0.0)
        case dpe.TruncatedSubsampledGaussianDpEvent():
            return Renyi(_truncated(part, replace, orders) / (orders - 1), 0.0)
    releases = structure.batch_releases(part)
    if releases is not None and releases[0]:
        step = _joint.sampled_step(part.sampling_probability, *releases)
        return _from_atoms([step.remove, step.add], orders)
    if releases is not None:
        pairs = _sampled_pairs(part.sampling_probability, releases[1], replace)
        return Renyi(_log_moments(pairs, orders) / (orders - 1), 0.0)
    used = orders[orders <= _LARGEST_SAMPLED] if structure.is_sampled(part) else orders
    accountant = RdpAccountant(used, relation).compose(structure.at_sensitivity(part, relation))
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
