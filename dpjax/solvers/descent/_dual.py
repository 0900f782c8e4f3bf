"""The dual side of rate-constrained training: sets, floors and shares of noise."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpjax.privacy import split_noise_multiplier

HISTOGRAMS = ("gaussian", "laplace", "none")
DENOMINATORS = ("batch", "ema", "fixed")
MULTIPLIER_SETS = ("box", "orthant", "l1")


def project_multipliers(kind: str, multipliers: jax.Array, bound: ArrayLike) -> jax.Array:
    r"""Projects onto $[0, b]^J$, $[0, \infty)^J$ or $\{\lambda \ge 0, \sum\lambda \le b\}$."""
    positive = jnp.maximum(multipliers, 0)
    if kind == "orthant":
        return positive
    if kind == "box":
        return jnp.minimum(positive, bound)
    return optax.projections.projection_l1_ball(positive, bound)


def cell_deviation(histogram: str, noise: ArrayLike) -> Any:
    """Standard deviation of a cell of the noisy table."""
    return noise * 2**0.5 if histogram == "laplace" else noise


def default_size_floor(deviation: ArrayLike, membership: jax.Array, num_classes: int) -> jax.Array:
    """Two standard deviations of each subset's noisy size, and at least 1, `[S]`."""
    return jnp.maximum(1.0, 2 * deviation * jnp.sqrt(num_classes * membership.sum(axis=1)))


def default_dual_learning_rate(
    deviation: float, num_parts: int, batch_size: float | jax.Array
) -> float | jax.Array:
    """0.15, or less where the noise in a rate, about `deviation * Q / m`, exceeds 0.05.

    A larger step only adds a random walk of the multipliers there.
    """
    noise = deviation * num_parts / batch_size
    return 0.15 * min(1.0, 0.05 / noise) if noise > 0 else 0.15


def running_mean(
    mean: jax.Array, new: jax.Array, count: jax.Array, decay: ArrayLike | None
) -> jax.Array:
    """Mean of `count` values so far; with a decay, later ones weigh more."""
    rate = 1 / count if decay is None else jnp.where(count == 1, 1.0, 1 - decay)
    return mean + rate * (new - mean)


def split_noise(noise: float, share: float, histogram: str) -> tuple[float, float]:
    """Noise of table and gradient whose precisions stand as `share` to `1 - share`."""
    if histogram == "none":
        return 0.0, noise
    deviation, gradient = split_noise_multiplier(noise, share)
    return deviation / cell_deviation(histogram, 1.0), gradient
