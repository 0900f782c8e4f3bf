"""Gradients of a smoothed loss from gradients at points nearby."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_choice, check_int, check_key, check_nonnegative_scalar, wide
from dpjax.transforms.clipping._leaves import OuterProduct, is_outer
from dpjax.transforms.estimators import _directions as lines


class SmoothedGradients(Protocol):
    """Takes params and a batch of B records, gives a per-example tree `[B, *p]`."""

    def __call__(self, params: PyTree, batch: PyTree, *, key: jax.Array) -> PyTree:
        """The estimates, along directions that the key alone decides."""


def smooth_first_order(
    gradients: Callable[[PyTree, PyTree], PyTree],
    radius: ArrayLike,
    num_directions: int = 1,
    *,
    directions: str = "shared",
) -> SmoothedGradients:
    r"""Per-example gradients of a smoothed loss: means of gradients at random points of a ball.

    $$ e_b = \frac1m \sum_{j=1}^m \nabla f_b(x + r u_j), \qquad u_j \sim \mathrm{Unif}(B_1), \qquad
       E\,e_b = \nabla f_{b,r}(x), \qquad f_{b,r}(x) = E_u f_b(x + r u) $$

    The ball is that of the whole tree, in its l2 norm. Where $f_b$ is L-Lipschitz, however rough,
    $f_{b,r}$ is within $L r$ of it, and its gradient is $L\sqrt d / r$-Lipschitz.

    Guarantee: none of its own; it aggregates nothing. Where every gradient has norm at most L, so
    has every estimate, surely. Directions depend on the key alone. Shared ones are *public*;
    those of records belong to places in the batch, which shift when a record is removed, and may be
    published under replace-one alone. The same key at two points gives the same directions, so that
    changes between close points are small on average.

    | input | estimates |
    | --- | --- |
    | `radius` 0 | the gradients at `params` |
    | a NaN gradient of a record | that record's alone are NaN |
    | `radius` negative or NaN, traced | at the points mirrored, which have the same law; NaN |

    Memory: one direction at a time, so that as much as one batch of gradients is held, whatever m,
    and the sum; with `"record"` also a copy of the parameters for each record.

    Args:
      gradients: `gradients(params, batch)` gives a per-example tree with leaves `[B, *p]`, or
        `OuterProduct` in their place, of a batch with leaves `[B, ...]` (*secret*). Params come in
        at least float32, or the steps would be rounded off.
      radius: r, in units of the parameters, `>= 0` (*public*); scalar, may be traced.
      num_directions: m, `>= 1` (*public*, static).
      directions: `"shared"`, m directions for the whole batch; or `"record"`, m for each record, so
        that their errors are independent and average out.

    Returns:
      An oracle; `oracle(params, batch, *, key)` gives a tree as `gradients` does, in at least
      float32. An `OuterProduct` is kept, with the `left` it has, where `left` is the same at every
      point, as the inputs of a first layer are; where it is not, and m > 1, it becomes an array.

    Raises:
      TypeError: If `num_directions` is no integer; later, if the key is missing or not typed, or a
        leaf of params is of no float type.
      ValueError: If `radius` is negative or not finite, `num_directions < 1`, or `directions` is
        unknown.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> slopes = lambda x, batch: jnp.sign(x[None] - batch["y"])  # of |x - y|
      >>> oracle = dpjax.transforms.smooth_first_order(slopes, radius=1.0, num_directions=2000)
      >>> e = oracle(jnp.zeros(1), {"y": jnp.array([[0.5], [2.0]])}, key=jax.random.key(0))
      >>> [round(float(v), 1) for v in e[:, 0]]
      [-0.5, -1.0]

    Source: Flaxman, Kalai and McMahan, "Online convex optimization in the bandit setting", 2005,
    lemma 2.1; Kornowski, Liu and Talwar, "Private nonsmooth nonconvex optimization", 2025.
    """
    check_nonnegative_scalar("radius", radius)
    check_int("num_directions", num_directions, minimum=1)
    check_choice("directions", directions, lines.KINDS)

    def oracle(params: PyTree, batch: PyTree, *, key: jax.Array) -> PyTree:
        key = check_key("key", key)
        lines.num_entries(params)  # refuses what cannot be displaced
        length = jnp.asarray(radius, lines.wide_type(params))

        def points(*numbers: jax.Array) -> PyTree:
            drawn = lines.drawn(params, key, *numbers, ball=True)
            return lines.displaced(params, drawn, length)

        def shared(number: jax.Array) -> PyTree:
            return gradients(jax.tree.map(lambda a: a[0], points(number[None])), batch)

        def record(number: jax.Array) -> PyTree:
            def own(point: PyTree, one: PyTree) -> PyTree:
                values = gradients(point, jax.tree.map(lambda a: a[None], one))
                return jax.tree.map(lambda a: a[0], values)

            places = jnp.arange(lines.batch_size(batch), dtype=jnp.int32)
            return jax.vmap(own)(points(places, jnp.full_like(places, number)), batch)

        at_direction = shared if directions == "shared" else record
        first = at_direction(jnp.zeros((), jnp.int32))
        if num_directions == 1:
            return jax.tree.map(_widened, first, is_leaf=is_outer)
        kept = _fixed_lefts(gradients, params, batch)

        def add(total: PyTree, number: jax.Array) -> tuple[PyTree, None]:
            return jax.tree.map(jnp.add, total, _summands(at_direction(number), kept)), None

        numbers = jnp.arange(1, num_directions, dtype=jnp.int32)
        total, _ = jax.lax.scan(add, _summands(first, kept), numbers)

        def mean(like: PyTree, keep: bool, summed: jax.Array) -> Any:
            value = summed / num_directions
            return OuterProduct(like.left, value) if is_outer(like) and keep else value

        return jax.tree.map(mean, first, kept, total, is_leaf=is_outer)

    return oracle


def _widened(leaf: PyTree) -> Any:
    return OuterProduct(leaf.left, wide(leaf.right)) if is_outer(leaf) else wide(leaf)


def _summands(values: PyTree, kept: PyTree) -> PyTree:
    """What is added up over directions: arrays, and of a factored leaf the right factor."""

    def summand(leaf: PyTree, keep: bool) -> jax.Array:
        if is_outer(leaf):
            return wide(leaf.right if keep else leaf.materialize())
        return wide(leaf)

    return jax.tree.map(summand, values, kept, is_leaf=is_outer)


def _fixed_lefts(
    gradients: Callable[[PyTree, PyTree], PyTree], params: PyTree, batch: PyTree
) -> PyTree:
    """For every leaf, whether it is factored and its left factor is the same at every point."""
    points = jax.tree.map(lambda leaf: wide(leaf)[None], params)

    def lefts(point: PyTree) -> list[Any]:
        leaves = jax.tree.leaves(gradients(point, batch), is_leaf=is_outer)
        return [leaf.left if is_outer(leaf) else None for leaf in leaves]

    def fixed(index: int) -> bool:
        try:  # vmap refuses an output without the axis that depends on an input with it
            jax.eval_shape(jax.vmap(lambda point: lefts(point)[index], out_axes=None), points)
        except ValueError:
            return False
        return True

    like = jax.eval_shape(gradients, jax.tree.map(wide, params), batch)
    leaves, treedef = jax.tree.flatten(like, is_leaf=is_outer)
    kept = [is_outer(leaf) and fixed(index) for index, leaf in enumerate(leaves)]
    return jax.tree.unflatten(treedef, kept)
