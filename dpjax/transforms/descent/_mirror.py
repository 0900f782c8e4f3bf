"""Mirror descent as a gradient transformation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_nonnegative, check_scalar, wide
from dpjax.geometry import MirrorMap


class MirrorStepState(NamedTuple):
    """State of `mirror_step`.

    Attributes:
      count: Number of steps so far, `[]` int32 (*public*).
    """

    count: jax.Array  # type: ignore[assignment]


def mirror_step(
    mirror_map: MirrorMap,
    step_size: ArrayLike | tuple[ArrayLike, ...] | Callable[[jax.Array], Any],
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
