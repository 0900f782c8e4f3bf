"""The entropic geometry of the simplex: multiplicative weights, in the log domain."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree
from dpjax.geometry._blocks import as_vector
from dpjax.geometry._mirror import MirrorMap, moved, shape_and_dtype
from dpjax.geometry._vertices import log_normalize


def entropic() -> MirrorMap:
    r"""Negative entropy on the probability simplex, $\phi(x) = \sum_j x_j \log x_j$.

    $$ \log x_{t+1} = \log x_t - \tau g - \mathrm{lse}(\log x_t - \tau g) $$

    Coordinates are log probabilities, normalised after every step, so that a weight of $e^{-200}$
    is kept where the weight itself would underflow. They serve as the logits of `sample_vertices`.
    The divergence is that of Kullback and Leibler. From the uniform start,

    $$ \sum_t \langle g_t, x_t - x\rangle
       \le \frac{\log d}{\tau} + \frac\tau2 \sum_t \|g_t\|_\infty^2 $$

    for every $x$ in the simplex and any gradients; a common shift of $g$ changes nothing.

    Returns:
      A `MirrorMap` on vectors `[d]`.

    Example:
      >>> import jax.numpy as jnp
      >>> geometry = entropic()
      >>> coords = geometry.init(jnp.zeros(2))
      >>> coords = geometry.step(coords, jnp.array([0.0, 1.0]), jnp.log(3.0))
      >>> [round(float(p), 4) for p in geometry.point(coords)]
      [0.75, 0.25]

    Source: Nemirovski, Juditsky, Lan and Shapiro, "Robust stochastic approximation approach to
    stochastic programming", 2009.
    """

    def init(params: PyTree) -> jax.Array:
        shape, dtype = shape_and_dtype(params)
        return log_normalize(jnp.zeros(shape, dtype))

    def coordinates(primal: ArrayLike) -> jax.Array:
        return log_normalize(jnp.log(as_vector("primal", primal)))

    def step(coords: jax.Array, gradient: ArrayLike, step_size: ArrayLike) -> jax.Array:
        return log_normalize(moved(coords, gradient, step_size))

    def divergence(p: ArrayLike, q: ArrayLike) -> jax.Array:
        return jnp.sum(jax.scipy.special.kl_div(as_vector("p", p), as_vector("q", q)))

    return MirrorMap(init, jnp.exp, coordinates, step, divergence)
