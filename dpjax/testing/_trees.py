"""Comparing, casting and saving trees that may hold typed PRNG keys."""

import io
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.typing import DTypeLike

from dpjax.core import PyTree
from dpjax.core._checks import is_key

# for programs that run once on tiny arrays, where compiling is all the cost
QUICK: dict[str, bool | int] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}
if tuple(map(int, jaxlib.__version__.split(".")[:3])) < (0, 11, 1):  # later XLA has no such option
    QUICK["xla_cpu_use_fusion_emitters"] = False


def is_float(leaf: PyTree) -> bool:
    """Whether a leaf holds real numbers."""
    return not is_key(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def float_types() -> list[DTypeLike]:
    """The float types to run in: bfloat16, float32 and, where it is enabled, float64."""
    return [jnp.bfloat16, jnp.float32] + [jnp.float64] * (jnp.result_type(float) == jnp.float64)


def cast(tree: PyTree, dtype: DTypeLike) -> PyTree:
    """The tree with its float leaves in another type."""
    return jax.tree.map(lambda a: jnp.asarray(a, dtype) if is_float(a) else a, tree)


def fresh(tree: PyTree) -> PyTree:
    """The tree with its keys cloned, to go from one state twice on purpose."""
    return jax.tree.map(lambda a: jax.random.clone(a) if is_key(a) else a, tree)


def stack(*trees: PyTree) -> PyTree:
    """Trees of one structure stacked along a new leading axis; by NumPy, which compiles nothing."""

    def together(*leaves: PyTree) -> PyTree:
        arrays = all(isinstance(a, (jax.Array, np.ndarray)) and not is_key(a) for a in leaves)
        return np.stack(leaves) if arrays else jnp.stack(leaves)

    return jax.tree.map(together, *trees)


def to_numpy(leaf: PyTree) -> np.ndarray:
    """The numbers of a leaf; the data of a key."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def save_and_load(tree: PyTree) -> PyTree:
    """The tree after a round trip through a NumPy archive; keys travel as their data."""
    leaves, treedef = jax.tree.flatten(tree)
    archive = io.BytesIO()
    np.savez(archive, *[to_numpy(leaf) for leaf in leaves])
    archive.seek(0)
    loaded = list(np.load(archive).values())

    def restored(leaf: PyTree, data: np.ndarray) -> jax.Array:
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(leaf))
        return jnp.asarray(data.view(to_numpy(leaf).dtype))  # bfloat16 comes back as raw bytes

    return jax.tree.unflatten(treedef, map(restored, leaves, loaded))


def with_bad_entry(tree: PyTree, bad: float) -> list[PyTree]:
    """For each float leaf `[n, ...]`, the tree with one entry of it bad in record 0."""
    leaves, treedef = jax.tree.flatten(tree)
    spoiled = []
    for i, leaf in enumerate(leaves):
        if is_float(leaf):
            one = np.array(leaf)
            one[(0,) * one.ndim] = bad
            spoiled.append(jax.tree.unflatten(treedef, [*leaves[:i], one, *leaves[i + 1 :]]))
    return spoiled


def filled(tree: PyTree, value: float) -> PyTree:
    """The tree with every float of this value, and every integer 0."""
    return jax.tree.map(lambda a: np.full(a.shape, value if is_float(a) else 0, a.dtype), tree)


def field_names(tree: PyTree) -> list[str]:
    """The name of each leaf: its key where the tree is a dict."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    return [str(getattr(path[0], "key", "")) if path else "" for path in paths]


def assert_types(got: PyTree, want: PyTree, what: str) -> None:
    """Raises unless two trees agree in structure, and their leaves in shape and dtype."""
    list(_pairs(got, want, what))


def _pairs(got: PyTree, want: PyTree, what: str) -> Iterator[tuple[str, PyTree, PyTree]]:
    """Where a leaf is, the leaf and the one wanted, of one structure, shape and dtype."""
    have: object = jax.tree.structure(got)
    wish: object = jax.tree.structure(want)
    if have != wish:
        raise AssertionError(f"{what} changed structure: {have}, want {wish}")
    leaves = zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True)
    for (path, a), b in leaves:
        where = what + jax.tree_util.keystr(path)
        if np.shape(a) != np.shape(b):
            raise AssertionError(f"{where} has shape {np.shape(a)}, want {np.shape(b)}")
        types = jnp.result_type(a), jnp.result_type(b)
        if types[0] != types[1]:
            raise AssertionError(f"{where} has dtype {types[0]}, want {types[1]}")
        yield where, a, b


def assert_identical(got: PyTree, want: PyTree, what: str) -> None:
    """Raises unless two trees are the same bit by bit (NaN equals NaN)."""
    for where, a, b in _pairs(got, want, what):
        x, y = to_numpy(a), to_numpy(b)
        if x.tobytes() != y.tobytes():
            raise AssertionError(f"{where} differs: {x}, want {y}")


def assert_close(got: PyTree, want: PyTree, what: str, tolerance: float) -> None:
    """Raises unless leaves agree to `tolerance`, relative to the largest modulus of the leaf."""
    for where, a, b in _pairs(got, want, what):
        x, y = to_numpy(a), to_numpy(b)
        if not is_float(b):
            same = np.array_equal(x, y)
        else:
            x, y = x.astype(np.float64), y.astype(np.float64)
            scale = tolerance * max(1.0, np.max(np.abs(y), initial=0.0, where=np.isfinite(y)))
            same = np.allclose(x, y, rtol=0, atol=scale, equal_nan=True)
        if not same:
            raise AssertionError(f"{where} differs: {x}, want {y}")


def assert_finite(tree: PyTree, what: str) -> None:
    """Raises unless every float in the tree is finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if is_float(leaf) and not np.all(np.isfinite(to_numpy(leaf).astype(np.float64))):
            raise AssertionError(f"{what}{jax.tree_util.keystr(path)} is not finite: {leaf}")
