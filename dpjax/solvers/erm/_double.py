"""Float64 inside a program of float32, under transformations too."""

from collections.abc import Callable
from typing import Any

import jax

if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:  # jax 0.6
    from jax.experimental import enable_x64  # type: ignore[attr-defined, no-redef]


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of arrays, traced with x64 enabled, also where it is batched.

    Rules by which `jax.vmap` batches what was traced before run outside the scope, where they cut
    types back to float32; so the function itself is batched, within it. Arguments and results must
    not be of 64 bits: convert inside.

    Args:
      function: Of arrays to a tree of arrays. It may close over static values alone.

    Returns:
      A function of the same arguments.
    """

    def scoped(*arguments: Any) -> Any:
        with enable_x64(True), jax.default_matmul_precision("highest"):
            return function(*arguments)

    wrapped = jax.custom_batching.custom_vmap(scoped)

    @wrapped.def_vmap
    def rule(axis_size: int, batched: Any, *arguments: Any) -> Any:
        axes = tuple(jax.tree.map(lambda held: 0 if held else None, each) for each in batched)
        batch = jax.vmap(function, in_axes=axes, axis_size=axis_size)
        result = in_double(batch)(*arguments)
        return result, jax.tree.map(lambda _: True, result)

    return wrapped
