"""Optimistic mirror descent in the Euclidean geometry."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_positive_scalar
from dpjax.transforms.learners._learner import (
    Projection,
    change,
    learner_of,
    nearest,
    plus,
    widened,
)


class OptimisticDescentState(NamedTuple):
    """State of `optimistic_descent`.

    Attributes:
      base: The point $v_t$ without a hint, a tree with leaves of at least float32.
    """

    base: PyTree


def optimistic_descent(learning_rate: ArrayLike, project: Projection | None = None) -> Transform:
    r"""Two steps for each gradient: one for itself, one for the hint that the next is like it.

    $$ v_{t+1} = \Pi_W(v_t - \eta g_t), \qquad w_{t+1} = \Pi_W(v_{t+1} - \eta h_{t+1}),
       \qquad h_{t+1} = g_t,\ h_1 = 0,\ v_1 = w_1 $$

    For any $g_t$ and any $u$ in a convex $W$ of diameter at most $D$

    $$ \sum_{t \le T} \langle g_t, w_t - u\rangle
       \le \frac{D^2}{2\eta} + \frac\eta2 \sum_{t \le T} \|g_t - h_t\|^2 . $$

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      learning_rate: $\eta$ `> 0` (*public*), in units of the parameters over those of the
        gradients; scalar, may be traced.
      project: `project(w) -> nearest point of W`, on trees like the parameters (*public*); None
        for the whole space.

    Returns:
      A transformation; `update(g_t, state, params=w_t, *, hint=None, **extra)`, where `hint` is
      another $h_{t+1}$ than $g_t$.

    Raises:
      ValueError: If `learning_rate` is not positive and finite; at `update`, if `params` is
        missing.
      TypeError: If `learning_rate` is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.papers.learners.optimistic_descent(0.5)
      >>> w = jnp.array(0.0)
      >>> state = learner.init(w)
      >>> for g in (1.0, 1.0, -1.0):
      ...     updates, state = learner.update(jnp.array(g), state, w)
      ...     w = optax.apply_updates(w, updates)
      ...     print(float(w))
      -1.0
      -1.5
      0.0

    Source: Rakhlin and Sridharan, "Online learning with predictable sequences", 2013, lemma 1.
    """
    check_positive_scalar("learning_rate", learning_rate)

    def init(params: PyTree) -> OptimisticDescentState:
        return OptimisticDescentState(widened(params))

    def step(
        updates: PyTree,
        state: OptimisticDescentState,
        params: PyTree,
        *,
        hint: PyTree = None,
        **_: object,
    ) -> tuple[PyTree, OptimisticDescentState]:
        rate = -jnp.asarray(learning_rate)
        base = nearest(project, plus(state.base, updates, rate))
        point = nearest(project, plus(base, updates if hint is None else hint, rate))
        return change(point, params), OptimisticDescentState(base)

    return learner_of(init, step)
