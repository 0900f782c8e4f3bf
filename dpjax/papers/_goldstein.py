"""Goldstein's norm at a point, estimated from sampled gradients."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_int, check_key, check_positive, check_shape, wide
from dpjax.papers._min_norm import Hull, min_norm, pairwise_steps

_Carry: TypeAlias = tuple[Hull, jax.Array, jax.Array]

_JITTER = 1e-3  # of the radius: sampled points lie on no kink but by chance
_PAIRWISE = 50  # steps after each new gradient


class GoldsteinNorm(NamedTuple):
    """Bounds on the Goldstein norm at a point.

    Attributes:
      upper: An estimate from above, `[]`.
      hull_lower: A bound from below, for the sampled gradients alone, `[]`.
    """

    upper: jax.Array
    hull_lower: jax.Array


def goldstein_norm(
    loss_fn: Callable[..., jax.Array],
    params: PyTree,
    radius: ArrayLike,
    *,
    key: jax.Array,
    args: tuple[PyTree, ...] = (),
    num_samples: int = 64,
    num_enriched: int = 64,
) -> GoldsteinNorm:
    r"""Distance of 0 from the Goldstein subdifferential: how stationary a nonsmooth loss is here.

    $$ \operatorname{dist}\bigl(0, \partial_\alpha F(x)\bigr), \qquad \partial_\alpha F(x) =
       \operatorname{conv} \bigcup_{\|y - x\| \le \alpha} \partial F(y) $$

    Gradients are taken near x and at uniform points of the ball; then at points that the least
    combination w so far names: the end of the segment from x to $x - \alpha w / \|w\|$, a uniform
    point of it, and a point of the sphere at a random angle to it, in turn. `upper` is the least
    norm in the hull of all. In high dimension uniform points alone find next to nothing: of
    $|\langle u, x \rangle|$ at half the radius from its kink they see one slope, norm 1, where
    the distance is 0.

    Guarantee: none. This is **not private**: it reads the data raw. It measures runs on public or
    held-out data, or in research; nothing it returns may be published as private, nor choose an
    iterate, a step size or a stopping time of a private run.

    What the numbers mean:

    - `upper` is the norm of an element of the subdifferential, so the distance is at most `upper`.
      It may be much smaller: $\|x\|_1 / \sqrt d$ at $x = 0.1 \cdot 1$, d = 200, radius 0.5 gives
      about 0.98 where the distance is 0.75. The search can stall where the loss still falls along
      -w: of $\max_i x_i$ at $0.6\, e_1$, radius 0.5, d = 50 it gives 1 where the distance is
      $1 / \sqrt{50}$.
    - `hull_lower` bounds the least norm in the hull of the *sampled* gradients from below, by
      $\min_k \langle g_k, w / \|w\| \rangle$. Near `upper` it says that the quadratic program is
      solved. It is **no lower bound on the distance**.
    - Kinks that point up count as stationary, maxima and ridges as well as minima.
    - The loss is a mean over the records given. Over a subsample of N records of a population the
      result carries an error of about $L / \sqrt N$, L the Lipschitz constant.

    | input | result |
    | --- | --- |
    | a loss or gradient that is NaN or infinite at a sampled point | both NaN |
    | a traced `radius` that is not positive | both NaN |
    | gradients of 0 | both 0 |
    | gradients whose squares overflow, in float32 from about 1e18 | both NaN |
    | a radius that rounding of `params` hides | of the gradient at x alone |

    Args:
      loss_fn: `loss_fn(params, *args)` -> mean loss over the data, a scalar; differentiable by JAX
        almost everywhere (static: keep one function, a new one is compiled again). For example the
        `mean_loss` of a `Risk`, with `args=(data,)`.
      params: x, a tree of floating-point arrays; the norm is that of the whole tree. Computed in
        their type, at least float32.
      radius: $\alpha > 0$, scalar, in the unit of `params`; may be traced.
      key: A typed key for the points.
      args: Further arguments of `loss_fn`, such as the data (*secret*), a tuple of trees of arrays.
        Arrays that `loss_fn` captures instead are compiled in as constants: a large program, and
        compiled again for the next data set.
      num_samples: Gradients at uniform points, the one near x among them, `>= 1` (static).
      num_enriched: Gradients at points that w names, `>= 0` (static). All are evaluated one after
        the other: memory is that of `num_samples + num_enriched` gradients and one evaluation.

    Returns:
      `GoldsteinNorm(upper, hull_lower)`; `jax.jit`, and `jax.vmap` over params, radii or keys work.

    Raises:
      TypeError: If `params` are not floating-point, the loss is not, `args` is no tuple, `key` is
        no typed key, or a number of gradients is no integer.
      ValueError: If `radius` is not positive and finite, a number is below its bound, `params` are
        empty, or the loss is no scalar.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> def loss(x, rows):
      ...     return jnp.mean(jnp.abs(rows @ x))
      >>> rows = jnp.array([[3.0, 4.0]])
      >>> far, near = jnp.array([0.6, 0.8]), jnp.array([0.06, 0.08])
      >>> for x in (far, near):
      ...     norm = dpjax.audit.goldstein_norm(loss, x, 0.5, key=jax.random.key(0), args=(rows,))
      ...     print(round(abs(float(norm.upper)), 3))
      5.0
      0.0

    Source: Goldstein, "Optimization of Lipschitz continuous functions", 1977; enrichment along a
    random point of the segment: Zhang, Lin, Jegelka, Sra and Jadbabaie, "Complexity of finding
    stationary points of nonconvex nonsmooth functions", 2020.
    """
    check_positive("radius", radius)
    check_shape("radius", radius, ())
    check_int("num_samples", num_samples, minimum=1)
    check_int("num_enriched", num_enriched, minimum=0)
    if not isinstance(args, tuple):
        raise TypeError(f"args must be a tuple, got {type(args).__name__}: pass args=(data,)")
    return _estimate(
        loss_fn, int(num_samples), int(num_enriched), params, radius, check_key("key", key), args
    )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _estimate(
    loss_fn: Callable[..., jax.Array],
    num_samples: int,
    num_enriched: int,
    params: PyTree,
    radius: jax.Array,
    key: jax.Array,
    args: tuple[PyTree, ...],
) -> GoldsteinNorm:
    x, unravel = _flat(params)
    radius = jnp.asarray(radius, x.dtype)
    size = num_samples + num_enriched

    def gradient(point: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, slope = jax.value_and_grad(lambda p: _scalar(loss_fn(unravel(p), *args)))(point)
        return slope, jnp.isfinite(value) & jnp.all(jnp.isfinite(slope))

    def more(carry: _Carry, k: jax.Array) -> tuple[_Carry, None]:
        hull, weights, good = carry
        point = hull.point(weights)
        norm = jnp.linalg.norm(point)
        towards = -point / jnp.where(norm > 0, norm, 1)
        offset = _offset(jax.random.fold_in(key, k), k, k - num_samples, towards)
        slope, finite = gradient(x + radius * offset)
        hull = hull.put(k, slope)
        weights = pairwise_steps(hull, weights, hull.slopes(point), _PAIRWISE)
        return (hull, weights, good & finite), None

    weights = jnp.zeros(size, x.dtype).at[0].set(1)
    start = Hull.empty(x, size), weights, radius > 0
    hull, weights, good = jax.lax.scan(more, start, jnp.arange(size))[0]
    bounds = min_norm(hull, weights)
    return GoldsteinNorm(*(jnp.where(good, bound, jnp.nan) for bound in bounds))


def _offset(key: jax.Array, k: jax.Array, turn: jax.Array, towards: jax.Array) -> jax.Array:
    """Where in the unit ball to take gradient k: near 0, uniform (`turn < 0`), or `towards`."""
    d = towards.size
    draw = jax.random.normal(key, (d + 4,), towards.dtype)
    # the first d coordinates of a uniform point of the sphere in d + 2 dimensions
    ball = draw[:d] / jnp.linalg.norm(draw[: d + 2])
    share = jnp.abs(jnp.arctan2(draw[-2], draw[-1])) / jnp.pi  # uniform in [0, 1]
    angle = jnp.where(turn % 3 == 2, share * jnp.pi / 2, 0)
    tilted = jnp.cos(angle) * towards + jnp.sin(angle) * ball / jnp.linalg.norm(ball)
    tilted = tilted / jnp.maximum(jnp.linalg.norm(tilted), _JITTER)
    chosen = (1 - _JITTER) * jnp.where(turn % 3 == 1, share, 1) * tilted + _JITTER * ball
    return jnp.where(k == 0, _JITTER * ball, jnp.where(turn < 0, ball, chosen))


def _flat(params: PyTree) -> tuple[jax.Array, Callable[[jax.Array], PyTree]]:
    """The tree as one vector of at least float32, and the way back."""
    for leaf in jax.tree.leaves(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(f"params must be floating-point, got {jnp.result_type(leaf)}")
    x, unravel = ravel_pytree(jax.tree.map(wide, params))
    if not x.size:
        raise ValueError("params must hold at least one number, got none")
    return x, unravel


def _scalar(value: ArrayLike) -> jax.Array:
    check_shape("loss_fn(params, *args)", value, ())
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise TypeError(
            f"loss_fn(params, *args) must be floating-point, got {jnp.result_type(value)}"
        )
    return jnp.asarray(value)
