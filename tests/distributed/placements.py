"""Runs of one solver on one device and on several, and what their programs exchange."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks._exchanges import collectives as collectives
from benchmarks._exchanges import compiled_loop as compiled_loop
from benchmarks._exchanges import job_of as job_of
from dpjax.runtime import _loop


def mesh_of(*sizes, names=("records", "params")):
    """A mesh of the first devices, in this shape; on CPU there are always eight (conftest)."""
    # an accelerator has as many as it has; on CPU too few are an error, not a skip
    if jax.default_backend() != "cpu" and jax.device_count() < math.prod(sizes):
        pytest.skip(f"needs {math.prod(sizes)} devices")
    devices = np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes)
    return Mesh(devices, names[: len(sizes)])


def put(array, mesh, *spec):
    """An array spread over axes of a mesh."""
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*spec)))


def with_params(problem, mesh, axes=lambda leaf: leaf.ndim > 0):
    """The problem with the first axis of its parameters spread, in leaves where `axes` is true."""

    def spread(leaf):
        return put(leaf, mesh, "params", *[None] * (leaf.ndim - 1)) if axes(leaf) else leaf

    return dataclasses.replace(problem, init=jax.tree.map(spread, problem.init))


def moved(compiled, kinds=("all-gather", "all-to-all", "collective-permute")):
    """The largest number of bytes of one array that changes place as it is, 0 for none."""
    return max((size for kind, _, size in collectives(compiled) if kind in kinds), default=0)


def assert_same(got, want, tolerance=1e-5):
    """Equal draws, and numbers up to the order of sums, in units of the largest of an array.

    A draw flips where two noisy scores are within rounding, which the seeds here do not meet.
    """
    for a, b in zip(jax.tree.leaves(words(got)), jax.tree.leaves(words(want)), strict=True):
        if np.issubdtype(b.dtype, np.floating):
            scale = np.abs(b).max(initial=0, where=np.isfinite(b))
            np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(scale, 1e-30))
        else:
            np.testing.assert_array_equal(a, b)


def words(tree):
    """Leaves as NumPy arrays, keys as their words."""
    return jax.tree.map(np.asarray, _loop.words(tree))
