"""Private running sums that start anew after every period."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform
from dpjax.core._chain import keyed
from dpjax.transforms.noise.correlated._correlated import correlated_noise
from dpjax.transforms.noise.correlated._strategy import NoiseStrategy, wide_zeros


class RestartedSumsState(NamedTuple):
    """State of `restarted_sums`.

    Attributes:
      count: Number of steps so far, `[]` int32 (*public*).
      total: The private sum of the period so far, in at least float32 (released).
      noise: State of the strategy (*secret*).
    """

    count: jax.Array  # type: ignore[assignment]
    total: PyTree
    noise: PyTree


def restarted_sums(strategy: NoiseStrategy, stddev: ArrayLike = 1.0) -> Transform:
    r"""Noisy sums of the updates of a period, which start anew after `strategy.num_steps` of them.

    $$ \hat g_t = \sum_{i = t_0}^{t} u_i + \gamma_{t - t_0 + 1}, \qquad
       t_0 = t - ((t - 1) \bmod \Sigma) $$

    Fed with a gradient at the first step of a period and with changes of gradients at later ones,
    this is the variance-reduced recursive gradient: each $\hat g_t$ estimates the gradient at its
    own point, and a record pays for a change alone. A period of one is independent noise.

    Guarantee: each period is one run of `correlated_noise(strategy, stddev)`, with noise of its
    own, and has that event: once over all if a record takes part in one period, composed over the
    periods otherwise. Within a period a record may take part in one step, or, with `SplitNoise`, in
    all.

    Args:
      strategy: Of as many steps as a period has (*public*).
      stddev: The noise multiplier `>= 0` (*public*); scalar, may be traced.

    Returns:
      A transformation; `update(updates, state, params=None, *, key, sensitivity=1.0)`, with
      `sensitivity` as in `correlated_noise`. The next update starts a period where
      `state.count % strategy.num_steps == 0`.

    Raises:
      TypeError: If `strategy` is no `NoiseStrategy`; at `update`, if the key is missing or not
        typed.
      ValueError: If `stddev` or `sensitivity` is negative or not finite.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> sums = dpjax.transforms.restarted_sums(dpjax.transforms.BinaryTree(2), 0.0)
      >>> state, seen = sums.init(jnp.zeros(())), []
      >>> for u in (5.0, 1.0, 7.0, 1.0):
      ...     total, state = sums.update(jnp.array(u), state, key=jax.random.key(0))
      ...     seen.append(float(total))
      >>> seen
      [5.0, 6.0, 7.0, 8.0]

    Source: Kornowski, Liu and Talwar, "Private nonsmooth nonconvex optimization", 2025, algorithm
    1, with the periods as they must be for every step to have noise.
    """
    noise = correlated_noise(strategy, stddev)

    def init(params: PyTree) -> RestartedSumsState:
        total = jax.tree.map(wide_zeros, params)
        return RestartedSumsState(jnp.zeros((), jnp.int32), total, noise.init(params))

    def step(
        updates: PyTree, state: RestartedSumsState, key: jax.Array, **extra: Any
    ) -> tuple[PyTree, RestartedSumsState]:
        period, position = jnp.divmod(state.count, strategy.num_steps)
        first = position == 0

        def anew(fresh: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(first, fresh, old)

        before = jax.tree.map(anew, noise.init(updates), state.noise)
        period_key = jax.random.fold_in(key, period)
        wide = jax.tree.map(lambda u, t: jnp.asarray(u).astype(t.dtype), updates, state.total)
        noisy, after = noise.update(wide, before, key=period_key, **extra)
        total = jax.tree.map(lambda t, u: anew(u, t + u), state.total, noisy)
        out = jax.tree.map(lambda t, u: t.astype(jnp.result_type(u)), total, updates)
        return out, RestartedSumsState(state.count + 1, total, after)

    return keyed(init, step)
