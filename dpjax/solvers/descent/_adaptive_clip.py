"""A clip norm that follows the multipliers of rate constraints."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.problems import RateConstrained
from dpjax.solvers.descent._dpsgd import DPSGD


def following(
    descent: DPSGD,
    problem: RateConstrained,
    weights: jax.Array,
    temperature: ArrayLike,
    noise_step: ArrayLike | None,
) -> DPSGD:
    """The descent of one step: its clip norm, which scales its noise, and its learning rate.

    Args:
      descent: Its clip norm is the smallest.
      problem: Only its number of parameters is used (*public*).
      weights: Weights of the cells in the Lagrangian, `[Q, K]`, times the batch size; a function of
        released values.
      temperature: Temperature of the soft rates.
      noise_step: Largest distance that noise may move a step; None for no limit.
    """
    spread = jnp.max(jnp.max(weights, axis=1) - jnp.min(weights, axis=1))
    clip_norm = jnp.maximum(descent.clip_norm, temperature * spread)
    rate = jnp.asarray(descent.learning_rate)
    if noise_step is not None:
        noise = descent.noise_multiplier * clip_norm * problem.num_params**0.5
        most = noise_step * descent.batch_size / jnp.where(noise > 0, noise, 1e-9)
        rate = jnp.minimum(rate, most)
    return dataclasses.replace(descent, clip_norm=clip_norm, learning_rate=rate)
