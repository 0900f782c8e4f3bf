"""`dpjax.tune`: what ran, what it costs, and what is not returned."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.api import _tune
from dpjax.privacy import SelectionGuarantee

# Each call of `tune` calibrates two noises and compiles a block of runs: seconds, and no less.

ROWS = 600


def records(rows=ROWS):
    x = jax.random.normal(jax.random.key(1), (rows, 3))
    x /= jnp.maximum(1.0, jnp.linalg.norm(x, axis=1, keepdims=True))
    return {"x": x, "y": (x @ jnp.array([1.0, -1.0, 0.5]) > 0).astype(int)}


PROBLEM = dpjax.problems.RateConstrained.linear(num_features=3, num_classes=2)
GRID = {"learning_rate": [1e-6, 3.0], "steps": [15], "average": ["last"]}


def tuned(candidates=GRID, problem=PROBLEM, data=None, budget=None, **options):
    options = {"key": jax.random.key(0), "num_records": ROWS, "trials": 4} | options
    return dpjax.tune(
        candidates,
        dpjax.solvers.DPSGD,
        problem,
        records() if data is None else data,
        budget or dpjax.Budget(8.0, 1e-5),
        **options,
    )


@pytest.fixture(scope="module")
def result():
    return tuned()


def test_the_guarantee_is_that_of_what_ran_and_within_budget(result):
    assert isinstance(result.guarantee, SelectionGuarantee)
    training, scoring = result.guarantee.bases
    assert training == result.solver.guarantee()
    assert scoring.event.noise_multiplier > 0
    assert 7.9 < result.guarantee.epsilon(1e-5) <= 8.0
    assert training.epsilon(1e-5) < 8.0
    assert result.guarantee.runs.max_runs == 16


def test_the_better_candidate_wins(result):
    assert result.choice == {"learning_rate": 3.0, "steps": 15, "average": "last"}
    assert result.solver.learning_rate == 3.0
    assert float(PROBLEM.error(result.params, records())) < 0.2


def test_the_number_of_runs_and_the_losers_are_absent(result):
    fields = set(vars(result))
    assert fields == {"params", "choice", "score", "guarantee", "solver"}
    assert jax.tree.map(jnp.shape, result.params) == jax.tree.map(jnp.shape, PROBLEM.init)
    assert isinstance(result.score, float)
    assert np.ndim(result.solver.learning_rate) == 0
    # what is public is the law: equal for another draw of K
    other = tuned(key=jax.random.key(5))
    assert other.guarantee == result.guarantee


class Spy:
    """Stands for the compiled block: counts runs, and says which scores they have."""

    def __init__(self, scores):
        self.scores, self.calls, self.seen = scores, 0, 0

    def __call__(self, solvers, keys, *data):
        first = self.seen
        self.calls, self.seen = self.calls + 1, first + keys.shape[0]
        return jnp.arange(first, self.seen), self.scores[first : self.seen]


def solvers(*rates, **options):
    return [
        dpjax.solvers.DPSGD.for_budget(
            PROBLEM,
            ROWS,
            dpjax.Budget(8.0, 1e-5),
            noise_multiplier=2.0,
            learning_rate=rate,
            steps=10,
            **options,
        )
        for rate in rates
    ]


@pytest.mark.parametrize("counted", [1, 3, 40])
def test_all_runs_are_made_and_only_those_that_count_can_win(counted):
    scores = np.arange(48.0)  # later runs are better
    spy = Spy(scores)
    drawn = np.arange(40) % 2
    winner, best, params = _tune._best(
        solvers(1.0, 2.0), drawn, counted, jax.random.key(0), spy, ()
    )
    assert spy.calls == 3  # whatever K is
    assert (winner, best, int(params)) == ((counted - 1) % 2, counted - 1, counted - 1)


def test_nan_scores_lowest_and_outside_the_mask_nothing_is_seen():
    scores = np.array([math.nan, 1.0, math.nan, 9.0])
    few = solvers(1.0)
    assert _tune._best(few, np.zeros(4, int), 3, jax.random.key(0), Spy(scores), ())[1] == 1.0
    assert _tune._best(few, np.zeros(4, int), 1, jax.random.key(0), Spy(scores), ())[1] == -math.inf


def test_each_structure_runs_for_every_draw():
    mixed = solvers(1.0) + solvers(1.0, average="last")
    spy = Spy(np.arange(8.0))
    winner, best, _ = _tune._best(mixed, np.array([0, 1, 0, 1]), 4, jax.random.key(0), spy, ())
    assert spy.calls == 2
    assert (winner, best) == (1, 7.0)  # the second structure's last draw


def test_draws_are_the_same_with_types_of_any_size():
    first, second, third = (jax.random.key(seed) for seed in range(3))
    held = _tune._split({"i": np.arange(20)}, 0.3, "add_or_remove_one", first)[1]["i"]
    assert held.tolist() == [5, 9, 11, 19]
    assert _tune._draw_candidates(7, 8, second).tolist() == [2, 1, 5, 5, 2, 6, 5, 5]
    assert _tune._draw_runs(dpjax.privacy.RunsLaw(16.0, 1.0, max_runs=64), third) == 17


def test_ties_are_broken_at_random():
    won = {
        _tune._best(solvers(1.0, 2.0), np.array([0, 1]), 2, key, Spy(np.zeros(2)), ())[0]
        for key in jax.random.split(jax.random.key(0), 12)
    }
    assert won == {0, 1}


def test_a_coin_does_not_depend_on_the_other_records():
    data = {"i": np.arange(50)}
    train, held = _tune._split(data, 0.3, "replace_one", jax.random.key(0))
    assert held["i"].size == 15
    assert sorted([*train["i"], *held["i"]]) == list(range(50))
    sizes = {
        _tune._split(data, 0.3, "add_or_remove_one", key)[1]["i"].size
        for key in jax.random.split(jax.random.key(0), 8)
    }
    assert len(sizes) > 2  # a fixed share of n would move other records when n changes


def test_scores_have_the_noise_that_they_declare():
    one = _tune._score_guarantee(5.0, "add_or_remove_one")
    two = _tune._score_guarantee(5.0, "replace_one")
    # one record moves right less wrong by 1 when it comes, by 2 when it changes
    assert math.isclose(
        two.epsilon(1e-5), dpjax.Guarantee(type(one.event)(2.5)).epsilon(1e-5), rel_tol=1e-3
    )


def test_a_list_of_solvers_a_public_score_and_replace_one():
    def score(params):
        return -PROBLEM.mean_loss(params, records(100))

    budget = dpjax.Budget(8.0, 1e-5, "replace_one")
    made = [
        dpjax.solvers.DPSGD.for_budget(PROBLEM, ROWS, budget, learning_rate=rate, steps=15)
        for rate in (1e-6, 3.0)
    ]
    found = tuned(made, budget=budget, score=score, num_records=None, constant_time=False)
    assert found.choice == 1
    assert len(found.guarantee.bases) == 1  # a public score costs nothing
    assert found.guarantee.epsilon(1e-5) <= 8.0


def test_linear_risk_and_its_margin():
    data = records()
    data["y"] = 2.0 * data["y"] - 1
    problem = dpjax.problems.Risk.linear(lambda m, y: jax.nn.softplus(-m * y), 3, lipschitz=1.0)
    found = tuned(problem=problem, data=data)
    assert float(jnp.mean((data["x"] @ found.params) * data["y"] > 0)) > 0.8


def test_no_privacy_is_a_plain_sweep_and_says_so():
    found = tuned(budget=dpjax.Budget(math.inf, 1e-5))
    assert "NOT PRIVATE" in repr(found)
    assert found.guarantee.epsilon(1e-5) == math.inf
    assert found.choice["learning_rate"] == 3.0
    assert found.solver.noise_multiplier == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0.5}, "trials"),
        ({"shape": -1.0}, "shape"),
        ({"validation": 1e-4}, "part empty"),
        ({"validation": 1.0}, "validation"),
        ({"num_records": None}, "num_records is required"),
        ({"candidates": {"steps": [5, 6]}}, "one event"),
        ({"candidates": {"steps": []}}, "at least one"),
        ({"candidates": solvers(1.0), "budget": dpjax.Budget(8.0, 1e-5, "replace_one")}, "under"),
        ({"problem": dpjax.problems.Risk(lambda w, r: w @ r["x"], jnp.zeros(3))}, "correct"),
        ({"score": lambda params: jnp.nan, "shape": 1.0}, "finite score"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        tuned(**options)


def test_refuses_solvers_of_another_noise():
    with pytest.raises(TypeError, match="noise_multiplier"):
        dpjax.tune(
            GRID,
            dpjax.solvers.GaussianFit,
            PROBLEM,
            records(),
            dpjax.Budget(1.0, 1e-5),
            key=jax.random.key(0),
        )
