"""Noise scales and events for query release."""

import math
from typing import TypeAlias

import jax
import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.core import check_finite
from dpjax.privacy import Budget, PureZCDpEvent, calibrate_gaussian, check_budget, zcdp_budget
from dpjax.privacy._budget import relation_factor
from dpjax.privacy.bounded_range._curve import bounded_range_eta, bounded_range_rho

Number: TypeAlias = float | jax.Array | np.ndarray
"""A field that may be swept: one number, or several."""


def drawn_rho(budget: Budget, *, failure: float = 0.0) -> float:
    """Zero-concentrated budget; a hair less, since it is divided and multiplied again."""
    relation = check_budget(budget).relation_or("replace_one")
    return (1 - 1e-6) * zcdp_budget(budget, relation=relation, failure_probability=failure)


def largest_range(budget: Budget, draws: int) -> float:
    """The bounded range that each of so many draws may have."""
    check_finite("epsilon", budget.epsilon)
    pure = budget.epsilon / draws
    if budget.delta == 0:
        return pure
    return max(pure, float(bounded_range_eta(drawn_rho(budget) / draws)))


def drawn_event(change: float, noise_scale: float, *, pure: bool = False) -> dpe.DpEvent:
    """Event of one draw whose scores change by a vector of range `change`.

    Args:
      change: Range of the change of the scores.
      noise_scale: Of Gumbel noise, or of Laplace noise if `pure`.
      pure: Whether only pure DP is known of the draw.
    """
    if noise_scale == 0:
        return dpe.NonPrivateDpEvent()
    eta = change / noise_scale
    rho = eta * math.tanh(eta / 2) if pure else float(bounded_range_rho(eta))
    return PureZCDpEvent(rho, epsilon=eta)


def gaussian_event(sensitivity: float, stddev: float, relation: str) -> dpe.DpEvent:
    """Event of Gaussian noise on a vector of this l2 sensitivity under `relation`.

    A noise multiplier is relative to the add-or-remove sensitivity, which `Guarantee` doubles under
    replace-one.
    """
    if stddev == 0 or sensitivity == 0:
        return dpe.NonPrivateDpEvent() if sensitivity else dpe.NoOpDpEvent()
    return dpe.GaussianDpEvent(relation_factor(relation) * stddev / sensitivity)


def gaussian_stddev(
    sensitivity: float, budget: Budget, *, draws: int = 1, failure: float = 0.0
) -> float:
    """The least standard deviation of each of so many releases of this l2 sensitivity."""
    relation = check_budget(budget).relation_or("replace_one")
    multiplier = calibrate_gaussian(1.0, 1, budget, relation=relation, failure_probability=failure)
    return (1 + 1e-12) * multiplier * sensitivity * math.sqrt(draws) / relation_factor(relation)


def histogram_change(relation: str) -> float:
    """L2 norm of what a record changes of the counts of the cells."""
    return math.sqrt(2) if relation == "replace_one" else 1.0
