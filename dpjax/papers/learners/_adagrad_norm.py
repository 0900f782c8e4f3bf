"""Projected descent whose one step size adapts to the gradients' norms."""

from typing import NamedTuple

import jax
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_positive_scalar
from dpjax.papers.learners._norms import norm
from dpjax.transforms.learners._learner import (
    Projection,
    change,
    hypotenuse,
    learner_of,
    nearest,
    plus,
    ratio,
    scalar,
    widened,
)


class AdagradNormState(NamedTuple):
    r"""State of `adagrad_norm`.

    Attributes:
      length: $\sqrt{\sum_{i \le t}\|g_i\|^2}$, `[]`, in at least float32.
    """

    length: jax.Array


def adagrad_norm(diameter: ArrayLike, project: Projection | None = None) -> Transform:
    r"""Projected online gradient descent with a step size from the norms so far.

    $$ S_t = S_{t-1} + \|g_t\|^2, \qquad
       w_{t+1} = \Pi_W\Bigl(w_t - \frac{D}{\sqrt{2 S_t}}\, g_t\Bigr) $$

    For any $g_t$ and any $u$ in a convex $W$ of diameter at most $D$

    $$ \sum_{t \le T} \langle g_t, w_t - u\rangle \le \sqrt2\, D\sqrt{S_T} . $$

    The points do not depend on the gradients' unit; while all of them are 0, $w_1$ stays.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      diameter: $D$ `> 0` (*public*), in units of the parameters; scalar, may be traced.
      project: `project(w) -> nearest point of W`, on trees like the parameters (*public*); None
        for the whole space, where the bound holds for $u$ within $D$ of every $w_t$.

    Returns:
      A transformation; `update(g_t, state, params=w_t, **extra)`. Norms are l2, over all leaves.

    Raises:
      ValueError: If `diameter` is not positive and finite; at `update`, if `params` is missing.
      TypeError: If `diameter` is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.papers.learners.adagrad_norm(2.0, optax.projections.projection_l2_ball)
      >>> w = jnp.array([0.0, 0.0])
      >>> updates, _ = learner.update(jnp.array([300.0, -400.0]), learner.init(w), w)
      >>> [round(float(x), 4) for x in optax.apply_updates(w, updates)]
      [-0.6, 0.8]

    Source: Streeter and McMahan, "Less regret via online conditioning", 2010; Duchi, Hazan and
    Singer, "Adaptive subgradient methods", 2011, with one step size for all coordinates.
    """
    check_positive_scalar("diameter", diameter)

    def init(params: PyTree) -> AdagradNormState:
        return AdagradNormState(scalar(params))

    def step(
        updates: PyTree, state: AdagradNormState, params: PyTree, **_: object
    ) -> tuple[PyTree, AdagradNormState]:
        at = widened(params)
        length = hypotenuse(state.length, norm(updates))
        rate = ratio(scalar(at, diameter) / scalar(at, 2) ** 0.5, length)
        return change(nearest(project, plus(at, updates, -rate)), params), AdagradNormState(length)

    return learner_of(init, step)
