"""The log-linear fit against scipy and finite differences, and Gaussian release without noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from dpjax import solve
from dpjax.problems import QueryRelease
from dpjax.queries import Dense, Domain, Marginals
from dpjax.sampling import FullBatch
from dpjax.solvers import GaussianFit, HistogramRelease
from dpjax.solvers.queries._log_linear import fit_log_linear, misfit_and_grad

M, K = 6, 9


@pytest.fixture
def instance(rng):
    """Queries, noisy answers, precisions (one query not measured) and scales of the prior."""
    queries = rng.uniform(-1, 1, (M, K))
    measured = queries @ rng.dirichlet(np.ones(K)) + 0.05 * rng.normal(size=M)
    precision = 1 / rng.uniform(0.02, 0.1, M)
    precision[3] = 0.0
    return queries, measured, precision, rng.uniform(0.5, 2.0, M)


def objective(u, queries, measured, precision, prior):
    p = special.softmax(queries.T @ u)
    misfit = np.sum((precision * (queries @ p - measured)) ** 2)
    return 0.5 * misfit + 0.25 * np.sum(np.sqrt(1 + 4 * (u / prior) ** 2) - 1)


def reference(instance):
    """The minimum and its weights in double precision, from several starts."""
    best = min(
        (
            optimize.minimize(objective, start, instance, options={"gtol": 1e-9})
            for start in np.random.default_rng(0).normal(size=(5, M))
        ),
        key=lambda found: found.fun,
    )
    return best.fun, best.x


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_fit_reaches_what_scipy_reaches(start, instance):
    queries, measured, precision, prior = instance
    value, weights = reference(instance)
    law = special.log_softmax(queries.T @ weights)
    log_probs, fitted = fit_log_linear(
        Dense(queries),
        *(jnp.asarray(a, float) for a in (measured, precision, prior)),
        jnp.full(M, start),
        jnp.asarray(np.linspace(0.05, 0.5, M), float),
        steps=80,
    )
    reached = objective(np.asarray(fitted, np.float64), *instance)
    assert reached == pytest.approx(value, rel=1e-5)
    np.testing.assert_allclose(log_probs, law, atol=1e-4)
    # the minimum is not where the search began, nor where nothing is known
    assert np.abs(law - special.log_softmax(start * queries.sum(axis=0))).max() > 0.1


@pytest.mark.slow
def test_gradient_by_hand_is_that_of_differences(instance, x64):
    queries, measured, precision, _ = instance
    given = Dense(queries), *(jnp.asarray(a) for a in (measured, precision))
    u = np.random.default_rng(5).normal(size=M)
    value, gradient, law = misfit_and_grad(*given, jnp.asarray(u))
    np.testing.assert_allclose(law, special.log_softmax(queries.T @ u), atol=1e-12)
    residuals = queries @ special.softmax(queries.T @ u) - measured
    assert float(value) == pytest.approx(0.5 * np.sum((precision * residuals) ** 2), rel=1e-12)
    values = jax.jit(jax.vmap(lambda u: misfit_and_grad(*given, u)[0]))
    above, below = values(u + 1e-5 * np.eye(M)), values(u - 1e-5 * np.eye(M))
    np.testing.assert_allclose(gradient, (above - below) / 2e-5, rtol=1e-6)


DOMAIN = Domain({"a": 2, "b": 3, "c": 4})
CODES = np.random.default_rng(6).choice(24, 500, p=np.arange(1, 25) / 300)
NOISELESS = {
    "two-way": (Marginals.all_kway(DOMAIN, 2), DOMAIN.codes(CODES)),
    "nested": (Marginals(DOMAIN, (("a",), ("a", "b"), ("a", "b", "c"))), DOMAIN.codes(CODES)),
    "dense": (Dense(np.random.default_rng(7).uniform(-1, 1, (8, 24))), CODES),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "dense",
        pytest.param("two-way", marks=pytest.mark.slow),
        pytest.param("nested", marks=pytest.mark.slow),
    ],
)
def test_without_noise_the_fit_gives_the_answers(name):
    """To 1e-3 after 200 steps in single precision; the answers spread over more than 0.1."""
    workload, data = NOISELESS[name]
    problem = QueryRelease(workload)
    solver = GaussianFit(FullBatch(1), workload, 0.0, 500.0, fit_steps=200)
    answers = np.asarray(solve(solver, problem, data, key=jax.random.key(0)).params.answers)
    exact = np.asarray(workload.answers_of_records(data))
    assert np.abs(answers - exact).max() < 1e-3
    assert np.ptp(exact) > 0.1
    assert not np.isfinite(solver.guarantee().epsilon(1e-5))


@pytest.mark.slow
def test_without_noise_the_histogram_is_exact():
    workload, data = NOISELESS["two-way"]
    solver = HistogramRelease(FullBatch(1), 0.0, 500.0)
    released = solve(solver, QueryRelease(workload), data, key=jax.random.key(0)).params
    shares = np.bincount(CODES, minlength=24) / 500
    np.testing.assert_allclose(np.exp(released.log_probs), shares, atol=1e-6)
    np.testing.assert_allclose(released.answers, workload.answers_of_records(data), atol=1e-6)


@pytest.mark.slow
def test_precise_tables_weigh_more_than_others():
    """Two copies of one attribute's facts: the fit follows the table with the smaller noise."""
    workload = Marginals(DOMAIN, (("a", "b"), ("b", "c")))
    problem = QueryRelease(workload)
    errors = []
    for stddev in ([1e-4, 0.1], [0.1, 1e-4]):
        solver = GaussianFit(FullBatch(1), workload, np.asarray(stddev), 500.0, fit_steps=60)
        solution = solve(solver, problem, DOMAIN.codes(CODES), key=jax.random.key(1))
        gap = np.abs(solution.params.answers - np.asarray(workload.answers(_shares())))
        errors.append([gap[:6].max(), gap[6:].max()])
    (first, second), (third, fourth) = errors
    assert 10 * first < second
    assert 10 * fourth < third


def _shares():
    return jnp.asarray(np.bincount(CODES, minlength=24) / 500, float)
