"""Fits of a log-linear distribution to noisy answers."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax.geometry import log_normalize

_MEMORY = 20
_LINE_SEARCH = 12


class Fit(NamedTuple):
    """A fitted distribution: its log probabilities `[k]`, and the objective reached, `[]`."""

    log_probs: jax.Array
    objective: jax.Array


class _Target(NamedTuple):
    """What is fitted: queries, noisy answers `[m]`, 1 / their noise `[m]`; 0 where not measured."""

    queries: Any
    measured: jax.Array
    precision: jax.Array


@functools.partial(jax.jit, static_argnames="steps")
def fit_log_linear(
    queries: Any,
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
    normal prior of standard deviations $\tau$ on the weights u, minimises by L-BFGS

    $$ \sum_j \frac{(\langle q_j, p(u) \rangle - y_j)^2}{2 \sigma_j^2}
       + \sum_j \frac{u_j^2}{2 \tau_j^2} $$

    Args:
      queries: A workload of m queries.
      measured: y, `[m]`.
      precision: $1 / \sigma_j$, `[m]`; 0 where a query was not measured.
      prior: tau, `[m]`, > 0.
      start: Weights to start from, `[m]`.
      scale: Natural size of a weight, `[m]`, > 0: what steps are measured in.
      steps: Iterations (static).

    Returns:
      The `Fit`.
    """
    target = _Target(queries, measured, precision)

    def objective(x: jax.Array) -> jax.Array:
        return _misfit(scale * x, target) + 0.5 * jnp.sum((scale * x / prior) ** 2)

    search = optax.scale_by_zoom_linesearch(_LINE_SEARCH)
    solver = optax.lbfgs(memory_size=_MEMORY, linesearch=search)
    value_and_grad = optax.value_and_grad_from_state(objective)

    def step(_: int, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        x, state = carry
        value, grad = value_and_grad(x, state=state)
        updates, state = solver.update(grad, state, x, value=value, grad=grad, value_fn=objective)
        return optax.apply_updates(x, updates), state

    x = start / scale
    x, _ = jax.lax.fori_loop(0, steps, step, (x, solver.init(x)))
    return Fit(log_normalize(queries.adjoint(scale * x)), objective(x))


@jax.custom_vjp
def _misfit(u: jax.Array, target: _Target) -> jax.Array:
    """Half the squared residuals in units of the noise."""
    return _misfit_and_grad(u, target)[0]


def _misfit_and_grad(u: jax.Array, target: _Target) -> tuple[jax.Array, Any]:
    # by hand: each pass over the universe is an operator and its transpose, not their derivatives
    queries = target.queries
    logits = queries.adjoint(u)
    p = jnp.exp(log_normalize(logits))
    residuals = (queries.answers(p) - target.measured) * target.precision
    pull = queries.adjoint(residuals * target.precision)
    grad = queries.answers(p * (pull - jnp.vdot(p, pull)))
    return 0.5 * jnp.sum(residuals**2), grad


def _forward(u: jax.Array, target: _Target) -> tuple[jax.Array, Any]:
    value, grad = _misfit_and_grad(u, target)
    return value, (grad, target)


def _backward(saved: Any, cotangent: jax.Array) -> tuple[Any, Any]:
    grad, target = saved
    del target
    return cotangent * grad, None  # nothing else is differentiated


_misfit.defvjp(_forward, _backward)
