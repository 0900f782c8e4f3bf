"""An online learner without a step size and without a diameter."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_positive_scalar
from dpjax.papers.learners._constraint_reduction import LOG_LIMIT, constrained
from dpjax.papers.learners._norms import inner, norm, scaled
from dpjax.transforms.learners._learner import Projection


def parameter_free(
    initial_scale: ArrayLike,
    gradient_norm: ArrayLike,
    project: Projection | None = None,
    regularizer: ArrayLike = 0.0,
) -> Transform:
    r"""FreeGrad on a convex set: regret in the distance of the comparator, which nobody need know.

    With $\tilde g_t$ below, $\Theta_t = \sum_{i \le t}\tilde g_i$ and
    $V_t = L^2 + \sum_{i \le t}\|\tilde g_i\|^2$,

    $$ v_{t+1} = w_1 - \epsilon\,\Theta_t\,
         \frac{L^2 (2V_t + L\|\Theta_t\|)}{2 (V_t + L\|\Theta_t\|)^2\sqrt{V_t}}
         \exp\frac{\|\Theta_t\|^2}{2V_t + 2L\|\Theta_t\|},
       \qquad w_{t+1} = \Pi_W(v_{t+1}) $$

    where $\tilde g_t$ is $\bar g_t = g_t + \xi\frac{\beta_t}{\sqrt t}
    \frac{w_t - w_1}{\|w_t - w_1\|}$ without its part along $v_t - w_t$ if that would drive $v_t$
    further out of $W$, scaled down to norm $L$. For any $g_t$ and any $u \in W$, as long as
    $\|\tilde g_t\| \le L$ before it is scaled,

    $$ \sum_{t \le T} \langle \bar g_t, w_t - u\rangle \le \epsilon L
       + \max\Bigl\{2 r\sqrt{V_T\log(1 + \tfrac{2 r V_T}{\epsilon L^2})},
                    4 L r\log(1 + \tfrac{4 r\sqrt{V_T}}{\epsilon L})\Bigr\},
       \qquad r = \|u - w_1\| . $$

    Longer ones cost at most $\sum_t (\|\tilde g_t\| - L)_+ \cdot \|w_t - u\|$ more. L is fixed:
    were it to grow with gradients like $t^k$, the wealth would start too small by orders of
    magnitude.
    $v_t$ ends at $e^{40}\epsilon$ from $w_1$, so that nothing overflows.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      initial_scale: $\epsilon$ `> 0` (*public*), a guess of $\|u - w_1\|$ that may be wrong by
        orders of magnitude, rather too small; scalar, may be traced.
      gradient_norm: $L$ `> 0` (*public*), in the unit of the gradients that the learner gets;
        scalar, may be traced.
      project: `project(w) -> nearest point of W`, on trees like the parameters (*public*); None
        for the whole space. $w_1$ must lie in $W$.
      regularizer: $\xi \ge 0$ (*public*), pull towards $w_1$; for gradients of the loss of norm at
        most G, 0.1 G to 0.3 G. Scalar, may be traced.

    Returns:
      A transformation; `update(g_t, state, params=w_t, *, weight=None, **extra)`, where `weight` is
      $\beta_t$, needed with a regulariser, in the unit of the weights that the gradients carry.

    Raises:
      ValueError: If `initial_scale` or `gradient_norm` is not positive and finite, or `regularizer`
        negative; at `update`, if `params` or a needed `weight` is missing.
      TypeError: If `initial_scale` is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.papers.learners.parameter_free(0.1, gradient_norm=1.0)
      >>> w = jnp.array(0.0)
      >>> state = learner.init(w)
      >>> for _ in range(100):  # the minimum of |w - 5| is 50 times the guess away
      ...     updates, state = learner.update(jnp.sign(w - 5.0), state, w)
      ...     w = optax.apply_updates(w, updates)
      >>> bool(abs(w - 5.0) < 2.0)
      True

    Source: Mhammedi and Koolen, "Lipschitz and comparator-norm adaptivity in online learning",
    2020; Cutkosky and Orabona, "Black-box reductions for parameter-free online learning in Banach
    spaces", 2018, theorem 3; Cutkosky, "Artificial constraints and hints for unbounded online
    learning", 2019, for the form of the reduction; Zhang, Tran and Cutkosky 2022 for the pull.
    """
    check_positive_scalar("initial_scale", initial_scale)

    def bet(total: PyTree, scale: jax.Array, count: jax.Array) -> PyTree:
        del count
        length = norm(total)
        both = scale + length
        rate = (scale + both) / (2 * both * both * jnp.sqrt(scale))
        exponent = jnp.minimum(length * length / (2 * both), LOG_LIMIT)
        return scaled(total, jnp.asarray(initial_scale, rate.dtype) * rate * jnp.exp(exponent))

    def grown(coin: PyTree, total: PyTree, scale: jax.Array, count: jax.Array) -> jax.Array:
        del total, count
        return scale + inner(coin, coin).astype(scale.dtype)

    return constrained(1.0, bet, grown, gradient_norm, project, regularizer)
