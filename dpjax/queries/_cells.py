"""Records as codes, and the cells they lie in. C order: the last attribute runs fastest."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import is_traced
from dpjax.core._addressable import held, spans_processes

_LARGEST = 2**31


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Distance in C order between neighbours along each axis."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def check_enumerable(shape: Sequence[int]) -> None:
    """Raises ValueError unless the cells can be numbered in int32."""
    size = math.prod(shape)
    if size >= _LARGEST:
        raise ValueError(
            f"the universe must have < 2**31 cells to be enumerated, got {size} "
            f"(2**{math.log2(size):.1f}) from shape {list(shape)}: drop attributes "
            "(Domain.project) or merge categories"
        )


def record_codes(attributes: Sequence[str], shape: Sequence[int], codes: Any) -> jax.Array:
    """Codes `[..., A]` as int32: checked where known, clipped to their range where traced."""
    got = np.shape(codes)
    if not got or got[-1] != len(shape):
        raise ValueError(
            f"codes must have shape [..., {len(shape)}], one column for each of "
            f"{list(attributes)}, got {list(got)}"
        )
    codes = _integers("codes", codes)
    if not is_traced(codes):
        for i, (name, size) in enumerate(zip(attributes, shape, strict=True)):
            _check_range(f"codes of {name!r}", codes[..., i], size)
    last = np.reshape(shape, (1,) * (len(got) - 1) + (-1,)) - 1
    return jnp.clip(codes, 0, last.astype(codes.dtype)).astype(jnp.int32)


def cells_of_codes(shape: Sequence[int], codes: jax.Array) -> jax.Array:
    """Cells `[...]` int32 of valid codes `[..., A]`."""
    return codes @ jnp.asarray(strides(shape), jnp.int32)


def codes_of_cells(shape: Sequence[int], cells: Any) -> jax.Array:
    """Codes `[..., A]` int32 of cells `[...]`."""
    size = math.prod(shape)
    cells = _integers("cells", cells)
    if not is_traced(cells):
        _check_range("cells", cells, size)
    cells = jnp.clip(cells, 0, size - 1).astype(jnp.int32)
    pairs = zip(strides(shape), shape, strict=True)
    return jnp.stack([cells // step % count for step, count in pairs], axis=-1)


def _integers(name: str, values: Any) -> Any:
    """Integers of at least 32 bits, on the host unless they are traced or lie on several hosts."""
    if not is_traced(values) and not spans_processes(values):
        values = np.asarray(values)
        if values.size == 0 and values.dtype == np.float64:  # an empty list
            values = values.astype(np.int32)
    if not jnp.issubdtype(values.dtype, jnp.integer):
        raise TypeError(f"{name} must be of an integer type, got {values.dtype}")
    return values.astype(jnp.promote_types(values.dtype, jnp.int32))


def _check_range(name: str, values: Any, size: int) -> None:
    values = held(values)
    bad = values[(values < 0) | (values >= size)]
    if bad.size:
        # of records: how many, not which
        raise ValueError(f"{name} must lie in [0, {size}): {bad.size} of {values.size} are outside")
