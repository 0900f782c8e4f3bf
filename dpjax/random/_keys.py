"""Keys: secret ones, and those of steps, as a scan can carry them, with words drawn from them."""

import dataclasses
import secrets
from collections.abc import Callable, Hashable

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, is_traced, register_dataclass
from dpjax.random._threefry import threefry_2x32


@register_dataclass
@dataclasses.dataclass(frozen=True)
class StepKeys:
    """Keys as plain words, so that loops, branches and `vmap` may carry them.

    A scan over typed keys inside `vmap` is refused under `jax_debug_key_reuse`, as is a
    `cond` over one: batching reorders or selects the keys, which the checker takes for a use.

    Args:
      data: words of the keys, `[..., words]` uint32.
      impl: their generator (static).
    """

    data: jax.Array
    impl: Hashable = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, keys: jax.Array) -> "StepKeys":
        """Unwraps typed keys."""
        return cls(jax.random.key_data(keys), jax.random.key_impl(keys))

    @property
    def counter_based(self) -> bool:
        """Whether draws under `vmap` are those of each key alone."""
        return str(self.impl) == "threefry2x32"

    def split(self, number: int) -> "StepKeys":
        """Keys of `number` independent generators, from one; leaves `[number, words]`."""
        key = jax.random.wrap_key_data(self.data, impl=self.impl)
        return StepKeys.of(jax.random.split(key, number))

    def words(self, stream: int) -> jax.Array:
        """A word of each of several keys, `[keys]` uint32, in a stream of their own."""

        def one(data: jax.Array) -> jax.Array:
            return StepKeys(data, self.impl).bits64(stream, 1)[0][0]

        return self.each(one, self.data)

    def each(self, function: Callable[[PyTree], PyTree], given: PyTree) -> PyTree:
        """`function` of each row of what is given, which draws with keys of this generator.

        One after the other where what is drawn under `vmap` depends on the whole batch of keys, as
        with hardware generators.
        """
        return jax.vmap(function)(given) if self.counter_based else jax.lax.map(function, given)

    def bits64(self, stream: int, count: int) -> tuple[jax.Array, jax.Array]:
        """Draws `count` times 64 bits from one key, in a stream of their own.

        With Threefry, entry `i` is the block cipher at counter `(stream, i)`, so stream 0 holds
        the words of `jax.random.bits(key, (count,), "uint64")`. Other generators are asked for
        bits as usual.

        Args:
          stream: number of the stream (static); streams are independent.
          count: number of draws (static).

        Returns:
          High and low words, `[count]` uint32 each.
        """
        if self.counter_based:
            counter = jnp.arange(count, dtype=jnp.uint32)
            high = jnp.full((count,), np.uint32(stream))
            words = threefry_2x32(self.data[0], self.data[1], high, counter)
        else:
            key = jax.random.fold_in(jax.random.wrap_key_data(self.data, impl=self.impl), stream)
            bits = jax.random.bits(key, (2, count), dtype=jnp.uint32)
            words = bits[0], bits[1]
        # drawn once, however many comparisons read them
        high, low = jax.lax.optimization_barrier(words)
        return high, low


def secret_key() -> jax.Array:
    """A PRNG key from the operating system's entropy, for a release.

    All bits of the key are random. Unless `jax_enable_x64` is set, `jax.random.key(seed)` keeps 32
    bits of any seed: an attacker who sees a release can try them all and subtract the noise.

    Guarantee: none of its own; every mechanism assumes a key as secret as the data.

    Returns:
      A typed scalar key of JAX's default generator (*secret*); each call and each process gets its
      own.

    Raises:
      RuntimeError: Inside `jit` or a JAX loop, where the key would be a constant of the program.

    Example:
      >>> import dpjax
      >>> bool(dpjax.secret_key() == dpjax.secret_key())
      False
    """
    if is_traced(jnp.zeros(())):
        raise RuntimeError(
            "secret_key must be called outside jit and JAX loops, where one key would serve every "
            "call: pass the key as an argument"
        )
    # the number of words in a key; nothing is evaluated
    shape = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    words = np.frombuffer(secrets.token_bytes(4 * int(np.prod(shape))), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words).reshape(shape))
