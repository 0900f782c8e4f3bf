"""Gradients at the average of the iterates, of any optimiser."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax.core import PyTree, Transform, wide
from dpjax.core._chain import as_stage
from dpjax.geometry import MirrorMap


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
