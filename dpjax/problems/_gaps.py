"""Exact and certified criteria of saddle points: how far a pair of strategies is from optimal.

All are evaluations on the data they are given, for experiments and public data: **not private**.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from optax.projections import projection_simplex

from dpjax.core import check_int, check_nonnegative, check_positive, check_shape, wide
from dpjax.geometry import Domain


class BestResponse(NamedTuple):
    """An approximate minimiser over a domain.

    Attributes:
      point: `[p]`.
      value: The objective there, `[]`.
      lower: A lower bound on its minimum, `[]`.
    """

    point: jax.Array
    value: jax.Array
    lower: jax.Array


class _Search(NamedTuple):
    """`total` is the sum of the weights; `scores` and `offset` are of the average linearisation."""

    total: jax.Array
    inverse_step: jax.Array
    scores: jax.Array
    offset: jax.Array
    point: jax.Array
    best: BestResponse


def best_response(
    objective: Callable[[jax.Array], jax.Array], domain: Domain, *, steps: int = 1000
) -> BestResponse:
    r"""Minimum of a smooth convex function over a polytope, between certified bounds.

    Accelerated entropic mirror descent over the weights of the m vertices, from the uniform ones,
    with the step size found as it goes. With A_t the sum of its weights a_i and l_t the weighted
    mean of the linearisations it has seen,

    $$ \min_{v} l_t(v) \;\le\; \min_X f \;\le\; f(x_t) \;\le\; \min_{v} l_t(v) +
       \log m / A_t, \qquad A_t \gtrsim t^2 / (4 L) $$

    where v runs over the vertices and L is the Lipschitz constant of the gradient from the l1 norm
    of weights. Returned are the best value and the best lower bound seen; the lower bound is valid
    for whatever convex f, up to rounding. A linear f is minimised exactly, at a vertex.

    Args:
      objective: f from `[p]` to a scalar, convex and differentiable.
      domain: A vertex set of `dpjax.geometry`.
      steps: Gradient steps, `>= 1`, some of them spent on the search for the step size.

    Returns:
      `BestResponse(point, value, lower)`. A NaN or infinite objective ends in no progress.

    Raises:
      ValueError: If `steps < 1`.
      TypeError: If `steps` is not an integer.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> response = dpjax.problems.best_response(
      ...     lambda x: jnp.sum((x - 1) ** 2), dpjax.geometry.L1Ball(2), steps=200)
      >>> bool(response.lower <= 0.5) and bool(response.value < response.lower + 1e-3)
      True

    Source: Tseng 2008, "On accelerated proximal gradient methods for convex-concave optimization";
    Nesterov 2005 for the estimate of the minimum.
    """
    check_int("steps", steps, minimum=1)
    num = domain.num_vertices
    uniform = domain.point(jnp.full((num,), 1 / num, jnp.result_type(float)))
    dtype = uniform.dtype

    def f(point: jax.Array) -> jax.Array:
        return jnp.asarray(objective(point), dtype)

    value, slope = jax.value_and_grad(f)(uniform)
    scores = domain.scores(slope)
    vertex = domain.average(jnp.argmin(scores)[None].astype(jnp.int32)).astype(dtype)
    vertex_value = f(vertex)
    bound = value - jnp.vdot(slope, uniform, precision="highest") + jnp.min(scores)
    best = _better(BestResponse(uniform, value, bound), vertex, vertex_value, bound)
    spread = jnp.maximum(jnp.max(scores) - jnp.min(scores), jnp.finfo(dtype).tiny)
    zero = jnp.zeros((), dtype)
    start = _Search(zero, spread, jnp.zeros_like(scores), zero, uniform, best)

    def weights(total: jax.Array, scores: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(-total * scores)

    def body(s: _Search, _: None) -> tuple[_Search, None]:
        # the root of inverse_step * more^2 = total + more
        more = (1 + jnp.sqrt(1 + 4 * s.inverse_step * s.total)) / (2 * s.inverse_step)
        total = s.total + more
        share = more / total
        log_old = weights(s.total, s.scores)
        middle = s.point + share * (domain.point(jnp.exp(log_old)) - s.point)
        value, slope = jax.value_and_grad(f)(middle)
        new_scores = domain.scores(slope)
        offset = value - jnp.vdot(slope, middle, precision="highest")
        scores = s.scores + share * (new_scores - s.scores)
        mean_offset = s.offset + share * (offset - s.offset)
        log_new = weights(total, scores)
        point = s.point + share * (domain.point(jnp.exp(log_new)) - s.point)
        reached = f(point)
        divergence = jnp.sum(jnp.exp(log_new) * (log_new - log_old))
        linear = value + jnp.vdot(slope, point - middle, precision="highest")
        rounding = 8 * jnp.finfo(dtype).eps * (abs(value) + abs(reached))
        good = reached <= linear + divergence / total + rounding
        # linearisations bound f from below whether the step was good or not
        bound = jnp.maximum(offset + jnp.min(new_scores), mean_offset + jnp.min(scores))
        longer = jnp.maximum(0.8 * s.inverse_step, 1e-6 * spread)
        after = _Search(total, longer, scores, mean_offset, point, s.best)
        kept = s._replace(inverse_step=2 * s.inverse_step)
        chosen = jax.tree.map(lambda a, b: jnp.where(good, a, b), after, kept)
        return chosen._replace(best=_better(s.best, point, reached, bound)), None

    return jax.lax.scan(body, start, None, length=steps)[0].best


def _better(
    best: BestResponse, point: jax.Array, value: jax.Array, lower: jax.Array
) -> BestResponse:
    better = value < best.value
    point, value = jnp.where(better, point, best.point), jnp.where(better, value, best.value)
    return BestResponse(point, value, jnp.where(lower > best.lower, lower, best.lower))


class GapBounds(NamedTuple):
    """A duality gap between two certified bounds.

    Attributes:
      lower: `[]`.
      upper: `[]`.
    """

    lower: jax.Array
    upper: jax.Array


def matrix_game_gap(matrix: ArrayLike, x: ArrayLike, y: ArrayLike) -> jax.Array:
    r"""Duality gap of mixed strategies in a matrix game, exact.

    $$ \mathrm{Gap}(x, y) = \max_j (A^\top x)_j - \min_i (A y)_i
       \quad\text{for}\quad \min_{x \in \Delta} \max_{y \in \Delta} x^\top A y $$

    Args:
      matrix: A `[dx, dy]`, what the row player pays.
      x: Row strategy `[dx]`, a probability vector.
      y: Column strategy `[dy]`, a probability vector.

    Returns:
      The gap, a scalar `>= 0` up to rounding; 0 exactly at a saddle point.

    Raises:
      ValueError: If shapes do not fit.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> pennies = jnp.array([[1.0, -1.0], [-1.0, 1.0]])
      >>> x, y = jnp.array([0.5, 0.5]), jnp.array([0.75, 0.25])
      >>> float(dpjax.problems.matrix_game_gap(pennies, x, y))
      0.5

    Source: von Neumann 1928.
    """
    a, x, y = _game(matrix, x, y)
    return jnp.max(_columns(a, x)) - jnp.min(_rows(a, y))


def quadratic_saddle_gap(
    matrix: ArrayLike,
    x: ArrayLike,
    y: ArrayLike,
    *,
    mu: ArrayLike,
    nu: ArrayLike,
    a: ArrayLike = 0.0,
    b: ArrayLike = 0.0,
) -> jax.Array:
    r"""Duality gap of a quadratic saddle point problem on two simplices, exact.

    $$ F(x, y) = \tfrac\mu2 \|x - a\|^2 + x^\top A y - \tfrac\nu2 \|y - b\|^2, \qquad
       y'(x) = \Pi_\Delta(b + A^\top x / \nu), \quad x'(y) = \Pi_\Delta(a - A y / \mu) $$

    The best responses are Euclidean projections; where mu or nu is 0, they are vertices.

    Args:
      matrix: A `[dx, dy]`.
      x: Minimising strategy `[dx]`.
      y: Maximising strategy `[dy]`.
      mu: Curvature in x, scalar, `>= 0`; may be traced.
      nu: Curvature in y, scalar, `>= 0`; may be traced.
      a: Centre `[dx]`, or one number.
      b: Centre `[dy]`, or one number.

    Returns:
      $\max_{y'} F(x, y') - \min_{x'} F(x', y)$, a scalar.

    Raises:
      ValueError: If shapes do not fit, or mu or nu is negative or not finite.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> x = jnp.array([1.0, 0.0])
      >>> float(dpjax.problems.quadratic_saddle_gap(jnp.eye(2), x, x, mu=1.0, nu=1.0, a=x, b=x))
      0.25
    """
    check_nonnegative("mu", mu)
    check_nonnegative("nu", nu)
    matrix, x, y = _game(matrix, x, y)
    mu, nu, a, b = (jnp.asarray(constant, x.dtype) for constant in (mu, nu, a, b))
    a, b = jnp.broadcast_to(a, x.shape), jnp.broadcast_to(b, y.shape)
    highest = -_least_quadratic(-_columns(matrix, x), nu, b) + mu / 2 * jnp.sum((x - a) ** 2)
    lowest = _least_quadratic(_rows(matrix, y), mu, a) - nu / 2 * jnp.sum((y - b) ** 2)
    return highest - lowest


def quadratic_saddle_centres(
    matrix: ArrayLike, x: ArrayLike, y: ArrayLike, *, mu: ArrayLike, nu: ArrayLike
) -> tuple[jax.Array, jax.Array]:
    r"""The centres that make an interior point the saddle point of a quadratic problem.

    $$ a = x^* + A y^* / \mu, \qquad b = y^* - A^\top x^* / \nu $$

    Both gradients of $F$ (`quadratic_saddle_gap`) then vanish at $(x^*, y^*)$.

    Args:
      matrix: A `[dx, dy]`.
      x: $x^*$ `[dx]`, in the simplex.
      y: $y^*$ `[dy]`, in the simplex.
      mu: Curvature in x, scalar, `> 0`.
      nu: Curvature in y, scalar, `> 0`.

    Returns:
      `(a, b)`, `[dx]` and `[dy]`.

    Raises:
      ValueError: If shapes do not fit, or mu or nu is not positive and finite.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> half = jnp.array([0.5, 0.5])
      >>> a, b = dpjax.problems.quadratic_saddle_centres(jnp.eye(2), half, half, mu=1.0, nu=2.0)
      >>> a.tolist(), b.tolist()
      ([1.0, 1.0], [0.25, 0.25])
    """
    check_positive("mu", mu)
    check_positive("nu", nu)
    matrix, x, y = _game(matrix, x, y)
    mu, nu = jnp.asarray(mu, x.dtype), jnp.asarray(nu, x.dtype)
    return x + _rows(matrix, y) / mu, y - _columns(matrix, x) / nu


def max_loss_gap(
    losses: Callable[[jax.Array], jax.Array],
    domain: Domain,
    x: ArrayLike,
    y: ArrayLike,
    *,
    steps: int = 1000,
) -> GapBounds:
    r"""Duality gap of the largest of several convex losses, with certified bounds.

    $$ f(x, y) = \sum_i y_i f_i(x), \qquad
       \mathrm{Gap}(x, y) = \max_i f_i(x) - \min_{x' \in X} \sum_i y_i f_i(x') $$

    The maximum is exact, the minimum is bounded from both sides by `best_response`. For linear
    losses the two bounds coincide.

    Args:
      losses: From `[p]` to the means `[m]` of the losses, each convex and differentiable.
      domain: X, a vertex set of `dpjax.geometry`.
      x: Point `[p]` of the domain.
      y: Weights `[m]`, a probability vector.
      steps: Steps of the inner minimisation, `>= 1`.

    Returns:
      `GapBounds(lower, upper)`.

    Raises:
      ValueError: If shapes do not fit or `steps < 1`.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> losses = lambda x: 0.5 * jnp.stack([jnp.sum((x - e) ** 2) for e in jnp.eye(2)])
      >>> x, y = jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5])
      >>> gap = dpjax.problems.max_loss_gap(losses, dpjax.geometry.Simplex(2), x, y)
      >>> bool(gap.lower <= 0.75) and bool(gap.upper >= 0.75 - 1e-6)
      True
    """
    x, y = wide(x), wide(y)
    values = losses(x)
    check_shape("losses(x)", values, y.shape)

    def mixture(point: jax.Array) -> jax.Array:
        return jnp.sum(y * losses(point))

    least = best_response(mixture, domain, steps=steps)
    return GapBounds(jnp.max(values) - least.value, jnp.max(values) - least.lower)


def duality_gap(
    objective: Callable[[jax.Array, jax.Array], jax.Array],
    domains: tuple[Any, Any],
    x: ArrayLike,
    y: ArrayLike,
    *,
    steps: int = 1000,
) -> GapBounds:
    r"""Duality gap of any smooth convex-concave function on two polytopes, with certified bounds.

    $$ \mathrm{Gap}(x, y) = \max_{y' \in Y} F(x, y') - \min_{x' \in X} F(x', y) $$

    Both best responses come from `best_response`. They are exact where F is bilinear. To call it
    often, wrap it in `jax.jit` once: the loop is compiled for each new `objective`.

    Args:
      objective: F from `[px]`, `[py]` to a scalar; convex in x, concave in y, differentiable.
      domains: `(X, Y)`, vertex sets of `dpjax.geometry`.
      x: Point `[px]` of X.
      y: Point `[py]` of Y.
      steps: Steps of each inner optimisation, `>= 1`.

    Returns:
      `GapBounds(lower, upper)`.

    Raises:
      ValueError: If `steps < 1`.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> half = jnp.array([0.5, 0.5])
      >>> simplices = (dpjax.geometry.Simplex(2), dpjax.geometry.Simplex(2))
      >>> gap = dpjax.problems.duality_gap(lambda x, y: x @ y, simplices, half, jnp.eye(2)[0])
      >>> float(gap.lower), float(gap.upper)
      (0.5, 0.5)
    """
    x, y = wide(x), wide(y)
    highest = best_response(lambda point: -objective(x, point), domains[1], steps=steps)
    lowest = best_response(lambda point: objective(point, y), domains[0], steps=steps)
    return GapBounds(-highest.value - lowest.value, -highest.lower - lowest.lower)


def _least_quadratic(cost: jax.Array, curvature: jax.Array, centre: jax.Array) -> jax.Array:
    """Minimum over the simplex of `<cost, x> + curvature / 2 |x - centre|^2`."""
    safe = jnp.where(curvature > 0, curvature, 1)
    x = projection_simplex(centre - cost / safe)
    curved = jnp.sum(cost * x) + curvature / 2 * jnp.sum((x - centre) ** 2)
    return jnp.where(curvature > 0, curved, jnp.min(cost))


def _columns(matrix: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.matmul(x, matrix.astype(x.dtype), precision="highest")


def _rows(matrix: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(matrix.astype(y.dtype), y, precision="highest")


def _game(matrix: ArrayLike, x: ArrayLike, y: ArrayLike) -> tuple[jax.Array, jax.Array, jax.Array]:
    matrix = jnp.asarray(matrix)
    check_shape("matrix", matrix, (None, None))
    check_shape("x", x, matrix.shape[:1])
    check_shape("y", y, matrix.shape[1:])
    dtype = jnp.result_type(wide(x), wide(y))
    return matrix, jnp.asarray(x, dtype), jnp.asarray(y, dtype)
