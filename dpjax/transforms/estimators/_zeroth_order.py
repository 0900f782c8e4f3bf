"""Slopes of losses along random directions, and the gradients they make."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_choice, check_int, check_key, check_positive, check_shape, wide
from dpjax.transforms.estimators import _directions as lines

# numbers in the directions of a chunk and in the losses along them: a few MB, which stay in the
# caches of a CPU and keep an accelerator busy
_CHUNK_NUMBERS = 2**20


@dataclasses.dataclass(frozen=True)
class ZerothOrder:
    """Estimates from values of the loss; `smooth_zeroth_order` makes and describes it.

    Attributes:
      losses: `losses(params, batch) -> [B]`.
      radius: r, scalar.
      num_directions: m.
      directions: `"shared"` or `"record"`.
      chunk_size: Directions that coexist, at most; None for a default.

    Raises:
      TypeError: If `num_directions` or `chunk_size` is not an integer.
      ValueError: If a number is outside its bound, or `directions` unknown.
    """

    losses: Callable[[PyTree, PyTree], jax.Array]
    radius: ArrayLike
    num_directions: int
    directions: str = "shared"
    chunk_size: int | None = None

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)
        check_int("num_directions", self.num_directions, minimum=1)
        check_choice("directions", self.directions, lines.KINDS)
        if self.chunk_size is not None:
            check_int("chunk_size", self.chunk_size, minimum=1)

    def coordinates(self, params: PyTree, batch: PyTree, *, key: jax.Array) -> jax.Array:
        r"""What each record tells of its gradient, $v_{bj} = \sqrt{d/m}\,\delta_{bj}$.

        For shared directions. Memory: that of one chunk, and the result.

        Args:
          params: x, leaves `[*p]` with d entries in all.
          batch: Leaves `[B, ...]` (*secret*).
          key: Decides the directions, with d (*public*).

        Returns:
          `[B, m]`, at least float32 (*secret*).
        """
        key, dim = self._shared("coordinates", key), lines.num_entries(params)

        def chunk(numbers: jax.Array) -> jax.Array:
            return self._slopes(params, batch, lines.drawn(params, key, numbers))

        size = lines.batch_size(batch)
        chunks = self._chunks(dim + size)
        slopes = jax.lax.map(chunk, chunks).reshape(chunks.size, size)[: self.num_directions]
        return math.sqrt(dim / self.num_directions) * slopes.T

    def gradient(self, coordinates: jax.Array, params: PyTree, *, key: jax.Array) -> PyTree:
        r"""The gradient that coordinates stand for, $\sqrt{d/m} \sum_j v_j y_j$: the adjoint map.

        Linear, so that a sum over records may be clipped and noised before it. The directions are
        drawn anew, chunk by chunk, and never coexist.

        Args:
          coordinates: v, `[m]`.
          params: Leaves `[*p]`, for their shapes and types.
          key: That of `coordinates`.

        Returns:
          Leaves `[*p]`, at least float32.
        """
        key, dim = self._shared("gradient", key), lines.num_entries(params)
        check_shape("coordinates", coordinates, (self.num_directions,))
        chunks = self._chunks(dim)
        weights = jnp.pad(jnp.asarray(coordinates), (0, chunks.size - self.num_directions))

        def add(total: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return total + lines.combined(chunk[1], lines.drawn(params, key, chunk[0])), None

        zero = jnp.zeros(dim, lines.wide_type(params))
        total, _ = jax.lax.scan(add, zero, (chunks, weights.reshape(chunks.shape)))
        return lines.unflatten(math.sqrt(dim / self.num_directions) * total, params)

    def __call__(self, params: PyTree, batch: PyTree, *, key: jax.Array) -> PyTree:
        r"""The estimates of all records, $e_b = \frac dm \sum_j \delta_{bj} y_j$.

        Args:
          params: x, leaves `[*p]` with d entries in all.
          batch: Leaves `[B, ...]` (*secret*).
          key: Decides the directions, with d (*public*).

        Returns:
          A per-example tree, leaves `[B, *p]` of at least float32 (*secret*).
        """
        key, dim, size = check_key("key", key), lines.num_entries(params), lines.batch_size(batch)
        shared = self.directions == "shared"

        def of_shared(numbers: jax.Array) -> jax.Array:
            """Sums of slope times direction over a chunk, `[B, d]`."""
            drawn = lines.drawn(params, key, numbers)
            return lines.combined(self._there(numbers, self._slopes(params, batch, drawn)).T, drawn)

        def of_own(numbers: jax.Array) -> jax.Array:
            """The same, with directions of their own for all records."""
            count = numbers.shape[0]
            places = jnp.tile(jnp.arange(size, dtype=jnp.int32), count)
            drawn = lines.drawn(params, key, places, jnp.repeat(numbers, size))
            flat = self._points(params, drawn)
            points = jax.tree.map(lambda a: a.reshape(2 * count, size, *a.shape[1:]), flat)

            def own(at: PyTree, record: PyTree) -> jax.Array:
                return self._values(at, jax.tree.map(lambda a: a[None], record))[:, 0]

            values = jax.vmap(own, in_axes=(1, 0), out_axes=1)(points, batch)
            weights = self._there(numbers, self._halves(values)).astype(drawn.inverse.dtype)
            scaled = (weights.reshape(-1) * drawn.inverse)[:, None] * drawn.rows
            return jnp.sum(scaled.reshape(count, size, dim), axis=0)

        def add(total: jax.Array, numbers: jax.Array) -> tuple[jax.Array, None]:
            estimates = of_shared(numbers) if shared else of_own(numbers)
            return total + estimates.astype(total.dtype), None

        chunks = self._chunks(dim + size if shared else dim * max(1, size))
        total, _ = jax.lax.scan(add, jnp.zeros((size, dim), lines.wide_type(params)), chunks)
        return lines.unflatten(dim / self.num_directions * total, params)

    def _slopes(self, params: PyTree, batch: PyTree, drawn: lines.Directions) -> jax.Array:
        """Slopes of the losses along directions, `[n, B]`."""
        return self._halves(self._values(self._points(params, drawn), batch))

    def _points(self, params: PyTree, drawn: lines.Directions) -> PyTree:
        radius = jnp.asarray(self.radius, drawn.inverse.dtype)
        return lines.displaced(params, drawn, radius, -radius)

    def _values(self, points: PyTree, batch: PyTree) -> jax.Array:
        values = wide(jax.vmap(self.losses, in_axes=(0, None))(points, batch))
        one = jax.ShapeDtypeStruct(values.shape[1:], values.dtype)
        check_shape("losses(params, batch)", one, (lines.batch_size(batch),))
        return values

    def _halves(self, values: jax.Array) -> jax.Array:
        """Slopes `[n, ...]` from the losses at both ends, `[2n, ...]`."""
        ahead, behind = jnp.split(values, 2)
        return (ahead - behind) / jnp.asarray(2 * self.radius, values.dtype)

    def _there(self, numbers: jax.Array, slopes: jax.Array) -> jax.Array:
        return jnp.where((numbers < self.num_directions)[:, None], slopes, 0)

    def _shared(self, method: str, key: jax.Array) -> jax.Array:
        if self.directions != "shared":
            raise ValueError(f"{method} needs directions='shared', got {self.directions!r}")
        return check_key("key", key)

    def _chunks(self, numbers: int) -> jax.Array:
        """Numbers of the directions, `[chunks, size]`: a few too many, for chunks of one size."""
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
    r"""Per-example gradients of a smoothed loss from its values: slopes along random directions.

    $$ \delta_{bj} = \frac{f_b(x + r y_j) - f_b(x - r y_j)}{2r}, \qquad
       e_b = \frac dm \sum_{j=1}^m \delta_{bj} y_j, \qquad y_j \sim \mathrm{Unif}(S^{d-1}) $$

    $E\,e_b = \nabla f_{b,r}(x)$, where $f_{b,r}(x) = E f_b(x + r u)$ with u uniform in the unit
    **ball**; no loss need be differentiable. Sphere and ball are those of the whole tree of d
    entries, in its l2 norm.

    Records that share directions are told apart by few numbers: $e_b = \sqrt{d/m} \sum_j v_{bj}
    y_j$ with the coordinates $v_b = \sqrt{d/m}\,\delta_b$. Clip, sum and noise these `[B, m]`, and
    make a gradient of the sum by `gradient`, which is post-processing.

    Guarantee: none of its own; it aggregates nothing. Directions depend on the key and d alone,
    not on `chunk_size`. Shared ones are *public*; those of records belong to places in the batch,
    which shift when a record is removed, and may be published under replace-one alone. Where a loss
    is L-Lipschitz, surely $\|v_b\| \le L\sqrt d$ and $\|e_b\| \le L d$; on average
    $E\|v_b\|^2 \le L^2 d / (d-1)$, d > 1. The same key at x and $x'$ gives the same directions;
    then estimates differ by $d L \|x - x'\| / r$ at most.

    | input | result |
    | --- | --- |
    | a NaN loss of a record | its coordinates along these directions, its estimate: NaN |
    | `radius` 0 or NaN, traced | NaN |
    | d = 1 | directions are 1 and -1, and each gives $(f(x + r) - f(x - r)) / (2r)$ |

    Rounding: losses of modulus $|f|$ leave an error of about $\epsilon |f| \sqrt d / r$ in the
    norm of $v_b$, with $\epsilon$ = 6e-8 in float32. Where that matters subtract a constant from
    the loss, within it and independent of the data, or use x64.

    Memory: a chunk of directions, the points at both ends and their losses, 3 d + 2 B numbers a
    direction, and what `losses` takes for that many points; with `directions="record"` 3 B d, and
    the result. Time: drawing directions, anew in `gradient`, adds up to a fifth
    to the losses of 1,024 records on a CPU, and as much as they take for 256 of a linear model.

    Args:
      losses: `losses(params, batch) -> [B]`, of a batch with leaves `[B, ...]` (*secret*). It meets
        params in at least float32, under `jax.vmap` over them; host code can be wrapped by
        `jax.pure_callback` with a `vmap_method`.
      radius: r, in units of the parameters, `> 0` (*public*); scalar, may be traced.
      num_directions: m, `>= 1` (*public*, static).
      directions: `"shared"`, m directions for the whole batch, so that a linear model becomes a
        product of matrices; or `"record"`, m for each record, so that errors are independent and
        average out, at the price of B times as many directions.
      chunk_size: Directions that coexist, at most; for `"record"` those of each record. None for
        about a million numbers.

    Returns:
      A `ZerothOrder`: `coordinates(params, batch, key=key)` `[B, m]` and
      `gradient(v, params, key=key)`, for shared directions; and a per-example tree, leaves
      `[B, *p]`, when called as `oracle(params, batch, key=key)`.

    Raises:
      TypeError: If a number is no integer; later, if the key is missing or not typed, or a leaf of
        params is of no float type.
      ValueError: If a value is outside its bound, or `directions` is unknown; later, if a shape is
        not as told.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> wrong = lambda x, batch: jnp.where(x[0] < batch["y"], 1.0, 0.0)  # its gradient is 0
      >>> oracle = dpjax.transforms.smooth_zeroth_order(wrong, radius=1.0, num_directions=10)
      >>> x, batch, key = jnp.zeros(1), {"y": jnp.array([0.5, 2.0])}, jax.random.key(0)
      >>> v = oracle.coordinates(x, batch, key=key)
      >>> [round(float(oracle.gradient(one, x, key=key)[0]), 2) for one in v]
      [-0.5, 0.0]

    Source: Flaxman, Kalai and McMahan, "Online convex optimization in the bandit setting", 2005,
    lemma 2.1; Kornowski, Liu and Talwar, "Private nonsmooth nonconvex optimization", 2025.
    """
    return ZerothOrder(losses, radius, num_directions, directions, chunk_size)
