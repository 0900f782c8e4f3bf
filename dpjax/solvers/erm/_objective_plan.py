"""Noise of objective perturbation for a budget: slopes, second moments, what hides inaccuracy."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from dpjax.core import check_between, check_positive
from dpjax.privacy import (
    Budget,
    ObjectivePerturbationGuarantee,
    SlopeBounds,
    plan_objective_perturbation,
)
from dpjax.privacy._budget import relation_name
from dpjax.privacy._warnings import warn_of_noise
from dpjax.privacy.objective_perturbation._guarantee import mean_square
from dpjax.problems import LinearModel
from dpjax.solvers.erm._minimise import MOST_NEWTON_DIM
from dpjax.solvers.erm._moments import MOST_ROWS, statistics_change, swamped

_SPARED = 2e-6  # of epsilon: within half of that a guarantee finds its own
_HIDDEN = {"gaussian": 0.1, "gamma": 0.02}  # share of the noise's cost that hides inaccuracy
# noise's length over records and the largest gradient; what slopes of a logistic loss are held to
_NOISES, _SLOPES = (0.0, 0.002, 0.01, 0.03), (1.0, 0.75, 0.75, 0.65)
_GRAM_SHARE = 0.1  # of the precision
_MOST_SWAMPED = 0.11  # of a sum of squared inputs of norm 1, which noise alone may reach
# 1 to 4 were compared on 21 cells of 11 tables, n epsilon of 150 and 300: none is better in all
_FEW_GROWTH = 3.0
_MOST_NOISE = 0.15  # over the longest sum of gradients


class NoisePlan(NamedTuple):
    """Noise and its cost; all *public*.

    Attributes:
      guarantee: Of the minimiser, with what comes before and after it.
      inaccuracy: Distance of the computed from the exact minimiser over the deviation, or scale,
        of the noise that hides it, times two.
      slope_share: To which slopes are held, of their bound; None for all of it.
      gram_stddev: Of second moments; None without.
    """

    guarantee: ObjectivePerturbationGuarantee
    inaccuracy: float
    slope_share: float | None
    gram_stddev: float | None


def held_bounds(own: SlopeBounds, share: float, *, in_metric: bool) -> SlopeBounds:
    """Bounds on one record's slopes, held to a share of their own bound.

    Of inputs in a metric it is not known how their directions and slopes depend, which a smaller
    `change` follows from.
    """
    slope = share * own.slope
    change = 2 * slope if in_metric else min(own.largest_change, 2 * slope)
    return SlopeBounds(own.curvature, slope, own.two_sided, change, adaptive=in_metric)


def planned(
    problem: LinearModel,
    num_records: int,
    left: Budget,
    draw: float,
    *,
    counted: bool,
    lam: float | None,
    share: float | None,
) -> NoisePlan:
    r"""Noise that meets what is left of a budget, by the rule of public numbers.

    Slopes of a logistic loss are held to 0.75 of the longest input where noise is 0.002 to 0.01 of
    the number of records times that, to 0.65 from 0.03 on, and to more below. This was chosen on 24
    synthetic instances (d = 5 to 100, n = 500 to 100,000, epsilon 0.25 to 4), where the excess was
    0.45 to 1.05 times that without, if it was more than 0.001.

    Args:
      problem: Its bounds, link and ball (*public*).
      num_records: *Public*.
      left: Without what a threshold costs.
      draw: Bounded range of a length's draw, of which there are two with second moments.
      counted: Whether the regulariser follows from the number of records too.
      lam: The regulariser; None for the rule.
      share: The share of the precision that is spent on second moments; None for 0.1 where the
        problem has no ball and their noise is at most 0.11 of the number of records. Both were
        chosen on nine binary and nine numeric columns of real tables (n = 2,500 to 96,000).

    Raises:
      ValueError: If the budget cannot be met, or the share is outside its bound.

    Warns:
      NoiseWarning: If noise is at least 0.15 of the longest sum of gradients of all records.
        There, of three kinds of instances with 10 to 100 features and 300 to 5,000 records, the
        logistic loss fell by at most 8% of what it can, and a Huber model's absolute error was
        above a constant's.
    """
    own, relation = problem.slope_bounds(), relation_name(left.relation_or("replace_one"))

    def made(
        slope: float, share: float, like: ObjectivePerturbationGuarantee | None = None
    ) -> ObjectivePerturbationGuarantee:
        """At the rule's regulariser and kind of noise, or with what else is released as `like`."""
        epsilon = left.epsilon * (1 - _SPARED) - (2 if share else 1) * draw
        check_positive("epsilon that is left after length_range", epsilon)
        # to Gaussian noise of second moments only the cost of such noise adds up
        noise = "gaussian" if share else None
        return plan_objective_perturbation(
            dataclasses.replace(left, epsilon=epsilon),
            held_bounds(own, slope, in_metric=share > 0),
            problem.num_params,
            problem.radius,
            num_records=num_records if counted else None,
            lam=lam if like is None else like.lam,
            noise=noise if like is None else like.noise,
            tolerance=0.0 if like is None else math.hypot(_HIDDEN[like.noise], math.sqrt(share)),
        )

    def finished(slope: float, share: float) -> NoisePlan:
        first = made(slope, share)
        plan, hidden = made(slope, share, first), _HIDDEN[first.noise]
        unit = plan.tolerance / math.hypot(hidden, math.sqrt(share))
        gram = statistics_change(1 / (unit * math.sqrt(share)), 0.0, relation) if share else None
        held = slope if problem.link == "logistic" else None
        return NoisePlan(plan, unit * hidden, held, gram)

    slope = 1.0
    if problem.link == "logistic":
        noise = math.sqrt(mean_square(made(slope, 0.0), problem.num_params)) / num_records
        steepest = np.interp(noise / problem.input_bound, _NOISES, _SLOPES) * problem.input_bound
        slope = float(np.float32(min(1.0, steepest / own.slope)))  # as it is in a run
    check_between("gram_share", share, 0, 0.9)
    if share and (problem.radius is not None or left.delta == 0):
        raise ValueError(
            f"gram_share must be 0 for a ball, or delta 0, got {share} with "
            f"radius={problem.radius}, delta={left.delta}"
        )
    may = share is None and problem.radius is None and left.delta > 0 and draw > 0
    may &= problem.num_params <= MOST_NEWTON_DIM and num_records <= MOST_ROWS
    plan = finished(slope, _GRAM_SHARE if may else share or 0.0)
    gram, most = plan.gram_stddev, _MOST_SWAMPED * num_records
    if may and gram is not None and swamped(gram, problem.num_params) > most:
        plan = finished(slope, 0.0)
    noise = math.sqrt(mean_square(plan.guarantee, problem.num_params))
    ratio = noise / (num_records * own.slope)
    if ratio >= _MOST_NOISE:
        warn_of_noise(
            f"the noise is {ratio:.2g} of the longest that a sum of gradients can be, with "
            f"{problem.num_params} parameters and num_records = {num_records}: but for what nearly "
            "all records have in common, hardly anything is learned; ask for a larger epsilon, or "
            "use more records or fewer features"
        )
    return plan


def least_growth(
    problem: LinearModel, plan: ObjectivePerturbationGuarantee, num_records: int, *, few: bool
) -> float:
    """What lambda is at least, for a Huber loss at its largest threshold, for the noise of a plan.

    On a ball the best ridge for equal variances and an optimum as long as its radius. With few
    records and no ball thrice that for an optimum whose predictions are as large as labels may be.
    With draws of labels and this, the squared error was 0.64 to 1.14 of a constant's on 20 cells of
    11 tables that nothing was chosen on (0.69 to 9 without), and lower than without on 17.
    """
    dim, bounds = problem.num_params, plan.bounds
    noise = mean_square(plan, dim) / (num_records * bounds.curvature)
    if problem.radius is not None:
        return float(noise * dim / problem.radius**2)
    return float(_FEW_GROWTH * noise * (bounds.curvature / bounds.slope) ** 2) if few else 0.0
