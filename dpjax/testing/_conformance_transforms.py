"""The conformance suite for transformations and aggregators."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import Aggregator, PyTree
from dpjax.testing import _trees as trees
from dpjax.testing._cases import AggregatorCase, TransformCase
from dpjax.testing._draws import check_draws_differ, keys_drawn_by_runs
from dpjax.testing._neighbours import largest_change
from dpjax.testing._registry import Entry
from dpjax.transforms import OuterProduct

_STEPS = 3


def check_transform(entry: Entry) -> None:
    """Runs the conformance suite on a registered transformation.

    Structure, shapes and dtypes are kept; one trace for all values; vmap over keys equals a loop;
    a saved and loaded state goes on bit for bit; no two draws are equal across leaf, step, run and
    re-initialisation; a missing key is a TypeError.

    Args:
      entry: Of kind `"transform"`; its `make` gives a `TransformCase`.

    Raises:
      AssertionError: Naming the entry and what it does not hold to.
    """
    case: TransformCase = entry.make()
    name = entry.name

    def build(value: Any, key: jax.Array) -> Any:
        return case.build(value, key) if case.key_in_state else case.build(value)

    def update(transform: Any, updates: PyTree, state: Any, key: jax.Array) -> Any:
        if case.random and not case.key_in_state:
            return transform.update(updates, state, case.params, key=key)
        return transform.update(updates, state, case.params)

    for dtype in trees.float_types():
        updates = trees.cast(case.updates, dtype)

        def both(key: jax.Array, updates: PyTree = updates) -> Any:
            transform = build(case.values[0], key)
            state = transform.init(updates)
            return state, update(transform, updates, trees.fresh(state), key)

        state, (out, after) = jax.eval_shape(both, jax.random.key(0))
        trees.assert_types(out, updates, f"{name}: updates")
        trees.assert_types(after, state, f"{name}: state")

    traces: list[None] = []

    @jax.jit
    def step(value: Any, updates: PyTree, state: Any, key: jax.Array) -> Any:
        traces.append(None)
        return update(build(value, jax.random.key(2)), updates, state, key)

    state = build(case.values[0], jax.random.key(2)).init(case.updates)
    start = trees.fresh(state)
    for i, value in enumerate(case.values):
        out, state = step(value, case.updates, state, jax.random.key(i))
        trees.assert_finite(out, f"{name}: updates")
    _assert_one_trace(traces, name)

    saved = trees.save_and_load(state)
    for i in range(2):
        on, state = step(case.values[0], case.updates, state, jax.random.key(10 + i))
        back, saved = step(case.values[0], case.updates, saved, jax.random.key(10 + i))
        trees.assert_identical(back, on, f"{name}: updates after save and load")
        trees.assert_identical(saved, state, f"{name}: state after save and load")

    def keyed(data: jax.Array) -> Any:
        key = jax.random.wrap_key_data(data)
        if case.key_in_state:
            transform = build(case.values[0], key)
            return update(transform, case.updates, transform.init(case.updates), key)[0]
        return update(build(case.values[0], key), case.updates, trees.fresh(start), key)[0]

    _assert_vmap_equals_loop(keyed, name)
    if case.random:
        _check_draws(case, build, update, name)
        if not case.key_in_state:
            transform = build(case.values[0], jax.random.key(0))
            _assert_needs_key(
                lambda: transform.update(case.updates, transform.init(case.updates), case.params),
                name,
            )


def _check_draws(case: TransformCase, build: Any, update: Any, name: str) -> None:
    zeros = jax.tree.map(jnp.zeros_like, case.updates)
    shared = build(case.values[1], jax.random.key(3))  # one object, initialised for each run

    def run(data: jax.Array) -> list[PyTree]:
        key = jax.random.wrap_key_data(data)
        transform = build(case.values[1], key) if case.key_in_state else shared
        state, outs = transform.init(zeros), []
        for _ in range(_STEPS):
            out, state = update(transform, zeros, state, key)
            outs.append(out)
        return outs

    runs = [jax.random.key_data(jax.random.key(seed)) for seed in (4, 5)]
    drawn = []
    for number, data in enumerate(runs):
        for t, out in enumerate(jax.jit(run, compiler_options=trees.QUICK)(data)):
            for path, leaf in jax.tree_util.tree_leaves_with_path(out):
                where = f"leaf {jax.tree_util.keystr(path)} of step {t} of run {number}"
                drawn.append((where, trees.to_numpy(leaf).ravel()))
    for i, (where, noise) in enumerate(drawn):
        for other, noise_there in drawn[:i]:
            common = min(noise.size, noise_there.size)
            if common > 1 and np.array_equal(noise[:common], noise_there[:common]):
                raise AssertionError(f"{name}: {where} gets the same noise as {other}")
    check_draws_differ(keys_drawn_by_runs(run, runs), name)


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
        state = aggregator.init(_total_like(values))
        extra = {"key": key} if case.random else {}
        return aggregator.update(values, state, _total_like(values), mask=mask, **extra)

    for dtype in trees.float_types():
        values = trees.cast(case.per_example, dtype)
        out, after = jax.eval_shape(
            lambda v, key: total(case.values[0], v, everyone, key), values, jax.random.key(0)
        )
        trees.assert_types(out, _total_like(values), f"{name}: sum")
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
    _assert_one_trace(traces, name)

    none = jax.tree.map(lambda a: a[:0], values)
    got, _ = total(value, none, everyone[:0], jax.random.wrap_key_data(data))
    trees.assert_close(got, noise, f"{name}: sum of a batch of length 0", 1e-6)
    if not case.random:
        trees.assert_close(noise, jax.tree.map(jnp.zeros_like, noise), f"{name}: empty sum", 0.0)
    else:
        _assert_vmap_equals_loop(lambda data: run(value, values, everyone, data), name)
        _assert_needs_key(lambda: total(value, values, everyone, None), name)
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


def _total_like(per_example: PyTree) -> PyTree:
    """Zeros of the shapes and types a sum must have."""

    def zero(leaf: Any) -> jax.Array:
        made = jax.eval_shape(leaf.materialize) if _is_outer(leaf) else leaf
        return jnp.zeros(made.shape[1:], jnp.promote_types(made.dtype, jnp.float32))

    return jax.tree.map(zero, per_example, is_leaf=_is_outer)


def _with_one_bad(per_example: PyTree, bad: float) -> list[PyTree]:
    """For each leaf, the values with one entry of it bad in example 0."""
    leaves, treedef = jax.tree.flatten(per_example)
    made = []
    for i, leaf in enumerate(leaves):
        spoiled = leaf.at[(0,) * leaf.ndim].set(bad)
        made.append(jax.tree.unflatten(treedef, [*leaves[:i], spoiled, *leaves[i + 1 :]]))
    return made


def _assert_one_trace(traces: list[None], name: str) -> None:
    if len(traces) != 1:
        raise AssertionError(f"{name}: traced {len(traces)} times for data of one shape, want 1")


def _assert_vmap_equals_loop(run: Any, name: str) -> None:
    data = jax.random.key_data(jax.random.split(jax.random.key(7), 3))
    one = jax.jit(run, compiler_options=trees.QUICK)
    every = jax.jit(jax.vmap(run), compiler_options=trees.QUICK)
    looped = trees.stack(*[one(d) for d in data])
    trees.assert_close(every(data), looped, f"{name}: vmap over keys", 1e-5)


def _assert_needs_key(call: Any, name: str) -> None:
    try:
        call()
    except TypeError:
        return
    raise AssertionError(f"{name}: update without key= must raise TypeError, and did not")
