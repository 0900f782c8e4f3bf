"""The conformance suite for solvers."""

import copy
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree
from dpjax.runtime import solve
from dpjax.testing import _trees as trees
from dpjax.testing._cases import SolverCase
from dpjax.testing._draws import check_draws_differ, keys_drawn_by_runs
from dpjax.testing._neighbours import largest_change
from dpjax.testing._registry import Entry

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
    _check_guarantee(first, name)
    layouts: list[Any] = [jax.tree.structure(solver) for solver in (first, second)]
    if layouts[0] != layouts[1]:
        raise AssertionError(f"{name}: the swept value must be a data field of the pytree")
    _check_structure(first, name)
    _check_types(case, first, name)
    _check_solve(case, first, second, name)
    _check_steps(case, first, name)
    _check_draws(case, first, name)
    _check_keys_required(case, first, name)
    for statistic in case.statistics:
        worst = largest_change(
            statistic.of,
            trees.take(case.data, slice(0, 4)),
            norm=statistic.norm,
            choices=case.choices,
            key=jax.random.key(8),
        )
        if not worst.change <= statistic.bound * (1 + 1e-3):
            raise AssertionError(
                f"{name}: {statistic.name} must change by at most {statistic.bound:.6g} in "
                f"{statistic.norm}, but to {worst.kind} record {worst.removed} changes it by "
                f"{worst.change:.6g}: {worst.record}"
            )


def _check_guarantee(solver: Any, name: str) -> None:
    guarantee = solver.guarantee()
    epsilon = guarantee.epsilon(1e-5)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise AssertionError(f"{name}: guarantee().epsilon(1e-5) must be finite, got {epsilon}")
    failing = copy.deepcopy(solver)
    probability = 1e-7 + solver.sampler.failure_probability()
    # of the instance, so that a sampler that never fails is seen to be asked too
    object.__setattr__(failing.sampler, "failure_probability", lambda: probability)
    declared = failing.guarantee().failure_probability
    if not declared >= probability:
        raise AssertionError(
            f"{name}: guarantee().failure_probability must be at least the sampler's, "
            f"{probability:.3g}, got {declared:.3g}"
        )


def _check_structure(solver: Any, name: str) -> None:
    """A class of the same fields, registered by JAX alone, must not be taken for the solver's."""
    fields = [(f.name, f.type, f) for f in dataclasses.fields(solver) if f.init]
    bare = [(n, t, dataclasses.field(metadata=f.metadata)) for n, t, f in fields]
    other: Any = jax.tree_util.register_dataclass(dataclasses.make_dataclass("Other", bare))
    same = other(**{n: getattr(solver, n) for n, _, _ in fields})
    structures: list[Any] = [jax.tree.structure(one) for one in (solver, same)]
    if structures[0] == structures[1]:
        raise AssertionError(
            f"{name}: the pytree's structure must name its class, or compiled programs of another "
            "class may run: register it with dpjax.core.register_dataclass"
        )


def _check_types(case: SolverCase, solver: Any, name: str) -> None:
    """Shapes only; also with parameters of every float type where the problem holds `init`."""
    problem: Any = case.problem
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


def _check_solve(case: SolverCase, first: Any, second: Any, name: str) -> None:
    keys = list(jax.random.split(jax.random.key(1), 2))
    runs = [(first, keys[0]), (first, keys[1]), (second, keys[0])]
    if case.concrete_key:
        solutions = [solve(s, case.problem, case.data, key=trees.fresh(k)) for s, k in runs]
    else:
        traces: list[None] = []

        def run(solver: Any, data: jax.Array) -> Any:
            traces.append(None)
            key = jax.random.wrap_key_data(data)
            solution = solve(solver, case.problem, case.data, key=key)
            return solution._replace(guarantee=None, state=None)

        jitted = jax.jit(run, compiler_options=trees.QUICK)
        args = [(solver, jax.random.key_data(key)) for solver, key in runs]
        solutions = [jitted(*each) for each in args]
        if len(traces) != 1:
            raise AssertionError(
                f"{name}: solve traced {len(traces)} times for three runs of one shape, want 1"
            )
        every = jax.jit(jax.vmap(run), compiler_options=trees.QUICK)
        vmapped = every(*trees.stack(*args))
        trees.assert_close(
            trees.cast(vmapped, jnp.float32),
            trees.cast(trees.stack(*solutions), jnp.float32),
            f"{name}: vmap over solvers and keys",
            _TOLERANCE,
        )
    for solution in solutions:
        trees.assert_finite((solution.params, solution.info), f"{name}: solution")
        if solution.sensitive is not None:
            raise AssertionError(f"{name}: sensitive must be None unless asked for")


def _check_steps(case: SolverCase, solver: Any, name: str) -> None:
    step = jax.jit(lambda batch, mask, state: solver.step(case.problem, batch, mask, state))
    batch, mask = _batch(case)
    start = _begin(case, solver, jax.random.key(3))
    begun, _ = step(batch, mask, trees.fresh(start))

    here, there = begun, trees.save_and_load(begun)
    for _ in range(2):
        here, info = step(batch, mask, trees.fresh(here))
        there, info_there = step(batch, mask, trees.fresh(there))
        trees.assert_identical(there, here, f"{name}: state after save and load")
        trees.assert_identical(info_there, info, f"{name}: info after save and load")

    nobody = jnp.zeros(_SIZE, bool)
    empty = step(batch, nobody, trees.fresh(begun))
    trees.assert_finite(empty, f"{name}: step on an empty batch")
    without = step(batch, mask.at[0].set(False), trees.fresh(begun))
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        garbage = jax.tree.map(
            lambda a, b=bad: jnp.full_like(a, b) if trees.is_float(a) else a * 0, batch
        )
        got = step(garbage, nobody, trees.fresh(begun))
        trees.assert_identical(got, empty, f"{name}: step on masked records that hold {bad}")
        for spoiled in _with_bad_record(batch, bad):
            got = step(spoiled, mask, trees.fresh(begun))
            what = f"{name}: step with a record that holds {bad}, against one without it,"
            trees.assert_close(got, without, what, 1e-5)


def _check_draws(case: SolverCase, solver: Any, name: str) -> None:
    batch, mask = _batch(case)

    def whole(data: jax.Array) -> Any:
        key = jax.random.wrap_key_data(data)
        return solve(solver, case.problem, case.data, key=key).state

    def steps(data: jax.Array) -> Any:
        state = solver.init(case.problem, key=jax.random.wrap_key_data(data))
        for _ in range(3):
            state, _ = solver.step(case.problem, batch, mask, state)
        return state

    run = steps if case.concrete_key else whole
    seeds = [jax.random.key_data(jax.random.key(seed)) for seed in (4, 5)]
    keys = keys_drawn_by_runs(run, seeds)
    if not len(keys[0]):
        raise AssertionError(f"{name}: no random draw was seen in a run")
    check_draws_differ(keys, name)


def _check_keys_required(case: SolverCase, solver: Any, name: str) -> None:
    calls = {
        "init": lambda: solver.init(case.problem, key=None),
        "solve": lambda: solve(solver, case.problem, case.data, key=None),  # type: ignore[arg-type]
    }
    for what, call in calls.items():
        try:
            call()
        except TypeError:
            continue
        raise AssertionError(f"{name}: {what} without a key must raise TypeError, and did not")


def _begin(case: SolverCase, solver: Any, key: jax.Array) -> Any:
    """The state before the first step, with what the solver computes from all records."""

    @jax.jit
    def begin(key: jax.Array) -> Any:
        state = solver.init(case.problem, key=key)
        if hasattr(solver, "prologue"):
            state = solver.prologue(case.problem, case.data, state)
        return state

    return begin(key)


def _batch(case: SolverCase) -> tuple[PyTree, jax.Array]:
    batch = trees.take(jax.tree.map(jnp.asarray, case.data), slice(0, _SIZE))
    return batch, jnp.asarray(np.arange(_SIZE) < _SIZE - 1)


def _with_bad_record(batch: PyTree, bad: float) -> list[PyTree]:
    """For each float leaf, the batch with one entry of it bad in record 0."""
    leaves, treedef = jax.tree.flatten(batch)
    made = []
    for i, leaf in enumerate(leaves):
        if trees.is_float(leaf):
            spoiled = leaf.at[(0,) * leaf.ndim].set(bad)
            made.append(jax.tree.unflatten(treedef, [*leaves[:i], spoiled, *leaves[i + 1 :]]))
    return made
