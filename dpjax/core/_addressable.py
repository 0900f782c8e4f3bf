"""Several devices: is a program traced for them, and which parts of an array are here?"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from dpjax.core._types import PyTree

_running: contextvars.ContextVar[Any] = contextvars.ContextVar("placement", default=None)


@contextlib.contextmanager
def running(placement: object) -> Iterator[None]:
    """While a program for this placement is traced."""
    token = _running.set(placement)
    try:
        yield
    finally:
        _running.reset(token)


def many_devices() -> bool:
    """Whether what is traced is known to be for several devices: by `solve` or a mesh in use.

    Returns:
      True if so; sums over examples are then to be one operation, which XLA can do where the
      examples lie.
    """
    return _running.get() is not None or jax.sharding.get_abstract_mesh().size > 1


def spans_processes(leaf: PyTree) -> bool:
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


def whole(array: Any) -> Any:
    """All entries of an array of several processes, in each of them; all must ask for it."""
    if not spans_processes(array):
        return array
    if array.is_fully_replicated:
        return array.addressable_data(0)
    return process_allgather(array, tiled=True)


def shardings_of(tree: PyTree) -> list[Any]:
    """How concrete arrays of a tree are spread, and what its static fields say of other arrays."""
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    known = [array.sharding for array in arrays if not isinstance(array, jax.core.Tracer)]
    return [*known, *_stated(tree)]


def device_count(tree: PyTree) -> int:
    """On how many devices the arrays of a tree lie together, at least 1."""
    return max((len(sharding.device_set) for sharding in shardings_of(tree)), default=1)


def _stated(node: object) -> Iterator[Any]:
    if isinstance(node, jax.sharding.Sharding):
        yield node
        return
    parts: Any = ()
    if dataclasses.is_dataclass(node) and not isinstance(node, type):
        parts = (getattr(node, field.name) for field in dataclasses.fields(node))
    elif isinstance(node, dict):
        parts = node.values()
    elif isinstance(node, tuple | list):
        parts = node
    for part in parts:
        yield from _stated(part)
