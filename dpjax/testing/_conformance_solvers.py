"""The conformance suite for solvers."""

import copy
import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, Solution, Solver, optional
from dpjax.runtime import solve
from dpjax.runtime._solve import in_public_rows
from dpjax.testing import _asserts as asserts
from dpjax.testing import _trees as trees
from dpjax.testing._cases import Entry, SolverCase
from dpjax.testing._neighbours import largest_change

_SIZE = 8
_TOLERANCE = 1e-4


def check_solver(entry: Entry) -> None:
    """Runs the conformance suite on a registered solver.

    The event is accepted by an accountant; the sampler's failure probability is declared; a pytree
    whose swept field is data and whose structure names its class; structure and dtype of state and
    parameters kept; `dpjax.solve` traces once, and vmap over keys and solvers equals a loop; a
    saved and loaded state goes on bit for bit; masked records have no influence; a NaN or infinite
    record counts as absent; no two draws share a key across step, run and re-initialisation; a
    missing key is a TypeError; no neighbour found moves a released statistic beyond its bound.

    Args:
      entry: Of kind `"solver"`; its `make` gives a `SolverCase`.

    Raises:
      AssertionError: Naming the entry and what it does not hold to.
    """
    case: SolverCase = entry.make()
    name = entry.name
    first, second = (case.build(value) for value in case.values)
    check_guarantee(first, name)
    layout: object = jax.tree.structure(first)
    if layout != jax.tree.structure(second):
        raise AssertionError(f"{name}: the swept value must be a data field of the pytree")
    _check_structure(first, name)
    _check_types(case, first, name)
    program = _check_solve(case, first, second, name)
    _check_steps(case, first, name)
    _check_draws(case, first, program, name)
    no_key: PyTree = None
    asserts.assert_needs_key(lambda: first.init(case.problem, key=no_key), f"{name}: init")
    asserts.assert_needs_key(
        lambda: solve(first, case.problem, case.data, key=no_key), f"{name}: solve"
    )
    for statistic in case.statistics:
        few, key = jax.tree.map(lambda a: np.asarray(a)[:4], case.data), jax.random.key(8)
        what, norm = f"{name}: {statistic.name}", statistic.norm
        worst = largest_change(statistic.of, few, norm=norm, choices=case.choices, key=key)
        asserts.assert_within(worst, statistic.bound, what, norm, tolerance=1e-3)


def check_guarantee(solver: Solver, name: str) -> None:
    """Epsilon is finite, and a failure of the sampler is declared."""
    epsilon = solver.guarantee().epsilon(1e-5)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise AssertionError(f"{name}: guarantee().epsilon(1e-5) must be finite, got {epsilon}")
    failing: PyTree = copy.deepcopy(solver)
    probability = 1e-7 + solver.sampler.failure_probability()
    # of the instance, so that a sampler that never fails is seen to be asked too
    object.__setattr__(failing.sampler, "failure_probability", lambda: probability)
    declared = failing.guarantee().failure_probability
    if not declared >= probability:
        raise AssertionError(
            f"{name}: guarantee().failure_probability must be at least the sampler's, "
            f"{probability:.3g}, got {declared:.3g}"
        )


def _check_structure(solver: PyTree, name: str) -> None:
    """A class of the same fields, registered by JAX alone, must not be taken for the solver's."""
    fields = [(f.name, f.type, f) for f in dataclasses.fields(solver) if f.init]
    bare = [(n, t, dataclasses.field(metadata=f.metadata)) for n, t, f in fields]
    other = jax.tree_util.register_dataclass(dataclasses.make_dataclass("Other", bare))
    same = other(**{n: getattr(solver, n) for n, _, _ in fields})
    structure: object = jax.tree.structure(solver)
    if structure == jax.tree.structure(same):
        raise AssertionError(
            f"{name}: the pytree's structure must name its class, or compiled programs of another "
            "class may run: register it with dpjax.core.register_dataclass"
        )


def _check_types(case: SolverCase, solver: Solver, name: str) -> None:
    """Shapes only; also with parameters of every float type where the problem holds `init`."""
    problem = case.problem
    variants = [problem]
    fields = dataclasses.fields(problem) if dataclasses.is_dataclass(problem) else ()
    if any(field.name == "init" for field in fields):
        variants = [
            dataclasses.replace(problem, init=trees.cast(problem.init, dtype))
            for dtype in trees.float_types()
        ]
    batch, mask = _batch(case)
    for problem in variants:
        state = jax.eval_shape(lambda key, p=problem: solver.init(p, key=key), jax.random.key(0))
        if hasattr(solver, "prologue"):
            begun = jax.eval_shape(lambda s, p=problem: solver.prologue(p, case.data, s), state)
            trees.assert_types(begun, state, f"{name}: state after the prologue")
        after, _ = jax.eval_shape(lambda s, p=problem: solver.step(p, batch, mask, s), state)
        trees.assert_types(after, state, f"{name}: state after a step")
        params = jax.eval_shape(lambda s, p=problem: solver.finalize(p, s), state)
        if hasattr(problem, "init"):
            trees.assert_types(params, problem.init, f"{name}: parameters")


def _check_solve(case: SolverCase, first: Solver, second: Solver, name: str) -> asserts.Program:
    data = in_public_rows(first, case.data)  # a traced solver warns of others

    def run(solver: Solver, words: jax.Array) -> Solution:
        key = jax.random.wrap_key_data(words)
        return solve(solver, case.problem, data, key=key)._replace(guarantee=None, state=None)

    one, other = asserts.key_data(1, 2)
    runs = [(first, one), (first, other), (second, one)]
    program = asserts.Program(run)
    if case.concrete_key:
        solutions = [run(*each) for each in runs]
    else:
        solutions = [program(*each) for each in runs]
        program.assert_one_trace(f"{name}: solve")
        asserts.assert_vmap_equals_loop(program.part, runs, solutions, name, _TOLERANCE)
    for solution in solutions:
        trees.assert_finite((solution.params, solution.info), f"{name}: solution")
        if solution.sensitive is not None:
            raise AssertionError(f"{name}: sensitive must be None unless asked for")
    return program


def _check_steps(case: SolverCase, solver: Solver, name: str) -> None:
    step = asserts.Program(lambda batch, mask, state: solver.step(case.problem, batch, mask, state))
    batch, mask = _batch(case)

    @jax.jit
    def begin(key: jax.Array) -> PyTree:
        state = solver.init(case.problem, key=key)
        prologue = optional(solver, "prologue")  # what it computes from all records
        return state if prologue is None else prologue(case.problem, case.data, state)

    begun, _ = step(batch, mask, trees.fresh(begin(jax.random.key(3))))

    here, there = begun, trees.save_and_load(begun)
    for _ in range(2):
        here, info = step(batch, mask, trees.fresh(here))
        there, info_there = step(batch, mask, trees.fresh(there))
        trees.assert_identical(there, here, f"{name}: state after save and load")
        trees.assert_identical(info_there, info, f"{name}: info after save and load")

    nobody = np.zeros(_SIZE, bool)
    empty = step(batch, nobody, trees.fresh(begun))
    trees.assert_finite(empty, f"{name}: step on an empty batch")
    without = step(batch, np.asarray(mask) & (np.arange(_SIZE) > 0), trees.fresh(begun))
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        got = step(trees.filled(batch, bad), nobody, trees.fresh(begun))
        trees.assert_identical(got, empty, f"{name}: step on masked records that hold {bad}")
        for spoiled in trees.with_bad_entry(batch, bad):
            got = step(spoiled, mask, trees.fresh(begun))
            what = f"{name}: step with a record that holds {bad}, against one without it,"
            trees.assert_close(got, without, what, 1e-5)


def _check_draws(case: SolverCase, solver: Solver, program: asserts.Program, name: str) -> None:
    batch, mask = _batch(case)

    def whole(data: jax.Array) -> PyTree:
        return program.part(solver, data)

    def steps(data: jax.Array) -> PyTree:
        state = solver.init(case.problem, key=jax.random.wrap_key_data(data))
        for _ in range(3):
            state, _ = solver.step(case.problem, batch, mask, state)
        return state

    asserts.assert_draws_differ(steps if case.concrete_key else whole, name)


def _batch(case: SolverCase) -> tuple[PyTree, jax.Array]:
    batch = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[:_SIZE]), case.data)
    return batch, jnp.asarray(np.arange(_SIZE) < _SIZE - 1)
