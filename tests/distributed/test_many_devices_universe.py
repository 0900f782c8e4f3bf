"""A universe spread over eight devices: no device holds a whole vector over it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from placements import assert_same, collectives, compiled_loop, job_of, mesh_of, put

import dpjax
from dpjax.problems import QueryRelease
from dpjax.queries import Dense, Domain, Hierarchy, Marginals
from dpjax.solvers import (
    MWEM,
    FrankWolfeRelease,
    GaussianFit,
    HistogramRelease,
    MirrorDescentRelease,
    RowsFit,
    SaddleRelease,
)
from dpjax.solvers.queries._log_linear import fit_log_linear
from dpjax.testing import entries

DOMAIN = Domain({"a": 8, "b": 4, "c": 4, "d": 4, "e": 8, "f": 4})
CELLS, N = DOMAIN.universe_size, 500
RECORDS = (np.random.default_rng(1).beta(2, 5, N) * CELLS).astype(np.int32)
BUDGET = dpjax.Budget(2.0, 1e-5)
METHODS = {
    "histogram": (HistogramRelease, {}),
    "Frank-Wolfe": (FrankWolfeRelease, {"steps": 4}),
    "Frank-Wolfe, marginals": (FrankWolfeRelease, {"steps": 4, "vertices": "marginals"}),
    "mirror descent": (MirrorDescentRelease, {"steps": 4}),
    "mirror descent, histogram": (MirrorDescentRelease, {"steps": 4, "noise": "per-step"}),
    "saddle": (SaddleRelease, {"steps": 4}),
    "MWEM": (MWEM, {"steps": 4}),
    "Gaussian": (GaussianFit, {"fit_steps": 20}),
}
QUICK = {("marginals", "Frank-Wolfe"), ("dense", "saddle")}


def _cells():
    return NamedSharding(mesh_of(8, names=("cells",)), PartitionSpec("cells"))


@functools.cache
def _workloads(kind):
    """On one device and on eight, and records."""
    if kind == "marginals":
        both = (Marginals.all_kway(DOMAIN, 2, sharding=sharding) for sharding in (None, _cells()))
        return (*both, DOMAIN.codes(RECORDS))
    # fewer cells, for sensitivities come from all pairs of them
    matrix = np.random.default_rng(0).uniform(-1, 1, (12, CELLS // 4)).astype(np.float32)
    return Dense(matrix), Dense(put(matrix, _cells().mesh, None, "cells")), RECORDS // 4


def _all():
    for kind in ("marginals", "dense"):
        for name in METHODS:
            if kind == "marginals" or "marginals" not in name:
                slow = () if (kind, name) in QUICK else pytest.mark.slow
                yield pytest.param(kind, name, marks=slow, id=f"{kind}, {name}")


@pytest.mark.parametrize(("kind", "name"), list(_all()))
def test_answers_are_the_same_and_no_device_holds_the_universe(kind, name):
    *workloads, data = _workloads(kind)
    method, options = METHODS[name]
    runs, memory = [], []
    for workload in workloads:
        problem = QueryRelease(workload)
        solver = method.for_budget(problem, N, BUDGET, **options)
        runs.append(dpjax.solve(solver, problem, data, key=jax.random.key(0)))
        compiled = compiled_loop(job_of(solver, problem, data, jax.random.key(0)))
        memory.append(compiled.memory_analysis().temp_size_in_bytes)
    one, many = runs
    assert_same((many.params.answers, many.info), (one.params.answers, one.info), 1e-4)
    assert_same(jnp.exp(many.params.log_probs), jnp.exp(one.params.log_probs), 1e-3)
    size = workload.universe_size
    for leaf in jax.tree.leaves((many.params, many.state)):
        if leaf.shape == (size,):
            assert leaf.addressable_shards[0].data.size == size // 8
    # what is exchanged are sums of tables, smaller than a device's share of the universe
    for move, array, moved in collectives(compiled):
        assert moved < size / 8 * 4, (move, array)
    assert memory[1] < (0.8 if name == "Gaussian" else 0.35) * memory[0]


@pytest.mark.slow
def test_every_method_is_here():
    facts = [entry.facts for entry in entries("solver") if entry.facts]
    kinds = {f["arguments"].make for f in facts if isinstance(f["planned"], QueryRelease)}
    # a `RowsFit` has no vector over the universe
    assert kinds - {RowsFit} == {kind for kind, _ in METHODS.values()}


@pytest.mark.slow
def test_a_fit_holds_less_of_the_universe_on_a_device():
    """L-BFGS after the release, by far the most of the work."""
    held = []
    for workload in _workloads("marginals")[:2]:
        closure = Hierarchy(workload).closure
        ones = jnp.ones(closure.num_queries)

        def fit(queries, ones):
            return fit_log_linear(queries, ones, ones, ones, ones, ones, steps=3)

        compiled = jax.jit(fit).lower(closure, ones).compile()
        held.append(compiled.memory_analysis().temp_size_in_bytes)
    assert held[1] < 0.6 * held[0]


@pytest.mark.slow
def test_one_call_with_a_spread_workload():
    workload, spread, data = _workloads("marginals")
    one, many = (
        dpjax.release(w, data, BUDGET, method="histogram", key=jax.random.key(0))
        for w in (workload, spread)
    )
    assert_same(many.answers, one.answers, 1e-4)
    assert len(many.log_probs.sharding.device_set) == 8


def test_shardings_that_do_not_fit_are_refused():
    mesh = _cells().mesh
    with pytest.raises(ValueError, match="must divide the 12 cells evenly, got 8 shares"):
        Marginals.all_kway(Domain({"a": 3, "b": 4}), 1, sharding=_cells())
    with pytest.raises(TypeError, match="sharding must be a jax"):
        Marginals.all_kway(DOMAIN, 1, sharding="cells")
    two = NamedSharding(mesh, PartitionSpec(None, "cells"))
    with pytest.raises(ValueError, match="must be of the one axis of cells"):
        Dense(np.ones((2, 8)), sharding=two)
