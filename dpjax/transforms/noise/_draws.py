"""One key for each leaf of a tree, at each call."""

from collections.abc import Callable
from typing import Any

import jax

from dpjax.core import PyTree, check_key


def map_with_keys(
    draw: Callable[[Any, jax.Array], Any], tree: PyTree, key: jax.Array | None, count: jax.Array
) -> PyTree:
    """`draw(leaf, key)` of every leaf; the key is folded with the call's number and the leaf's."""
    now = jax.random.fold_in(check_key("key", key), count)
    leaves, treedef = jax.tree.flatten(tree)
    drawn = [draw(leaf, jax.random.fold_in(now, i)) for i, leaf in enumerate(leaves)]
    return jax.tree.unflatten(treedef, drawn)
