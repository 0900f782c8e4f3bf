"""Rounded Gaussian noise on counts, by a deviation that is data of a solver."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import is_traced
from dpjax.core._checks import known_numbers
from dpjax.core._pairs import pair_of
from dpjax.random._integer_tables import (
    COLUMNS,
    IntegerTable,
    draw_integers,
    integer_table,
    shortfall,
)
from dpjax.transforms.noise._independent import plus_gaussian

LARGEST = 1e7  # deviation of a table
_LEVELS = 3  # of a table of any deviation
MOST_SHORTFALL = 1.4e-15  # of a number, by any table: 3 * 8192 * 2^-64, and ripples
_SPARE = 1 + 2e-7  # so that a deviation rounded to float32 is not below the one accounted for
_CLOSE = 5e-7  # of products in float32 and in float64


class CountTables(NamedTuple):
    """Tables of rounded Gaussian noise of one deviation, or of those in an array; *public*.

    Attributes:
      bits: Those of the deviation in float32, by which it is known, `[*s]` uint32; all ones where
        there is no table.
      table: With three levels, some of them of nothing, `[*s, 3, 8192]`.
    """

    bits: np.ndarray | jax.Array
    table: IntegerTable


def count_tables(*factors: ArrayLike) -> CountTables | None:
    """Tables for `noisy_counts`, to be kept with a solver as what is `derived` (host).

    Args:
      *factors: Whose product is the deviation, `[]`, `[g]` or stacked.

    Returns:
      Tables of 196 kB a deviation, of the same shapes for all; None where a factor is traced or
        stands for a number, or factors do not broadcast, or there is no deviation.
    """
    known = [known_numbers("stddev", factor) for factor in factors]
    try:
        stddev = math.prod(number for number in known if number is not None)
    except ValueError:
        return None
    if not np.size(stddev) or any(number is None for number in known):
        return None
    return _tables(stddev)


def noisy_counts(
    key: jax.Array,
    counts: jax.Array,
    stddev: ArrayLike,
    tables: CountTables | None,
    group: ArrayLike | None = None,
) -> jax.Array:
    """Integer counts and rounded Gaussian noise, as floats; for any deviation, traced or swept.

    The noise is that of `add_rounded_gaussian`. Where there is no table, for a deviation of 0,
    above 1e7 or not finite, or tables are those of another or no integers, noise is that of
    `add_gaussian`.

    Args:
      key: One typed key.
      counts: Integers (*secret*).
      stddev: Before rounding, in counts, `[]` or `[g]` (*public*).
      tables: `count_tables` of the deviation, or of the one that all g are. With None, for a
        deviation that a transformation traced from the start, the host is called back for them.
      group: With g deviations, which of them is whose, integers in `[0, g)` of the shape of
        `counts`.

    Raises:
      ValueError: If tables are stacked, and deviations are not.
    """
    stddev = jnp.asarray(stddev, float)
    if tables is not None and not jnp.issubdtype(jnp.result_type(tables.bits), jnp.unsignedinteger):
        tables = _tables(np.zeros(()))  # somebody computed with all leaves of a solver
    bits, table = _tables_while_running(stddev) if tables is None else tables
    if np.shape(bits) not in ((), stddev.shape):
        raise ValueError(
            f"tables of noise are of shape {list(np.shape(bits))} for deviations of shape "
            f"{list(stddev.shape)}: map over whole solvers, with all of their leaves stacked"
        )
    own: ArrayLike = 0 if group is None else group
    which = own if np.shape(bits) else 0
    scale = jnp.reshape(stddev, -1)[own]
    made_for = jax.lax.bitcast_convert_type(jnp.reshape(bits, -1)[which], jnp.float32)
    whole, floating = jax.random.split(key)
    exact = counts + draw_integers(whole, counts.shape, table, which)
    other = plus_gaussian(floating, pair_of(counts, scale.dtype), scale * _SPARE)
    return jnp.where(jnp.abs(made_for - scale) <= _CLOSE * scale, exact.astype(scale.dtype), other)


def noisy_counts_shortfall(stddev: float) -> float:
    """Total variation of one number from the exact law, at most (host)."""
    stddev = float(stddev) * _SPARE
    return shortfall(stddev, rounded=True) if 0 < stddev <= LARGEST else 0.0


def _tables_while_running(stddev: jax.Array) -> CountTables:
    if not is_traced(stddev):
        return _tables(stddev)
    made = jax.tree.map(
        lambda part: jax.ShapeDtypeStruct(stddev.shape + part.shape, part.dtype), _tables(0.0)
    )
    tables: CountTables = jax.pure_callback(_tables, made, stddev, vmap_method="expand_dims")
    return tables


def _tables(stddev: ArrayLike) -> CountTables:
    values = np.asarray(stddev, np.float64)
    made = [_table(float(value) * _SPARE) for value in values.ravel()]
    columns = zip(*made, strict=True)
    parts = [np.stack(part).reshape(values.shape + part[0].shape) for part in columns]
    there = (values > 0) & (values * _SPARE <= LARGEST)
    bits = np.where(there, values.astype(np.float32).view(np.uint32), np.uint32(2**32 - 1))
    return CountTables(bits, IntegerTable(*parts))


@functools.lru_cache(maxsize=32)
def _table(stddev: float) -> IntegerTable:
    """One of three levels; of nothing where there is none."""
    if not 0 < stddev <= LARGEST:
        words = np.zeros((_LEVELS, COLUMNS), np.uint32)
        return IntegerTable(words, words, np.zeros(_LEVELS, np.int32), np.zeros((), np.int32))
    table = integer_table(stddev, rounded=True)
    missing = _LEVELS - len(table.factors)
    packed, low = (np.pad(part, ((0, missing), (0, 0))) for part in (table.packed, table.low))
    return IntegerTable(packed, low, np.pad(table.factors, (0, missing)), table.least)
