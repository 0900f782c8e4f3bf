"""Dataclasses that are pytrees, and checks of what their users give them."""

import dataclasses
import functools
import inspect
from collections.abc import Iterable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from dpjax.core._checks import is_traced
from dpjax.core._types import PyTree

_Class = TypeVar("_Class", bound=type)


def static_field(**kwargs: Any) -> Any:
    """A field that shapes the program: part of the tree's structure, not a leaf.

    Args:
      **kwargs: As for `dataclasses.field`, with a `default`.

    Returns:
      The field; `register_dataclass` reads its metadata.
    """
    return dataclasses.field(metadata={"static": True}, **kwargs)


class derived(functools.cached_property[Any]):
    """A property computed once from the fields, and leaves of the tree beside them.

    So what the host makes of concrete fields comes along where these are traced. A change by
    `dataclasses.replace` computes it anew.
    """


def register_dataclass(cls: _Class, *, rechecked: bool = True) -> _Class:
    """Registers a dataclass as a pytree whose structure names its class.

    As `jax.tree_util.register_dataclass`, under which structures of different classes with the same
    fields compare equal in jax 0.10: a compiled function then runs the program of the one, with its
    noise, for an instance of the other.

    Args:
      cls: A dataclass; fields with `static` in their metadata belong to the structure, and
        properties that are `derived` are leaves.
      rechecked: Whether a tree transformation makes instances by `__init__`, checks and all; else
        it fills in the fields as they are.

    Returns:
      The class.
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]
    static = tuple(field.name for field in fields if field.metadata.get("static"))
    own = tuple(field.name for field in fields if not field.metadata.get("static"))
    extra = [name for name, held in inspect.getmembers_static(cls) if isinstance(held, derived)]
    data = (*own, *extra)

    def flatten(value: object) -> tuple[tuple[Any, ...], Any]:
        structure = cls, tuple(getattr(value, name) for name in static)
        return tuple((GetAttrKey(name), getattr(value, name)) for name in data), structure

    def unflatten(aux: PyTree, leaves: PyTree) -> PyTree:
        given = dict(zip(data, leaves, strict=True))
        fields = {name: given[name] for name in own} | dict(zip(static, aux[1], strict=True))
        value = cls(**fields) if rechecked else object.__new__(cls)
        vars(value).update({name: given[name] for name in extra} if rechecked else fields | given)
        return value

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls


def check_fields(kind: Any, given: Iterable[str], known: Iterable[str] | None = None) -> None:
    """Raises unless each name is a field of a dataclass that its `for_budget` lets be chosen.

    Args:
      kind: The class.
      given: Names that were given.
      known: Names that may be; default: the options of `kind.for_budget` and all fields but sampler
        and relation, which follow from the budget, and what it has arguments of its own for.

    Raises:
      TypeError: If one is not known; the message lists those that are.
    """
    if known is None:
        fields = {field.name for field in dataclasses.fields(kind) if field.init}
        arguments = inspect.signature(kind.for_budget).parameters.values()
        options = {a.name for a in arguments if a.kind is inspect.Parameter.KEYWORD_ONLY}
        known = (fields - {a.name for a in arguments} - {"sampler", "relation"}) | options
    names = set(known)
    for name in given:
        if name not in names:
            raise TypeError(f"unknown field {name!r}; {kind.__name__} has {sorted(names)}")


def check_unstacked(solver: object, *names: str) -> None:
    """Raises unless these fields, or the entries of those that are tuples, are one number each.

    A solver whose fields are stacked, to be mapped over by `jax.vmap`, is several runs: each has a
    guarantee of its own.

    Args:
      solver: A dataclass registered as a pytree.
      names: Of the fields that a guarantee follows from.

    Raises:
      ValueError: If one is stacked; the message shows how to take one run.
      TypeError: If one is traced.
    """
    for name in names:
        for value in jax.tree.leaves(getattr(solver, name)):
            if is_traced(value):
                raise TypeError(
                    f"{name} is traced by jit or vmap, so that the guarantee is unknown here: call "
                    "solver.guarantee() on each solver outside the transformation"
                )
            if np.shape(value) != ():
                raise ValueError(
                    f"{name} is stacked, of shape {list(np.shape(value))}: a stacked "
                    f"{type(solver).__name__} is several runs, each with a guarantee of its own; "
                    f"that of run i is {_one_run(solver, name)}.guarantee()"
                )


def _one_run(solver: object, name: str) -> str:
    """What takes run i from stacked ones, of which some share the fields that are not stacked."""
    if all(np.shape(leaf) for leaf in jax.tree.leaves(solver)):
        return "jax.tree.map(lambda leaf: leaf[i], solver)"
    return f"dataclasses.replace(solver, {name}=solver.{name}[i])"
