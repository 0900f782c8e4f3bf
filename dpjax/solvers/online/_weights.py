"""Public weights of the steps of an online-to-batch conversion."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.sampling import FullBatch


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


def weights_at(solver: Any, count: jax.Array) -> Weights:
    """The weights of the step after `count` of them."""
    steps = solver.sampler.steps
    t = np.arange(1, steps + 2, dtype=np.float64)
    gradient = (t / steps) ** float(solver.weights)
    estimate = (t / steps) ** estimate_degree(solver)
    total = np.cumsum(gradient)
    columns = (
        gradient[:-1],
        total[:-1],
        estimate[:-1],
        np.diff(estimate[:-1], prepend=0.0),
        (gradient / total)[1:],
    )
    dtype = jnp.result_type(float)
    return Weights(*(jnp.asarray(column, dtype)[count] for column in columns))


def estimate_degree(solver: Any) -> float:
    r"""j, where $\theta_t = t^j$."""
    if solver.estimate_weights is not None:
        return float(solver.estimate_weights)
    return 0.0 if isinstance(solver.sampler, FullBatch) else float(solver.weights)
