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

    Args:
      path: The folder.
      key: The run's key (*secret*).
      job: What runs.
      outputs: Blank.

    Raises:
      ValueError: If the folder belongs to another job, or the data lie on several devices.
    """
    _check_one_device(job)
    shapes = job.shapes()
    first = start.trace(job.solver, job.problem, job.data, job.init_key)
    steps = advance.trace(*job.arguments(shapes, outputs, 0, job.steps))
    lowered = steps.lower()
    run = fingerprint(key, job, [(first, first.lower()), (steps, lowered)])
    with open_folder(path, run) as folder:
        like = jax.eval_shape(words, (shapes, outputs))
        folder.claim(like)
        found = folder.restore(like)
        compiled = lowered.compile()

        def program(state: Any, outputs: PyTree, first: int, last: int) -> tuple[Any, PyTree]:
            return compiled(*job.arguments(state, outputs, first, last)[:-1])

        def save(done: int, state: Any, outputs: PyTree) -> None:
            folder.save(done, words((state, outputs)))

        if found is None:
            yield Resumed(program, 0, None, outputs, save)
        else:
            done, (plain, outputs) = found
            outputs = jax.tree.map(lambda a: jnp.array(a, copy=True), outputs)  # to be donated
            yield Resumed(program, done, typed(plain, shapes), outputs, save)


def _check_one_device(job: Job) -> None:
    arrays = [a for a in jax.tree.leaves(job) if isinstance(a, jax.Array)]
    spread = max(len(array.sharding.device_set) for array in arrays)
    if spread > 1:
        raise ValueError(
            f"checkpoint needs all arrays on one device each, got one spread over {spread}: what "
            "is saved does not say how to spread it again"
        )
