"""The form of data: layouts and types change nothing, what is no data is refused by name."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
import dpjax.testing as dpt
from dpjax import problems as P
from dpjax.testing import _trees as trees

_N = 24
_LAYOUTS = {
    "Fortran order": np.asfortranarray,
    "negative strides": lambda a: a[::-1].copy()[::-1],
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "read-only": lambda a: np.broadcast_to(a, a.shape),
    "double precision": lambda a: a.astype(np.float64),
}
_TYPES = (np.float16, jnp.bfloat16, np.int8, np.uint8, bool)
# losses of these compute with labels as they come, so types of those are left alone
_DEFAULT = {
    "DPSGD(Risk, full batch, uniform average)": (jnp.bfloat16,),
    "FrankWolfe(linear)": (np.int8,),
}
_SLOW = ("DPSGD(linear)", "OnlineToNonconvex(first)", "AnytimeMirrorDescent(q = 3)")
_SOLVERS = [
    pytest.param(e, _DEFAULT[e.name], id=e.name)
    for e in dpt.entries("solver")
    if e.name in _DEFAULT
] + [
    pytest.param(e, _TYPES, id=f"{e.name}, {len(_TYPES)} types", marks=pytest.mark.slow)
    for e in dpt.entries("solver")
    if e.name in _SLOW  # `solve` makes arrays of data before any solver sees them
]


def released(case, data):
    solution = dpjax.solve(case.build(case.values[0]), case.problem, data, key=jax.random.key(1))
    return jax.device_get((solution.params, solution.info))


def features(data, change):
    """The data with its features changed: the arrays of more than one axis."""
    return {k: change(np.asarray(a)) if np.ndim(a) > 1 else np.asarray(a) for k, a in data.items()}


@pytest.mark.slow
@pytest.mark.parametrize(("entry", "dtypes"), _SOLVERS)
def test_layout_and_type_change_no_more_than_a_cast(entry, dtypes):
    case = entry.make()
    want = released(case, case.data)
    for name, change in _LAYOUTS.items():
        if name == "double precision" and jnp.zeros(0, float).dtype == jnp.float64:
            continue  # there it is another run
        got = released(case, features(case.data, change))
        trees.assert_identical(got, want, f"{entry.name}, {name}:")
    whole = features(case.data, lambda a: np.clip(np.round(np.abs(a)), 0, 3))
    for dtype in dtypes:
        cast = features(whole, lambda a, dtype=dtype: np.asarray(jnp.asarray(a).astype(dtype)))
        exact = features(cast, lambda a: a.astype(np.float32))
        got, want = released(case, cast), released(case, exact)
        trees.assert_close(got, want, f"{entry.name}, {np.dtype(dtype)}:", 1e-5)


_LINK = P.Risk.linear(lambda margin, y: (margin - y) ** 2, 3)
_SIMPLEX = P.SimplexRisk.linear(lambda margin, y: (margin - y) ** 2, dim=3, grad_range=1.0)
_PARITY = P.RateConstrained.linear(3, 2, P.demographic_parity(2, 2, 0.05))
_X, _Y = np.ones((_N, 3), np.float32), np.zeros(_N, np.int32)
_FULL = dpjax.solvers.DPSGD(dpjax.sampling.FullBatch(2), 1.0, 1.0, 0.1, 4.0)
_REFUSED = {
    "no record": (_PARITY, {"x": _X[:0], "y": _Y[:0], "group": _Y[:0]}, "num_records must be >= 1"),
    "no record, linear": (_LINK, {"x": _X[:0], "y": _Y[:0]}, "num_records must be >= 1, got 0"),
    "no arrays": (_LINK, {}, "data"),
    "None": (_LINK, None, "data"),
    "a scalar": (_LINK, {"x": _X, "y": 1.0}, "leading axis"),
    "two lengths": (_LINK, {"x": _X, "y": _Y[:5]}, "leading axis"),
    "an array": (_LINK, _X, 'data must be a dict with the field "x"'),
    "no labels": (_LINK, {"x": _X}, 'the field "y"'),
    "other features": (_LINK, {"x": _X[:, :2], "y": _Y}, r'data\["x"\] must have shape \[\?, 3\]'),
    "no features": (_SIMPLEX, {"x": _X[:, :0], "y": _Y}, r'data\["x"\] must have shape \[\?, 3\]'),
    "one axis too many": (_SIMPLEX, {"x": _X[..., None], "y": _Y}, r'data\["x"\] must have shape'),
    "no matrix": (P.Saddle.matrix_game((2, 3)), {"x": _X}, 'the field "A"'),
    "another game": (P.Saddle.matrix_game((2, 3)), {"A": _X}, r'data\["A"\] must have shape'),
    "float labels": (_PARITY, {"x": _X, "y": _X[:, 0], "group": _Y}, 'data."y". must be integers'),
    "bool labels": (_PARITY, {"x": _X, "y": _Y > 0, "group": _Y}, 'data."y". must be integers'),
    "text labels": (_PARITY, {"x": _X, "y": _Y.astype(str), "group": _Y}, "must be integers"),
    "objects": (_PARITY, {"x": _X, "y": _Y.astype(object), "group": _Y}, "must be integers"),
    "columns": (_PARITY, {"x": _X, "y": _Y[:, None], "group": _Y}, "must be integers of shape"),
    "negative": (_PARITY, {"x": _X, "y": _Y - 1, "group": _Y}, r"must lie in 0..1: "),
    "too large": (_PARITY, {"x": _X, "y": _Y, "group": _Y + 2}, r"must lie in 0..1: "),
    "beyond int32": (
        _PARITY,
        {"x": _X, "y": _Y + np.int64(2**40), "group": _Y},
        "must lie in 0..1: ",
    ),
    "no group": (_PARITY, {"x": _X, "y": _Y}, 'integer field "group"'),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_is_no_data_is_refused_by_name(name):
    problem, data, message = _REFUSED[name]
    with pytest.raises(ValueError, match=message):
        dpjax.solve(_FULL, problem, data, key=jax.random.key(0))


_BY_VALUE = {"negative", "too large", "beyond int32"}
_NO_ARRAYS = {"None", "no arrays", "text labels", "objects"}


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
@pytest.mark.parametrize("name", sorted(_REFUSED.keys() - _BY_VALUE - _NO_ARRAYS))
def test_what_is_known_of_traced_data_is_refused_by_name(name, transform):
    """Shapes, types and numbers; values are the problem's to bound."""
    problem, data, message = _REFUSED[name]
    if transform is jax.vmap:
        data = jax.tree.map(lambda leaf: np.stack([leaf] * 2), data)
    run = transform(lambda data: _solved(_FULL, problem, data))
    with pytest.raises(ValueError, match=message):
        run(data)


def _solved(solver, problem, data):
    return dpjax.solve(solver, problem, data, key=jax.random.key(0)).params


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap])
@pytest.mark.parametrize(
    "sampler",
    [
        dpjax.sampling.PoissonSampler(0.5, 2, _N - 1),
        dpjax.sampling.IndependentPartition(2, _N - 1),
        dpjax.sampling.TaperedPartition(2, _N + 1),
        dpjax.sampling.DisjointPartition(2, _N),
    ],
    ids=lambda sampler: type(sampler).__name__,
)
def test_more_or_fewer_traced_records_than_a_sampler_is_for_are_refused(sampler, transform):
    relation = "replace_one" if hasattr(sampler, "order") else "add_or_remove_one"
    solver = dataclasses.replace(_FULL, sampler=sampler, relation=relation)
    data = jax.tree.map(lambda a: np.stack([a] * 2), {"x": _X, "y": _Y})
    data = data if transform is jax.vmap else jax.tree.map(lambda a: a[0], data)
    run = transform(lambda data: _solved(solver, _LINK, data))
    with pytest.raises(ValueError, match="num_records"):
        run(data)


@pytest.mark.skipif(jax.config.jax_enable_x64, reason="float64 counts them")
def test_more_traced_records_than_float32_counts_are_refused():
    descent = dataclasses.replace(_FULL, batch_size=2.0**24)
    fixed = {"denominator": "fixed", "count_noise": 1}
    solver = dpjax.solvers.RateConstrainedSGDA(descent, 1.0, 0.1, **fixed)
    data = {"x": jax.ShapeDtypeStruct((2**24, 3), jnp.float32)}
    data |= {name: jax.ShapeDtypeStruct((2**24,), jnp.int32) for name in ("y", "group")}
    with pytest.raises(ValueError, match=r"16777216.* in float32"):
        jax.eval_shape(lambda d: _solved(solver, _PARITY, d), data)


@pytest.mark.parametrize("kind", ["text", "objects", "complex", "complex of JAX"])
def test_features_that_are_no_numbers_are_refused(kind):
    if kind == "complex of JAX":
        with pytest.raises(TypeError, match="data must hold real numbers"):
            _solved(_FULL, _LINK, {"x": jnp.asarray(_X) * 1j, "y": _Y})
        return
    dtype = {"text": str, "objects": object, "complex": np.complex64}[kind]
    with pytest.raises((TypeError, ValueError)):
        dpjax.solve(_FULL, _LINK, {"x": _X.astype(dtype), "y": _Y}, key=jax.random.key(0))


@pytest.mark.parametrize("data", [{"x": _X.tolist(), "y": _Y}, {"x": _X, "y": list(range(9999))}])
def test_nested_lists_are_told_of_in_short(data):
    leaves = len(jax.tree.leaves(data))
    message = rf"leading axis, got shapes .*\[\] and {leaves - 6} more; .* np\.asarray\(list\)"
    with pytest.raises(ValueError, match=message) as told:
        dpjax.solve(_FULL, _LINK, data, key=jax.random.key(0))
    assert len(str(told.value)) < 200


@pytest.mark.parametrize("entry", dpt.entries("sampler"), ids=lambda e: e.name)
def test_few_records(entry):
    sampler = entry.make().sampler
    with pytest.raises(ValueError, match="num_records must be >= 1, got 0"):
        sampler.plan(jax.random.key(0), 0)
    for bad in (-1, 1.5, None, "1", True):
        with pytest.raises((TypeError, ValueError), match="num_records"):
            sampler.plan(jax.random.key(0), bad)
    if sampler.steps > 1 and not hasattr(sampler, "capacity") and entry.name != "FullBatch":
        with pytest.raises(ValueError, match=r"num_records.* 1|data have 1 records"):
            sampler.plan(jax.random.key(0), 1)  # more batches than records
        return
    if getattr(sampler, "overflow", "") == "truncate":
        with pytest.raises(ValueError, match="data have 1 records"):
            sampler.plan(jax.random.key(0), 1)
        return
    plan = sampler.plan(jax.random.key(0), 1)
    indices, mask = sampler.batch(jax.tree.map(lambda a: a[0], plan), 1)
    assert mask.sum() <= 1
    if getattr(sampler, "shards", 1) > 1:  # slots without a member have their shard's first row
        indices = np.where(mask, indices, 0)
    assert indices is None or np.all(np.asarray(indices) == 0)
