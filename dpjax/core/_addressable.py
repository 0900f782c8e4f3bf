"""What this process can read of arrays that lie on the devices of several."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding


def spans_processes(leaf: Any) -> bool:
    """Whether some of an array lies where this process cannot read it."""
    known = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    return known and not leaf.is_fully_addressable


def held(array: Any) -> np.ndarray:
    """The entries of an array, or of one of several processes those that lie here, `[size]`.

    For checks of values, which every process makes of its own.
    """
    if not spans_processes(array):
        return np.asarray(array)
    parts = [np.asarray(part).reshape(-1) for _, part in own_parts(array)]
    return np.concatenate(parts)


def own_parts(array: jax.Array) -> list[tuple[str, jax.Array]]:
    """Places and contents of what lies in this process, in one order, copies left out."""
    parts = {str(shard.index): shard for shard in array.addressable_shards}
    return [(index, parts[index].data) for index in sorted(parts)]


def whole(array: Any, sharding: NamedSharding) -> Any:
    """All entries of an array of several processes, in this one; `sharding` replicates them."""
    if not spans_processes(array):
        return array
    if not array.is_fully_replicated:
        array = jax.jit(same, out_shardings=sharding)(array)
    return array.addressable_data(0)


def same(array: jax.Array) -> jax.Array:
    """The array; compiled, it moves it to where its result must lie."""
    return array
