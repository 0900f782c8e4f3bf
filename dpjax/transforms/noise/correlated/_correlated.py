"""Noise that is correlated over the steps, and sums that it is added to and that start anew."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_key, check_nonnegative_scalar, wide
from dpjax.core._chain import keyed
from dpjax.core._pairs import power_of_two
from dpjax.transforms.noise._independent import to_grid
from dpjax.transforms.noise.correlated._strategy import Draw, NoiseStrategy, wide_zeros

_PARTS = 1024  # of a power of two up to the scale: finer than alone, since errors add up over steps


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


def draws_of(
    strategy: NoiseStrategy, like: PyTree, key: jax.Array | None, count: jax.Array
) -> Draw:
    """What a step draws, by level; no two levels, steps or leaves share a key."""
    key = check_key("key", key)

    def draw(level: int | jax.Array) -> PyTree:
        if isinstance(level, int) and level == 0:
            return strategy.noise(jax.random.fold_in(key, count), like)
        # numbers that no step has, so that no key is that of a step
        deeper = jax.random.fold_in(key, strategy.num_steps + level)
        return strategy.noise(jax.random.fold_in(deeper, count), like)

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
