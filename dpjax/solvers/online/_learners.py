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
    from dpjax.solvers.online._online_to_batch import OnlineToBatch

Learner = Callable[[Any, Any], Transform]
"""`learner(solver, problem) -> transformation`, from public constants alone."""

# mean gradients are shorter than one record's may be; longer ones are fed at this length
_TYPICAL = 1 / 8


def _rate(solver: "OnlineToBatch") -> Any:
    """Of weighted gradients, so that averages move by about `learning_rate` times a gradient."""
    return solver.learning_rate * solver.sampler.steps / (solver.weight_exponent + 1)


def _printed(name: str, *scales: Callable[[Any], Any], **options: bool) -> Learner:
    """A learner of `dpjax.papers`, which stands above this and is imported where it is used."""

    def make(solver: "OnlineToBatch", problem: Problem) -> Transform:
        kind = getattr(importlib.import_module("dpjax.papers.learners"), name)
        return kind(*(scale(solver) for scale in scales), problem.project, **options)

    return make


def _exponentiated(optimistic: bool) -> Learner:
    def make(solver: "OnlineToBatch", problem: Problem) -> Transform:
        domains = problem.domains if over_vertices(problem) else ()
        if len(domains) != 1 or not isinstance(domains[0], Simplex | L1Ball):
            raise ValueError(
                "learner must be another than exponentiated gradients, which need a simplex or an "
                f"l1 ball, with {type(problem).__name__}"
            )
        return exponentiated_gradient(domains[0], solver.learning_rate, optimistic)

    return make


def _scale(solver: "OnlineToBatch") -> Any:
    return solver.learning_rate


def _length(solver: "OnlineToBatch") -> Any:
    return _TYPICAL * solver.clip_norm


LEARNERS: dict[str, Learner] = {
    "optimistic": _printed("dual_averaging", _scale, optimistic=True),
    "dual_averaging": _printed("dual_averaging", _scale),
    "adagrad_norm": _printed("adagrad_norm", _scale),
    "gradient_descent": lambda s, p: projected(optax.scale(-_rate(s)), p.project),
    "optimistic_descent": _printed("optimistic_descent", _rate),
    "exponentiated": _exponentiated(optimistic=False),
    "optimistic_exponentiated": _exponentiated(optimistic=True),
    "strongly_convex": _printed("strongly_convex_descent", lambda s: 1 / s.learning_rate),
    "distance_adaptive": _printed("distance_adaptive", _scale),
    "parameter_free": _printed("parameter_free", _scale, _length),
    "coin_betting": _printed("coin_betting", _scale, _length),
}


def make_learner(solver: "OnlineToBatch", problem: Problem) -> Transform:
    """The transformation that `solver.learner` stands for."""
    learner = LEARNERS[solver.learner] if isinstance(solver.learner, str) else solver.learner
    return optax.with_extra_args_support(learner(solver, problem))
