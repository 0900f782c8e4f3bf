"""All marginal tables of a cube, and the transpose, by a tree of shared sums."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dpjax.queries._marginal_plan import Axes, Finish, Plan, columns, contractions


@functools.partial(jax.jit, static_argnums=0)
def all_answers(plan: Plan, p: jax.Array) -> jax.Array:
    """The answers `[m]` of a vector of cells `[k]`."""
    cubes: list[jax.Array] = []
    for node in plan.nodes:
        if node.parent < 0:
            cubes.append(p.reshape(plan.sizes(node.groups)))
            continue
        above = plan.nodes[node.parent].groups
        dropped = [axis for axis, group in enumerate(above) if group not in node.groups]
        # XLA would merge sums of sums, and then sum each table out of the whole cube
        cubes.append(lax.optimization_barrier(_sum_out(cubes[node.parent], dropped)))
    parts = [_forward(plan, finish, cubes[finish.node]) for finish in plan.finishes]
    return _gather(jnp.concatenate(parts), plan.index)


@functools.partial(jax.jit, static_argnums=0)
def all_cells(plan: Plan, v: jax.Array) -> jax.Array:
    """The transpose: for each cell, the sum of `v` `[m]` over the answers it counts in, `[k]`."""
    outputs = _gather(jnp.append(v, jnp.zeros(1, v.dtype)), plan.inverse)
    terms: list[list[jax.Array]] = [[] for _ in plan.nodes]
    start = 0
    for finish in plan.finishes:
        terms[finish.node].append(_backward(plan, finish, outputs[start : start + finish.size]))
        start += finish.size
    for i in reversed(range(len(plan.nodes))):
        node = plan.nodes[i]
        cube = _total(terms[i], plan.sizes(node.groups))
        if node.parent >= 0:
            above = plan.nodes[node.parent].groups
            sizes = zip(above, plan.sizes(above), strict=True)
            terms[node.parent].append(
                cube.reshape([size if group in node.groups else 1 for group, size in sizes])
            )
    return cube.reshape(-1)


def _total(terms: list[jax.Array], sizes: Axes) -> jax.Array:
    """The sum of terms, each broadcast to `sizes`, in a loop of its own.

    On CPUs XLA fuses elementwise operations through barriers, so that each cell of the cube would
    recompute all that its terms are made of; it does not fuse into the branches of a conditional.
    """

    def whole(*terms: jax.Array) -> jax.Array:
        return functools.reduce(jnp.add, [jnp.broadcast_to(term, sizes) for term in terms])

    def apart(*terms: jax.Array) -> jax.Array:
        always = lax.optimization_barrier(jnp.array(True))
        return lax.cond(always, whole, lambda *t: jnp.zeros(sizes, t[0].dtype), *terms)

    return lax.platform_dependent(*terms, cpu=apart, default=whole)


def _sum_out(cube: jax.Array, axes: list[int]) -> jax.Array:
    """The sum over these axes, a run of neighbours at a time, the longest first."""
    left = list(cube.shape)
    runs = [
        [axis for _, axis in run]
        for _, run in itertools.groupby(enumerate(axes), lambda pair: pair[1] - pair[0])
    ]
    for run in sorted(runs, key=lambda run: -math.prod(left[axis] for axis in run)):
        before, after = math.prod(left[: run[0]]), math.prod(left[run[-1] + 1 :])
        cube = _middle_sum(cube.reshape(before, -1, after))
        for axis in run:
            left[axis] = 1
    return cube.reshape([size for axis, size in enumerate(left) if axis not in axes])


def _middle_sum(cube: jax.Array) -> jax.Array:
    """The sum over the middle axis of three."""
    before, size, after = cube.shape
    if before > 1 or after == 1 or jnp.issubdtype(cube.dtype, jnp.integer):
        return jnp.sum(cube, axis=1, dtype=cube.dtype)
    # on CPUs a sum over the first axis is far slower than a product with ones
    ones = jnp.ones(size, cube.dtype)
    return jnp.dot(ones, cube.reshape(size, after), precision="highest")


def _gather(values: jax.Array, index: np.ndarray) -> jax.Array:
    """`values[index]`, for an index known to be in range."""
    if np.array_equal(index, np.arange(values.shape[0])):
        return values
    return values.at[index].get(mode="promise_in_bounds")


def _forward(plan: Plan, finish: Finish, cube: jax.Array) -> jax.Array:
    for axis in contractions(plan, finish):
        cube = _apply(cube, axis, _matrix(plan, finish, axis, cube.dtype))
    return cube.reshape(-1)


def _backward(plan: Plan, finish: Finish, outputs: jax.Array) -> jax.Array:
    cube = outputs.reshape(finish.widths)
    for axis in reversed(contractions(plan, finish)):
        cube = _apply(cube, axis, _matrix(plan, finish, axis, cube.dtype).T)
    return cube


def _apply(cube: jax.Array, axis: int, matrix: jax.Array) -> jax.Array:
    """The product of one axis with a matrix `[old, new]`."""
    product = lax.dot_general(cube, matrix, (((axis,), (0,)), ((), ())), precision="highest")
    return jnp.moveaxis(product, -1, axis)


def _matrix(plan: Plan, finish: Finish, axis: int, dtype: jnp.dtype) -> jax.Array:
    group = plan.groups[plan.nodes[finish.node].groups[axis]]
    return jnp.asarray(columns(plan.shape, group, finish.kept[axis]), dtype)
