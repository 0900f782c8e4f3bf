"""Checks that two data sets differ in one record."""

from collections.abc import Hashable

import jax
import numpy as np

from dpjax.core import PyTree


def check_neighbours(data: PyTree, neighbour: PyTree) -> None:
    """Raises ValueError unless one record was removed, added or replaced, the others in order."""
    one: Hashable = jax.tree.structure(data)
    other: Hashable = jax.tree.structure(neighbour)
    if one != other:
        raise ValueError(f"data and neighbour must have one structure, got {one} and {other}")
    first, second = _rows(data), _rows(neighbour)
    if len(first) == len(second):
        changed = sum(a != b for a, b in zip(first, second, strict=True))
        if changed > 1:
            raise ValueError(f"neighbour must differ from data in 1 record, got {changed}")
        return
    long, short = sorted((first, second), key=len)[::-1]
    if len(long) != len(short) + 1:
        raise ValueError(
            "neighbour must have one record more or less than data, or as many, got "
            f"{len(second)} and {len(first)}"
        )
    same = next((i for i, row in enumerate(short) if row != long[i]), len(short))
    if long[same + 1 :] != short[same:]:
        raise ValueError("neighbour must be data with one record removed or added, others in order")


def _rows(data: PyTree) -> list[tuple[bytes, ...]]:
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(data)]
    return [
        tuple(np.ascontiguousarray(leaf[i]).tobytes() for leaf in leaves)
        for i in range(len(leaves[0]))
    ]
