"""Strategies: how noise is correlated over the steps."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_int, check_nonnegative, check_shape, wide
from dpjax.privacy import RelationLike
from dpjax.random._normal import normal

# below, copies and repeated work are no cost beside the step itself
_LONG = 2**14

Draw: TypeAlias = Callable[[int | jax.Array], PyTree]


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
