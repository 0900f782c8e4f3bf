"""K-norm noise over a whole tree, and the events of mechanisms of pure privacy."""

import math

import jax
import jax.numpy as jnp
from dp_accounting import dp_event as dpe
from jax.typing import DTypeLike

from dpjax.core import PyTree
from dpjax.privacy import RelationLike, resolve_relation
from dpjax.random._laplace import laplace
from dpjax.transforms.noise.correlated._strategy import standard_normal, wide_dtype


def knorm_noise(key: jax.Array, like: PyTree, norm: str) -> PyTree:
    r"""One draw of density proportional to $e^{-\|x\|}$, x all leaves of a tree together.

    Of d coordinates in all: a radius Gamma(d) times a uniform direction (l2), or a radius
    Gamma(d + 1) times a uniform point of the cube (linf).
    """
    leaves, treedef = jax.tree.flatten(like)
    size = sum(math.prod(jnp.shape(leaf)) for leaf in leaves)
    if not size:
        return jax.tree.map(lambda leaf: jnp.zeros(jnp.shape(leaf), wide_dtype(leaf)), like)
    dtype = jnp.result_type(*map(wide_dtype, leaves))
    radius_key = jax.random.fold_in(key, len(leaves))
    if norm == "l2":
        shape = standard_normal(key, like)
        squares = sum(jnp.sum(jnp.square(leaf.astype(dtype))) for leaf in jax.tree.leaves(shape))
        factor = _gamma(radius_key, size, dtype) / jnp.sqrt(squares)
    else:
        drawn = [_uniform(jax.random.fold_in(key, i), leaf) for i, leaf in enumerate(leaves)]
        shape = jax.tree.unflatten(treedef, drawn)
        factor = _gamma(radius_key, size + 1, dtype)
    return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, shape)


def _gamma(key: jax.Array, shape: int, dtype: DTypeLike) -> jax.Array:
    """A sum of so many exponentials, whose tail goes further than that of `jax.random.gamma`."""
    return jnp.sum(jnp.abs(laplace(key, (shape,), dtype)))


def _uniform(key: jax.Array, leaf: PyTree) -> jax.Array:
    return jax.random.uniform(key, jnp.shape(leaf), wide_dtype(leaf), -1.0, 1.0)


def pure_event(epsilon: float, count: int, relation: RelationLike) -> dpe.DpEvent:
    r"""The event of `count` mechanisms, each $\epsilon$-DP for a record against the null record.

    Each is dominated by a loss of $\pm\epsilon$: randomised response under replace_one, at
    $2 \epsilon$, and else the discrete Laplace of sensitivity 1, whose loss takes no other values.
    """
    if epsilon > 350:  # e^(2 epsilon) overflows
        return dpe.NonPrivateDpEvent()
    step: dpe.DpEvent
    if resolve_relation(relation).name == "REPLACE_ONE":
        keep_out = 2 / (1 + math.exp(2 * epsilon))
        step = dpe.RandomizedResponseDpEvent(keep_out, 2)
    else:
        step = dpe.DiscreteLaplaceDpEvent(float(epsilon), 1)
    return dpe.ComposedDpEvent([step] * count)
