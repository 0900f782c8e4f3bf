"""Fits of a log-linear distribution to noisy answers."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax.geometry import log_normalize
from dpjax.queries import Workload
from dpjax.solvers.queries._lbfgs import minimise

_KNEE = 0.5  # in units of the prior's scale: from here on it is rather Laplace's than normal


class Fit(NamedTuple):
    """A fitted distribution: its log probabilities `[k]`, and its weights `[m]`."""

    log_probs: jax.Array
    weights: jax.Array


@functools.partial(jax.jit, static_argnames="steps")
def fit_log_linear(
    queries: Workload,
    measured: jax.Array,
    precision: jax.Array,
    prior: jax.Array,
    start: jax.Array,
    scale: jax.Array,
    *,
    steps: int,
) -> Fit:
    r"""The most probable log-linear distribution behind noisy answers.

    With $p(u) = \mathrm{softmax}(M^\top u)$, the M of `queries`, answers y of noise $\sigma$ and a
    hyperbolic prior of scales $\tau$ on the weights u, minimises by L-BFGS

    $$ \sum_j \frac{(\langle q_j, p(u) \rangle - y_j)^2}{2 \sigma_j^2}
       + c^2 \sum_j \sqrt{1 + \frac{u_j^2}{c^2 \tau_j^2}}, \qquad c = 1/2 $$

    so that weights below $c \tau$ shrink as under a normal prior, and larger ones, of which there
    are few, less.

    Args:
      queries: A workload of m queries.
      measured: y, `[m]`.
      precision: $1 / \sigma_j$, `[m]`; 0 where a query was not measured.
      prior: tau, `[m]`, > 0.
      start: Weights to start from, `[m]`.
      scale: Natural size of a weight, `[m]`, > 0: what steps are measured in.
      steps: Evaluations (static).

    Returns:
      The `Fit`.
    """

    def objective(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        u = scale * x
        misfit, grad, log_probs = misfit_and_grad(queries, measured, precision, u)
        root = jnp.sqrt(1 + (u / (_KNEE * prior)) ** 2)
        value = misfit + _KNEE**2 * jnp.sum(root - 1)
        return value, scale * (grad + u / (prior**2 * root)), log_probs

    # a line search by products of 10 bits, an accelerator's default, would stop early
    with jax.default_matmul_precision("highest"):
        x, log_probs = minimise(objective, start / scale, steps)
    return Fit(log_probs, scale * x)


def misfit_and_grad(
    queries: Workload, measured: jax.Array, precision: jax.Array, u: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Half the squared residuals in units of the noise, their gradient `[m]`, log p `[k]`.

    By hand, so that each pass over the universe is an operator or its transpose: derivatives of
    their fenced programs are slower.
    """
    log_probs = log_normalize(queries.adjoint(u))
    p = jnp.exp(log_probs)
    residuals = (queries.answers(p) - measured) * precision
    pull = queries.adjoint(residuals * precision)
    grad = queries.answers(p * (pull - jnp.vdot(p, pull)))
    return 0.5 * jnp.sum(residuals**2), grad, log_probs
