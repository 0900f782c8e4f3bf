"""Sizes of `OnlineToNonconvex` as its bounds have them: those of this library, and as published."""

import math
from typing import Any, NamedTuple

from dp_accounting import dp_event as dpe

from dpjax.core import check_choice, check_int, check_positive
from dpjax.privacy import Budget, Guarantee, calibrate_noise, check_budget
from dpjax.sampling import DisjointPartition, FullBatch
from dpjax.solvers._published import log_inverse_delta
from dpjax.solvers.nonconvex._bound_plan import (
    Plan,
    Setting,
    change_clip,
    first_clip,
    first_share,
    plan_full_batch,
    plan_single_pass,
)
from dpjax.solvers.nonconvex._smoothed_oracle import ORACLES
from dpjax.solvers.nonconvex._stationarity_bound import direction_excess
from dpjax.transforms import BinaryTree, BufferedToeplitz, RestartNoise, SplitNoise

PASSES = ("multi", "single")

_PASSES = 1000  # over the data, unless more are asked for
_MOST_DIRECTIONS = 64
_MOST_PUBLISHED = 4  # directions in a dimension; up to 10^7 were published


class Asked(NamedTuple):
    """What a solver is wanted for, all *public*; `continuous`, that the loss is Lipschitz."""

    num_records: int
    dim: int
    lipschitz: Any
    budget: Budget
    relation: str
    radius: float
    oracle: str
    continuous: bool


def asked_for(
    problem: Any, num_records: int, budget: Budget, radius: float, oracle: str, passes: str
) -> Asked:
    """The same, checked, with what the problem states and the relation that suits the passes."""
    check_int("num_records", num_records, minimum=1)
    check_positive("radius", radius)
    check_choice("oracle", oracle, ORACLES)
    check_choice("passes", passes, PASSES)
    natural = "replace_one" if passes == "single" else "add_or_remove_one"
    lipschitz = getattr(problem, "lipschitz", None)
    return Asked(
        num_records,
        problem.num_params,
        1.0 if lipschitz is None else lipschitz,
        budget,
        check_budget(budget, num_records).relation_or(natural).name.lower(),
        radius,
        oracle,
        lipschitz is not None,
    )


def stationarity_plan(
    problem: Any,
    num_records: int,
    budget: Budget,
    *,
    radius: float = 0.1,
    oracle: str = "first",
    passes: str = "multi",
    period: int = 1,
    steps: int | None = None,
    initial_gap: float = 1.0,
) -> Plan:
    """Sizes of `OnlineToNonconvex` that minimise its proved bound, and that bound.

    What `OnlineToNonconvex.for_budget(..., plan="bound")` takes: a constant schedule, and a block
    drawn uniformly. The mean distance of 0 from the gradients within `radius` of the result is at
    most `bound`, of the population for a single pass and of the data for several, as far as
    clipping is inactive: surely for gradients of norm at most `problem.lipschitz`. It says nothing
    where it is no smaller than that, and runs are often far better: it is for choosing sizes.

    Args:
      problem: Its `num_params` and `lipschitz` are used (*public*).
      num_records: n (*public*).
      budget: epsilon, delta and relation.
      radius: As in `for_budget`.
      oracle: `"first"` or `"zeroth"`.
      passes: `"single"`, or `"multi"`: of the full batch.
      period: Moves in a period.
      steps: Most moves over the full batch, 1000 unless told otherwise.
      initial_gap: How far the loss may fall from its start.

    Returns:
      `bound`, `period`, `moves`, `block`, `displacement`, `first_records`, `change_records`,
      `learning_rate`.

    Raises:
      ValueError: If a value is outside its bound.
      TypeError: If `period` is not an integer.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> problem = dpjax.problems.Risk(
      ...     loss=lambda w, rec: jnp.abs(rec["x"] @ w - rec["y"]), init=jnp.zeros(20),
      ...     lipschitz=1.0)
      >>> budget = dpjax.Budget(1.0, 1e-8, "replace_one")
      >>> plan = dpjax.solvers.stationarity_plan(problem, 10**7, budget, passes="single")
      >>> plan.bound < 0.2
      True

    Source: as `OnlineToNonconvex`, with constants.
    """
    check_int("period", period, minimum=1)
    asked = asked_for(problem, num_records, budget, radius, oracle, passes)
    if passes == "single" and steps is not None:
        raise ValueError(f"steps must be left out with passes='single', got {steps!r}")
    options = {"period": period, "steps": steps, "initial_gap": initial_gap}
    return bound_plan(asked, passes == "single", options)[1]


def bound_plan(asked: Asked, single: bool, options: dict[str, Any]) -> tuple[Setting, Plan]:
    """The setting of a budget, and the sizes that minimise the bound."""
    gap = 1.0 if options["initial_gap"] is None else options["initial_gap"]
    check_positive("initial_gap", gap)
    period = 1 if options["period"] is None else options["period"]
    z = calibrate_noise(dpe.GaussianDpEvent, asked.budget, relation=asked.relation)
    smoothing = smoothing_radius(asked, period)
    setting = Setting(
        num_records=asked.num_records,
        dim=asked.dim,
        lipschitz=float(asked.lipschitz),
        gap=float(gap),
        smoothing=smoothing,
        reach=asked.radius - smoothing,
        multiplier=z,
        directions=None if asked.oracle == "first" else min(asked.dim, _MOST_DIRECTIONS),
    )
    if single:
        return setting, plan_single_pass(setting, (period,))
    most = _PASSES if options["steps"] is None else options["steps"]
    check_int("steps", most, minimum=1)
    return setting, plan_full_batch(setting, (period,), most)


def bound_fields(asked: Asked, single: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Fields for `plan="bound"`: a constant schedule, and a block drawn uniformly."""
    setting, plan = bound_plan(asked, single, options)
    clip, change = first_clip(setting), change_clip(setting, plan.displacement)
    periods = plan.moves // plan.period
    fields: dict[str, Any] = {
        "batch_size": float(plan.first_records),
        "sampler": FullBatch(periods),
        "noise": SplitNoise(1, 1.0),
    }
    if single:
        size = plan.first_records + (plan.period - 1) * plan.change_records
        fields["sampler"] = DisjointPartition(periods, size)
    if plan.period > 1:
        fields["smoothness"] = change / (2 * plan.displacement)
        fields["noise"] = SplitNoise(plan.period, first_share(plan.period, clip, change), 0.0)
        if single:
            fields["increment_records"] = plan.change_records
            fields["noise"] = RestartNoise(BufferedToeplitz(plan.period - 1))
    return fields | _averaged(setting, clip, plan)


def published_fields(asked: Asked, single: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Fields for `as_published=True`, with the constants that were not printed set to 1.

    Directions are independent, and records of a batch have their own; one tree has all the noise of
    a period, by the printed conversion to epsilon, which is checked.
    """
    if not single:
        raise ValueError(
            "passes must be 'single' with as_published, got 'multi': its noise and period are not "
            "stated in print"
        )
    check_int("num_records with as_published", asked.num_records, minimum=3)
    gap = 1.0 if options["initial_gap"] is None else options["initial_gap"]
    check_positive("initial_gap", gap)
    n, dim, slope = asked.num_records, asked.dim, float(asked.lipschitz)
    alpha, epsilon, delta = asked.radius / 2, asked.budget.epsilon, asked.budget.delta
    moves = max(2, n // 2)
    travel = slope * moves
    far = min(
        (gap**2 * alpha / travel**2) ** (1 / 3),
        (gap * alpha * epsilon / (dim * travel)) ** (1 / 2),
        (gap**3 * alpha**2 * epsilon / (dim**1.5 * travel**3)) ** (1 / 5),
        (gap**2 * alpha / (travel**2 * dim**0.5)) ** (1 / 3),
        alpha,
    )
    period = round((alpha / (epsilon * far)) ** (2 / 3) + alpha / (far * dim**0.5))
    period = min(max(2, period), max(2, n // 4))
    block = max(1, round(alpha / (4 * far)))
    periods = max(1, n // (2 * period - 1))
    block = _common(periods * period, block)
    directions = None if asked.oracle == "first" else _MOST_PUBLISHED * dim
    setting = Setting(n, dim, slope, gap, alpha, alpha, 1.0, directions)
    clip, change = first_clip(setting), change_clip(setting, far)
    noise = BinaryTree(period)
    levels = noise.levels
    # of means over `period` records and over one, for another record in one's place
    shares = clip / period, change
    sensitivity = 2 * max(shares)
    logs = math.log(period) * log_inverse_delta(asked.budget)
    node = 4 * sensitivity * math.sqrt(logs) / epsilon
    unit = max(shares[0], shares[1] * ((levels - 1) / levels) ** 0.5)
    multiplier = node / (math.sqrt(levels) * unit)
    guarantee = Guarantee(noise.event(multiplier), asked.relation)
    if guarantee.epsilon(delta) > epsilon:
        raise ValueError(
            f"epsilon must be smaller with as_published, got {epsilon!r} at delta = {delta!r}: the "
            f"published noise has a true epsilon of {guarantee.epsilon(delta):.4g}"
        )
    spread = 0.0 if directions is None else direction_excess(dim) / directions
    error = slope**2 * (1 + spread) / period + dim * node**2 * levels / 2
    rate = far / math.sqrt((slope**2 + error) * block)
    plan = Plan(math.inf, period, periods * period, block, far, period, 1, rate)
    return _averaged(setting, clip, plan) | {
        "sampler": DisjointPartition(periods, 2 * period - 1),
        "batch_size": float(period),
        "increment_records": 1,
        "noise": noise,
        "noise_multiplier": multiplier,
        "smoothness": change / (2 * far),
        "common_directions": False,
    }


def smoothing_radius(asked: Asked, period: int) -> float:
    """Which part of the radius goes to smoothing; the rest is for the block.

    Fresh gradients need it only to be taken where there is one; differences of values must not
    drown in rounding. Changes of gradients, and values of a loss that may jump, want it large.
    """
    if period > 1 or (asked.oracle == "zeroth" and not asked.continuous):
        return asked.radius / 2
    return (0.01 if asked.oracle == "first" else 0.1) * asked.radius


def _averaged(setting: Setting, clip: float, plan: Plan) -> dict[str, Any]:
    return {
        "clip_norm": clip,
        "smoothing_radius": setting.smoothing,
        "max_displacement": plan.displacement,
        "learning_rate": plan.learning_rate,
        "block_size": plan.block,
        "num_directions": setting.directions or 1,
        "directions": "record",
        "schedule": "constant",
        "selection": "uniform",
    }


def _common(moves: int, block: int) -> int:
    """The largest divisor of the moves that is no larger."""
    return next(size for size in range(min(block, moves), 0, -1) if moves % size == 0)
