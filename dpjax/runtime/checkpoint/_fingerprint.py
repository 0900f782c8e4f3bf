"""Fingerprint of a run: digests of key, data, problem, solver, batches, program and versions."""

import hashlib
import hmac
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import jaxlib
import numpy as np

from dpjax.core._records import device_count, spans_processes
from dpjax.core._types import PyTree
from dpjax.runtime._loop import Job, words
from dpjax.runtime.checkpoint._digest import array_bytes, tree_digest, value_digest
from dpjax.runtime.devices._placement import Processes

_POINTER = re.compile(r'(custom_call @\S*callback\S*\(.*?backend_config = )"\d+"')
_CLEAR = ("jax", "jaxlib", "backend", "x64", "sensitive", "devices")

Fingerprint = dict[str, Any]
"""Digests and versions by name, as JSON holds them."""

Program = tuple[Any, Any]
"""A `jax.stages.Traced`, and the `jax.stages.Lowered` of it."""


def fingerprint(
    key: jax.Array, job: Job, programs: Sequence[Program], processes: Processes
) -> Fingerprint:
    """Digests of everything that decides the result, the same in every process.

    All but the versions are keyed with the run's own key, so that guesses of the data cannot be
    tried against the digests alone. Of arrays that several processes hold together, each digests
    what it holds, and the digests are digested in the order of the processes.

    Args:
      key: The run's key (*secret*).
      job: What runs: leaves and static fields, functions among them.
      programs: What was traced and lowered; it holds losses, optimizers and constants.
      processes: Those that hold the job's arrays.

    Returns:
      Names and digests, as JSON holds them.

    Raises:
      ValueError: If processes differ in the key, the program or versions.
    """
    secret = str(jax.random.key_impl(key)).encode() + array_bytes(np.asarray(words(key))).tobytes()

    def keyed(name: str, chunks: Iterable[Any] = ()) -> str:
        digest = hmac.new(secret, name.encode(), hashlib.sha256)
        for chunk in chunks:
            digest.update(chunk)
        return digest.hexdigest()

    trees = {"data": job.data, "problem": job.problem, "solver": job.solver, "batches": job.xs}
    own: Fingerprint = {
        "key": keyed("key"),
        **{name: keyed(name, [tree_digest(tree)]) for name, tree in trees.items()},
        "program": keyed("program", itertools.chain(*map(_program_chunks, programs))),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "backend": jax.default_backend(),
        "x64": bool(jax.config.read("jax_enable_x64")),
        "sensitive": job.sensitive,
    }
    if device_count(job) > 1:
        own["devices"] = _devices(job)
    shared = [k for k, tree in trees.items() if any(map(spans_processes, jax.tree.leaves(tree)))]
    processes.check_alike({k: str(v).encode() for k, v in own.items() if k not in shared})
    for name in shared:
        held = processes.gather(bytes.fromhex(own[name]))
        own[name] = hashlib.sha256(b"".join(held)).hexdigest()
    return own


def check_alike(processes: Processes, **parts: PyTree) -> None:
    """Raises ValueError, in all processes, unless each has the same trees but for shared arrays."""
    if processes.several:
        alone = {name: jax.tree.map(_unshared, tree) for name, tree in parts.items()}
        processes.check_alike({k: tree_digest(v) for k, v in alone.items()})


def digest_of(value: Fingerprint) -> bytes:
    """All of a fingerprint in 32 bytes."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def differences(there: Fingerprint, here: Fingerprint) -> list[str]:
    """What differs, in words; where the key does, no other digest says anything."""
    found = [
        f"{name} ({there.get(name, 'one')} there, {here.get(name, 'one')} here)"
        for name in _CLEAR
        if there.get(name) != here.get(name)
    ]
    if there.get("key") != here["key"]:
        return ["key", *found]
    keyed = [name for name in here if name not in _CLEAR and there.get(name) != here[name]]
    return keyed + found


def _unshared(leaf: Any) -> Any:
    return leaf.dtype.name if spans_processes(leaf) else leaf


def _devices(job: Job) -> str:
    """How many of how many processes, along which axes, and in which order."""
    if job.placement is None:
        return f"{device_count(job)}"
    mesh = job.placement.mesh
    axes = " x ".join(f"{name}={size}" for name, size in mesh.shape.items())
    order = [f"{device.process_index}:{device.id}" for device in mesh.devices.flat]
    number = len({device.process_index for device in mesh.devices.flat})
    digest = hashlib.sha256(" ".join(order).encode()).hexdigest()[:8]
    return f"{len(order)} of {number} processes as {axes} in order {digest}"


def _program_chunks(program: Program) -> Iterator[bytes]:
    """The lowered text, which names no file and no line, and the host functions it calls."""
    traced, lowered = program
    yield _POINTER.sub(r"\1", lowered.as_text()).encode()
    for callback in callbacks(traced.jaxpr.jaxpr):
        yield value_digest(callback, strict=False)


def callbacks(jaxpr: Any) -> Iterator[Any]:
    """The functions behind `jax.pure_callback` and its kin, in order of appearance."""
    for eqn in jaxpr.eqns:
        for name, value in eqn.params.items():
            if name == "callback":
                yield getattr(value, "callback_func", value)
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from callbacks(inner)
