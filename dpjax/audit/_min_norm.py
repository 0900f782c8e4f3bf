"""The point of least norm in the convex hull of some vectors, without a factor of the hull."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

_matmul = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
_STEPS = 30  # twelve to twenty reach rounding; what is left serves ill-conditioned hulls


class Hull(NamedTuple):
    """Vectors `base + rows[k]`, k < K; their hull is what weights on the simplex give.

    Only differences matter on the simplex, so the Gram matrix is that of the `rows`: it stays
    accurate where the vectors are close to each other. Rows of 0 repeat `base` and do no harm.
    """

    base: jax.Array  # [d]
    rows: jax.Array  # [K, d]
    gram: jax.Array  # [K, K]

    @classmethod
    def empty(cls, base: jax.Array, size: int) -> "Hull":
        """The hull of `base` alone, with room for `size` vectors."""
        zeros = partial(jnp.zeros, dtype=base.dtype)
        return cls(base, zeros((size, *base.shape)), zeros((size, size)))

    def put(self, k: jax.Array, vector: jax.Array) -> "Hull":
        """With `vector` in row k."""
        row = vector - self.base
        rows = self.rows.at[k].set(row)
        dots = _matmul(rows, row)
        return Hull(self.base, rows, self.gram.at[k].set(dots).at[:, k].set(dots))

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
    """Weights, multipliers of their signs and of their sum; the best norm and bound so far."""

    weights: jax.Array
    duals: jax.Array
    level: jax.Array
    upper: jax.Array
    lower: jax.Array


def min_norm(hull: Hull, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    r"""The least norm in a hull, between a norm that is attained and a lower bound.

    $$ \max_w \min_k \langle g_k, w / \|w\| \rangle = \min_{\lambda \in \Delta}
       \Bigl\| \sum_k \lambda_k g_k \Bigr\| $$

    Primal-dual interior point steps with a predictor and a corrector, which first-order steps do
    not match on ill-conditioned Gram matrices. Residuals come from the vectors themselves: float32
    is accurate to about 1e-6 of the largest norm, 1e-5 for hulls 10^4 times longer than wide.

    Args:
      hull: K vectors in d dimensions; a step costs $2 K d + K^3 / 3$.
      weights: Weights `[K]` that also count as a candidate.

    Returns:
      `(upper, lower)`, scalars with 0 <= lower <= upper up to rounding.
    """
    dtype, eps = hull.gram.dtype, jnp.finfo(hull.gram.dtype).eps
    largest = jnp.max(jnp.diag(hull.gram))
    unit = jnp.where(largest > 0, largest, 1)
    gram = hull.gram / unit

    def bounds(weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        point = hull.point(weights)
        norm, slopes = jnp.linalg.norm(point), hull.slopes(point)
        inner = jnp.min(slopes) + _matmul(hull.base, point)
        return norm, inner / jnp.where(norm > 0, norm, 1), slopes / unit

    def newton(s: _Iterate, _: None) -> tuple[_Iterate, None]:
        norm, lower, slopes = bounds(s.weights)
        factor = jnp.linalg.cholesky(gram + jnp.diag(s.duals / s.weights + 4 * eps))
        gap = jnp.mean(s.weights * s.duals)
        missing = 1 - jnp.sum(s.weights)
        apart = slopes - s.level - s.duals
        ones = _solve(factor, jnp.ones_like(slopes))

        def direction(target: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            moved = _solve(factor, target / s.weights - apart)
            level = (missing - jnp.sum(moved)) / jnp.sum(ones)
            moved = moved + level * ones
            return moved, (target - s.duals * moved) / s.weights, level

        def room(moved: jax.Array, duals: jax.Array) -> jax.Array:
            return jnp.minimum(_room(s.weights, moved), _room(s.duals, duals))

        moved, duals, level = direction(-s.weights * s.duals)
        share = jnp.minimum(1, room(moved, duals))
        left = jnp.mean((s.weights + share * moved) * (s.duals + share * duals)) / gap
        moved, duals, level = direction(left**3 * gap - s.weights * s.duals - moved * duals)
        share = jnp.minimum(1, 0.99 * room(moved, duals))
        good = jnp.isfinite(share) & jnp.all(jnp.isfinite(moved)) & jnp.all(jnp.isfinite(duals))
        least = 1e4 * jnp.finfo(dtype).tiny

        def step(value: jax.Array, change: jax.Array) -> jax.Array:
            return jnp.where(good, value + share * change, value)

        weights = jnp.maximum(step(s.weights, moved), least)
        return _Iterate(
            weights / jnp.sum(weights),
            jnp.maximum(step(s.duals, duals), least),
            step(s.level, level),
            jnp.minimum(s.upper, norm),
            jnp.maximum(s.lower, lower),
        ), None

    upper, lower, _ = bounds(weights)
    uniform = jnp.full_like(weights, 1 / weights.size)
    slopes = bounds(uniform)[2]
    level = jnp.min(slopes) - 1
    start = _Iterate(uniform, slopes - level, level, upper, lower)
    last = jax.lax.scan(newton, start, None, length=_STEPS)[0]
    return last.upper, jnp.clip(last.lower, 0, last.upper)


def _solve(factor: jax.Array, vector: jax.Array) -> jax.Array:
    return jax.scipy.linalg.cho_solve((factor, True), vector)


def _room(values: jax.Array, changes: jax.Array) -> jax.Array:
    """The largest share of the changes that leaves positive values at 0 or above."""
    falls = changes < 0
    return jnp.min(jnp.where(falls, -values / jnp.where(falls, changes, -1), jnp.inf))
