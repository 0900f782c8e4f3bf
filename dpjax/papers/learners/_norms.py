"""More arithmetic on trees: norms, inner products and multiples."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, wide
from dpjax.transforms.learners._learner import largest, scalar


def scaled(tree: PyTree, scale: ArrayLike) -> PyTree:
    """`scale * tree`, in at least float32."""
    return jax.tree.map(lambda a: wide(a) * jnp.asarray(scale, wide(a).dtype), tree)


def norm(tree: PyTree) -> jax.Array:
    """The l2 norm over all leaves; squares neither overflow nor vanish."""
    top = largest(tree)
    unit = jnp.where(top > 0, top, 1)
    leaves = [jnp.ravel(wide(a)) for a in jax.tree.leaves(tree)]
    squares = [jnp.sum(jnp.square(a / unit.astype(a.dtype))).astype(top.dtype) for a in leaves]
    return unit * jnp.sqrt(sum(squares, jnp.zeros_like(top)))


def inner(a: PyTree, b: PyTree) -> jax.Array:
    """The inner product over all leaves."""
    products = jax.tree.map(lambda x, y: jnp.sum(wide(x) * wide(y)), a, b)
    zero = scalar(a)
    return sum((p.astype(zero.dtype) for p in jax.tree.leaves(products)), zero)
