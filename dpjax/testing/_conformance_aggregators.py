"""The conformance suite for aggregators."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import Aggregator, PyTree
from dpjax.testing import _asserts as asserts
from dpjax.testing import _trees as trees
from dpjax.testing._cases import AggregatorCase, Entry
from dpjax.testing._neighbours import Search
from dpjax.transforms import OuterProduct
from dpjax.transforms.clipping._leaves import is_outer


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
    size = jax.tree.leaves(case.per_example)[0].shape[0]
    everyone: PyTree = np.ones(size, bool)

    def total(value: ArrayLike, values: PyTree, mask: ArrayLike, key: jax.Array | None) -> PyTree:
        aggregator, like = case.build(value), _total_like(values, case.shape)
        extra = {"key": key} if case.random else {}
        return aggregator.update(values, aggregator.init(like), like, mask=mask, **extra)

    for dtype in trees.float_types():
        values = trees.cast(case.per_example, dtype)
        out, after = jax.eval_shape(
            lambda v, key: total(case.values[0], v, everyone, key), values, jax.random.key(0)
        )
        trees.assert_types(out, _total_like(values, case.shape), f"{name}: sum")
        trees.assert_types(after, case.build(case.values[0]).init(out), f"{name}: state")

    def summed(value: ArrayLike, values: PyTree, mask: ArrayLike, data: jax.Array) -> PyTree:
        return total(value, values, mask, jax.random.wrap_key_data(data))[0]

    run = asserts.Program(summed)
    data, *others_data = asserts.key_data(1, 2, 3)
    value, values = case.values[0], case.per_example
    whole = run(value, values, everyone, data)
    run(case.values[1], values, everyone, data)
    trees.assert_finite(whole, f"{name}: sum")

    noise = run(value, values, ~everyone, data)
    trees.assert_finite(noise, f"{name}: sum of an empty batch")
    first = np.arange(size) < size // 2
    parts = run(value, values, first, data), run(value, values, ~first, data)
    added = jax.tree.map(lambda a, b, c: np.asarray(a) + b - c, *parts, noise)
    trees.assert_close(whole, added, f"{name}: sum of two halves of the batch", 1e-5)

    others = run(value, values, np.arange(size) > 0, data)
    for bad in (jnp.nan, jnp.inf, -jnp.inf, 1e38):
        got = run(value, trees.filled(values, bad), ~everyone, data)
        trees.assert_identical(got, noise, f"{name}: sum of masked records that hold {bad}")
        for spoiled in trees.with_bad_entry(values, bad) if not np.isfinite(bad) else ():
            got = run(value, spoiled, everyone, data)
            trees.assert_close(got, others, f"{name}: sum with an example that holds {bad}", 1e-6)
    run.assert_one_trace(name)

    got = run(value, jax.tree.map(lambda a: a[:0], values), everyone[:0], data)
    trees.assert_close(got, noise, f"{name}: sum of a batch of length 0", 1e-6)
    if not case.random:
        trees.assert_close(noise, trees.filled(noise, 0.0), f"{name}: empty sum", 0.0)
    else:
        several = [(each,) for each in (data, *others_data)]

        def of_key(data: jax.Array) -> PyTree:
            return run.part(value, values, everyone, data)

        looped = [run(value, values, everyone, *each) for each in several]
        asserts.assert_vmap_equals_loop(of_key, several, looped, name)
        if all(jax.tree.leaves(jax.tree.map(np.array_equal, *looped[:2]))):
            raise AssertionError(f"{name}: another key gives the same sum, so no noise is in it")
        asserts.assert_needs_key(lambda: total(value, values, everyone, None), f"{name}: update")
        asserts.assert_draws_differ(of_key, name)
    if case.norm is None:
        return

    def sum_of(values: PyTree, mask: jax.Array) -> PyTree:
        return run.part(value, values, mask, data)

    norm = str(case.norm)
    search = Search(sum_of, values, norm=norm, steps=20)
    found = search.worst_of_each(("remove", "add", "replace"), jax.random.key(6))
    for kind, worst in found.items():
        relation = "replace_one" if kind == "replace" else "add_or_remove_one"
        bound = float(case.build(value).sensitivity(relation))
        asserts.assert_within(worst, bound, f"{name}: under {relation} the sum", norm)


def _total_like(per_example: PyTree, shape: tuple[int, ...] | None) -> PyTree:
    """Zeros of the shapes and types a sum must have."""

    def zero(leaf: jax.Array | OuterProduct) -> jax.Array:
        made = jax.eval_shape(leaf.materialize) if isinstance(leaf, OuterProduct) else leaf
        dtype = jnp.promote_types(made.dtype, jnp.float32)
        return jnp.zeros(made.shape[1:] if shape is None else shape, dtype)

    return jax.tree.map(zero, per_example, is_leaf=is_outer)
