"""Query release without noise against closed forms, linear programmes and SLSQP."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from dpjax import solve
from dpjax.problems import QueryRelease
from dpjax.queries import Dense
from dpjax.sampling import FullBatch
from dpjax.solvers import FrankWolfeRelease, MirrorDescentRelease, SelectionInfo
from dpjax.solvers.queries._selection import distribution

X64 = os.environ.get("DPJAX_TEST_X64", "0") == "1"
EXACT = 1e-12 if X64 else 1e-6
N, STEPS = 200, 2000
SIGNS = np.array([[1.0, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]])
TABLE = np.array([0.5, 0.25, 0.2, 0.05])
RANGE = {"num_records": float(N), "score_range": 4.0}  # of queries of +-1


def records(shares):
    counts = np.rint(N * np.asarray(shares)).astype(int)
    return jnp.asarray(np.repeat(np.arange(len(counts)), counts), jnp.int32)


def frank_wolfe(alpha, step=0.02, steps=STEPS, **options):
    return FrankWolfeRelease(FullBatch(steps), 0.0, step, alpha=alpha, **(RANGE | options))


def mirror(alpha, steps=STEPS, offset=0.0, **options):
    return MirrorDescentRelease(FullBatch(steps), 0.0, alpha, offset, **(RANGE | options))


def run(solver, queries, shares):
    """The released distribution and the final weights, in double precision."""
    problem = QueryRelease(Dense(queries))
    solution = solve(solver, problem, records(shares), key=jax.random.key(0))
    released = np.exp(np.asarray(solution.params.log_probs, np.float64))
    np.testing.assert_allclose(solution.params.answers, queries @ released, atol=1e-5)
    return released, np.asarray(solution.state.weights, np.float64)


def dual(queries, weights, alpha, shares):
    logits = queries.T @ weights
    return alpha * (logits @ shares - special.logsumexp(logits))


@pytest.mark.parametrize(
    ("shift", "alpha", "error"), [(0.9, 1.0, 0.1384058), (0.99, 0.5, 0.0259724), (0.6, 0.5, 0.0)]
)
def test_two_cells_and_one_query(shift, alpha, error):
    query, shares = np.array([[1.0, -1.0]]), np.array([1 + shift, 1 - shift]) / 2
    for solver, within in ((mirror(alpha), 2e-5), (frank_wolfe(alpha, 0.2, schedule="sqrt"), 3e-3)):
        released, weights = run(solver, query, shares)
        assert abs(query[0] @ (shares - released)) == pytest.approx(error, abs=within)
        # the optimum of the dual, which is on the boundary where the error is not 0
        assert alpha * weights[0] == pytest.approx(min(1, alpha * np.arctanh(shift)), abs=0.02)


@pytest.mark.parametrize(
    ("alpha", "error", "value"),
    [(1.0, 0.032988, -1.16984493), (2.0, 0.205733, -2.44098681), (0.75, 0.0, None)],
)
def test_maximum_entropy_table(alpha, error, value):
    """Above alpha = .754957, the threshold of exact penalties, an error remains; not below."""
    for solver, within in ((mirror(alpha), 5e-5), (frank_wolfe(alpha), 0.011)):
        released, weights = run(solver, SIGNS, TABLE)
        assert np.abs(SIGNS @ (TABLE - released)).max() == pytest.approx(error, abs=within)
        if alpha == 1:
            law = [0.491753, 0.241753, 0.191753, 0.074741]
            np.testing.assert_allclose(released, law, atol=within)
        if value is not None:
            assert dual(SIGNS, weights, alpha, TABLE) == pytest.approx(value, abs=2e-4)
        assert np.abs(weights).sum() <= 1 / alpha + 1e-5


@pytest.mark.parametrize("family", ["signs", "random"])
def test_a_noisy_histogram_is_fitted_as_well_as_by_a_linear_programme(family, rng):
    """Shares that are no distribution, as after noise; only the optimal values are compared."""
    queries, noisy = SIGNS, np.array([0.7, 0.35, 0.1, -0.2])
    if family == "random":
        queries, noisy = rng.choice([-1.0, 1.0], (7, 5)), rng.normal(0.2, 0.3, 5)
    m, k = queries.shape
    above = np.hstack([-queries, -np.ones((m, 1))])
    below = np.hstack([queries, -np.ones((m, 1))])
    best = optimize.linprog(
        np.append(np.zeros(k), 1),
        np.vstack([above, below]),
        np.concatenate([-queries @ noisy, queries @ noisy]),
        np.append(np.ones(k), 0)[None],
        [1.0],
    ).fun
    if family == "signs":
        assert best == pytest.approx(0.25)
    solver, problem = (
        mirror(0.01, offset=20.0, noise="histogram-once"),
        QueryRelease(Dense(queries)),
    )

    @jax.jit
    def fit(targets):
        state = solver.init(problem, key=jax.random.key(0))._replace(targets=targets)

        def step(_, state):
            return solver.step(problem, None, None, state)[0]

        return solver.finalize(problem, jax.lax.fori_loop(0, STEPS, step, state)).answers

    reached = np.abs(queries @ noisy - np.asarray(fit(jnp.asarray(queries @ noisy, float)))).max()
    assert best - 1e-5 <= reached <= best + 0.02


def test_duality_gap_is_that_of_frank_wolfe(rng):
    """At the softmax of any combination of queries, as the library computes it."""
    for alpha in (0.3, 1.0):
        queries, shares = rng.uniform(-1, 1, (4, 6)), rng.dirichlet(np.ones(6))
        weights = rng.dirichlet(np.ones(4)) * rng.choice([-1, 1], 4) / alpha
        law = distribution(Dense(queries), jnp.asarray(weights, float))
        p, q = np.asarray(law, np.float64), alpha * queries.T @ weights
        np.testing.assert_allclose(p, special.softmax(q / alpha), atol=EXACT)
        error = np.abs(queries @ (shares - p)).max()
        primal = error - alpha * special.entr(p).sum()
        gap = error - q @ (shares - p)
        assert primal - dual(queries, weights, alpha, shares) == pytest.approx(gap, abs=10 * EXACT)
        excess = alpha * (special.entr(p).sum() - special.entr(shares).sum())
        relative = alpha * special.rel_entr(shares, np.full(6, 1 / 6)).sum()
        assert error <= gap + excess + EXACT <= gap + relative + 2 * EXACT


def test_gap_vanishes(rng):
    queries, shares = rng.uniform(-1, 1, (4, 6)), np.rint(N * rng.dirichlet(np.ones(6))) / N
    shares[0] += 1 - shares.sum()
    for alpha in (0.2, 1.0):
        _, weights = run(mirror(alpha), queries, shares)
        own = special.softmax(queries.T @ weights)
        error = np.abs(queries @ (shares - own)).max()
        gap = error - alpha * (queries.T @ weights) @ (shares - own)
        assert 0 <= gap < 0.01
        # the error left is what entropy pays for
        assert error <= gap + alpha * (special.entr(own).sum() - special.entr(shares).sum()) + 1e-5


def test_nothing_to_learn_from_uniform_records():
    released, weights = run(mirror(0.5), SIGNS, np.full(4, 0.25))
    np.testing.assert_allclose(released, 0.25, atol=1e-3)
    assert abs(dual(SIGNS, weights, 0.5, np.full(4, 0.25)) + 0.5 * np.log(4)) < 1e-3


def test_multiplicative_weights_keep_their_bound(rng):
    """The mean error of the iterates of T steps of size eta, on queries of +-1."""
    steps, k = 200, 16
    size = np.sqrt(2 * np.log(k) / steps)
    bound = np.log(k) / (size * steps) + size * 4 / 8
    queries = rng.choice([-1.0, 1.0], (20, k))
    problem = QueryRelease(Dense(queries))
    solver = frank_wolfe(0.0, size, steps, output="average")
    drawn = np.stack([rng.choice(k, N, p=rng.dirichlet(np.full(k, 0.1))) for _ in range(8)])

    def one(data):
        return solve(solver, problem, data, key=jax.random.key(0)).params.answers

    answers = jax.jit(jax.vmap(one))(jnp.asarray(drawn, jnp.int32))
    truth = np.stack([queries[:, row].mean(axis=1) for row in drawn])
    errors = np.abs(np.asarray(answers) - truth).max(axis=1)
    assert errors.max() <= bound
    # no such bound holds for the uniform distribution
    assert np.abs(truth - queries.mean(axis=1)).max(axis=1).min() > bound


def test_mirror_descent_is_the_recursion_it_is_derived_from(rng):
    r"""Iterates by the closed form of $\min \eta (\langle g, D \rangle + \alpha H(D)) + C KL$."""
    queries, shares = rng.uniform(-1, 1, (4, 6)), np.rint(N * rng.dirichlet(np.ones(6))) / N
    shares[0] += 1 - shares.sum()
    alpha, c, steps = 0.3, 2.5, 25
    problem, solver = QueryRelease(Dense(queries)), mirror(alpha, steps, c)
    solution = solve(solver, problem, records(shares), key=jax.random.key(0))
    now = mean = np.full(6, 1 / 6)
    before = c * (c + 1) / 2
    for t in range(1, steps + 1):
        eta = t + c
        total = before + eta
        middle = (before * mean + eta * now) / total
        gaps = queries @ (shares - middle)
        worst = np.abs(gaps).argmax()
        assert solution.info.index[t - 1] == worst
        assert solution.info.signs[t - 1, 0] == np.sign(gaps[worst])
        weight = alpha * before
        slope = -np.sign(gaps[worst]) * queries[worst]
        logits = (-eta * slope + weight * np.log(now)) / (alpha * eta + weight)
        now = special.softmax(logits)
        mean = (before * mean + eta * now) / total
        before = total
    np.testing.assert_allclose(np.exp(solution.params.log_probs), mean, atol=2 * EXACT)


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # of older scipy
@pytest.mark.parametrize("count", [0, 3])
def test_mirror_step_is_what_slsqp_finds(count, rng):
    queries, alpha, c = rng.uniform(-1, 1, (4, 6)), 0.3, 1.5
    problem, solver = QueryRelease(Dense(queries)), mirror(alpha, 10, c)
    weights = rng.normal(size=4)
    state = solver.init(problem, key=jax.random.key(0))
    state = state._replace(weights=jnp.asarray(weights, float), count=jnp.asarray(count))
    drawn = SelectionInfo(jnp.asarray(2), jnp.asarray([-1], jnp.int8))
    after = solver.move(problem, drawn, state).weights
    before = special.softmax(queries.T @ weights)
    eta, past = count + 1 + c, (count + c) * (count + c + 1) / 2

    def objective(p):
        entropy = np.sum(p * np.log(p))
        return eta * (queries[2] @ p + alpha * entropy) + alpha * past * (
            entropy - p @ np.log(before)
        )

    found = optimize.minimize(
        objective,
        np.full(6, 1 / 6),
        jac=lambda p: (
            eta * (queries[2] + alpha * (1 + np.log(p)))
            + alpha * past * (1 + np.log(p) - np.log(before))
        ),
        method="SLSQP",
        bounds=[(1e-9, 1)] * 6,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(6)},
        options={"ftol": 1e-15, "maxiter": 300},
    )
    law = special.softmax(queries.T @ np.asarray(after, np.float64))
    np.testing.assert_allclose(law, found.x, atol=1e-7 if X64 else 1e-6)
