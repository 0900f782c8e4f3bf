"""The ball of the l1 norm."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import (
    check_int,
    check_key,
    check_positive,
    check_shape,
    is_traced,
    many_devices,
    register_dataclass,
)
from dpjax.geometry import _blocks as blocks
from dpjax.geometry._vertices import VertexSet, as_indices, check_last_axis, check_num_vertices


@register_dataclass
@dataclasses.dataclass(frozen=True)
class L1Ball(VertexSet):
    r"""The ball $\{x \in R^p : \|x\|_1 \le R\}$.

    Its $2p$ vertices are, in this order, $+Re_1, \dots, +Re_p, -Re_1, \dots, -Re_p$. See `Domain`
    for the methods.

    Args:
      dim: Number of coordinates $p$ `>= 1` (*public*, static).
      radius: $R$ `> 0` (*public*); scalar, may be traced.

    Raises:
      ValueError: If `dim` is not in [1, 2^30) or `radius <= 0`; in methods, if an argument has
        another shape.
      TypeError: If `dim` is not an integer.

    Example:
      >>> import jax.numpy as jnp
      >>> ball = L1Ball(2, radius=3.0)
      >>> ball.scores(jnp.array([1.0, 2.0])).tolist()
      [3.0, 6.0, -3.0, -6.0]
      >>> ball.average(jnp.array([0, 3])).tolist()
      [1.5, -1.5]
    """

    dim: int = dataclasses.field(metadata={"static": True})
    radius: float | jax.Array = 1.0

    def __post_init__(self) -> None:
        check_int("dim", self.dim, minimum=1)
        check_positive("radius", self.radius)
        check_num_vertices(self.num_vertices)

    @property
    def num_vertices(self) -> int:
        """Number of vertices: `2 * dim`."""
        return 2 * self.dim

    @property
    def diameter(self) -> Any:
        """Largest l1 distance of two vertices: `2 * radius`."""
        return 2 * self.radius_l1

    @property
    def radius_l1(self) -> Any:
        """Largest l1 distance of a vertex from the origin: `radius`."""
        return jnp.abs(self.radius) if is_traced(self.radius) else float(self.radius)

    def scores(self, v: ArrayLike) -> jax.Array:
        """Inner products of the vertices with `v` `[p]`: `(R v, -R v)`, `[2p]`."""
        check_shape("v", v, (self.dim,))
        v = blocks.as_vector("v", v)
        scaled = self._radius(v.dtype) * v
        return jnp.concatenate([scaled, -scaled])

    def point(self, weights: ArrayLike) -> jax.Array:
        """The point with these weights `[2p]`: `R` times first less second half, `[p]`."""
        check_shape("weights", weights, (2 * self.dim,))
        weights = blocks.as_floating(weights)
        difference = weights[: self.dim] - weights[self.dim :]
        return self._radius(difference.dtype) * difference

    def average(self, indices: ArrayLike) -> jax.Array:
        """The mean of the vertices `indices` `[k]`, by scatter-add, `[p]`."""
        indices = as_indices(indices)
        zeros = jnp.zeros(self.dim)
        share = self._radius(zeros.dtype) / indices.shape[0]
        coordinates = jnp.where(indices < self.dim, indices, indices - self.dim)
        return zeros.at[coordinates].add(jnp.where(indices < self.dim, share, -share))

    def spread(self, v: ArrayLike) -> jax.Array:
        """`2 R` times the largest modulus along the last axis of `v` `[..., p]`."""
        check_last_axis("v", v, self.dim)
        largest = jnp.max(jnp.abs(blocks.as_floating(v)), axis=-1)
        # a traced radius may be negative, and its ball is that of the modulus
        return 2 * jnp.abs(self._radius(largest.dtype)) * largest

    def logits(self, v: ArrayLike, low: ArrayLike | None = None) -> jax.Array:
        """`scores(v + low)` less a number near the largest, `[2p]`, rounded after that."""
        check_shape("v", v, (self.dim,))
        v = blocks.as_vector("v", v)
        low = jnp.zeros_like(v) if low is None else jnp.asarray(low, v.dtype)
        top = jnp.max(jnp.abs(v))
        return self._radius(v.dtype) * jnp.concatenate([(v - top) + low, (-v - top) - low])

    def sample(
        self, key: jax.Array, v: ArrayLike, k: int, low: ArrayLike | None = None
    ) -> jax.Array:
        """`k` independent vertices from the softmax of `scores(v + low)`, `[k]` int32.

        The law, not the realisation, of `sample_vertices(key, logits(v, low), k)`: both signs of a
        coordinate share a block, so that the `2p` scores are never written.
        """
        check_key("key", key)
        check_int("k", k, minimum=1)
        check_shape("v", v, (self.dim,))
        v = blocks.as_vector("v", v)
        low = jnp.zeros_like(v) if low is None else jnp.asarray(low, v.dtype)
        return _sample(key, v, low, self._radius(v.dtype), int(k), many_devices())

    def project(self, v: ArrayLike) -> jax.Array:
        """The nearest point of the ball in the l2 norm, `[p]`."""
        check_shape("v", v, (self.dim,))
        v = blocks.as_floating(v)
        return optax.projections.projection_l1_ball(v, self._radius(v.dtype))

    def _radius(self, dtype: DTypeLike) -> jax.Array:
        return jnp.asarray(self.radius, dtype)


@functools.partial(jax.jit, static_argnums=(4, 5))
def _sample(
    key: jax.Array, v: jax.Array, low: jax.Array, radius: jax.Array, k: int, spread: bool
) -> jax.Array:
    dim = v.shape[0]
    size = min(dim, blocks.block_size(dim))
    tops = blocks.block_reduce(_largest_modulus, size, v)
    top = _or_zero(jnp.max(tops))
    sums = blocks.block_reduce(functools.partial(_lse_of_both_signs, radius=radius), size, v, low)
    # a difference before it is multiplied: rounding then is of what matters, not of the largest
    table = radius * (_or_zero(tops) - top) + sums
    block, noise = blocks.draw(key, k, blocks.table_stages(table), spread, more=2 * size)
    values, mine, first = blocks.block_entries(v, size, block, spread)
    lows, _, _ = blocks.block_entries(low, size, block, spread)
    both = radius * jnp.stack([(values - top) + lows, (-values - top) - lows], axis=1)
    weights = jnp.where(mine[:, None], both, -jnp.inf).reshape(k, 2 * size)
    place = blocks.noisy_argmax(weights, noise)
    return first + jnp.where(place < size, place, dim + place - size)


def _largest_modulus(values: jax.Array, axis: int) -> jax.Array:
    # two plain extrema: on CPU each is vectorised, moduli and pairs are not
    return jnp.maximum(jnp.max(values, axis=axis), -jnp.min(values, axis=axis))


def _or_zero(value: jax.Array) -> jax.Array:
    return jnp.where(jnp.isinf(value), 0, value)


def _lse_of_both_signs(
    values: jax.Array, lows: jax.Array, axis: int, *, radius: jax.Array
) -> jax.Array:
    """Log-sum-exp of `radius * (values + lows)` both ways, less `radius` times the largest modulus.

    That modulus is of the values alone.
    """
    top = jnp.expand_dims(_or_zero(_largest_modulus(values, axis)), axis)
    up = jnp.sum(jnp.exp(radius * ((values - top) + lows)), axis=axis)
    down = jnp.sum(jnp.exp(radius * ((-values - top) - lows)), axis=axis)
    return jnp.log(up + down)
