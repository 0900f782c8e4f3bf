"""The Python functions that a program calls on the host, as bytes that tell them apart."""

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


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


def function_chunks(function: Any) -> Iterator[bytes]:
    """Name and bytecode of a function, and of what it closes over, but not of its globals.

    Nothing of an address, a file or a line is in it, so it is the same in every process.
    """
    return _chunks(function, set())


def _chunks(value: Any, seen: set[int]) -> Iterator[bytes]:
    if isinstance(value, np.ndarray | jax.Array):
        yield np.asarray(value).tobytes()
    elif isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value).encode()
    elif not callable(value):
        yield type(value).__qualname__.encode()
    elif id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, functools.partial):
            named = [part for _, part in sorted(value.keywords.items())]
            parts = [value.func, *value.args, *named]
        else:
            value = inspect.unwrap(value)
            yield getattr(value, "__qualname__", type(value).__qualname__).encode()
            code = getattr(value, "__code__", None)
            if code is not None:
                yield from _code_chunks(code)
            cells = getattr(value, "__closure__", None) or ()
            parts = [cell.cell_contents for cell in cells]
            parts += getattr(value, "__defaults__", None) or ()
        for part in parts:
            yield from _chunks(part, seen)


def _code_chunks(code: types.CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _code_chunks(const)
        elif isinstance(const, frozenset):  # its order follows the process's hash seed
            yield repr(sorted(map(repr, const))).encode()
        else:
            yield repr(const).encode()
