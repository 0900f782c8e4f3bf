"""Any optimiser, kept in a convex set."""

from typing import Any

import optax

from dpjax.core import PyTree, Transform
from dpjax.core._chain import as_stage
from dpjax.transforms.learners._learner import Projection, change, nearest, plus, points


def projected(
    optimizer: optax.GradientTransformation, project: Projection | None = None
) -> Transform:
    r"""Any optax optimiser, with a projection after every step.

    $$ w_{t+1} = \Pi_W(w_t + \mathrm{optimizer}(g_t)) $$

    With `optax.sgd(eta)` and the nearest point of a convex $W$ of diameter $D$ this is projected
    online gradient descent: for any $g_t$ and any $u \in W$

    $$ \sum_{t \le T} \langle g_t, w_t - u\rangle
       \le \frac{D^2}{2\eta} + \frac\eta2 \sum_{t \le T} \|g_t\|^2 . $$

    Adaptive optimisers run likewise, without such a bound.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      optimizer: An optax or dpjax optimiser (*public*); what `update` is given beside is passed on.
      project: `project(w) -> nearest point of W`, on trees like the parameters, such as
        `optax.projections.projection_l2_ball` or `Simplex(d).project` (*public*); None for the
        whole space.

    Returns:
      A transformation; `update(g_t, state, params=w_t, **extra)`. Its state is the optimiser's.

    Raises:
      TypeError: If `optimizer` is no transformation.
      ValueError: At `update`, if `params` is missing.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.transforms.projected(optax.sgd(1.0), lambda w: jnp.clip(w, -1.0, 1.0))
      >>> w = jnp.array([0.5, 0.5])
      >>> updates, _ = learner.update(jnp.array([2.0, -0.25]), learner.init(w), w)
      >>> optax.apply_updates(w, updates).tolist()
      [-1.0, 0.75]

    Source: Zinkevich, "Online convex programming and generalized infinitesimal gradient ascent",
    2003, theorem 1.
    """
    stage = as_stage("optimizer", optimizer)

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, Any]:
        at = points(params)
        moves, state = stage.update(updates, state, params, **extra)
        return change(nearest(project, plus(at, moves)), params), state

    return Transform(stage.init, update)
