"""`dpjax.release`: one call from a table to answers and synthetic records."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.queries import Dense, Domain, Marginals
from dpjax.solvers import GaussianFit
from dpjax.testing import count_false_alarm

DOMAIN = Domain({"sex": ["F", "M"], "race": 3, "age": ["young", "old"]})
WORKLOAD = Marginals.all_kway(DOMAIN, 2)
BUDGET = dpjax.Budget(1.0, 1e-6)
METHODS = ("gaussian_fit", "frank_wolfe", "mirror_descent", "saddle", "mwem", "histogram")


def _codes(n=400, seed=0):
    rng = np.random.default_rng(seed)
    sex = rng.integers(0, 2, n)
    return np.stack([sex, rng.integers(0, 3, n), (sex + rng.integers(0, 2, n)) // 2], axis=1)


def _frame(codes):
    class Frame:
        """As much of a data frame as is used."""

        columns = ("id", *DOMAIN.attributes)

        def __getitem__(self, name):
            return codes[:, 0] if name == "id" else DOMAIN.decode(codes)[name]

    return Frame()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_a_distribution_within_the_budget(method):
    released = dpjax.release(WORKLOAD, _codes(), BUDGET, key=jax.random.key(0), method=method)
    assert released.method == method
    assert released.answers.shape == (WORKLOAD.num_queries,)
    assert released.log_probs.shape == (DOMAIN.universe_size,)
    assert float(jnp.exp(released.log_probs).sum()) == pytest.approx(1, abs=1e-5)
    assert 0 < released.guarantee.epsilon(BUDGET.delta) <= BUDGET.epsilon
    answers = WORKLOAD.answers(jnp.exp(released.log_probs))
    np.testing.assert_allclose(released.answers, answers, atol=1e-5)
    # what is chosen by itself is the fit
    chosen = "auto" if method == "gaussian_fit" else method
    again = dpjax.release(WORKLOAD, _codes(), BUDGET, key=jax.random.key(0), method=chosen)
    assert again.method == method
    np.testing.assert_array_equal(released.answers, again.answers)
    other = dpjax.release(WORKLOAD, _codes(), BUDGET, key=jax.random.key(1), method=method)
    assert np.any(np.asarray(released.answers) != np.asarray(other.answers))


def test_tables_of_all_kinds_are_one_table():
    codes = _codes()
    tables = (codes, DOMAIN.decode(codes), _frame(codes), codes.tolist())
    answers = [
        np.asarray(dpjax.release(WORKLOAD, table, BUDGET, key=jax.random.key(3)).answers)
        for table in tables
    ]
    for other in answers[1:]:
        np.testing.assert_array_equal(answers[0], other)


@pytest.mark.parametrize("systematic", [False, True])
def test_samples_follow_the_released_distribution(systematic):
    released = dpjax.release(WORKLOAD, _codes(), BUDGET, key=jax.random.key(0))
    n = 20_000
    sample = released.sample(jax.random.key(4), n, systematic=systematic)
    assert sample.shape == (n, 3)
    assert jnp.issubdtype(sample.dtype, jnp.integer)
    counts = np.asarray(WORKLOAD.histogram(sample))
    expected = n * np.exp(np.asarray(released.log_probs, np.float64))
    if systematic:
        assert np.abs(counts - expected).max() <= 1 + 1e-5 * n
        # in random order: neighbours in the sample are as mixed as the whole
        assert len(np.unique(DOMAIN.cells(sample[:50]))) > 3
    else:
        # Bernstein, 12 cells
        spread = np.sqrt(2 * expected * math.log(24 / 1e-9)) + math.log(24 / 1e-9)
        count_false_alarm(1e-9)
        assert np.all(np.abs(counts - expected) <= spread)
        assert np.abs(counts - np.roll(expected, 1)).max() > spread.max()
    decoded = released.decode(sample)
    assert set(decoded) == set(DOMAIN.attributes)
    assert set(np.unique(decoded["sex"])) == {"F", "M"}


def test_error_bars_are_those_of_the_best_linear_estimate():
    released = dpjax.release(WORKLOAD, _codes(), BUDGET, key=jax.random.key(0))
    solver = GaussianFit.for_budget(dpjax.problems.QueryRelease(WORKLOAD), 400, BUDGET)
    sigma = np.asarray(solver.stddevs())
    # least squares over all measured cells, the total known: a basis of the sums of distributions
    dense = np.stack([np.asarray(WORKLOAD.answers(row)) for row in np.eye(12)], axis=1)
    centred = dense @ (np.eye(12) - 1 / 12)
    weighted = centred / sigma[:, None]
    covariance = centred @ np.linalg.pinv(weighted.T @ weighted, rcond=1e-5) @ centred.T
    np.testing.assert_allclose(released.stddev, np.sqrt(np.diag(covariance)), rtol=1e-3)


def test_without_noise_it_is_exact_and_says_that_it_is_not_private():
    codes = _codes()
    budget = dpjax.Budget(math.inf, 1e-6)
    released = dpjax.release(WORKLOAD, codes, budget, key=jax.random.key(0))
    assert "NOT PRIVATE" in released.reason
    assert released.guarantee.epsilon(1e-6) == math.inf
    np.testing.assert_allclose(released.answers, WORKLOAD.answers_of_records(codes), atol=1e-6)
    for method in ("gaussian_fit", "frank_wolfe", "mirror_descent", "mwem"):
        other = dpjax.release(WORKLOAD, codes, budget, key=jax.random.key(0), method=method)
        assert other.guarantee.epsilon(1e-6) == math.inf
        error = np.abs(np.asarray(other.answers) - np.asarray(released.answers)).max()
        assert error < 0.1, (method, error)


@pytest.mark.slow
def test_auto_looks_at_sizes_alone_and_says_why():
    few = dpjax.release(WORKLOAD, _codes(40), dpjax.Budget(0.3, 1e-6), key=jax.random.key(0))
    assert few.method == "gaussian_fit"
    triple = Marginals.all_kway(DOMAIN, 3)
    one = dpjax.release(triple, _codes(40), dpjax.Budget(0.3, 1e-6), key=jax.random.key(0))
    assert "one and two attributes" in one.reason
    assert bool(np.isnan(np.asarray(one.stddev)).all())
    # many queries on few cells: noise on the cells is less
    rng = np.random.default_rng(0)
    dense = Dense(rng.choice([0, 1], (60, 6)))
    cells = rng.integers(0, 6, 500)
    chosen = dpjax.release(dense, cells, BUDGET, key=jax.random.key(0))
    assert chosen.method == "histogram"
    assert "predicted root mean square error" in chosen.reason
    assert chosen.sample(jax.random.key(1), 5).shape == (5,)
    with pytest.raises(ValueError, match="over a domain"):
        chosen.decode(np.zeros((1, 1), int))
    zeros = dpjax.release(WORKLOAD, np.zeros((400, 3), int), BUDGET, key=jax.random.key(0))
    mixed = dpjax.release(WORKLOAD, _codes(), BUDGET, key=jax.random.key(0))
    assert (zeros.method, zeros.reason) == (mixed.method, mixed.reason)


def test_under_add_or_remove_one_the_normaliser_is_public():
    budget = dpjax.Budget(2.0, 1e-6, "add_or_remove_one")
    with pytest.raises(ValueError, match="num_records is required under add_or_remove_one"):
        dpjax.release(WORKLOAD, _codes(), budget, key=jax.random.key(0))
    truth = np.asarray(WORKLOAD.answers_of_records(_codes()))
    released = dpjax.release(WORKLOAD, _codes(), budget, key=jax.random.key(0), num_records=500)
    assert released.guarantee.epsilon(1e-6) <= 2.0
    assert np.abs(np.asarray(released.answers) - truth).max() < 0.1


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"data": np.zeros((0, 3), int)}, ValueError, "n >= 1|at least one"),
        ({"data": np.full((4, 3), 2)}, ValueError, "sex"),
        ({"data": -np.ones((4, 3), int)}, ValueError, "sex"),
        ({"data": np.full((4, 3), 0.5)}, (TypeError, ValueError), "integer"),
        ({"data": {"sex": ["F"], "race": [0]}}, ValueError, "age"),
        ({"data": {"sex": ["X"], "race": [0], "age": ["old"]}}, ValueError, "sex"),
        ({"budget": 1.0}, TypeError, "Budget"),
        ({"method": "best"}, ValueError, "method must be one of"),
        ({"key": None}, TypeError, "key is required"),
        ({"num_records": 0}, ValueError, "num_records must be >= 1"),
        ({"steps": 3}, ValueError, "options need a method"),
        ({"workload": "adult"}, TypeError, "workload"),
    ],
)
def test_bad_input_is_named(change, error, match):
    arguments = {"workload": WORKLOAD, "data": _codes(8), "budget": BUDGET} | {
        "key": jax.random.key(0)
    }
    arguments |= change
    with pytest.raises(error, match=match):
        dpjax.release(
            arguments.pop("workload"), arguments.pop("data"), arguments.pop("budget"), **arguments
        )


def test_a_universe_too_large_says_how_large_and_what_to_do():
    domain = Domain({f"a{i}": 2 for i in range(30)})
    with pytest.raises(ValueError, match=r"1,073,741,824 cells.*32 GiB.*drop attributes"):
        dpjax.problems.QueryRelease(Marginals.all_kway(domain, 1))


@pytest.mark.slow
def test_all_three_way_marginals_of_adult_reach_their_goals_untuned():
    codes, domain = dpjax.datasets.adult_reduced()
    workload = Marginals.all_kway(domain, 3)
    truth = np.asarray(workload.answers_of_records(codes))
    n = len(codes)
    for epsilon, goal in ((0.1, 0.0155), (0.25, 0.0070), (0.5, 0.0038), (1.0, 0.0020)):
        budget = dpjax.Budget(epsilon, 1 / n**2, "replace_one")
        errors = []
        for seed in range(5):
            released = dpjax.release(workload, codes, budget, key=jax.random.key(seed))
            assert released.method == "gaussian_fit"
            errors.append(np.abs(np.asarray(released.answers) - truth).max())
        assert np.median(errors) <= goal, (epsilon, errors)
