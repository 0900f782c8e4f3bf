"""The online learners that a solver knows by name."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import optax

from dpjax.core import Problem, Transform
from dpjax.geometry import L1Ball, Simplex
from dpjax.solvers._vertex_problem import over_vertices
from dpjax.transforms import exponentiated_gradient, projected

if TYPE_CHECKING:
    from dpjax.papers.online._online_to_batch import OnlineToBatch

Learner = Callable[[Any, Any], Transform]
"""`learner(solver, problem) -> transformation`, from public constants alone."""

_NAMES = (
    "optimistic dual_averaging adagrad_norm gradient_descent optimistic_descent exponentiated "
    "optimistic_exponentiated strongly_convex distance_adaptive parameter_free coin_betting"
)
LEARNERS = tuple(_NAMES.split())


def rate_of(solver: "OnlineToBatch") -> Any:
    """Of weighted gradients, so that averages move by about `learning_rate` times a gradient."""
    return solver.learning_rate * solver.sampler.steps / (solver.weight_exponent + 1)


def _exponentiated(solver: "OnlineToBatch", problem: Problem, optimistic: bool) -> Transform:
    domains = problem.domains if over_vertices(problem) else ()
    if len(domains) != 1 or not isinstance(domains[0], Simplex | L1Ball):
        raise ValueError(
            "learner must be another than exponentiated gradients, which need a simplex or an "
            f"l1 ball, with {type(problem).__name__}"
        )
    return exponentiated_gradient(domains[0], solver.learning_rate, optimistic)


_OWN: dict[str, Learner] = {
    "gradient_descent": lambda s, p: projected(optax.scale(-rate_of(s)), p.project),
    "exponentiated": lambda s, p: _exponentiated(s, p, False),
    "optimistic_exponentiated": lambda s, p: _exponentiated(s, p, True),
}


def make_learner(solver: "OnlineToBatch", problem: Problem) -> Transform:
    """The transformation that `solver.learner` stands for."""
    learner = solver.learner
    if isinstance(learner, str):
        # those of papers stand above this, and are imported where they are used
        papers = "dpjax.papers.learners._named"
        learner = _OWN.get(learner) or importlib.import_module(papers).NAMED[learner]
    return optax.with_extra_args_support(learner(solver, problem))
