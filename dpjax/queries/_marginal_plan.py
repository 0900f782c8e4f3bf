"""Marginals in few passes over the cells."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Axes = tuple[int, ...]
Pass = Callable[[jax.Array], jax.Array]
Steps = list[tuple[int, np.ndarray]]
Cut = tuple[Axes, ...]  # a clique's attributes in each of the groups that it touches
_MOST_GROUPS = 5
_SHORT, _LONG = 32, 1024  # cells: sums along a shorter innermost axis are slow on CPUs
# a product of sub-cliques may compute this many times the cells asked for, and so many more
_SURPLUS, _FREE = 4, 4096


def cells(shape: Axes, axes: Axes) -> int:
    """Cells of a table over some attributes."""
    return math.prod(shape[axis] for axis in axes)


@functools.lru_cache(maxsize=64)
def passes(shape: Axes, cliques: Cut) -> tuple[Pass, Pass]:
    """The tables `[m]` of a vector of cells `[k]`, one after another, and the transpose of this.

    For each cell the transpose gives the sum over the answers it counts in.
    """
    groups = _groups(shape)
    cuts: dict[Axes, list[Cut]] = {}  # by the groups that cliques touch
    for clique in cliques:
        cut = [tuple(axis for axis in group if axis in clique) for group in groups]
        touched = tuple(position for position, part in enumerate(cut) if part)
        cuts.setdefault(touched, []).append(tuple(part for part in cut if part))
    sizes = [cells(shape, group) for group in groups]
    everything, used = tuple(range(len(groups))), set().union(*cuts)
    parents: dict[Axes, tuple[Axes, int]] = {}  # what smaller cubes are summed out of, and the axis
    for target in cuts:
        own = everything
        # what no clique touches goes first, then the largest; last what devices share the cells by
        missing = [group for group in everything if group not in target]
        for group in sorted(missing, key=lambda group: (group in used, group == 0, -sizes[group])):
            axis = own.index(group)
            above, own = own, own[:axis] + own[axis + 1 :]
            parents.setdefault(own, (above, axis))
    tables: list[tuple[Axes, Steps, list[int]]] = []  # out of which cube, how, and their shape
    places: dict[Axes, np.ndarray] = {}
    ends = [0]
    for own, some in cuts.items():
        for kept in _products(shape, some):
            widths = [sum(cells(shape, part) for part in parts) for parts in kept]
            ends.append(ends[-1] + math.prod(widths))
            place = np.arange(ends[-2], ends[-1], dtype=np.int32).reshape(widths)
            places |= _places(shape, kept, place)
            tables.append((own, _steps(shape, [groups[at] for at in own], kept), widths))
    index = np.concatenate([places[clique] for clique in cliques])
    inverse = np.full(ends[-1], len(index), np.int32)
    inverse[index] = np.arange(len(index), dtype=np.int32)

    @jax.jit
    def answers(p: jax.Array) -> jax.Array:
        cubes = {everything: p.reshape(sizes)}
        for own, (above, axis) in parents.items():
            # XLA would merge sums of sums, and then sum each table out of the whole cube
            cubes[own] = lax.optimization_barrier(_summed(cubes[above], axis))
        parts = [_contract(cubes[own], steps).reshape(-1) for own, steps, _ in tables]
        return jnp.concatenate(parts).at[index].get(mode="promise_in_bounds")

    @jax.jit
    def adjoint(v: jax.Array) -> jax.Array:
        padded = jnp.append(v, jnp.zeros(1, v.dtype))
        outputs = padded.at[inverse].get(mode="promise_in_bounds")
        terms: dict[Axes, list[jax.Array]] = {own: [] for own in (everything, *parents)}
        parts = jnp.split(outputs, ends[1:-1])
        for (own, steps, widths), part in zip(tables, parts, strict=True):
            back = [(axis, matrix.T) for axis, matrix in reversed(steps)]
            terms[own].append(_contract(part.reshape(widths), back))
        for own, (above, axis) in reversed(parents.items()):
            total = _total(terms[own], tuple(sizes[group] for group in own))
            terms[above].append(jnp.expand_dims(total, axis))
        return jnp.broadcast_to(_total(terms[everything], tuple(sizes)), sizes).reshape(-1)

    return answers, adjoint


def _groups(shape: Axes) -> list[Axes]:
    """Runs of attributes, each treated as one axis: neighbours of the least product are merged.

    The last has `_SHORT` cells or more, where that takes no run above `_LONG`.
    """
    runs: list[Axes] = [(axis,) for axis in range(len(shape))]
    while len(runs) > 1 and cells(shape, runs[-1]) < _SHORT:
        last = runs[-2] + runs[-1]
        if cells(shape, last) > _LONG:
            break
        runs[-2:] = [last]
    while len(runs) > _MOST_GROUPS:
        pairs = [first + second for first, second in itertools.pairwise(runs)]
        at = min(range(len(pairs)), key=lambda i: (cells(shape, pairs[i]), -i))
        runs[at : at + 2] = [pairs[at]]
    return runs


def _products(shape: Axes, cliques: list[Cut]) -> Iterator[list[Cut]]:
    """Products of parts of each group: together all cliques, cut along groups, and little else."""
    degrees: dict[Axes, list[Cut]] = {}
    for clique in cliques:
        degrees.setdefault(tuple(map(len, clique)), []).append(clique)
    waiting = list(degrees.values())
    while waiting:
        some = waiting.pop()
        factors = [list(dict.fromkeys(parts)) for parts in zip(*some, strict=True)]
        asked = sum(math.prod(cells(shape, part) for part in clique) for clique in some)
        total = math.prod(sum(cells(shape, part) for part in parts) for parts in factors)
        if len(some) == 1 or total <= _SURPLUS * asked + _FREE:
            yield [tuple(parts) for parts in factors]
            continue
        axis = max(range(len(factors)), key=lambda i: len(factors[i]))
        waiting += [[clique for clique in some if clique[axis] == part] for part in factors[axis]]


def _steps(shape: Axes, groups: list[Axes], kept: Sequence[Cut]) -> Steps:
    """How a table over groups becomes those of sub-cliques of each, side by side: axis, matrix."""
    found = [
        (axis, _columns(shape, group, parts))
        for axis, (group, parts) in enumerate(zip(groups, kept, strict=True))
        if parts != (group,)
    ]
    # what shrinks it most goes first; of equals the last, which moves no data
    return sorted(found, key=lambda step: (step[1].shape[1] / step[1].shape[0], -step[0]))


def _contract(cube: jax.Array, steps: Steps) -> jax.Array:
    """The product of axes with matrices `[old, new]`."""
    for axis, matrix in steps:
        dims = (((axis,), (0,)), ((), ()))
        held = jnp.asarray(matrix, cube.dtype)
        cube = jnp.moveaxis(lax.dot_general(cube, held, dims, precision="highest"), -1, axis)
    return cube


def _columns(shape: Axes, group: Axes, kept: Cut) -> np.ndarray:
    """The 0/1 matrix `[cells of the group, width]` of membership in the sub-cliques' cells."""
    codes = dict(zip(group, np.indices([shape[a] for a in group]), strict=True))
    blocks = []
    for part in kept:
        index = np.ravel_multi_index([codes[a] for a in part], [shape[a] for a in part])
        blocks.append(index.reshape(-1, 1) == np.arange(cells(shape, part)).reshape(1, -1))
    return np.concatenate(blocks, axis=1)


def _places(shape: Axes, kept: Sequence[Cut], places: np.ndarray) -> dict[Axes, np.ndarray]:
    """Where each table of a product is among the answers, of which `places` are its own."""
    ends = [np.cumsum([cells(shape, part) for part in parts])[:-1] for parts in kept]
    blocks: dict[Axes, np.ndarray] = {(): places}
    for axis, (parts, cuts) in enumerate(zip(kept, ends, strict=True)):
        blocks = {
            (*clique, *part): piece
            for clique, block in blocks.items()
            for part, piece in zip(parts, np.split(block, cuts, axis), strict=True)
        }
    return {clique: block.reshape(-1) for clique, block in blocks.items()}


def _summed(cube: jax.Array, axis: int) -> jax.Array:
    """The sum over an axis."""
    before, size, after = cube.shape[:axis], cube.shape[axis], cube.shape[axis + 1 :]
    if math.prod(before) > 1 or jnp.issubdtype(cube.dtype, jnp.integer):
        return jnp.sum(cube, axis=axis, dtype=cube.dtype)
    # on CPUs a sum over the first axis is far slower than a product with ones
    sums = jnp.dot(jnp.ones(size, cube.dtype), cube.reshape(size, -1), precision="highest")
    return sums.reshape(*before, *after)


def _total(terms: list[jax.Array], sizes: Axes) -> jax.Array:
    """The sum of terms, each broadcast to `sizes`, in a loop of its own; one alone as it is.

    On CPUs XLA fuses elementwise operations through barriers, so that each cell of the cube would
    recompute all that its terms are made of; it does not fuse into the branches of a conditional.
    """

    if len(terms) == 1:
        return terms[0]

    def whole(*terms: jax.Array) -> jax.Array:
        return functools.reduce(jnp.add, [jnp.broadcast_to(term, sizes) for term in terms])

    def apart(*terms: jax.Array) -> jax.Array:
        always = lax.optimization_barrier(jnp.array(True))
        return lax.cond(always, whole, lambda *t: jnp.zeros(sizes, t[0].dtype), *terms)

    return lax.platform_dependent(*terms, cpu=apart, default=whole)
