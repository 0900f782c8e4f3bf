"""Gradients of a smoothed loss from values of it alone."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    check_choice,
    check_int,
    check_key,
    check_positive,
    check_shape,
)
from dpjax.transforms._directions import (
    KINDS,
    Directions,
    combined,
    direction_seeds,
    displaced,
    draw_directions,
    num_entries,
    unflatten,
    wide_type,
)
from dpjax.transforms._smooth_first_order import batch_size
from dpjax.transforms._weighted_sum import wide

# numbers in the directions of a chunk and the losses along them
_CHUNK_NUMBERS = 2**20


@dataclasses.dataclass(frozen=True)
class ZerothOrder:
    """Estimates from values of the loss, as `smooth_zeroth_order` makes it; see there.

    Attributes:
      losses: `losses(params, batch) -> [B]`.
      radius: r.
      num_directions: m.
      directions: `"shared"` or `"record"`.
      chunk_size: Directions that coexist, at most; None for a default.
    """

    losses: Callable[[PyTree, PyTree], jax.Array]
    radius: Any
    num_directions: int
    directions: str = "shared"
    chunk_size: int | None = None

    def coordinates(self, params: PyTree, batch: PyTree, *, key: jax.Array) -> jax.Array:
        r"""What each record tells of its gradient, $v_{bj} = \sqrt{d/m}\,\delta_{bj}$.

        Args:
          params: x, leaves `[*p]`, d entries in all.
          batch: Leaves `[B, ...]` (*secret*).
          key: Decides the directions, with d (*public*).

        Returns:
          `[B, m]`, at least float32.
        """
        key, dim = self._shared("coordinates", key), num_entries(params)

        def part(numbers: jax.Array) -> jax.Array:
            drawn = draw_directions(direction_seeds(key, numbers), params)
            return self._slopes(params, batch, drawn)

        slopes = jax.lax.map(part, self._chunks(dim + batch_size(batch)))
        slopes = slopes.reshape(-1, slopes.shape[-1])[: self.num_directions]
        return math.sqrt(dim / self.num_directions) * slopes.T

    def gradient(self, coordinates: jax.Array, params: PyTree, *, key: jax.Array) -> PyTree:
        r"""The adjoint map, $\sqrt{d/m} \sum_j v_j y_j$, of coordinates that records share.

        Args:
          coordinates: v, `[m]`: a record's, or a sum over records, noised or not.
          params: Leaves `[*p]`, for their shapes and types.
          key: That of `coordinates`; the directions are drawn anew from it.

        Returns:
          Leaves `[*p]`, at least float32.
        """
        key, dim = self._shared("gradient", key), num_entries(params)
        check_shape("coordinates", coordinates, (self.num_directions,))
        chunks = self._chunks(dim)
        padded = jnp.pad(jnp.asarray(coordinates), (0, chunks.size - self.num_directions))

        def add(total: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            numbers, weights = at
            drawn = draw_directions(direction_seeds(key, numbers), params)
            return total + combined(weights, drawn), None

        zero = jnp.zeros(dim, wide_type(params))
        total, _ = jax.lax.scan(add, zero, (chunks, padded.reshape(chunks.shape)))
        return unflatten(math.sqrt(dim / self.num_directions) * total, params)

    def __call__(self, params: PyTree, batch: PyTree, *, key: jax.Array) -> PyTree:
        r"""The estimates $e_b = \frac dm \sum_j \delta_{bj} y_j$ of all records.

        Args:
          params: x, leaves `[*p]`.
          batch: Leaves `[B, ...]` (*secret*).
          key: Decides the directions.

        Returns:
          A per-example tree, leaves `[B, *p]` of at least float32.
        """
        key, dim, size = check_key("key", key), num_entries(params), batch_size(batch)
        each = self._each_shared if self.directions == "shared" else self._each_record
        numbers = dim + size if self.directions == "shared" else dim * max(1, size)

        def add(total: jax.Array, numbers: jax.Array) -> tuple[jax.Array, None]:
            there = numbers < self.num_directions  # the last chunk may have some too many
            return total + each(params, batch, key, numbers, there).astype(total.dtype), None

        zero = jnp.zeros((size, dim), wide_type(params))
        total, _ = jax.lax.scan(add, zero, self._chunks(numbers))
        return unflatten(dim / self.num_directions * total, params)

    def _each_shared(
        self,
        params: PyTree,
        batch: PyTree,
        key: jax.Array,
        numbers: jax.Array,
        there: jax.Array,
    ) -> jax.Array:
        drawn = draw_directions(direction_seeds(key, numbers), params)
        slopes = self._slopes(params, batch, drawn)
        return combined(jnp.where(there[:, None], slopes, 0).T, drawn)

    def _each_record(
        self,
        params: PyTree,
        batch: PyTree,
        key: jax.Array,
        numbers: jax.Array,
        there: jax.Array,
    ) -> jax.Array:
        size, count = batch_size(batch), numbers.shape[0]
        places = jnp.tile(jnp.arange(size, dtype=jnp.int32), count)
        seeds = direction_seeds(key, places, jnp.repeat(numbers, size))
        drawn = draw_directions(seeds, params)
        radius = self._radius(drawn)
        points = displaced(params, drawn, jnp.stack([radius, -radius]))
        points = jax.tree.map(lambda a: a.reshape(2 * count, size, *a.shape[1:]), points)

        def own(at: PyTree, record: PyTree) -> jax.Array:
            return self._values(at, jax.tree.map(lambda a: a[None], record))[:, 0]

        slopes = _slopes(jax.vmap(own, in_axes=(1, 0), out_axes=1)(points, batch), radius)
        weights = jnp.where(there[:, None], slopes, 0).reshape(-1)
        scaled = (weights.astype(drawn.inverse.dtype) * drawn.inverse)[:, None] * drawn.rows
        return jnp.sum(scaled.reshape(count, size, -1), axis=0)

    def _slopes(self, params: PyTree, batch: PyTree, drawn: Directions) -> jax.Array:
        """The slopes of all losses along directions, `[n, B]`."""
        radius = self._radius(drawn)
        points = displaced(params, drawn, jnp.stack([radius, -radius]))
        return _slopes(self._values(points, batch), radius)

    def _values(self, points: PyTree, batch: PyTree) -> jax.Array:
        values = jax.vmap(self.losses, in_axes=(0, None))(points, batch)
        one = jax.ShapeDtypeStruct(values.shape[1:], values.dtype)
        check_shape("losses(params, batch)", one, (batch_size(batch),))
        return wide(values)

    def _radius(self, drawn: Directions) -> jax.Array:
        return jnp.asarray(self.radius, drawn.inverse.dtype)

    def _shared(self, method: str, key: jax.Array) -> jax.Array:
        if self.directions != "shared":
            raise ValueError(f"{method} needs directions='shared', got {self.directions!r}")
        return check_key("key", key)

    def _chunks(self, numbers: int) -> jax.Array:
        """Numbers of the directions, `[chunks, size]`; a few too many, so that all are as long."""
        most = self.chunk_size or max(1, _CHUNK_NUMBERS // numbers)
        count = -(-self.num_directions // most)
        size = -(-self.num_directions // count)
        return jnp.arange(count * size, dtype=jnp.int32).reshape(count, size)


def smooth_zeroth_order(
    losses: Callable[[PyTree, PyTree], jax.Array],
    radius: ArrayLike,
    num_directions: int,
    *,
    directions: str = "shared",
    chunk_size: int | None = None,
) -> ZerothOrder:
    check_positive("radius", radius)
    check_int("num_directions", num_directions, minimum=1)
    check_choice("directions", directions, KINDS)
    if chunk_size is not None:
        check_int("chunk_size", chunk_size, minimum=1)
    return ZerothOrder(losses, radius, num_directions, directions, chunk_size)


def _slopes(values: jax.Array, radius: jax.Array) -> jax.Array:
    """From the losses at the 2n points `[2n, ...]`."""
    half = values.shape[0] // 2
    return (values[:half] - values[half:]) / (2 * radius).astype(values.dtype)
