"""Mirror maps: what a mirror step needs to know of its geometry."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_positive_scalar, check_scalar, is_traced
from dpjax.geometry._blocks import as_vector
from dpjax.geometry._vertices import log_normalize


class MirrorMap(NamedTuple):
    r"""A geometry for mirror descent: a convex function $\phi$ on a convex set $X$.

    Iterates live in coordinates that suit the geometry, from which `point` gives the primal ones.
    With the Bregman divergence $D(x, y) = \phi(x) - \phi(y) - \langle\nabla\phi(y), x - y\rangle$,
    a step is

    $$ x_{t+1} = \arg\min_{x \in X} \langle g, x\rangle + D(x, x_t) / \tau $$

    in closed form. All functions take single vectors `[d]` (`product`: tuples of them), are pure
    and may be jitted and vmapped. Nothing here draws or protects: a step is post-processing of the
    gradient and of the coordinates it is given.

    Attributes:
      init: `init(params) -> coords`, where $\phi$ is smallest on $X$; of `params`, arrays or
        `jax.ShapeDtypeStruct`, only shape and dtype are read.
      point: `point(coords) -> primal`.
      coordinates: `coordinates(primal) -> coords`, the inverse of `point` on $X$.
      step: `step(coords, gradient, step_size) -> coords`, with the step size $\tau \ge 0$ a scalar
        that may be traced. Ascent is the step along the gradient's negative.
      divergence: `divergence(p, q) -> D(p, q)` of two primal points, `[]`.
    """

    init: Callable[[PyTree], PyTree]
    point: Callable[[PyTree], PyTree]
    coordinates: Callable[[PyTree], PyTree]
    step: Callable[[PyTree, PyTree, Any], PyTree]
    divergence: Callable[[PyTree, PyTree], jax.Array]


def product(*maps: MirrorMap) -> MirrorMap:
    r"""The product of geometries, on tuples: the sum of the $\phi_i$ over $X_1 \times X_2 \dots$

    A saddle point of two players steps in one call: their simplices' entropic maps, with the second
    player's gradient negated. The divergence is the sum of the maps' own.

    Args:
      *maps: One map for each entry of the tuples.

    Returns:
      A `MirrorMap`; `step` takes one step size, or a tuple with one for each map.

    Raises:
      ValueError: If there is no map, or, in its functions, if a tuple has another length.

    Example:
      >>> import jax.numpy as jnp
      >>> from dpjax.geometry import entropic
      >>> game = product(entropic(), entropic())
      >>> coords = game.init((jnp.zeros(2), jnp.zeros(4)))
      >>> coords = game.step(coords, (jnp.ones(2), jnp.ones(4)), (0.1, 0.2))
      >>> [p.shape for p in game.point(coords)]
      [(2,), (4,)]
    """
    if not maps:
        raise ValueError("product needs at least one mirror map, got 0")

    def parts(name: str, values: Any) -> tuple[Any, ...]:
        if not isinstance(values, tuple | list) or len(values) != len(maps):
            got = len(values) if isinstance(values, tuple | list) else type(values).__name__
            raise ValueError(f"{name} must be a tuple of {len(maps)}, got {got}")
        return tuple(values)

    def each(name: str, field: str) -> Callable[[PyTree], PyTree]:
        def apply(values: PyTree) -> PyTree:
            pairs = zip(maps, parts(name, values), strict=True)
            return tuple(getattr(m, field)(value) for m, value in pairs)

        return apply

    def step(coords: PyTree, gradient: PyTree, step_size: ArrayLike) -> PyTree:
        several = isinstance(step_size, tuple | list)
        sizes = parts("step_size", step_size) if several else (step_size,) * len(maps)
        rows = zip(maps, parts("coords", coords), parts("gradient", gradient), sizes, strict=True)
        return tuple(m.step(c, g, s) for m, c, g, s in rows)

    def divergence(p: PyTree, q: PyTree) -> jax.Array:
        rows = zip(maps, parts("p", p), parts("q", q), strict=True)
        return jnp.sum(jnp.stack([m.divergence(a, b) for m, a, b in rows]))

    return MirrorMap(
        each("params", "init"),
        each("coords", "point"),
        each("primal", "coordinates"),
        step,
        divergence,
    )


def moved(coords: jax.Array, gradient: ArrayLike, step_size: ArrayLike) -> jax.Array:
    """The gradient step, in the coordinates' own dtype."""
    return coords - jnp.asarray(step_size, coords.dtype) * jnp.asarray(gradient, coords.dtype)


def shape_and_dtype(params: PyTree) -> tuple[tuple[int, ...], Any]:
    """Of one vector: its shape, and its dtype or float32 if that is wider."""
    if not hasattr(params, "dtype"):
        params = jnp.asarray(params)
    if len(params.shape) != 1 or not params.shape[0]:
        raise ValueError(f"params must be a vector of >= 1 entries, got shape {params.shape}")
    floating = jnp.issubdtype(params.dtype, jnp.floating)
    return params.shape, jnp.promote_types(params.dtype, jnp.float32) if floating else float


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
