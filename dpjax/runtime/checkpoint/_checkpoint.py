"""A folder of checkpoints: whole ones or none, of one run only, one process at a time.

Of a run of several processes the first alone opens it.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core._records import device_count, whole
from dpjax.core._types import PyTree
from dpjax.privacy.ledger._file import replace_json
from dpjax.runtime._loop import Job, Program, advance, start, typed, words
from dpjax.runtime.checkpoint._digest import array_bytes
from dpjax.runtime.checkpoint._fingerprint import Fingerprint, differences, digest_of, fingerprint
from dpjax.runtime.devices._placement import Processes, processes_of

_MANIFEST = "run.json"
_PREFIX = "step_"
_DIGITS = 12
_WHOLE = re.compile(rf"{_PREFIX}([0-9]{{{_DIGITS}}})")
_UNFINISHED = re.compile(rf"{_PREFIX}[0-9]{{{_DIGITS}}}\.orbax-checkpoint-tmp.*")
_KEEP = 2
_HEAD = 32  # bytes of a SHA-256

Restored = tuple[int, PyTree] | None
"""Steps done, and the tree."""
Resumed = tuple[Program, int, PyTree, PyTree, Callable[[int, Any, PyTree], None]]
"""Where a job with checkpoints stands: what runs its steps; how many are done, and the state after
them (none at 0), typed keys and all; the outputs so far, and room for the others; and the hook that
saves state and outputs."""


class CheckpointFolder:
    """Saves and restores trees of plain arrays, each under the number of steps done.

    A save is whole or not there: it is written beside its place and moved into it when finished.
    Since bits may flip later, a SHA-256 over all leaves, the step and the fingerprint is saved
    with them and compared on the way back. All leaves are packed into one array: of several, one
    that cannot be read leaves the reads of the others behind, to fail when nobody looks.

    Args:
      path: The folder.
      run: The fingerprint of the run that it belongs to.
      orbax: The module `orbax.checkpoint`.
    """

    def __init__(self, path: Path, run: Fingerprint, orbax: types.ModuleType) -> None:
        self._path = path
        self._run = run
        self._orbax = orbax

    def save(self, step: int, tree: PyTree) -> None:
        """Saves the tree, waits until it is on disk, and drops all but the last two."""
        parts = [array_bytes(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)]
        packed = np.concatenate([np.zeros(_HEAD, np.uint8), *parts])
        packed[:_HEAD] = self._check(step, packed)
        with self._checkpointer() as checkpointer:
            arguments = self._orbax.args.PyTreeSave({"packed": packed})
            checkpointer.save(self._step_path(step), args=arguments)
        for old in self._steps()[:-_KEEP]:
            shutil.rmtree(self._step_path(old), ignore_errors=True)

    def restore(self, like: PyTree) -> Restored:
        """The last whole checkpoint, in the structure and shapes of `like`; None without one.

        What cannot be read is set aside, and a warning tells of it.
        """
        found, broken = self._find(like)
        names = [path.name for path in self._path.glob(f"{_PREFIX}*")]
        unfinished = [name for name in names if _UNFINISHED.fullmatch(name)]
        if broken or unfinished:
            names = [*(self._step_path(step).name for step in broken), *unfinished]
            back = f"step {found[0]}" if found else "the first step"
            warnings.warn(
                f"checkpoint {self._path}: {', '.join(sorted(names))} cannot be read (corrupt, or "
                f"not written to the end); going on from {back}",
                RuntimeWarning,
                stacklevel=2,
            )
        for name in unfinished:
            shutil.rmtree(self._path / name, ignore_errors=True)
        for step in broken:
            aside = self._path / f"broken_{self._step_path(step).name}"
            shutil.rmtree(aside, ignore_errors=True)
            self._step_path(step).rename(aside)
        return found

    def claim(self, like: PyTree) -> None:
        """Makes the folder the run's own, before the first step; refuses that of another run."""
        manifest = self._path / _MANIFEST
        if manifest.exists() or self._steps():
            there = _read_manifest(manifest)
            if there == self._run:
                return
            if there is not None:
                raise ValueError(
                    f"checkpoint {self._path} belongs to another run: it differs in "
                    f"{', '.join(differences(there, self._run))}. Going on is refused: the same "
                    "noise with other data or another method would give the data away. Repeat the "
                    "call exactly, or use another folder and another key"
                )
            if self._find(like)[0] is None:
                raise ValueError(
                    f"checkpoint {self._path}: {_MANIFEST} cannot be read, and no whole checkpoint "
                    "says that the folder belongs to this run: going on could give the data away. "
                    "Use another folder and another key"
                )
            warnings.warn(
                f"checkpoint {self._path}: {_MANIFEST} cannot be read and is written again, as a "
                "whole checkpoint shows that it is this run's",
                RuntimeWarning,
                stacklevel=2,
            )
        check = digest_of(self._run).hex()
        replace_json(str(manifest), {"run": self._run, "check": check})

    def _find(self, like: PyTree) -> tuple[Restored, list[int]]:
        """The last whole checkpoint, and the steps of later ones that are not whole."""
        broken: list[int] = []
        for step in reversed(self._steps()):
            try:
                return (step, self._read(step, like)), broken
            except Exception:  # whatever a damaged file makes its reader raise
                broken.append(step)
        return None, broken

    def _read(self, step: int, like: PyTree) -> PyTree:
        shapes, treedef = jax.tree.flatten(like)
        as_numpy = self._orbax.RestoreArgs(restore_type=np.ndarray)
        with self._checkpointer() as checkpointer:
            arguments = self._orbax.args.PyTreeRestore(
                item={"packed": 0}, restore_args={"packed": as_numpy}
            )
            packed = checkpointer.restore(self._step_path(step), args=arguments)["packed"]
        ends = np.cumsum([_HEAD, *(shape.size * shape.dtype.itemsize for shape in shapes)])
        if packed.shape != (ends[-1],) or packed.dtype != np.uint8:
            raise ValueError(f"{packed.size} bytes")
        if packed[:_HEAD].tobytes() != self._check(step, packed).tobytes():
            raise ValueError("checksum")
        _, *parts, _ = np.split(packed, ends)
        leaves = [  # copied, so that each begins where its type may
            part.copy().view(shape.dtype).reshape(shape.shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]
        return jax.tree.unflatten(treedef, leaves)

    def _check(self, step: int, packed: np.ndarray) -> np.ndarray:
        digest = hashlib.sha256(digest_of(self._run))
        digest.update(str(step).encode())
        digest.update(packed[_HEAD:].data)
        return np.frombuffer(digest.digest(), np.uint8)

    def _steps(self) -> list[int]:
        found = (_WHOLE.fullmatch(path.name) for path in self._path.glob(f"{_PREFIX}*"))
        return sorted(int(match[1]) for match in found if match)

    def _step_path(self, step: int) -> Path:
        return self._path / f"{_PREFIX}{step:0{_DIGITS}d}"

    def _checkpointer(self) -> Any:
        """One that waits for no other process."""
        here = jax.process_index()
        alone = self._orbax.options.MultiprocessingOptions(
            primary_host=here, active_processes={here}, barrier_sync_key_prefix="dpjax"
        )
        handler = self._orbax.PyTreeCheckpointHandler(multiprocessing_options=alone)
        return self._orbax.Checkpointer(handler, multiprocessing_options=alone)


@contextlib.contextmanager
def open_folder(path: str | os.PathLike[str], run: Fingerprint) -> Iterator[CheckpointFolder]:
    """The folder at `path`, made if need be, with no other process in it.

    Args:
      path: Where.
      run: The fingerprint of the run.

    Raises:
      ImportError: If orbax is not installed.
      RuntimeError: If another process has it open.
    """
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError(
            "checkpoint needs orbax-checkpoint: pip install 'dpjax[checkpoint]'"
        ) from error
    folder = Path(path).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise RuntimeError(
            f"checkpoint {folder} is in use by another run: wait for it, or use another folder"
        ) from None
    try:
        yield CheckpointFolder(folder, run, orbax.checkpoint)
    finally:
        lock.release()


def _read_manifest(path: Path) -> Fingerprint | None:
    """The fingerprint in it, or None if it is damaged."""
    try:
        content = json.loads(path.read_text())
        run = content["run"]
        return run if content["check"] == digest_of(run).hex() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def resume(
    path: str | os.PathLike[str], key: jax.Array, job: Job, outputs: PyTree
) -> Iterator[Resumed]:
    """Opens the folder for this job alone, and takes up what was done.

    The program is lowered once: its text is part of the fingerprint, and it is what runs.

    Of several processes the first alone reads and writes, and sends the others what it read: all
    stand at one step, or all raise what one of them raised.

    Args:
      path: The folder.
      key: The run's key (*secret*).
      job: What runs.
      outputs: Blank.

    Raises:
      ValueError: If the folder belongs to another job, or one on other devices.
    """
    processes = processes_of(job)
    shapes = start.eval_shape(job)
    first = start.trace(job)
    first_lowered = first.lower()
    placed = shapes
    if device_count(job) > 1:
        # only to ask where its results lie
        placed = jax.tree.map(_placed, shapes, first_lowered.compile().output_shardings)
    steps = advance.trace(job, placed, outputs, np.int32(0), np.int32(job.steps))
    lowered = steps.lower()
    run = fingerprint(key, job, [(first, first_lowered), (steps, lowered)], processes)
    like = jax.eval_shape(words, (shapes, outputs))
    with contextlib.ExitStack() as stack:
        folder: Any = processes.on_first(lambda: stack.enter_context(open_folder(path, run)))
        processes.on_first(lambda: folder.claim(like))
        found = _received(processes.on_first(lambda: folder.restore(like)), like, processes)
        compiled = processes.agree(lowered.compile)
        takes = compiled.input_shardings[0][1:3]

        def program(
            state: PyTree, outputs: PyTree, first: np.int32, last: np.int32
        ) -> tuple[Any, PyTree]:
            return compiled(job, *jax.tree.map(_moved, (state, outputs), takes), first, last)

        def save(done: int, state: PyTree, outputs: PyTree) -> None:
            tree = jax.tree.map(gathered, words((state, outputs)))
            processes.on_first(lambda: folder.save(done, tree))

        def gathered(leaf: jax.Array) -> Any:
            everything = whole(leaf)
            return everything if processes.is_first else None

        if found is None:
            yield program, 0, None, outputs, save
        else:
            done, plain = found
            state, outputs = jax.tree.map(_put, plain, takes)
            yield program, done, typed(state, shapes), outputs, save


def _received(found: Restored, like: PyTree, processes: Processes) -> Restored:
    """What the first process read, in all of them."""
    done = processes.send(np.array(found[0] if found else -1))
    if done < 0:
        return None
    tree = found[1] if found else jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), like)
    return int(done), jax.tree.map(processes.send, tree)


def _placed(shape: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.ShapeDtypeStruct:
    """A shape that says how it is spread; on one device it is for the program to choose."""
    if len(sharding.device_set) == 1:
        return shape
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def _moved(leaf: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """A leaf where the program takes it: a chunk may leave it elsewhere than the next wants it."""
    if sharding is None or len(leaf.sharding.device_set) == 1:
        return leaf
    return jax.device_put(leaf, sharding)


def _put(leaf: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """What was read, copied, since it may be donated, and spread as the program takes it."""
    if sharding is None or len(sharding.device_set) == 1:
        return jnp.array(leaf, copy=True)
    return jnp.copy(jax.make_array_from_callback(leaf.shape, sharding, lambda part: leaf[part]))
