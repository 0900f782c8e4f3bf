"""What Frank-Wolfe puts out of its iterates, and what it asks of a record's range."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import dpjax.testing as dpt
from dpjax import Budget, solve
from dpjax.problems import QueryRelease
from dpjax.queries import Dense, Domain, Marginals
from dpjax.sampling import FullBatch
from dpjax.solvers import FrankWolfeRelease

QUERIES = np.random.default_rng(5).uniform(-1, 1, (4, 6))  # no iterate comes back
RECORDS = np.random.default_rng(1).choice(6, 50, p=np.arange(1, 7) / 21)
STEPS, STEP = 5, 0.5


def iterates():
    """Multiplicative weights without noise, by hand: T + 1 distributions."""
    truth, weights = QUERIES[:, RECORDS].mean(axis=1), np.zeros(4)
    made = [np.full(6, 1 / 6)]
    for _ in range(STEPS):
        gaps = truth - QUERIES @ made[-1]
        worst = np.abs(gaps).argmax()
        weights[worst] += STEP * np.sign(gaps[worst])
        made.append(special.softmax(QUERIES.T @ weights))
    return np.stack(made)


PROBLEM = QueryRelease(Dense(QUERIES))


def released(output, key):
    solver = FrankWolfeRelease(FullBatch(STEPS), 0.0, STEP, 50.0, 4.0, output=output)
    return solve(solver, PROBLEM, RECORDS, key=key).params.log_probs


@pytest.mark.parametrize(
    ("output", "which"), [("last", [5]), ("average", range(6)), ("tail", [3, 4, 5])]
)
def test_outputs_are_means_of_iterates(output, which):
    want = iterates()[list(which)].mean(axis=0)
    np.testing.assert_allclose(np.exp(released(output, jax.random.key(0))), want, atol=1e-6)


def test_uniform_output_is_each_of_the_first_iterates_as_often():
    runs = 3000
    keys = jax.random.split(jax.random.key(2), runs)
    laws = np.exp(jax.jit(jax.vmap(lambda key: released("uniform", key)))(keys))
    distances = np.abs(laws[:, None] - iterates()[None]).max(axis=2)
    assert distances.min(axis=1).max() < 1e-5
    counts = np.bincount(distances.argmin(axis=1), minlength=STEPS + 1)
    assert counts[STEPS] == 0  # of T draws only the first T - 1 show
    dpt.check_counts(counts[:STEPS], np.full(STEPS, 1 / STEPS))
    with pytest.raises(AssertionError):
        dpt.check_counts(counts[:STEPS], np.array([3, 2, 2, 2, 2]) / 11)


def test_a_problem_built_under_jit_says_what_is_missing():
    def build(matrix):
        problem = QueryRelease(Dense(matrix))
        return problem.sensitivity("replace_one").score_range

    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(build)(QUERIES)


def test_a_table_of_one_cell_counts_the_records():
    """Under add-or-remove-one its answer moves, as signs of marginals are not scored centred."""
    problem = QueryRelease(Marginals(Domain({"a": 1, "b": 2}), (("a",),)))
    budget = Budget(1.0, 1e-5, "add_or_remove_one")
    solver = FrankWolfeRelease.for_budget(problem, 10, budget, steps=3, vertices="marginals")
    moved = [float(problem.answers(jnp.zeros((n, 2), int), 10)[0]) for n in (10, 11)]
    # a score is the answer times a sign
    assert solver.score_range >= 10 * 2 * (moved[1] - moved[0]) - 1e-5
    assert math.isclose(solver.score_range, 2)
    low = dataclasses.replace(solver, score_range=1.9)
    with pytest.raises(ValueError, match="score_range"):
        low.init(problem, key=jax.random.key(0))
