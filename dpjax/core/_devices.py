"""Context: is a program traced for several devices?"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import jax

_running: contextvars.ContextVar[Any] = contextvars.ContextVar("placement", default=None)


@contextlib.contextmanager
def running(placement: object) -> Iterator[None]:
    """While a program for this placement is traced."""
    token = _running.set(placement)
    try:
        yield
    finally:
        _running.reset(token)


def many_devices() -> bool:
    """Whether what is traced is known to be for several devices: by `solve` or a mesh in use.

    Returns:
      True if so; sums over examples are then to be one operation, which XLA can do where the
      examples lie.
    """
    return _running.get() is not None or jax.sharding.get_abstract_mesh().size > 1
