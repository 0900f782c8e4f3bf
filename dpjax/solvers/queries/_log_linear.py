"""Fits of a log-linear distribution to noisy answers."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax.core import PyTree
from dpjax.geometry import log_normalize
from dpjax.queries import Workload

_KNEE = 0.5  # in units of the prior's scale: from here on it is rather Laplace's than normal
_MEMORY = 20
_DECREASE, _CURVATURE = 1e-4, 0.9  # weak Wolfe conditions
# evaluations before the first look at how far the value fell, and between looks; least fall a look
# for each unknown
_FIRST, _BETWEEN, _LEAST_FALL = 100, 20, 1e-3


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
) -> tuple[jax.Array, jax.Array]:
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
      steps: Most evaluations (static).

    Returns:
      The log probabilities `[k]` of the fitted distribution, and its weights `[m]`.
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
    return log_probs, scale * x


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


class _Search(NamedTuple):
    """The point reached, and where the line search from it stands."""

    x: jax.Array
    value: jax.Array
    grad: jax.Array
    aux: PyTree
    memory: PyTree
    direction: jax.Array
    step: jax.Array
    low: jax.Array
    high: jax.Array


class _Progress(NamedTuple):
    """A search, how often it has looked, and the value at the last look but this."""

    search: _Search
    evaluations: jax.Array
    mark: jax.Array
    done: jax.Array


def minimise(
    objective: Callable[[jax.Array], tuple[jax.Array, jax.Array, PyTree]],
    x: jax.Array,
    evaluations: int,
) -> tuple[jax.Array, PyTree]:
    """A minimiser of a smooth function, by so many evaluations at most.

    From 100 on it ends where 20 evaluations made the value fall by less than 1e-3 times d.

    Directions are those of `optax.scale_by_lbfgs`; steps are found by doubling and bisection until
    they fall enough and no longer steeply. The program holds the objective once, where the line
    searches of optax hold it several times, which for large operators is most of the compilation.

    Args:
      objective: `objective(x) -> (value, gradient, aux)`.
      x: Where to start, `[d]`.
      evaluations: How often it is evaluated at most, static.

    Returns:
      The last point, the best up to rounding, and its aux.

    Source: Lewis and Overton 2013 (the line search); Liu and Nocedal 1989.
    """
    directions = optax.scale_by_lbfgs(memory_size=_MEMORY)
    eps = jnp.finfo(x.dtype).eps

    def aim(
        x: jax.Array, value: jax.Array, grad: jax.Array, aux: PyTree, memory: PyTree
    ) -> _Search:
        toward, memory = directions.update(grad, memory, x)
        # rounding may spoil a direction; the gradient is one
        toward = jnp.where(jnp.vdot(grad, toward) > 0, toward, grad)
        return _Search(x, value, grad, aux, memory, -toward, *_whole_step(value))

    def turn(at: _Search) -> _Search:
        x = at.x + at.step * at.direction
        value, grad, aux = objective(x)
        slope = jnp.vdot(at.grad, at.direction)
        # what rounding moves is no rise, or the search would end at the root of the precision
        rounding = 2 * eps * jnp.abs(at.value)
        far = ~(value <= at.value + _DECREASE * at.step * slope + rounding)
        near = jnp.vdot(grad, at.direction) < _CURVATURE * slope
        low = jnp.where(~far & near, at.step, at.low)
        high = jnp.where(far, at.step, at.high)
        step = jnp.where(jnp.isinf(high), 2 * low, (low + high) / 2)
        longer = at._replace(step=step, low=low, high=high)
        return jax.lax.cond(far | near, lambda: longer, lambda: aim(x, value, grad, aux, at.memory))

    # the first turn goes nowhere, and accepts
    value, grad, aux = jax.tree.map(
        lambda shape: jnp.zeros(shape.shape, shape.dtype), jax.eval_shape(objective, x)
    )
    memory = directions.init(x)
    start = _Search(x, value + jnp.inf, grad, aux, memory, grad, *_whole_step(value))

    def going(at: _Progress) -> jax.Array:
        return (at.evaluations < evaluations) & ~at.done

    def next_turn(at: _Progress) -> _Progress:
        search, made = turn(at.search), at.evaluations + 1
        look = (made >= _FIRST) & (made % _BETWEEN == 0)
        still = at.mark - search.value < _LEAST_FALL * x.size
        return _Progress(search, made, jnp.where(look, search.value, at.mark), look & still)

    last = jax.lax.while_loop(
        going, next_turn, _Progress(start, jnp.zeros((), jnp.int32), start.value, jnp.array(False))
    ).search
    return last.x, last.aux


def _whole_step(like: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A step of 1, and no bounds on it yet."""
    return jnp.ones_like(like), jnp.zeros_like(like), jnp.full_like(like, jnp.inf)
