"""Capacity of Poisson batches, and the probability of overflow."""

import bisect
import functools
import math

from scipy import stats

from dpjax.core._checks import check_int, check_positive_scalar, check_probability, check_rate
from dpjax.core._records import whole_rows

# of delta, which overflow costs at most with the default capacity
DELTA_SHARE = 0.01
MULTIPLE = 32
# Where every member has to be seen, a batch with more members than draws has this probability.
_LOG_UNSEEN = math.log(1e-20)
_VECTOR = 32


def overflow_probability(num_records: int, rate: float, capacity: int) -> float:
    """Probability that one Poisson batch has more members than slots.

        P[Binomial(num_records, rate) > capacity]

    Args:
      num_records: number of records (public).
      rate: probability with which each takes part, in (0, 1] (public).
      capacity: number of slots (public).

    Returns:
      The probability, accurate in relative terms far into the tail.

    Raises:
      TypeError: `num_records` or `capacity` is not an integer, or `rate` not a number.
      ValueError: an argument is outside its range.

    Example:
      >>> overflow_probability(2, 0.5, 1)
      0.25
    """
    check_int("num_records", num_records, minimum=1)
    check_rate("rate", rate)
    check_int("capacity", capacity, minimum=1)
    return float(stats.binom.sf(capacity, num_records, rate))


def poisson_capacity(
    num_records: int, rate: float, steps: int, *, delta: float, epsilon: float
) -> int:
    """Smallest capacity at which overflow costs at most one hundredth of delta.

    A run that deviates with total probability `steps * p` from one that is
    `(epsilon, delta)`-private is `(epsilon, delta + (1 + e^epsilon) * steps * p)`-private,
    whatever it does where it deviates. So the capacity is the smallest integer `B` with

        steps * P[Binomial(num_records, rate) > B] * (1 + e^epsilon) <= 0.01 * delta

    Args:
      num_records: number of records of the larger of two neighbours (public).
      rate: probability with which each record takes part, in (0, 1] (public).
      steps: number of batches (public).
      delta: the delta of the target, in (0, 1).
      epsilon: the epsilon of the target, > 0.

    Returns:
      The capacity, between 1 and `num_records`.

    Raises:
      ValueError: an argument is outside its range.
      TypeError: an argument is not a number, or `num_records` or `steps` not an integer.

    Example:
      >>> poisson_capacity(36_000, 512 / 36_000, 5000, delta=1e-5, epsilon=3.0)
      678
    """
    check_int("num_records", num_records, minimum=1)
    check_rate("rate", rate)
    check_int("steps", steps, minimum=1)
    check_probability("delta", delta)
    check_positive_scalar("epsilon", epsilon)
    return _capacity(int(num_records), float(rate), int(steps), float(delta), float(epsilon))


@functools.lru_cache(maxsize=256)
def _capacity(num_records: int, rate: float, steps: int, delta: float, epsilon: float) -> int:
    # in the log domain, as e^epsilon may overflow
    log_one_plus_exp = epsilon + math.log1p(math.exp(-epsilon))
    log_probability = math.log(DELTA_SHARE) + math.log(delta) - math.log(steps) - log_one_plus_exp
    return smallest_capacity(num_records, rate, log_probability)


def smallest_capacity(num_records: int, rate: float, log_probability: float) -> int:
    """Smallest `B >= 1` with `log P[Binomial(num_records, rate) > B] <= log_probability`.

    A search, since the inverse survival function of SciPy loses the far tail.
    """

    def rare(capacity: int) -> bool:
        return bool(stats.binom.logsf(capacity, num_records, rate) <= log_probability)

    # more than num_records is impossible
    return bisect.bisect_left(range(num_records), True, 1, key=rare)


@functools.lru_cache(maxsize=256)
def draws_needed(num_records: int, rate: float, capacity: int, *, see_all: bool) -> int:
    """How many gaps a step draws: one a slot, or enough to see every member of the batch.

    Rounded up to whole vectors, without which compiled code is several times slower.
    """
    draws = capacity
    if see_all:
        draws = max(draws, smallest_capacity(num_records + 1, rate, _LOG_UNSEEN))
    return -(-draws // _VECTOR) * _VECTOR


def default_capacity(
    num_records: int, rate: float, steps: int, delta: float = 1e-5, epsilon: float = 10.0
) -> int:
    """Capacity of a Poisson batch when none is asked for.

    `poisson_capacity` for `num_records + 1` records (a neighbour may have one more), or as many
    if that is less, rounded up to a multiple of 32, or to a power of two below that: XLA may
    compute rows left over from such blocks differently, and one record shifts the rows of others.

    Args:
      num_records: public upper bound on the number of records.
      rate: probability with which each record takes part, in (0, 1] (public).
      steps: number of batches (public).
      delta: the delta of the target; overflow costs at most a hundredth of it.
      epsilon: the largest epsilon for which that holds.

    Returns:
      The capacity.

    Raises:
      ValueError: an argument is outside its range.
      TypeError: `num_records` is not an integer.

    Example:
      >>> default_capacity(36_000, 512 / 36_000, 3000)
      704
      >>> default_capacity(100, 1.0, 10)
      128
    """
    check_int("num_records", num_records, minimum=1)
    exact = poisson_capacity(num_records + 1, rate, steps, delta=delta, epsilon=epsilon)
    return whole_rows(min(math.ceil(exact / MULTIPLE) * MULTIPLE, num_records + 1))
