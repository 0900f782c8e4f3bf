"""Where arrays lie on several devices, and what the processes that hold them say to each other."""

import builtins
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import broadcast_one_to_all, process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax.core import PyTree, is_traced
from dpjax.core._records import shardings_of, whole_rows

_shard_map: Any
if hasattr(jax, "shard_map"):
    _shard_map = jax.shard_map
else:  # before jax 0.8
    from jax.experimental.shard_map import shard_map as _shard_map

Axis = str | tuple[str, ...] | None
T = TypeVar("T")

_LENGTH = 4096  # bytes of a message


@dataclass(frozen=True)
class Placement:
    """How a run lies on a mesh; static, so that programs for different placements differ.

    Attributes:
      mesh: The devices.
      records: Axis of the mesh that the rows of the data are spread over.
      params: Shapes of parameters, and of vectors along a spread axis of a record, and how each is
        spread.
    """

    mesh: Mesh
    records: Axis
    params: tuple[tuple[tuple[int, ...], PartitionSpec], ...]

    @property
    def shares(self) -> int:
        """Number of equal shares of the rows."""
        names = (self.records,) if isinstance(self.records, str) else self.records or ()
        return math.prod(self.mesh.shape[name] for name in names)

    def everywhere(self, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """What `function` gives, computed alike on all devices.

        Small index arithmetic would otherwise be done in pieces and exchanged, many times a step.
        """
        whole = PartitionSpec()
        unchecked = {"check_vma" if hasattr(jax, "shard_map") else "check_rep": False}
        alike = _shard_map(function, mesh=self.mesh, in_specs=whole, out_specs=whole, **unchecked)
        return alike(*args)

    def spread_batch(
        self, batch: PyTree, mask: jax.Array, *, drawn: bool
    ) -> tuple[PyTree, jax.Array]:
        """Rows of a batch over the axis of the records, other axes as XLA sees fit.

        The last row is repeated, masked, until they divide evenly into whole blocks; of batches of
        all records, whose rows stay as they are, into equal shares.
        """
        if self.records is None:
            return batch, mask
        free = PartitionSpec.UNCONSTRAINED
        num = mask.shape[0]
        missing = whole_rows(num, self.shares) - num if drawn else -num % self.shares

        def spread(leaf: jax.Array) -> jax.Array:
            if missing:
                leaf = jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1), mode="edge")
            spec = PartitionSpec(self.records, *[free] * (leaf.ndim - 1))
            return jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, spec))

        spread_mask = spread(mask) & (jnp.arange(num + missing) < num)
        return jax.tree.map(spread, batch), spread_mask

    def spread_state(self, state: PyTree) -> PyTree:
        """Leaves shaped like parameters, or like stacks of them, spread like parameters.

        Zeros, noise and buffers depend on no data, and would lie whole on every device.
        """

        def spread(leaf: PyTree) -> PyTree:
            shape = jnp.shape(leaf)
            found = {
                PartitionSpec(*[None] * (len(shape) - len(own)), *spec)
                for own, spec in self.params
                if own and shape[len(shape) - len(own) :] == own
            }
            if len(found) != 1:
                return leaf
            return jax.lax.with_sharding_constraint(leaf, NamedSharding(self.mesh, found.pop()))

        return jax.tree.map(spread, state)


def placement_of(data: PyTree, params: PyTree) -> Placement | None:
    """Where concrete data and parameters lie, or None if all lie on one device.

    Where an axis of the records is spread too, so are vectors of that length, such as the scores
    of a method that has no parameters to start from.
    """
    of_data = [sharding for leaf in jax.tree.leaves(data) if (sharding := _spread(leaf))]
    rows = [sharding.spec[0] for sharding in of_data if len(sharding.spec)]
    of_params = [
        (leaf.shape, sharding) for leaf in jax.tree.leaves(params) if (sharding := _spread(leaf))
    ]
    meshes: list[Any] = [*of_data, *(sharding for _, sharding in of_params)]
    meshes = [sharding.mesh for sharding in meshes if sharding.mesh.size > 1]
    if not meshes:
        return None
    own = {
        (shape, PartitionSpec(*sharding.spec, *[None] * (len(shape) - len(sharding.spec))))
        for shape, sharding in of_params
        if any(entry is not None for entry in sharding.spec)
    }
    named = {shape for shape, _ in own}
    for leaf in jax.tree.leaves(data):
        axes = zip(np.shape(leaf)[1:], getattr(_spread(leaf), "spec", ())[1:], strict=False)
        vectors = {((size,), PartitionSpec(axis)) for size, axis in axes if axis is not None}
        own |= {entry for entry in vectors if entry[0] not in named}
    records = next((axis for axis in rows if axis is not None), None)
    return Placement(meshes[0], records, tuple(sorted(own, key=str)))


def automatic(tree: PyTree) -> PyTree:
    """The same arrays, where they are, on meshes whose axes XLA partitions by itself.

    `jax.make_mesh` makes axes of explicit type, under which every operation would have to say where
    its result lies.
    """

    def convert(leaf: jax.Array) -> jax.Array:
        sharding = _spread(leaf)
        if sharding is None:
            return leaf
        mesh: Any = sharding.mesh
        auto = (jax.sharding.AxisType.Auto,) * len(mesh.axis_names)
        if mesh.axis_types == auto:
            return leaf
        mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=auto)
        return jax.device_put(leaf, NamedSharding(mesh, sharding.spec))

    return jax.tree.map(convert, tree)


def _spread(leaf: PyTree) -> NamedSharding | None:
    """How a concrete array lies on a mesh of devices, if it does."""
    if not isinstance(leaf, jax.Array) or is_traced(leaf):
        return None
    return leaf.sharding if isinstance(leaf.sharding, NamedSharding) else None


@dataclass(frozen=True)
class Processes:
    """All processes, or this one alone; what one does here, all do.

    Guarantee: none; what is said, digests, messages of errors and states of runs, crosses the
    network as the arrays of the run do, unencrypted.

    Attributes:
      several: Whether all of them hold the arrays of a run.
    """

    several: bool = False

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress for all."""
        return not self.several or jax.process_index() == 0

    def gather(self, own: bytes) -> list[bytes]:
        """What each process gives, of one length."""
        if not self.several:
            return [own]
        return [row.tobytes() for row in process_allgather(np.frombuffer(own, np.uint8))]

    def send(self, array: np.ndarray) -> np.ndarray:
        """The first process's array; the others give one of the same shape and type."""
        if not self.several or not array.size:
            return array
        own = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        # as bytes: a sum sends them, which changes -0.0, wide types without x64, and in old
        # versions of jax the type
        sent = broadcast_one_to_all(own).astype(np.uint8)
        return sent.view(array.dtype).reshape(array.shape)

    def agree(self, call: Callable[[], T]) -> T:
        """The result of `call()` here; where it raises in any process, all of them raise.

        Else the others would wait for ever for one that went another way.
        """
        if not self.several:
            return call()
        error, result = None, None
        try:
            result = call()
        except Exception as raised:
            error = raised
        messages = self.gather(_packed(error))
        if error is not None:
            raise error
        for message in messages:
            if message.strip():
                raise _unpacked(message)
        return result  # type: ignore[return-value]

    def on_first(self, call: Callable[[], T]) -> T | None:
        """The result of `call()` in the first process, None in others; its errors are all's."""
        return self.agree(lambda: call() if self.is_first else None)

    def check_alike(self, chunks: dict[str, bytes]) -> None:
        """Raises ValueError, everywhere, unless all processes give the same."""
        own = b"".join(hashlib.sha256(chunk).digest() for chunk in chunks.values())
        all_ = self.gather(own)
        different = [
            name
            for i, name in enumerate(chunks)
            if len({digests[32 * i : 32 * i + 32] for digests in all_}) > 1
        ]
        if different:
            raise ValueError(
                f"all processes must make the same call, got different {', '.join(different)}: "
                "the noise of one host must be that of all"
            )


def processes_of(tree: PyTree) -> Processes:
    """All, if they hold arrays of a tree together; this one alone where it has all of them.

    Raises:
      ValueError: If only some of the processes hold them: all must take part.
    """
    spread = [known for known in shardings_of(tree) if not known.is_fully_addressable]
    held_by = {device.process_index for known in spread for device in known.device_set}
    if spread and len(held_by) < jax.process_count():
        raise ValueError(
            "arrays must lie on devices of one process or of all, got "
            f"{len(held_by)} of {jax.process_count()} processes"
        )
    return Processes(bool(spread))


def _packed(error: Exception | None) -> bytes:
    """An error's type and the start of its message, blanks for none; of one length."""
    message = "" if error is None else f"{type(error).__name__}:{error}"
    return message.encode()[:_LENGTH].ljust(_LENGTH)


def _unpacked(message: bytes) -> Exception:
    """An error as another process raised it; of a type that is no built-in, a RuntimeError."""
    name, text = message.decode(errors="ignore").rstrip().split(":", 1)
    kind = getattr(builtins, name, None)
    if kind in (ValueError, TypeError, RuntimeError, ImportError, OSError, KeyError):
        return kind(text)
    return RuntimeError(f"{name} in another process: {text}")
