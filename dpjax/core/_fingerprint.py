"""What a run is, as digests: its key, data, problem, solver, batches, program and versions."""

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

from dpjax.core._host_functions import callbacks, function_chunks
from dpjax.core._loop import Job, words
from dpjax.core._types import PyTree

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_POINTER = re.compile(r'(custom_call @\S*callback\S*\(.*?backend_config = )"\d+"')
_CLEAR = ("jax", "jaxlib", "backend", "x64", "sensitive")

Fingerprint = dict[str, Any]
"""Digests and versions by name, as JSON holds them."""

Program = tuple[Any, Any]
"""A `jax.stages.Traced`, and the `jax.stages.Lowered` of it."""


def fingerprint(key: jax.Array, job: Job, programs: Sequence[Program]) -> Fingerprint:
    """Digests of everything that decides the result, the same in every process.

    All but the versions are keyed with the run's own key, so that guesses of the data cannot be
    tried against the digests alone.

    Args:
      key: The run's key (*secret*).
      job: What runs: leaves and, by its printed form, what is static.
      programs: What was traced and lowered; it holds losses, optimizers and constants.

    Returns:
      Names and digests, as JSON holds them.
    """
    secret = str(jax.random.key_impl(key)).encode() + _bytes(words(key)).tobytes()

    def keyed(name: str, chunks: Iterable[Any] = ()) -> str:
        digest = hmac.new(secret, name.encode(), hashlib.sha256)
        for chunk in chunks:
            digest.update(chunk)
        return digest.hexdigest()

    return {
        "key": keyed("key"),
        "data": keyed("data", _tree_chunks(job.data)),
        "problem": keyed("problem", _tree_chunks(job.problem)),
        "solver": keyed("solver", _tree_chunks(job.solver)),
        "batches": keyed("batches", _tree_chunks(job.xs)),
        "program": keyed("program", itertools.chain(*map(_program_chunks, programs))),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "backend": jax.default_backend(),
        "x64": bool(jax.config.read("jax_enable_x64")),
        "sensitive": job.sensitive,
    }


def digest_of(value: Fingerprint) -> bytes:
    """All of a fingerprint in 32 bytes."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()


def differences(there: Fingerprint, here: Fingerprint) -> list[str]:
    """What differs, in words; where the key does, no other digest says anything."""
    found = [
        f"{name} ({there.get(name)} there, {here[name]} here)"
        for name in _CLEAR
        if there.get(name) != here[name]
    ]
    if there.get("key") != here["key"]:
        return ["key", *found]
    keyed = [name for name in here if name not in _CLEAR and there.get(name) != here[name]]
    return keyed + found


def array_bytes(array: Any) -> Any:
    """The bytes of an array, `[size]` uint8, without a copy where it lies in order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _bytes(array: Any) -> np.ndarray:
    return array_bytes(np.asarray(array))


def _tree_chunks(tree: PyTree) -> Iterator[Any]:
    plain = words(tree)
    yield _ADDRESS.sub("", str(jax.tree.structure(tree))).encode()
    for leaf in jax.tree.leaves(plain):
        array = np.asarray(leaf)
        yield f"{array.dtype}{array.shape}".encode()
        yield array_bytes(array)


def _program_chunks(program: Program) -> Iterator[bytes]:
    """The lowered text, which names no file and no line, and the host functions it calls."""
    traced, lowered = program
    yield _POINTER.sub(r"\1", lowered.as_text()).encode()
    for callback in callbacks(traced.jaxpr.jaxpr):
        yield from function_chunks(callback)
