"""Unbiased values of quadratics at a distribution over vertices, from a few draws of it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.core import check_int


def polar_estimate(values: Callable[[jax.Array], jax.Array], draws: jax.Array) -> jax.Array:
    r"""The value of f at the mean of a distribution, from K independent draws $a_1, \dots, a_K$.

    $$ P = \frac{K}{K-1} f(\bar a) - \frac{1}{K (K - 1)} \sum_k f(a_k), \qquad E\,P = f(E a) $$

    for quadratic f of Hessian H and draws of covariance $\Sigma$, where $f(\bar a)$ alone is off by
    $\mathrm{tr}(H \Sigma)/(2K)$. With two draws $P = 2 f((a + b)/2) - (f(a) + f(b))/2$ is the polar
    form of f. P of convex f lies in `polar_interval`.

    Guarantee: none of its own: it is computed from draws, which must be accounted for, each.

    Args:
      values: f, from a point `[p]` to an array `[*v]`, such as the values of k losses.
      draws: Points `[K, p]`, vertices drawn independently, `K >= 2`.

    Returns:
      `[*v]`.

    Raises:
      ValueError: If there are fewer than 2 draws.
      TypeError: If their number is no integer.

    Example:
      >>> import jax.numpy as jnp
      >>> draws = jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> float(polar_estimate(lambda x: jnp.sum(x**2), draws))
      0.0

    Source: polarisation of quadratic forms; Richardson's extrapolation of $E f(\bar a)$ in 1 / K.

    Theory: docs/theory/accuracy.md, A6.
    """
    count = draws.shape[0]
    check_int("number of draws", count, minimum=2)
    ends = jnp.mean(jax.vmap(values)(draws), axis=0)
    return (count * values(jnp.mean(draws, axis=0)) - ends) / (count - 1)


def polar_interval(
    low: float, high: float, smoothness: float | None = None, num_draws: int = 2
) -> tuple[float, float]:
    r"""Where `polar_estimate` lies for convex f with values in an interval.

    $[hi - b', hi]$ with $b' = b + \min(b / (K - 1), L_1 / K)$, where $L_1$ is the smoothness in the
    l1 norm of the weights of vertices. From 3 draws on the part with
    $L_1$ is for quadratics.

    Guarantee: none needed; it is computed from public constants. Clip to it what rests on it.

    Args:
      low: lo.
      high: hi, at least lo.
      smoothness: $L_1$, None where it is unknown.
      num_draws: K.

    Returns:
      The ends of the interval.

    Raises:
      ValueError: If `high < low` or `num_draws < 2`.
      TypeError: If `num_draws` is no integer.

    Example:
      >>> polar_interval(0.0, 0.5, smoothness=1.0)
      (-0.5, 0.5)
    """
    check_int("num_draws", num_draws, minimum=2)
    if not low <= high:
        raise ValueError(f"high must be at least low = {low}, got {high}")
    width = high - low
    wider = width / (num_draws - 1)
    if smoothness is not None:
        wider = min(wider, smoothness / num_draws)
    return low - wider, high
