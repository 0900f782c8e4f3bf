"""The conformance suite for samplers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import Sampler
from dpjax.testing import _trees as trees
from dpjax.testing._cases import SamplerCase
from dpjax.testing._draws import check_draws_differ, keys_drawn_by_runs
from dpjax.testing._registry import Entry


def check_sampler(entry: Entry) -> None:
    """Runs the conformance suite on a registered sampler.

    Batches of one static shape, indices in range, no record twice in a batch; one trace for all
    keys; vmap over keys equals a loop; the same key gives the same batches, another key others; no
    two steps share a draw; a probability of failure; a static, hashable pytree; a missing key is a
    TypeError.

    Args:
      entry: Of kind `"sampler"`; its `make` gives a `SamplerCase`.

    Raises:
      AssertionError: Naming the entry and what it does not hold to.
    """
    case: SamplerCase = entry.make()
    name, sampler, n = entry.name, case.sampler, case.num_records
    if not isinstance(sampler, Sampler):
        raise AssertionError(f"{name} lacks a method of dpjax.core.Sampler")
    if jax.tree.leaves(sampler) or hash(sampler) != hash(case.sampler):
        raise AssertionError(f"{name} must be a static, hashable pytree without leaves")
    failure = sampler.failure_probability()
    if not 0 <= failure <= 1:
        raise AssertionError(f"{name}: failure_probability must lie in [0, 1], got {failure}")

    traces: list[None] = []

    def batches(xs: Any) -> Any:
        def body(carry: None, x: Any) -> Any:
            indices, mask = sampler.batch(x, n)
            return carry, (jnp.arange(n) if indices is None else indices, mask)

        return jax.lax.scan(body, None, xs)[1]

    @jax.jit
    def run(xs: Any) -> Any:
        traces.append(None)
        return batches(xs)

    plans = [sampler.plan(jax.random.key(seed), n) for seed in (0, 0, 1)]
    for leaf in jax.tree.leaves(plans[0]):
        if leaf.shape[0] != sampler.steps:
            raise AssertionError(f"{name}: plan has leading axis {leaf.shape[0]}, want the steps")
    results = [run(plan) for plan in plans]
    if len(traces) != 1:
        raise AssertionError(f"{name}: traced {len(traces)} times for three keys, want 1")
    trees.assert_identical(results[1], results[0], f"{name}: batches of the same key")
    other = any(map(_differ, jax.tree.leaves(results[0]), jax.tree.leaves(results[2])))
    if other != case.random:
        raise AssertionError(f"{name}: another key gives {'other' if other else 'equal'} batches")
    for indices, mask in results:
        _check_batches(np.asarray(indices), np.asarray(mask), n, name)

    def whole(data: jax.Array) -> Any:
        return batches(sampler.plan(jax.random.wrap_key_data(data), n))

    if not case.concrete_key:
        data = jax.random.key_data(jax.random.split(jax.random.key(2), 3))
        looped = trees.stack(*[run(sampler.plan(jax.random.wrap_key_data(d), n)) for d in data])
        every = jax.jit(jax.vmap(whole), compiler_options=trees.QUICK)
        trees.assert_identical(every(data), looped, f"{name}: vmap over keys")
        if case.random:
            check_draws_differ(keys_drawn_by_runs(whole, data), name)
    if case.random:
        try:
            sampler.plan(None, n)  # type: ignore[arg-type]
        except TypeError:
            return
        raise AssertionError(f"{name}: plan without a key must raise TypeError, and did not")


def _differ(a: Any, b: Any) -> bool:
    return not np.array_equal(trees.to_numpy(a), trees.to_numpy(b))


def _check_batches(indices: np.ndarray, mask: np.ndarray, num_records: int, name: str) -> None:
    if mask.dtype != bool or not np.issubdtype(indices.dtype, np.integer):
        raise AssertionError(
            f"{name}: batch must give integers and bools, got {indices.dtype} and {mask.dtype}"
        )
    if indices.shape != mask.shape:
        raise AssertionError(f"{name}: indices {indices.shape} and mask {mask.shape} differ")
    if indices.size and not (indices.min() >= 0 and indices.max() < num_records):
        raise AssertionError(
            f"{name}: indices must lie in 0..{num_records - 1}, padding too, got "
            f"{indices.min()}..{indices.max()}"
        )
    for row, here in zip(indices, mask, strict=True):
        members = row[here]
        if len(set(members.tolist())) != members.size:
            raise AssertionError(f"{name}: a record takes part twice in one batch: {members}")
