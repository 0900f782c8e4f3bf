"""Learners of the whole space made learners of a convex set, with gradients of bounded norm."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_nonnegative_scalar, check_positive_scalar, is_traced
from dpjax.papers.learners._norms import inner, norm, scaled
from dpjax.transforms.learners._learner import (
    Projection,
    change,
    learner_of,
    nearest,
    plus,
    ratio,
    required,
    scalar,
    widened,
)

# a distance from the set below so many units in the last place is rounding
_ROUNDING = 64
# distances from the anchor end at exp(this) initial scales, whose squares float32 still holds
LOG_LIMIT = 40.0


class ReductionState(NamedTuple):
    """State of `parameter_free` and `coin_betting`; trees in at least float32.

    Attributes:
      anchor: The first point.
      point: The point $w_t$ in the set.
      total: Sum of the gradients that the unconstrained learner got, negated, in units of the bound
        on their norms.
      scale: Scalar of the learner: of `parameter_free` one and the sum of their squared norms, of
        `coin_betting` the logarithm of the wealth in units of the initial one.
      count: Number of updates so far, `[]` int32 (*public*).
    """

    anchor: PyTree
    point: PyTree
    total: PyTree
    scale: jax.Array
    count: jax.Array  # type: ignore[assignment]


def constrained(
    initial: float,
    bet: Callable[[PyTree, jax.Array, jax.Array], PyTree],
    grown: Callable[[PyTree, PyTree, jax.Array, jax.Array], jax.Array],
    gradient_norm: ArrayLike,
    project: Projection | None,
    regularizer: ArrayLike = 0.0,
) -> Transform:
    """The reduction to a learner of the whole space that gets gradients of norm at most 1.

    Args:
      initial: First `scale` of the state.
      bet: `bet(total, scale, count) -> v - anchor`.
      grown: `grown(coin, total, scale, count) -> scale`, with the coin the negated gradient and the
        others as before it.
      gradient_norm: Bound on the gradients' norms; scalar.
      project: The set, or None.
      regularizer: Strength of the pull towards the anchor.

    Returns:
      A transformation.
    """
    check_positive_scalar("gradient_norm", gradient_norm)
    check_nonnegative_scalar("regularizer", regularizer)
    pulls = is_traced(regularizer) or bool(np.any(np.asarray(regularizer) != 0))

    def init(params: PyTree) -> ReductionState:
        anchor = widened(params)
        zeros = jax.tree.map(jnp.zeros_like, anchor)
        start = scalar(anchor, initial)
        return ReductionState(anchor, anchor, zeros, start, jnp.zeros((), jnp.int32))

    def step(
        updates: PyTree,
        state: ReductionState,
        params: PyTree,
        *,
        weight: ArrayLike | None = None,
        **_: object,
    ) -> tuple[PyTree, ReductionState]:
        gradient = plus(jax.tree.map(jnp.zeros_like, state.total), updates)
        if pulls:
            beta = scalar(gradient, required("weight", weight, "the weight beta_t of w_t"))
            root = jnp.sqrt((state.count + 1).astype(beta.dtype))
            gap = plus(state.point, state.anchor, -1.0)
            strength = scalar(gradient, regularizer) * beta / root
            gradient = plus(gradient, gap, ratio(strength, norm(gap)))
        offset = bet(state.total, state.scale, state.count)
        gradient = gradient_outside(gradient, plus(state.anchor, offset), state.point)
        bound = scalar(gradient, gradient_norm)
        coin = scaled(gradient, -1 / jnp.maximum(bound, norm(gradient)))
        total = plus(state.total, coin)
        scale, count = grown(coin, state.total, state.scale, state.count), state.count + 1
        point = nearest(project, plus(state.anchor, bet(total, scale, count)))
        after = ReductionState(state.anchor, point, total, scale, count)
        return change(point, params), after

    return learner_of(init, step)


def gradient_outside(gradient: PyTree, free: PyTree, point: PyTree) -> PyTree:
    r"""The gradient for the unconstrained iterate $v$, whose nearest point of the set is $w$.

    $$ \tilde g = g - \min(0, \langle g, n\rangle)\, n, \qquad n = (v - w) / \|v - w\| $$

    Then $\langle g, w - u\rangle \le \langle\tilde g, v - u\rangle$ for every $u$ in the set, and
    $\|\tilde g\| \le \|g\|$.
    """
    gap = plus(free, point, -1.0)
    distance = norm(gap)
    rounding = _ROUNDING * jnp.finfo(distance.dtype).eps * norm(free)
    normal = scaled(gap, jnp.where(distance > rounding, ratio(1.0, distance), 0))
    return plus(gradient, normal, -jnp.minimum(0, inner(gradient, normal)))
