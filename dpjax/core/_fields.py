"""Dataclasses that are pytrees."""

import dataclasses
from typing import Any, TypeVar

import jax
from jax.tree_util import GetAttrKey

_Class = TypeVar("_Class", bound=type)


def static_field(**kwargs: Any) -> Any:
    """A field that shapes the program: part of the tree's structure, not a leaf.

    Args:
      **kwargs: As for `dataclasses.field`, with a `default`.

    Returns:
      The field; `register_dataclass` reads its metadata.
    """
    return dataclasses.field(metadata={"static": True}, **kwargs)


def register_dataclass(cls: _Class) -> _Class:
    """Registers a dataclass as a pytree whose structure names its class.

    As `jax.tree_util.register_dataclass`, under which structures of different classes with the same
    fields compare equal in jax 0.10: a compiled function then runs the program of the one, with its
    noise, for an instance of the other.

    Args:
      cls: A dataclass; fields with `static` in their metadata belong to the structure.

    Returns:
      The class.
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]
    static = tuple(field.name for field in fields if field.metadata.get("static"))
    data = tuple(field.name for field in fields if not field.metadata.get("static"))

    def structure(value: Any) -> tuple[Any, ...]:
        return cls, tuple(getattr(value, name) for name in static)

    def flatten(value: Any) -> tuple[tuple[Any, ...], Any]:
        return tuple(getattr(value, name) for name in data), structure(value)

    def flatten_with_keys(value: Any) -> tuple[tuple[Any, ...], Any]:
        return tuple((GetAttrKey(name), getattr(value, name)) for name in data), structure(value)

    def unflatten(aux: Any, leaves: Any) -> Any:
        names = dict(zip(data, leaves, strict=True)) | dict(zip(static, aux[1], strict=True))
        return cls(**names)

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
