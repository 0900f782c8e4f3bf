"""The Python functions that a program calls on the host."""

from collections.abc import Iterator
from typing import Any


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
