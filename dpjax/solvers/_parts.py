"""Sums over records that are taken a part at a time, where values of all would not fit."""

import sys
from collections.abc import Callable
from typing import Any

import jax

from dpjax.core import PyTree
from dpjax.core._pairs import add_pairs
from dpjax.transforms.clipping._microbatch import in_whole_parts

# by default so many numbers, but no fewer records, of features or gradients are floats at a time;
# faster on CPU than either 4 times as many or as few, and than the data as a whole; elsewhere a
# turn of a loop costs more than such a part
_NUMBERS, _NUMBERS_ELSEWHERE, _RECORDS = 2**20, 2**26, 16


def part_size(width: int) -> int:
    """Records of a part, by the numbers that each makes."""
    numbers = _NUMBERS if jax.default_backend() == "cpu" else _NUMBERS_ELSEWHERE
    return max(_RECORDS, numbers // width)


def sum_of_parts(
    of: Callable[[PyTree, jax.Array], PyTree],
    batch: PyTree,
    mask: jax.Array,
    size: int | None,
    add: Callable[[Any, Any], Any] = add_pairs,
) -> Any:
    """The sum over a batch of `of(part, mask)`, taken in parts of so many records; None for one."""
    size = sys.maxsize if size is None else size
    return in_whole_parts(lambda part, here, number: of(part, here), batch, mask, size, add)
