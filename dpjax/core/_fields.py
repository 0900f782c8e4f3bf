"""Fields of dataclasses that are pytrees."""

import dataclasses
from typing import Any


def static_field(**kwargs: Any) -> Any:
    """A field that shapes the program: part of the tree's structure, not a leaf.

    Args:
      **kwargs: As for `dataclasses.field`, with a `default`.

    Returns:
      The field; `jax.tree_util.register_dataclass` reads its metadata.
    """
    return dataclasses.field(metadata={"static": True}, **kwargs)
