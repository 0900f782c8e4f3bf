"""Mirror steps, and gradients at the average of the iterates."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_nonnegative, check_scalar, wide
from dpjax.core._chain import as_stage
from dpjax.papers.mirror._maps import MirrorMap


class MirrorStepState(NamedTuple):
    """State of `mirror_step`.

    Attributes:
      count: Number of steps so far, `[]` int32 (*public*).
    """

    count: jax.Array  # type: ignore[assignment]


def mirror_step(
    mirror_map: MirrorMap, step_size: ArrayLike | tuple[ArrayLike, ...] | Callable[[jax.Array], Any]
) -> Transform:
    r"""A step of mirror descent, in the coordinates of the mirror map.

    $$ x_{t+1} = \arg\min_x\ \tau_t \langle g_t, x\rangle + D(x, x_t) $$

    The parameters are the map's own coordinates of $x_t$ (log probabilities for
    `dpjax.geometry.entropic`), and the update is what `optax.apply_updates` must add to them to
    get those of $x_{t+1}$; `mirror_map.point(params)` is $x_t$ itself. The minus of descent is part
    of the step: no `optax.scale(-1)` goes with it; for ascent, negate the gradient before.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      mirror_map: From `dpjax.geometry` (*public*).
      step_size: $\tau \ge 0$ (*public*), scalar, may be traced; what the map takes, so for
        `dpjax.geometry.product` also a tuple of them; or a schedule, a function of the number of
        steps so far.

    Returns:
      A transformation; `update(gradient, state, params)` takes gradients at the point, in the shape
      of the coordinates, and the coordinates. It computes in at least float32 and keeps their
      dtypes.

    Raises:
      ValueError: If `step_size` is negative or not finite; at `update`, if `params` is missing.
      TypeError: If `step_size`, or what it gives, is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> simplex = dpjax.geometry.entropic()
      >>> step = dpjax.transforms.mirror_step(simplex, 0.5)
      >>> coords = simplex.init(jnp.zeros(2))
      >>> updates, _ = step.update(jnp.array([2.0, 0.0]), step.init(coords), coords)
      >>> [round(float(x), 4) for x in simplex.point(optax.apply_updates(coords, updates))]
      [0.2689, 0.7311]

    Source: Nemirovski and Yudin 1983; Beck and Teboulle, "Mirror descent and nonlinear projected
    subgradient methods for convex optimization", 2003.
    """
    if not callable(step_size):
        for size in step_size if isinstance(step_size, tuple | list) else (step_size,):
            check_scalar("step_size", size)
        check_nonnegative("step_size", step_size)

    def init(params: PyTree) -> MirrorStepState:
        return MirrorStepState(jnp.zeros((), jnp.int32))

    def update(
        updates: PyTree, state: MirrorStepState, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, MirrorStepState]:
        if params is None:
            raise ValueError("params is required: the coordinates that the gradient is to move")
        size = step_size(state.count) if callable(step_size) else step_size
        coords = jax.tree.map(wide, params)
        after = mirror_map.step(coords, jax.tree.map(wide, updates), size)

        def change(new: jax.Array, old: jax.Array, like: jax.Array) -> jax.Array:
            # a log probability may stay at -inf
            return jnp.where(new == old, 0, new - old).astype(like.dtype)

        changes = jax.tree.map(change, after, coords, params)
        return changes, MirrorStepState(state.count + 1)

    return Transform(init, update)


class AnytimeState(NamedTuple):
    """State of `anytime_average`.

    Attributes:
      iterate: The inner iterate $x_t$, in the mirror map's coordinates if there is one.
      count: Number of updates so far, `[]` int32 (*public*).
      base: State of the wrapped optimiser.
    """

    iterate: PyTree
    count: jax.Array  # type: ignore[assignment]
    base: PyTree


def anytime_average(
    base: optax.GradientTransformation, mirror_map: MirrorMap | None = None
) -> Transform:
    r"""Runs an optimiser on gradients taken at the average of its iterates.

    $$ x_{t+1} = x_t + \mathrm{base}(\nabla F(w_t)), \qquad
       w_{t+1} = \frac{t\, w_t + x_{t+1}}{t + 1}, \qquad w_1 = x_1 $$

    The parameters are the averages $w_t$; the iterates $x_t$ live in the state. The regret of
    `base` on the linear losses $\langle \nabla F(w_t), \cdot\rangle$, divided by the number of
    steps, then bounds the excess of the last $w_T$, not of an average to be formed afterwards, for
    every T; and $w_t$ moves slowly, $\|w_t - w_{t-1}\| \le \mathrm{diameter} / t$.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      base: An optax or dpjax optimiser, such as `optax.sgd(0.1)`; it sees $x_t$ as its parameters.
      mirror_map: For `base = mirror_step(mirror_map, ...)`: the map whose coordinates `base`
        moves; points are averaged, not coordinates (*public*).

    Returns:
      A transformation; `update(gradient, state, params, **extra)` takes the gradient at
      `params`, and passes `extra` (a key) on to `base`. `init(params)` takes $w_1 = x_1$, with a
      mirror map a point inside its domain.

    Raises:
      TypeError: If `base` is no transformation.
      ValueError: At `update`, if `params` is missing.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> optimizer = dpjax.transforms.anytime_average(optax.sgd(1.0))
      >>> w = jnp.array(4.0)
      >>> state = optimizer.init(w)
      >>> for _ in range(2):
      ...     updates, state = optimizer.update(jnp.array(2.0), state, w)
      ...     w = optax.apply_updates(w, updates)
      >>> float(state.iterate), float(w)  # iterates 4, 2, 0
      (0.0, 2.0)

    Source: Cutkosky, "Anytime online-to-batch, optimism and acceleration", 2019, theorem 1.
    """
    stage = as_stage("base", base)

    def init(params: PyTree) -> AnytimeState:
        params = jax.tree.map(jnp.asarray, params)
        iterate = params if mirror_map is None else mirror_map.coordinates(params)
        return AnytimeState(iterate, jnp.zeros((), jnp.int32), stage.init(iterate))

    def update(
        updates: PyTree, state: AnytimeState, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, AnytimeState]:
        if params is None:
            raise ValueError("params is required: the average at which the gradient was taken")
        moves, inner = stage.update(updates, state.base, state.iterate, **extra)
        iterate = optax.apply_updates(state.iterate, moves)
        point = iterate if mirror_map is None else mirror_map.point(iterate)

        def towards(x: jax.Array, w: jax.Array) -> jax.Array:
            gap = wide(x) - wide(w)
            return (gap / (state.count + 2).astype(gap.dtype)).astype(w.dtype)

        return jax.tree.map(towards, point, params), AnytimeState(iterate, state.count + 1, inner)

    return Transform(init, update)
