"""The conformance suite for aggregators."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import Aggregator, PyTree
from dpjax.testing import _trees as trees
from dpjax.testing._asserts import assert_needs_key, assert_one_trace, assert_vmap_equals_loop
from dpjax.testing._cases import AggregatorCase
from dpjax.testing._draws import check_draws_differ, keys_drawn_by_runs
from dpjax.testing._neighbours import largest_change
from dpjax.testing._registry import Entry
from dpjax.transforms import OuterProduct


def check_aggregator(entry: Entry) -> None:
    """Runs the conformance suite on a registered aggregator.

    It is a sum: of at least float32, the total of two disjoint masks is the sum of theirs; no
    batch, no member and masked records (whatever they hold) give 0 or noise alone; a NaN or an
    infinite example contributes nothing; its sensitivity, asked under two relations, is not
    exceeded by any neighbour found. One trace; vmap over keys equals a loop.

    Args:
      entry: Of kind `"aggregator"`; its `make` gives an `AggregatorCase`.

    Raises:
      AssertionError: Naming the entry and what it does not hold to.
    """
    case: AggregatorCase = entry.make()
    name = entry.name
    if not isinstance(case.build(case.values[0]), Aggregator):
        raise AssertionError(f"{name} must build a dpjax.Aggregator")
    size = _batch_size(case.per_example)
    everyone = jnp.ones(size, bool)

    def total(value: Any, values: PyTree, mask: jax.Array, key: jax.Array | None) -> Any:
        aggregator = case.build(value)
        state = aggregator.init(_total_like(values, case.shape))
        extra = {"key": key} if case.random else {}
        return aggregator.update(values, state, _total_like(values, case.shape), mask=mask, **extra)

    for dtype in trees.float_types():
        values = trees.cast(case.per_example, dtype)
        out, after = jax.eval_shape(
            lambda v, key: total(case.values[0], v, everyone, key), values, jax.random.key(0)
        )
        trees.assert_types(out, _total_like(values, case.shape), f"{name}: sum")
        trees.assert_types(after, case.build(case.values[0]).init(out), f"{name}: state")

    traces: list[None] = []

    @jax.jit
    def run(value: Any, values: PyTree, mask: jax.Array, data: jax.Array) -> Any:
        traces.append(None)
        return total(value, values, mask, jax.random.wrap_key_data(data))[0]

    data = jax.random.key_data(jax.random.key(1))
    value, values = case.values[0], case.per_example
    whole = run(value, values, everyone, data)
    run(case.values[1], values, everyone, data)
    trees.assert_finite(whole, f"{name}: sum")

    noise = run(value, values, ~everyone, data)
    trees.assert_finite(noise, f"{name}: sum of an empty batch")
    first = jnp.arange(size) < size // 2
    parts = run(value, values, first, data), run(value, values, ~first, data)
    added = jax.tree.map(lambda a, b, c: a + b - c, *parts, noise)
    trees.assert_close(whole, added, f"{name}: sum of two halves of the batch", 1e-5)

    others = run(value, values, jnp.arange(size) > 0, data)
    for bad in (jnp.nan, jnp.inf, -jnp.inf, 1e38):
        spoiled = jax.tree.map(lambda a, b=bad: jnp.full_like(a, b), values)
        got = run(value, spoiled, ~everyone, data)
        trees.assert_identical(got, noise, f"{name}: sum of masked records that hold {bad}")
        for spoiled in _with_one_bad(values, bad) if not np.isfinite(bad) else ():
            got = run(value, spoiled, everyone, data)
            trees.assert_close(got, others, f"{name}: sum with an example that holds {bad}", 1e-6)
    assert_one_trace(traces, name)

    none = jax.tree.map(lambda a: a[:0], values)
    got, _ = total(value, none, everyone[:0], jax.random.wrap_key_data(data))
    trees.assert_close(got, noise, f"{name}: sum of a batch of length 0", 1e-6)
    if not case.random:
        trees.assert_close(noise, jax.tree.map(jnp.zeros_like, noise), f"{name}: empty sum", 0.0)
    else:
        assert_vmap_equals_loop(lambda data: run(value, values, everyone, data), name)
        assert_needs_key(lambda: total(value, values, everyone, None), name)
        seeds = [jax.random.key_data(jax.random.key(seed)) for seed in (2, 3)]
        keys = keys_drawn_by_runs(lambda d: run(value, values, everyone, d), seeds)
        check_draws_differ(keys, name)
    if case.norm is not None:
        _check_sensitivity(case, lambda v, m: run(value, v, m, data), name)


def _check_sensitivity(case: AggregatorCase, statistic: Any, name: str) -> None:
    aggregator = case.build(case.values[0])
    for relation in ("add_or_remove_one", "replace_one"):
        bound = float(aggregator.sensitivity(relation))
        worst = largest_change(
            statistic,
            case.per_example,
            norm=str(case.norm),
            relation=relation,
            key=jax.random.key(6),
            steps=20,
        )
        if not worst.change <= bound * (1 + 1e-4):
            raise AssertionError(
                f"{name}: sensitivity({relation!r}) is {bound:.6g} in {case.norm}, but to "
                f"{worst.kind} record {worst.removed} changes the sum by {worst.change:.6g}: "
                f"{worst.record}"
            )


def _is_outer(leaf: Any) -> bool:
    return isinstance(leaf, OuterProduct)


def _batch_size(per_example: PyTree) -> int:
    return int(jax.tree.leaves(per_example)[0].shape[0])


def _total_like(per_example: PyTree, shape: tuple[int, ...] | None) -> PyTree:
    """Zeros of the shapes and types a sum must have."""

    def zero(leaf: Any) -> jax.Array:
        made = jax.eval_shape(leaf.materialize) if _is_outer(leaf) else leaf
        dtype = jnp.promote_types(made.dtype, jnp.float32)
        return jnp.zeros(made.shape[1:] if shape is None else shape, dtype)

    return jax.tree.map(zero, per_example, is_leaf=_is_outer)


def _with_one_bad(per_example: PyTree, bad: float) -> list[PyTree]:
    """For each leaf, the values with one entry of it bad in example 0."""
    leaves, treedef = jax.tree.flatten(per_example)
    made = []
    for i, leaf in enumerate(leaves):
        spoiled = leaf.at[(0,) * leaf.ndim].set(bad)
        made.append(jax.tree.unflatten(treedef, [*leaves[:i], spoiled, *leaves[i + 1 :]]))
    return made
