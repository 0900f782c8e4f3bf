"""Sizes of `OnlineToNonconvex` as its bounds have them: those of this library, and as published."""

import math
from typing import Any, NamedTuple

from dp_accounting import dp_event as dpe

from dpjax.core import check_int, check_positive
from dpjax.privacy import Budget, Guarantee, calibrate_noise
from dpjax.sampling import DisjointPartition, FullBatch
from dpjax.solvers._bound_plan import (
    Plan,
    Setting,
    change_clip,
    first_clip,
    first_share,
    plan_full_batch,
    plan_single_pass,
)
from dpjax.solvers._stationarity_bound import direction_excess
from dpjax.transforms import BinaryTree, BufferedToeplitz, RestartNoise, SplitNoise

_PASSES = 1000  # over the data, unless more are asked for
_MOST_DIRECTIONS = 64
_MOST_PUBLISHED = 4  # directions in a dimension; up to 10^7 were published


class Asked(NamedTuple):
    """What a solver is wanted for; all *public*."""

    num_records: int
    dim: int
    lipschitz: Any
    budget: Budget
    relation: str
    radius: float
    oracle: str


def bound_plan(asked: Asked, single: bool, options: dict[str, Any]) -> tuple[Setting, Plan]:
    """The setting of a budget, and the sizes that minimise the bound."""
    gap = 1.0 if options["initial_gap"] is None else options["initial_gap"]
    check_positive("initial_gap", gap)
    z = calibrate_noise(dpe.GaussianDpEvent, asked.budget, relation=asked.relation)
    setting = Setting(
        num_records=asked.num_records,
        dim=asked.dim,
        lipschitz=float(asked.lipschitz),
        gap=float(gap),
        smoothing=asked.radius / 2,
        reach=asked.radius / 2,
        multiplier=z,
        directions=None if asked.oracle == "first" else min(asked.dim, _MOST_DIRECTIONS),
    )
    periods = (1 if options["period"] is None else options["period"],)
    if single:
        return setting, plan_single_pass(setting, periods)
    most = _PASSES if options["steps"] is None else options["steps"]
    check_int("steps", most, minimum=1)
    return setting, plan_full_batch(setting, periods, most)


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
    return fields | _averaged(asked, clip, plan, setting.directions)


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
    node = 4 * sensitivity * math.sqrt(math.log(period) * math.log(1 / delta)) / epsilon
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
    return _averaged(asked, clip, plan, directions) | {
        "sampler": DisjointPartition(periods, 2 * period - 1),
        "batch_size": float(period),
        "increment_records": 1,
        "noise": noise,
        "noise_multiplier": multiplier,
        "smoothness": change / (2 * far),
        "common_directions": False,
    }


def _averaged(asked: Asked, clip: float, plan: Plan, directions: int | None) -> dict[str, Any]:
    return {
        "clip_norm": clip,
        "smoothing_radius": asked.radius / 2,
        "max_displacement": plan.displacement,
        "learning_rate": plan.learning_rate,
        "block_size": plan.block,
        "num_directions": directions or 1,
        "directions": "record",
        "schedule": "constant",
        "selection": "uniform",
    }


def _common(moves: int, block: int) -> int:
    """The largest divisor of the moves that is no larger."""
    return next(size for size in range(min(block, moves), 0, -1) if moves % size == 0)
