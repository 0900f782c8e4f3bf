"""Correlated noise and tree aggregation, as registry entries."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from dpjax.core import PyTree, chain
from dpjax.testing._cases import TransformCase
from dpjax.testing._registry import register
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    RestartNoise,
    SplitNoise,
    correlated_noise,
    restarted_sums,
    tree_aggregation,
)

_STEPS = 13


def _updates() -> PyTree:
    rng = np.random.default_rng(9)
    return {
        "w": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32),
        "v": [jnp.asarray(rng.normal(size=6), jnp.float32)],
    }


def _case(build: Callable[..., Any]) -> TransformCase:
    return TransformCase(build, _updates(), extra={"sensitivity": 0.7})


_CASES: dict[str, Callable[..., Any]] = {
    "tree_aggregation": lambda v: tree_aggregation(v, _STEPS),
    "tree_aggregation(variance_reduced)": lambda v: tree_aggregation(v, _STEPS, True),
    "correlated_noise(BufferedToeplitz)": lambda v: correlated_noise(BufferedToeplitz(_STEPS), v),
    "correlated_noise(BinaryTree, exponent)": lambda v: correlated_noise(
        BinaryTree(_STEPS, exponent=1.5), v
    ),
    "correlated_noise(BinaryTree, l2)": lambda v: correlated_noise(
        BinaryTree(_STEPS, distribution="l2"), v
    ),
    "correlated_noise(BinaryTree, linf)": lambda v: correlated_noise(
        BinaryTree(_STEPS, distribution="linf"), v
    ),
    "correlated_noise(RestartNoise)": lambda v: correlated_noise(
        RestartNoise(BufferedToeplitz(_STEPS)), v
    ),
    "restarted_sums(SplitNoise)": lambda v: restarted_sums(SplitNoise(3), v),
    "restarted_sums(RestartNoise)": lambda v: restarted_sums(RestartNoise(BinaryTree(2)), v),
    "chain(correlated_noise, trace)": lambda v: chain(
        correlated_noise(BufferedToeplitz(_STEPS), v), optax.trace(decay=1.0)
    ),
}

for _name, _build in _CASES.items():
    register(_name, "transform", functools.partial(_case, _build))
