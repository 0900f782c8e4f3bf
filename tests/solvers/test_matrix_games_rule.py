"""Which solver the rule takes for a matrix game, and what is refused."""

import jax
import numpy as np
import pytest

import dpjax
from dpjax.privacy import Budget
from dpjax.problems import Saddle
from dpjax.sampling import FullBatch
from dpjax.solvers import DoubleOracle, NestedGame, solver_for_game

_BUDGET = Budget(1.0, 1e-6, "replace_one")


def _gap(matrix, x, y):
    x, y = np.asarray(x, float), np.asarray(y, float)
    return np.max(x @ matrix) - np.min(matrix @ y)


@pytest.mark.parametrize(
    ("d", "n", "kind", "fallback"),
    [
        (50, 30_000, NestedGame, None),
        (300, 30_000, NestedGame, None),
        (1000, 30_000, DoubleOracle, "nested"),
        (1000, 3_000, DoubleOracle, "rounds"),
        (125, 2_000, NestedGame, None),  # too few payoffs for checks to pay
        (126, 2_000, DoubleOracle, "nested"),
        (100, 1_000, NestedGame, None),
        (300, 1_500, NestedGame, None),  # noise on one payoff that hides a gap
        (300, 2_000, DoubleOracle, "nested"),
        (900, 1_500, DoubleOracle, "rounds"),  # of all payoffs nothing could be told
        (10_000, 900_000, DoubleOracle, "rounds"),
    ],
)
def test_the_rule_takes_public_sizes(d, n, kind, fallback):
    solver = solver_for_game(Saddle.matrix_game((d, d)), n, _BUDGET)
    assert type(solver) is kind
    assert getattr(solver, "fallback", None) == fallback
    assert solver.guarantee().epsilon(1e-6) <= 1.0


@pytest.mark.slow  # 1,000 records of 10,000 payoffs
def test_a_dense_game_of_few_records_is_not_worse_than_uniform_play():
    rng = np.random.default_rng(100)
    mean = rng.normal(size=(100, 100)).clip(-2, 2) / 2
    payoffs = np.clip(mean + 0.3 * rng.normal(size=(1_000, 100, 100)), -1, 1).astype("float32")
    problem = Saddle.matrix_game((100, 100))
    solver = solver_for_game(problem, 1_000, _BUDGET)
    mean = payoffs.mean(axis=0, dtype=float)
    uniform = _gap(mean, np.full(100, 0.01), np.full(100, 0.01))
    for seed in range(6):
        found = dpjax.solve(solver, problem, {"A": payoffs}, key=jax.random.key(seed))
        assert _gap(mean, *found.params) < 1.2 * uniform  # up to 3.8 times by an oracle's check


def test_what_is_no_game_is_refused():
    curved = Saddle(lambda x, y, z: x @ x - y @ y, (2, 2), 2.0)
    with pytest.raises(ValueError, match=r"smoothness must be \(0, 0\)"):
        solver_for_game(curved, 100, _BUDGET)
    unstated = Saddle(lambda x, y, z: z * x[0] * y[0], (2, 2), 2.0, smoothness=(0.0, 0.0))
    with pytest.raises(ValueError, match="payoff_interval"):
        NestedGame.for_budget(unstated, 100, _BUDGET)
    with pytest.raises(ValueError, match="interval"):
        NestedGame(FullBatch(1), 1.0, 10.0, (1.0, 1.0))
    with pytest.raises(TypeError, match="FullBatch"):
        DoubleOracle(FullBatch(2), 1.0, 10.0)
