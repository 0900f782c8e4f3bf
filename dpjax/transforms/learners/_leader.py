"""Follow the regularised leader with hints of the next gradient, in any geometry."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform
from dpjax.transforms.learners._learner import hypotenuse, plus, ratio, required, scalar, widened


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
    next_hint: Callable[[PyTree, jax.Array], PyTree] | None = None,
) -> Transform:
    """The point that is best against all gradients so far and the hint, at a rate `scale / length`.

    Args:
      lift: `lift(w_1) -> start`, what the state keeps of the first point.
      point: `point(start, total, rate) -> w`.
      size: `size(g) -> []`, the norm that `length` adds up.
      scale: Scalar.
      next_hint: `next_hint(gradient, count)`, a guess of the next gradient; None for no hints.

    Returns:
      A transformation.
    """

    def init(params: PyTree) -> LeaderState:
        zeros = jax.tree.map(jnp.zeros_like, widened(params))
        hint = None if next_hint is None else zeros
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
        required("params", params, "the point w_t that the learner is to move")
        zeros = jax.tree.map(jnp.zeros_like, state.total)
        gradient, count = plus(zeros, updates), state.count + 1
        surprise, ahead = gradient, None
        if next_hint is not None:
            surprise = plus(gradient, state.hint, -1.0)
            ahead = next_hint(gradient, count) if hint is None else plus(zeros, hint)
        length = hypotenuse(state.length, size(surprise))
        total = plus(state.total, gradient)
        against = total if ahead is None else plus(total, ahead)
        new = point(state.start, against, ratio(scale, length))

        def towards(a: jax.Array, b: ArrayLike) -> jax.Array:  # while nothing came, w_1 stays
            gap = a - jnp.asarray(b, a.dtype)
            return jnp.where(length == 0, 0, gap).astype(jnp.result_type(b))

        moves = jax.tree.map(towards, new, params)
        return moves, LeaderState(state.start, total, ahead, length, count)

    return Transform(init, update)
