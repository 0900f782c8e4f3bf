"""Nothing in the loop over the steps goes back to the host.

On CPU the guard sees what comes from the host, arrays and numbers that a program is called with or
that are made while it runs; not what goes to the host, and no callback. So the lowered programs are
read as well: a callback, an infeed or an outfeed would show there. `test_lowering.py` reads those
of every solver.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
import dpjax.testing as dpt
from dpjax.core._records import filled, num_rows
from dpjax.runtime import _loop
from dpjax.runtime.checkpoint._fingerprint import callbacks
from tests.entries import one_of_each

ENTRIES = {entry.name: entry for entry in dpt.entries("solver")}
# one of each kind of program, outside any transformation
RUN = (
    "DPSGD(host, truncate)",
    "DPSGD(linear)",
    "RateConstrainedSGDA(gaussian, hard)",
    "OnlineToBatch(full batch)",
    "SaddleMirrorDescent(matrix game, played)",
    "FrankWolfe(linear)",
)
# beside one of each class, those with noise on counts, whose tables the host makes beforehand
TABLES = (
    "MirrorDescentRelease(histogram-once)",
    "MirrorDescentRelease(per-step)",
    "GaussianFit(a noise for each marginal, add or remove)",
    "RateConstrainedSGDA(fixed, orthant)",
)
HOST = ("callback", "infeed", "outfeed", "send", "recv")


def words_of_talk(lowered):
    """Words of a lowered program that stand for talk with the host."""
    text = lowered.as_text()
    return [word for word in HOST if word in text]


def lower(solver, problem, data):
    def run(data, key):
        solution = dpjax.solve(solver, problem, data, key=key, progress=False)
        return solution.params, solution.info

    return jax.jit(run).lower(data, jax.random.key(0))


@pytest.mark.parametrize("name", dict.fromkeys((*one_of_each(), *TABLES)))
def test_no_program_calls_the_host_back(name):
    """Traced alone, of a solver whose every leaf is data."""
    case = ENTRIES[name].make()
    # with rows above their number, which may be secret where solvers are known
    num = num_rows(case.data)
    data = dpjax.Records(filled(case.data, num + 32), num)

    def run(solver, data):
        key = jax.random.key(0)
        return dpjax.solve(solver, case.problem, data, key=key, progress=False).params

    traced = jax.make_jaxpr(run)(case.build(case.values[0]), data)
    assert not list(callbacks(traced.jaxpr))


def test_what_is_first_known_to_a_transformation_calls_back():
    case = ENTRIES["HistogramRelease"].make()

    def run(value, data):
        key = jax.random.key(0)
        return dpjax.solve(case.build(value), case.problem, data, key=key, progress=False).params

    assert len(list(callbacks(jax.make_jaxpr(run)(case.values[0], case.data).jaxpr))) == 1


@pytest.mark.parametrize("name", RUN)
def test_a_loop_runs_on_what_is_there(name, monkeypatch):
    case, program, seen = ENTRIES[name].make(), _loop.advance, []

    def guarded(*arguments):
        there = jax.tree.map(on_device, arguments)
        seen.append(words_of_talk(program.lower(*there)))
        # compiles, and has its buffers taken
        jax.block_until_ready(program(*jax.tree.map(copied, there)))
        with jax.transfer_guard("disallow"):
            return jax.block_until_ready(program(*there))

    monkeypatch.setattr(_loop, "advance", guarded)
    solver = case.build(case.values[0])
    with jax.debug_key_reuse(False):  # what was copied is no second run
        dpjax.solve(solver, case.problem, case.data, key=jax.random.key(0), progress=False)
    assert seen == [[]]


def on_device(leaf):
    given = isinstance(leaf, np.ndarray | np.generic | float | int) and not isinstance(leaf, bool)
    return jnp.asarray(leaf) if given else leaf


def copied(leaf):
    return jnp.copy(leaf) if isinstance(leaf, jax.Array) else leaf


def test_a_loop_within_a_transformation_runs_on_what_is_there():
    case = ENTRIES["DPSGD(linear)"].make()
    solver, data = case.build(case.values[0]), case.data
    keys, others = (jax.random.split(jax.random.key(seed), 3) for seed in (1, 2))

    def one(key):
        return dpjax.solve(solver, case.problem, data, key=key, progress=False).params

    run = jax.jit(jax.vmap(one))
    run(keys)
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(run(others))


def test_the_guard_sees_what_comes_from_the_host():
    plus = jax.jit(lambda x: x + 1)
    plus(np.ones(3))
    with jax.transfer_guard("disallow"), pytest.raises(Exception, match="host-to-device"):
        plus(np.ones(3))


def test_a_callback_in_a_problem_is_seen():
    def loss(w, record):
        x = record["x"]
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jnp.sum((w - jax.pure_callback(np.asarray, shape, x, vmap_method="sequential")) ** 2)

    problem = dpjax.problems.Risk(loss, jnp.zeros(2))
    solver = dpjax.solvers.DPSGD(dpjax.sampling.FullBatch(2), 1.0, 1.0, 0.1, 4.0)
    assert "callback" in words_of_talk(lower(solver, problem, {"x": jnp.ones((4, 2))}))
