"""Runs with checkpoints that are interrupted on purpose, and what is compared of them."""

import warnings

import jax
import numpy as np

import dpjax
import dpjax.testing as dpt
import tests.entries  # noqa: F401
from dpjax.runtime.checkpoint._checkpoint import CheckpointFolder

ENTRIES = {entry.name: entry for entry in dpt.entries("solver")}


class Interrupted(Exception):
    """Stands for the death of the process."""


def case_of(name):
    """The solver, problem and data of a registry entry."""
    case = ENTRIES[name].make()
    return case.build(case.values[0]), case.problem, case.data


def solve(job, seed=3, **options):
    """Everything that a run returns but its guarantee."""
    options = {"key": jax.random.key(seed), "progress": False, "sensitive": True} | options
    solution = dpjax.solve(*job, **options)
    return solution._replace(guarantee=None)


def numbers(tree):
    """The leaves as NumPy arrays, keys as their words."""
    return [
        np.asarray(
            jax.random.key_data(a) if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key) else a
        )
        for a in jax.tree.leaves(tree)
    ]


def identical(here, there):
    """Whether two trees agree in structure and to the bit."""
    if jax.tree.structure(here) != jax.tree.structure(there):
        return False
    pairs = zip(numbers(here), numbers(there), strict=True)
    return all(
        a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs
    )


def interrupt(monkeypatch, steps, after=True):
    """Makes the saves of these steps raise, once each: when they are done, or instead."""
    left, save = set(steps), CheckpointFolder.save

    def failing(self, step, tree):
        if step in left and not after:
            left.remove(step)
            raise Interrupted
        save(self, step, tree)
        if step in left:
            left.remove(step)
            raise Interrupted

    monkeypatch.setattr(CheckpointFolder, "save", failing)
    return left


def until_done(job, path, everies=(1,), **options):
    """Calls `solve` again and again; the result, and how often it was interrupted."""
    attempts = 0
    while True:
        try:
            every = everies[attempts % len(everies)]
            return solve(job, checkpoint=path, every=every, **options), attempts
        except Interrupted:
            attempts += 1


def whole_steps(path):
    """The steps that finished checkpoints in a folder were taken after."""
    names = [entry.name.removeprefix("step_") for entry in path.glob("step_*")]
    return sorted(int(name) for name in names if name.isdecimal())


def caught(call):
    """The result of a call, and its warnings' messages."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = call()
    return result, [str(each.message) for each in seen]
