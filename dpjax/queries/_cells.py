"""Integers in public ranges: checked where they are known, clipped where they are traced."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_shape, is_traced
from dpjax.core._addressable import held, spans_processes


def checked_codes(
    name: str, codes: ArrayLike, shape: tuple[int | None, ...], size: int
) -> jax.Array:
    """Codes in [0, size) as int32; traced ones are clipped to that range.

    Raises:
      TypeError: If they are not integers.
      ValueError: If the shape is another, or a known code is out of range.
    """
    check_shape(name, codes, shape)
    array = integers(name, codes)
    check_range(name, array, size)
    return jnp.clip(array, 0, size - 1).astype(jnp.int32)


def integers(name: str, values: ArrayLike) -> np.ndarray | jax.Array:
    """Integers of at least 32 bits, on the host unless they are traced or lie on several hosts."""
    away = is_traced(values) or spans_processes(values)
    array = jnp.asarray(values) if away else np.asarray(values)
    if array.size == 0 and array.dtype == np.float64 and not away:  # an empty list
        array = array.astype(np.int32)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name} must be of an integer type, got {array.dtype}")
    # unsigned ones that do not fit become negative, which is out of range
    return array.astype(np.int32 if array.dtype.itemsize <= 4 else np.int64)


def check_range(name: str, values: np.ndarray | jax.Array, size: int) -> None:
    """Raises ValueError if a known value is outside [0, size)."""
    if is_traced(values):
        return
    here = held(values)
    bad = np.sum((here < 0) | (here >= size))
    if bad:
        # of records: how many, not which
        raise ValueError(f"{name} must lie in [0, {size}): {bad} of {here.size} are outside")
