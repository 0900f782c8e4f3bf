"""The minimiser of a convex sum on a ball, with a certificate of how near it is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular

from dpjax.core._pairs import Pair, add_pairs, pair_of

MOST_NEWTON_DIM = 1000
_NEWTON_STEPS = 40
_SHARPER = 1e-2  # of the goal, which Newton's method reaches in a step more
_HALVINGS = 60
_JITTER = 1e-15  # of a diagonal of 1, for each coordinate
_SEARCHES = 24
_NEAR_EDGE = 1e-12
_ROWS = 256  # that are added at once
_UNSEEN = 16  # steps of accelerated descent between certificates
if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:  # jax 0.6
    from jax.experimental import enable_x64  # type: ignore[attr-defined, no-redef]


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of arrays, traced with x64 enabled, also where it is batched.

    Rules by which `jax.vmap` batches what was traced before run outside the scope, where they cut
    types back to float32; so the function itself is batched, within it. Arguments and results must
    not be of 64 bits: convert inside.

    Args:
      function: Of arrays to a tree of arrays. It may close over static values alone.

    Returns:
      A function of the same arguments.
    """

    def scoped(*arguments: Any) -> Any:
        with enable_x64(True), jax.default_matmul_precision("highest"):
            return function(*arguments)

    wrapped = jax.custom_batching.custom_vmap(scoped)

    @wrapped.def_vmap
    def rule(axis_size: int, batched: Any, *arguments: Any) -> Any:
        axes = tuple(jax.tree.map(lambda held: 0 if held else None, each) for each in batched)
        batch = jax.vmap(function, in_axes=axes, axis_size=axis_size)
        result = in_double(batch)(*arguments)
        return result, jax.tree.map(lambda _: True, result)

    return wrapped


Function = Callable[[jax.Array], jax.Array]


def held_slopes(
    slopes: Function, curvatures: Function, steepest: jax.Array
) -> tuple[Function, Function]:
    """Slopes and curvatures of margins, of a loss that is linear from the steepest slope on."""
    return (
        lambda margins: jnp.clip(slopes(margins), -steepest, steepest),
        lambda margins: jnp.where(jnp.abs(slopes(margins)) < steepest, curvatures(margins), 0),
    )


class Objective(NamedTuple):
    r"""$\sum_i \ell_i(\langle x_i, w\rangle) + \frac12 w^\top \Lambda w + \langle b, w\rangle$.

    Attributes:
      x: `[n, d]`; rows that count nothing are zero.
      slopes: Of margins `[n]`, nondecreasing.
      curvatures: Derivatives of the slopes.
      lam: The diagonal of $\Lambda$: a number, or `[d]`.
      linear: b, `[d]`.
      radius: Of the ball; None for no ball.
      largest_curvature: beta, a bound on `curvatures`.
      units: Distances are of $w_j / u_j$, in which the regulariser is the same in all coordinates:
        a number, or `[d]`.
    """

    x: jax.Array
    slopes: Function
    curvatures: Function
    lam: jax.Array
    linear: jax.Array
    radius: jax.Array | None
    largest_curvature: float
    units: jax.Array | float = 1.0

    def gradient(self, w: jax.Array) -> jax.Array:
        """`[d]`."""
        return self.slopes(self.x @ w) @ self.x + self.lam * w + self.linear

    def exact_gradient(self, w: jax.Array) -> jax.Array:
        """`[d]`, whose error does not grow with the number of records, as that of a sum would."""
        total = _weighted_sum(self.slopes(self.x @ w), self.x)
        return total.high + (self.lam * w + self.linear) + total.low

    def project(self, w: jax.Array) -> jax.Array:
        """The nearest point of the ball."""
        if self.radius is None:
            return w
        norm = jnp.linalg.norm(w)
        return jnp.where(norm > self.radius, self.radius / jnp.where(norm > 0, norm, 1), 1) * w

    def residual(self, w: jax.Array, gradient: jax.Array) -> jax.Array:
        """Distance, in units, of minus the gradient from the normal cone at w, or slightly more.

        The least lam times the distance of w from the minimiser is at most that.

        w is the exact minimiser for a linear term that differs by so much.
        """
        scaled = self.units * gradient
        if self.radius is None:
            return jnp.linalg.norm(scaled)
        on_edge = jnp.linalg.norm(w) >= self.radius * (1 - _NEAR_EDGE)
        normal = self.units * jnp.where(on_edge, w, 0)
        length = jnp.linalg.norm(normal)
        normal /= jnp.where(length > 0, length, 1)
        return jnp.linalg.norm(scaled + jnp.maximum(-scaled @ normal, 0) * normal)

    def rounding(self, w: jax.Array) -> jax.Array:
        """What rounding may add to the residual at w."""
        sizes = jnp.abs(self.x)
        slopes = self.largest_curvature * (sizes @ jnp.abs(w)) + jnp.abs(self.slopes(self.x @ w))
        total = slopes @ sizes + self.lam * jnp.abs(w) + jnp.abs(self.linear)
        return 4 * jnp.finfo(w.dtype).eps * jnp.linalg.norm(self.units * total)


class _Point(NamedTuple):
    steps: jax.Array
    w: jax.Array
    gradient: jax.Array
    residual: jax.Array


def minimise(objective: Objective, goal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The minimiser `[d]` and its residual, at most `goal`; sums are exact to 100 bits or so.

    Newton's method on the ball, then accelerated projected gradient for as many steps as provably
    reach the goal, or until rounding stops them. Both end when the certificate is met: on data
    depends how long this takes, and the point only within what the certificate allows.
    """
    dim = objective.x.shape[1]
    w = jnp.zeros(dim, objective.x.dtype)
    point = _at(objective, w, 0)
    if dim <= MOST_NEWTON_DIM:

        def unfinished(point: _Point) -> jax.Array:
            return (point.steps < _NEWTON_STEPS) & (point.residual > _SHARPER * goal)

        def newton(point: _Point) -> _Point:
            following = _at(objective, _newton(objective, point), point.steps + 1)
            # at the rounding of the residual there is nothing to gain
            worse = (following.residual >= point.residual) & (point.residual <= goal)
            kept = jax.tree.map(lambda old, new: jnp.where(worse, old, new), point, following)
            return kept._replace(steps=jnp.where(worse, _NEWTON_STEPS, following.steps))

        point = jax.lax.while_loop(unfinished, newton, point)
    point = _accelerated(objective, point, goal)
    return point.w, point.residual


def _at(objective: Objective, w: jax.Array, steps: jax.Array | int) -> _Point:
    gradient = objective.exact_gradient(w)
    residual = objective.residual(w, gradient)
    return _Point(jnp.asarray(steps, jnp.int32), w, gradient, residual)


def _weighted_sum(weights: jax.Array, rows: jax.Array) -> Pair:
    """Sum of rows `[n, d]` times weights `[n]`, to about the square of a float's precision."""

    def added(start: jax.Array | int, size: int, total: Pair) -> Pair:
        part, by = (jax.lax.dynamic_slice_in_dim(a, start, size) for a in (rows, weights))
        return add_pairs(total, pair_of(part * by[:, None]))

    def zeros(*shape: int) -> Pair:
        return pair_of(jnp.zeros((*shape, rows.shape[1]), rows.dtype))

    def folded(pairs: Pair) -> Pair:
        return jax.lax.scan(lambda total, pair: (add_pairs(total, pair), None), zeros(), pairs)[0]

    if not len(rows):
        return zeros()
    size = min(_ROWS, len(rows))
    whole, rest = divmod(len(rows), size)
    total = jax.lax.fori_loop(0, whole, lambda i, total: added(i * size, size, total), zeros(size))
    return add_pairs(folded(total), folded(added(whole * size, rest, zeros(rest))))


def _bisected(
    below: Function, low: jax.Array, high: jax.Array, halvings: int
) -> tuple[jax.Array, jax.Array]:
    """The ends of the interval, halved so often, at the number up to which `below` holds."""

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) / 2
        under = below(middle)
        return jnp.where(under, middle, low), jnp.where(under, high, middle)

    return jax.lax.fori_loop(0, halvings, halve, (low, high))


def _newton(objective: Objective, point: _Point) -> jax.Array:
    """The minimiser of the quadratic model on the ball, or a point on the way to it."""
    x, w, gradient = objective.x, point.w, point.gradient
    margins = x @ w
    hessian = (x * objective.curvatures(margins)[:, None]).T @ x
    hessian += jnp.diag(jnp.broadcast_to(objective.lam, w.shape))
    move = _quadratic_move(hessian, gradient, w, objective.radius)
    move = objective.project(w + move) - w
    moved = x @ move

    def steepness(share: jax.Array) -> jax.Array:
        rest = objective.linear @ move + (objective.lam * (w + share * move)) @ move
        return objective.slopes(margins + share * moved) @ moved + rest

    one = jnp.ones((), w.dtype)
    full = steepness(one) <= 0.1 * jnp.abs(gradient @ move)
    share, _ = _bisected(lambda share: steepness(share) < 0, jnp.zeros_like(one), one, _SEARCHES)
    found = jnp.where(full, w + move, objective.project(w + share * move))
    return jnp.where(jnp.all(jnp.isfinite(found)), found, w)


# Count, multiplier, factor and its scales, move.
_Trial = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]


def _quadratic_move(
    hessian: jax.Array, gradient: jax.Array, w: jax.Array, radius: jax.Array | None
) -> jax.Array:
    r"""From w to the minimiser of a quadratic on the ball: $-(H + \mu I)^{-1} (g + \mu w)$.

    $\mu$ rises from 0 by Newton's method on the reciprocal of the length, which stays on one side.
    By Cholesky factors of unit diagonal: an intercept may differ from the rest by orders.
    """

    def factored(multiplier: jax.Array) -> tuple[jax.Array, jax.Array]:
        matrix = hessian + multiplier * jnp.eye(len(w), dtype=w.dtype)
        unit = 1 / jnp.sqrt(jnp.diag(matrix))
        matrix = matrix * unit[:, None] * unit[None, :]
        jitter = _JITTER * len(w) * jnp.eye(len(w), dtype=w.dtype)
        return jnp.linalg.cholesky(matrix + jitter), unit

    def moved(factor: jax.Array, unit: jax.Array, multiplier: jax.Array) -> jax.Array:
        return -unit * cho_solve((factor, True), unit * (gradient + multiplier * w))

    zero = jnp.zeros((), w.dtype)
    first = factored(zero)
    if radius is None:
        return moved(*first, zero)

    def outside(carry: _Trial) -> jax.Array:
        count, _, _, _, move = carry
        return (jnp.linalg.norm(w + move) > radius * (1 + _NEAR_EDGE / 100)) & (count < _HALVINGS)

    def closer(carry: _Trial) -> _Trial:
        count, multiplier, factor, unit, move = carry
        end = w + move
        length = jnp.linalg.norm(end)
        slope = solve_triangular(factor, unit * end, lower=True)
        multiplier += (length / jnp.linalg.norm(slope)) ** 2 * (length / radius - 1)
        factor, unit = factored(multiplier)
        return count + 1, multiplier, factor, unit, moved(factor, unit, multiplier)

    start = jnp.zeros((), jnp.int32), zero, *first, moved(*first, zero)
    return jax.lax.while_loop(outside, closer, start)[-1]


def quadratic_minimiser(values: jax.Array, target: jax.Array, radius: jax.Array) -> jax.Array:
    r"""Of $\sum_j \frac12 \nu_j u_j^2 - t_j u_j$ on the ball of this radius.

    Args:
      values: $\nu > 0$, `[d]`.
      target: t, `[d]`.
      radius: A scalar.

    Returns:
      `[d]`.
    """

    def outside(multiplier: jax.Array) -> jax.Array:
        return jnp.linalg.norm(target / (values + multiplier)) > radius

    most = jnp.linalg.norm(target) / radius
    _, multiplier = _bisected(outside, jnp.zeros_like(radius), most, _HALVINGS)
    held = target / (values + multiplier)
    held = held * (radius / jnp.maximum(jnp.linalg.norm(held), radius * 1e-300))
    free = target / values
    return jnp.where(jnp.linalg.norm(free) > radius, held, free)


def _accelerated(objective: Objective, point: _Point, goal: jax.Array) -> _Point:
    """Nesterov's method for strong convexity, of as many steps as its rate asks for."""
    lam, x = jnp.min(objective.lam), objective.x
    smoothness = objective.largest_curvature * jnp.sum(x * x) + jnp.max(objective.lam)
    rate = jnp.sqrt(lam / smoothness)
    momentum = (1 - rate) / (1 + rate)
    # the gap, at first residual^2 / lam, shrinks by 1 - rate a step; four distances from the
    # minimiser, each at most sqrt(2 gap / lam), bound a step, and 2 L times that the residual
    ratio = smoothness * point.residual / (lam * goal)
    most = jnp.ceil(jnp.maximum(jnp.log(128 * ratio**2), 0) / rate) + 2
    most = jnp.minimum(most, 2.0**30).astype(jnp.int32)
    start = point._replace(steps=jnp.zeros((), jnp.int32))

    def unfinished(carry: tuple[_Point, jax.Array, jax.Array]) -> jax.Array:
        point, _, before = carry
        at_rest = (point.residual >= before) & (point.residual <= objective.rounding(point.w))
        return (point.residual > goal) & (point.steps < most) & ~at_rest

    def move(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        before, ahead = carry
        w = objective.project(ahead - objective.gradient(ahead) / smoothness)
        return w, w + momentum * (w - before)

    def step(
        carry: tuple[_Point, jax.Array, jax.Array],
    ) -> tuple[_Point, jax.Array, jax.Array]:
        point, ahead, _ = carry
        w, ahead = jax.lax.fori_loop(0, _UNSEEN, move, (point.w, ahead))
        return _at(objective, w, point.steps + _UNSEEN), ahead, point.residual

    nothing_yet = jnp.full_like(point.residual, jnp.inf)
    return jax.lax.while_loop(unfinished, step, (start, point.w, nothing_yet))[0]
