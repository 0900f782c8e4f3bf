"""What changes nothing in query release: order, signs, constants, scale and sweeps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import Budget, solve
from dpjax.core import register_dataclass
from dpjax.geometry import L1Ball
from dpjax.problems import QueryRelease
from dpjax.queries import Dense, Domain, Marginals, QuerySensitivity
from dpjax.sampling import FullBatch
from dpjax.solvers import FrankWolfeRelease, GaussianFit, MirrorDescentRelease

M, K, N, STEPS = 5, 6, 40, 30
QUERIES = np.random.default_rng(1).uniform(-1, 1, (M, K))
RECORDS = np.random.default_rng(2).choice(K, N, p=np.arange(1, K + 1) / 21)
PERMUTED = np.random.default_rng(3).permutation(K)
ORDER = np.random.default_rng(4).permutation(M)


@register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Bounded(Dense):
    """With one sensitivity for all that is compared, so that it compiles once."""

    def sensitivity(self, relation):
        del relation
        return QuerySensitivity(100.0, 100.0, 100.0, 100.0, 100.0)


@jax.jit
def _run(problem, alpha, step, records):
    fields = {"num_records": float(N), "score_range": 100.0, "alpha": alpha}
    frank_wolfe = FrankWolfeRelease(FullBatch(STEPS), 0.0, step, output="average", **fields)
    mirror = MirrorDescentRelease(FullBatch(STEPS), 0.0, offset=3.0, **fields)
    made = [solve(one, problem, records, key=jax.random.key(7)) for one in (frank_wolfe, mirror)]
    return [(one.params.log_probs, one.info.index, one.info.signs[:, 0]) for one in made]


def run(queries=QUERIES, records=RECORDS, alpha=0.3, step=0.4):
    """Distributions, queries and signs of Frank-Wolfe and of mirror descent, without noise."""
    problem = QueryRelease(Bounded(queries))
    return _run(problem, alpha, step, jnp.asarray(records, jnp.int32))


def check(got, want, cells=None, queries=None, sign=1):
    for (laws, index, signs), (laws_want, index_want, signs_want) in zip(got, want, strict=True):
        cells = np.arange(K) if cells is None else cells
        np.testing.assert_allclose(laws, laws_want[cells], atol=1e-4)
        if queries is not None:
            np.testing.assert_array_equal(queries[index], index_want)
            np.testing.assert_array_equal(sign * signs, signs_want)


@pytest.mark.slow
def test_order_of_cells():
    check(run(QUERIES[:, PERMUTED], np.argsort(PERMUTED)[RECORDS]), run(), PERMUTED, np.arange(M))
    with pytest.raises(AssertionError):  # of the cells alone
        check(run(QUERIES[:, PERMUTED], RECORDS), run(), PERMUTED)


def test_order_signs_and_constants_of_queries():
    check(run(QUERIES[ORDER]), run(), queries=ORDER)
    check(run(-QUERIES), run(), queries=np.arange(M), sign=-1)
    check(run(QUERIES + np.arange(M)[:, None] / 4), run(), queries=np.arange(M))
    with pytest.raises(AssertionError):
        check(run(QUERIES * np.arange(1, M + 1)[:, None]), run())


def test_scale_of_queries_and_of_the_entropy():
    """softmax(q / alpha) is that of c q and c alpha; steps are in units of 1 / query."""
    check(run(3 * QUERIES, alpha=0.9, step=0.4 / 3), run(), queries=np.arange(M))
    with pytest.raises(AssertionError):
        check(run(3 * QUERIES, alpha=0.3), run())


@pytest.mark.slow
def test_a_replicated_query_and_a_merged_cell():
    twice = run(np.concatenate([QUERIES, QUERIES[2:3]]))
    check(twice, run(), queries=np.append(np.arange(M), 2))
    # cells that no query tells apart: entropy counts them, so they cannot be merged
    split = np.concatenate([QUERIES, QUERIES[:, :1]], axis=1)
    for (laws, *_), (merged, *_) in zip(run(split), run(), strict=True):
        assert np.abs(np.exp(laws[1:K]) - np.exp(merged[1:])).max() > 1e-3


@pytest.mark.slow
def test_multiplicative_weights_by_hand_draw_for_draw():
    """MWEM whose measured step is a constant one, on the distribution itself, with one key."""
    tau, step = 0.05, 0.4
    problem = QueryRelease(Dense(QUERIES))
    solver = FrankWolfeRelease(
        FullBatch(STEPS), tau, step, float(N), problem.sensitivity("replace_one").score_range
    )
    data = jnp.asarray(RECORDS, jnp.int32)
    solution = solve(solver, problem, data, key=jax.random.key(3))
    truth = QUERIES[:, RECORDS].mean(axis=1)
    law, laws = np.full(K, 1 / K), []
    for t in range(STEPS):
        gaps = truth - QUERIES @ law
        key = jax.random.fold_in(jax.random.clone(solution.state.key), t)
        drawn = int(L1Ball(M, 1 / tau).sample(key, jnp.asarray(gaps, float), 1)[0])
        assert drawn % M == solution.info.index[t]
        sign = 1 if drawn < M else -1
        assert sign == solution.info.signs[t, 0]
        law = law * np.exp(step * sign * QUERIES[drawn % M])
        law /= law.sum()
        laws.append(law)
    tail = np.mean(laws[STEPS // 2 :], axis=0)
    np.testing.assert_allclose(np.exp(solution.params.log_probs), tail, rtol=1e-4)


def _solvers(problem):
    """Of several budgets and other swept values."""
    budgets = [Budget(epsilon, 1e-5) for epsilon in (0.5, 2.0, 8.0)]
    yield [
        FrankWolfeRelease.for_budget(problem, N, budget, steps=6, alpha=0.1 * i, step_size=1.0)
        for i, budget in enumerate(budgets)
    ]
    yield [
        GaussianFit.for_budget(problem, N, budget, fit_steps=8, prior=(2.0, 0.7 + i, 0.3))
        for i, budget in enumerate(budgets)
    ]


@pytest.mark.slow  # of one field, the conformance suite shows it
def test_a_sweep_over_seeds_budgets_and_values_compiles_once():
    problem = QueryRelease(Marginals.all_kway(Domain({"a": 2, "b": 3, "c": 2}), 2))
    codes = problem.workload.domain.codes(np.arange(N, dtype=np.int32) ** 2 % 12)
    for solvers in _solvers(problem):
        traces = []

        def one(solver, seed, traces=traces):
            traces.append(None)
            return solve(solver, problem, codes, key=jax.random.key(seed)).params.answers

        alone = jax.jit(one)
        loop = [[alone(solver, seed) for seed in (0, 1)] for solver in solvers]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *solvers)
        sweep = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
        swept = sweep(stacked, jnp.arange(2))
        assert len(traces) == 2, type(solvers[0])  # one program alone, one for all
        np.testing.assert_allclose(swept, np.asarray(loop), atol=1e-3)
        # every run is another
        assert len(np.unique(np.round(np.asarray(swept).reshape(6, -1), 5), axis=0)) == 6
