"""One registry of everything that has to pass the conformance suite."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
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
      slow: Whether tests that run by default may leave it to those that take long.
      relative_of: Name of an entry of the same program but for a noise, a relation or an average;
        tests of what lies around a program run that one alone.
      facts: More that a package's own tests ask of it, by name.
    """

    name: str
    kind: str
    make: Callable[[], Any]
    slow: bool = False
    relative_of: str | None = None
    facts: Mapping[str, object] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )


_ENTRIES: dict[str, Entry] = {}


def register(
    name: str,
    kind: str,
    make: Callable[[], Any],
    *,
    slow: bool = False,
    relative_of: str | None = None,
    **facts: object,
) -> Entry:
    """Adds a subject to the registry; other packages register theirs with the same call.

    Args:
      name: Unique name.
      kind: `"transform"`, `"aggregator"`, `"sampler"` or `"solver"`.
      make: Takes nothing, returns the case of that kind.
      slow: Whether tests that run by default may leave it to those that take long.
      relative_of: Name of an entry, registered before, of the same program but for a noise, a
        relation or an average.
      **facts: More that your own tests ask of it.

    Returns:
      The entry.

    Raises:
      ValueError: If the kind is unknown, the name is taken, or the relative is not registered.

    Example:
      >>> import dpjax.testing as dpt, jax.numpy as jnp, optax
      >>> def make():
      ...     return dpt.TransformCase(lambda value: optax.scale(value), jnp.ones(3), random=False)
      >>> dpt.check_transform(dpt.Entry("scale", "transform", make))
    """
    check_choice("kind", kind, KINDS)
    if name in _ENTRIES:
        raise ValueError(f"name must be new, got {name!r}, which is registered")
    if relative_of is not None and relative_of not in _ENTRIES:
        raise ValueError(f"relative_of must be registered, got {relative_of!r}")
    entry = Entry(name, kind, make, slow, relative_of, MappingProxyType(facts))
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
