"""Defaults of `OnlineToNonconvex`, from public sizes and constants."""

import inspect
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike
from scipy import special

from dpjax.core import (
    Problem,
    check_choice,
    check_fields,
    check_int,
    check_positive,
    is_traced,
    optional,
)
from dpjax.privacy import Budget, joint_release
from dpjax.problems._link_slopes import FLAT, rising_slopes
from dpjax.sampling import DisjointPartition, FullBatch
from dpjax.solvers._request import Request, check_sampler, default_sampler, requested, stated
from dpjax.solvers.descent._dpsgd_defaults import most_records
from dpjax.solvers.nonconvex._smoothed_oracle import ORACLES
from dpjax.transforms import BufferedToeplitz, NoiseStrategy, RestartNoise, SplitNoise

PASSES = ("multi", "single")

# from runs on phase retrieval, capped regression, ReLU networks and ramp losses
_STEPS = 1000
_DISPLACEMENT = 2.0  # times 1 / sqrt(moves)
_RATE = 4.0  # displacements for a gradient of half the clip norm, and the noise
# the same where features and slopes are known to be bounded, of 1 / sqrt(at least _STEPS):
# 200 steps that are longer fail on Adult and Credit
_FAR, _FAR_RATE = 6.3, 8.0
_LARGEST_PART = 0.05  # of the radius of parameters, in a step
_LITTLE_NOISE = 0.3  # of the clip norm, in all coordinates
_SINGLE_PASS_NOISE = 0.15  # of the clip norm, in all coordinates
_FEWEST_STEPS = 20
_MOST_DIRECTIONS = 32

Fields = dict[str, Any]
"""Fields of a solver by name."""


class Asked(NamedTuple):
    """What a solver is wanted for, all *public*; `continuous`, that the loss is Lipschitz."""

    request: Request
    dim: int
    lipschitz: float | jax.Array
    radius: float
    oracle: str
    continuous: bool


def asked_for(
    problem: Problem, num_records: int, budget: Budget, radius: float, oracle: str, passes: str
) -> Asked:
    """Validates the request; fills in constants and the default relation."""
    check_positive("radius", radius)
    check_choice("oracle", oracle, ORACLES)
    check_choice("passes", passes, PASSES)
    natural = "replace_one" if passes == "single" else "add_or_remove_one"
    return Asked(
        requested(num_records, budget, natural),
        problem.num_params,
        stated(problem, "lipschitz", 1.0),
        radius,
        oracle,
        optional(problem, "lipschitz") is not None,
    )


def plan_fields(
    kind: type,
    problem: Problem,
    num_records: int,
    budget: Budget,
    radius: float,
    oracle: str,
    passes: str,
    overrides: Fields,
) -> Fields:
    """All fields of a solver of class `kind`; see `OnlineToNonconvex.for_budget`."""
    asked = asked_for(problem, num_records, budget, radius, oracle, passes)
    request = asked.request
    known = set(inspect.signature(kind).parameters) | {"steps", "period"}
    check_fields(kind, overrides, known - {"relation", "oracle"})
    fields = overrides | {"oracle": oracle, "relation": request.relation}
    steps, period = fields.pop("steps", None), fields.pop("period", None)
    period = _checked_period(fields, steps, period)
    defaults: Fields = {
        "clip_norm": asked.lipschitz,
        "num_directions": 1 if oracle == "first" else min(asked.dim, _MOST_DIRECTIONS),
        "directions": "shared",
        "schedule": "linear",
        "smoothing_radius": smoothing_radius(asked, period),
    }
    far = passes == "multi" and oracle == "first" and period == 1 and goes_far(problem)
    if "sampler" not in fields:
        most = most_records(problem) if far else 1024
        defaults |= _sampling(request, asked.dim, steps, period, passes == "single", most)
    fields = defaults | fields
    sampler = fields["sampler"]
    fields.setdefault("batch_size", num_records * sampler.participation_rate(num_records))
    moves = sampler.steps * period
    if not far:
        fields.setdefault("max_displacement", _DISPLACEMENT / moves**0.5)
    if "smoothness" not in fields and period > 1:
        fields["smoothness"] = _smoothness(asked.dim, fields)
    if fields.get("noise") is None:
        fields["noise"] = _noise(period, fields)
    if "noise_multiplier" not in fields:
        fields["noise_multiplier"] = request.noise_multiplier(
            lambda z: sampler.event(
                joint_release(gaussian=gaussian_multiplier(fields["noise"], z, request.relation))
            ),
            sampler.failure_probability(),
        )
    noise = fields["noise_multiplier"] * fields["clip_norm"] * asked.dim**0.5 / fields["batch_size"]
    rate = _RATE
    if far:
        fields.setdefault("decay", max(0.0, 1 - 10 / moves))
        shorter = _shorter(fields, noise)
        longest = _FAR / (float(asked.lipschitz) * max(moves, _STEPS) ** 0.5)
        if (ball := optional(problem, "radius")) is not None:
            shorter = min(shorter, _LARGEST_PART * float(ball) / longest)
        fields.setdefault("max_displacement", longest * shorter)
        rate = _FAR_RATE * shorter
    fields.setdefault("block_size", _block(moves, fields, radius))
    if "learning_rate" not in fields:
        length = fields["clip_norm"] / 2 + noise
        fields["learning_rate"] = rate * fields["max_displacement"] / length
    return fields


def goes_far(problem: Problem) -> bool:
    """Whether the optimum of a loss that is linear in bounded features may be many units away.

    So where nothing says that its slope is smooth, unless it is convex and has a minimum for each
    label, as absolute and quantile losses: these want to settle. Ramps and sigmoids have theirs at
    infinity, where gradients vanish.
    """
    lipschitz, smoothness = optional(problem, "lipschitz"), optional(problem, "smoothness")
    if lipschitz is None or smoothness is not None or not optional(problem, "factored"):
        return False
    if is_traced(lipschitz, optional(problem, "radius")):
        return False
    slopes = rising_slopes(problem)
    return slopes is None or not np.all((slopes[:, 0] < -FLAT) & (slopes[:, -1] > FLAT))


def _shorter(fields: Fields, noise: ArrayLike) -> float:
    """By what steps are shorter where noise is more than a third of a gradient or so."""
    clip_norm = fields["clip_norm"]
    if is_traced(noise, clip_norm) or np.ndim(noise) or not noise:
        return 1.0
    return min(1.0, float(_LITTLE_NOISE * clip_norm / noise) ** 0.5)


def _checked_period(fields: Fields, steps: int | None, period: int | None) -> int:
    """Moves in a period, 1 by default; raises where what was given does not fit."""
    if "sampler" in fields:
        if steps is not None:
            raise ValueError(f"steps must be left out with a sampler, got {steps!r}")
        check_sampler(fields["sampler"], fields["relation"])
    if "batch_size" in fields:
        check_positive("batch_size", fields["batch_size"])
    noise = fields.get("noise")
    if noise is not None:
        if not isinstance(noise, NoiseStrategy):
            raise TypeError(f"noise must be a NoiseStrategy, got {noise!r}")
        if period not in (None, noise.num_steps):
            raise ValueError(f"period must be left out with a noise, got {period}")
        return noise.num_steps
    period = 1 if period is None else period
    check_int("period", period, minimum=1)
    return period


def _sampling(
    request: Request, dim: int, steps: int | None, period: int, single: bool, most: int
) -> Fields:
    """Sampler, and how a batch is shared among the moves of a period."""
    n = request.num_records
    if steps is None:
        steps = max(period, _single_pass_steps(request, dim) if single else _STEPS)
    check_int("steps", steps, minimum=period)
    periods = steps // period
    if not single:
        if period > 1:
            return {"sampler": FullBatch(periods)}
        return {"sampler": default_sampler(n, None, steps, request.budget, most)}
    if periods * (2 * period - 1) > n:
        raise ValueError(
            f"steps must be <= {n // (2 * period - 1) * period} in a single pass over "
            f"num_records = {n} in periods of {period}, got {steps}"
        )
    if period == 1:
        return {"sampler": request.one_pass(periods)}
    size = n // periods
    change = max(1, size // (2 * (period - 1)))
    return {
        "sampler": DisjointPartition(periods, size),
        "difference_batch_size": change,
        "batch_size": float(size - (period - 1) * change),
    }


def _single_pass_steps(request: Request, dim: int) -> int:
    """So many that the noise of each move is a small part of a record's gradient."""
    z = request.noise_multiplier(dpe.GaussianDpEvent)
    wanted = _SINGLE_PASS_NOISE * request.num_records / (z * dim**0.5)
    return max(1, min(_STEPS, request.num_records // 2, max(_FEWEST_STEPS, round(wanted))))


def _smoothness(dim: int, fields: Fields) -> ArrayLike:
    """H, by which a record's smoothed gradient or coordinates of value differences turn."""
    slope, radius = fields["clip_norm"], fields["smoothing_radius"]
    if fields["oracle"] == "zeroth" and fields["directions"] == "shared":
        return dim**0.5 * slope / radius  # no change of coordinates is larger
    turn = mean_absolute_coordinate(dim) / radius
    if fields["oracle"] == "zeroth":
        return 1.5 * slope * math.sqrt(turn**2 + (dim / radius) ** 2 / fields["num_directions"])
    # few directions see rare but large jumps
    far = fields["max_displacement"]
    share = 2 * turn * far
    return slope / far * (share + (2 * share / fields["num_directions"]) ** 0.5)


def _noise(period: int, fields: Fields) -> NoiseStrategy:
    if period == 1:
        return SplitNoise(1, 1.0)
    if fields.get("difference_batch_size") is not None:
        return RestartNoise(BufferedToeplitz(period - 1))
    first = float(fields["clip_norm"])
    change = min(2 * first, 1.1 * float(fields["smoothness"] * fields["max_displacement"]))
    return SplitNoise(period, first_share(period, first, change), 0.0)


def _block(moves: int, fields: dict[str, Any], radius: float) -> int:
    """The largest number of last moves that stay within what smoothing leaves of the radius."""
    left = radius - float(fields["smoothing_radius"])
    largest = float(fields["max_displacement"])
    best = 1
    for block in range(2, moves + 1):
        share = 1.0 if fields["schedule"] == "constant" else min(1.0, (block + 1) / moves)
        if (block + 1) / 2 * largest * share > left:
            break
        if moves % block == 0:
            best = block
    return best


def smoothing_radius(asked: Asked, period: int) -> float:
    """Which part of the radius goes to smoothing; the rest is for the block.

    Fresh gradients need it only to be taken where there is one; differences of values must not
    drown in rounding. Changes of gradients, and values of a loss that may jump, want it large.
    """
    if period > 1 or (asked.oracle == "zeroth" and not asked.continuous):
        return asked.radius / 2
    return (0.01 if asked.oracle == "first" else 0.1) * asked.radius


def first_share(period: int, first: float, change: float) -> float:
    """Share of the first estimate of a period in the budget that minimises the mean variance."""
    return 1.0 if period == 1 else first / (first + (period - 1) * change / math.sqrt(2))


def mean_absolute_coordinate(dim: int) -> float:
    r"""$\kappa_d = 2\Gamma(d/2 + 1) / (\sqrt\pi\,\Gamma((d + 1) / 2))$, at most $\sqrt d$.

    An L-Lipschitz function smoothed over a ball of radius r has gradients that are $\kappa_d L / r$
    Lipschitz, and no better.
    """
    log = special.gammaln(dim / 2 + 1) - special.gammaln((dim + 1) / 2)
    return 2 * math.exp(log) / math.sqrt(math.pi)


def gaussian_multiplier(noise: NoiseStrategy, noise_multiplier: float, relation: str) -> float:
    """Noise multiplier of the Gaussian that a period is; raises ValueError if it is none."""
    event = noise.event(noise_multiplier, relation)
    if not isinstance(event, dpe.GaussianDpEvent):
        raise ValueError(f"noise must be Gaussian, got {noise!r} with {type(event).__name__}")
    return event.noise_multiplier
