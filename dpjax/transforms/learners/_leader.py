"""Follow the regularised leader with hints of the next gradient, in any geometry."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_finite, check_scalar
from dpjax.transforms.learners._learner import (
    hypotenuse,
    plus,
    ratio,
    required,
    scalar,
    scaled,
    widened,
)


class LeaderState(NamedTuple):
    r"""State of `dual_averaging` and `exponentiated_gradient`; trees in at least float32.

    Attributes:
      start: $w_1$, or the logarithms of its weights on the vertices.
      total: $\Theta_t = \sum_{i \le t} g_i$.
      hint: $h_{t+1}$, or None if none is used.
      length: $\sqrt{S_t}$, `[]`.
      count: Number of updates so far, `[]` int32 (*public*).
    """

    start: PyTree
    total: PyTree
    hint: PyTree
    length: jax.Array
    count: jax.Array  # type: ignore[assignment]


def leader(
    lift: Callable[[PyTree], PyTree],
    point: Callable[[PyTree, PyTree, jax.Array], PyTree],
    size: Callable[[PyTree], jax.Array],
    scale: ArrayLike,
    optimistic: bool,
    hint_scale: ArrayLike | str = "none",
) -> Transform:
    """The point that is best against all gradients so far and the hint, at a rate `scale / length`.

    Args:
      lift: `lift(w_1) -> start`, what the state keeps of the first point.
      point: `point(start, total, rate) -> w`.
      size: `size(g) -> []`, the norm that `length` adds up.
      scale: Scalar.
      optimistic: Whether there are hints: of the next gradient, this one.
      hint_scale: `"none"`, or the degree k of growth: `((t + 1) / t)^k` times this gradient.

    Returns:
      A transformation.
    """
    grows = not isinstance(hint_scale, str)
    if not grows and hint_scale != "none":
        raise ValueError(f"hint_scale must be 'none' or a number, got {hint_scale!r}")
    if grows:
        check_scalar("hint_scale", hint_scale)
        check_finite("hint_scale", hint_scale)

    def init(params: PyTree) -> LeaderState:
        zeros = jax.tree.map(jnp.zeros_like, widened(params))
        hint = zeros if optimistic else None
        count = jnp.zeros((), jnp.int32)
        return LeaderState(lift(widened(params)), zeros, hint, scalar(zeros), count)

    def update(
        updates: PyTree,
        state: LeaderState,
        params: PyTree = None,
        *,
        hint: PyTree = None,
        **extra: object,
    ) -> tuple[PyTree, LeaderState]:
        del extra
        required("params", params, "the point w_t that the learner is to move")
        zeros = jax.tree.map(jnp.zeros_like, state.total)
        gradient, count = plus(zeros, updates), state.count + 1
        surprise, ahead = gradient, None
        if optimistic:
            surprise = plus(gradient, state.hint, -1.0)
            ahead = _growth(gradient, hint_scale, count) if hint is None else plus(zeros, hint)
        length = hypotenuse(state.length, size(surprise))
        total = plus(state.total, gradient)
        against = total if ahead is None else plus(total, ahead)
        new = point(state.start, against, ratio(scale, length))

        def towards(a: jax.Array, b: ArrayLike) -> jax.Array:  # while nothing came, w_1 stays
            gap = a - jnp.asarray(b, a.dtype)
            return jnp.where(length == 0, 0, gap).astype(jnp.result_type(b))

        moves = jax.tree.map(towards, new, params)
        return moves, LeaderState(state.start, total, ahead, length, count)

    def _growth(gradient: PyTree, degree: ArrayLike | str, count: jax.Array) -> PyTree:
        if not grows:
            return gradient
        t = count.astype(scalar(gradient).dtype)
        return scaled(gradient, ((t + 1) / t) ** jnp.asarray(degree, t.dtype))

    return Transform(init, update)
