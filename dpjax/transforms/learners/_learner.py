"""What learners of vectors have in common: trees, points and projections, and a leader."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, wide

Projection = Callable[[PyTree], PyTree]
"""`project(w)`, the nearest point of a convex set to a tree."""


def widened(tree: PyTree) -> PyTree:
    """The tree with every leaf in at least float32."""
    return jax.tree.map(wide, tree)


def required(name: str, value: object, what: str) -> Any:
    """Returns `value`, an argument of `update`; raises ValueError if it is missing."""
    if value is None:
        raise ValueError(f"{name} is required: {what}")
    return value


def points(params: PyTree) -> PyTree:
    """The parameters, which every learner is to be given, in at least float32."""
    return widened(required("params", params, "the point w_t that the learner is to move"))


def plus(tree: PyTree, other: PyTree, scale: ArrayLike = 1.0) -> PyTree:
    """`tree + scale * other`, in the dtypes of `tree`."""

    def add(a: jax.Array, b: ArrayLike) -> jax.Array:
        return a + jnp.asarray(scale, a.dtype) * jnp.asarray(b, a.dtype)

    return jax.tree.map(add, tree, other)


def scalar(tree: PyTree, value: ArrayLike = 0.0) -> jax.Array:
    """`value` in the widest dtype of the tree's leaves, at least float32."""
    return jnp.asarray(value, jnp.result_type(jnp.float32, *jax.tree.leaves(tree)))


def largest(tree: PyTree) -> jax.Array:
    """The largest modulus over all leaves."""
    top = scalar(tree)
    for leaf in jax.tree.leaves(tree):
        top = jnp.maximum(top, jnp.max(jnp.abs(leaf), initial=0).astype(top.dtype))
    return top


def hypotenuse(a: jax.Array, b: jax.Array) -> jax.Array:
    """`sqrt(a^2 + b^2)` of two scalars `>= 0`, in the dtype of `a`; no square is formed."""
    b = b.astype(a.dtype)
    top = jnp.maximum(a, b)
    unit = jnp.where(top > 0, top, 1)
    return unit * jnp.sqrt(jnp.square(a / unit) + jnp.square(b / unit))


def ratio(a: ArrayLike, b: jax.Array) -> jax.Array:
    """`a / b` of scalars, and 0 where `b` is 0."""
    return jnp.where(b == 0, 0, jnp.asarray(a, b.dtype) / jnp.where(b == 0, 1, b))


def nearest(project: Projection | None, tree: PyTree) -> PyTree:
    """The projection, in the dtypes of `tree`."""
    if project is None:
        return tree
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), project(tree), tree)


def change(new: PyTree, params: PyTree) -> PyTree:
    """What `optax.apply_updates` must add to `params` for `new`, in the dtypes of `params`."""
    return jax.tree.map(lambda a, b: (wide(a) - wide(b)).astype(jnp.result_type(b)), new, params)


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
