"""Solvers of linear models, as registry entries."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpjax.problems import LinearModel
from dpjax.sampling import FullBatch
from dpjax.solvers import ObjectivePerturbation
from dpjax.testing._cases import SolverCase
from dpjax.testing._registry import register

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
)
register(
    "ObjectivePerturbation(huber)",
    "solver",
    lambda: _case(LinearModel("huber", _P, 1.0, intercept=0.5), "gamma", histogram_scale=5.0),
)
