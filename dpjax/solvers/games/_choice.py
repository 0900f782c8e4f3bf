"""Which solver of matrix games, by public numbers alone."""

import math

import numpy as np

from dpjax.privacy import Budget
from dpjax.problems import Saddle
from dpjax.solvers.games._double_oracle import LARGEST_ARRAY, DoubleOracle
from dpjax.solvers.games._nested import NestedGame

_MOST_NOISE = 0.15  # of a single release of all payoffs, in units of half their interval
_FEW_PAYOFFS = 25**2  # as many as an oracle itself may measure
_MOST_NOISE_OF_ONE = 0.016  # in a single payoff; with more, the check of an oracle says little


def solver_for_game(problem: Saddle, num_records: int, budget: Budget) -> NestedGame | DoubleOracle:
    r"""The solver of a matrix game that should do best, by public numbers.

    - `NestedGame` where all payoffs can be held, at most 4e6, and one of these holds: a single
      release of all has noise of at most .15 of half their interval,
      $c \sqrt{d_x d_y} / (n \mu) \le .15$; there are at most 625 payoffs; noise on a single one,
      $c / (n \mu)$, is above .016, with which the check of an oracle says little.
    - `DoubleOracle` otherwise. Its check finds out whether few strategies matter, and its fallback
      is the nested measurement where all payoffs can be held and that noise is at most 1.

    Guarantee: none of its own; that of the solver. The choice looks at no data.

    Args:
      problem: `Saddle` of a loss affine in each block, with `payoff_interval` (*public*).
      num_records: *Public* number of records (or near it, under add-or-remove-one).
      budget: epsilon, delta > 0 and relation to meet; the relation defaults to replace-one
        (*public*).

    Returns:
      The solver, made by its `for_budget`.

    Raises:
      ValueError: If a value is outside its bound, the loss is not affine in each block, or the
        budget cannot be met.
      TypeError: If the problem is no `Saddle`, or `num_records` no integer.

    Example:
      >>> import dpjax
      >>> game = dpjax.problems.Saddle.matrix_game((1000, 1000))
      >>> type(solver_for_game(game, 30_000, dpjax.Budget(1.0, 1e-6))).__name__
      'DoubleOracle'
    """
    nested = NestedGame.for_budget(problem, num_records, budget)
    payoffs = math.prod(domain.num_vertices for domain in problem.domains)
    # the multiplier has c / mu already
    of_one = np.asarray(nested.noise_multiplier).item() / num_records
    clear = math.sqrt(payoffs) * of_one <= _MOST_NOISE
    if payoffs <= LARGEST_ARRAY and (
        clear or payoffs <= _FEW_PAYOFFS or of_one > _MOST_NOISE_OF_ONE
    ):
        return nested
    return DoubleOracle.for_budget(problem, num_records, budget)
