"""Mirror maps: what a mirror step needs to know of its geometry."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree


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
