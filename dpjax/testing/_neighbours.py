"""Brute-force search for the neighbour that moves a statistic most."""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_choice, check_int
from dpjax.testing._trees import QUICK, field_names, is_float

_NORMS = {"l1": 1, "l2": 2, "linf": np.inf}
_KINDS = {
    "add_or_remove_one": ("remove", "add"),
    "replace_one": ("replace",),
    "replace_special": ("remove", "add"),
}
_SPECIAL = (0.0, np.nan, np.inf, -np.inf, 1e-30, 1e30)


class Neighbour(NamedTuple):
    """The worst neighbour found.

    Attributes:
      change: How far the statistic moved; infinite where it was not finite.
      kind: `"remove"`, `"add"` or `"replace"`.
      removed: Position of the record removed or replaced; None for `"add"`.
      record: Record put in, leaves without a batch axis; None for `"remove"`.
    """

    change: float
    kind: str
    removed: int | None
    record: PyTree


def largest_change(
    statistic: Callable[[PyTree, jax.Array], PyTree],
    batch: PyTree,
    mask: ArrayLike | None = None,
    *,
    norm: str = "l2",
    relation: str = "add_or_remove_one",
    choices: Mapping[str, Sequence[int]] | None = None,
    key: jax.Array,
    restarts: int = 6,
    steps: int = 60,
) -> Neighbour:
    r"""A lower bound on sensitivity: searches neighbours for the largest change of a statistic.

    $$ \max_{D' \sim D} \| f(D) - f(D') \| $$

    Each record is removed; a record is added; each record is replaced. A record put in starts from
    normals of scales 0.01 to 1000, from the records at hand and from extreme values (0, NaN,
    infinity, 1e-30, 1e30). Its float fields then climb the gradient of the change in steps that
    shrink; its integer fields are enumerated. A statistic that is discontinuous or has no
    gradient is still tried at all starting points.

    Args:
      statistic: `statistic(batch, mask) -> tree of floats`, traceable and without noise; it is
        called with one slot more than `batch` has, padded by a masked record.
      batch: Tree of leaves `[B, ...]`.
      mask: bool `[B]`; default: all True.
      norm: `"l1"`, `"l2"` or `"linf"`, over the whole tree.
      relation: `"add_or_remove_one"`, `"replace_one"` or `"replace_special"` (a record becomes
        absent, or appears).
      choices: Values of integer fields where `batch` is a dict; default: those that occur.
      key: For the starting points.
      restarts: Random starting points for each combination of integers.
      steps: Gradient steps from each.

    Returns:
      The worst neighbour found.

    Raises:
      ValueError: If the norm or relation is unknown, or a number is too small.
      TypeError: If `restarts` or `steps` is not an integer.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> clip = dpjax.transforms.clip_by_norm(1.0)
      >>> worst = largest_change(
      ...     lambda x, mask: clip.update(x, clip.init(None), mask=mask)[0],
      ...     jnp.ones((3, 2)), key=jax.random.key(0), relation="replace_one")
      >>> 1.98 < worst.change < 2.0001
      True

    Source: the idea of adversarial inputs to a sensitivity bound, e.g. Ding et al. 2018,
      "Detecting violations of differential privacy".
    """
    check_choice("relation", relation, tuple(_KINDS))
    search = Search(statistic, batch, mask, norm, choices, restarts, steps)
    found = search.worst_of_each(_KINDS[relation], key)
    return max(found.values(), key=lambda neighbour: neighbour.change)


class Search(NamedTuple):
    """A search for the record that moves a statistic most; its fields are those of the function."""

    statistic: Callable[[PyTree, jax.Array], PyTree]
    batch: PyTree
    mask: PyTree = None
    norm: str = "l2"
    choices: Mapping[str, Sequence[int]] | None = None
    restarts: int = 6
    steps: int = 60

    def worst_of_each(self, kinds: Sequence[str], key: jax.Array) -> dict[str, Neighbour]:
        """What `largest_change` looks for, by kind of neighbour, in one program for all kinds."""
        check_choice("norm", self.norm, tuple(_NORMS))
        check_int("restarts", self.restarts, minimum=1)
        check_int("steps", self.steps, minimum=0)
        size = jax.tree.leaves(self.batch)[0].shape[0]
        mask = np.ones(size, bool) if self.mask is None else np.asarray(self.mask, bool)
        starts = _starting_points(self.batch, self.choices or {}, key, self.restarts)
        number = jax.tree.leaves(starts)[0].shape[0]
        present = [int(i) for i in np.flatnonzero(mask)]
        places = {"remove": present, "add": [-1], "replace": present}
        # the record that a removal puts in is masked: any one start will do
        searches = [
            (kind, place, start)
            for kind in kinds
            for place in places[kind]
            for start in range(1 if kind == "remove" else number)
        ]
        kind_of, place_of, start_of = (np.asarray(column) for column in zip(*searches, strict=True))
        known = self._replace(mask=jnp.asarray(mask))
        climb = jax.jit(jax.vmap(known.climb), compiler_options=QUICK)
        records = jax.tree.map(lambda a: a[start_of], starts)
        best, records = climb(records, place_of, kind_of != "remove")
        found = {}
        for kind in dict.fromkeys(kind_of.tolist()):
            rows = np.flatnonzero(kind_of == kind)
            worst = rows[np.argmax(np.asarray(best)[rows])]
            removed = None if kind == "add" else int(place_of[worst])
            record = None if kind == "remove" else jax.tree.map(lambda a, i=worst: a[i], records)
            found[kind] = Neighbour(float(best[worst]), kind, removed, record)
        return found

    def change(
        self, record: PyTree, index: jax.Array, insert: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The norm of the change when `index` goes (none: -1) and `record` comes (if `insert`).

        Before it stands a function of it that has a gradient at 0: for l2 its square.
        """
        slots = jax.tree.map(
            lambda a, r: jnp.concatenate([a, r[None].astype(a.dtype)]), self.batch, record
        )
        before = jnp.append(self.mask, False)
        after = jnp.append(self.mask & (jnp.arange(self.mask.shape[0]) != index), insert)
        both = jax.vmap(self.statistic, in_axes=(None, 0))(slots, jnp.stack([after, before]))
        changes = [jnp.ravel(jnp.asarray(a[0] - a[1], float)) for a in jax.tree.leaves(both)]
        flat = jnp.concatenate(changes)
        size = jnp.linalg.norm(flat, _NORMS[self.norm])
        power = jnp.sum(flat * flat) if self.norm == "l2" else size
        return power, jnp.where(jnp.all(jnp.isfinite(flat)), size, jnp.inf)

    def climb(
        self, record: PyTree, index: jax.Array, insert: jax.Array
    ) -> tuple[jax.Array, PyTree]:
        """Gradient ascent from one start at one place: the largest change and its record."""
        start, fixed = _split(record)

        def objective(moving: list[Any]) -> tuple[jax.Array, jax.Array]:
            power, size = self.change(_join(moving, fixed), index, insert)
            return power, jax.lax.stop_gradient(size)

        # the size of the record, so that a step means the same at every scale
        unit = jnp.sqrt(sum(jnp.sum(a * a) for a in start)) if start else jnp.zeros(())
        unit = jnp.where(jnp.isfinite(unit) & (unit > 0), unit, 1.0)

        def body(carry: PyTree, step: jax.Array) -> tuple[PyTree, None]:
            moving, best, argbest = carry
            slope, size = jax.grad(objective, has_aux=True)(moving)
            better = size > best
            argbest = jax.tree.map(lambda a, b: jnp.where(better, a, b), moving, argbest)
            best = jnp.where(better, size, best)
            slope = [jnp.where(jnp.isfinite(g) & insert, g, 0) for g in slope]
            top = functools.reduce(jnp.maximum, [jnp.max(jnp.abs(g), initial=0) for g in slope])
            slope = [g / jnp.maximum(top, jnp.finfo(g.dtype).tiny) for g in slope]
            length = jnp.sqrt(sum(jnp.sum(g * g) for g in slope))
            rate = unit * 0.5 * 0.93**step / jnp.maximum(length, 1)
            moving = [a + (rate * g).astype(a.dtype) for a, g in zip(moving, slope, strict=True)]
            return (moving, best, argbest), None

        if not start:
            return self.change(record, index, insert)[1], record
        carry = (start, jnp.asarray(-1.0, float), start)
        (_, best, argbest), _ = jax.lax.scan(body, carry, jnp.arange(self.steps + 1))
        return best, _join(argbest, fixed)


def _split(record: PyTree) -> tuple[list[Any], PyTree]:
    """The float leaves, and the record with None in their place."""
    moving = [leaf for leaf in jax.tree.leaves(record) if is_float(leaf)]
    return moving, jax.tree.map(lambda leaf: None if is_float(leaf) else leaf, record)


def _join(moving: list[Any], fixed: PyTree) -> PyTree:
    rest = iter(moving)
    return jax.tree.map(
        lambda leaf: next(rest) if leaf is None else leaf, fixed, is_leaf=lambda leaf: leaf is None
    )


def _starting_points(
    batch: PyTree, choices: Mapping[str, Sequence[int]], key: jax.Array, restarts: int
) -> PyTree:
    """Records `[starts, ...]`: every combination of integers with every start of the floats."""
    leaves, treedef = jax.tree.flatten(batch)
    scales = 10.0 ** np.linspace(-2, 3, restarts)
    floats, integers = {}, {}
    for i, (name, leaf) in enumerate(zip(field_names(batch), leaves, strict=True)):
        if not is_float(leaf):
            integers[i] = sorted(choices.get(name, np.unique(np.asarray(leaf)).tolist()))
            continue
        shape = leaf.shape[1:]
        normals = jax.random.normal(jax.random.fold_in(key, i), (restarts, *shape))
        shaped = scales.reshape(-1, *(1,) * len(shape))
        starts = [np.asarray(normals, np.float64) * shaped, np.asarray(leaf, np.float64)]
        floats[i] = np.concatenate(starts + [np.full((1, *shape), value) for value in _SPECIAL])
    # every start of the floats with every combination of the integers, which runs faster
    number = restarts + leaves[0].shape[0] + len(_SPECIAL)
    combinations = list(itertools.product(*integers.values()))
    chosen = dict(zip(integers, np.tile(np.array(combinations), (number, 1)).T, strict=True))
    columns = []
    for i, leaf in enumerate(leaves):
        if i in floats:
            column = np.repeat(floats[i], len(combinations), axis=0)
        else:
            column = np.multiply.outer(chosen[i], np.ones(leaf.shape[1:], int))
        columns.append(column.astype(leaf.dtype))
    return jax.tree.unflatten(treedef, columns)
