"""Threefry-2x32, written out so that it compiles to one loop over its counters."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core._apart import apart

# with this many numbers or more, both words of a block are used
_MANY = 2**11
_COUNTERS = 2**32
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


def positions(shape: tuple[int, ...]) -> jax.Array:
    """The position of each entry in row-major order, uint32."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    # along each axis by itself, so that a sharded axis needs nothing of the other shards
    iotas = [jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(len(shape))]
    steps = [iota * np.uint32(stride) for iota, stride in zip(iotas, strides, strict=True)]
    return sum(steps[1:], steps[0])


@functools.partial(jax.jit, static_argnums=(1, 2))
def written_out_words(data: jax.Array, shape: tuple[int, ...], count: int) -> list[jax.Array]:
    """`random_words` of a Threefry key's two words `data`, by blocks whose rounds are written out.

    Compiled under this name, by which `dpjax.testing.keys_drawn` knows that a key is drawn with.
    """
    places = positions(shape)
    blocks = [threefry_2x32(data[0], data[1], jnp.uint32(i), places) for i in range(count // 2)]
    return [word for block in blocks for word in block]


def random_words(key: jax.Array, shape: tuple[int, ...], count: int) -> list[jax.Array]:
    """Independent random words, an even `count` of arrays of `shape` uint32.

    Of many by Threefry both words of a block are used, where `jax.random.bits` adds them up, and
    an entry depends on the key and on its position alone. Fewer are those of `jax.random.bits`.
    """
    kind, size = str(jax.random.key_impl(key)), math.prod(shape)
    if kind == "threefry2x32" and _MANY <= size < _COUNTERS:
        return written_out_words(jax.random.key_data(key), shape, count)

    def draw() -> jax.Array:
        return jax.random.bits(key, (count, *shape), jnp.uint32)

    def written_out() -> jax.Array:
        first, second = written_out_words(jax.random.key_data(key), (count * size,), 2)
        return (first ^ second).reshape(count, *shape)

    # fused into their uses, words take up to ten times as long there, of threefry4x32 30 times
    on_cpu = {
        "threefry2x32": functools.partial(apart, written_out),
        "threefry4x32": functools.partial(apart, draw),
    }
    if kind not in on_cpu or size >= _COUNTERS:
        return list(draw())
    return list(jax.lax.platform_dependent(cpu=on_cpu[kind], default=draw))
