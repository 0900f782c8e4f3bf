"""Least squares from noisy second moments: the change of one record, the noise and the solution."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import dpjax
from dpjax.privacy import Budget
from dpjax.problems import LinearModel
from dpjax.solvers import ObjectivePerturbation, SufficientStatistics, linear_model_solver
from dpjax.solvers.erm._moments import statistics_change

N, P = 400, 3


def records(seed=0, n=N, p=P):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = x @ np.ones(p) / np.sqrt(p) + 0.1 * rng.normal(size=n)
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def quiet(ridge=0.5, **fields):
    """A solver with hardly any noise."""
    fields = {"gram_stddev": 1e-9, "moment_stddev": 1e-9} | fields
    return SufficientStatistics(dpjax.sampling.FullBatch(1), ridge=ridge, **fields)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
@pytest.mark.parametrize(("a", "b"), [(1.0, 0.3), (1.0, 1.0), (1.0, 1.4), (1.0, 2.0), (0.2, 1.0)])
def test_the_change_is_attained_on_a_grid_and_never_exceeded(relation, a, b):
    cosines, sizes = np.linspace(-1.0, 1.0, 201), np.linspace(0.0, 1.0, 9)
    largest = 0.0
    for one, other in itertools.product(sizes, sizes if relation == "replace_one" else (0.0,)):
        inner = np.abs(one * other * cosines)
        gram = one**4 + other**4 - 2 * inner**2
        moment = one**2 + other**2 + 2 * inner  # labels of opposite signs, or inputs
        largest = max(largest, float(np.sqrt(a**2 * gram + b**2 * moment).max()))
    bound = statistics_change(a, b, relation)
    assert 0.9999 * bound < largest <= bound * (1 + 1e-12)


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize("radius", [0.1, 1.0, 30.0])
def test_the_budget_is_met_and_shared_as_well_as_it_can_be(relation, delta, radius):
    problem = LinearModel("squared", P, radius, feature_bound=2.0, label_bound=0.5)
    solver = SufficientStatistics.for_budget(problem, 1000, Budget(1.0, delta, relation))
    assert 0.999 < solver.guarantee().epsilon(delta) <= 1.0
    edge = 2.0 * radius / 0.5

    def noise(log_ratio):
        ratio = np.exp(log_ratio)
        share = edge**2 / 2 + 1 / ratio**2
        return statistics_change(1.0, ratio, relation) * np.sqrt(share)

    best = optimize.minimize_scalar(noise, bounds=(-8.0, 8.0), method="bounded")
    chosen = np.log(solver.gram_stddev / solver.moment_stddev)
    assert noise(chosen) <= best.fun * (1 + 1e-6)


def test_the_noise_of_a_gradient_is_that_of_the_page():
    problem = LinearModel("squared", P, 1.0)
    solver = SufficientStatistics.for_budget(problem, 1000, Budget(1.0, 1e-5), length_range=0.0)
    noise = np.hypot(solver.gram_stddev / np.sqrt(2), solver.moment_stddev)
    assert noise == pytest.approx(3.7306 * 1.5 * np.sqrt(3), rel=1e-4)
    assert solver.gram_stddev == pytest.approx(solver.moment_stddev)


@pytest.mark.slow  # compiles a float64 solver
@pytest.mark.parametrize("ridge", [0.0, 5.0])
@pytest.mark.parametrize("radius", [0.5, 3.0])
def test_without_noise_it_is_ridge_regression_on_the_ball(ridge, radius):
    problem = LinearModel("squared", P, radius, feature_bound=2.0, label_bound=0.8, intercept=0.5)
    data = records()
    found = dpjax.solve(quiet(ridge), problem, data, key=jax.random.key(0)).params
    x = np.concatenate([np.asarray(data["x"], float), np.full((N, 1), 0.5)], axis=1)
    y = np.clip(np.asarray(data["y"], float), -0.8, 0.8)
    penalty = ridge * problem.input_bound**2 / 2
    ball = {"type": "ineq", "fun": lambda w: radius**2 - w @ w, "jac": lambda w: -2 * w}
    best = optimize.minimize(
        lambda w: ((x @ w - y) ** 2).sum() / 2 + penalty * w @ w,
        np.full(P + 1, 0.01),
        method="SLSQP",
        constraints=[ball],
        options={"ftol": 1e-14},
    )
    np.testing.assert_allclose(found, best.x, atol=2e-4)
    assert np.linalg.norm(found) <= radius * (1 + 1e-6)


@pytest.mark.always  # noise as claimed
def test_one_run_has_the_noise_of_its_event():
    dim, solver = 60, quiet(gram_stddev=4.0, moment_stddev=2.0)
    empty = {"x": jnp.zeros((1, dim)), "y": jnp.zeros(1)}
    problem = LinearModel("squared", dim, 1.0)
    state = dpjax.solve(solver, problem, empty, key=jax.random.key(1)).state
    pairs = np.asarray(state.gram, float)[np.triu_indices(dim, 1)]
    assert 0.85 < np.std(pairs) * np.sqrt(2) / 4.0 < 1.15
    assert 0.7 < np.std(np.asarray(state.moment)) / 2.0 < 1.4


@pytest.mark.slow  # compiles a float64 solver
def test_the_law_of_the_noise_and_its_foils():
    problem = LinearModel("squared", P, 1.0)
    solver = quiet(gram_stddev=4.0, moment_stddev=2.0)
    empty = {"x": jnp.zeros((1, P)), "y": jnp.zeros(1)}
    keys = jax.random.split(jax.random.key(1), 2000)
    run = jax.jit(jax.vmap(lambda key: dpjax.solve(solver, problem, empty, key=key).state))
    state = run(keys)
    gram = np.asarray(state.gram, float)
    np.testing.assert_array_equal(gram, gram.transpose(0, 2, 1))
    for draws, deviation in [
        (gram[:, range(P), range(P)], 4.0),
        (gram[:, *np.triu_indices(P, 1)], 4.0 / np.sqrt(2)),
        (np.asarray(state.moment), 2.0),
    ]:
        flat = draws.ravel() / deviation
        assert stats.kstest(flat, stats.norm.cdf).pvalue > 1e-6
        for foil in (2 / 3, 3 / 2):
            assert stats.kstest(flat * foil, stats.norm.cdf).pvalue < 1e-6


@pytest.mark.slow  # compiles a float64 solver
def test_sums_of_many_records_are_those_of_exact_arithmetic():
    problem, n = LinearModel("squared", 2, 1.0), 50_001  # several blocks, the last one short
    data = {"x": jnp.full((n, 2), 0.3), "y": jnp.full(n, 0.7)}
    data["x"] = data["x"].at[-1].set(jnp.nan)
    found = dpjax.solve(quiet(), problem, data, key=jax.random.key(0)).state
    value = np.float64(np.float32(0.3)) ** 2 * (n - 1)
    np.testing.assert_allclose(found.gram, np.full((2, 2), value), rtol=1e-7)
    label = np.float64(np.float32(0.3)) * np.float64(np.float32(0.7)) * (n - 1)
    np.testing.assert_allclose(found.moment, np.full(2, label), rtol=1e-7)


@pytest.mark.slow  # compiles a float64 solver
def test_one_program_serves_seeds_and_budgets():
    problem, data = LinearModel("squared", P, 1.0), records()
    solvers = [
        SufficientStatistics.for_budget(problem, N, Budget(epsilon, 1e-4)) for epsilon in (1.0, 4.0)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(list(map(jnp.asarray, leaves))), *solvers)
    keys = jax.random.split(jax.random.key(0), 2)

    def run(solver, key):
        return dpjax.solve(solver, problem, data, key=key).params

    found = jax.jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)))(stacked, keys)
    for i, solver in enumerate(solvers):
        key = jax.random.split(jax.random.key(0), 2)[1]
        np.testing.assert_allclose(found[i, 1], run(solver, key), atol=2e-6)
    with pytest.raises(ValueError, match="guarantee"):
        stacked.guarantee()


def test_problems_that_are_no_least_squares_on_a_ball_are_refused():
    budget = Budget(1.0, 1e-6)
    for problem in (
        LinearModel("logistic", P, 1.0),
        LinearModel("huber", P, 1.0, threshold=0.3),
        LinearModel("huber", P),
    ):
        with pytest.raises(ValueError, match='link="squared"'):
            SufficientStatistics.for_budget(problem, N, budget)
        with pytest.raises(ValueError, match='link="squared"'):
            quiet().init(problem, key=jax.random.key(0))
    assert SufficientStatistics.for_budget(LinearModel("huber", P, 1.0), N, budget).shrinkage > 0
    with pytest.raises(ValueError, match="gram_stddev must be > 0"):
        dataclasses.replace(quiet(), gram_stddev=0.0)
    with pytest.raises(TypeError, match="LinearModel"):
        SufficientStatistics.for_budget(object(), N, budget)


@pytest.mark.parametrize(
    ("link", "p", "n", "delta", "expected"),
    [
        ("squared", 10, 10_000, 1e-6, SufficientStatistics),
        ("huber", 10, 400, 1e-6, SufficientStatistics),
        ("huber", 10, 1_000, 1e-6, ObjectivePerturbation),
        ("huber", 10, 1_000, 0.0, ObjectivePerturbation),
        ("squared", 10, 10_000, 0.0, ObjectivePerturbation),
        ("huber", 10, 10_000, 1e-6, ObjectivePerturbation),
        ("logistic", 10, 1_000, 1e-6, ObjectivePerturbation),
    ],
)
def test_the_public_rule(link, p, n, delta, expected):
    problem = LinearModel(link, p, 1.0)
    made = linear_model_solver(problem, n, Budget(1.0, delta))
    assert type(made) is expected
    assert made == expected.for_budget(problem, n, Budget(1.0, delta))
