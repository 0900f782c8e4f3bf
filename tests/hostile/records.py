"""Records that nobody should have collected, and a sampler that leaves one out."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import register_dataclass
from dpjax.testing import _trees as trees

BAD = (np.nan, np.inf, -np.inf)
# squares, products and sums of these overflow float32, or vanish in it
EXTREME = (1e15, 1e19, 1e20, 1e30, 1e38, -1e38, 3.4e38, 1e-20, 1e-40, 0.0)


def spoiled(data: Any) -> dict[str, Any]:
    """Data sets of one shape by name: record 0 or all records are hostile, whole or in an entry."""
    sets = {}
    for value in (*BAD, *EXTREME):
        sets[f"record 0 holds {value}"] = _filled(data, value, 0)
        sets[f"all hold {value}"] = _filled(data, value, slice(None))
    for value in (np.nan, np.inf, 1e38):
        sets[f"an entry of record 0 holds {value}"] = _filled(data, value, 0, first=True)
    for name in ("y", "group"):
        if name in data and not trees.is_float(data[name]):
            for value in (-1, 2, 2**31 - 1, -(2**31)):
                sets[f"{name} of record 0 is {value}"] = {
                    **data,
                    name: data[name].at[0].set(value),
                }
                sets[f"{name} of all is {value}"] = {**data, name: data[name] * 0 + value}
    return sets


def absent(name: str) -> bool:
    """Whether a record of this name must count as if it were not there."""
    if name.startswith("y of record 0"):
        return True
    return "record 0" in name and any(name.endswith(f"holds {value}") for value in BAD)


def without(solver: Any) -> Any:
    """The solver on a sampler that never lets record 0 take part."""
    if hasattr(solver, "primal"):
        return dataclasses.replace(solver, primal=without(solver.primal))
    inner = solver.sampler

    class Without(type(inner)):  # type: ignore[misc]
        def batch(self, x: Any, num_records: int) -> Any:
            indices, mask = super().batch(x, num_records)
            at = jnp.arange(num_records) if indices is None else indices
            return indices, mask & (at != 0)

        def batch_of_shards(self, x: Any, num_records: int) -> Any:
            indices, mask = super().batch_of_shards(x, num_records)
            first = jnp.arange(mask.shape[0])[:, None] == 0
            return indices, mask & ((indices != 0) | ~first)

    made = object.__new__(Without)
    for field in dataclasses.fields(inner):
        object.__setattr__(made, field.name, getattr(inner, field.name))
    names = [field.name for field in dataclasses.fields(solver)]
    if "sampler" in names:
        return dataclasses.replace(solver, sampler=made)
    # one that tells its sampler from its parts
    kind = register_dataclass(type("Without", (type(solver),), {"sampler": made}))
    return kind(**{name: getattr(solver, name) for name in names})


def _filled(data: Any, value: float, rows: Any, first: bool = False) -> Any:
    def fill(leaf: jax.Array) -> jax.Array:
        if not trees.is_float(leaf):
            return leaf
        entry = (rows,) + (0,) * (leaf.ndim - 1) if first else (rows,)
        return leaf.at[entry].set(value)

    return jax.tree.map(fill, data)
