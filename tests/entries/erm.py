"""Solvers of linear models."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax.problems import LinearModel
from dpjax.sampling import FullBatch
from dpjax.solvers import ObjectivePerturbation
from dpjax.testing import SolverCase, register
from tests.entries.rows import SWEPT_POSITIVE, Choice, row

_N, _P = 24, 3


def _case(problem: LinearModel, noise: str, histogram_scale: float | None = None) -> SolverCase:
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
            histogram_scale=histogram_scale,
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
        noise=("gamma", Choice()),
        relation=("replace_one", Choice()),
    ),
    planned=LinearModel("logistic", _P, 2.0),
)
register(
    "ObjectivePerturbation(huber)",
    "solver",
    lambda: _case(LinearModel("huber", _P, 1.0, intercept=0.5), "gamma", histogram_scale=5.0),
)
