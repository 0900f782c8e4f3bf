"""Checks that transformations and aggregators share."""

from typing import Any

import jax

from dpjax.testing import _trees as trees


def assert_one_trace(traces: list[None], name: str) -> None:
    """Raises unless a function was traced once."""
    if len(traces) != 1:
        raise AssertionError(f"{name}: traced {len(traces)} times for data of one shape, want 1")


def assert_vmap_equals_loop(run: Any, name: str) -> None:
    """Raises unless `run` of the data of a key gives under vmap what a loop gives."""
    data = jax.random.key_data(jax.random.split(jax.random.key(7), 3))
    one = jax.jit(run, compiler_options=trees.QUICK)
    every = jax.jit(jax.vmap(run), compiler_options=trees.QUICK)
    looped = trees.stack(*[one(d) for d in data])
    trees.assert_close(every(data), looped, f"{name}: vmap over keys", 1e-5)


def assert_needs_key(call: Any, name: str) -> None:
    """Raises unless a call without a key is a TypeError."""
    try:
        call()
    except TypeError:
        return
    raise AssertionError(f"{name}: update without key= must raise TypeError, and did not")
