"""The dual side of rate-constrained training: tables, sets of multipliers, shares of noise."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from dpjax.core import PyTree, is_traced, wide
from dpjax.privacy import split_noise_multiplier
from dpjax.privacy._warnings import MultiplierWarning, warn
from dpjax.problems import RateConstrained
from dpjax.solvers.descent._dpsgd import DPSGD

HISTOGRAMS = ("gaussian", "laplace", "none")
MULTIPLIER_SETS = ("box", "orthant", "l1")


def project_multipliers(kind: str, multipliers: jax.Array, bound: ArrayLike) -> jax.Array:
    r"""Projects onto $[0, b]^J$, $[0, \infty)^J$ or $\{\lambda \ge 0, \sum\lambda \le b\}$."""
    positive = jnp.maximum(multipliers, 0)
    if kind == "orthant":
        return positive
    if kind == "box":
        return jnp.minimum(positive, bound)
    return optax.projections.projection_l1_ball(positive, bound)


def check_multipliers(kind: str, multipliers: jax.Array, bound: ArrayLike) -> None:
    """Warns of multipliers at their bound after a run, `[J]`; they are released values.

    Warns:
      MultiplierWarning: If one is, or their sum for `"l1"`; not of traced values.
    """
    if kind == "orthant" or is_traced(multipliers, bound):
        return
    ended, most = np.asarray(jax.device_get(multipliers)), float(np.max(bound))
    at_bound = np.full(ended.shape, ended.sum() > 0.99 * most) & (ended > 0)
    if kind == "box":
        at_bound = ended > 0.99 * most
    if np.any(at_bound):
        warn(
            f"multipliers of constraints {np.flatnonzero(at_bound).tolist()} ended at their bound, "
            f"multiplier_bound = {most:g}: these constraints were not enforced. Relax their slack, "
            "drop one that contradicts another, raise multiplier_bound or clip_norm, or ask for a "
            "larger epsilon",
            MultiplierWarning,
        )


def cell_deviation(histogram: str, noise: ArrayLike) -> Any:
    """Standard deviation of a cell of the noisy table."""
    return noise * 2**0.5 if histogram == "laplace" else noise


def split_noise(noise: float, share: float, histogram: str) -> tuple[float, float]:
    """Noise of table and gradient whose precisions stand as `share` to `1 - share`."""
    if histogram == "none":
        return 0.0, noise
    deviation, gradient = split_noise_multiplier(noise, share)
    return deviation / cell_deviation(histogram, 1.0), gradient


def default_share(steps: int) -> float:
    """Share of the precision for the table, of a run of so many steps."""
    return 0.1 if steps >= 1000 else 0.2


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


def table_of(
    problem: RateConstrained,
    params: PyTree,
    batch: PyTree,
    mask: jax.Array,
    rates: str,
    temperature: ArrayLike,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logits, the mask of valid records, and the noiseless table `[Q, K]`."""
    logits = problem.class_logits(params, batch["x"])
    valid = mask & problem.valid(logits, batch)
    each = problem.rates(wide(logits), temperature=temperature, hard=rates == "hard")
    each = jnp.where(valid[:, None], each.astype(jnp.promote_types(each.dtype, float)), 0)
    if rates == "soft":
        # multiples of a unit, of which a batch's sums are exact; a row's stays within 1, as the
        # unit is more than what rounding adds to it
        least = max(4, (each.shape[0] - 1).bit_length())
        unit = 2.0 ** (least - jnp.finfo(each.dtype).nmant - 1)
        each = jnp.floor(each / unit) * unit
    constraints = problem.constraints
    return logits, valid, constraints.tabulate(each, constraints.part(batch))
