"""Marginals in few passes over the cells: the plan, and the passes."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Axes = tuple[int, ...]
_MOST_GROUPS = 8
# costs, in cells read: of one operation; of cells read along a short innermost axis, by a factor
_OPERATION = 30_000
_SHORT, _SLOWDOWN = 32, 8
# a product of sub-cliques may compute this many times the cells asked for, and so many more
_SURPLUS, _FREE = 4, 4096


@dataclasses.dataclass(frozen=True)
class Node:
    """A table over some groups of attributes, summed out of its parent's; -1: the whole cube."""

    parent: int
    groups: Axes


@dataclasses.dataclass(frozen=True)
class Finish:
    """The tables of a product of sub-cliques, out of the node that touches the same groups.

    Attributes:
      node: Position of the node.
      kept: For each of its groups, the sub-cliques to keep (positions of attributes), whose cells
        stand side by side; the group alone where all of it is kept.
      widths: For each of its groups, the number of these cells.
    """

    node: int
    kept: tuple[tuple[Axes, ...], ...]
    widths: Axes

    @property
    def size(self) -> int:
        """Cells it computes."""
        return math.prod(self.widths)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """How the marginal tables of some cliques are computed.

    Attributes:
      shape: Sizes of the attributes.
      groups: Runs of adjacent attributes, each treated as one axis.
      nodes: Parents before children.
      finishes: Their outputs, one after another, hold every answer, and maybe others.
      index: Where in these outputs each answer is, `[m]`.
      inverse: Which answer each output is, m for none.
    """

    shape: Axes
    groups: tuple[Axes, ...]
    nodes: tuple[Node, ...]
    finishes: tuple[Finish, ...]
    index: np.ndarray
    inverse: np.ndarray

    def sizes(self, groups: Axes) -> Axes:
        """Cells of each of these groups."""
        return tuple(cells(self.shape, self.groups[group]) for group in groups)


def cells(shape: Axes, axes: Axes) -> int:
    """Cells of a table over some attributes."""
    return math.prod(shape[axis] for axis in axes)


@functools.lru_cache(maxsize=64)
def plan_for(shape: Axes, cliques: tuple[Axes, ...]) -> Plan:
    """The cheapest plan over a few ways to group the attributes."""
    plan = min((_plan(shape, groups, cliques) for groups in _groupings(shape)), key=_cost)
    index = _index(plan, cliques)
    inverse = np.full(sum(finish.size for finish in plan.finishes), len(index), np.int32)
    inverse[index] = np.arange(len(index), dtype=np.int32)
    return dataclasses.replace(plan, index=index, inverse=inverse)


def contractions(plan: Plan, finish: Finish) -> list[int]:
    """Axes of the node to contract, in order: what shrinks it most goes first."""
    groups = plan.nodes[finish.node].groups
    sizes = plan.sizes(groups)
    whole = [(plan.groups[group],) for group in groups]
    axes = [axis for axis, kept in enumerate(finish.kept) if kept != whole[axis]]
    # of equals the last, which moves no data
    return sorted(axes, key=lambda axis: (finish.widths[axis] / sizes[axis], -axis))


def columns(shape: Axes, group: Axes, kept: tuple[Axes, ...]) -> np.ndarray:
    """The 0/1 matrix `[cells of the group, width]` of membership in the sub-cliques' cells."""
    codes = dict(zip(group, np.indices([shape[a] for a in group]), strict=True))
    blocks = []
    for part in kept:
        index = np.ravel_multi_index([codes[a] for a in part], [shape[a] for a in part])
        blocks.append(index.reshape(-1, 1) == np.arange(cells(shape, part)).reshape(1, -1))
    return np.concatenate(blocks, axis=1)


def _groupings(shape: Axes) -> list[tuple[Axes, ...]]:
    """Runs of attributes: neighbours of the least product merge first, of equals the last.

    With any last run, or one of `_SHORT` cells or more.
    """
    found = []
    for shortest in (1, _SHORT):
        runs: list[Axes] = [(axis,) for axis in range(len(shape))]
        while len(runs) > 1 and cells(shape, runs[-1]) < shortest:
            runs[-2:] = [runs[-2] + runs[-1]]
        while runs:
            if len(runs) <= _MOST_GROUPS:
                found.append(tuple(runs))
            pairs = [first + second for first, second in itertools.pairwise(runs)]
            at = min(range(len(pairs)), key=lambda i: (cells(shape, pairs[i]), -i), default=0)
            runs = [*runs[:at], pairs[at], *runs[at + 2 :]] if pairs else []
    return list(dict.fromkeys(found))


def _plan(shape: Axes, groups: tuple[Axes, ...], cliques: tuple[Axes, ...]) -> Plan:
    """The plan of one grouping, without its indices."""
    parts: dict[Axes, list[tuple[Axes, ...]]] = {}
    for clique in cliques:
        cut = [tuple(axis for axis in group if axis in clique) for group in groups]
        touched = tuple(position for position, part in enumerate(cut) if part)
        parts.setdefault(touched, []).append(tuple(part for part in cut if part))
    nodes = [Node(-1, tuple(range(len(groups))))]
    _grow(nodes, 0, list(parts), [cells(shape, group) for group in groups])
    finishes = []
    for position, node in enumerate(nodes):
        for product in _products(shape, parts.get(node.groups, [])):
            kept = tuple(tuple(dict.fromkeys(column)) for column in zip(*product, strict=True))
            widths = tuple(sum(cells(shape, part) for part in column) for column in kept)
            finishes.append(Finish(position, kept, widths))
    none = np.zeros(0, np.int32)
    return Plan(shape, groups, tuple(nodes), tuple(finishes), none, none)


def _grow(nodes: list[Node], at: int, targets: list[Axes], sizes: Sequence[int]) -> None:
    """Adds the way from a node to the targets under it: the largest missing group goes first."""
    own = nodes[at].groups
    left = [target for target in targets if target != own]
    used = set().union(*targets)
    for group in sorted(own, key=lambda g: (g in used, -sizes[g])):
        without = [target for target in left if group not in target]
        if without:
            left = [target for target in left if group in target]
            nodes.append(Node(at, tuple(sorted(set().union(*without)))))
            _grow(nodes, len(nodes) - 1, without, sizes)


def _products(shape: Axes, cliques: list[tuple[Axes, ...]]) -> Iterator[list[tuple[Axes, ...]]]:
    """Splits cliques, each cut along the groups, until products of their parts waste little."""
    degrees: dict[Axes, list[tuple[Axes, ...]]] = {}
    for clique in cliques:
        degrees.setdefault(tuple(map(len, clique)), []).append(clique)
    waiting = list(degrees.values())
    while waiting:
        some = waiting.pop()
        factors = [list(dict.fromkeys(parts)) for parts in zip(*some, strict=True)]
        asked = sum(math.prod(cells(shape, part) for part in clique) for clique in some)
        total = math.prod(sum(cells(shape, part) for part in parts) for parts in factors)
        if len(some) == 1 or total <= _SURPLUS * asked + _FREE:
            yield some
            continue
        axis = max(range(len(factors)), key=lambda i: len(factors[i]))
        waiting += [[clique for clique in some if clique[axis] == part] for part in factors[axis]]


def _cost(plan: Plan) -> float:
    """Cells read, and more for what is slow."""
    cost = 0.0
    for node in plan.nodes[1:]:
        above = plan.nodes[node.parent].groups
        *_, last = plan.sizes(above)
        slow = last < _SHORT and above[-1] in node.groups
        cost += math.prod(plan.sizes(above)) * (_SLOWDOWN if slow else 1) + _OPERATION
    for finish in plan.finishes:
        sizes = plan.sizes(plan.nodes[finish.node].groups)
        size = math.prod(sizes)
        for axis in contractions(plan, finish):
            cost += size * finish.widths[axis] + _OPERATION
            size = size // sizes[axis] * finish.widths[axis]
        cost += finish.size
    return cost


def _index(plan: Plan, cliques: tuple[Axes, ...]) -> np.ndarray:
    """Where in the outputs each answer is, `[m]`."""
    blocks: dict[Axes, np.ndarray] = {}
    start = 0
    for finish in plan.finishes:
        places = np.arange(start, start + finish.size, dtype=np.int32).reshape(finish.widths)
        start += finish.size
        slices = []
        for kept in finish.kept:
            ends = list(itertools.accumulate(cells(plan.shape, part) for part in kept))
            slices.append(list(zip(kept, map(slice, [0, *ends], ends), strict=False)))
        for chosen in itertools.product(*slices):
            clique = tuple(axis for part, _ in chosen for axis in part)
            blocks[clique] = places[tuple(place for _, place in chosen)].reshape(-1)
    return np.concatenate([blocks[clique] for clique in cliques])


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
            kept = [size if group in node.groups else 1 for group, size in sizes]
            terms[node.parent].append(cube.reshape(kept))
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
    return jnp.dot(jnp.ones(size, cube.dtype), cube.reshape(size, after), precision="highest")


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
