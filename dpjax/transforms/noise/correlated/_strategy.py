"""Noise that is correlated over the steps: what a strategy is, and the transformations it makes."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import (
    PyTree,
    Transform,
    check_int,
    check_nonnegative,
    check_nonnegative_scalar,
    check_shape,
    wide,
)
from dpjax.core._chain import keyed
from dpjax.core._pairs import power_of_two
from dpjax.privacy import RelationLike, resolve_relation
from dpjax.random._normal import laplace, normal
from dpjax.transforms.noise._independent import to_grid

# below, copies and repeated work are no cost beside the step itself
_LONG = 2**14

Draw: TypeAlias = Callable[[int | jax.Array], PyTree]
_PARTS = 1024  # of a power of two up to the scale: finer than alone, since errors add up over steps


@runtime_checkable
class NoiseStrategy(Protocol):
    r"""A way to make the noise $\gamma_t$ of noisy prefix sums, step by step.

    Frozen, hashable and static: all it holds is public and shapes the program. Every strategy is
    normalised alike: with scales $z s_t$, where one record changes one update, that of its step t,
    by at most $s_t$, all of $\sum_{i \le t} u_i + \gamma_t$, $t \le$ `num_steps`, together are one
    Gaussian mechanism of noise multiplier z. One that is made for records of several steps says so
    by `participation`, a `dpjax.sampling.Participation`; its event is then for these.
    """

    @property
    def num_steps(self) -> int:
        """How many steps it is made for; after them its noise is NaN."""

    def init(self, params: PyTree) -> Any:
        """The state before the first step, a NamedTuple with `count`; its buffers are *secret*."""

    def next(self, draw: Draw, scale: jax.Array, state: PyTree) -> tuple[PyTree, Any]:
        r"""$\gamma_t - \gamma_{t-1}$ and the state.

        `draw(level)` gives iid standard noise of this step, at least float32 and of the shapes of
        the parameters: 0, as a Python integer, is the one that every step draws; some strategies
        ask for more. `scale` is the standard deviation due for one release, `[]`; it may depend on
        what was released before.
        """

    def noise(self, key: jax.Array, like: PyTree) -> PyTree:
        """Standard noise in the shapes of `like`, iid over keys, in at least float32."""

    def event(
        self, noise_multiplier: float, relation: RelationLike = "add_or_remove_one"
    ) -> dpe.DpEvent:
        """The event of a whole run in which each record takes part in one step."""

    def prefix_stddev(self, scales: ArrayLike | None = None) -> np.ndarray:
        r"""Deviation of a coordinate of $\gamma_t$, `[T]` float64, for `scales` `[T]` or all 1."""


def standard_normal(key: jax.Array, like: PyTree) -> PyTree:
    """Normal draws in the shapes of a tree, in at least float32; a key for each leaf."""
    leaves, treedef = jax.tree.flatten(like)
    drawn = [
        normal(jax.random.fold_in(key, i), jnp.shape(leaf), wide_dtype(leaf))
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(treedef, drawn)


def wide_dtype(leaf: PyTree) -> Any:
    """The leaf's dtype, or float32 if that is narrower."""
    return jnp.promote_types(jnp.result_type(leaf), jnp.float32)


def wide_zeros(leaf: PyTree) -> jax.Array:
    """Zeros like the leaf, in at least float32, where the leaf is."""
    return jnp.zeros_like(wide(leaf))


def stacked_zeros(params: PyTree, number: int) -> PyTree:
    """So many `wide_zeros` of each leaf, along a new first axis."""
    zeros = jax.tree.map(wide_zeros, params)
    return jax.tree.map(lambda zero: jnp.broadcast_to(zero, (number, *zero.shape)), zeros)


def check_steps(num_steps: int) -> None:
    """Raises unless it is a number of steps that int32 can count with room to spare."""
    check_int("num_steps", num_steps, minimum=1)
    if num_steps > 2**30:
        raise ValueError(f"num_steps must be <= 2**30, got {num_steps}")


def valid_scale(scale: ArrayLike, count: jax.Array, num_steps: int) -> jax.Array:
    """The scale, or NaN where it is none or the steps are used up: never too little noise."""
    scale = jnp.asarray(scale, float)
    return jnp.where((scale >= 0) & (count < num_steps), scale, jnp.nan)


def times(stddev: jax.Array, noise: PyTree) -> PyTree:
    """The noise of this deviation, in its own dtypes."""
    return jax.tree.map(lambda z: stddev.astype(z.dtype) * z, noise)


def host_scales(scales: ArrayLike | None, num_steps: int) -> np.ndarray:
    """Public scales on the host, `[num_steps]` float64; all 1 if there are none."""
    if scales is None:
        return np.ones(num_steps)
    check_shape("scales", scales, (num_steps,))
    check_nonnegative("scales", scales)
    return np.asarray(scales, np.float64)


class GaussianStrategy:
    """The part that strategies of normal noise share; each is normalised to one Gaussian."""

    def noise(self, key: jax.Array, like: PyTree) -> PyTree:
        """Standard normal noise."""
        return standard_normal(key, like)

    def event(
        self, noise_multiplier: float, relation: RelationLike = "add_or_remove_one"
    ) -> dpe.DpEvent:
        """The event of a whole run: a Gaussian, under every relation."""
        return gaussian_event(noise_multiplier)


def gaussian_event(noise_multiplier: float) -> dpe.DpEvent:
    """One Gaussian of this noise multiplier."""
    check_nonnegative("noise_multiplier", noise_multiplier)
    return dpe.GaussianDpEvent(float(noise_multiplier))


def computed_once(x: jax.Array, live: jax.Array) -> jax.Array:
    """`x` as an array of its own, before what uses it.

    On CPU XLA computes a cheap vector anew in each of its uses, and so copies the buffers of a loop
    that it is made of and that are then to be updated. An update in place of one entry, by a
    condition that XLA does not know, keeps the uses apart: a step of three buffers of $10^6$ takes
    1.2 times the time of its noise, not 1.9 times.

    Args:
      x: Of any shape, floating.
      live: `[]` bool, unknown when compiled; where False an entry of the result is NaN.

    Returns:
      `x`, of the same shape and dtype.
    """
    if x.size < _LONG:
        return x
    return jax.lax.platform_dependent(x, live, cpu=_update_one_entry, default=lambda x, live: x)


def _update_one_entry(x: jax.Array, live: jax.Array) -> jax.Array:
    entry = jax.lax.slice(x, (0,) * x.ndim, (1,) * x.ndim)
    entry = jnp.where(live, entry, jnp.nan)
    return jax.lax.dynamic_update_slice(x, entry, (0,) * x.ndim)


def knorm_noise(key: jax.Array, like: PyTree, norm: str) -> PyTree:
    r"""One draw of density proportional to $e^{-\|x\|}$, x all leaves of a tree together.

    Of d coordinates in all: a radius Gamma(d) times a uniform direction (l2), or a radius
    Gamma(d + 1) times a uniform point of the cube (linf).
    """
    leaves, treedef = jax.tree.flatten(like)
    size = sum(math.prod(jnp.shape(leaf)) for leaf in leaves)
    if not size:
        return jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), wide_dtype(leaf)), like)
    dtype = jnp.result_type(*map(wide_dtype, leaves))
    radius_key = jax.random.fold_in(key, len(leaves))
    if norm == "l2":
        shape = standard_normal(key, like)
        squares = sum(jnp.sum(jnp.square(leaf.astype(dtype))) for leaf in jax.tree.leaves(shape))
        factor = _gamma(radius_key, size, dtype) / jnp.sqrt(squares)
    else:
        drawn = [_uniform(jax.random.fold_in(key, i), leaf) for i, leaf in enumerate(leaves)]
        shape = jax.tree.unflatten(treedef, drawn)
        factor = _gamma(radius_key, size + 1, dtype)
    return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, shape)


def _gamma(key: jax.Array, shape: int, dtype: DTypeLike) -> jax.Array:
    """A sum of so many exponentials, whose tail goes further than that of `jax.random.gamma`."""
    return jnp.sum(jnp.abs(laplace(key, (shape,), dtype)))


def _uniform(key: jax.Array, leaf: PyTree) -> jax.Array:
    return jax.random.uniform(key, jnp.shape(leaf), wide_dtype(leaf), -1.0, 1.0)


def pure_event(epsilon: float, count: int, relation: RelationLike) -> dpe.DpEvent:
    r"""The event of `count` mechanisms, each $\epsilon$-DP for a record against the null record.

    Each is dominated by a loss of $\pm\epsilon$: randomised response under replace_one, at
    $2 \epsilon$, and else the discrete Laplace of sensitivity 1, whose loss takes no other values.
    """
    if epsilon > 350:  # e^(2 epsilon) overflows
        return dpe.NonPrivateDpEvent()
    step: dpe.DpEvent
    if resolve_relation(relation).name == "REPLACE_ONE":
        keep_out = 2 / (1 + math.exp(2 * epsilon))
        step = dpe.RandomizedResponseDpEvent(keep_out, 2)
    else:
        step = dpe.DiscreteLaplaceDpEvent(float(epsilon), 1)
    return dpe.ComposedDpEvent([step] * count)


def correlated_noise(strategy: NoiseStrategy, stddev: ArrayLike = 1.0) -> Transform:
    r"""Adds to every update the step that the noise of a private prefix sum makes.

    $$ u_t \mapsto u_t + \gamma_t - \gamma_{t-1}, \qquad
       \sum_{i \le t} u_i + \gamma_t \text{ is what is private} $$

    Chain it with `optax.trace(decay=1.0)` for the noisy prefix sums themselves; each of them has
    little noise, for later noise takes back part of the earlier.

    Guarantee: let each record take part in one step at most, and let the update of that step t
    change by at most `sensitivity` (given at step t) in the l2 norm of the whole tree, when the
    record becomes the null record. Then all outputs together have the event
    `strategy.event(stddev)`: for a Gaussian strategy `GaussianDpEvent(stddev)`. Each
    `sensitivity`, and how records are assigned to steps, may depend on public values and earlier
    outputs alone. Later updates may depend on earlier outputs. For several passes run it anew, from
    `init` and with another key, once each. A strategy with K-norm noise measures `sensitivity` in
    its own norm. Outputs are rounded to multiples of a power of two, about a thousandth of
    `stddev * sensitivity`, so that low bits give nothing away (docs/numerics.md); over T steps this
    adds $T \cdot 10^{-7}$ to the variance of a prefix sum, in units of that scale squared.

    Noise depends on the key, the number of calls so far and the leaf: with the same key at every
    call, a run that goes on from a saved state has the noise of one that was not stopped. Structure
    and dtypes are kept; noise is made in at least float32.

    Args:
      strategy: A `BinaryTree`, a `BufferedToeplitz` or what `from_jax_privacy` gives (*public*).
      stddev: The noise multiplier `>= 0` (*public*); scalar, may be traced.

    Returns:
      A transformation; `update(updates, state, params=None, *, key, sensitivity=1.0)`.
      `sensitivity` `>= 0` is in units of the updates, scalar, may be traced and change from step
      to step. Its state is the strategy's, *secret*. Where `sensitivity` is negative or NaN, and
      after the strategy's last step, the outputs are NaN.

    Raises:
      TypeError: If `strategy` is no `NoiseStrategy`; at `update`, if the key is missing or not
        typed.
      ValueError: If `stddev` or `sensitivity` is negative or not finite, or the updates have other
        shapes than `init` was given.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp, optax
      >>> noise = dpjax.transforms.correlated_noise(dpjax.transforms.BufferedToeplitz(100), 2.0)
      >>> private_sum = dpjax.chain(noise, optax.trace(decay=1.0))
      >>> state = private_sum.init(jnp.zeros(5))
      >>> noisy, state = private_sum.update(jnp.ones(5), state, key=jax.random.key(0))
      >>> noisy.shape
      (5,)

    Source: Denisov, McMahan, Rush, Smith and Thakurta, "Improved differential privacy for SGD via
    optimal private linear operators on adaptive streams", 2022.
    """
    if not isinstance(strategy, NoiseStrategy):
        raise TypeError(f"strategy must be a NoiseStrategy, got {strategy!r}")
    check_nonnegative_scalar("stddev", stddev)

    def step(
        updates: PyTree, state: PyTree, key: jax.Array, sensitivity: ArrayLike = 1.0, **more: object
    ) -> tuple[PyTree, Any]:
        check_nonnegative_scalar("sensitivity", sensitivity)
        draw = draws_of(strategy, updates, key, state.count)
        scale = jnp.multiply(stddev, sensitivity)
        noise, state = strategy.next(draw, scale, state)
        return jax.tree.map(lambda leaf, own: _plus(leaf, own, scale), updates, noise), state

    return keyed(strategy.init, step)


def draws_of(strategy: NoiseStrategy, like: PyTree, key: jax.Array, count: jax.Array) -> Draw:
    """What a step draws, by level; no two levels, steps or leaves share a key."""

    def draw(level: int | jax.Array) -> PyTree:
        first = isinstance(level, int) and level == 0
        # numbers that no step has, so that no key is that of a step
        own = key if first else jax.random.fold_in(key, strategy.num_steps + level)
        return strategy.noise(jax.random.fold_in(own, count), like)

    return draw


def _plus(leaf: PyTree, noise: jax.Array, scale: jax.Array) -> jax.Array:
    leaf = jnp.asarray(leaf)
    if leaf.shape != noise.shape:
        raise ValueError(
            "updates must have the shapes that init was given, "
            f"got {list(leaf.shape)} with noise of shape {list(noise.shape)}"
        )
    grid = power_of_two(scale.astype(noise.dtype)) / _PARTS
    return to_grid(wide(leaf) + noise, grid).astype(leaf.dtype)


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
