"""Additive noise, Gaussian and Laplace."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_nonnegative, check_scalar
from dpjax.transforms._draws import map_with_keys
from dpjax.transforms._laplace import laplace
from dpjax.transforms._normal import normal


class AddNoiseState(NamedTuple):
    """State of a noise transformation.

    Attributes:
      count: Number of draws so far, `[]` int32 (*public*).
    """

    count: jax.Array  # type: ignore[assignment]


def add_gaussian(stddev: ArrayLike) -> Transform:
    r"""Adds independent Gaussian noise to every coordinate: $g + \sigma\,\mathcal N(0, I)$.

    Guarantee: with updates of l2 sensitivity $\Delta$ under add-or-remove-one,
    `GaussianDpEvent(stddev / Delta)` for each call, under every relation: accountants double the
    sensitivity for replace-one themselves. Ask the aggregator for $\Delta$,
    `clip.sensitivity("add_or_remove_one")`. Idealised in one respect: the noise is a floating-point
    normal, whose float32 form has no values beyond 5.5 deviations.

    Noise is drawn in at least float32 and cast back, so structure, shapes and dtypes are kept. The
    draw depends on the key, on the number of calls so far (the state) and on the leaf: two noises
    belong into a `dpjax.chain`, since `optax.chain` hands all its stages one key.

    Args:
      stddev: Standard deviation `>= 0` in units of the updates (*public*); scalar, may be traced.

    Returns:
      A transformation; `update(updates, state, params=None, *, key)`.

    Raises:
      ValueError: If `stddev` is negative or not finite.
      TypeError: At `update`, if the key is missing or not typed.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> noise = dpjax.transforms.add_gaussian(2.0)
      >>> noisy, _ = noise.update(jnp.zeros(5), noise.init(None), key=jax.random.key(0))
      >>> noisy.shape
      (5,)
    """
    check_scalar("stddev", stddev)
    check_nonnegative("stddev", stddev)
    return _add_noise(stddev, normal)


def add_laplace(scale: ArrayLike) -> Transform:
    r"""Adds independent Laplace noise to every coordinate, density $e^{-|x|/b} / (2b)$.

    Guarantee: with updates of **l1** sensitivity $\Delta$ under add-or-remove-one,
    `LaplaceDpEvent(scale / Delta)` for each call, which is pure $\Delta/b$-DP. The exponential part
    is built from 64 random bits for its exponent, so its tail reaches 44 scales, where a float32
    inverse CDF would end at 16.

    Args:
      scale: Scale $b \ge 0$ in units of the updates (*public*); the standard deviation is
        $\sqrt2 b$. Scalar, may be traced.

    Returns:
      A transformation; `update(updates, state, params=None, *, key)`.

    Raises:
      ValueError: If `scale` is negative or not finite.
      TypeError: At `update`, if the key is missing or not typed.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> noise = dpjax.transforms.add_laplace(1.0)
      >>> noisy, _ = noise.update(jnp.zeros(5), noise.init(None), key=jax.random.key(0))
      >>> noisy.shape
      (5,)
    """
    check_scalar("scale", scale)
    check_nonnegative("scale", scale)
    return _add_noise(scale, laplace)


def _add_noise(scale: ArrayLike, draw: Callable[..., jax.Array]) -> Transform:
    return noise_on_leaves(lambda leaf, key: _noisy(leaf, scale, draw, key))


def noise_on_leaves(noisy: Callable[[Any, jax.Array], jax.Array]) -> Transform:
    """`noisy(leaf, key)` of every leaf, with a key for each leaf and call."""

    def init(params: PyTree) -> AddNoiseState:
        del params
        return AddNoiseState(jnp.zeros((), jnp.int32))

    def update(
        updates: PyTree,
        state: AddNoiseState,
        params: PyTree = None,
        *,
        key: jax.Array | None = None,
        **extra: Any,
    ) -> tuple[PyTree, AddNoiseState]:
        del params, extra
        return map_with_keys(noisy, updates, key, state.count), AddNoiseState(state.count + 1)

    return Transform(init, update)


def _noisy(
    leaf: Any, scale: ArrayLike, draw: Callable[..., jax.Array], key: jax.Array
) -> jax.Array:
    leaf = jnp.asarray(leaf)
    wide = jnp.promote_types(leaf.dtype, jnp.float32)
    noise = jnp.asarray(scale, wide) * draw(key, leaf.shape, wide)
    return (leaf.astype(wide) + noise).astype(leaf.dtype)
