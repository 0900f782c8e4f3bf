"""Going on from a checkpoint: which job it is of, and what is saved of it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core._addressable import device_count, whole
from dpjax.core._types import PyTree
from dpjax.runtime._loop import Job, Program, advance, start, typed, words
from dpjax.runtime.checkpoint._checkpoint import Restored, open_folder
from dpjax.runtime.checkpoint._fingerprint import fingerprint
from dpjax.runtime.devices._processes import Processes, processes_of

Resumed = tuple[Program, int, PyTree, PyTree, Callable[[int, Any, PyTree], None]]
"""Where a job with checkpoints stands: what runs its steps; how many are done, and the state after
them (none at 0), typed keys and all; the outputs so far, and room for the others; and the hook that
saves state and outputs."""


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
