"""Online learners of vectors: projected descent, leaders, exponentiated gradients."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    Transform,
    check_positive_scalar,
    check_shape,
    check_type,
    is_traced,
    wide,
)
from dpjax.core._chain import as_stage
from dpjax.geometry import L1Ball, Simplex, log_normalize

Projection = Callable[[PyTree], PyTree]
"""`project(w)`, the nearest point of a convex set to a tree."""


def widened(tree: PyTree) -> PyTree:
    """The tree with every leaf in at least float32."""
    return jax.tree.map(wide, tree)


def required(name: str, value: object, what: str) -> Any:
    """Returns `value`, an argument of `update`; raises ValueError if it is missing."""
    if value is None:
        raise ValueError(f"{name} is required: {what}")
    return value


def learner_of(init: Callable[[PyTree], Any], step: Callable[..., tuple[PyTree, Any]]) -> Transform:
    """`step(updates, state, params, **extra)`, with the parameters, which every learner needs."""

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, Any]:
        required("params", params, "the point w_t that the learner is to move")
        return step(updates, state, params, **extra)

    return Transform(init, update)


def plus(tree: PyTree, other: PyTree, scale: ArrayLike = 1.0) -> PyTree:
    """`tree + scale * other`, in the dtypes of `tree`."""

    def add(a: jax.Array, b: ArrayLike) -> jax.Array:
        return a + jnp.asarray(scale, a.dtype) * jnp.asarray(b, a.dtype)

    return jax.tree.map(add, tree, other)


def scalar(tree: PyTree, value: ArrayLike = 0.0) -> jax.Array:
    """`value` in the widest dtype of the tree's leaves, at least float32."""
    return jnp.asarray(value, jnp.result_type(jnp.float32, *jax.tree.leaves(tree)))


def largest(tree: PyTree) -> jax.Array:
    """The largest modulus over all leaves."""
    top = scalar(tree)
    for leaf in jax.tree.leaves(tree):
        top = jnp.maximum(top, jnp.max(jnp.abs(leaf), initial=0).astype(top.dtype))
    return top


def hypotenuse(a: jax.Array, b: jax.Array) -> jax.Array:
    """`sqrt(a^2 + b^2)` of two scalars `>= 0`, in the dtype of `a`; no square is formed."""
    b = b.astype(a.dtype)
    top = jnp.maximum(a, b)
    unit = jnp.where(top > 0, top, 1)
    return unit * jnp.sqrt(jnp.square(a / unit) + jnp.square(b / unit))


def ratio(a: ArrayLike, b: jax.Array) -> jax.Array:
    """`a / b` of scalars, and 0 where `b` is 0."""
    return jnp.where(b == 0, 0, jnp.asarray(a, b.dtype) / jnp.where(b == 0, 1, b))


def nearest(project: Projection | None, tree: PyTree) -> PyTree:
    """The projection, in the dtypes of `tree`."""
    if project is None:
        return tree
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), project(tree), tree)


def change(new: PyTree, params: PyTree) -> PyTree:
    """What `optax.apply_updates` must add to `params` for `new`, in the dtypes of `params`."""
    return jax.tree.map(lambda a, b: (wide(a) - wide(b)).astype(jnp.result_type(b)), new, params)


class LeaderState(NamedTuple):
    r"""State of `dual_averaging` and `exponentiated_gradient`; trees in at least float32.

    Attributes:
      start: $w_1$, or the logarithms of its weights on the vertices.
      total: $\Theta_t = \sum_{i \le t} g_i$.
      hint: $h_{t+1}$, or None if none is used.
      length: $\sqrt{S_t}$, `[]`.
      count: Number of updates so far, `[]` int32 (*public*).
    """

    start: PyTree
    total: PyTree
    hint: PyTree
    length: jax.Array
    count: jax.Array  # type: ignore[assignment]


def leader(
    lift: Callable[[PyTree], PyTree],
    point: Callable[[PyTree, PyTree, jax.Array], PyTree],
    size: Callable[[PyTree], jax.Array],
    scale: ArrayLike,
    next_hint: Callable[[PyTree, jax.Array], PyTree] | None = None,
) -> Transform:
    """The point that is best against all gradients so far and the hint, at a rate `scale / length`.

    Args:
      lift: `lift(w_1) -> start`, what the state keeps of the first point.
      point: `point(start, total, rate) -> w`.
      size: `size(g) -> []`, the norm that `length` adds up.
      scale: Scalar.
      next_hint: `next_hint(gradient, count)`, a guess of the next gradient; None for no hints.

    Returns:
      A transformation.
    """

    def init(params: PyTree) -> LeaderState:
        zeros = jax.tree.map(jnp.zeros_like, widened(params))
        hint = None if next_hint is None else zeros
        count = jnp.zeros((), jnp.int32)
        return LeaderState(lift(widened(params)), zeros, hint, scalar(zeros), count)

    def step(
        updates: PyTree, state: LeaderState, params: PyTree, *, hint: PyTree = None, **_: object
    ) -> tuple[PyTree, LeaderState]:
        zeros = jax.tree.map(jnp.zeros_like, state.total)
        gradient, count = plus(zeros, updates), state.count + 1
        surprise, ahead = gradient, None
        if next_hint is not None:
            surprise = plus(gradient, state.hint, -1.0)
            ahead = next_hint(gradient, count) if hint is None else plus(zeros, hint)
        length = hypotenuse(state.length, size(surprise))
        total = plus(state.total, gradient)
        against = total if ahead is None else plus(total, ahead)
        new = point(state.start, against, ratio(scale, length))

        def towards(a: jax.Array, b: ArrayLike) -> jax.Array:  # while nothing came, w_1 stays
            gap = a - jnp.asarray(b, a.dtype)
            return jnp.where(length == 0, 0, gap).astype(jnp.result_type(b))

        moves = jax.tree.map(towards, new, params)
        return moves, LeaderState(state.start, total, ahead, length, count)

    return learner_of(init, step)


def projected(
    optimizer: optax.GradientTransformation, project: Projection | None = None
) -> Transform:
    r"""Any optax optimiser, with a projection after every step.

    $$ w_{t+1} = \Pi_W(w_t + \mathrm{optimizer}(g_t)) $$

    With `optax.sgd(eta)` and the nearest point of a convex $W$ of diameter $D$ this is projected
    online gradient descent: for any $g_t$ and any $u \in W$

    $$ \sum_{t \le T} \langle g_t, w_t - u\rangle
       \le \frac{D^2}{2\eta} + \frac\eta2 \sum_{t \le T} \|g_t\|^2 . $$

    Adaptive optimisers run likewise, without such a bound.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      optimizer: An optax or dpjax optimiser (*public*); what `update` is given beside is passed on.
      project: `project(w) -> nearest point of W`, on trees like the parameters, such as
        `optax.projections.projection_l2_ball` or `Simplex(d).project` (*public*); None for the
        whole space.

    Returns:
      A transformation; `update(g_t, state, params=w_t, **extra)`. Its state is the optimiser's.

    Raises:
      TypeError: If `optimizer` is no transformation.
      ValueError: At `update`, if `params` is missing.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> learner = dpjax.transforms.projected(optax.sgd(1.0), lambda w: jnp.clip(w, -1.0, 1.0))
      >>> w = jnp.array([0.5, 0.5])
      >>> updates, _ = learner.update(jnp.array([2.0, -0.25]), learner.init(w), w)
      >>> optax.apply_updates(w, updates).tolist()
      [-1.0, 0.75]

    Source: Zinkevich, "Online convex programming and generalized infinitesimal gradient ascent",
    2003, theorem 1.
    """
    stage = as_stage("optimizer", optimizer)

    def step(updates: PyTree, state: PyTree, params: PyTree, **extra: object) -> tuple[PyTree, Any]:
        moves, state = stage.update(updates, state, params, **extra)
        return change(nearest(project, plus(widened(params), moves)), params), state

    return learner_of(stage.init, step)


def exponentiated_gradient(
    domain: Simplex | L1Ball, scale: ArrayLike = 1.0, optimistic: bool = False
) -> Transform:
    r"""Entropic follow the leader, with a rate from the norms so far.

    $$ S_t = S_{t-1} + \|g_t - h_t\|_\infty^2, \quad \eta_t = s\sqrt{\log d / S_t}, \quad
       w_{t+1} \propto w_1 \exp\Bigl(-\eta_t
         \bigl(\textstyle\sum_{i \le t} g_i + h_{t+1}\bigr)\Bigr) $$

    with all hints $h_t = 0$, or, if `optimistic`, $h_1 = 0$ and $h_{t+1} = g_t$. On the simplex,
    from $w_1 = 1/d$, with $s = 1$, for any $g_t$ and any $u$ in the simplex

    $$ \sum_{t \le T} \langle g_t, w_t - u\rangle
       \le \bigl(\sqrt{\log d} + \sqrt{\log d + 16}\bigr)\sqrt{S_T} . $$

    On the ball $\|w\|_1 \le R$ it weighs the $2d$ vertices $\pm R e_j$ with the losses $\pm R g$,
    so that $2d$ and $R^2 S_T$ take the places of $d$ and $S_T$. Weights are kept as logarithms: no
    gradient is so large that they leave the domain. The points do not depend on the gradients'
    unit; while $S_t = 0$, $w_1$ stays.

    Guarantee: none of its own. Of private gradients it is post-processing.

    Args:
      domain: `dpjax.geometry.Simplex` or `L1Ball` (*public*).
      scale: $s$ `> 0` (*public*); scalar, may be traced.
      optimistic: Whether to use hints (*public*, static). `update(..., hint=h)` gives another
        $h_{t+1}$ than $g_t$.

    Returns:
      A transformation; `update(g_t, state, params=w_t, *, hint=None, **extra)`. `init(w_1)` takes
      one array `[dim]` inside the domain: entries `> 0`, or an l1 norm below the radius.

    Raises:
      TypeError: If `domain` is another.
      ValueError: If `scale` is not positive and finite; at `init`, if $w_1$ has another shape or is
        not inside the domain; at `update`, if `params` is missing.

    Example:
      >>> import dpjax, jax.numpy as jnp, optax
      >>> simplex = dpjax.geometry.Simplex(4)
      >>> learner = dpjax.transforms.exponentiated_gradient(simplex)
      >>> w = jnp.full(4, 0.25)
      >>> updates, _ = learner.update(jnp.array([-7.0, 0.0, 0.0, 7.0]), learner.init(w), w)
      >>> [round(float(x), 4) for x in optax.apply_updates(w, updates)]
      [0.5844, 0.18, 0.18, 0.0555]

    Source: Kivinen and Warmuth, "Exponentiated gradient versus gradient descent for linear
    predictors", 1997.
    """
    check_type("domain", domain, Simplex | L1Ball, "a Simplex or an L1Ball")
    check_positive_scalar("scale", scale)

    def lift(params: PyTree) -> jax.Array:
        return log_normalize(jnp.log(_weights(domain, _only(params))))

    def point(start: jax.Array, total: PyTree, rate: jax.Array) -> PyTree:
        losses = domain.scores(_only(total))
        weights = jax.nn.softmax(start - rate.astype(losses.dtype) * losses)
        return jax.tree.map(lambda _: domain.point(weights), total)

    def size(gradient: PyTree) -> jax.Array:
        return largest(domain.scores(_only(gradient)))

    factor = scale * math.sqrt(domain.log_num_vertices)
    return leader(lift, point, size, factor, (lambda gradient, _: gradient) if optimistic else None)


def _only(tree: PyTree) -> jax.Array:
    leaves: list[Any] = jax.tree.leaves(widened(tree))
    if len(leaves) != 1:
        raise ValueError(f"params must be one array, got a tree of {len(leaves)}")
    return leaves[0]


def _weights(domain: Simplex | L1Ball, params: jax.Array) -> jax.Array:
    """Weights of the vertices whose mean is the first point: the most even ones."""
    check_shape("params", params, (domain.dim,))
    if isinstance(domain, Simplex):
        if not is_traced(params) and not np.all(np.asarray(params) > 0):
            low = float(jnp.min(params))
            raise ValueError(f"params must be inside the simplex, entries > 0, got {low}")
        return params
    both = jnp.concatenate([jnp.maximum(params, 0), jnp.maximum(-params, 0)])
    spare = 1 - jnp.sum(jnp.abs(params)) / jnp.asarray(domain.radius, params.dtype)
    if not is_traced(spare) and not spare > 0:
        got = float(jnp.sum(jnp.abs(params)))
        raise ValueError(f"params must have an l1 norm below {domain.radius}, got {got}")
    return spare / (2 * domain.dim) + both / jnp.asarray(domain.radius, params.dtype)
