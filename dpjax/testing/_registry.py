"""One registry of everything that has to pass the conformance suite."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpjax.core import check_choice

KINDS = ("transform", "aggregator", "sampler", "solver")


@dataclass(frozen=True)
class Entry:
    """A registered subject.

    Attributes:
      name: Unique name, shown as the test's id.
      kind: `"transform"`, `"aggregator"`, `"sampler"` or `"solver"`.
      make: Builds the case (`TransformCase`, ...) with a tiny instance; called by each check, so
        that registering costs nothing.
    """

    name: str
    kind: str
    make: Callable[[], Any]


_ENTRIES: dict[str, Entry] = {}


def register(name: str, kind: str, make: Callable[[], Any]) -> Entry:
    """Adds a subject to the registry; other packages register theirs with the same call.

    Args:
      name: Unique name.
      kind: `"transform"`, `"aggregator"`, `"sampler"` or `"solver"`.
      make: Takes nothing, returns the case of that kind.

    Returns:
      The entry.

    Raises:
      ValueError: If the kind is unknown, or the name is taken.

    Example:
      >>> import dpjax.testing as dpt, jax.numpy as jnp, optax
      >>> def make():
      ...     return dpt.TransformCase(lambda value: optax.scale(value), jnp.ones(3), random=False)
      >>> dpt.check_transform(dpt.Entry("scale", "transform", make))
    """
    check_choice("kind", kind, KINDS)
    if name in _ENTRIES:
        raise ValueError(f"name must be new, got {name!r}, which is registered")
    entry = Entry(name, kind, make)
    _ENTRIES[name] = entry
    return entry


def registry() -> dict[str, Entry]:
    """All entries.

    Returns:
      By name, in order of registration.
    """
    return dict(_ENTRIES)


def entries(kind: str) -> list[Entry]:
    """The entries of one kind.

    Args:
      kind: As in `register`.

    Returns:
      In order of registration.

    Raises:
      ValueError: If the kind is unknown.
    """
    check_choice("kind", kind, KINDS)
    return [entry for entry in _ENTRIES.values() if entry.kind == kind]
