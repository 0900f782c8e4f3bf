"""Cross-process broadcast, gather and checks."""

import builtins
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax.core._addressable import shardings_of
from dpjax.core._types import PyTree

T = TypeVar("T")

_LENGTH = 8


@dataclass(frozen=True)
class Processes:
    """Those whose devices hold the arrays of a run; what one does here, all do.

    Guarantee: none; what is said, digests, messages of errors and states of runs, crosses the
    network as the arrays of the run do, unencrypted.

    Attributes:
      devices: One device of each process, in order of the processes; empty for this one alone.
    """

    devices: tuple[jax.Device, ...] = ()

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress for all."""
        return not self.devices or self.devices[0].process_index == jax.process_index()

    def gather(self, own: bytes) -> list[bytes]:
        """What each process gives, of one length."""
        if not self.devices:
            return [own]
        rows = self._everywhere(_rows, np.frombuffer(own, np.uint8))
        return [row.tobytes() for row in rows]

    def send(self, array: np.ndarray) -> np.ndarray:
        """The first process's array; the others give one of the same shape and type."""
        if not self.devices or not array.size:
            return array
        own = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        total = self._everywhere(_add_rows, own if self.is_first else np.zeros_like(own))
        return total.view(array.dtype).reshape(array.shape)

    def agree(self, call: Callable[[], T]) -> T:
        """The result of `call()` here; where it raises in any process, all of them raise.

        Else the others would wait for ever for one that went another way.
        """
        if not self.devices:
            return call()
        error, result = None, None
        try:
            result = call()
        except Exception as raised:
            error = raised
        message = b"" if error is None else _packed(error)
        lengths = [int.from_bytes(own) for own in self.gather(len(message).to_bytes(_LENGTH))]
        if any(lengths):
            messages = self.gather(message.ljust(max(lengths), b" "))
            if error is not None:
                raise error
            raise _unpacked(next(m for m, n in zip(messages, lengths, strict=True) if n))
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

    def _everywhere(self, of: Callable[[jax.Array], jax.Array], own: np.ndarray) -> np.ndarray:
        """`of(rows)` of the bytes of all processes, `[P, size]`."""
        mesh = Mesh(np.array(self.devices), ("process",))
        (here,) = (d for d in self.devices if d.process_index == jax.process_index())
        rows = jax.make_array_from_single_device_arrays(
            (len(self.devices), own.size),
            NamedSharding(mesh, PartitionSpec("process")),
            [jax.device_put(own[None], here)],
        )
        everywhere = NamedSharding(mesh, PartitionSpec())
        return np.asarray(jax.jit(of, out_shardings=everywhere)(rows).addressable_data(0))


def processes_of(tree: PyTree) -> Processes:
    """Those that hold the arrays of a tree together; none where this one has all."""
    found: dict[int, jax.Device] = {}
    for sharding in shardings_of(tree):
        if not sharding.is_fully_addressable:
            for device in sharding.device_set:
                index = device.process_index
                found[index] = min(found.get(index, device), device, key=lambda d: d.id)
    return Processes(tuple(found[index] for index in sorted(found)))


def _rows(rows: jax.Array) -> jax.Array:
    return rows


def _add_rows(rows: jax.Array) -> jax.Array:
    return jnp.sum(rows, 0, dtype=rows.dtype)


def _packed(error: Exception) -> bytes:
    return json.dumps([type(error).__name__, str(error)]).encode()


def _unpacked(message: bytes) -> Exception:
    """An error as another process raised it; of a type that is no built-in, a RuntimeError."""
    name, text = json.loads(message)
    kind = getattr(builtins, name, None)
    if kind in (ValueError, TypeError, RuntimeError, ImportError, OSError, KeyError):
        return kind(text)
    return RuntimeError(f"{name} in another process: {text}")
