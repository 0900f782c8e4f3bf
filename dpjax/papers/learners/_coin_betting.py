"""Coin betting with the estimator of Krichevsky and Trofimov."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_positive_scalar
from dpjax.papers.learners._constraint_reduction import LOG_LIMIT, constrained
from dpjax.papers.learners._norms import inner, scaled
from dpjax.transforms.learners._learner import Projection


def coin_betting(
    initial_scale: ArrayLike, gradient_norm: ArrayLike, project: Projection | None = None
) -> Transform:
    r"""Bets a share of the wealth so far on the direction of the gradients so far.

    $$ c_t = -\tilde g_t / L, \qquad
       v_{t+1} = w_1 + \frac{\sum_{i \le t} c_i}{t + 1}
         \Bigl(\epsilon + \sum_{i \le t} \langle c_i, v_i - w_1\rangle\Bigr),
       \qquad w_{t+1} = \Pi_W(v_{t+1}) $$

    with $\tilde g_t$ as in `parameter_free`. For any $g_t$ and any $u \in W$, as long as
    $\|\tilde g_t\| \le L$, with $r = \|u - w_1\|$

    $$ \sum_{t \le T} \langle g_t, w_t - u\rangle
       \le L\Bigl(\epsilon + r\sqrt{T\log(1 + 24 T^2 r^2 / \epsilon^2)}\Bigr) . $$

    Its bound has T for the squared norms of `parameter_free`, which is far better where gradients
    grow. The logarithm of the wealth is kept, and it ends at $e^{40}\epsilon$, so that nothing
    overflows.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      initial_scale: $\epsilon$ `> 0` (*public*), a guess of $\|u - w_1\|$; scalar, may be traced.
      gradient_norm: $L$ `> 0` (*public*), in the unit of the gradients that the learner gets;
        scalar, may be traced.
      project: `project(w) -> nearest point of W`, on trees like the parameters (*public*); None
        for the whole space. $w_1$ must lie in $W$.

    Returns:
      A transformation; `update(g_t, state, params=w_t, **extra)`.

    Raises:
      ValueError: If `initial_scale` or `gradient_norm` is not positive and finite; at `update`, if
        `params` is missing.
      TypeError: If `initial_scale` is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.papers.learners.coin_betting(1.0, gradient_norm=1.0)
      >>> w = jnp.array(0.0)
      >>> state = learner.init(w)
      >>> for _ in range(3):
      ...     updates, state = learner.update(jnp.array(-1.0), state, w)
      ...     w = optax.apply_updates(w, updates)
      ...     print(float(w))
      0.5
      1.0
      1.875

    Source: Orabona and Pal, "Coin betting and parameter-free online learning", 2016.
    """
    check_positive_scalar("initial_scale", initial_scale)

    def bet(total: PyTree, scale: jax.Array, count: jax.Array) -> PyTree:
        wealth = jnp.exp(jnp.minimum(scale, LOG_LIMIT)) * jnp.asarray(initial_scale, scale.dtype)
        return scaled(total, wealth / (count + 1).astype(scale.dtype))

    def grown(coin: PyTree, total: PyTree, scale: jax.Array, count: jax.Array) -> jax.Array:
        share = inner(coin, total).astype(scale.dtype) / (count + 1).astype(scale.dtype)
        return scale + jnp.log1p(share)

    return constrained(0.0, bet, grown, gradient_norm, project)
