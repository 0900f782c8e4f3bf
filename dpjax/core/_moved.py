"""Names that have moved keep working for a minor version."""

import functools
import importlib
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any


def moved(
    module: str, names: dict[str, str], kept: dict[str, Sequence[str]] | None = None
) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that are elsewhere now.

    It warns of `names`, each given with the path that it has now, and not of those that are `kept`
    here too, by the home that is imported when they are asked for.
    """
    homes = {name: home for home, those in (kept or {}).items() for name in those}

    def find(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(homes[name]), name)
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        deprecated(f"{module}.{name}", names[name], depth=2)
        home, _, current = names[name].rpartition(".")
        return getattr(importlib.import_module(home), current)

    return find


def renamed_fields(**names: str) -> Callable[[type], type]:
    """Old names of fields of a dataclass, `old="new"`, keep working, with a warning."""

    def old_value(old: str) -> property:
        return property(lambda self: getattr(self, _warned(type(self), old, names[old])))

    def wrap(cls: Any) -> Any:
        made = cls.__init__

        @functools.wraps(made)
        def init(self: Any, *args: Any, **fields: Any) -> None:
            made(self, *args, **current_names(cls, fields))

        cls.__init__, cls._renamed = init, names
        for old in names:
            setattr(cls, old, old_value(old))
        return cls

    return wrap


def current_names(cls: type, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with those of old names under their new ones."""
    fields = dict(fields)
    for old, new in getattr(cls, "_renamed", {}).items():
        if old in fields:
            fields[_warned(cls, old, new)] = fields.pop(old)
    return fields


def _warned(cls: type, old: str, new: str) -> str:
    deprecated(f"{cls.__name__}({old}=)", new, depth=4)
    return new


def deprecated(old: str, new: str, depth: int, what: str = "name") -> None:
    """Warns, so many frames above the caller's, of what goes in the next minor version."""
    message = f"{old} is {new} since 0.2: the old {what} goes in 0.3"
    warnings.warn(message, DeprecationWarning, stacklevel=depth + 1)


def moved_setting(module: str, name: str, spelling: str, depth: int = 4) -> Callable[..., Any]:
    """What a spelling of 0.1 stands for in `dpjax.papers`, with a warning."""
    home = f"dpjax.papers.{module}"
    deprecated(spelling, f"{home}.{name}", depth, "spelling")
    return operator.attrgetter(name)(importlib.import_module(home))
