"""State and released values of `RateConstrainedSGDA`."""

from typing import NamedTuple

import jax

from dpjax.solvers.descent._dpsgd import DPSGDState
from dpjax.solvers.descent._rates import RateMemory, Swings
from dpjax.transforms import AddNoiseState


class SGDAState(NamedTuple):
    """State of `RateConstrainedSGDA`; all of it but the keys is covered by the guarantee.

    Attributes:
      primal: State of the descent.
      multipliers: lambda, `[J]`.
      memory: Running estimates from earlier tables.
      noise: State of the table noise.
      key: Key of the table noise, `[]` (*secret*).
      swings: Of the rates between steps.
    """

    primal: DPSGDState
    multipliers: jax.Array
    memory: RateMemory
    noise: AddNoiseState
    key: jax.Array
    swings: Swings


class SGDAInfo(NamedTuple):
    """Released values of a step.

    Attributes:
      gradient_norm: l2 norm of the noisy mean gradient, `[]`.
      multipliers: lambda after the step, `[J]`.
      constraint_values: Gamma of `rates`, `[J]`.
      sizes: Estimated number of records of each subset in a batch, `[S]`.
      rates: Estimated rates, `[S, K]`; they lag behind the parameters.
      deviation: Standard deviation of the estimate of Gamma in the multiplier update, `[J]`.
      clip_norm: Clip norm C of the step, `[]`.
      estimates: Unbiased estimate of Gamma of the step's parameters, `[J]`, of that deviation.
    """

    gradient_norm: jax.Array
    multipliers: jax.Array
    constraint_values: jax.Array
    sizes: jax.Array
    rates: jax.Array
    deviation: jax.Array
    clip_norm: jax.Array
    estimates: jax.Array
