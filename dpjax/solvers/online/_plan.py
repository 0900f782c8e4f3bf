"""Defaults of `OnlineToBatch`, from public sizes and constants."""

import dataclasses
import math
from typing import Any

import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.core import check_fields, check_int, check_positive, is_traced
from dpjax.geometry import L1Ball, Simplex
from dpjax.privacy import Budget, calibrate_noise, check_budget
from dpjax.privacy._relations import relation_factor
from dpjax.sampling import DisjointPartition, FullBatch, IndependentPartition
from dpjax.solvers._check_sampler import check_sampler
from dpjax.transforms import BinaryTree, BufferedToeplitz, NoiseStrategy, SplitNoise

_FEWEST_STEPS, _MOST_STEPS = 32, 128
_PER_ROOT = 12.0  # steps over sqrt(H R / noise), from runs on convex problems
_SINGLE_PASS_NOISE = 3.0  # times that of one release
_LITTLE_NOISE = 0.01  # over a mean gradient's length; from runs on convex problems
_LONGEST = 4.0  # step of descent, over 1 / H
_SLOW_STARTERS = {"parameter_free": 256, "coin_betting": 256}
_COEXISTING = 2**22  # numbers in the gradients of a microbatch
_FEWEST = 64
_SCALED = ("distance_adaptive", "parameter_free", "coin_betting")

NOISES = ("buffered", "tree", "variance_reduced_tree", "pure_tree")


def plan_fields(
    kind: Any,
    problem: Any,
    num_records: int,
    budget: Budget,
    learner: Any,
    single_pass: bool,
    overrides: dict[str, Any],
) -> dict[str, Any]:
    """All fields of a solver of class `kind`; see `OnlineToBatch.for_budget`."""
    check_int("num_records", num_records, minimum=1)
    known = {field.name for field in dataclasses.fields(kind)} | {"steps"}
    check_fields(kind, overrides, known - {"relation", "learner"})
    fields = _constants(problem) | overrides
    fields["learner"] = _default_learner(problem) if learner == "auto" else learner
    steps = fields.pop("steps", None)

    natural = "replace_one" if single_pass else "add_or_remove_one"
    relation = check_budget(budget, num_records).relation_or(natural).name.lower()
    if "sampler" not in fields:
        if steps is None:
            several = not single_pass
            steps = _default_steps(problem, num_records, budget, relation, fields, several)
        fields["sampler"] = _sampler(num_records, steps, single_pass, relation, budget.delta == 0)
    sampler = fields["sampler"]
    check_sampler(sampler, relation)
    full = isinstance(sampler, FullBatch)
    batch = num_records if full else _batch_size(sampler, num_records)
    fields.setdefault("batch_size", float(batch))
    fields.setdefault("weights", 2.0)
    fields["noise"] = _noise(problem, full, fields)
    fields.setdefault("microbatch_size", _microbatch(batch, problem))
    if "noise_multiplier" not in fields:
        fields["noise_multiplier"] = calibrate_noise(
            lambda z: fields["noise"].event(z, relation),
            budget,
            relation=relation,
            failure_probability=sampler.failure_probability(),
        )
    share = 0.0 if full else _noise_share(problem, num_records, fields)
    if single_pass and "clip" not in overrides:
        fields["clip"] = _single_pass_clip(problem, fields, share)
    if "learning_rate" not in fields:
        stride = _LONGEST
        if not full and fields["clip"] != "whole":
            stride = _stride(problem, fields, share)
        fields["learning_rate"] = _default_scale(
            fields["learner"], problem, fields["smoothness"], stride
        )
    return fields | {"relation": relation}


def _constants(problem: Any) -> dict[str, Any]:
    """Clipping bounds, in the norm that suits the problem."""
    if hasattr(problem, "domains"):
        (domain,), (spread,) = problem.domains, problem.ranges
        if not isinstance(domain, L1Ball | Simplex):
            raise ValueError(
                f"vertices must be a simplex or an L1Ball, got {type(domain).__name__}: FrankWolfe "
                "and AnytimeMirrorDescent take any polytope"
            )
        radius = _radius(problem)
        largest = float(spread) / (2 * radius)
        curvature = problem.smoothness
        curvature = float(spread) / 2 if curvature is None else float(curvature)
        return {
            "norm": "linf",
            "clip": "plain",
            "clip_norm": largest,
            "smoothness": curvature / radius**2,
        }
    clip_norm = getattr(problem, "lipschitz", None)
    clip_norm = 1.0 if clip_norm is None else clip_norm
    smoothness = getattr(problem, "smoothness", None)
    if smoothness is None:
        smoothness = clip_norm / _radius(problem)
    return {
        "clip": "centred",
        "clip_norm": clip_norm,
        "smoothness": smoothness,
    }


def _radius(problem: Any) -> Any:
    if hasattr(problem, "domains"):
        return float(getattr(problem.domains[0], "radius", 1.0))
    radius = getattr(problem, "radius", None)
    return 1.0 if radius is None else radius


def _default_learner(problem: Any) -> str:
    if hasattr(problem, "domains"):
        return "optimistic_exponentiated"
    return "gradient_descent"


def _default_steps(
    problem: Any, n: int, budget: Budget, relation: str, fields: dict[str, Any], several: bool
) -> int:
    r"""As many as bring accelerated descent to the noise, a factor times $\sqrt{HR/\|\gamma\|}$."""
    if fields["learner"] in _SLOW_STARTERS:
        steps = _SLOW_STARTERS[fields["learner"]]
        return steps if several else min(steps, n)
    z = fields.get("noise_multiplier")
    if z is None and budget.delta == 0:
        z = relation_factor(relation) / budget.epsilon
    elif z is None:
        z = calibrate_noise(dpe.GaussianDpEvent, budget, relation=relation)
    noise = float(z) * float(fields["clip_norm"]) * problem.num_params**0.5 / n
    noise *= 1 if several else _SINGLE_PASS_NOISE
    wanted = _PER_ROOT * math.sqrt(_slope(problem, fields) / noise) if noise > 0 else math.inf
    steps = math.ceil(min(max(wanted, _FEWEST_STEPS), _MOST_STEPS))
    return steps if several else min(steps, n)


def _noise_share(problem: Any, n: int, fields: dict[str, Any]) -> float:
    r"""Length of an estimate's noise over $G / \sqrt d$, about that of a mean gradient."""
    z, noise = fields["noise_multiplier"], fields["noise"]
    if is_traced(z):
        return math.inf
    growth = max(0.0, float(fields.get("estimate_weights") or fields["weights"]) - 1)
    scales = (np.arange(1, noise.num_steps + 1) / noise.num_steps) ** growth
    deviation = np.max(np.asarray(z, float)) * noise.prefix_stddev(scales).sum() / scales.sum()
    if getattr(noise, "distribution", "gaussian") != "gaussian":
        deviation *= problem.num_params**0.5  # of a coordinate of one draw
    return float(deviation) * problem.num_params / n


def _single_pass_clip(problem: Any, fields: dict[str, Any], share: float) -> str:
    """`"whole"` has less noise, and a bias that shows where there is little, or where H R >> G."""
    turns = _slope(problem, fields) > 10 * float(fields["clip_norm"])
    if share > _LITTLE_NOISE and not turns:
        return "whole"
    return "plain" if hasattr(problem, "domains") else "centred"


def _slope(problem: Any, fields: dict[str, Any]) -> float:
    """How far gradients turn within the radius."""
    return float(fields["smoothness"]) * float(_radius(problem))


def _stride(problem: Any, fields: dict[str, Any], share: float) -> float:
    """Steps of descent over 1 / H, where noise grows with the way: by up to H R / G."""
    constants = (fields["smoothness"], fields["clip_norm"], _radius(problem))
    if is_traced(constants) or any(np.ndim(value) for value in constants):
        return 1.0
    growth = share * _slope(problem, fields)
    little = _LITTLE_NOISE * float(fields["clip_norm"])
    return max(little / growth, 1.0) if growth * _LONGEST > little else _LONGEST


def _default_scale(learner: Any, problem: Any, smoothness: Any, stride: float) -> Any:
    if learner == "strongly_convex":
        raise ValueError(
            "learning_rate is required with learner='strongly_convex': 1 / mu of the mean loss"
        )
    if learner in ("gradient_descent", "optimistic_descent"):
        check_positive("smoothness", smoothness)
        # averages damp what a single step of descent at this rate would blow up; hints do not
        return (stride if learner == "gradient_descent" else 1) / smoothness
    if learner in _SCALED:
        return 0.1
    if learner in ("exponentiated", "optimistic_exponentiated") or not isinstance(learner, str):
        return 1.0
    return 2 * _radius(problem)


def _sampler(num_records: int, steps: int, single_pass: bool, relation: str, pure: bool) -> Any:
    check_int("steps", steps, minimum=1)
    if not single_pass:
        return FullBatch(steps)
    if steps > num_records:
        raise ValueError(
            f"steps must be <= num_records = {num_records} in a single pass, got {steps}"
        )
    if relation == "add_or_remove_one":
        if pure:  # nothing may overflow
            return IndependentPartition(steps, num_records, num_records + 1)
        return IndependentPartition(steps, num_records)
    return DisjointPartition(steps, num_records // steps)


def _batch_size(sampler: Any, num_records: int) -> int:
    if isinstance(sampler, DisjointPartition):
        return sampler.batch_size
    return max(1, num_records // sampler.steps)


def _noise(problem: Any, full: bool, fields: dict[str, Any]) -> NoiseStrategy:
    noise, steps = fields.get("noise"), fields["sampler"].steps
    if isinstance(noise, NoiseStrategy):
        return noise
    if noise is not None and noise not in NOISES:
        raise ValueError(f"noise must be a strategy or one of {list(NOISES)}, got {noise!r}")
    if full:
        if noise is not None:
            raise ValueError(f"noise must be SplitNoise with FullBatch, got {noise!r}")
        return SplitNoise(steps, 1.0 if steps == 1 else _first_share(problem, fields))
    growth = max(0.0, float(fields.get("estimate_weights") or fields["weights"]) - 1)
    norm = fields.get("norm", "l2")
    trees = {
        "tree": BinaryTree(steps, exponent=growth),
        "variance_reduced_tree": BinaryTree(steps, exponent=growth, variance_reduced=True),
        "pure_tree": BinaryTree(steps, exponent=growth, distribution=norm),
    }
    return BufferedToeplitz(steps) if noise in (None, "buffered") else trees[noise]


def _first_share(problem: Any, fields: dict[str, Any]) -> float:
    """In proportion to the first gradient among all changes, over a path of one radius."""
    path = float(_radius(problem)) * (2 if hasattr(problem, "domains") else 1)
    half = 0.5 if fields["clip"] == "centred" else 1.0
    changes = half * float(fields["smoothness"]) * path
    first = float(fields["clip_norm"])
    share = first / (first + changes) if first + changes > 0 else 0.5
    return min(max(share, 0.2), 0.95)


def _microbatch(batch: int, problem: Any) -> int | None:
    """As many records as keep memory in bounds; None for all of a batch."""
    if getattr(problem, "factored", False):
        return None
    size = max(_FEWEST, _COEXISTING // max(1, problem.num_params))
    return None if size >= batch else size
