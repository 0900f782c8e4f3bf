"""The conformance suite for transformations."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree
from dpjax.testing import _trees as trees
from dpjax.testing._asserts import assert_needs_key, assert_one_trace, assert_vmap_equals_loop
from dpjax.testing._cases import TransformCase
from dpjax.testing._draws import check_draws_differ, keys_drawn_by_runs
from dpjax.testing._noise_law import check_noise
from dpjax.testing._registry import Entry

_STEPS = 3
_DRAWS = 6000  # they tell 2/3 and 3/2 of a scale apart


def check_transform(entry: Entry) -> None:
    """Runs the conformance suite on a registered transformation.

    Structure, shapes and dtypes are kept, or those the case says; one trace for all values; vmap
    over keys equals a loop; a saved and loaded state goes on bit for bit; no two draws are equal
    across leaf, step, run and re-initialisation; a missing key is a TypeError. Noise follows the
    `law` of its case, whose `event` covers it.

    Args:
      entry: Of kind `"transform"`; its `make` gives a `TransformCase`.

    Raises:
      AssertionError: Naming the entry and what it does not hold to.
      TypeError: If `law` or `event` of the case is of another kind.
      ValueError: If the noise of the `event` cannot be compared with the `law`.
    """
    case: TransformCase = entry.make()
    name = entry.name
    if case.random and case.adds_noise and (case.law is None or case.event is None):
        raise AssertionError(
            f"{name}: noise needs law= (the distribution of a coordinate) and event= (the event at "
            "sensitivity 1) in its TransformCase; adds_noise=False if it adds none"
        )

    def build(value: Any, key: jax.Array) -> Any:
        return case.build(value, key) if case.key_in_state else case.build(value)

    def update(transform: Any, updates: PyTree, state: Any, key: jax.Array) -> Any:
        params = _like(case.params, updates)
        if case.random and not case.key_in_state:
            return transform.update(updates, state, params, key=key, **case.extra)
        return transform.update(updates, state, params, **case.extra)

    def start_of(transform: Any, updates: PyTree) -> Any:
        return transform.init(updates if case.params is None else _like(case.params, updates))

    for dtype in trees.float_types():
        updates = trees.cast(case.updates, dtype)

        def both(key: jax.Array, updates: PyTree = updates) -> Any:
            transform = build(case.values[0], key)
            state = start_of(transform, updates)
            return state, update(transform, updates, trees.fresh(state), key)

        state, (out, after) = jax.eval_shape(both, jax.random.key(0))
        want = updates if case.output is None else case.output(updates)
        trees.assert_types(out, want, f"{name}: updates")
        trees.assert_types(after, state, f"{name}: state")

    traces: list[None] = []

    @jax.jit
    def step(value: Any, updates: PyTree, state: Any, key: jax.Array) -> Any:
        traces.append(None)
        return update(build(value, jax.random.key(2)), updates, state, key)

    state = start_of(build(case.values[0], jax.random.key(2)), case.updates)
    start = trees.fresh(state)
    for i, value in enumerate(case.values):
        out, state = step(value, case.updates, state, jax.random.key(i))
        trees.assert_finite(out, f"{name}: updates")
    assert_one_trace(traces, name)

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
            return update(transform, case.updates, start_of(transform, case.updates), key)[0]
        return update(build(case.values[0], key), case.updates, trees.fresh(start), key)[0]

    assert_vmap_equals_loop(keyed, name)
    if case.random:
        _check_draws(case, build, update, start_of, name)
        if not case.key_in_state:
            transform = build(case.values[0], jax.random.key(0))
            assert_needs_key(
                lambda: transform.update(
                    case.updates, start_of(transform, case.updates), case.params, **case.extra
                ),
                name,
            )
        if case.law is not None:
            _check_noise(case, build, update, start_of, name)


def _like(params: PyTree, updates: PyTree) -> PyTree:
    """The parameters in the float type of the updates."""
    return trees.cast(params, jnp.result_type(*jax.tree.leaves(updates)))


def _check_noise(case: TransformCase, build: Any, update: Any, start_of: Any, name: str) -> None:
    assert case.law is not None
    assert case.event is not None
    zeros = jax.tree.map(jnp.zeros_like, case.updates)

    @functools.partial(jax.jit, compiler_options=trees.QUICK)
    @functools.partial(jax.vmap, in_axes=(None, 0))
    def first(value: Any, key: jax.Array) -> PyTree:
        transform = build(value, key)
        return update(transform, zeros, start_of(transform, zeros), key)[0]

    keys = jax.random.split(jax.random.key(6), _DRAWS)
    for value in case.values:
        out = first(jnp.float32(value), trees.fresh(keys))
        every = np.concatenate(
            [trees.to_numpy(leaf).reshape(_DRAWS, -1) for leaf in jax.tree.leaves(out)], axis=1
        )
        # one coordinate a run, in turn, for those of a run may depend on each other
        draws = every[np.arange(_DRAWS), np.arange(_DRAWS) % every.shape[1]]
        change = float(case.extra.get("sensitivity", 1.0))
        check_noise(draws, case.law(value), case.event(value), change, f"{name} at {value}")


def _check_draws(case: TransformCase, build: Any, update: Any, start_of: Any, name: str) -> None:
    zeros = jax.tree.map(jnp.zeros_like, case.updates)
    shared = build(case.values[1], jax.random.key(3))  # one object, initialised for each run

    def run(data: jax.Array) -> list[PyTree]:
        key = jax.random.wrap_key_data(data)
        transform = build(case.values[1], key) if case.key_in_state else shared
        state, outs = start_of(transform, zeros), []
        for _ in range(_STEPS):
            out, state = update(transform, zeros, state, key)
            outs.append(out)
        return outs

    runs = [jax.random.key_data(jax.random.key(seed)) for seed in (4, 5)]
    drawn = []
    for number, data in enumerate(runs if case.adds_noise else []):
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
