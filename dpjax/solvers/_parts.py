"""How many records a part of a sum has, where values of all would not fit."""

import jax

# by default so many numbers, but no fewer records, of features or gradients are floats at a time;
# faster on CPU than either 4 times as many or as few, and than the data as a whole; elsewhere a
# turn of a loop costs more than such a part
_NUMBERS, _NUMBERS_ELSEWHERE, _RECORDS = 2**20, 2**26, 16


def part_size(width: int) -> int:
    """Records of a part, by the numbers that each makes."""
    numbers = _NUMBERS if jax.default_backend() == "cpu" else _NUMBERS_ELSEWHERE
    return max(_RECORDS, numbers // width)
