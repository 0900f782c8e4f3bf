"""Arithmetic on trees, which the online learners share."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, wide

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


def points(params: PyTree) -> PyTree:
    """The parameters, which every learner is to be given, in at least float32."""
    return widened(required("params", params, "the point w_t that the learner is to move"))


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
