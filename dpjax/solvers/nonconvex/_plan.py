"""Defaults of `OnlineToNonconvex`, from public sizes and constants."""

import dataclasses
import math
from typing import Any, NamedTuple

from dp_accounting import dp_event as dpe
from scipy import special

from dpjax.core import check_choice, check_fields, check_int, check_positive
from dpjax.privacy import Budget, calibrate_noise, check_budget, joint_release
from dpjax.sampling import DisjointPartition, FullBatch, IndependentPartition
from dpjax.solvers._check_sampler import check_sampler
from dpjax.solvers.descent._dpsgd import default_sampler
from dpjax.solvers.nonconvex._checks import gaussian_multiplier
from dpjax.solvers.nonconvex._smoothed_oracle import ORACLES
from dpjax.transforms import BufferedToeplitz, NoiseStrategy, RestartNoise, SplitNoise

PASSES = ("multi", "single")

# from runs on phase retrieval, capped regression, ReLU networks and ramp losses
_STEPS = 1000
_DISPLACEMENT = 2.0  # times 1 / sqrt(moves)
_RATE = 4.0  # displacements for a gradient of half the clip norm, and the noise
_SINGLE_PASS_NOISE = 0.15  # of the clip norm, in all coordinates
_FEWEST_STEPS = 20
_MOST_DIRECTIONS = 32

_COEXISTING = 2**22  # numbers in the values of a microbatch
_FEWEST = 64
_OPTIONS = ("steps", "period")


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
    """Validates the request; fills in constants and the default relation."""
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


def plan_fields(
    kind: Any,
    problem: Any,
    num_records: int,
    budget: Budget,
    radius: float,
    oracle: str,
    passes: str,
    overrides: dict[str, Any],
) -> dict[str, Any]:
    """All fields of a solver of class `kind`; see `OnlineToNonconvex.for_budget`."""
    asked = asked_for(problem, num_records, budget, radius, oracle, passes)
    known = {field.name for field in dataclasses.fields(kind)} | set(_OPTIONS)
    check_fields(kind, overrides, known - {"relation", "oracle"})
    single, relation = passes == "single", asked.relation
    fields = overrides | {"oracle": oracle}
    options = {name: fields.pop(name, None) for name in _OPTIONS}
    if "sampler" in fields and options["steps"] is not None:
        raise ValueError(f"steps must be left out with a sampler, got {options['steps']!r}")
    if "sampler" in fields:
        check_sampler(fields["sampler"], relation)
    if "batch_size" in fields:
        check_positive("batch_size", fields["batch_size"])
    noise = fields.get("noise")
    if noise is not None and not isinstance(noise, NoiseStrategy):
        raise TypeError(f"noise must be a NoiseStrategy, got {noise!r}")
    fields = _sizes(asked, single, options, fields)
    if "noise_multiplier" not in fields:
        fields["noise_multiplier"] = calibrate_noise(
            lambda z: fields["sampler"].event(
                joint_release(gaussian=gaussian_multiplier(fields["noise"], z, relation))
            ),
            budget,
            relation=relation,
            failure_probability=fields["sampler"].failure_probability(),
        )
    if "learning_rate" not in fields:
        noise = fields["noise_multiplier"] * fields["clip_norm"] * asked.dim**0.5
        length = fields["clip_norm"] / 2 + noise / fields["batch_size"]
        fields["learning_rate"] = _RATE * fields["max_displacement"] / length
    fields.setdefault("microbatch_size", _microbatch(num_records, problem, fields))
    return fields | {"relation": relation}


def _sizes(
    asked: Asked, single: bool, options: dict[str, Any], fields: dict[str, Any]
) -> dict[str, Any]:
    """All fields that neither noise nor its calibration decide."""
    count = 1 if asked.oracle == "first" else min(asked.dim, _MOST_DIRECTIONS)
    fields = {
        "clip_norm": asked.lipschitz,
        "num_directions": count,
    } | fields
    period = 1 if options["period"] is None else options["period"]
    check_int("period", period, minimum=1)
    if isinstance(fields.get("noise"), NoiseStrategy):
        if options["period"] not in (None, fields["noise"].num_steps):
            raise ValueError(f"period must be left out with a noise, got {period}")
        period = fields["noise"].num_steps
    fields.setdefault("smoothing_radius", smoothing_radius(asked, period))
    if "sampler" not in fields:
        fields = _sampling(asked, options["steps"], period, single) | fields
    sampler = fields["sampler"]
    fields.setdefault(
        "batch_size", asked.num_records * sampler.participation_rate(asked.num_records)
    )
    moves = sampler.steps * period
    fields.setdefault("max_displacement", _DISPLACEMENT / moves**0.5)
    if "smoothness" not in fields and period > 1:
        fields["smoothness"] = _smoothness(asked.dim, fields)
    if not isinstance(fields.get("noise"), NoiseStrategy):
        fields["noise"] = _noise(period, fields)
    fields.setdefault("block_size", _block(moves, fields, asked.radius))
    return fields


def _sampling(asked: Asked, steps: int | None, period: int, single: bool) -> dict[str, Any]:
    """Sampler, and how a batch is shared among the moves of a period."""
    n = asked.num_records
    if steps is None:
        steps = _single_pass_steps(asked) if single else _STEPS
        steps = max(period, steps)
    check_int("steps", steps, minimum=period)
    periods = steps // period
    if not single:
        if period > 1:
            return {"sampler": FullBatch(periods)}
        return {"sampler": default_sampler(n, None, steps)}
    if periods * (2 * period - 1) > n:
        raise ValueError(
            f"steps must be <= {n // (2 * period - 1) * period} in a single pass over "
            f"num_records = {n} in periods of {period}, got {steps}"
        )
    size = n // periods
    if period == 1:
        if asked.relation == "add_or_remove_one":
            return {"sampler": IndependentPartition(periods, n)}
        return {"sampler": DisjointPartition(periods, size)}
    change = max(1, size // (2 * (period - 1)))
    return {
        "sampler": DisjointPartition(periods, size),
        "increment_records": change,
        "batch_size": float(size - (period - 1) * change),
    }


def _single_pass_steps(asked: Asked) -> int:
    """So many that the noise of each move is a small part of a record's gradient."""
    z = calibrate_noise(dpe.GaussianDpEvent, asked.budget, relation=asked.relation)
    wanted = _SINGLE_PASS_NOISE * asked.num_records / (z * asked.dim**0.5)
    return max(1, min(_STEPS, asked.num_records // 2, max(_FEWEST_STEPS, round(wanted))))


def _smoothness(dim: int, fields: dict[str, Any]) -> Any:
    """H, by which a record's smoothed gradient or coordinates of value differences turn."""
    slope, radius = fields["clip_norm"], fields["smoothing_radius"]
    if fields["oracle"] == "zeroth" and fields.get("directions", "shared") == "shared":
        return dim**0.5 * slope / radius  # no change of coordinates is larger
    turn = mean_absolute_coordinate(dim) / radius
    if fields["oracle"] == "zeroth":
        return 1.5 * slope * math.sqrt(turn**2 + (dim / radius) ** 2 / fields["num_directions"])
    # few directions see rare but large jumps
    far = fields["max_displacement"]
    share = 2 * turn * far
    return slope / far * (share + (2 * share / fields["num_directions"]) ** 0.5)


def _noise(period: int, fields: dict[str, Any]) -> NoiseStrategy:
    if period == 1:
        return SplitNoise(1, 1.0)
    if fields.get("increment_records") is not None:
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
        constant = fields.get("schedule", "linear") == "constant"
        share = 1.0 if constant else min(1.0, (block + 1) / moves)
        if (block + 1) / 2 * largest * share > left:
            break
        if moves % block == 0:
            best = block
    return best


def _microbatch(num_records: int, problem: Any, fields: dict[str, Any]) -> int | None:
    """As many records as keep memory in bounds; None for all of a batch."""
    shared = fields.get("directions", "shared") == "shared"
    if shared and fields["oracle"] == "zeroth":
        width = fields["num_directions"]
    elif getattr(problem, "factored", False) and fields["oracle"] == "first":
        return None
    else:
        width = problem.num_params
    size = max(_FEWEST, _COEXISTING // max(1, width))
    sampler = fields["sampler"]
    slots = getattr(sampler, "capacity", None) or getattr(sampler, "batch_size", num_records)
    return None if size >= slots else size


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
