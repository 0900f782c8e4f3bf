"""Every program lowers for GPU and TPU on a machine with neither, and asks nothing of the host."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
import dpjax.testing as dpt
from tests.entries import PROGRAMS, one_of_each

ELSEWHERE = ("cuda", "tpu")
_HOST = re.compile(r'custom_call @?"?(\w*callback\w*)|stablehlo\.(?:infeed|outfeed|send|recv)\b')
# sums of records and certified gradients in 64 bits
_DOUBLE = ("ObjectivePerturbation", "SufficientStatistics", "NestedGame", "DoubleOracle")
_TRANSFORMS = [e.name for kind in ("transform", "aggregator") for e in dpt.entries(kind)]
# some plan batches on the host, from a key that must be known
_SOLVERS = [n for n in PROGRAMS if not dpt.registry()[n].make().concrete_key]


def lowered(run, *args):
    """The program for both platforms, as text; export refuses custom calls that may change."""
    return jax.export.export(jax.jit(run), platforms=ELSEWHERE)(*args).mlir_module()


def check(text, name):
    assert not _HOST.search(text), f"{name} asks the host: {_HOST.search(text).group(0)}"
    if not jax.config.jax_enable_x64 and name.split("(")[0] not in _DOUBLE:
        assert "f64" not in text, f"{name} has 64-bit floats"


def _solver(name):
    case = dpt.registry()[name].make()
    solver = case.build(case.values[0])
    held = jax.tree.map(jnp.asarray, case.data)

    def run(data, words):
        key = jax.random.wrap_key_data(words)
        solution = dpjax.solve(solver, case.problem, data, key=key)
        return solution.params, solution.info

    return lowered(run, held, jax.random.key_data(jax.random.key(0)))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in one_of_each() else pytest.mark.slow) for n in _SOLVERS],
)
def test_solvers(name):
    check(_solver(name), name)


@pytest.mark.parametrize("name", _TRANSFORMS)
def test_transforms(name):
    entry = dpt.registry()[name]
    case = entry.make()
    words = jax.random.key_data(jax.random.key(0))

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
    check(lowered(run, updates, words), name)


def test_what_must_not_be_there_is_seen():
    def asks(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), jnp.float32), x)

    text = jax.jit(asks).lower(jnp.float32(0)).as_text()
    with pytest.raises(AssertionError, match="asks the host"):
        check(text, "this")
