"""Gaussian noise on the integers, discrete or rounded: no floats in what is released."""

import jax
import jax.numpy as jnp

from dpjax.core import PyTree, Transform, check_positive_scalar, is_traced
from dpjax.random._integer_tables import IntegerTable, draw_integers, integer_table, shortfall
from dpjax.transforms.noise._independent import noise_on_leaves

_LARGEST = 1e7


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
    return _add_integers(integer_table(_checked(stddev), rounded=False))


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
    return _add_integers(integer_table(_checked(stddev), rounded=True))


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


def _add_integers(table: IntegerTable) -> Transform:
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
