"""The point of least norm in the convex hull of some vectors."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

_matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
_STEPS = 40  # twenty mostly reach rounding; what is left serves ill-conditioned hulls


class Hull(NamedTuple):
    """Vectors `base + rows[k]`, k < K; their hull is what weights on the simplex give.

    Only differences matter on the simplex, so the Gram matrix is that of the `rows`: it stays
    accurate where the vectors are close to each other. Rows of 0 repeat `base` and do no harm.
    """

    base: jax.Array  # [d]
    rows: jax.Array  # [K, d]
    gram: jax.Array  # [K, K]

    @classmethod
    def empty(cls, like: jax.Array, size: int) -> "Hull":
        """Room for `size` vectors; the one in row 0, to be put there first, becomes the base."""
        zeros = partial(jnp.zeros, dtype=like.dtype)
        return cls(zeros(like.shape), zeros((size, *like.shape)), zeros((size, size)))

    def put(self, k: jax.Array, vector: jax.Array) -> "Hull":
        """With `vector` in row k."""
        base = jnp.where(k == 0, vector, self.base)
        rows = self.rows.at[k].set(vector - base)
        dots = _matmul(rows, rows[k])
        return Hull(base, rows, self.gram.at[k].set(dots).at[:, k].set(dots))

    def point(self, weights: jax.Array) -> jax.Array:
        """`sum_k weights_k vector_k`, `[d]`."""
        return self.base + _matmul(weights, self.rows)

    def slopes(self, point: jax.Array) -> jax.Array:
        """`<vector_k - base, point>`, `[K]`: half the squared norm's gradient, less a constant.

        From the point itself, not from the Gram matrix, whose rounding would count squared.
        """
        return _matmul(self.rows, point)


def pairwise_steps(hull: Hull, weights: jax.Array, slopes: jax.Array, num_steps: int) -> jax.Array:
    """Weights after pairwise Frank-Wolfe steps: cheap, and soon there from a warm start.

    Each moves weight from the worst vector in use to the best one, with exact line search. Ties go
    to the first, so that no weight comes to rows of 0 that only repeat the base in row 0.

    Args:
      hull: K vectors.
      weights: Where to start, `[K]`.
      slopes: `hull.slopes(hull.point(weights))`.
      num_steps: Number of steps.

    Returns:
      Weights `[K]`, at least 0 and of sum 1.
    """

    def body(
        carry: tuple[jax.Array, jax.Array], _: None
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        weights, slopes = carry
        best = jnp.argmin(slopes)
        worst = jnp.argmax(jnp.where(weights > 0, slopes, -jnp.inf))
        change = hull.gram[best] - hull.gram[worst]
        curvature = change[best] - change[worst]
        step = (slopes[worst] - slopes[best]) / jnp.where(curvature > 0, curvature, 1)
        step = jnp.where(curvature > 0, jnp.clip(step, 0, weights[worst]), 0)
        return (weights.at[best].add(step).at[worst].add(-step), slopes + step * change), None

    weights = jax.lax.scan(body, (weights, slopes), None, length=num_steps)[0][0]
    return weights / jnp.sum(weights)


class _Iterate(NamedTuple):
    """Weights, multipliers of their signs and sum, share of the last step; best bounds so far."""

    weights: jax.Array
    duals: jax.Array
    level: jax.Array
    share: jax.Array
    upper: jax.Array
    lower: jax.Array


def min_norm(hull: Hull, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""The least norm in a hull, between a norm that is attained and a lower bound.

    $$ \max_w \min_k \langle g_k, w / \|w\| \rangle \le \min_{\lambda \in \Delta}
       \Bigl\| \sum_k \lambda_k g_k \Bigr\| $$

    with equality where 0 is outside. Primal-dual interior point steps, which first-order steps do
    not match on ill-conditioned Gram matrices. Residuals come from the vectors themselves, so that
    float32 is accurate to about 1e-6 of the largest norm.

    Args:
      hull: K vectors in d dimensions; a step costs about $4 K d + K^3 / 3$.
      weights: Weights `[K]` that also count as a candidate.

    Returns:
      `(upper, lower)`, scalars with 0 <= lower <= upper up to rounding.
    """
    dtype, eps = hull.gram.dtype, jnp.finfo(hull.gram.dtype).eps
    largest = jnp.max(jnp.diag(hull.gram))
    unit = jnp.where(largest > 0, largest, 1)
    gram = hull.gram / unit
    ones = jnp.ones_like(weights)

    def bounds(weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        point = hull.point(weights)
        norm, slopes = jnp.linalg.norm(point), hull.slopes(point)
        inner = jnp.min(slopes) + _matmul(hull.base, point)
        return norm, inner / jnp.where(norm > 0, norm, 1), slopes / unit

    def newton(s: _Iterate, _: None) -> tuple[_Iterate, None]:
        norm, lower, slopes = bounds(s.weights)
        # the optimum has duals = slopes - level >= 0 and weights * duals = 0; after a short step
        # the products aim high, to get away from the boundary
        aim = jnp.clip((1 - s.share) ** 2, 0.02, 0.8) * jnp.mean(s.weights * s.duals)
        wanted = aim / s.weights - s.duals
        residual = slopes - s.level - s.duals
        factor = jnp.linalg.cholesky(gram + jnp.diag(s.duals / s.weights + 4 * eps))
        sides = jnp.stack([wanted - residual, ones], axis=1)
        moved, raised = jax.scipy.linalg.cho_solve((factor, True), sides).T
        level = (1 - jnp.sum(s.weights) - jnp.sum(moved)) / jnp.sum(raised)
        moved = moved + level * raised
        values = jnp.stack([s.weights, s.duals])
        changes = jnp.stack([moved, wanted - s.duals / s.weights * moved])
        falls = changes < 0
        room = jnp.min(jnp.where(falls, -values / jnp.where(falls, changes, -1), jnp.inf))
        good = jnp.all(jnp.isfinite(changes))
        share = jnp.where(good, jnp.minimum(1, 0.95 * room), 0)
        values = values + jnp.where(good, share * changes, 0)
        weights, duals = jnp.maximum(values, 1e4 * jnp.finfo(dtype).tiny)
        level = s.level + jnp.where(good, share * level, 0)
        better = jnp.minimum(s.upper, norm), jnp.maximum(s.lower, lower)
        return _Iterate(weights / jnp.sum(weights), duals, level, share, *better), None

    upper, lower, _ = bounds(weights)
    zero = jnp.zeros((), dtype)
    start = _Iterate(ones / weights.size, ones, zero, zero, upper, lower)
    last = jax.lax.scan(newton, start, None, length=_STEPS)[0]
    return last.upper, jnp.clip(last.lower, 0, last.upper)
