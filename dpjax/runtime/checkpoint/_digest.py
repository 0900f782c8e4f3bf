"""One digest of values, to tell runs and their noise apart."""

import copyreg
import dataclasses
import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree
from dpjax.core._records import own_parts, spans_processes

# a function of these is known by its name: no run changes their code but with their version
_LIBRARIES = ("builtins", "jax", "jaxlib", "numpy")
_ATTRIBUTES_LEFT_OUT = ("__module__", "__doc__", "__annotations__", "__name__")
_DATA = (int, float, complex, str, bytes, tuple, list, dict, np.generic, np.ndarray, jax.Array)


def value_digest(value: object, *, strict: bool) -> bytes:
    """The SHA-256 of a value and of all that it holds: other values have other digests.

    Types, dtypes, shapes and bytes of arrays; items of containers, in order; fields of dataclasses,
    leaves and static fields alike; of other objects what `pickle` would store of them. A function
    is its bytecode, defaults, attributes and what it closes over; one of JAX or NumPy, its name.
    Nothing of an address, a file, a line or how a value prints is in it, so it is the same in every
    process.

    Args:
      value: Whatever; of an array of several processes, what lies in this one counts.
      strict: Whether a value that holds what cannot be read (a lock, a generator, an open file) is
        refused, and numbers, text, arrays and containers of these among the globals that a function
        reads count too. Otherwise the former counts by its type, and globals do not count.

    Returns:
      32 bytes.

    Raises:
      TypeError: With `strict`, of what cannot be read.
    """
    return _Digests(strict).of(value)


def tree_digest(tree: PyTree) -> bytes:
    """The digest of a pytree by its leaves and the nodes of its structure; not strict.

    So dicts are equal in any order, and arrays of NumPy and of JAX alike.
    """
    leaves, treedef = jax.tree.flatten(tree)
    arrays = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in leaves]
    return value_digest((_nodes(treedef), arrays), strict=False)


def array_bytes(array: ArrayLike) -> np.ndarray:
    """The bytes of an array, `[size]` uint8, without a copy where it lies in order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _nodes(treedef: jax.tree_util.PyTreeDef) -> Any:
    return treedef.node_data(), [_nodes(child) for child in treedef.children()]


class _Bytes(bytes):
    """What goes in as it is."""


class _Digests:
    """Digests of values, each object's computed once."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        # with the objects, so that no other takes the place of one in memory
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._depth = 0

    def of(self, value: object) -> bytes:
        if isinstance(value, _Bytes):
            return hashlib.sha256(value).digest()
        if id(value) not in self._known:
            # what a value that holds itself finds
            above = hashlib.sha256(b"the one %d above" % self._depth).digest()
            self._known[id(value)] = value, above
            self._depth += 1
            parts = b"".join(map(self.of, self._parts(value)))
            self._depth -= 1
            self._known[id(value)] = value, hashlib.sha256(parts).digest()
        return self._known[id(value)][1]

    def _parts(self, value: object) -> Iterator[Any]:
        if isinstance(value, np.generic | np.ndarray | jax.Array):
            yield from self._array_parts(value)
            return
        yield _name(type(value))
        if value is None or value is ... or value is NotImplemented:
            return
        if isinstance(value, str):
            yield _Bytes(str.encode(value, errors="surrogatepass"))
        elif isinstance(value, bytes | bytearray | memoryview):
            yield _Bytes(value)
        elif isinstance(value, int | float):
            yield _Bytes((hex(value) if isinstance(value, int) else float.__repr__(value)).encode())
        elif isinstance(value, Mapping):
            yield from value.items()
        elif isinstance(value, tuple | list):
            yield from value
        elif isinstance(value, set | frozenset):  # its order follows the process's hash seed
            yield from map(_Bytes, sorted(map(self.of, value)))
        elif isinstance(value, jax.Device):
            yield _Bytes(str(value).encode())
        elif isinstance(value, types.ModuleType | type) or _of_library(value):
            yield _name(value)
        elif isinstance(value, types.CodeType):
            yield from (value.co_code, value.co_exceptiontable, value.co_names, value.co_consts)
            yield (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
            yield value.co_flags
        elif isinstance(value, types.MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, types.FunctionType):
            yield from (value.__qualname__, value.__code__)
            cells = value.__closure__ or ()
            yield [cell.cell_contents for cell in cells if cell != types.CellType()]
            yield from (value.__defaults__, value.__kwdefaults__)
            yield _sorted(vars(value), _ATTRIBUTES_LEFT_OUT)
            if self._strict:
                names = sorted(_names(value.__code__) & value.__globals__.keys())
                read = ((name, value.__globals__[name]) for name in names)
                yield [(name, held) for name, held in read if isinstance(held, _DATA)]
        elif callable(value) and hasattr(value, "__wrapped__"):  # jitted, cached
            yield from (_name(value), value.__wrapped__)
        else:
            if callable(value) and isinstance(type(value).__call__, types.FunctionType):
                yield type(value).__call__
            yield from self._object_parts(value)

    def _array_parts(self, array: Any) -> Iterator[Any]:
        if isinstance(array, np.ndarray) and type(array) is not np.ndarray:  # masks and the like
            yield from (_name(type(array)), vars(array) if hasattr(array, "__dict__") else None)
        if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            yield _Bytes(str(jax.random.key_impl(array)).encode())
            array = jax.random.key_data(array)
        yield _Bytes(f"array {array.dtype} {array.shape}".encode())
        if spans_processes(array):
            for place, part in own_parts(array):
                yield _Bytes(place.encode())
                yield from self._array_parts(part)
        elif array.dtype.hasobject:  # whose bytes are addresses
            yield from np.asarray(array).ravel().tolist()
        else:
            yield _Bytes(array_bytes(np.asarray(array)))

    def _object_parts(self, value: object) -> Iterator[Any]:
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            yield [(name, getattr(value, name)) for name in names if hasattr(value, name)]
            return
        try:
            reduced = copyreg.dispatch_table.get(type(value), lambda v: v.__reduce_ex__(4))(value)
        except Exception:  # whatever an object's own methods raise
            reduced = ""
        if isinstance(reduced, str):  # the name of a global, or nothing
            module = getattr(value, "__module__", None)
            if self._strict and getattr(sys.modules.get(str(module)), reduced, None) is not value:
                kind = f"{type(value).__module__}.{type(value).__qualname__}"
                raise TypeError(f"{kind}, whose contents cannot be read")
            yield (module, reduced)
            yield _sorted(getattr(value, "__dict__", {}))
            return
        make, arguments, state, *items = (*reduced, None, None, None)[:5]
        yield from (make if make is not copyreg.__newobj__ else None, arguments)  # type: ignore[attr-defined]
        held = (item for parent in type(value).__mro__ for item in vars(parent).items())
        # attributes that are there once somebody asked for them
        derived = {name for name, each in held if isinstance(each, functools.cached_property)}
        for part in state if isinstance(state, tuple) else (state,):
            yield _sorted(part, derived) if isinstance(part, dict) else part
        yield [None if entries is None else list(entries) for entries in items]


def _sorted(attributes: Any, without: Any = ()) -> list[tuple[str, Any]]:
    return sorted(
        (item for item in attributes.items() if item[0] not in without), key=lambda item: item[0]
    )


def _names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes that a function reads, and the functions inside it."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _name(value: Any) -> _Bytes:
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    return _Bytes(f"{getattr(value, '__module__', '')} {name}".encode())


def _of_library(value: object) -> bool:
    """Whether it is a callable that its name stands for in a library, or a Python builtin."""
    if not callable(value):
        return False
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    module = str(getattr(value, "__module__", None) or "numpy")  # ufuncs say nothing
    known = getattr(sys.modules.get(module), name, None) is value
    return known and module.split(".")[0] in _LIBRARIES
