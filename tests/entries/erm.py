"""Solvers of linear models."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax.problems import LinearModel
from dpjax.sampling import FullBatch
from dpjax.solvers import ObjectivePerturbation, SufficientStatistics
from dpjax.solvers.erm._moments import statistics_change, sums_of_products
from dpjax.testing import SolverCase, Statistic, register
from tests.entries.rows import SWEPT, SWEPT_POSITIVE, Choice, Count, Number, row

_N, _P = 24, 3
_DRAWS = {"quantile_range": 0.2, "length_range": 0.3}


def _case(problem: LinearModel, noise: str, **draws: float) -> SolverCase:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(_N, _P))
    data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(x[:, 0] > 0, jnp.float32)}

    def build(value: Any) -> ObjectivePerturbation:
        return ObjectivePerturbation(
            FullBatch(1),
            problem.slope_bounds(),
            scale=value,
            lam=2.0,
            accuracy=1e-5,
            output_scale=1e-3,
            noise=noise,
            **draws,
        )

    return SolverCase(build, problem, data)


register(
    "ObjectivePerturbation(logistic)",
    "solver",
    lambda: _case(LinearModel("logistic", _P, 2.0), "gaussian"),
    arguments=row(
        ObjectivePerturbation,
        {"sampler": FullBatch(1), "bounds": LinearModel("logistic", _P, 2.0).slope_bounds()},
        scale=SWEPT_POSITIVE,
        lam=SWEPT_POSITIVE,
        accuracy=SWEPT_POSITIVE,
        output_scale=SWEPT_POSITIVE,
        length_range=SWEPT,
        slope_share=(0.7, Number(0.0, 1.0, open_low=True, leaf=True)),
        gram_stddev=SWEPT_POSITIVE,
        centre_range=SWEPT,
        centres=(4096, Count(2)),
        noise=("gaussian", Choice()),
        relation=("replace_one", Choice()),
    ),
    planned=LinearModel("logistic", _P, 2.0),
    spread="no: a minimiser",
)
register(
    "ObjectivePerturbation(huber)",
    "solver",
    lambda: _case(LinearModel("huber", _P, 1.0, intercept=0.5), "gamma", **_DRAWS),
)
register(
    "ObjectivePerturbation(metric)",
    "solver",
    lambda: _case(
        LinearModel("logistic", _P, intercept=0.5),
        "gaussian",
        length_range=0.3,
        slope_share=0.7,
        gram_stddev=2.0,
    ),
    slow=True,
)


def _statistics() -> SolverCase:
    problem = LinearModel("squared", _P, 2.0, label_bound=1.5, intercept=0.5)
    given = _case(problem, "gaussian")

    def build(value: Any) -> SufficientStatistics:
        return SufficientStatistics(
            FullBatch(1), 3.0, value, ridge=0.5, shrinkage=1.0, length_range=0.3
        )

    def sums(batch: Any, mask: Any) -> Any:
        x, y = problem.prepare(batch)
        x = jnp.where(mask[:, None], x, 0) / problem.input_bound
        gram, moment = sums_of_products(x, y / problem.label_bound)
        return {"gram": gram / 3.0, "moment": moment}

    largest = statistics_change(1 / 3.0, 1.0, "add_or_remove_one")
    statistic = Statistic("second moments", sums, "l2", largest)
    return SolverCase(build, problem, given.data, statistics=[statistic])


register(
    "SufficientStatistics",
    "solver",
    _statistics,
    arguments=row(
        SufficientStatistics,
        {"sampler": FullBatch(1)},
        gram_stddev=SWEPT_POSITIVE,
        moment_stddev=SWEPT_POSITIVE,
        ridge=SWEPT,
        shrinkage=SWEPT,
        length_range=SWEPT,
        relation=("replace_one", Choice()),
    ),
    planned=LinearModel("squared", _P, 2.0),
    spread="no: a minimiser",
)
