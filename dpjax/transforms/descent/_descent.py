"""Descent by steps of bounded length."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_between, check_int, check_nonnegative_scalar
from dpjax.core._chain import keyed
from dpjax.transforms.noise.correlated._strategy import wide_zeros

Scale: TypeAlias = ArrayLike | Callable[[jax.Array], ArrayLike]
"""A scalar, or an optax schedule: the scalar of a number of steps."""


class ClippedDisplacementState(NamedTuple):
    """State of `clipped_displacement`.

    Attributes:
      count: Number of updates so far, `[]` int32.
      displacement: The step on whose way the parameters lie, in at least float32.
      share: How much of it they have gone, `[]` in [0, 1].
    """

    count: jax.Array  # type: ignore[assignment]
    displacement: PyTree
    share: jax.Array


def clipped_displacement(
    learning_rate: Scale,
    max_displacement: Scale,
    reset_every: int | None = None,
    *,
    decay: ArrayLike = 1.0,
) -> Transform:
    r"""Descent whose steps are bounded and add up, with gradients taken at random points of them.

    $$ \Delta_{t+1} = \Pi_D(\beta \Delta_t - \eta\, g_t), \qquad x_{t+1} = x_t + \Delta_{t+1}, \quad
       z_{t+1} = x_t + s_{t+1} \Delta_{t+1}, \qquad s_t \sim U[0, 1] $$

    $g_t$ is taken at $z_t$, and the parameters **are** $z_t$: an ordinary optax loop with any loss.
    The mean of $h(x_t) - h(x_{t-1})$ is exactly that of $\langle \nabla h(z_t), \Delta_t\rangle$,
    whatever h, so regret of the steps bounds gradients averaged over M steps, all within
    $(M + 1) D / 2$ of the mean of their points: a Goldstein stationary point, with no smoothness.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      learning_rate: $\eta \ge 0$ (*public*), a scalar, which may be traced, or an optax schedule;
        $2 D / (G \sqrt M)$ for gradients of mean square $G^2$ is best in the worst case.
      max_displacement: $D \ge 0$, largest l2 norm of a step over the whole tree, likewise.
      reset_every: Start from a step of 0 after so many updates; None for never.
      decay: $\beta$ in [0, 1] (*public*), a scalar, which may be traced: what is kept of a step in
        the next one. 1 adds them up; below 1 this is momentum, which settles sooner.

    Returns:
      A transformation; `update(g_t, state, params=None, *, key)` gives $z_{t+1} - z_t$. Draws
      depend on the key and the number of updates so far: one key does for a run.
      Structure and dtypes are kept; the state is in at least float32.

    Raises:
      TypeError: At `update`, if the key is missing or not typed.
      ValueError: If a scalar is negative or not finite, `reset_every < 1`, or `decay` above 1.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp, optax
      >>> step = dpjax.transforms.clipped_displacement(1.0, max_displacement=0.1)
      >>> z = jnp.array([3.0, 4.0])
      >>> state = step.init(z)
      >>> for _ in range(100):
      ...     slope = jax.grad(lambda w: jnp.abs(w).sum())(z)
      ...     moves, state = step.update(slope, state, key=jax.random.key(0))
      ...     z = optax.apply_updates(z, moves)
      >>> bool(jnp.linalg.norm(z) < 0.2)
      True

    Source: Cutkosky, Mehta and Orabona, "Optimal stochastic non-smooth non-convex optimization
    through online-to-non-convex conversion", 2023; Kornowski, Liu and Talwar 2025, algorithm 2;
    for the decay Zhang and Cutkosky, "Random scaling and momentum for non-smooth non-convex
    optimization", 2024.
    """
    for name, value in (("learning_rate", learning_rate), ("max_displacement", max_displacement)):
        if not callable(value):
            check_nonnegative_scalar(name, value)
    if reset_every is not None:
        check_int("reset_every", reset_every, minimum=1)
    check_between("decay", decay, 0, 1)

    def init(params: PyTree) -> ClippedDisplacementState:
        still, share = jax.tree.map(wide_zeros, params), jnp.ones((), jnp.result_type(float))
        return ClippedDisplacementState(jnp.zeros((), jnp.int32), still, share)

    def step(
        updates: PyTree, state: ClippedDisplacementState, key: jax.Array, **more: object
    ) -> tuple[PyTree, ClippedDisplacementState]:
        key = jax.random.fold_in(key, state.count)
        rate, bound = (_at(s, state.count) for s in (learning_rate, max_displacement))
        last = state.displacement

        def wanted(d: jax.Array, g: PyTree) -> jax.Array:
            descent = rate.astype(d.dtype) * jnp.asarray(g).astype(d.dtype)
            return jnp.asarray(decay, d.dtype) * d - descent

        count = state.count + 1
        following = within(jax.tree.map(wanted, last, updates), bound)
        if reset_every is not None:
            ends = count % reset_every == 0
            following = jax.tree.map(lambda d: jnp.where(ends, 0, d), following)
        share = jax.random.uniform(key, (), state.share.dtype)

        def move(old: jax.Array, new: jax.Array, g: PyTree) -> jax.Array:
            mixed = (1 - state.share).astype(old.dtype) * old + share.astype(new.dtype) * new
            return mixed.astype(jnp.result_type(g))

        moves = jax.tree.map(move, last, following, updates)
        return moves, ClippedDisplacementState(count, following, share)

    return keyed(init, step)


def within(tree: PyTree, bound: jax.Array) -> PyTree:
    """The nearest tree of global l2 norm at most `bound`; NaN and inf become NaN."""
    largest = optax.tree.norm(tree, ord="inf")  # squares of large numbers would overflow
    unit = jnp.where(largest > 1, largest, 1)
    small = jax.tree.map(lambda leaf: leaf / unit.astype(leaf.dtype), tree)
    norm = optax.tree.norm(small)
    tiny = jnp.finfo(norm.dtype).tiny
    factor = jnp.minimum(unit, bound.astype(norm.dtype) / jnp.maximum(norm, tiny))
    return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, small)


def _at(scale: Scale, count: jax.Array) -> jax.Array:
    value: ArrayLike = scale(count) if callable(scale) else scale
    return jnp.asarray(value, jnp.result_type(float))
