"""Names that have moved keep working for a minor version."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any


def moved(
    module: str, names: dict[str, str], kept: tuple[str, tuple[str, ...]] = ("", ())
) -> Callable[[str], Any]:
    """A module's `__getattr__` for names that are elsewhere now.

    It warns of `names`, given with their new homes, and not of those that are `kept` here too: the
    home of these is imported when they are asked for.
    """

    def find(name: str) -> Any:
        if name in kept[1]:
            return getattr(importlib.import_module(kept[0]), name)
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = names[name]
        warnings.warn(
            f"{module}.{name} is {home}.{name} since 0.2: the old name goes in 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(home), name)

    return find
