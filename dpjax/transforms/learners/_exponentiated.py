"""Exponentiated gradients on the simplex and on the l1 ball."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_positive_scalar, check_shape, check_type, is_traced
from dpjax.geometry import L1Ball, Simplex, log_normalize
from dpjax.transforms.learners._learner import largest, leader, widened


def exponentiated_gradient(
    domain: Simplex | L1Ball, scale: ArrayLike = 1.0, optimistic: bool = False
) -> Transform:
    r"""Entropic follow the leader, with a rate from the norms so far.

    $$ S_t = S_{t-1} + \|g_t - h_t\|_\infty^2, \quad \eta_t = s\sqrt{\log d / S_t}, \quad
       w_{t+1} \propto w_1 \exp\Bigl(-\eta_t
         \bigl(\textstyle\sum_{i \le t} g_i + h_{t+1}\bigr)\Bigr) $$

    with all hints $h_t = 0$, or, if `optimistic`, $h_1 = 0$ and $h_{t+1} = g_t$. On the simplex,
    from $w_1 = 1/d$, with $s = 1$, for any $g_t$ and any $u$ in the simplex

    $$ \sum_{t \le T} \langle g_t, w_t - u\rangle
       \le \bigl(\sqrt{\log d} + \sqrt{\log d + 16}\bigr)\sqrt{S_T} . $$

    On the ball $\|w\|_1 \le R$ it weighs the $2d$ vertices $\pm R e_j$ with the losses $\pm R g$,
    so that $2d$ and $R^2 S_T$ take the places of $d$ and $S_T$. Weights are kept as logarithms: no
    gradient is so large that they leave the domain. The points do not depend on the gradients'
    unit; while $S_t = 0$, $w_1$ stays.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      domain: `dpjax.geometry.Simplex` or `L1Ball` (*public*).
      scale: $s$ `> 0` (*public*); scalar, may be traced.
      optimistic: Whether to use hints (*public*, static). `update(..., hint=h)` gives another
        $h_{t+1}$ than $g_t$.

    Returns:
      A transformation; `update(g_t, state, params=w_t, *, hint=None, **extra)`. `init(w_1)` takes
      one array `[dim]` inside the domain: entries `> 0`, or an l1 norm below the radius.

    Raises:
      TypeError: If `domain` is another.
      ValueError: If `scale` is not positive and finite; at `init`, if $w_1$ has another shape or is
        not inside the domain; at `update`, if `params` is missing.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> simplex = dpjax.geometry.Simplex(4)
      >>> learner = dpjax.transforms.exponentiated_gradient(simplex)
      >>> w = jnp.full(4, 0.25)
      >>> updates, _ = learner.update(jnp.array([-7.0, 0.0, 0.0, 7.0]), learner.init(w), w)
      >>> [round(float(x), 4) for x in optax.apply_updates(w, updates)]
      [0.5844, 0.18, 0.18, 0.0555]

    Source: Kivinen and Warmuth, "Exponentiated gradient versus gradient descent for linear
    predictors", 1997.
    """
    check_type("domain", domain, Simplex | L1Ball, "a Simplex or an L1Ball")
    check_positive_scalar("scale", scale)

    def lift(params: PyTree) -> jax.Array:
        return log_normalize(jnp.log(_weights(domain, _only(params))))

    def point(start: jax.Array, total: PyTree, rate: jax.Array) -> PyTree:
        losses = domain.scores(_only(total))
        weights = jax.nn.softmax(start - rate.astype(losses.dtype) * losses)
        return jax.tree.map(lambda _: domain.point(weights), total)

    def size(gradient: PyTree) -> jax.Array:
        return largest(domain.scores(_only(gradient)))

    factor = scale * math.sqrt(domain.log_num_vertices)
    return leader(lift, point, size, factor, (lambda gradient, _: gradient) if optimistic else None)


def _only(tree: PyTree) -> jax.Array:
    leaves: list[Any] = jax.tree.leaves(widened(tree))
    if len(leaves) != 1:
        raise ValueError(f"params must be one array, got a tree of {len(leaves)}")
    return leaves[0]


def _weights(domain: Simplex | L1Ball, params: jax.Array) -> jax.Array:
    """Weights of the vertices whose mean is the first point: the most even ones."""
    check_shape("params", params, (domain.dim,))
    if isinstance(domain, Simplex):
        if not is_traced(params) and not np.all(np.asarray(params) > 0):
            low = float(jnp.min(params))
            raise ValueError(f"params must be inside the simplex, entries > 0, got {low}")
        return params
    both = jnp.concatenate([jnp.maximum(params, 0), jnp.maximum(-params, 0)])
    spare = 1 - jnp.sum(jnp.abs(params)) / jnp.asarray(domain.radius, params.dtype)
    if not is_traced(spare) and not spare > 0:
        got = float(jnp.sum(jnp.abs(params)))
        raise ValueError(f"params must have an l1 norm below {domain.radius}, got {got}")
    return spare / (2 * domain.dim) + both / jnp.asarray(domain.radius, params.dtype)
