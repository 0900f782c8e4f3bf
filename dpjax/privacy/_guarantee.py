"""Guarantees of runs, one or composed."""

import dataclasses
import decimal
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from dpjax.core import GuaranteeLike, check_delta, check_nonnegative, check_type
from dpjax.privacy._budget import RelationLike, relation_name, resolve_relation
from dpjax.privacy._warnings import warn
from dpjax.privacy.accounting import _structure as structure
from dpjax.privacy.accounting._accountant import compose
from dpjax.privacy.accounting._renyi import ORDERS, above_rounding, renyi
from dpjax.privacy.accounting._structure import EventId, UnsupportedEventError

_MAX_ITERATIONS = 200
_MOST_PARTS = 4  # each may take the accountant a quarter of a second
_SHOWN_DELTAS = (1e-5, 1e-6)
SHOWN_DELTA = "_shown_delta"  # where a solver made for a budget, and its guarantee, keep delta
_PRECISION = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
_MOST_ELEMENTS = 4
_MAX_EPSILON = 600.0


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Guarantee:
    r"""The privacy guarantee of a run: its event, its relation and what they imply.

    $\delta(\epsilon) = \delta_{event}(\epsilon) + (1 + e^\epsilon) p$

    Guarantee: every epsilon and delta is an upper bound. A noise multiplier in the event is
    relative to the add-or-remove sensitivity under every relation; under replace_one the doubled
    sensitivity is put in here, whichever accountant is used. The rho of a `ZCDpEvent` is for the
    relation at hand.

    Equal and hashable by value, and a static pytree node without leaves, so a solution holding one
    can be returned from `jax.jit` and `jax.vmap`. Construction checks support and composes nothing.

    Args:
        event: The `dp_accounting.DpEvent` of the whole run. Several releases from one Poisson batch
            are `PoissonSampledDpEvent(rate, ComposedDpEvent([...]))` of Gaussian and Laplace.
        relation: A `dp_accounting.NeighboringRelation` or its lower-case name.
        failure_probability: p in [0, 1): over all steps together, the probability (under any data)
            that the run deviates from the event, e.g. that a batch was too large and was cut.

    Raises:
        UnsupportedEventError: If no accountant composes the event under this relation.
        TypeError: If the event is none, or holds a traced value.
        ValueError: If a value is outside its bound.

    Example:
        >>> from dp_accounting import dp_event as dpe
        >>> guarantee = Guarantee(dpe.GaussianDpEvent(2.0))
        >>> round(guarantee.epsilon(1e-5), 3)
        1.993
        >>> guarantee.delta(1.994) <= 1e-5
        True

    Source: Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022), "Connect the dots"; Mironov
    (2017), Rényi differential privacy.
    """

    event: dpe.DpEvent = dataclasses.field(compare=False)  # `_id` compares it
    relation: RelationLike = "add_or_remove_one"
    failure_probability: float = 0.0
    _id: EventId = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_delta("failure_probability", self.failure_probability)
        object.__setattr__(self, "relation", resolve_relation(self.relation))
        object.__setattr__(self, "_id", EventId(self.event, self.relation))
        structure.route(structure.flatten(self.event), self._id.relation)

    def __repr__(self) -> str:
        """Relation, epsilon at the budget's or two common deltas, and event; never raises."""
        failure = float(self.failure_probability)
        shown = f", failure_probability={failure:.3g}" if failure else ""
        return (
            f"Guarantee(relation={relation_name(self.relation)!r}{shown})\n"
            f"  {epsilon_line(self)}\n  event {event_summary(self.event)}"
        )

    def epsilon(self, delta: float) -> float:
        """The least epsilon >= 0 with delta(epsilon) <= delta, or infinity.

        Args:
            delta: In [0, 1). *Public*. At 0 it is the pure epsilon, the sum over what is released:
                known for Laplace and K-norm noise, pure trees and draws of bounded range.

        Returns:
            An upper bound on the true epsilon.

        Warns:
            DeltaWarning: If it is infinity for no other reason than the failure probability, of
                which delta has to hold (1 + e^epsilon) times as much.

        Raises:
            ValueError: If delta is outside [0, 1), or is 0 with a failure probability.
            UnsupportedEventError: If delta is 0 and the event has no pure epsilon.

        Example:
            >>> Guarantee(dpe.NoOpDpEvent()).epsilon(1e-5)
            0.0
            >>> Guarantee(dpe.LaplaceDpEvent(4.0)).epsilon(0.0)
            0.25
        """
        epsilon = quiet_epsilon(self, delta)
        failure = float(self.failure_probability)
        if epsilon == math.inf and failure and _total_epsilon(self._id, 0.0, delta) < epsilon:
            warn(
                f"epsilon is infinite at delta = {delta:.3g}, which has to hold (1 + e^epsilon) "
                f"times failure_probability = {failure:.3g}: ask for a larger delta or, where that "
                "is of batches with more members than slots, enlarge the sampler's capacity"
            )
        return epsilon

    def delta(self, epsilon: float) -> float:
        """delta(epsilon), failure included, at most 1.

        Args:
            epsilon: Finite and >= 0. *Public*.

        Returns:
            An upper bound on the true delta.

        Raises:
            ValueError: If epsilon is negative or not finite.

        Example:
            >>> Guarantee(dpe.NonPrivateDpEvent()).delta(1.0)
            1.0
        """
        check_nonnegative("epsilon", epsilon)
        event, failure = compose(self._id).delta(epsilon), float(self.failure_probability)
        if failure:  # in logs: e^epsilon alone may overflow
            log_growth = epsilon + math.log1p(math.exp(-epsilon))
            event += math.exp(min(math.log(failure) + log_growth, 0.0))
        return min(1.0, event)


def quiet_epsilon(guarantee: Guarantee, delta: float) -> float:
    """`guarantee.epsilon(delta)` for searches, which try what no warning is due for."""
    check_delta("delta", delta)
    if delta == 0:
        pure = structure.pure_epsilon(structure.flatten(guarantee.event), guarantee._id.relation)
        if guarantee.failure_probability:
            raise ValueError(
                "delta must be > 0 to hold failure_probability = "
                f"{float(guarantee.failure_probability):.3g}, got {delta!r}: for pure privacy use "
                "FullBatch, a fixed partition, or IndependentPartition or PoissonSampler("
                "method='host') with capacity num_records + 1"
            )
        return pure
    return _total_epsilon(guarantee._id, float(guarantee.failure_probability), float(delta))


def epsilon_line(guarantee: GuaranteeLike, *deltas: float) -> str:
    """Epsilon at these deltas, the budget's or two common ones, rounded up, for reprs. Total."""
    known = vars(guarantee).get(SHOWN_DELTA)
    deltas = deltas or (_SHOWN_DELTAS if known is None else (known,))
    try:
        event_decides = getattr(type(guarantee), "epsilon", None) is Guarantee.epsilon
        if not (isinstance(guarantee, Guarantee) and event_decides):  # a curve of its own
            values = [guarantee.epsilon(delta) for delta in deltas]
        elif len(structure.flatten(guarantee.event)) <= _MOST_PARTS:
            values = [quiet_epsilon(guarantee, delta) for delta in deltas]
        else:
            return "epsilon takes long to compute: ask .epsilon(delta)"
    except Exception as error:  # a repr must not raise
        return f"epsilon not known: {type(error).__name__}"
    shown = [f"{rounded_up(e)} at delta {delta:g}" for e, delta in zip(values, deltas, strict=True)]
    return f"epsilon {', '.join(shown)}{'' if min(values) < math.inf else ' (not private)'}"


@functools.lru_cache(maxsize=4096)
def _total_epsilon(which: EventId, failure: float, delta: float) -> float:
    """Least fixed point of e -> epsilon_event(delta - (1 + e^e) failure), approached from below."""
    curve = compose(which)
    if failure == 0:
        return curve.epsilon(delta)

    def room(epsilon: float) -> float:
        return delta - failure * (1 + math.exp(min(epsilon, 700.0)))

    epsilon, before = 0.0, None
    for _ in range(_MAX_ITERATIONS):
        if room(epsilon) <= 0:
            return math.inf
        needed = curve.epsilon(room(epsilon))
        if needed <= epsilon:
            return epsilon
        following = needed
        if before is not None:
            # the map is convex, so a secant stays below the fixed point too, and gets there faster
            slope = (needed - before[1]) / (epsilon - before[0])
            secant = epsilon + (needed - epsilon) / (1 - slope) if slope < 1 else math.inf
            following = secant if room(secant) > 0 else needed
        before = epsilon, needed
        epsilon = following * (1 + 1e-9) + 1e-12  # so that in the end it lies above, not below
    return math.inf


def event_summary(event: object) -> str:
    """An event's structure and numbers, without class suffixes and field names, on one line."""
    if isinstance(event, dpe.SelfComposedDpEvent):
        return f"{event.count} x {event_summary(event.event)}"
    if isinstance(event, dpe.DpEvent):
        inner = ", ".join(map(event_summary, structure.event_fields(event).values()))
        return f"{type(event).__name__.removesuffix('DpEvent')}({inner})"
    if isinstance(event, Sequence) and not isinstance(event, str):
        shown = [event_summary(each) for each in event[:_MOST_ELEMENTS]]
        return ", ".join(shown + [f"... {len(event)} in all"] * (len(event) > _MOST_ELEMENTS))
    return f"{event:.4g}" if isinstance(event, float) else str(event)


def rounded_up(epsilon: float) -> str:
    """Four digits, never below."""
    return "inf" if epsilon == math.inf else str(_PRECISION.create_decimal_from_float(epsilon))


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
        divergence = above_rounding(np.sum([curve.divergence for curve in curves], axis=0))
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
