"""Dual averaging that learns how far it has to go."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_positive_scalar
from dpjax.papers.learners._dual_averaging import dual_averaging
from dpjax.papers.learners._norms import norm
from dpjax.transforms.learners._learner import Projection, plus, required, scalar, widened


class DistanceAdaptiveState(NamedTuple):
    """State of `distance_adaptive`.

    Attributes:
      start: w_1, in at least float32.
      distance: Largest distance from it so far, at least the initial scale, `[]`.
      inner: State of dual averaging.
    """

    start: PyTree
    distance: jax.Array
    inner: Any


def distance_adaptive(
    initial_scale: ArrayLike, project: Projection | None = None, optimistic: bool = True
) -> Transform:
    r"""Dual averaging whose diameter is the distance that the averages have come so far.

    $$ D_t = \max\bigl(\epsilon, \max_{i \le t} \|x_i - w_1\|\bigr) $$

    in the place of D in `dual_averaging`. The scale only has to be smaller than the distance to a
    minimiser: while gradients agree, the distance grows geometrically. There is no bound on the
    regret for every sequence, as `parameter_free` has one, and it was closer to the best fixed D
    where both were measured.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      initial_scale: $\epsilon$ `> 0` (*public*), in units of the parameters; scalar, may be traced.
      project: As in `dual_averaging`.
      optimistic: As in `dual_averaging`.

    Returns:
      A transformation; `update(g_t, state, params=w_t, *, average=x_t, **extra)`.

    Raises:
      ValueError: If `initial_scale` is not positive and finite; at `update`, if `params` or
        `average` is missing.
      TypeError: If `initial_scale` is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.papers.learners.distance_adaptive(0.1)
      >>> w = jnp.array(3.0)
      >>> updates, state = learner.update(jnp.array(5.0), learner.init(w), w, average=w)
      >>> round(float(optax.apply_updates(w, updates)), 4)
      2.8

    Source: after Ivgi, Hinder and Carmon, "DoG is SGD's best friend", 2023.
    """
    check_positive_scalar("initial_scale", initial_scale)

    def inner(diameter: ArrayLike) -> Transform:
        return dual_averaging(diameter, project, optimistic)

    def init(params: PyTree) -> DistanceAdaptiveState:
        start = widened(params)
        distance = scalar(start, initial_scale)
        return DistanceAdaptiveState(start, distance, inner(distance).init(params))

    def update(
        updates: PyTree,
        state: DistanceAdaptiveState,
        params: PyTree = None,
        *,
        average: PyTree = None,
        **extra: object,
    ) -> tuple[PyTree, DistanceAdaptiveState]:
        point = widened(required("average", average, "the point x_t of the gradient"))
        travelled = norm(plus(point, state.start, -1.0)).astype(state.distance.dtype)
        distance = jnp.maximum(state.distance, travelled)
        moves, after = inner(distance).update(updates, state.inner, params, **extra)
        return moves, DistanceAdaptiveState(state.start, distance, after)

    return Transform(init, update)
