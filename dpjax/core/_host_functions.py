"""The Python functions that a program calls on the host, as bytes that tell them apart."""

import functools
import re
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PLAIN = (
    *(bool, int, float, complex, str, bytes, range, slice),
    *(np.generic, np.dtype, type(None), type(...)),
)
_ATTRIBUTES_LEFT_OUT = ("__module__", "__doc__", "__annotations__", "__name__")


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

    That is: cells, defaults, arguments of a `partial`, the object of a method and attributes, and
    the elements of containers. Nothing of an address, a file or a line is in it, so it is the same
    in every process.
    """
    for chunk in _chunks(function, {}):
        yield b"%d:" % len(chunk)  # so that 1 and 23 are not 12 and 3
        yield chunk


def _chunks(value: Any, seen: dict[int, tuple[int, Any]]) -> Iterator[bytes]:
    if isinstance(value, _PLAIN):
        yield f"{type(value).__name__} {value!r}".encode()
        return
    if id(value) in seen:
        yield f"again {seen[id(value)][0]}".encode()
        return
    seen[id(value)] = len(seen), value  # held, so that no other takes its place in memory
    yield type(value).__qualname__.encode()
    for part in _parts(value):
        if isinstance(part, _Bytes):
            yield part
        else:
            yield from _chunks(part, seen)


class _Bytes(bytes):
    """What goes in as it is."""


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, np.ndarray | jax.Array):
        yield from _array_parts(value)
    elif isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, tuple | list):
        yield from value
    elif isinstance(value, set | frozenset):  # its order follows the process's hash seed
        yield _Bytes(_ADDRESS.sub("", repr(sorted(map(repr, value)))).encode())
    elif isinstance(value, types.CodeType):
        yield _Bytes(value.co_code)
        yield from (value.co_names, value.co_consts)
    elif isinstance(value, types.ModuleType | type):
        yield getattr(value, "__qualname__", value.__name__)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, sorted(value.keywords.items()))
    else:
        yield from _object_parts(value)


def _object_parts(value: Any) -> Iterator[Any]:
    """A function's own, or those of any other object."""
    yield getattr(value, "__qualname__", None)
    yield getattr(value, "__code__", None)
    cells = getattr(value, "__closure__", None) or ()
    yield [cell.cell_contents for cell in cells if cell != types.CellType()]
    yield getattr(value, "__defaults__", None)
    yield getattr(value, "__kwdefaults__", None)
    yield getattr(value, "__self__", None)
    attributes = getattr(value, "__dict__", {})
    yield sorted(item for item in attributes.items() if item[0] not in _ATTRIBUTES_LEFT_OUT)
    if callable(value) and isinstance(type(value).__call__, types.FunctionType):
        yield type(value).__call__


def _array_parts(array: Any) -> Iterator[Any]:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        yield str(jax.random.key_impl(array))
        array = jax.random.key_data(array)
    array = np.asarray(array)
    yield f"{array.dtype}{array.shape}"
    yield from array.ravel().tolist() if array.dtype == object else (_Bytes(array.tobytes()),)
