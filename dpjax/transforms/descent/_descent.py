"""Descent: mirror steps, gradients at the average of the iterates, steps of bounded length."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    Transform,
    check_between,
    check_int,
    check_nonnegative,
    check_nonnegative_scalar,
    check_scalar,
    wide,
)
from dpjax.core._chain import as_stage, keyed
from dpjax.geometry import MirrorMap
from dpjax.transforms.noise.correlated._strategy import wide_zeros

Scale: TypeAlias = ArrayLike | Callable[[jax.Array], ArrayLike]
"""A scalar, or an optax schedule: the scalar of a number of steps."""


class MirrorStepState(NamedTuple):
    """State of `mirror_step`.

    Attributes:
      count: Number of steps so far, `[]` int32 (*public*).
    """

    count: jax.Array  # type: ignore[assignment]


def mirror_step(
    mirror_map: MirrorMap,
    step_size: ArrayLike | tuple[ArrayLike, ...] | Callable[[jax.Array], Any],
) -> Transform:
    r"""A step of mirror descent, in the coordinates of the mirror map.

    $$ x_{t+1} = \arg\min_x\ \tau_t \langle g_t, x\rangle + D(x, x_t) $$

    The parameters are the map's own coordinates of $x_t$ (log probabilities for
    `dpjax.geometry.entropic`), and the update is what `optax.apply_updates` must add to them to
    get those of $x_{t+1}$; `mirror_map.point(params)` is $x_t$ itself. The minus of descent is part
    of the step: no `optax.scale(-1)` goes with it; for ascent, negate the gradient before.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      mirror_map: From `dpjax.geometry` (*public*).
      step_size: $\tau \ge 0$ (*public*), scalar, may be traced; what the map takes, so for
        `dpjax.geometry.product` also a tuple of them; or a schedule, a function of the number of
        steps so far.

    Returns:
      A transformation; `update(gradient, state, params)` takes gradients at the point, in the shape
      of the coordinates, and the coordinates. It computes in at least float32 and keeps their
      dtypes.

    Raises:
      ValueError: If `step_size` is negative or not finite; at `update`, if `params` is missing.
      TypeError: If `step_size`, or what it gives, is not a number.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> simplex = dpjax.geometry.entropic()
      >>> step = dpjax.transforms.mirror_step(simplex, 0.5)
      >>> coords = simplex.init(jnp.zeros(2))
      >>> updates, _ = step.update(jnp.array([2.0, 0.0]), step.init(coords), coords)
      >>> [round(float(x), 4) for x in simplex.point(optax.apply_updates(coords, updates))]
      [0.2689, 0.7311]

    Source: Nemirovski and Yudin 1983; Beck and Teboulle, "Mirror descent and nonlinear projected
    subgradient methods for convex optimization", 2003.
    """
    if not callable(step_size):
        for size in step_size if isinstance(step_size, tuple | list) else (step_size,):
            check_scalar("step_size", size)
        check_nonnegative("step_size", step_size)

    def init(params: PyTree) -> MirrorStepState:
        return MirrorStepState(jnp.zeros((), jnp.int32))

    def update(
        updates: PyTree, state: MirrorStepState, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, MirrorStepState]:
        if params is None:
            raise ValueError("params is required: the coordinates that the gradient is to move")
        size = step_size(state.count) if callable(step_size) else step_size
        coords = jax.tree.map(wide, params)
        after = mirror_map.step(coords, jax.tree.map(wide, updates), size)

        def change(new: jax.Array, old: jax.Array, like: jax.Array) -> jax.Array:
            # a log probability may stay at -inf
            return jnp.where(new == old, 0, new - old).astype(like.dtype)

        changes = jax.tree.map(change, after, coords, params)
        return changes, MirrorStepState(state.count + 1)

    return Transform(init, update)


class AnytimeState(NamedTuple):
    """State of `anytime_average`.

    Attributes:
      iterate: The inner iterate $x_t$, in the mirror map's coordinates if there is one.
      count: Number of updates so far, `[]` int32 (*public*).
      base: State of the wrapped optimiser.
    """

    iterate: PyTree
    count: jax.Array  # type: ignore[assignment]
    base: PyTree


def anytime_average(
    base: optax.GradientTransformation, mirror_map: MirrorMap | None = None
) -> Transform:
    r"""Runs an optimiser on gradients taken at the average of its iterates.

    $$ x_{t+1} = x_t + \mathrm{base}(\nabla F(w_t)), \qquad
       w_{t+1} = \frac{t\, w_t + x_{t+1}}{t + 1}, \qquad w_1 = x_1 $$

    The parameters are the averages $w_t$; the iterates $x_t$ live in the state. The regret of
    `base` on the linear losses $\langle \nabla F(w_t), \cdot\rangle$, divided by the number of
    steps, then bounds the excess of the last $w_T$, not of an average to be formed afterwards, for
    every T; and $w_t$ moves slowly, $\|w_t - w_{t-1}\| \le \mathrm{diameter} / t$.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      base: An optax or dpjax optimiser, such as `optax.sgd(0.1)`; it sees $x_t$ as its parameters.
      mirror_map: For `base = mirror_step(mirror_map, ...)`: the map whose coordinates `base`
        moves; points are averaged, not coordinates (*public*).

    Returns:
      A transformation; `update(gradient, state, params, **extra)` takes the gradient at
      `params`, and passes `extra` (a key) on to `base`. `init(params)` takes $w_1 = x_1$, with a
      mirror map a point inside its domain.

    Raises:
      TypeError: If `base` is no transformation.
      ValueError: At `update`, if `params` is missing.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> optimizer = dpjax.transforms.anytime_average(optax.sgd(1.0))
      >>> w = jnp.array(4.0)
      >>> state = optimizer.init(w)
      >>> for _ in range(2):
      ...     updates, state = optimizer.update(jnp.array(2.0), state, w)
      ...     w = optax.apply_updates(w, updates)
      >>> float(state.iterate), float(w)  # iterates 4, 2, 0
      (0.0, 2.0)

    Source: Cutkosky, "Anytime online-to-batch, optimism and acceleration", 2019, theorem 1.
    """
    stage = as_stage("base", base)

    def init(params: PyTree) -> AnytimeState:
        params = jax.tree.map(jnp.asarray, params)
        iterate = params if mirror_map is None else mirror_map.coordinates(params)
        return AnytimeState(iterate, jnp.zeros((), jnp.int32), stage.init(iterate))

    def update(
        updates: PyTree, state: AnytimeState, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, AnytimeState]:
        if params is None:
            raise ValueError("params is required: the average at which the gradient was taken")
        moves, inner = stage.update(updates, state.base, state.iterate, **extra)
        iterate = optax.apply_updates(state.iterate, moves)
        point = iterate if mirror_map is None else mirror_map.point(iterate)

        def towards(x: jax.Array, w: jax.Array) -> jax.Array:
            gap = wide(x) - wide(w)
            return (gap / (state.count + 2).astype(gap.dtype)).astype(w.dtype)

        return jax.tree.map(towards, point, params), AnytimeState(iterate, state.count + 1, inner)

    return Transform(init, update)


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
        still = jax.tree.map(wide_zeros, params)
        return ClippedDisplacementState(
            jnp.zeros((), jnp.int32), still, jnp.ones((), jnp.result_type(float))
        )

    def step(
        updates: PyTree, state: ClippedDisplacementState, key: jax.Array, **more: object
    ) -> tuple[PyTree, ClippedDisplacementState]:
        key = jax.random.fold_in(key, state.count)
        rate, bound = (_at(s, state.count) for s in (learning_rate, max_displacement))
        last = state.displacement
        wanted = jax.tree.map(
            lambda d, g: (
                jnp.asarray(decay, d.dtype) * d
                - rate.astype(d.dtype) * jnp.asarray(g).astype(d.dtype)
            ),
            last,
            updates,
        )
        count = state.count + 1
        following = within(wanted, bound)
        if reset_every is not None:
            ends = count % reset_every == 0
            following = jax.tree.map(lambda d: jnp.where(ends, 0, d), following)
        share = jax.random.uniform(key, (), state.share.dtype)
        moves = jax.tree.map(
            lambda old, new, g: (
                (1 - state.share).astype(old.dtype) * old + share.astype(new.dtype) * new
            ).astype(jnp.result_type(g)),
            last,
            following,
            updates,
        )
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
