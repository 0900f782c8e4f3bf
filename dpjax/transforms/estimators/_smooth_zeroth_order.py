"""Gradients of a smoothed loss from values of it alone."""

from collections.abc import Callable

import jax
from jax.typing import ArrayLike

from dpjax.core import PyTree
from dpjax.transforms.estimators._zeroth_order import ZerothOrder


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
