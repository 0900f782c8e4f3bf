"""How far one record moves a clipped sum of many in float32, beyond what clipping allows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.transforms import clip_by_norm, microbatched_sum

LEFT_OUT = 16  # records that are taken out, each alone


def measure(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """For each number of records the largest excess over the clip norm, as a share of it.

    Records point the same way, as gradients do far from an optimum: the worst case for rounding.
    """
    return [
        {"records": n, "excess": _excess(n, parts=True), "at_once": _excess(n, parts=False)}
        for n in sizes
    ]


def _excess(n: int, *, parts: bool) -> float:
    values = 1 + jax.random.uniform(jax.random.key(n), (n, 4))
    clip = clip_by_norm(1.0)

    @jax.jit
    def total(values: jax.Array, out: jax.Array) -> jax.Array:
        mask = jnp.arange(n, dtype=jnp.int32) != out
        if not parts:
            return clip.update(values, clip.init(None), mask=mask)[0]
        return microbatched_sum(lambda rows: rows, clip, values, mask, size=None)

    whole = np.asarray(total(values, jnp.int32(-1)), float)
    where = np.linspace(0, n - 1, LEFT_OUT).astype(np.int32)
    moved = [whole - np.asarray(total(values, jnp.int32(out)), float) for out in where]
    return max(float(np.linalg.norm(m)) for m in moved) - 1.0
