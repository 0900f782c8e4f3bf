"""Every program lowers for GPU and TPU on a machine with neither, and asks nothing of the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
import dpjax.testing as dpt
from dpjax.api import _fit, _release, _tune
from dpjax.queries import Domain, Marginals
from dpjax.solvers import _request
from tests.entries import PROGRAMS, one_of_each
from tests.entries.planned import GAME, ON_SIMPLEX, PARITY, RISK
from tests.runtime.programs import HOST, check, slow_but

# sums of records and certified gradients in 64 bits
_DOUBLE = ("ObjectivePerturbation", "SufficientStatistics", "NestedGame", "DoubleOracle")
_TRANSFORMS = [e.name for kind in ("transform", "aggregator") for e in dpt.entries(kind)]
# where batches are planned on the host, the key must be known before: no program of its own
_SOLVERS = [e.name for e in dpt.entries("solver") if not e.make().concrete_key]
_TINY = 2**20  # bytes: instances of the registry have some twenty records
_SWEEP = 4096
_SWEPT = ("DPSGD(linear)", "FrankWolfe(linear)", "HistogramRelease")
_WORDS = jax.ShapeDtypeStruct((2,), jnp.uint32)


def _solver(name):
    """A run as a function of data and of the words of its key."""
    case = dpt.registry()[name].make()
    solver = case.build(case.values[0])

    def run(data, words):
        key = jax.random.wrap_key_data(words)
        solution = dpjax.solve(solver, case.problem, data, key=key)
        return solution.params, solution.info

    return run, jax.tree.map(jnp.asarray, case.data)


# always: one of each class, on machines that are slow as well
@pytest.mark.parametrize("name", slow_but(PROGRAMS, _SOLVERS, always=one_of_each()))
def test_solvers(name):
    double = name.split("(")[0] in _DOUBLE
    run, data = _solver(name)
    check(run, data, _WORDS, name=name, most=_TINY, double=double)


@pytest.mark.parametrize("name", slow_but(_SWEPT, one_of_each()))
def test_sweeps_over_seeds(name):
    run, data = _solver(name)
    words = jax.ShapeDtypeStruct((_SWEEP, 2), jnp.uint32)
    double = name.split("(")[0] in _DOUBLE
    swept = jax.vmap(run, in_axes=(None, 0))
    check(swept, data, words, name=name, most=_SWEEP * _TINY, double=double)


@pytest.mark.parametrize("name", _TRANSFORMS)
def test_transforms(name):
    entry = dpt.registry()[name]
    case = entry.make()

    def run(updates, words):
        key = jax.random.wrap_key_data(words)
        if entry.kind == "aggregator":
            made = case.build(case.values[0])
            mask = jnp.ones(jax.tree.leaves(updates)[0].shape[0], bool)
            given = {"key": key} if case.random else {}
            return made.update(updates, made.init(None), mask=mask, **given)[0]
        if case.key_in_state:
            made = case.build(case.values[0], key)
            return made.update(updates, made.init(updates), **case.extra)[0]
        made = case.build(case.values[0])
        like = updates if case.params is None else case.params
        given = {"key": key} if case.random else {}
        return made.update(updates, made.init(like), case.params, **given, **case.extra)[0]

    updates = case.per_example if entry.kind == "aggregator" else case.updates
    check(run, updates, _WORDS, name=name, most=_TINY)


@pytest.mark.parametrize("name", [e.name for e in dpt.entries("sampler")])
def test_samplers(name):
    case = dpt.registry()[name].make()
    known = case.sampler.plan(jax.random.key(0), case.num_records) if case.concrete_key else None

    def run(words):
        xs = known
        if xs is None:
            xs = case.sampler.plan(jax.random.wrap_key_data(words), case.num_records)
        return jax.lax.map(lambda x: case.sampler.batch(x, case.num_records), xs)

    check(run, _WORDS, name=name, most=_TINY)


class _Reached(Exception):
    """What a front door runs was reached, and need not be run."""


def _lowered_in_place(solver, problem, data, *, key, progress):
    def run(data, words):
        return dpjax.solve(solver, problem, data, key=jax.random.wrap_key_data(words)).params

    double = type(solver).__name__ in _DOUBLE
    check(run, jax.tree.map(jnp.asarray, data), jax.random.key_data(key), most=_TINY, double=double)
    raise _Reached


@pytest.fixture
def uncalibrated(monkeypatch):
    """How large noise is does not change what is lowered, and takes seconds to find."""

    def ones(candidates, *_, **__):
        return [1.0] * len(candidates.kinds()), 1.0

    monkeypatch.setattr(_request, "calibrate_noise", lambda *_, **__: 1.0)
    monkeypatch.setattr(_tune, "_calibrated", ones)
    monkeypatch.setattr(_tune.SelectionGuarantee, "delta", lambda *_: 0.0)


_BUDGET = dpjax.Budget(1.0, 1e-6, "replace_one")
_N = 200
_X, _Y = np.ones((_N, 3), np.float32), np.ones(_N, np.float32)
_CLASSES = {"x": _X, "y": np.ones(_N, np.int32), "group": np.ones(_N, np.int32)}
_LINEAR = {
    link: dpjax.problems.LinearModel(link, 3, radius=2.0) for link in ("logistic", "squared")
}


@pytest.mark.parametrize(
    ("problem", "data"),
    [
        pytest.param(RISK, {"x": _X, "y": _Y}, id="risk"),
        pytest.param(_LINEAR["logistic"], {"x": _X, "y": _Y}, id="classes"),
        pytest.param(_LINEAR["squared"], {"x": _X, "y": _Y}, id="squares"),
        pytest.param(ON_SIMPLEX, {"c": np.ones((_N, 5), np.float32)}, id="simplex"),
        pytest.param(GAME, {"A": np.ones((_N, 5, 5), np.float32)}, id="game"),
        pytest.param(PARITY, _CLASSES, id="rates"),
    ],
)
def test_fit(problem, data, monkeypatch, uncalibrated):
    monkeypatch.setattr(_fit, "solve", _lowered_in_place)
    with pytest.raises(_Reached):
        dpjax.fit(problem, data, _BUDGET, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("attributes", "method"), [(2, "gaussian_fit"), (2, "histogram"), (30, "rows")]
)
def test_release(attributes, method, monkeypatch):
    monkeypatch.setattr(_release, "solve", _lowered_in_place)
    workload = Marginals.all_kway(Domain({f"x{i}": 2 for i in range(attributes)}), 2)
    data = np.zeros((_N, attributes), np.int32)
    with pytest.raises(_Reached):
        dpjax.release(workload, data, _BUDGET, key=jax.random.key(0), method=method)


@pytest.mark.always  # nothing else looks at what it compiles
def test_tune(monkeypatch, uncalibrated):
    """One block of runs, which is all that a device does."""

    def compiled(plan):
        def lower(solvers, keys, train, held):
            def run(solvers, words, train, held):
                keys = jax.random.wrap_key_data(words)
                return jax.vmap(plan._run, in_axes=(0, 0, None, None))(solvers, keys, train, held)

            check(run, solvers, jax.random.key_data(keys), train, held, most=_TINY)
            raise _Reached

        return lower

    monkeypatch.setattr(_tune._Plan, "_compiled", property(compiled))
    grid = {"learning_rate": [1e-3, 3.0], "steps": [15], "average": ["last"]}
    options = {"key": jax.random.key(0), "trials": 4}
    with pytest.raises(_Reached):
        dpjax.tune(grid, dpjax.solvers.DPSGD, PARITY, _CLASSES, _BUDGET, **options)


def test_a_program_that_asks_the_host_is_seen():
    def asks(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), jnp.float32), x)

    assert HOST.search(jax.jit(asks).lower(jnp.float32(0)).as_text())
    assert not HOST.search(jax.jit(jnp.sin).lower(jnp.float32(0)).as_text())


def test_arrays_and_indices_that_are_too_large_are_seen():
    def outer(x):
        return jax.lax.map(lambda one: jnp.sum(one * x), x)

    x = jax.ShapeDtypeStruct((2**9,), jnp.float32)
    check(outer, x, most=2**11)
    with pytest.raises(AssertionError, match=r"makes 2048 bytes, more than 2047, in .*\[512\]"):
        check(outer, x, most=2**11 - 1)
    with pytest.raises(AssertionError, match=r"makes 1048576 bytes, .*\[512, 512\]"):
        check(lambda x: jax.vmap(lambda one: jnp.sum(one * x))(x), x, most=2**11)
    if not jax.config.jax_enable_x64:
        with pytest.raises(AssertionError, match="has no 64-bit floats"):
            check(outer, x, most=2**11, double=True)
    long = jax.ShapeDtypeStruct((2**31,), jnp.int8)
    with pytest.raises(AssertionError, match="needs 64-bit indices"):
        check(lambda x: x[5], long, most=_TINY)
