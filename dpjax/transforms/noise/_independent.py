"""Additive noise: Gaussian, Laplace, and Gaussian on integers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    Transform,
    check_nonnegative_scalar,
    check_positive_scalar,
    is_traced,
    wide,
)
from dpjax.core._chain import keyed
from dpjax.core._pairs import Pair, add_pairs, pair_of, power_of_two
from dpjax.random._integer_tables import draw_integers, integer_table, shortfall
from dpjax.random._normal import laplace, normal

_PARTS = 32  # of a power of two up to the scale, which released numbers are rounded to
_LARGEST = 1e7


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
    `clip.sensitivity("add_or_remove_one")`. Noise is made from 64 random bits a number, with a true
    tail to 9 deviations, and the result is rounded to multiples of a power of two between
    `stddev / 64` and `stddev / 32`, so that low bits give nothing away: the exact delta of such a
    release is within a ten-thousandth of the claimed (docs/numerics.md).

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
    check_nonnegative_scalar("stddev", stddev)
    return _add_noise(stddev, normal)


def add_laplace(scale: ArrayLike) -> Transform:
    r"""Adds independent Laplace noise to every coordinate, density $e^{-|x|/b} / (2b)$.

    Guarantee: with updates of **l1** sensitivity $\Delta$ under add-or-remove-one,
    `LaplaceDpEvent(scale / Delta)` for each call, which is pure $\Delta/b$-DP. The exponential part
    is built from 64 random bits for its exponent, so its tail reaches 44 scales, where a float32
    inverse CDF would end at 16. The result is rounded as by `add_gaussian`, with `scale` for the
    deviation.

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
    check_nonnegative_scalar("scale", scale)
    return _add_noise(scale, laplace)


def _add_noise(scale: ArrayLike, draw: Callable[..., jax.Array]) -> Transform:
    return noise_on_leaves(lambda leaf, key: _noisy(leaf, scale, draw, key))


def _noisy(
    leaf: PyTree, scale: ArrayLike, draw: Callable[..., jax.Array], key: jax.Array
) -> jax.Array:
    values = wide(leaf)
    noisy = plus_noise(values, scale, draw(key, values.shape, values.dtype))
    return noisy.astype(jnp.result_type(leaf))


def noise_on_leaves(
    noisy: Callable[[Any, jax.Array], jax.Array], state_type: Callable[..., Any] = AddNoiseState
) -> Transform:
    """`noisy(leaf, key)` of every leaf; the key is folded with the call's number and the leaf's."""

    def init(params: PyTree) -> Any:
        return state_type(jnp.zeros((), jnp.int32))

    def step(
        updates: PyTree, state: AddNoiseState, key: jax.Array, **extra: object
    ) -> tuple[PyTree, Any]:
        now = jax.random.fold_in(key, state.count)
        leaves, treedef = jax.tree.flatten(updates)
        drawn = [noisy(leaf, jax.random.fold_in(now, i)) for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(treedef, drawn), state_type(state.count + 1)

    return keyed(init, step)


def plus_noise(values: jax.Array, scale: ArrayLike, draws: jax.Array) -> jax.Array:
    """`values + scale * draws` to the nearest multiple of a power of two near scale / 32.

    The grid is the same whatever the values, so that no low bits are left by which to tell them;
    for a scale of 0, or one so small that there is none, values are as they are.
    """
    scale = jnp.asarray(scale, draws.dtype)
    return to_grid(values + scale * draws, power_of_two(scale) / _PARTS)


def to_grid(values: jax.Array, grid: jax.Array) -> jax.Array:
    """The nearest multiples of `grid`, a power of two; values as they are where it is 0."""
    multiple = values / jnp.where(grid > 0, grid, 1)
    return jnp.where((grid > 0) & jnp.isfinite(multiple), jnp.round(multiple) * grid, values)


def plus_gaussian(key: jax.Array, values: Pair, stddev: ArrayLike) -> jax.Array:
    """Numbers and Gaussian noise, rounded to the grid of `plus_noise` after they are added."""
    dtype = values.high.dtype
    noise = jnp.asarray(stddev, dtype) * normal(key, values.high.shape, dtype)
    grid = power_of_two(jnp.asarray(stddev, dtype)) / _PARTS
    return to_grid(add_pairs(values, pair_of(noise)).high, grid)


def add_discrete_gaussian(stddev: float) -> Transform:
    r"""Adds independent discrete Gaussian noise to every integer of a tree.

    $$ P[X = x] = \frac{e^{-x^2 / 2\sigma^2}}{\sum_{y \in \mathbb Z} e^{-y^2 / 2\sigma^2}},
       \qquad x \in \mathbb Z $$

    Guarantee: with integer updates of l2 sensitivity $\Delta$, each call is
    `ZCDpEvent(Delta**2 / (2 * stddev**2))` for the relation of $\Delta$, as for the Gaussian of
    that deviation; and the draws of a call are within
    `discrete_gaussian_shortfall(stddev) * number of integers` of the exact law in total variation,
    the `failure_probability` to declare (1e-13 for a thousand integers at deviation 100). **Nothing
    else is idealised**: unlike noise of floating point, what is released has no low bits that could
    give the data away. Use it where the sums are integers: counts, histograms, tables.

    | input | effect |
    | --- | --- |
    | leaf of floats | TypeError, since rounding would move the sensitivity |
    | sum beyond int32 | wraps, as integers do, which is post-processing |

    Args:
      stddev: $\sigma$ of the table the draws come from, in (0, 1e7] (*public*, static).

    Returns:
      A transformation for trees of integers, whose dtypes are kept;
      `update(updates, state, params=None, *, key)`.

    Raises:
      ValueError: If `stddev` is outside its bound.
      TypeError: If `stddev` is traced; at `update`, if a leaf is not of integers of 32 or 64 bits,
        or the key is missing or not typed.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> noise = dpjax.transforms.add_discrete_gaussian(3.0)
      >>> counts = jnp.array([10, 0, 7])
      >>> noisy, _ = noise.update(counts, noise.init(counts), key=jax.random.key(0))
      >>> noisy.dtype == counts.dtype
      True

    Source: Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential privacy",
    theorem 4.
    """
    return _add_integers(stddev, rounded=False)


def add_rounded_gaussian(stddev: float) -> Transform:
    r"""Adds independent Gaussian noise, rounded to integers, to every integer of a tree.

    $$ c \mapsto c + \mathrm{round}(\sigma\,\mathcal N(0, 1)), \qquad c \in \mathbb Z $$

    Guarantee: with integer updates of l2 sensitivity $\Delta$ under add-or-remove-one,
    `GaussianDpEvent(stddev / Delta)` for each call, as by `add_gaussian`, joint and subsampled
    accounting included: c + round(N) = round(c + N) for an integer c, so what is released is made
    from the release of the Gaussian mechanism. The draws of a call are within
    `rounded_gaussian_shortfall(stddev) * number of integers` of the exact law in total variation,
    the `failure_probability` to declare. **Nothing else is idealised.**

    | input | effect |
    | --- | --- |
    | leaf of floats | TypeError, since rounding would move the sensitivity |
    | sum beyond int32 | wraps, as integers do, which is post-processing |

    Args:
      stddev: $\sigma$ before rounding, in (0, 1e7] (*public*, static). Rounding adds 1/12 to the
        variance, unless $\sigma$ is small.

    Returns:
      A transformation for trees of integers, whose dtypes are kept;
      `update(updates, state, params=None, *, key)`.

    Raises:
      ValueError: If `stddev` is outside its bound.
      TypeError: If `stddev` is traced; at `update`, if a leaf is not of integers of 32 or 64 bits,
        or the key is missing or not typed.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> noise = dpjax.transforms.add_rounded_gaussian(3.0)
      >>> counts = jnp.array([10, 0, 7])
      >>> noisy, _ = noise.update(counts, noise.init(counts), key=jax.random.key(0))
      >>> noisy.dtype == counts.dtype
      True
    """
    return _add_integers(stddev, rounded=True)


def discrete_gaussian_shortfall(stddev: float) -> float:
    r"""Total variation between one draw of `add_discrete_gaussian` and the exact law, at most.

    Probabilities are rounded to multiples of 2^-64, in a table that ends where less than 2^-64 is
    left. From deviation 430 on noise is a sum of draws from two or three tables, whose law is that
    of one within 2e-17.

    Args:
      stddev: As there.

    Returns:
      The bound, about $20\,\sigma\, 2^{-64}$, and 2e-15 at most.

    Raises:
      ValueError: If `stddev` is outside its bound.

    Example:
      >>> discrete_gaussian_shortfall(100.0) < 1.1e-16
      True
    """
    return shortfall(_checked(stddev), rounded=False)


def rounded_gaussian_shortfall(stddev: float) -> float:
    """Total variation between one draw of `add_rounded_gaussian` and the exact law, at most.

    Args:
      stddev: As there.

    Returns:
      The bound, as by `discrete_gaussian_shortfall`.

    Raises:
      ValueError: If `stddev` is outside its bound.

    Example:
      >>> rounded_gaussian_shortfall(100.0) < 1.1e-16
      True
    """
    return shortfall(_checked(stddev), rounded=True)


def _add_integers(stddev: float, *, rounded: bool) -> Transform:
    table = integer_table(_checked(stddev), rounded=rounded)

    def noisy(leaf: PyTree, key: jax.Array) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if leaf.dtype not in (jnp.int32, jnp.int64, jnp.uint32, jnp.uint64):
            raise TypeError(f"updates must be integers of 32 or 64 bits, got {leaf.dtype}")
        return leaf + draw_integers(key, leaf.shape, table).astype(leaf.dtype)

    return noise_on_leaves(noisy)


def _checked(stddev: float) -> float:
    if is_traced(stddev):
        raise TypeError("stddev must be known when the transformation is made: it sets a table")
    check_positive_scalar("stddev", stddev)
    if float(stddev) > _LARGEST:
        raise ValueError(f"stddev must be <= {_LARGEST:g}, got {stddev!r}")
    return float(stddev)
