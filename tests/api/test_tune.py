"""`dpjax.tune`: what ran, what it costs, and what is not returned."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.api import _tune
from dpjax.api._tune_scores import Scores, default_correct, levels_of
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
    assert fields == {"params", "choice", "score", "guarantee", "solver", "steps"}
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


PARITY = dpjax.problems.RateConstrained.linear(
    3, 2, dpjax.problems.demographic_parity(2, 2, slack=0.05)
)


def grouped(rows=ROWS):
    group = jax.random.bernoulli(jax.random.key(9), 0.4, (rows,)).astype(int)
    return records(rows) | {"group": group}


def test_candidates_of_other_events_are_calibrated_to_one_budget():
    found = tuned({"learning_rate": [3.0], "steps": [8, 24], "average": ["last"]})
    training, _ = found.guarantee.bases
    assert [one.event.count for one in training] == [8, 24]
    assert found.solver.guarantee() in training
    noise = [one.event.event.event.noise_multiplier for one in training]
    assert noise[0] < noise[1]  # each as much as its own steps need
    epsilons = [one.epsilon(1e-5) for one in training]
    assert abs(epsilons[0] / epsilons[1] - 1) < 0.05
    assert 7.5 < found.guarantee.epsilon(1e-5) <= 8.0


def test_scores_on_the_training_records_are_part_of_a_run():
    found = tuned(validation=0, budget=dpjax.Budget(8.0, 1e-5, "replace_one"), num_records=None)
    (run,) = found.guarantee.bases
    training, score = run.event.events
    assert training == found.solver.guarantee().event
    assert run.epsilon(1e-5) > found.solver.guarantee().epsilon(1e-5)
    assert 7.9 < found.guarantee.epsilon(1e-5) <= 8.0
    assert score.noise_multiplier > 0
    assert found.choice["learning_rate"] == 3.0
    assert found.solver.sampler.num_records == ROWS  # none is held out


def test_rate_constrained_candidates_pay_for_their_tables_too():
    found = dpjax.tune(
        {"dual_learning_rate": [0.01, 0.3], "steps": [10]},
        dpjax.solvers.RateConstrainedSGDA,
        PARITY,
        grouped(),
        dpjax.Budget(8.0, 1e-5),
        key=jax.random.key(0),
        num_records=ROWS,
        trials=2,
        violation_weight=2.0,
    )
    training, _ = found.guarantee.bases
    assert training == found.solver.guarantee()
    assert found.solver.histogram_noise > found.solver.primal.noise_multiplier > 0
    assert 7.9 < found.guarantee.epsilon(1e-5) <= 8.0
    assert found.score < 1


@pytest.mark.slow
def test_a_sampler_of_candidates():
    def sampler(key):
        return {"learning_rate": 10.0 ** jax.random.uniform(key, (), jnp.float32, -1, 1)}

    found = tuned(lambda key: sampler(key) | {"steps": 15}, trials=2)
    assert 0.1 < found.choice["learning_rate"] < 10
    assert isinstance(found.choice["learning_rate"], float)
    assert found.solver.learning_rate == found.choice["learning_rate"]
    assert found.guarantee.bases[0] == found.solver.guarantee()


@pytest.mark.slow
def test_early_stopping_inside_one_run():
    # a rate so large that the last iterate is worse than most
    found = tuned({"learning_rate": [3.0], "steps": [16]}, trials=1, checkpoints=4)
    assert found.guarantee.runs.max_runs == 1
    assert found.steps in (4, 8, 12, 16)
    assert found.guarantee.epsilon(1e-5) <= 8.0


def test_iterates_are_those_of_the_run():
    (solver,) = solvers(1.0)
    key, data = jax.random.key(4), records()
    data = dpjax.Records(data, len(data["y"]))

    @jax.jit
    def both(solver, key):
        every = _tune._iterates(solver, PROBLEM, data, key, 5)
        return every, _tune._iterates(solver, PROBLEM, data, jax.random.clone(key), 1)

    every, last = both(solver, key)
    for one, other in zip(jax.tree.leaves(every), jax.tree.leaves(last), strict=True):
        np.testing.assert_allclose(one[-1], other[0], rtol=1e-5, atol=1e-6)
        assert one.shape[0] == 5
        assert not np.allclose(one[0], one[-1])


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("problem", [PROBLEM, PARITY], ids=["plain", "parity"])
@pytest.mark.always  # the claim
def test_one_record_moves_counts_by_no_more_than_their_noise_covers(problem, relation):
    number, data = 3, grouped(8)
    scores = Scores(problem, default_correct(problem), 8, 1.0, number, relation)
    params = {
        "w": jax.random.normal(jax.random.key(0), (number, 3, 2)),
        "b": jnp.zeros((number, 2)),
    }
    counts = jax.jit(jax.vmap(scores._counts, in_axes=(0, None)))

    def of(data):
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(counts(params, data))])

    whole, moved = of(data), []
    if relation == "add_or_remove_one":
        for i in range(8):
            moved.append(of(jax.tree.map(lambda a, i=i: jnp.delete(a, i, axis=0), data)))
    else:
        for label in (0, 1):
            for group in (0, 1):
                for sign in (-5.0, 5.0, math.nan):
                    changed = {
                        "x": data["x"].at[0].set(sign),
                        "y": data["y"].at[0].set(label),
                        "group": data["group"].at[0].set(group),
                    }
                    moved.append(of(changed))
    sensitivity = max(np.linalg.norm(whole - one) for one in moved)
    # of the event's noise multiplier 1, doubled by accountants under replace-one
    covered = scores._stddev(1.0) * (2 if relation == "replace_one" else 1)
    assert 0.6 * covered < sensitivity <= covered * (1 + 1e-9)


def test_a_count_does_not_depend_on_the_number_of_rows():
    """By the shape of a batch XLA adds products in another order: ties would go the other way."""
    rng = np.random.default_rng(2)
    w = jnp.asarray(rng.normal(size=17), jnp.float32)
    x = np.float32(rng.normal(size=(60, 17)))
    # scores of about 0, by the last bits
    x[:, 0] -= np.float32((x.astype(float) @ np.asarray(w, float)) / float(w[0]))
    problem, found = dpjax.problems.Risk.linear(lambda m, y: jnp.log1p(jnp.exp(-m * y)), 17), []
    scores = Scores(problem, default_correct(problem), 1.0, 1.0, 1, "add_or_remove_one")
    counts = jax.jit(lambda data: scores._counts(w, data)["margin"])
    for n in (60, 241, 300, 1024, 1025):
        tiled = (np.tile(row, (n, 1)) for row in x)
        data = ({"x": jnp.asarray(rows), "y": jnp.ones(n)} for rows in tiled)
        found.append([int(counts(one)) / n for one in data])
    assert np.ptp(found, axis=0).max() == 0
    assert len(set(found[0])) == 2


def test_scores_have_the_noise_that_they_declare():
    scores = Scores(PROBLEM, default_correct(PROBLEM), 100.0, 1.0, 1, "add_or_remove_one")
    data = records(10)
    params = jax.tree.map(lambda a: a[None], PROBLEM.init)
    keys = jax.random.split(jax.random.key(0), 4000)
    draw = jax.jit(jax.vmap(lambda key: scores(params, data, 5.0, key)[1]))
    margins = (np.asarray(draw(keys)) - 0.5) * 200
    declared = scores.guarantee(5.0).event.noise_multiplier
    assert declared == 5.0
    assert 0.93 < margins.std() / math.sqrt(declared**2 + 1 / 12) < 1.07


def grade(params, records):
    """Between 0 and 1, and at times neither."""
    return records["x"][:, 0] + params["b"][0]


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("problem", [PROBLEM, PARITY], ids=["plain", "parity"])
def test_grades_are_counted_in_steps_with_noise_in_the_same(problem, relation):
    levels = levels_of(grade, problem, grouped(8), 8)
    scores = Scores(problem, grade, 8, 1.0, 1, relation, levels)
    assert levels == 256
    data = grouped(8) | {"x": jnp.zeros((8, 3)).at[:, 0].set(jnp.linspace(0, 1, 8))}
    params = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}

    def margin(value):
        changed = data | {"x": data["x"].at[0, 0].set(value)}
        return int(scores._counts(params, changed)["margin"])

    values = (-9.0, 0.0, 0.5, 1.0, 9.0, math.nan, math.inf, -math.inf)
    margins = np.array([margin(value) for value in values])
    assert np.ptp(margins) == 2 * levels  # replaced; the event is doubled
    fewer = jax.tree.map(lambda a: a[1:], data)
    without = int(scores._counts(params, fewer)["margin"])
    assert np.abs(margins - without).max() == levels

    keys = jax.random.split(jax.random.key(0), 3000)
    counts = {"margin": jnp.int32(5), "table": jnp.zeros((2, 2), jnp.int32)}
    noisy = jax.jit(jax.vmap(lambda key: scores._noisy(counts, 3.0, key)))(keys)
    for name, stddev in (("margin", 3.0 * levels), ("table", 3.0)):
        assert 0.93 < float(jnp.std(noisy[name].astype(float))) / stddev < 1.07
    both = np.corrcoef(noisy["margin"], noisy["table"][:, 0, 0])
    assert abs(both[0, 1]) < 0.1
    key = jax.random.key(1)
    place, score = scores(jax.tree.map(lambda a: a[None], params), data, 0.0, key)
    exact = float(np.mean(np.round(np.linspace(0, 1, 8) * levels) / levels))
    less = scores.weight * problem.violation(params, data) if problem is PARITY else 0.0
    assert abs(float(score) - (exact - float(less))) < 1e-5
    assert int(place) == 0


def test_levels_are_few_where_records_are_many():
    assert levels_of(default_correct(PROBLEM), PROBLEM, records(8), 8) == 1
    assert levels_of(grade, PROBLEM, records(8), 2**26) == 16
    assert 2**26 * 16 <= 2**31 - 1


def test_grades_that_are_not_one_a_record_are_refused():
    """Labels [n, 1] make a table [n, n], whose sum one record moves by up to 2 n."""

    def broadcast(params, records):
        return records["x"][:, :1].T * records["y"][:, None] > 0

    with pytest.raises(ValueError, match=r"shape \(8, 8\).*drop their last axis"):
        levels_of(broadcast, PROBLEM, records(8), 8)
    scores = Scores(PROBLEM, broadcast, 8, 1.0, 1, "add_or_remove_one")
    with pytest.raises(ValueError, match="grade for each"):
        scores._counts(PROBLEM.init, records(8))
    with pytest.raises(ValueError, match="another type"):
        levels_of(lambda *_: {}, PROBLEM, records(8), 8)


@pytest.mark.parametrize("link", ["logistic", "huber", "squared"])
def test_linear_models_say_what_is_right(link):
    problem = dpjax.problems.LinearModel(link, 3, 2.0, label_bound=2.0, intercept=1.0)
    data = {"x": jnp.eye(3)[jnp.array([0, 0, 1, 2])], "y": jnp.array([1.0, -2.0, 0.5, jnp.nan])}
    found = default_correct(problem)(jnp.array([1.0, 0.0, 0.0, 0.5]), data)
    if link == "logistic":
        np.testing.assert_array_equal(found[:3], [True, False, True])
    else:
        np.testing.assert_allclose(found[:3], 1 - np.sqrt([0.25, 1.75, 0.0]), atol=1e-6)


def test_the_score_is_accuracy_less_the_excess():
    data = grouped(4000)
    scores = Scores(PARITY, default_correct(PARITY), 4000, 2.0, 1, "add_or_remove_one")
    params = {"w": jnp.array([[0.0, 1.0], [0.0, -1.0], [0.0, 0.5]]), "b": jnp.zeros(2)}
    data["group"] = (data["x"][:, 0] > 0).astype(int)  # disparity by construction
    found = float(scores(jax.tree.map(lambda a: a[None], params), data, 0.0, jax.random.key(0))[1])
    assert PARITY.violation(params, data) > 0.2
    right = 1 - PARITY.error(params, data) - 2 * PARITY.violation(params, data)
    assert math.isclose(found, right, abs_tol=1e-4)


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


@pytest.mark.slow
def test_linear_risk_and_its_margin():
    data = records()
    data["y"] = 2.0 * data["y"] - 1
    problem = dpjax.problems.Risk.linear(lambda m, y: jax.nn.softplus(-m * y), 3, lipschitz=1.0)
    found = tuned(problem=problem, data=data)
    assert float(jnp.mean((data["x"] @ found.params) * data["y"] > 0)) > 0.8


@pytest.mark.slow
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
        ({"candidates": {"noise_multiplier": [1.0]}}, "calibration"),
        ({"checkpoints": 4}, "divide the steps"),
        ({"num_records": ROWS - 1}, "num_records must bound the records"),
        ({"violation_weight": -1.0}, "violation_weight"),
        ({"candidates": {"steps": []}}, "at least one"),
        ({"candidates": solvers(1.0), "budget": dpjax.Budget(8.0, 1e-5, "replace_one")}, "under"),
        ({"problem": dpjax.problems.Risk(lambda w, r: w @ r["x"], jnp.zeros(3))}, "correct"),
        ({"score": lambda params: jnp.nan, "shape": 1.0}, "finite score"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        tuned(**options)


LOGISTIC = dpjax.problems.LinearModel("logistic", 3)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            dpjax.solvers.FrankWolfe,
            {"candidates": [LOGISTIC]},
            "no noise_multiplier to be replaced",
        ),
        (dict, {}, "make solvers for a finite budget, got dict"),
        (functools.partial(dict), {"epsilon": math.inf}, "finite budget, got functools.partial"),
        (functools.partial(dict), {"candidates": []}, "by name or from a function of a key"),
        (dpjax.solvers.ObjectivePerturbation, {"epsilon": math.inf}, "finite budget"),
        (dpjax.solvers.ObjectivePerturbation, {"validation": 0.0}, "use validation > 0"),
        (dpjax.solvers.ObjectivePerturbation, {"checkpoints": 2}, "checkpoints needs"),
    ],
)
def test_refuses_solvers_of_another_noise(kind, options, message):
    budget = dpjax.Budget(options.pop("epsilon", 1.0), 1e-5)
    options = {"candidates": {"lam": [3.0]}, "num_records": ROWS} | options
    with pytest.raises(TypeError, match=message):
        dpjax.tune(
            options.pop("candidates"),
            kind,
            LOGISTIC,
            records(),
            budget,
            key=jax.random.key(0),
            **options,
        )


@pytest.mark.slow  # compiles a float64 solver
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_solvers_that_are_made_for_a_budget(relation):
    kind, data = dpjax.solvers.ObjectivePerturbation, records()
    problem = dpjax.problems.LinearModel("huber", 3, threshold=1.0)
    data["y"] = 2.0 * data["y"] - 1
    budget = dpjax.Budget(4.0, 1e-5, relation)
    options = {"key": jax.random.key(1), "num_records": ROWS, "trials": 4}
    found = dpjax.tune({"lam": [10.0, 1e7]}, kind, problem, data, budget, **options)
    assert found.choice == {"lam": 10.0}
    assert 3.99 < found.guarantee.epsilon(1e-5) <= 4.0
    training, scoring = found.guarantee.bases
    assert found.solver.guarantee() in training
    assert scoring.event.noise_multiplier > 0
    assert found.solver.lam == 10.0
    assert found.solver.guarantee().epsilon(1e-5) < 4.0
    assert np.mean(default_correct(problem)(found.params, data)) > 0.25
    with dpjax.Ledger(dpjax.Budget(8.0, 1e-4, relation)) as ledger:
        ledger.spend(found.guarantee)


def test_candidates_that_cost_the_same_at_one_noise_alone_are_all_paid_for():
    def kind(problem, num_records, budget, *, power):
        part = dataclasses.replace(budget, epsilon=budget.epsilon**power)
        return dpjax.solvers.DPSGD.for_budget(problem, num_records, part, steps=5)

    one = dpjax.Budget(1.0, 1e-5)  # whose powers are one
    options = {"key": jax.random.key(0), "num_records": ROWS, "trials": 2}
    found = dpjax.tune({"power": [1.0, 0.5]}, kind, PROBLEM, records(), one, **options)
    assert len(found.guarantee.bases[0]) == 2
    assert 0.99 < found.guarantee.epsilon(1e-5) <= 1.0


def test_blocks_shrink_with_batches_on_cpu(monkeypatch):
    def solvers_of(slots):
        sampler = dpjax.sampling.PoissonSampler(0.01, 3, 10_000, capacity=slots)
        return [dpjax.solvers.DPSGD(sampler, 1.0, 1.0, 1.0, 1.0)]

    wide = dpjax.problems.Risk.linear(lambda m, y: m * y, 1000)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    sizes = [_tune._block(solvers_of(slots), wide, 10_000) for slots in (10, 32, 128, 4096)]
    assert sizes == [16, 8, 2, 1]
    everyone = [dpjax.solvers.DPSGD(dpjax.sampling.FullBatch(3), 1.0, 1.0, 1.0, 1.0)]
    assert _tune._block(everyone, wide, 10_000) == 1
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _tune._block(everyone, wide, 10_000) == 16
