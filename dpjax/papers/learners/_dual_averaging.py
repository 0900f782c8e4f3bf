"""Dual averaging, plain and with hints of the next gradient."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_finite, check_positive_scalar, check_scalar
from dpjax.papers.learners._norms import norm, scaled
from dpjax.transforms.learners._learner import Projection, leader, nearest, plus, scalar


def dual_averaging(
    diameter: ArrayLike,
    project: Projection | None = None,
    optimistic: bool = False,
    hint_scale: ArrayLike | str = "none",
) -> Transform:
    r"""Dual averaging, which may count on gradients that change slowly.

    $$ S_t = S_{t-1} + \|g_t - h_t\|^2, \qquad
       w_{t+1} = \Pi_W\Bigl(w_1 - \frac{D}{\sqrt{S_t}}
         \bigl(\textstyle\sum_{i \le t} g_i + h_{t+1}\bigr)\Bigr) $$

    with all hints $h_t = 0$, or, if `optimistic`, $h_1 = 0$ and $h_{t+1} = g_t$. For any $g_t$ and
    any $u$ in a convex $W$ of diameter at most $D$

    $$ \sum_{t \le T} \langle g_t, w_t - u\rangle
       \le \bigl(\tfrac12 + \sqrt5\bigr) D\sqrt{S_T} \le 2.74\, D\sqrt{S_T} . $$

    The points do not depend on the gradients' unit; while $S_t = 0$, $w_1$ stays.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      diameter: $D$ `> 0` (*public*), in units of the parameters; scalar, may be traced.
      project: `project(w) -> nearest point of W`, on trees like the parameters (*public*); None
        for the whole space, without such a bound.
      optimistic: Whether to use hints (*public*, static). `update(..., hint=h)` gives another
        $h_{t+1}$ than $g_t$.
      hint_scale: `"none"`, or a degree k: $h_{t+1} = ((t + 1)/t)^k g_t$, for gradients that grow
        like $t^k$ (*public*); scalar, may be traced.

    Returns:
      A transformation; `update(g_t, state, params=w_t, *, hint=None, **extra)`. Norms are l2, over
      all leaves.

    Raises:
      ValueError: If `diameter` is not positive and finite, or `hint_scale` neither `"none"` nor a
        finite number; at `update`, if `params` is missing.
      TypeError: If `diameter` is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.papers.learners.dual_averaging(1.0, optimistic=True)
      >>> w = jnp.array(3.0)
      >>> updates, state = learner.update(jnp.array(5.0), learner.init(w), w)
      >>> float(optax.apply_updates(w, updates))  # one step for the gradient, one for the hint
      1.0

    Source: Nesterov, "Primal-dual subgradient methods for convex problems", 2009; Rakhlin and
    Sridharan, "Online learning with predictable sequences", 2013.
    """
    check_positive_scalar("diameter", diameter)
    if not isinstance(hint_scale, str):
        check_scalar("hint_scale", hint_scale)
        check_finite("hint_scale", hint_scale)
    elif hint_scale != "none":
        raise ValueError(f"hint_scale must be 'none' or a number, got {hint_scale!r}")

    def point(start: PyTree, total: PyTree, rate: jax.Array) -> PyTree:
        return nearest(project, plus(start, total, -rate))

    def next_hint(gradient: PyTree, count: jax.Array) -> PyTree:
        if isinstance(hint_scale, str):
            return gradient
        t = count.astype(scalar(gradient).dtype)
        return scaled(gradient, ((t + 1) / t) ** jnp.asarray(hint_scale, t.dtype))

    return leader(lambda params: params, point, norm, diameter, next_hint if optimistic else None)
