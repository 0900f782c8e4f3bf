"""Records, and the devices that they and other arrays lie on."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax.core._checks import check_int
from dpjax.core._fields import register_dataclass, static_field
from dpjax.core._types import PyTree

_SHOWN = 6
_BLOCK = 32
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


def shares_of_rows() -> int:
    """Number of equal shares, each on a device, of the rows of what is traced, as far as known."""
    placement = _running.get()
    if placement is not None:
        return int(placement.shares)
    return max(1, jax.sharding.get_abstract_mesh().size)


def whole_rows(number: int, shares: int = 1) -> int:
    """The least number of rows, at least this one, of which each share is made of whole blocks.

    A multiple of 32, or a power of two below that. XLA may compute the rows left over from a block
    differently: where one record shifts the rows of others, or their number, it would change last
    bits of what follows from them, and with these all of a gradient at a kink of the loss.
    """
    rows = -(-number // shares)
    if rows < _BLOCK:
        return shares << (rows - 1).bit_length()
    return shares * _BLOCK * -(-rows // _BLOCK)


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
    return np.concatenate([np.asarray(part).reshape(-1) for _, part in own_parts(array)])


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


def filled(data: PyTree, rows: int) -> PyTree:
    """Arrays `[n, ...]` with their last row repeated until there are so many, at least n."""

    def fill(leaf: jax.Array) -> jax.Array:
        missing = rows - leaf.shape[0]
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (missing, *leaf.shape[1:]))])

    return jax.tree.map(fill, data)


@register_dataclass
@dataclass(frozen=True)
class Records:
    """Arrays whose first `num_records` rows are records; the rows after them take part in nothing.

    Args:
      arrays: Tree of arrays with one leading axis `[rows, ...]` (*secret*).
      num_records: How many of the rows are records, `1 <= num_records <= rows` (static).

    Raises:
      ValueError: If `num_records < 1`; by `solve`, if there are fewer rows.
      TypeError: If `num_records` is not an integer.
    """

    arrays: PyTree
    num_records: int = static_field()

    def __post_init__(self) -> None:
        check_int("num_records", self.num_records, minimum=1)


def shard_records(
    data: PyTree, mesh: Mesh, axis: str | tuple[str, ...] = "records", *, rows: int | None = None
) -> Records:
    """Spreads records over an axis of a mesh of devices, in equal shares.

    Device r of D holds rows r R / D to (r + 1) R / D. The last record is repeated to fill the R
    rows, and takes part once. With several processes each calls this with the same data, and holds
    only its own shares; where no process has all of them, make the arrays by
    `jax.make_array_from_process_local_data` and wrap them in `Records`.

    Guarantee: none needed; nothing is released. Where a record lies is as *secret* as the record.

    Args:
      data: Tree of arrays with one leading axis `[n, ...]` (*secret*).
      mesh: Devices, with names for their axes.
      axis: Name, or names, of the axis to spread over; other axes of the mesh hold copies.
      rows: R, a multiple of D, at least n: a sampler's `rows` where it draws by shards; default:
        the next number of which each share is a multiple of 32, or a power of two below that, and
        of larger powers of two where that adds little: so parts need not be of unequal size.

    Returns:
      The arrays `[R, ...]` and n.

    Raises:
      ValueError: If `mesh` has no such axis, or `rows` is too small or no multiple of D.
      TypeError: If `rows` is not an integer.

    Example:
      >>> import dpjax, jax, numpy as np
      >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("records",))
      >>> records = dpjax.shard_records({"x": np.ones((10, 3))}, mesh)
      >>> records.num_records, records.arrays["x"].sharding.spec[0]
      (10, 'records')
    """
    names = (axis,) if isinstance(axis, str) else tuple(axis)
    for name in names:
        if name not in mesh.shape:
            raise ValueError(f"axis {name!r} is not in the mesh, which has {tuple(mesh.shape)}")
    shares = int(np.prod([mesh.shape[name] for name in names]))
    number = num_rows(data)
    if rows is None:
        # a multiple of a power of two, less than 2% above
        unit = shares << max(0, (number // (64 * shares)).bit_length() - 1)
        rows = -(-whole_rows(number, shares) // unit) * unit
    check_int("rows", rows, minimum=number)
    if rows % shares:
        raise ValueError(f"rows must be a multiple of {shares}, the size of {axis!r}, got {rows}")
    sharding = NamedSharding(mesh, PartitionSpec(axis))

    def spread(leaf: object) -> jax.Array:
        array = np.asarray(leaf)
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)

        def share(index: Any) -> np.ndarray:
            first, last, _ = index[0].indices(rows)
            if last <= number:
                return array[first:last]
            return array[np.arange(first, last).clip(max=number - 1)]

        return jax.make_array_from_callback((rows, *array.shape[1:]), sharding, share)

    return Records(jax.tree.map(spread, data), number)


def num_rows(data: PyTree) -> int:
    """The length of the one leading axis of all arrays."""
    leaves = jax.tree.leaves(data)
    if not leaves:
        raise ValueError("data holds no arrays")
    sizes = {np.shape(leaf)[:1] for leaf in leaves}
    if len(sizes) != 1 or () in sizes:
        # of nested lists, every number is a leaf
        hint = "; a number or a list of numbers is no array: np.asarray(list) makes one"
        if any(hasattr(leaf, "people") for leaf in leaves):
            hint = "; of PersonRecords take records.people()"
        hint = hint if () in sizes else ""
        shapes = ", ".join(str(list(np.shape(leaf))) for leaf in leaves[:_SHOWN])
        more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
        raise ValueError(
            f"all arrays in data must share one leading axis, got shapes {shapes}{more}{hint}"
        )
    return int(sizes.pop()[0])
