"""Query release: no neighbour moves a draw, or a whole run, further than the guarantee says."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from query_runs import (
    ADD,
    ETA,
    MARGINALS,
    MIXED,
    ONE,
    RECORDS,
    REPLACE,
    SHIFTED,
    SMALL,
    SPECIAL,
    UNUSUAL,
    case,
    vertices,
)

import dpjax
from dpjax.api import _release as release_module
from dpjax.privacy import BoundedRangeGuarantee, bounded_range_rho
from dpjax.problems import QueryRelease
from dpjax.queries import Dense, Marginals
from dpjax.solvers import FrankWolfeRelease, MirrorDescentRelease, SaddleRelease

CASES = {
    "queries": lambda: case(FrankWolfeRelease, MARGINALS, REPLACE),
    "queries, add": lambda: case(FrankWolfeRelease, MARGINALS, ADD),
    "unusual, add": lambda: case(FrankWolfeRelease, UNUSUAL, ADD, alpha=0.5, output="uniform"),
    "unusual": lambda: case(FrankWolfeRelease, UNUSUAL, REPLACE, schedule="sqrt", output="last"),
    "one cell, add": lambda: case(FrankWolfeRelease, SMALL, ADD),
    "one query": lambda: case(FrankWolfeRelease, ONE, REPLACE, 4),
    "one query, add": lambda: case(FrankWolfeRelease, SHIFTED, ADD, 3),
    "one query, saddle": lambda: case(SaddleRelease, SHIFTED, REPLACE, 4),
    "one query, mirror": lambda: case(MirrorDescentRelease, ONE, SPECIAL, 3),
    "marginals": lambda: case(FrankWolfeRelease, MARGINALS, REPLACE, vertices="marginals"),
    "marginals, add": lambda: case(FrankWolfeRelease, MARGINALS, ADD, vertices="marginals"),
    "laplace": lambda: case(FrankWolfeRelease, UNUSUAL, REPLACE, noise="laplace"),
    "laplace, add": lambda: case(FrankWolfeRelease, UNUSUAL, ADD, noise="laplace"),
    "saddle, add": lambda: case(SaddleRelease, MIXED, ADD, 4),
    "mirror": lambda: case(MirrorDescentRelease, MIXED, REPLACE, 3),
}


# others show the same at less cost
SELDOM = (
    "queries, add",
    "marginals, add",
    "laplace, add",
    "one query",
    "one query, saddle",
    "one query, mirror",
)


def parameters(names):
    """Names as parameters."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n in SELDOM else []) for n in names]


@functools.cache
def made(name):
    """A case and its laws."""
    found = CASES[name]()
    return found, found.laws()


def ranges(laws, pairs):
    """How far the log-ratios of one draw spread, `[pairs, scripts, T]`."""
    return np.ptp(laws[pairs[:, 0]] - laws[pairs[:, 1]], axis=-1)


@pytest.mark.parametrize("name", parameters(CASES))
@pytest.mark.once  # the claim
def test_no_neighbour_moves_a_draw_further_than_declared_and_one_does_as_far(name):
    found, laws = made(name)
    steps = found.solver.sampler.steps
    etas = np.full(steps, ETA)
    if "saddle" in name:
        etas = ETA * np.arange(steps) / (steps - 1)
    spread = ranges(laws, found.pairs[1]).max(axis=(0, 1))
    assert (spread <= etas * (1 + 1e-4) + 1e-5).all()
    assert (spread >= etas * 0.999 - 1e-5).all()
    event = found.solver.guarantee().event
    if not name.startswith("laplace"):
        rho = event.rho if hasattr(event, "rho") else event.count * event.event.rho
        assert rho == pytest.approx(np.sum(bounded_range_rho(etas)), rel=1e-6)


@pytest.mark.parametrize("name", parameters(["marginals", "marginals, add"]))
@pytest.mark.always  # the claim
def test_the_law_of_a_table_and_its_signs_is_the_exponential_mechanism(name):
    found, laws = made(name)
    workload, (index, signs) = MARGINALS, vertices(found.solver, MARGINALS)
    sets, _ = found.pairs
    first = np.array([[np.bincount(cells, minlength=4) for cells in group] for group in sets[:1]])[
        0
    ]
    answers = first @ np.stack([workload.row(j) for j in range(8)], axis=1) / RECORDS
    gaps = answers - np.asarray(workload.answers(np.full(4, 0.25, np.float32)))
    padded = [np.r_[workload.offsets[i] : workload.offsets[i] + workload.sizes[i]] for i in index]
    scores = np.stack(
        [gaps[:, at] @ row[: len(at)] for at, row in zip(padded, signs, strict=True)], axis=1
    ) / float(found.solver.noise_scale) - np.log(2.0) * np.array([len(at) for at in padded])
    want = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    # the scores are smaller by what rounding may add
    np.testing.assert_allclose(laws[: len(first), 0, 0], want, atol=3e-4)
    assert np.ptp(want, axis=1).max() > 1


# Whole runs: the law of all draws together.


def transcripts(found, laws):
    """Log probabilities of all scripts, `[sets, scripts]`."""
    t = np.arange(found.solver.sampler.steps)
    logs = laws[:, np.arange(len(found.scripts))[:, None], t, found.scripts].sum(axis=-1)
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1, atol=1e-5)
    return logs


def hockey_stick(logs, pairs, epsilon):
    """The largest over pairs, in both directions."""
    a, b = logs[pairs[:, 0]], logs[pairs[:, 1]]
    both = ((a, b), (b, a))
    return max(np.maximum(np.exp(p) - np.exp(epsilon + q), 0).sum(axis=1).max() for p, q in both)


def renyi(logs, pairs, alpha):
    """The largest divergence over pairs and directions, by its order."""
    a, b = logs[pairs[:, 0]], logs[pairs[:, 1]]
    sums = [np.exp(alpha * p + (1 - alpha) * q).sum(axis=1).max() for p, q in ((a, b), (b, a))]
    return np.log(max(sums)) / (alpha - 1) / alpha


# how much of rho is reached: most where all vertices move
WHOLE = {
    "one query": 0.9,
    "one query, add": 0.65,
    "one query, saddle": 0.85,
    "one query, mirror": 0.75,
    "queries": 0.5,
    "marginals": 0.5,
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.always  # the claim
def test_the_law_of_a_whole_run_is_within_its_guarantee(name):
    found, laws = made(name)
    logs, pairs = transcripts(found, laws), found.pairs[1]
    guarantee = found.solver.guarantee()
    event = guarantee.event
    rho = event.rho if hasattr(event, "rho") else event.count * event.event.rho
    for epsilon in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0):
        exact = hockey_stick(logs, pairs, epsilon)
        assert exact <= guarantee.delta(epsilon) + 1e-6
        if "saddle" not in name:
            tight = BoundedRangeGuarantee(ETA * (1 + 1e-5), found.solver.sampler.steps)
            assert exact <= tight.delta(epsilon) + 1e-6
    found_rho = max(renyi(logs, pairs, alpha) for alpha in (1.01, 2.0, 8.0))
    assert WHOLE[name] * rho < found_rho <= rho * (1 + 1e-3)


# What would make the numbers above wrong.


QUIET, LOUD = (Dense(np.array([[0.0, entry]], np.float32)) for entry in (1.0, 50.0))


def test_a_problem_of_another_workload_has_its_sensitivities():
    """However it is made: kept from the first, epsilon 1 was reported for 50 times as much."""
    problem = QueryRelease(QUIET)
    assert problem.sensitivity(REPLACE).score_range == 2
    replaced = dataclasses.replace(problem, workload=LOUD)
    mapped = jax.tree.map(lambda leaf: 50 * leaf, problem)
    inside = jax.jit(lambda leaf: dataclasses.replace(problem, workload=LOUD))(1.0)
    for louder in (replaced, mapped, inside):
        assert louder.sensitivity(REPLACE).score_range == 100
        assert jax.tree.structure(louder) == jax.tree.structure(QueryRelease(LOUD))
    with pytest.raises(ValueError, match="sensitivities are unknown"):
        jax.jit(lambda w: dataclasses.replace(problem, workload=w).sensitivity(REPLACE))(QUIET)
    # which come along through transformations, of one or of several
    known = []
    jax.jit(lambda p: known.append(p.sensitivity(REPLACE)))(replaced)
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), replaced, mapped)
    jax.vmap(lambda p: known.append(p.sensitivity(REPLACE)))(both)
    assert [one.score_range for one in known] == [100, 100]


@pytest.mark.parametrize("transformation", [lambda run: run, jax.jit, jax.vmap])
@pytest.mark.parametrize("name", ["frank_wolfe", "mirror_descent", "saddle", "mwem"])
def test_a_solver_of_another_workload_is_refused(name, transformation):
    """Also where records are traced, since both are known then."""
    problem = QueryRelease(ONE)
    solver = release_module.METHODS[name](problem, 9, dpjax.Budget(1.0, 1e-6))
    louder = dataclasses.replace(problem, workload=LOUD)
    records = np.zeros((3, 9) if transformation is jax.vmap else 9, int)
    with pytest.raises(ValueError, match="_range must be >="):
        transformation(lambda x: dpjax.solve(solver, louder, x, key=jax.random.key(0)))(records)


def test_solvers_of_other_queries_are_refused():
    problem, louder = QueryRelease(ONE), QueryRelease(LOUD)
    solver = FrankWolfeRelease.for_budget(problem, 9, dpjax.Budget(1.0, 1e-6))
    with pytest.raises(ValueError, match="score_range must be >= 100"):
        dpjax.solve(solver, louder, np.zeros(9, int), key=jax.random.key(0))
    # and of single queries, if it is for tables
    table = QueryRelease(MARGINALS)
    single = FrankWolfeRelease.for_budget(table, 9, dpjax.Budget(1.0, 1e-6), vertices="queries")
    signs = dataclasses.replace(single, vertices="marginals")
    with pytest.raises(ValueError, match="score_range must be >= 4"):
        signs.init(table, key=jax.random.key(0))
    with pytest.raises(TypeError, match="must be Marginals"):
        signs.init(problem, key=jax.random.key(0))


def test_scores_are_rounded_by_far_less_than_a_record_moves_them():
    problem, rng = QueryRelease(MARGINALS), np.random.default_rng(0)

    def widest(number):
        """The largest change of answers by a replaced record, in records."""
        counts = rng.multinomial(number, [0.4, 0.3, 0.2, 0.1], 50).astype(np.int32)
        shown = []
        for moved in ((0, 0, 0, 0), (1, 0, -1, 0)):
            every = list(counts + np.array(moved, np.int32))
            with mock.patch.object(Marginals, "histogram", side_effect=every):
                shown.append([np.asarray(problem.answers(None, number), float) for _ in every])
        return np.abs(np.subtract(*shown)).max() * number

    assert 0.99 < widest(100_000) < 1.01
    if not jax.config.jax_enable_x64:  # float32 skips whole numbers: these are refused
        assert widest(10**8) > 2
        with pytest.raises(ValueError, match="enable jax_enable_x64"):
            problem.check(np.broadcast_to(np.zeros((1, 2), np.int32), (2**24, 2)))
        far = QueryRelease(Dense(np.array([[1e6, 1e6 + 1]], np.float32)))
        rows = np.arange(1000) < np.arange(1000)[:, None]
        sums = [float(far.answers(row.astype(np.int32), 1)[0]) for row in rows[20:60]]
        assert np.abs(np.diff(sums)).max() > 2
        with pytest.raises(ValueError, match="centre the queries"):
            far.check(np.zeros(1000, np.int32))
    whole = QueryRelease(Dense(np.array([[127, -127]])))
    whole.check(np.zeros(1000, np.int32))
    with pytest.raises(ValueError, match=r"2\*\*31|enable"):
        whole.check(np.broadcast_to(np.int32(0), 2**24 + 2**20))


@pytest.mark.parametrize("transformation", [jax.jit, jax.vmap, None], ids=["jit", "vmap", "loop"])
@pytest.mark.parametrize("name", sorted(release_module.METHODS))
def test_records_that_float32_cannot_count_are_refused_where_they_are_traced(name, transformation):
    """Their number is known; `None` is a loop of the user's own, without `solve`."""
    if jax.config.jax_enable_x64:
        pytest.skip("float64 counts them")
    problem = QueryRelease(MARGINALS)
    solver = release_module.METHODS[name](problem, 9, dpjax.Budget(1.0, 1e-6))

    def run(records):
        if transformation is not None:
            solution = dpjax.solve(solver, problem, records, key=jax.random.key(0))
            return solution.params.answers
        state = solver.init(problem, key=jax.random.key(0))
        if hasattr(solver, "prologue"):
            state = solver.prologue(problem, records, state)
        return solver.step(problem, records, jnp.ones(records.shape[0], bool), state)

    mapped = transformation is jax.vmap
    called = transformation(run) if transformation else run
    for number in (2**24 - 1, 2**24):
        records = jax.ShapeDtypeStruct((2, number, 2) if mapped else (number, 2), jnp.int32)
        if number < 2**24:
            jax.eval_shape(called, records)
        else:
            with pytest.raises(ValueError, match="must be < 16777216 in float32"):
                jax.eval_shape(called, records)
