"""L-BFGS whose line search takes one evaluation a turn of the loop."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax.core import PyTree

_MEMORY = 20
_DECREASE, _CURVATURE = 1e-4, 0.9  # weak Wolfe conditions


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


def minimise(
    objective: Callable[[jax.Array], tuple[jax.Array, jax.Array, PyTree]],
    x: jax.Array,
    evaluations: int,
) -> tuple[jax.Array, PyTree]:
    """A minimiser of a smooth function, by so many evaluations.

    Directions are those of `optax.scale_by_lbfgs`; steps are found by doubling and bisection until
    they fall enough and no longer steeply. The program holds the objective once, where the line
    searches of optax hold it several times, which for large operators is most of the compilation.

    Args:
      objective: `objective(x) -> (value, gradient, aux)`.
      x: Where to start, `[d]`.
      evaluations: How often it is evaluated, static.

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

    def turn(_: int, at: _Search) -> _Search:
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
    last = jax.lax.fori_loop(0, evaluations, turn, start)
    return last.x, last.aux


def _whole_step(like: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A step of 1, and no bounds on it yet."""
    return jnp.ones_like(like), jnp.zeros_like(like), jnp.full_like(like, jnp.inf)
