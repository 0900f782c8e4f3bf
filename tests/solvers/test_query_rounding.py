"""Query release: the range that a record moves a draw by is the declared one at any number."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from query_runs import ADD, ETA, MARGINALS, REPLACE, case, drawing
from scipy import special

from dpjax.problems import QueryRelease
from dpjax.queries import Dense, Domain, Marginals
from dpjax.sampling import FullBatch
from dpjax.solvers import MWEM, FrankWolfeRelease, MirrorDescentRelease
from dpjax.solvers.queries import _selection as selection
from dpjax.solvers.queries._selection import select_marginal
from dpjax.testing._trees import QUICK

TRIALS = 300
TABLES = Marginals.all_kway(Domain({"a": 20, "b": 15, "c": 10}), 2)
WHOLE = Dense(np.array([[7, -3, 2, 2], [5, 6, 7, 5], [-4, -8, -5, -6], [1, 0, 0, 1]], np.int8))
REAL = Dense(np.random.default_rng(3).normal(size=(6, 4)).astype(np.float32))
HELD = Dense(np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]], np.float32))


def mwem(workload, number):
    told = QueryRelease(workload).sensitivity(REPLACE)
    scale = told.score_range / (number * ETA)
    fields = {"score_range": told.score_range, "answer_range": told.linf, "replays": 1}
    return MWEM(FullBatch(1), scale, scale, float(number), relation=REPLACE, **fields)


def solver_of(kind, workload, relation, number, **fields):
    if kind is MWEM:
        return mwem(workload, number)
    small = case(kind, workload, relation, 1, **fields).solver
    scale = float(small.noise_scale) * float(small.num_records) / number
    return case(
        kind, workload, relation, 1, num_records=float(number), noise_scale=scale, **fields
    ).solver


CASES = {
    "queries": (FrankWolfeRelease, MARGINALS, REPLACE, {}),
    "queries, add": (FrankWolfeRelease, MARGINALS, ADD, {}),
    "integers": (FrankWolfeRelease, WHOLE, ADD, {}),
    "integers held as floats": (MirrorDescentRelease, HELD, REPLACE, {}),
    "fractions": (FrankWolfeRelease, REAL, ADD, {}),
    "fractions, replaced": (MirrorDescentRelease, REAL, REPLACE, {}),
    "mwem": (MWEM, MARGINALS, REPLACE, {}),
    "marginals": (FrankWolfeRelease, MARGINALS, REPLACE, {"vertices": "marginals"}),
    "marginals, add": (FrankWolfeRelease, MARGINALS, ADD, {"vertices": "marginals"}),
    "tables": (FrankWolfeRelease, TABLES, REPLACE, {"vertices": "marginals"}),
}


def logits_of(solver, problem, number, share):
    """From counts `[k]` of so many records to the logits of a draw, and halves of those of signs.

    What they are compared with is answered by these shares `[k]`.
    """
    workload, seen = problem.workload, []
    reference = workload.answers(jnp.asarray(share, float))

    def sample(key, logits, k):
        seen.append(logits)
        return jnp.zeros(k, jnp.int32)

    def marginal(key, workload, gaps, sharpness, rest):
        info = select_marginal(key, workload, gaps, sharpness, rest)
        seen.append((gaps.astype(rest.dtype) + rest) * sharpness)
        return info

    start = solver.init(problem, key=jax.random.key(0))
    if isinstance(solver, MWEM):  # the last table has all cells
        start = start._replace(weights=start.weights.at[-share.size :].set(np.log(share)))
    else:
        start = start._replace(current=reference, averaged=reference)
    # codes, or cells, that are never looked at
    shape = (number,) if workload.domain is None else (number, len(workload.domain.shape))

    def targets(counts):
        with mock.patch.object(type(workload), "histogram", return_value=counts):
            found = solver.prologue(problem, np.broadcast_to(np.int32(0), shape), start)
        return {n: getattr(found, n) for n in ("targets", "answers") if hasattr(found, n)}

    def step(secret):
        seen.clear()
        with mock.patch.object(selection, "select_marginal", marginal), drawing(sample):
            solver.step(problem, None, None, start._replace(**secret))
        return tuple(seen)

    # compiled apart, as in a loop: together they would be rounded once
    both = [jax.jit(jax.vmap(part), compiler_options=QUICK) for part in (targets, step)]
    return lambda counts: both[1](both[0](counts))


def moved(name, number, trials=TRIALS):
    """The largest range over trials, of all that is drawn with a chance above e^-90, by `ETA`."""
    kind, workload, relation, fields = CASES[name]
    solver, problem = solver_of(kind, workload, relation, number, **fields), QueryRelease(workload)
    rng, k = np.random.default_rng(0), workload.universe_size
    share = np.array([0.55, 0.2, 0.15, 0.1]) if k == 4 else rng.dirichlet(np.full(k, 0.5))
    base = np.floor(number * share).astype(np.int32)
    base[0] += number - base.sum()
    first = np.repeat(base[None], trials, axis=0)
    for row in first:  # some records off, so that gaps and their signs differ
        np.add.at(row, rng.integers(0, k, 20), np.where(np.arange(20) % 2, 1, -1))
    first = np.maximum(first, 0)
    first[:, 0] += number - first.sum(axis=1)
    second, rows = first.copy(), np.arange(trials)
    from_cell = np.argmax((first > 0) * rng.uniform(size=first.shape), axis=1)
    second[rows, from_cell] -= 1
    if relation == REPLACE:
        second[rows, (from_cell + rng.integers(1, k, trials)) % k] += 1
    size = number - (relation != REPLACE)
    a = logits_of(solver, problem, number, share)(first)
    b = logits_of(solver, problem, size, share)(second)
    a, b = ([np.asarray(leaf, float) for leaf in leaves] for leaves in (a, b))
    behind = [law[0] - law[0].max(axis=1, keepdims=True) for law in (a, b)]
    change = np.where(np.minimum(*behind) > -90, a[0] - b[0], np.nan)
    up, down = change, change
    if len(a) == 2:
        sides = []
        for sign in (1, -1):
            logs = [special.log_expit(2 * sign * energy) for energy in (a[1], b[1])]
            sides.append(np.where(np.minimum(*logs) > -90, logs[0] - logs[1], np.nan))
        starts = workload.offsets
        up = change + np.add.reduceat(np.nanmax(sides, axis=0), starts, axis=1)
        down = change + np.add.reduceat(np.nanmin(sides, axis=0), starts, axis=1)
    return np.max(np.nanmax(up, axis=1) - np.nanmin(down, axis=1)) / ETA


@pytest.mark.parametrize(
    "number", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow), 4_000_000]
)
@pytest.mark.parametrize("name", CASES)
def test_rounding_adds_nothing_to_the_declared_range(name, number):
    ratio = moved(name, number, 30 if name == "tables" else TRIALS)
    assert 0.999 < ratio <= 1 + 1e-6


def test_differences_of_integers_are_noised_that_float32_does_not_hold(key):
    """With Laplace noise; 1 apart and above 2^25, they would be the same number."""
    gaps = jnp.asarray([5, 2**25 + 1, -(2**25) - 2, 2**25], jnp.int32)
    rest = jnp.asarray([0.5, 0.5, -0.25, 0.0])
    draw = jax.jit(
        jax.vmap(lambda key: selection.loudest_query(key, gaps, 1e-3, rest)),
        compiler_options=QUICK,
    )
    found = draw(jax.random.split(key, 100))
    assert set(found.index.tolist()) == {2}
    assert set(found.signs.ravel().tolist()) == {-1}


def test_sums_over_large_tables_are_log_cosh():
    rng = np.random.default_rng(1)
    gaps = rng.integers(-30, 31, TABLES.num_queries)
    rest = rng.uniform(-0.5, 0.5, gaps.size).astype(np.float32)
    for sharpness in (1e-3, 0.1, 3.0):
        x = np.abs((gaps + rest.astype(float)) * np.float32(sharpness))
        each = x + np.log1p(np.exp(-2 * x)) - np.log(2)
        want = np.add.reduceat(each, TABLES.offsets)
        found = selection.marginal_logits(
            TABLES, jnp.asarray(gaps), jnp.asarray(sharpness, float), jnp.asarray(rest, float)
        )
        # 300 cells, each on a grid of 2^-21
        np.testing.assert_allclose(found, want - want.max(), rtol=1e-6, atol=1e-4)
