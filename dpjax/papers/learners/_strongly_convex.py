"""Online descent for strongly convex losses, as seen from the averages of the points."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_choice, check_positive_scalar
from dpjax.papers.learners._norms import scaled
from dpjax.transforms.learners._learner import (
    Projection,
    change,
    learner_of,
    nearest,
    plus,
    required,
    scalar,
    widened,
)


class StronglyConvexState(NamedTuple):
    r"""State of `strongly_convex_descent(form="ftrl")`; trees in at least float32.

    Attributes:
      total: $\sum_{i \le t} g_i$.
      center: $\sum_{i \le t} \beta_i x_i / B_t$.
    """

    total: PyTree
    center: PyTree


def strongly_convex_descent(
    strong_convexity: ArrayLike, project: Projection | None = None, form: str = "descent"
) -> Transform:
    r"""Descent on $f_t(w) = \langle g_t, w\rangle + \frac{\mu\beta_t}{4}\|w - x_t\|^2$.

    For an objective that is $\mu$-strongly convex, with gradients $g_t$ at averages $x_t$ of the
    points in which $w_t$ weighs $\beta_t$, and $B_t = \sum_{i \le t}\beta_i$. By the form,

    $$ w_{t+1} = \Pi_W\Bigl(w_t - \frac{2}{\mu B_t} \bar g_t\Bigr), \qquad
       \bar g_t = \nabla f_t(w_t) = g_t + \frac{\mu\beta_t}{2}(w_t - x_t) $$

    $$ w_{t+1} = \arg\min_{w \in W} \sum_{i \le t} f_i(w)
       = \Pi_W\Bigl(\frac{1}{B_t}\sum_{i \le t}\beta_i x_i
         - \frac{2}{\mu B_t}\sum_{i \le t} g_i\Bigr) $$

    For either, any $g_t$, $x_t$ and any $u$ in a convex $W$, bounded or not,

    $$ \sum_{t \le T} f_t(w_t) - f_t(u) \le \sum_{t \le T} \frac{\|\bar g_t\|^2}{\mu B_t} . $$

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      strong_convexity: $\mu$ `> 0` of the objective, in the l2 norm (*public*); scalar, may be
        traced.
      project: `project(w) -> nearest point of W`, on trees like the parameters (*public*); None
        for the whole space.
      form: `"descent"`, the first, which keeps no state, or `"ftrl"`, the second (*public*,
        static).

    Returns:
      A transformation; `update(g_t, state, params=w_t, *, weight, total_weight, average, **extra)`
      with $\beta_t$ and $B_t$, scalars in the unit of the weights that the gradients carry, and
      $x_t$, a tree like the parameters.

    Raises:
      ValueError: If `strong_convexity` is not positive and finite, or the form unknown; at
        `update`, if `params`, `weight`, `total_weight` or `average` is missing.
      TypeError: If `strong_convexity` is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.papers.learners.strongly_convex_descent(2.0)
      >>> w = jnp.array([3.0, 1.0])
      >>> updates, _ = learner.update(
      ...     jnp.array([4.0, 2.0]), learner.init(w), w, weight=1.0, total_weight=1.0, average=w
      ... )
      >>> optax.apply_updates(w, updates).tolist()
      [-1.0, -1.0]

    Source: Hazan, Agarwal and Kale, "Logarithmic regret algorithms for online convex optimization",
    2007, theorem 1.
    """
    check_positive_scalar("strong_convexity", strong_convexity)
    check_choice("form", form, ("descent", "ftrl"))

    def init(params: PyTree) -> Any:
        if form == "descent":
            return ()
        zeros = jax.tree.map(jnp.zeros_like, widened(params))
        return StronglyConvexState(zeros, zeros)

    def step(
        updates: PyTree, state: PyTree, params: PyTree, **given: PyTree
    ) -> tuple[PyTree, PyTree]:
        def asked(name: str, what: str) -> PyTree:
            return required(name, given.get(name), what)

        at = widened(params)
        beta = scalar(at, asked("weight", "the weight beta_t of w_t"))
        sum_of = scalar(at, asked("total_weight", "the sum B_t of the weights"))
        seen = asked("average", "the average x_t at which the gradient was taken")
        rate = -2 / (scalar(at, strong_convexity) * sum_of)
        if form == "descent":
            towards = plus(at, plus(at, seen, -1.0), -beta / sum_of)
            return change(nearest(project, plus(towards, updates, rate)), params), state
        total = plus(state.total, updates)
        center = plus(scaled(state.center, 1 - beta / sum_of), seen, beta / sum_of)
        point = nearest(project, plus(center, total, rate))
        return change(point, params), StronglyConvexState(total, center)

    return learner_of(init, step)
