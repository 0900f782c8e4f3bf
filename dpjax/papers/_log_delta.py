"""The logarithm that published formulas take of delta."""

import math

from dpjax.privacy import Budget


def log_inverse_delta(budget: Budget) -> float:
    """log(1 / delta), which published settings are made of.

    Raises:
      ValueError: If delta is 0.
    """
    if budget.delta == 0:
        raise ValueError("delta must be > 0 with as_published, whose formulas need it, got 0.0")
    return math.log(1 / budget.delta)
