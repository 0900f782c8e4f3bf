"""Guarantees of several runs together: over the same records, disjoint records, groups of them."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from dpjax.core._checks import check_type
from dpjax.privacy._guarantee import Guarantee
from dpjax.privacy._relations import relation_name
from dpjax.privacy.accounting._renyi import ORDERS, renyi
from dpjax.privacy.accounting._support import UnsupportedEventError

_MAX_EPSILON = 600.0


def compose_guarantees(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of several runs on the same records, all fixed in advance.

    Event: ComposedDpEvent of the events; the failure probabilities add.

    Guarantee: that of releasing all outputs together, exact where every event has a privacy
    loss distribution. Each run may use the outputs of earlier ones; which events and noise it has
    may not depend on them. Where it may, use a `dpjax.Ledger`.

    Args:
        guarantees: At least one, all under one relation. *Public*.

    Returns:
        The joint guarantee.

    Raises:
        UnsupportedEventError: If no single accountant composes all the events.
        ValueError: If none is given, relations differ or failures add up to 1.

    Example:
        >>> from dp_accounting import dp_event as dpe
        >>> once = Guarantee(dpe.GaussianDpEvent(4.0))
        >>> compose_guarantees(once, once) == Guarantee(dpe.ComposedDpEvent([once.event] * 2))
        True
    """
    relation = shared_relation(guarantees)
    if len(guarantees) == 1:
        return guarantees[0]
    failure = math.fsum(float(g.failure_probability) for g in guarantees)
    return Guarantee(dpe.ComposedDpEvent([g.event for g in guarantees]), relation, failure)


def shared_relation(
    guarantees: Sequence[Any], kinds: tuple[type, ...] = (Guarantee,)
) -> NeighboringRelation:
    """The relation of all of them.

    Raises:
        TypeError: If one is of none of the kinds.
        ValueError: If there is none, or they differ.
    """
    if not guarantees:
        raise ValueError("needs at least 1 guarantee, got 0")
    for guarantee in guarantees:
        what, more = "a dpjax.Guarantee", ": a solver's is solver.guarantee()"
        check_type("guarantee", guarantee, kinds, what, more)
    first = guarantees[0].relation
    for guarantee in guarantees:
        if guarantee.relation != first:
            raise ValueError(
                f"guarantees must be under one relation, got {relation_name(first)} and "
                f"{relation_name(guarantee.relation)}: make both solvers for one of them "
                "(Budget(epsilon, delta, relation))"
            )
    return first


def composed_epsilon(guarantees: Sequence[Guarantee], delta: float) -> float:
    """Epsilon of guarantees fixed in advance, by Rényi divergences where no accountant fits all."""
    if not guarantees:
        return 0.0
    try:
        return compose_guarantees(*guarantees).epsilon(delta)
    except UnsupportedEventError:
        curves = [renyi(guarantee._id) for guarantee in guarantees]
        divergence = np.sum([curve.divergence for curve in curves], axis=0)
        infinite = math.fsum(curve.infinite for curve in curves)
        failure = math.fsum(float(g.failure_probability) for g in guarantees)

        def total(epsilon: float) -> float:
            event, _ = rdp.compute_delta(ORDERS, divergence, epsilon)
            return event + infinite + failure * (1 + math.exp(epsilon))

        return least_epsilon(total, delta)


def least_epsilon(curve: Callable[[float], float], delta: float) -> float:
    """An epsilon at which the curve is at most delta, the least one if the curve falls."""
    if curve(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1e-3
    while curve(high) > delta:
        low, high = high, 2 * high
        if high > _MAX_EPSILON:
            return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > delta else (low, middle)
    return high


@dataclasses.dataclass(frozen=True)
class ParallelGuarantee:
    """The guarantee of runs on disjoint sets of records: that of the worst one.

    epsilon(delta) = max_i epsilon_i(delta)

    Guarantee: each record belongs to at most one of the sets, by a rule that does not look at
    the other records (a hospital, a hash of the record's own name). Under replace_one and
    replace_special the set must stay the same when the record is replaced: a record whose *value*
    decides on its set would leave one and enter another, and both runs would see it.

    Args:
        parts: The guarantees, one for each set, all under one relation. *Public*.

    Raises:
        ValueError: If there is none, or relations differ.

    Example:
        >>> from dp_accounting import dp_event as dpe
        >>> near, far = (Guarantee(dpe.GaussianDpEvent(z)) for z in (2.0, 4.0))
        >>> parallel_guarantee(near, far).epsilon(1e-5) == near.epsilon(1e-5)
        True
    """

    parts: tuple[Guarantee, ...]

    def __post_init__(self) -> None:
        shared_relation(self.parts)

    @property
    def relation(self) -> NeighboringRelation:
        """The relation of all parts."""
        return shared_relation(self.parts)

    def epsilon(self, delta: float) -> float:
        """The largest epsilon of the parts at this delta; see `Guarantee.epsilon`."""
        return max(part.epsilon(delta) for part in self.parts)

    def delta(self, epsilon: float) -> float:
        """The largest delta of the parts at this epsilon; see `Guarantee.delta`."""
        return max(part.delta(epsilon) for part in self.parts)


def parallel_guarantee(*parts: Guarantee) -> ParallelGuarantee:
    """The guarantee of runs on disjoint sets of records; see `ParallelGuarantee`.

    Args:
        parts: One for each set of records. *Public*.

    Returns:
        A `ParallelGuarantee`.

    Raises:
        ValueError: If there is none, or relations differ.

    Example:
        >>> from dp_accounting import dp_event as dpe
        >>> parallel_guarantee(Guarantee(dpe.GaussianDpEvent(2.0))).relation.name
        'ADD_OR_REMOVE_ONE'
    """
    return ParallelGuarantee(parts)
