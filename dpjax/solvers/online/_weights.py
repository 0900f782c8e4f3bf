"""Public weights of the steps of an online-to-batch conversion."""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.sampling import FullBatch

if TYPE_CHECKING:
    from dpjax.solvers.online._online_to_batch import OnlineToBatch


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
