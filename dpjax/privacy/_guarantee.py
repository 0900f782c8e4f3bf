"""What a solver gives: an event and the privacy curve that follows from it."""

import dataclasses
import functools
import math

import jax
from dp_accounting import dp_event as dpe

from dpjax.core._checks import check_delta, check_nonnegative
from dpjax.privacy._delta_warning import warn_of_delta
from dpjax.privacy._relations import RelationLike, relation_name, resolve_relation
from dpjax.privacy._summary import epsilon_summary, event_summary
from dpjax.privacy.accounting._accountant import EventId, check_supported, compose
from dpjax.privacy.accounting._pure import pure_epsilon

_MAX_ITERATIONS = 200
_SHOWN_DELTAS = (1e-5, 1e-6)
SHOWN_DELTA = "_shown_delta"  # where a solver made for a budget, and its guarantee, keep delta


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
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

    event: dpe.DpEvent
    relation: RelationLike = "add_or_remove_one"
    failure_probability: float = 0.0
    _id: EventId = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        relation = resolve_relation(self.relation)
        check_nonnegative("failure_probability", self.failure_probability)
        if self.failure_probability >= 1:
            raise ValueError(f"failure_probability must be < 1, got {self.failure_probability!r}")
        object.__setattr__(self, "relation", relation)
        object.__setattr__(self, "_id", EventId(self.event, relation))
        check_supported(self.event, relation)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Guarantee)
            and self._id == other._id
            and self.failure_probability == other.failure_probability
        )

    def __hash__(self) -> int:
        return hash((self._id, self.failure_probability))

    def __repr__(self) -> str:
        """Relation, epsilon at the budget's or two common deltas, and event; never raises."""
        failure = f", failure_probability={self.failure_probability:.3g}"
        head = f"Guarantee(relation={relation_name(self.relation)!r}"
        return "\n  ".join(
            (
                f"{head}{failure if self.failure_probability else ''})",
                epsilon_line(self),
                f"event {event_summary(self.event)}",
            )
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
        if (
            epsilon == math.inf
            and failure
            and _total_epsilon(self._id, 0.0, float(delta)) < epsilon
        ):
            warn_of_delta(
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
        event = float(compose(self._id).delta(epsilon))
        return min(1.0, event + _failure(self, epsilon))


def quiet_epsilon(guarantee: Guarantee, delta: float) -> float:
    """`guarantee.epsilon(delta)` for searches, which try what no warning is due for."""
    check_delta("delta", delta)
    if delta == 0:
        pure = pure_epsilon(guarantee.event, guarantee._id.relation)
        if guarantee.failure_probability:
            raise ValueError(
                "delta must be > 0 to hold failure_probability = "
                f"{float(guarantee.failure_probability):.3g}, got {delta!r}: for pure privacy use "
                "FullBatch, a fixed partition, or IndependentPartition or PoissonSampler("
                "method='host') with capacity num_records + 1"
            )
        return pure
    return _total_epsilon(guarantee._id, float(guarantee.failure_probability), float(delta))


def epsilon_line(guarantee: Guarantee, *deltas: float) -> str:
    """Epsilon at these deltas, the budget's or two common ones, for reprs: rounded up, total."""
    at = functools.partial(quiet_epsilon, guarantee)
    known = vars(guarantee).get(SHOWN_DELTA)
    at_budget = _SHOWN_DELTAS if known is None else (known,)
    if not isinstance(guarantee, Guarantee):  # a curve without an event
        return epsilon_summary(guarantee.epsilon, dpe.NoOpDpEvent(), deltas or at_budget)
    return epsilon_summary(at, guarantee.event, deltas or at_budget)


def _failure(guarantee: Guarantee, epsilon: float) -> float:
    probability = guarantee.failure_probability
    # in logs: e^epsilon alone may overflow
    return math.exp(min(math.log(probability) + _log1pexp(epsilon), 0.0)) if probability else 0.0


def _log1pexp(x: float) -> float:
    return x + math.log1p(math.exp(-x))


@functools.lru_cache(maxsize=4096)
def _total_epsilon(which: EventId, failure: float, delta: float) -> float:
    """Least fixed point of e -> epsilon_event(delta - (1 + e^e) failure), approached from below."""
    curve = compose(which)
    if failure == 0:
        return float(curve.epsilon(delta))

    def room(epsilon: float) -> float:
        return delta - failure * (1 + math.exp(min(epsilon, 700.0)))

    epsilon, before = 0.0, None
    for _ in range(_MAX_ITERATIONS):
        if room(epsilon) <= 0:
            return math.inf
        needed = float(curve.epsilon(room(epsilon)))
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
