"""Checks that transformations, aggregators, samplers and solvers share."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from dpjax.core import PyTree
from dpjax.testing import _trees as trees
from dpjax.testing._draws import check_draws_differ, keys_drawn_by_runs
from dpjax.testing._neighbours import Neighbour


class Program:
    """A jitted function that counts how often it is traced."""

    def __init__(self, function: Callable[..., PyTree]) -> None:
        self.traces = 0

        def counted(*args: PyTree) -> PyTree:
            self.traces += 1
            return function(*args)

        # as a part of other programs, which take over its trace
        self.part = jax.jit(counted)
        self._call = jax.jit(self.part, compiler_options=trees.QUICK)

    def __call__(self, *args: PyTree) -> PyTree:
        """What the function gives."""
        return self._call(*args)

    def assert_one_trace(self, name: str) -> None:
        """Raises unless the function was traced once."""
        if self.traces != 1:
            raise AssertionError(f"{name}: traced {self.traces} times for one shape, want 1")


def key_data(*seeds: int) -> list[jax.Array]:
    """The words of a key for each seed: a loop or a vmap over them makes its own keys."""
    return [jax.random.key_data(jax.random.key(seed)) for seed in seeds]


def assert_vmap_equals_loop(
    run: Callable[..., PyTree],
    arguments: Sequence[tuple[PyTree, ...]],
    looped: Sequence[PyTree],
    name: str,
    tolerance: float = 1e-5,
) -> None:
    """Raises unless `run` under vmap gives what it gave for each of the arguments."""
    stacked = trees.fresh(trees.stack(*arguments))
    every = jax.jit(jax.vmap(run), compiler_options=trees.QUICK)(*stacked)
    got, want = (trees.cast(tree, np.float32) for tree in (every, trees.stack(*looped)))
    trees.assert_close(got, want, f"{name}: vmap", tolerance)


def assert_draws_differ(run: Callable[[jax.Array], PyTree], name: str, seen: bool = True) -> None:
    """Raises unless runs of two keys draw, each with keys of its own; `run` takes a key's data.

    Without `seen`, draws may be of words that are not looked for.
    """
    keys = keys_drawn_by_runs(run, key_data(4, 5))
    if seen and not len(keys[0]):
        raise AssertionError(f"{name}: no random draw was seen in a run")
    check_draws_differ(keys, name)


def assert_needs_key(call: Callable[[], PyTree], what: str) -> None:
    """Raises unless a call without a key is a TypeError."""
    try:
        call()
    except TypeError:
        return
    raise AssertionError(f"{what} without key= must raise TypeError, and did not")


def assert_within(
    worst: Neighbour, bound: float, what: str, norm: str, tolerance: float = 1e-4
) -> None:
    """Raises if the worst neighbour found moves a statistic further than the bound."""
    if not worst.change <= bound * (1 + tolerance):
        raise AssertionError(
            f"{what} must change by at most {bound:.6g} in {norm}, but to {worst.kind} record "
            f"{worst.removed} changes it by {worst.change:.6g}: {worst.record}"
        )
