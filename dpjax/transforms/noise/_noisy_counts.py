"""Rounded Gaussian noise on counts, by a deviation that is known only when the program runs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import is_traced
from dpjax.random._integer_tables import (
    COLUMNS,
    IntegerTable,
    draw_integers,
    integer_table,
    shortfall,
)
from dpjax.random._normal import normal
from dpjax.transforms.noise._independent import plus_noise

LARGEST = 1e7  # deviation of a table
_LEVELS = 3  # of a table of any deviation
MOST_SHORTFALL = 1.4e-15  # of a number, by any table: 3 * 8192 * 2^-64, and ripples
_SPARE = 1 + 2e-7  # so that a deviation rounded to float32 is not below the one accounted for


def noisy_counts(
    key: jax.Array, counts: jax.Array, stddev: ArrayLike, group: ArrayLike | None = None
) -> jax.Array:
    """Integer counts and rounded Gaussian noise, as floats; for any deviation, traced or swept.

    The noise is that of `add_rounded_gaussian`, from tables that the host makes while the program
    runs: a deviation is data of a solver, and a sweep over it compiles once. Where there is no
    table, for a deviation of 0, above 1e7 or not finite, noise is that of `add_gaussian`.

    Args:
      key: One typed key.
      counts: Integers (*secret*).
      stddev: Before rounding, in counts, `[]` or `[g]` (*public*).
      group: With the latter, which of them is whose, integers in `[0, g)` of the shape of `counts`.
    """
    real = jnp.result_type(float)
    stddevs = jnp.atleast_1d(jnp.asarray(stddev, real)) * _SPARE
    where = jnp.zeros(counts.shape, jnp.int32) if group is None else jnp.asarray(group)
    table, known = _tables(stddevs)
    own = IntegerTable(
        table.packed, table.low, table.factors[:, where], jnp.asarray(table.least)[where]
    )
    whole, floating = jax.random.split(key)
    exact = draw_integers(whole, counts.shape, own, where * COLUMNS)
    draws = normal(floating, counts.shape, real)
    other = plus_noise(counts.astype(real), stddevs[where], draws)
    return jnp.where(jnp.asarray(known)[where], (counts + exact).astype(real), other)


def noisy_counts_shortfall(stddev: float) -> float:
    """Total variation of one number from the exact law, at most (host)."""
    stddev = float(stddev) * _SPARE
    return shortfall(stddev, rounded=True) if 0 < stddev <= LARGEST else 0.0


def _tables(stddevs: jax.Array) -> tuple[IntegerTable, Any]:
    if not is_traced(stddevs):
        table, known = _host_tables(stddevs)
        return IntegerTable(*table), known
    size = stddevs.shape[0]
    words = jax.ShapeDtypeStruct((_LEVELS, size * COLUMNS), jnp.uint32)
    factors = jax.ShapeDtypeStruct((_LEVELS, size), jnp.int32)
    least = jax.ShapeDtypeStruct((size,), jnp.int32)
    made = (words, words, factors, least), jax.ShapeDtypeStruct((size,), bool)
    table, known = jax.pure_callback(_host_tables, made, stddevs, vmap_method="sequential")
    return IntegerTable(*table), known


def _host_tables(stddevs: ArrayLike) -> tuple[tuple[Any, ...], Any]:
    """The tables of these deviations, side by side, with levels of nothing up to three."""
    values = np.asarray(stddevs, np.float64)
    known = (values > 0) & (values <= LARGEST)
    pairs = zip(values, known, strict=True)
    tables = [integer_table(float(v) if k else 1.0, rounded=True) for v, k in pairs]
    packed, low, factors = (
        np.concatenate([_padded(table[i], shape) for table in tables], axis=1)
        for i, shape in ((0, COLUMNS), (1, COLUMNS), (2, 1))
    )
    least = np.array([table.least for table in tables], np.int32)
    return (packed, low, factors, least), known


def _padded(words: ArrayLike, width: int) -> np.ndarray:
    words = np.reshape(words, (-1, width))
    return np.pad(words, ((0, _LEVELS - len(words)), (0, 0)))
