"""Geometries of half a squared norm: Euclidean ball and box, p-norms."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_positive_scalar, check_scalar, is_traced
from dpjax.geometry._mirror import MirrorMap, moved, shape_and_dtype


def euclidean_ball(radius: ArrayLike) -> MirrorMap:
    r"""$\phi(x) = \frac12\|x\|_2^2$ on the ball $\|x\|_2 \le R$: projected gradient steps.

    $$ x_{t+1} = y \min(1, R / \|y\|_2), \qquad y = x_t - \tau g $$

    Coordinates are the points themselves; the start is the origin.

    Args:
      radius: $R$ `> 0` (*public*); scalar, may be traced.

    Returns:
      A `MirrorMap` on vectors `[d]`.

    Raises:
      ValueError: If `radius` is not positive and finite.
      TypeError: If `radius` is not a number.

    Example:
      >>> import jax.numpy as jnp
      >>> geometry = euclidean_ball(1.0)
      >>> x = geometry.step(geometry.init(jnp.zeros(2)), jnp.array([-3.0, -4.0]), 1.0)
      >>> [round(float(v), 4) for v in x]
      [0.6, 0.8]
    """
    check_positive_scalar("radius", radius)

    def step(coords: jax.Array, gradient: ArrayLike, step_size: ArrayLike) -> jax.Array:
        return _shrink(moved(coords, gradient, step_size), 2.0, radius)

    return MirrorMap(_origin, _same, _same, step, _half_squared_distance)


def euclidean_box(low: ArrayLike, high: ArrayLike) -> MirrorMap:
    r"""$\phi(x) = \frac12\|x\|_2^2$ on the box $l \le x \le h$: $x_{t+1} = [x_t - \tau g]_l^h$.

    Coordinates are the points themselves; the start is the point of the box nearest the origin.

    Args:
      low: Lower bounds, scalar or `[d]` (*public*); `-inf` for none, may be traced.
      high: Upper bounds, scalar or `[d]` (*public*), `>= low`; `inf` for none.

    Returns:
      A `MirrorMap` on vectors `[d]`.

    Raises:
      ValueError: If some `low > high`, or a bound is NaN.

    Example:
      >>> import jax.numpy as jnp
      >>> geometry = euclidean_box(0.0, jnp.array([1.0, 5.0]))
      >>> geometry.step(geometry.init(jnp.zeros(2)), jnp.array([-3.0, -4.0]), 1.0).tolist()
      [1.0, 4.0]
    """
    if not is_traced(low, high):
        lows, highs = np.broadcast_arrays(np.asarray(low), np.asarray(high))
        bad = ~(lows <= highs)
        if bad.any():
            raise ValueError(f"low must be <= high, got {lows[bad][0]} and {highs[bad][0]}")

    def clip(x: jax.Array) -> jax.Array:
        return jnp.clip(x, jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype))

    def step(coords: jax.Array, gradient: ArrayLike, step_size: ArrayLike) -> jax.Array:
        return clip(moved(coords, gradient, step_size))

    return MirrorMap(lambda p: clip(_origin(p)), _same, _same, step, _half_squared_distance)


def p_norm(p: float, radius: ArrayLike | None = None) -> MirrorMap:
    r"""$\phi(x) = \frac12\|x\|_p^2$ with $1 < p \le 2$, on $R^d$ or on the ball $\|x\|_p \le R$.

    $$ \theta_{t+1} = \theta \min(1, R / \|\theta\|_q), \qquad
       \theta = \theta_t - \tau g, \quad 1/p + 1/q = 1 $$

    Coordinates are dual, $\theta = \nabla\phi(x)$, with $\|\theta\|_q = \|x\|_p$, so that the
    Bregman projection on the ball is a scaling. $\phi$ is $(p-1)$-strongly convex in the p-norm;
    $p = 1 + 1/\log d$ is the choice for the l1 ball. The start is the origin.

    Args:
      p: Exponent, `1 < p <= 2` (*public*, static).
      radius: $R$ `> 0` (*public*); scalar, may be traced; None for the whole space.

    Returns:
      A `MirrorMap` on vectors `[d]`.

    Raises:
      ValueError: If `p` or `radius` is outside its range.
      TypeError: If `p` or `radius` is not a number.

    Example:
      >>> import jax.numpy as jnp
      >>> geometry = p_norm(1.5)
      >>> coords = geometry.coordinates(jnp.array([1.0, -2.0]))
      >>> [round(float(v), 4) for v in geometry.point(coords)]
      [1.0, -2.0]
    """
    check_scalar("p", p)
    if is_traced(p) or not 1 < p <= 2:
        raise ValueError(f"p must be a number in (1, 2], got {p!r}")
    if radius is not None:
        check_positive_scalar("radius", radius)
    exponent = float(p)
    dual = exponent / (exponent - 1)

    def link(exponent: float) -> Callable[[ArrayLike], jax.Array]:
        return lambda values: _link(jnp.asarray(values), exponent)

    def step(coords: jax.Array, gradient: ArrayLike, step_size: ArrayLike) -> jax.Array:
        theta = moved(coords, gradient, step_size)
        return theta if radius is None else _shrink(theta, dual, radius)

    def divergence(a: ArrayLike, b: ArrayLike) -> jax.Array:
        a, b = jnp.asarray(a), jnp.asarray(b)
        value = _norm(a, exponent) ** 2 / 2 - _norm(b, exponent) ** 2 / 2
        return value - jnp.vdot(_link(b, exponent), a - b, precision="highest")

    return MirrorMap(_origin, link(dual), link(exponent), step, divergence)


def _origin(params: PyTree) -> jax.Array:
    return jnp.zeros(*shape_and_dtype(params))


def _same(point: ArrayLike) -> jax.Array:
    return jnp.asarray(point)


def _half_squared_distance(p: ArrayLike, q: ArrayLike) -> jax.Array:
    return jnp.sum(jnp.square(jnp.asarray(p) - jnp.asarray(q))) / 2


def _scaled(x: jax.Array, p: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Moduli over the largest, the sum of their powers, and the largest: nothing overflows."""
    top = jnp.max(jnp.abs(x))
    top = jnp.where(top == 0, 1, top)
    size = jnp.abs(x) / top
    return size, jnp.sum(size**p), top


def _norm(x: jax.Array, p: float) -> jax.Array:
    _, total, top = _scaled(x, p)
    return top * total ** (1 / p)


def _shrink(x: jax.Array, p: float, radius: ArrayLike) -> jax.Array:
    """Scales `x` down to p-norm `radius`."""
    tiny = jnp.finfo(x.dtype).tiny
    return x * jnp.minimum(1, jnp.asarray(radius, x.dtype) / jnp.maximum(_norm(x, p), tiny))


def _link(x: jax.Array, p: float) -> jax.Array:
    """The gradient of half the squared p-norm."""
    size, total, top = _scaled(x, p)
    # the total is at least 1, or 0 where x is
    return jnp.sign(x) * top * size ** (p - 1) * jnp.maximum(total, 1) ** (2 / p - 1)
