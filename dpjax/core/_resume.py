"""Going on from a checkpoint: which job it is of, and what is saved of it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.core._checkpoint import open_folder
from dpjax.core._fingerprint import fingerprint
from dpjax.core._loop import Job, Program, advance, start, typed, words
from dpjax.core._types import PyTree


class Resumed(NamedTuple):
    """Where a job with checkpoints stands.

    Attributes:
      program: What runs its steps.
      done: Steps done; at 0 there is no state yet.
      state: The state after them, typed keys and all.
      outputs: Those of all steps so far, and room for the others.
      save: The hook that saves state and outputs.
    """

    program: Program
    done: int
    state: Any
    outputs: PyTree
    save: Callable[[int, Any, PyTree], None]


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
    shapes = job.shapes()
    first = start.trace(*job.start_arguments())
    first_lowered = first.lower()
    placed = shapes
    if job.placement is not None:
        placed = _placed(shapes, first_lowered.compile().output_shardings)
    steps = advance.trace(*job.arguments(placed, outputs, 0, job.steps))
    lowered = steps.lower()
    run = fingerprint(key, job, [(first, first_lowered), (steps, lowered)], processes)
    with contextlib.ExitStack() as stack:
        folder = processes.on_first(lambda: stack.enter_context(open_folder(path, run)))
        like = jax.eval_shape(words, (shapes, outputs))
        processes.on_first(lambda: folder.claim(like))  # type: ignore[union-attr]
        found = _received(processes.on_first(lambda: folder.restore(like)), like, processes)  # type: ignore[union-attr]
        compiled = processes.agree(lowered.compile)
        takes = None if job.placement is None else _of_state_and_outputs(compiled)

        def program(state: Any, outputs: PyTree, first: int, last: int) -> tuple[Any, PyTree]:
            if takes is not None:
                state, outputs = jax.tree.map(_move, (state, outputs), takes)
            return compiled(*job.arguments(state, outputs, first, last)[:-2])

        def save(done: int, state: Any, outputs: PyTree) -> None:
            tree = words((state, outputs))
            if job.placement is not None:
                tree = jax.tree.map(functools.partial(whole, mesh=job.placement.mesh), tree)
            processes.on_first(lambda: folder.save(done, tree))  # type: ignore[union-attr]

        if found is None:
            yield Resumed(program, 0, None, outputs, save)
        else:
            done, (plain, outputs) = found
            ...
            outputs = jax.tree.map(lambda a: jnp.array(a, copy=True), outputs)  # to be donated
            yield Resumed(program, done, typed(plain, shapes), outputs, save)
