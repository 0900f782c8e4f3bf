"""L-BFGS whose line search takes one evaluation a turn of the loop."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

_MEMORY = 20
_DECREASE, _CURVATURE = 1e-4, 0.9  # weak Wolfe conditions


class _Search(NamedTuple):
    """The point reached, and where the line search from it stands."""

    x: jax.Array
    value: jax.Array
    grad: jax.Array
    aux: Any
    memory: Any
    direction: jax.Array
    slope: jax.Array
    step: jax.Array
    low: jax.Array
    high: jax.Array


def minimise(
    objective: Callable[[jax.Array], tuple[jax.Array, jax.Array, Any]],
    x: jax.Array,
    evaluations: int,
) -> tuple[jax.Array, Any]:
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

    def aim(x: jax.Array, value: jax.Array, grad: jax.Array, aux: Any, memory: Any) -> _Search:
        toward, memory = directions.update(grad, memory, x)
        slope = -jnp.vdot(grad, toward)
        # rounding may spoil a direction; the gradient is one
        bad = ~(slope < 0)
        toward = jnp.where(bad, grad, toward)
        slope = jnp.where(bad, -jnp.vdot(grad, grad), slope)
        one, zero = jnp.ones_like(value), jnp.zeros_like(value)
        return _Search(x, value, grad, aux, memory, -toward, slope, one, zero, one * jnp.inf)

    def turn(_: int, at: _Search) -> _Search:
        x = at.x + at.step * at.direction
        value, grad, aux = objective(x)
        # what rounding moves is no rise, or the search would end at the root of the precision
        rounding = jnp.where(jnp.isinf(at.value), 0, 2 * eps * jnp.abs(at.value))
        far = ~(value <= at.value + _DECREASE * at.step * at.slope + rounding)
        near = jnp.vdot(grad, at.direction) < _CURVATURE * at.slope
        low = jnp.where(~far & near, at.step, at.low)
        high = jnp.where(far, at.step, at.high)
        step = jnp.where(jnp.isinf(high), 2 * low, (low + high) / 2)
        longer = at._replace(step=step, low=low, high=high)
        return jax.lax.cond(far | near, lambda: longer, lambda: aim(x, value, grad, aux, at.memory))

    # the first turn goes nowhere, and accepts
    value, _, aux = jax.tree.map(
        lambda shape: jnp.zeros(shape.shape, shape.dtype), jax.eval_shape(objective, x)
    )
    one, nothing = jnp.ones_like(value), jnp.zeros_like(x)
    start = _Search(
        x,
        one * jnp.inf,
        nothing,
        aux,
        directions.init(x),
        nothing,
        -one,
        one,
        jnp.zeros_like(value),
        one * jnp.inf,
    )
    last = jax.lax.fori_loop(0, evaluations, turn, start)
    return last.x, last.aux
