"""Halfspaces: all thresholds of the projections of points onto directions."""

import dataclasses
import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_finite, check_shape, register_dataclass
from dpjax.queries._matrix import known_array
from dpjax.queries._workload import Workload, checked_vector

_EXACT_DIRECTIONS = 10  # 2^10 sign patterns


@functools.partial(register_dataclass, rechecked=False)
@dataclasses.dataclass(frozen=True, eq=False)
class Halfspace(Workload):
    r"""All halfspaces of given normals over points: one query for each distinct threshold.

    $q_{u,\theta}(z) = 1[\langle u, x_z\rangle \le \theta]$

    For each direction in turn, thresholds ascend over the distinct projections but the largest,
    whose halfspace holds all points. Points of equal projection (computed in double precision,
    alike for equal points) enter a halfspace together. A direction and its negative give the same
    queries up to complements. See `Workload` for the methods: one permutation and one cumulative
    sum a direction; it holds $2rk$ indices. Records are indices of points.

    Guarantee: one record moves an answer by at most 1. In the l2 norm exact, but under replace-one
    with more than 10 directions: then an upper bound on the root of the largest
    $\sum_u |g_u(z) - g_u(z')|$, $g_u$ the rank among distinct projections, by $\sum_u (n_u - 1)$
    and by twice the largest distance from the median ranks.

    Args:
      points: The cells, `[k, d]` (*public*, known at construction, data).
      directions: Normals, `[r, d]`; only their direction matters (*public*, known, data).

    Raises:
      TypeError: If an entry is no real number.
      ValueError: If shapes do not agree, an entry is NaN or infinite, the arrays are traced, or no
        two points have different projections.

    Example:
      >>> import jax.numpy as jnp
      >>> halfspace = Halfspace([[0.0], [2.0], [1.0], [1.0]], [[1.0]])
      >>> halfspace.num_queries
      2
      >>> halfspace.answers(jnp.array([5, 1, 2, 3])).tolist()
      [5, 10]
    """

    points: ArrayLike
    directions: ArrayLike
    _index: "_Index" = dataclasses.field(default=None, repr=False)  # type: ignore[assignment]
    centre = 0.5

    def __post_init__(self) -> None:
        for name, value in (("points", self.points), ("directions", self.directions)):
            check_finite(name, value)
            check_shape(name, value, (None, None))
        points = known_array("points", self.points)
        directions = known_array("directions", self.directions)
        check_shape("directions", directions, (None, points.shape[1]))
        vars(self).update(_index=_index(points, directions))
        vars(self).update(points=jnp.asarray(self.points), directions=jnp.asarray(self.directions))

    @functools.cached_property
    def num_queries(self) -> int:
        """Number of distinct thresholds of all directions, without the largest of each."""
        return jnp.shape(self._index.ends)[0]

    @functools.cached_property
    def universe_size(self) -> int:
        """Number of points."""
        return jnp.shape(self._index.rank)[1]

    def answers(self, p: ArrayLike) -> jax.Array:
        """Cumulative sums along each direction, `[m]`, for `p` `[k]`."""
        vector = checked_vector("p", p, self.universe_size)
        return jnp.cumsum(vector[self._index.order], axis=1).reshape(-1)[self._index.ends]

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """Cumulative sums from the other end, `[k]`, for `v` `[m]`."""
        vector = checked_vector("v", v, self.num_queries)
        rank = self._index.rank
        ends = jnp.zeros(rank.size, vector.dtype).at[self._index.ends].set(vector)
        sums = jnp.cumsum(ends.reshape(rank.shape)[:, ::-1], axis=1)[:, ::-1]
        return jnp.sum(jnp.take_along_axis(sums, rank, axis=1), axis=0, dtype=vector.dtype)

    @functools.cached_property
    def _constants(self) -> dict[str, float]:
        rank, ends = known_array("rank", self._index.rank), known_array("ends", self._index.ends)
        is_end = np.zeros(rank.size, np.int32)
        is_end[ends] = 1
        up_to = np.cumsum(is_end.reshape(rank.shape), axis=1)
        before = np.take_along_axis(up_to - is_end.reshape(rank.shape), rank, axis=1)
        excluded = before.astype(np.int64)  # thresholds below a point: its rank among distinct ones
        longest = math.sqrt((up_to[:, -1].sum() - excluded.sum(axis=0)).max())
        apart = math.sqrt(_largest_l1_distance(excluded, up_to[:, -1]))
        return {"value_range": 1.0, "largest": 1.0, "l2_replaced": apart, "l2_record": longest}


class _Index(NamedTuple):
    """Where the points lie along each direction.

    Attributes:
      order: The points by projection, `[r, k]`.
      rank: The inverse permutations, `[r, k]`.
      ends: `u * k` + the rank of the last point of each halfspace, `[m]`, ascending.
    """

    order: jax.Array
    rank: jax.Array
    ends: jax.Array


def _index(points: np.ndarray, directions: np.ndarray) -> _Index:
    k, r = len(points), len(directions)
    if k * r >= 2**31:
        raise ValueError(f"points times directions must be < 2**31, got {k} times {r}")
    projected = np.zeros((r, k))
    # the same operations for every point
    for coordinate, weight in zip(points.T, directions.T.astype(np.float64), strict=True):
        with np.errstate(over="ignore", invalid="ignore"):
            projected += weight[:, None] * coordinate.astype(np.float64)
    for direction, along in zip(directions, projected, strict=True):
        if not np.isfinite(along).all():
            raise ValueError(f"projections must be finite, got an infinite one on {direction}")
    order = np.argsort(projected, axis=1, kind="stable")
    ascending = np.take_along_axis(projected, order, axis=1)
    ends = np.flatnonzero(np.pad(ascending[:, 1:] > ascending[:, :-1], ((0, 0), (0, 1))))
    if not ends.size:
        raise ValueError(
            f"some two points must have different projections, got none of {k} points on {r} "
            "directions"
        )
    rank = np.argsort(order, axis=1)
    return _Index(*(jnp.asarray(array, jnp.int32) for array in (order, rank, ends)))


def _largest_l1_distance(ranks: np.ndarray, highest: np.ndarray) -> int:
    """Of two columns of `ranks` `[r, k]`, each in [0, highest]; exact for few directions."""
    if len(ranks) <= _EXACT_DIRECTIONS:
        signs = itertools.product((1, -1), repeat=len(ranks) - 1)  # the first is +
        return max(int(np.ptp(np.array((1, *sign)) @ ranks)) for sign in signs)
    medians = np.sort(ranks, axis=1)[:, ranks.shape[1] // 2]
    radius = np.abs(ranks - medians[:, None]).sum(axis=0).max()
    return int(min(highest.sum(), 2 * radius))
