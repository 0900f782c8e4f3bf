"""Averages of the iterates: free post-processing."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree

AVERAGES = ("ema", "uniform", "last")


def init_average(kind: str, params: PyTree) -> PyTree:
    """A running average of nothing yet; () where none is kept."""
    return () if kind == "last" else jax.tree.map(jnp.zeros_like, params)


def update_average(
    kind: str, average: PyTree, params: PyTree, count: jax.Array, decay: ArrayLike
) -> PyTree:
    """Takes in the iterate after `count` (>= 1) steps."""
    if kind == "last":
        return ()
    rate = 1 / count if kind == "uniform" else 1 - jnp.asarray(decay)
    return jax.tree.map(
        lambda a, p: a + jnp.asarray(rate, a.dtype) * (p.astype(a.dtype) - a), average, params
    )


def read_average(
    kind: str, average: PyTree, params: PyTree, count: jax.Array, decay: ArrayLike
) -> PyTree:
    """The average, with the exponential one corrected for its start at zero."""
    if kind == "last":
        return params
    if kind == "uniform":
        return average
    correction = 1 - jnp.asarray(decay) ** count
    return jax.tree.map(lambda a: a / jnp.asarray(correction, a.dtype), average)
