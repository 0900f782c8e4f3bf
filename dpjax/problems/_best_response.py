"""Minimum of a convex function over a polytope, between certified bounds."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax.core import check_int
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
        after = _Search(
            total,
            jnp.maximum(0.8 * s.inverse_step, 1e-6 * spread),
            scores,
            mean_offset,
            point,
            s.best,
        )
        kept = s._replace(inverse_step=2 * s.inverse_step)
        chosen = jax.tree.map(lambda a, b: jnp.where(good, a, b), after, kept)
        return chosen._replace(best=_better(s.best, point, reached, bound)), None

    return jax.lax.scan(body, start, None, length=steps)[0].best


def _better(
    best: BestResponse, point: jax.Array, value: jax.Array, lower: jax.Array
) -> BestResponse:
    improved = value < best.value
    return BestResponse(
        jnp.where(improved, point, best.point),
        jnp.where(improved, value, best.value),
        jnp.where(lower > best.lower, lower, best.lower),
    )
