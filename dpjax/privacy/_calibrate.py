"""The least noise, or the most steps, that a budget allows."""

import functools
import math
from collections.abc import Callable

from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe
from scipy import optimize

from dpjax.core._checks import check_finite, check_int, check_nonnegative, check_rate
from dpjax.privacy._budget import Budget, RelationLike, check_budget, relation_name
from dpjax.privacy._guarantee import Guarantee, quiet_epsilon

_TOLERANCE = 5e-5  # relative, on the noise multiplier
_MAX_LOG_NOISE = math.log(1e12)
_MIN_LOG_NOISE = math.log(1e-3)
_MAX_STEPS = 2**24


def calibrate_noise(
    make_event_from_noise: Callable[[float], dpe.DpEvent],
    budget: Budget,
    *,
    relation: RelationLike | None = None,
    failure_probability: float = 0.0,
) -> float:
    """The least noise multiplier whose guarantee meets the budget, rounded up.

    min { z : Guarantee(make_event(z), relation, failure_probability).epsilon(delta) <= epsilon }

    Guarantee: never above the budget; above the exact minimum by less than a factor 1.0001.

    Args:
        make_event_from_noise: From a noise multiplier to the event of the whole run; more noise
            must not mean a larger epsilon. *Public*.
        budget: What must hold. *Public*.
        relation: The relation of the guarantee. Defaults to the budget's, else add_or_remove_one.
        failure_probability: As in `Guarantee`.

    Returns:
        The noise multiplier.

    Raises:
        ValueError: If no noise meets the budget, hardly any is needed (below 0.001), or `relation`
            contradicts the budget's.
        UnsupportedEventError: If no accountant composes the event, or the budget's delta is 0 and
            the event has no pure epsilon.

    Example:
        >>> from dp_accounting import dp_event as dpe
        >>> noise = calibrate_noise(dpe.GaussianDpEvent, Budget(1.0, 1e-5))
        >>> 3.7306 <= noise <= 3.7312
        True
    """
    resolved = agreed_relation(budget, relation)
    check_finite("epsilon", budget.epsilon)
    check_nonnegative("failure_probability", failure_probability)
    if budget.delta == 0:  # refused here where there is no pure epsilon
        quiet_epsilon(Guarantee(make_event_from_noise(1.0), resolved, failure_probability), 0.0)
    elif 2 * failure_probability >= budget.delta:  # at infinite noise epsilon 0 costs 2 p
        raise ValueError(
            f"failure_probability must be < delta / 2 = {budget.delta / 2!r} to leave room for "
            f"noise, got {failure_probability!r}: ask for a larger delta, or, where it is the "
            "probability that a Poisson batch overflows, for a sampler of more capacity"
        )

    @functools.cache
    def excess(log_noise: float) -> float:
        """Of log epsilon over its target, clipped; about linear in the log of the noise."""
        event = make_event_from_noise(math.exp(log_noise))
        guarantee = Guarantee(event, resolved, failure_probability)
        ratio = quiet_epsilon(guarantee, budget.delta) / budget.epsilon
        return min(max(math.log(max(ratio, 1e-9)), -20.0), 20.0)

    low, high = _bracket(excess, budget)
    root = optimize.brentq(excess, low, high, xtol=_TOLERANCE / 4, rtol=1e-14)
    for step in (0.0, _TOLERANCE / 2, _TOLERANCE):
        if excess(root + step) <= 0:
            return math.exp(root + step)
    return math.exp(high)  # a curve that is not monotone at this scale: still within budget


def _bracket(excess: Callable[[float], float], budget: Budget) -> tuple[float, float]:
    """Log noises (too little, enough), doubling or halving from 1; low noise is slow to compose."""
    low = high = 0.0
    if excess(0.0) > 0:
        while (over := excess(high)) > 0:
            if high > _MAX_LOG_NOISE:
                raise ValueError(
                    f"no noise multiplier up to {math.exp(high):.3g} meets epsilon="
                    f"{budget.epsilon!r} at delta={budget.delta!r}"
                )
            low, high = high, high + min(1.1 * over + 0.05, math.log(8))
    else:
        while (under := excess(low)) <= 0:
            if low < _MIN_LOG_NOISE:
                raise ValueError(
                    f"epsilon={budget.epsilon!r} at delta={budget.delta!r} needs hardly any noise: "
                    f"a multiplier of {math.exp(low):.3g} already meets it"
                )
            low, high = low - min(-0.6 * under + 0.05, math.log(2)), low
    return low, high


def calibrate_gaussian(
    rate: float,
    steps: int,
    budget: Budget,
    *,
    relation: RelationLike | None = None,
    failure_probability: float = 0.0,
) -> float:
    """The least effective noise multiplier for `steps` Gaussian releases of Poisson batches.

    `calibrate_noise` of SelfComposed(PoissonSampled(rate, Gaussian(z)), steps).

    Guarantee: never above the budget; at rate 1 the event is unsampled.

    Args:
        rate: Poisson sampling rate in (0, 1]. *Public*.
        steps: Number of steps, >= 1. *Public*.
        budget: What must hold. *Public*.
        relation: The relation of the guarantee. Defaults to the budget's, else add_or_remove_one.
        failure_probability: As in `Guarantee`.

    Returns:
        The noise multiplier.

    Raises:
        ValueError: As `calibrate_noise`, or if a value is outside its bound.
        TypeError: If `rate` is not a number, or `steps` not an integer.

    Example:
        >>> noise = calibrate_gaussian(512 / 36000, 3000, Budget(1.0, 1e-5))
        >>> round(noise, 2)
        3.02
    """
    check_rate("rate", rate)
    check_int("steps", steps, minimum=1)

    def make_event(noise: float) -> dpe.DpEvent:
        step = dpe.PoissonSampledDpEvent(float(rate), dpe.GaussianDpEvent(noise))
        return dpe.SelfComposedDpEvent(step, int(steps))

    return calibrate_noise(
        make_event, budget, relation=relation, failure_probability=failure_probability
    )


def zcdp_budget(
    budget: Budget, *, relation: RelationLike | None = None, failure_probability: float = 0.0
) -> float:
    """The largest rho such that rho-zero-concentrated DP meets the budget, rounded down.

    max { rho : Guarantee(ZCDpEvent(rho), relation, failure).epsilon(delta) <= epsilon }

    Guarantee: never above the budget; below the exact maximum by less than a factor 1.0001.

    Args:
        budget: What must hold. *Public*.
        relation: The relation of the guarantee. Defaults to the budget's, else add_or_remove_one.
        failure_probability: As in `Guarantee`.

    Returns:
        rho > 0. k draws of bounded range eta each spend `k * eta**2 / 8` of it.

    Raises:
        ValueError: If no noise meets the budget, as with delta = 0, or `relation` contradicts the
            budget's.

    Example:
        >>> round(zcdp_budget(Budget(1.0, 1e-6)), 4)
        0.0244

    Source: Bun and Steinke 2016 (zero-concentrated DP); Dong, Durfee and Rogers 2020 (bounded
    range).
    """

    def event(noise: float) -> dpe.DpEvent:
        return dpe.ZCDpEvent(1 / (2 * noise**2))

    noise = calibrate_noise(
        event, budget, relation=relation, failure_probability=failure_probability
    )
    return 1 / (2 * noise**2)


def max_steps(
    make_event_from_steps: Callable[[int], dpe.DpEvent],
    budget: Budget,
    *,
    relation: RelationLike | None = None,
    failure_probability_per_step: float = 0.0,
) -> int:
    """The largest number of steps whose guarantee meets the budget.

    max { T : Guarantee(make_event(T), relation, T * failure).epsilon(delta) <= epsilon }

    Guarantee: never above the budget.

    Args:
        make_event_from_steps: From a number of steps to the event of the whole run. *Public*.
        budget: What must hold. *Public*.
        relation: The relation of the guarantee. Defaults to the budget's, else add_or_remove_one.
        failure_probability_per_step: `Guarantee`'s failure probability, per step.

    Returns:
        The number of steps, 0 if not even one is allowed.

    Raises:
        ValueError: If 2^24 steps are still within budget.

    Example:
        >>> from dp_accounting import dp_event as dpe
        >>> make_event = lambda steps: dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(10.0), steps)
        >>> max_steps(make_event, Budget(1.0, 1e-5))
        7
    """
    resolved = agreed_relation(budget, relation)
    check_finite("epsilon", budget.epsilon)

    def fits(steps: int) -> bool:
        failure = steps * failure_probability_per_step
        if failure >= 1:
            return False
        guarantee = Guarantee(make_event_from_steps(steps), resolved, failure)
        return quiet_epsilon(guarantee, budget.delta) <= budget.epsilon

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
        if high > _MAX_STEPS:
            raise ValueError(f"{low} steps are within epsilon={budget.epsilon!r}: add no noise?")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def agreed_relation(budget: Budget, relation: RelationLike | None) -> NeighboringRelation:
    """The budget's relation, or this one where it has none; they may not contradict."""
    agreed = check_budget(budget).relation_or("add_or_remove_one" if relation is None else relation)
    if relation is not None and relation_name(relation) != relation_name(agreed):
        raise ValueError(
            f"relation must be the budget's, {relation_name(agreed)}, got {relation_name(relation)}"
        )
    return agreed
