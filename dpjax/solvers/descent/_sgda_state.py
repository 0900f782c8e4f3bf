"""What `RateConstrainedSGDA` carries from step to step, and what a step releases."""

from typing import NamedTuple

import jax

from dpjax.solvers.descent._dpsgd import DPSGDState
from dpjax.solvers.descent._rates import RateMemory
from dpjax.transforms import AddNoiseState


class SGDAState(NamedTuple):
    """State of `RateConstrainedSGDA`; all of it but the keys is covered by the guarantee.

    Attributes:
      primal: State of the descent.
      multipliers: lambda, `[J]`.
      memory: What is remembered of earlier tables.
      noise: State of the noise of the tables.
      key: Key of that noise, `[]` (*secret*).
    """

    primal: DPSGDState
    multipliers: jax.Array
    memory: RateMemory
    noise: AddNoiseState
    key: jax.Array


class SGDAInfo(NamedTuple):
    """Released values of a step.

    Attributes:
      gradient_norm: l2 norm of the noisy mean gradient, `[]`.
      multipliers: lambda after the step, `[J]`.
      constraint_values: Gamma of `rates`, `[J]`.
      sizes: Estimated records of each subset in a batch, `[S]`.
      rates: Estimated rates, `[S, K]`, that lag behind those of the parameters.
      deviation: Standard deviation of the estimate of Gamma that moves the multipliers, `[J]`.
      clip_norm: C of the step, `[]`.
    """

    gradient_norm: jax.Array
    multipliers: jax.Array
    constraint_values: jax.Array
    sizes: jax.Array
    rates: jax.Array
    deviation: jax.Array
    clip_norm: jax.Array
