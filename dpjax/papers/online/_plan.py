"""Defaults of `OnlineToBatch`, from public sizes and constants, and weights of its steps."""

import inspect
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.core import Problem, check_fields, check_int, check_positive, is_traced
from dpjax.geometry import L1Ball, Simplex
from dpjax.privacy import Budget
from dpjax.privacy._budget import relation_factor
from dpjax.sampling import DisjointPartition, FullBatch
from dpjax.solvers._request import (
    Request,
    check_sampler,
    distribution_of,
    named_strategy,
    requested,
    stated,
)
from dpjax.solvers._vertex_problem import over_vertices
from dpjax.transforms import NoiseStrategy, SplitNoise

_FEWEST_STEPS, _MOST_STEPS = 32, 128
_PER_ROOT = 12.0  # steps over sqrt(H R / noise), from runs on convex problems
_SINGLE_PASS_NOISE = 3.0  # times that of one release
_LITTLE_NOISE = 0.01  # over a mean gradient's length; from runs on convex problems
_LONGEST = 4.0  # step of descent, over 1 / H
_SLOW_STARTERS = {"parameter_free": 256, "coin_betting": 256}
_SCALED = ("distance_adaptive", "parameter_free", "coin_betting")

Fields = dict[str, Any]
"""Fields of a solver by name."""
if TYPE_CHECKING:
    from dpjax.papers.online._online_to_batch import OnlineToBatch


def plan_fields(
    kind: type,
    problem: Problem,
    num_records: int,
    budget: Budget,
    learner: object,
    single_pass: bool,
    overrides: Fields,
) -> Fields:
    """All fields of a solver of class `kind`; see `OnlineToBatch.for_budget`."""
    known = set(inspect.signature(kind).parameters) | {"steps"}
    check_fields(kind, overrides, known - {"relation", "learner"})
    request = requested(num_records, budget, "replace_one" if single_pass else "add_or_remove_one")
    radius, constants = _constants(problem)
    fields = constants | {"weight_exponent": 2.0, "relation": request.relation} | overrides
    on_vertices = constants["norm"] == "linf"
    if learner == "auto":
        learner = "optimistic_exponentiated" if on_vertices else "gradient_descent"
    fields["learner"] = learner
    steps = fields.pop("steps", None)
    if "sampler" not in fields:
        if steps is None:
            steps = _default_steps(request, problem, fields, radius, single_pass)
        check_int("steps", steps, minimum=1)
        fields["sampler"] = request.one_pass(steps) if single_pass else FullBatch(steps)
    sampler = fields["sampler"]
    check_sampler(sampler, request.relation)
    batch, full = num_records, isinstance(sampler, FullBatch)
    if isinstance(sampler, DisjointPartition):
        batch = sampler.batch_size
    elif not full:
        batch = max(1, num_records // sampler.steps)
    fields.setdefault("batch_size", float(batch))
    fields["noise"] = _noise(fields, radius * (2 if on_vertices else 1))
    if "noise_multiplier" not in fields:
        fields["noise_multiplier"] = request.noise_multiplier(
            lambda z: fields["noise"].event(z, request.relation), sampler.failure_probability()
        )
    share = 0.0 if full else _noise_share(problem.num_params, num_records, fields)
    if single_pass and "clip" not in overrides:
        # it has less noise, and a bias that shows where there is little, or where H R >> G
        turns = _slope(fields, radius) > 10 * float(fields["clip_norm"])
        if share > _LITTLE_NOISE and not turns:
            fields["clip"] = "whole"
    if "learning_rate" not in fields:
        still = full or fields["clip"] == "whole"
        stride = _LONGEST if still else _stride(fields, radius, share)
        fields["learning_rate"] = _default_scale(fields, radius, stride)
    return fields


def _constants(problem: Problem) -> tuple[Any, Fields]:
    """The radius, and clipping bounds in the norm that suits the problem."""
    if not over_vertices(problem):
        radius, clip_norm = stated(problem, "radius", 1.0), stated(problem, "lipschitz", 1.0)
        return radius, {
            "norm": "l2",
            "clip": "centred",
            "clip_norm": clip_norm,
            "smoothness": stated(problem, "smoothness", clip_norm / radius),
        }
    (domain,), (spread,) = problem.domains, problem.ranges
    if not isinstance(domain, L1Ball | Simplex):
        raise ValueError(
            f"vertices must be a simplex or an L1Ball, got {type(domain).__name__}: FrankWolfe "
            "and AnytimeMirrorDescent take any polytope"
        )
    radius = float(domain.radius) if isinstance(domain, L1Ball) else 1.0
    curvature = float(stated(problem, "smoothness", spread / 2))
    return radius, {
        "norm": "linf",
        "clip": "plain",
        "clip_norm": float(spread) / (2 * radius),
        "smoothness": curvature / radius**2,
    }


def _default_steps(
    request: Request, problem: Problem, fields: Fields, radius: float, single_pass: bool
) -> int:
    r"""As many as bring accelerated descent to the noise, a factor times $\sqrt{HR/\|\gamma\|}$."""
    steps = _SLOW_STARTERS.get(fields["learner"]) if isinstance(fields["learner"], str) else None
    if steps is None:
        z = fields.get("noise_multiplier")
        if z is None and request.budget.delta == 0:
            z = relation_factor(request.relation) / request.budget.epsilon
        elif z is None:
            z = request.noise_multiplier(dpe.GaussianDpEvent)
        noise = float(z) * float(fields["clip_norm"]) * problem.num_params**0.5
        noise *= (_SINGLE_PASS_NOISE if single_pass else 1) / request.num_records
        wanted = _PER_ROOT * math.sqrt(_slope(fields, radius) / noise) if noise > 0 else math.inf
        steps = math.ceil(min(max(wanted, _FEWEST_STEPS), _MOST_STEPS))
    return min(steps, request.num_records) if single_pass else steps


def _noise_share(dim: int, n: int, fields: Fields) -> float:
    r"""Length of an estimate's noise over $G / \sqrt d$, about that of a mean gradient."""
    z, noise = fields["noise_multiplier"], fields["noise"]
    if is_traced(z):
        return math.inf
    scales = (np.arange(1, noise.num_steps + 1) / noise.num_steps) ** _growth(fields)
    deviation = np.max(np.asarray(z, float)) * noise.prefix_stddev(scales).sum() / scales.sum()
    if distribution_of(noise) != "gaussian":
        deviation *= dim**0.5  # of a coordinate of one draw
    return float(deviation) * dim / n


def _growth(fields: Fields) -> float:
    """By which power of the step a record's share of an estimate grows."""
    return max(0.0, float(fields.get("estimate_exponent") or fields["weight_exponent"]) - 1)


def _slope(fields: Fields, radius: float) -> float:
    """How far gradients turn within the radius."""
    return float(fields["smoothness"]) * float(radius)


def _stride(fields: Fields, radius: float, share: float) -> float:
    """Steps of descent over 1 / H, where noise grows with the way: by up to H R / G."""
    constants = (fields["smoothness"], fields["clip_norm"], radius)
    if is_traced(constants) or any(np.ndim(value) for value in constants):
        return 1.0
    growth = share * _slope(fields, radius)
    little = _LITTLE_NOISE * float(fields["clip_norm"])
    return max(little / growth, 1.0) if growth * _LONGEST > little else _LONGEST


def _default_scale(fields: Fields, radius: float, stride: float) -> Any:
    learner = fields["learner"]
    if learner == "strongly_convex":
        raise ValueError(
            "learning_rate is required with learner='strongly_convex': 1 / mu of the mean loss"
        )
    if learner in ("gradient_descent", "optimistic_descent"):
        check_positive("smoothness", fields["smoothness"])
        # averages damp what a single step of descent at this rate would blow up; hints do not
        return (stride if learner == "gradient_descent" else 1) / fields["smoothness"]
    if learner in _SCALED:
        return 0.1
    if learner in ("exponentiated", "optimistic_exponentiated") or not isinstance(learner, str):
        return 1.0
    return 2 * radius


def _noise(fields: Fields, path: float) -> NoiseStrategy:
    """The strategy asked for, or that which suits the sampler."""
    noise, steps = fields.get("noise"), fields["sampler"].steps
    if isinstance(noise, NoiseStrategy) or not isinstance(fields["sampler"], FullBatch):
        name = "buffered" if noise is None else noise
        return named_strategy(name, steps, exponent=_growth(fields), pure=fields["norm"])
    if noise is not None:
        raise ValueError(f"noise must be SplitNoise with FullBatch, got {noise!r}")
    if steps == 1:
        return SplitNoise(steps, 1.0)
    # in proportion to the first gradient among all changes, over a path of one radius
    half = 0.5 if fields["clip"] == "centred" else 1.0
    changes = half * float(fields["smoothness"]) * float(path)
    first = float(fields["clip_norm"])
    share = first / (first + changes) if first + changes > 0 else 0.5
    return SplitNoise(steps, min(max(share, 0.2), 0.95))


class Weights(NamedTuple):
    r"""Weights of one step t, in units of the last step's; scalars.

    Attributes:
      gradient: $\beta_t$.
      total: $\sum_{i \le t} \beta_i$.
      estimate: $\theta_t$.
      old_estimate: $\theta_t - \theta_{t-1}$, with $\theta_0 = 0$.
      next_share: $\beta_{t+1} / \sum_{i \le t+1} \beta_i$.
    """

    gradient: jax.Array
    total: jax.Array
    estimate: jax.Array
    old_estimate: jax.Array
    next_share: jax.Array


def weights_at(solver: "OnlineToBatch", count: jax.Array) -> Weights:
    """The weights of the step after `count` of them."""
    steps = solver.sampler.steps
    t = np.arange(1, steps + 2, dtype=np.float64) / steps
    gradient, estimate = t ** float(solver.weight_exponent), t[:-1] ** estimate_degree(solver)
    total = np.cumsum(gradient)
    old = np.diff(estimate, prepend=0.0)
    columns = (gradient[:-1], total[:-1], estimate, old, (gradient / total)[1:])
    dtype = jnp.result_type(float)
    return Weights(*(jnp.asarray(column, dtype)[count] for column in columns))


def estimate_degree(solver: "OnlineToBatch") -> float:
    r"""j, where $\theta_t = t^j$."""
    if solver.estimate_exponent is not None:
        return float(solver.estimate_exponent)
    return 0.0 if isinstance(solver.sampler, FullBatch) else float(solver.weight_exponent)
