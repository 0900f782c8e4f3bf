"""Whatever records hold, a run ends with finite releases, and a bad record counts as absent."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
import dpjax.testing as dpt
from dpjax.problems import QueryRelease
from dpjax.testing import _trees as trees
from tests.entries import PROGRAMS

from .records import EXTREME, absent, spoiled, without

# one of each solver and of each way to clip; the others are slow
_DEFAULT = {
    "DPSGD(Risk, full batch, uniform average)",
    "DPFTRL(tree)",
    "OnlineToBatch(buffered)",
    "OnlineToNonconvex(zeroth)",
    "RateConstrainedSGDA(laplace, soft, l1)",
    "SaddleMirrorDescent(matrix game, played)",
    "AnytimeMirrorDescent(q = 3)",
    "MultilevelSaddle",
    "FrankWolfe(linear)",
}
# their records are codes, which are never NaN
_OF_CODES = {
    e.facts["arguments"].make.__name__
    for e in dpt.entries("solver")
    if isinstance(e.facts.get("planned"), QueryRelease)
}
_SOLVERS = [
    pytest.param(e, id=e.name, marks=() if e.name in _DEFAULT else pytest.mark.slow)
    for e in dpt.entries("solver")
    if e.name.split("(")[0] not in _OF_CODES and (e.name in _DEFAULT or e.name in PROGRAMS)
]
_CODES = [
    pytest.param(e, id=e.name, marks=() if e.name.startswith("Histogram") else pytest.mark.slow)
    for e in dpt.entries("solver")
    if e.name.split("(")[0] in _OF_CODES and (e.name.startswith("Histogram") or e.name in PROGRAMS)
]


@pytest.mark.parametrize("entry", _SOLVERS)
def test_whatever_records_hold(entry):
    case = entry.make()
    solver = case.build(case.values[0])
    if hasattr(solver, "step_size"):  # so large that what is drawn follows the scores
        solver = case.build(30.0)
    sets = spoiled(case.data)

    def run(solver, data, key):
        solution = dpjax.solve(solver, case.problem, data, key=key)
        return solution.params, solution.info, solution.state._replace(key=jnp.zeros(()))

    if case.concrete_key:  # not traced, so that labels out of range are refused
        sets = {name: data for name, data in sets.items() if not name.startswith(("y", "group"))}
        every = [run(solver, data, jax.random.key(1)) for data in sets.values()]
        want = run(without(solver), case.data, jax.random.key(1))
    else:

        @jax.jit
        def each(data):
            return jax.vmap(lambda d: run(solver, d, jax.random.key(1)))(data)

        stacked = each.lower(trees.stack(*sets.values())).compile(trees.QUICK)
        found = jax.device_get(stacked(trees.stack(*sets.values())))
        every = [jax.tree.map(lambda a, i=i: a[i], found) for i in range(len(sets))]
        left_out = jax.jit(lambda data: run(without(solver), data, jax.random.key(1)))
        want = left_out.lower(case.data).compile(trees.QUICK)(case.data)
    compared = 0
    for name, got in zip(sets, every, strict=True):
        trees.assert_finite(got, f"{entry.name}, {name}:")
        # of a matrix only rows and columns that were drawn are read
        if absent(name) and not ("an entry" in name and "matrix game" in entry.name):
            compared += 1
            what = f"{entry.name}, {name}, against a run without it:"
            trees.assert_close(got[:2], jax.device_get(want[:2]), what, 1e-5)
    assert compared >= 3
    # the power half: what records hold does count
    differ = [name for name, got in zip(sets, every, strict=True) if not same(got, want)]
    assert differ, f"{entry.name}: nothing differs from a run without record 0"


@pytest.mark.parametrize("entry", _CODES)
def test_a_traced_code_out_of_range_counts_as_the_nearest(entry):
    case = entry.make()
    solver, workload = case.build(case.values[0]), case.problem.workload
    last = np.asarray(9**9 if workload.domain is None else workload.domain.shape) - 1
    last = np.minimum(last, workload.universe_size - 1)

    @jax.jit
    def run(data):
        solution = dpjax.solve(solver, case.problem, data, key=jax.random.key(1))
        return solution.params, solution.info, solution.state._replace(key=jnp.zeros(()))

    codes = np.asarray(case.data)
    found = {}
    for name, wild, nearest in (("low", -(2**31), 0), ("high", 2**31 - 1, last)):
        outside, inside = codes.copy(), codes.copy()
        outside[0], inside[0] = wild, nearest
        found[name] = run(outside)
        assert same(found[name], run(inside)), (entry.name, name)
        trees.assert_finite(found[name][0].answers, f"{entry.name}, {name}:")
    if entry.name.split("(")[0] in {"GaussianFit", "HistogramRelease", "MWEM"}:
        assert not same(found["low"], found["high"])  # what the record holds does count


def same(got, want):
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
    return all(np.array_equal(trees.to_numpy(a), trees.to_numpy(b)) for a, b in pairs)


_ATTACKED = [
    "DPSGD(linear)",
    "OnlineToBatch(tree, whole, microbatches)",
    "RateConstrainedSGDA(gaussian, hard)",
    "MultilevelSaddle",
    "FrankWolfe(autodiff, microbatches)",
]


@pytest.mark.parametrize("name", _ATTACKED)
def test_a_huge_record_moves_a_release_no_further_than_any(name):
    case = dpt.registry()[name].make()
    batch = jax.tree.map(lambda a: np.asarray(a)[:4], case.data)
    slots = jax.tree.map(lambda a: jnp.concatenate([a, a[:1]]), batch)
    present, values = jnp.arange(5) < 4, jnp.asarray([*EXTREME, np.nan], jnp.float32)

    def change(statistic, value, entry):
        def fill(leaf):
            if not trees.is_float(leaf):
                return leaf
            row = jnp.ravel(leaf[4])
            row = jnp.where(entry & (jnp.arange(row.size) > 0), row, value)
            return leaf.at[4].set(row.reshape(leaf.shape[1:]))

        added = jax.tree.map(fill, slots)
        after = statistic.of(added, jnp.ones(5, bool))
        before = statistic.of(added, present)
        moved = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.ravel(a - b), after, before))
        order = {"l1": 1, "l2": 2, "linf": jnp.inf}[statistic.norm]
        return jnp.linalg.norm(jnp.concatenate(moved), order)

    for statistic in case.statistics:

        @jax.jit
        def sizes(statistic=statistic):
            one = jax.vmap(lambda v, e: change(statistic, v, e), in_axes=(0, None))
            return jax.vmap(one, in_axes=(None, 0))(values, jnp.array([False, True]))

        moved = np.asarray(sizes.lower().compile(trees.QUICK)())
        assert np.all(moved <= statistic.bound * (1 + 1e-3)), (statistic.name, moved)
        assert moved.max() > 0.1 * statistic.bound, (statistic.name, moved)
