"""The online learners that a solver knows by name."""

import importlib
from collections.abc import Callable
from typing import Any

import optax

from dpjax.core import Transform, check_choice
from dpjax.transforms import exponentiated_gradient, projected

Learner = Callable[[Any, Any], Transform]
"""`learner(solver, problem) -> transformation`, from public constants alone."""


# mean gradients are shorter than one record's may be; longer ones are fed at this length
_TYPICAL = 1 / 8


def _rate(solver: Any) -> Any:
    """Of weighted gradients, so that averages move by about `learning_rate` times a gradient."""
    return solver.learning_rate * solver.sampler.steps / (solver.weights + 1)


def _in_papers(name: str, *args: Any, **options: Any) -> Transform:
    """A learner of `dpjax.papers`, which stands above this and is imported where it is used."""
    return getattr(importlib.import_module("dpjax.papers.learners"), name)(*args, **options)


def _domain(problem: Any) -> Any:
    if len(getattr(problem, "domains", ())) != 1:
        raise ValueError(
            "learner must be another than exponentiated gradients, which need a simplex or an l1 "
            f"ball, with {type(problem).__name__}"
        )
    return problem.domains[0]


LEARNERS: dict[str, Learner] = {
    "optimistic": lambda s, p: _in_papers(
        "dual_averaging", s.learning_rate, p.project, optimistic=True
    ),
    "dual_averaging": lambda s, p: _in_papers("dual_averaging", s.learning_rate, p.project),
    "adagrad_norm": lambda s, p: _in_papers("adagrad_norm", s.learning_rate, p.project),
    "gradient_descent": lambda s, p: projected(optax.scale(-_rate(s)), p.project),
    "optimistic_descent": lambda s, p: _in_papers("optimistic_descent", _rate(s), p.project),
    "exponentiated": lambda s, p: exponentiated_gradient(_domain(p), s.learning_rate),
    "optimistic_exponentiated": lambda s, p: exponentiated_gradient(
        _domain(p), s.learning_rate, optimistic=True
    ),
    "strongly_convex": lambda s, p: _in_papers(
        "strongly_convex_descent", 1 / s.learning_rate, p.project
    ),
    "distance_adaptive": lambda s, p: _in_papers("distance_adaptive", s.learning_rate, p.project),
    "parameter_free": lambda s, p: _in_papers(
        "parameter_free", s.learning_rate, _TYPICAL * s.clip_norm, p.project
    ),
    "coin_betting": lambda s, p: _in_papers(
        "coin_betting", s.learning_rate, _TYPICAL * s.clip_norm, p.project
    ),
}


def make_learner(solver: Any, problem: Any) -> Transform:
    """The transformation that `solver.learner` stands for."""
    learner = solver.learner
    if isinstance(learner, str):
        learner = LEARNERS[learner]
    return optax.with_extra_args_support(learner(solver, problem))


def check_learner(learner: Any) -> None:
    """Raises unless `learner` is a name or a function."""
    if not callable(learner):
        check_choice("learner", learner, tuple(LEARNERS))
