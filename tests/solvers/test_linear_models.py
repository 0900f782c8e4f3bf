"""Objective perturbation: the minimiser, its noise, and what it promises."""

import dataclasses
import importlib
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

import dpjax
from dpjax.privacy import Budget
from dpjax.problems import LinearModel
from dpjax.solvers import ObjectivePerturbation
from dpjax.solvers.erm._draws import LABEL_OCTAVES, quantile_logits
from dpjax.solvers.erm._minimise import Objective, _weighted_sum, minimise
from tests.solvers.drawn_shares import check_law

N, P = 400, 3


def records(seed=0, n=N, p=P):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    weights = np.ones(p) / np.sqrt(p)
    return {
        "x": jnp.asarray(x, jnp.float32),
        "y": jnp.asarray(x @ weights + 0.1 * rng.normal(size=n), jnp.float32),
    }


def classes(seed=0, **sizes):
    data = records(seed, **sizes)
    return data | {"y": (data["y"] > 0).astype(jnp.int32)}


def quiet(problem, lam=2.0, **fields):
    """A solver with hardly any noise."""
    fields = {"accuracy": 1e-7, "output_scale": 1e-7, "scale": 1e-6} | fields
    return ObjectivePerturbation(
        dpjax.sampling.FullBatch(1), problem.slope_bounds(), lam=lam, **fields
    )


def reference(problem, data, lam, tau=0.3):
    """The exact minimiser, by scipy."""
    x, y = np.asarray(data["x"], float), np.asarray(data["y"], float)

    def value(w):
        margins = x @ w
        if problem.link == "logistic":
            return np.logaddexp(0, -(2 * y - 1) * margins).sum() + lam / 2 * w @ w
        residual = np.abs(margins - np.clip(y, -1, 1))
        parts = residual**2 / 2
        if problem.link == "huber":
            parts = np.where(residual < tau, parts, tau * (residual - tau / 2))
        return parts.sum() + lam / 2 * w @ w

    ball = (
        []
        if problem.radius is None
        else [{"type": "ineq", "fun": lambda w: problem.radius**2 - w @ w, "jac": lambda w: -2 * w}]
    )
    found = optimize.minimize(
        value, np.full(P, 0.01), method="SLSQP", constraints=ball, options={"ftol": 1e-14}
    )
    return found.x


MODELS = [
    (LinearModel("logistic", P, 0.5), classes),
    (LinearModel("logistic", P, 20.0), classes),
    (LinearModel("logistic", P), classes),
    (LinearModel("huber", P, 0.5, threshold=0.3), records),
    (LinearModel("huber", P, threshold=0.3), records),
    (LinearModel("squared", P, 2.0), records),
]


@pytest.mark.parametrize("rows", [0, 1, 255, 256, 10_001])
def test_sums_of_gradients_do_not_drift(rows):
    """Sorted by label, so that running sums are long: in float64 a millionth of a millionth off."""
    rng = np.random.default_rng(rows)
    x, weights = rng.uniform(size=(rows, 2)), np.sort(rng.normal(size=rows)) * 1e8
    with jax.enable_x64(True):
        found = jax.jit(_weighted_sum)(jnp.asarray(weights), jnp.asarray(x))
        found = np.asarray(found.high), np.asarray(found.low)
    for column in range(2):
        # a product's rounding is of its record alone
        exact = math.fsum([*(weights * x[:, column]), *(-part[column] for part in found)])
        assert abs(exact) <= 1e-14


@pytest.mark.slow  # compiles a float64 solver for each
@pytest.mark.parametrize(("problem", "make"), MODELS)
def test_without_noise_it_is_the_minimiser(problem, make):
    data = make()
    solution = dpjax.solve(quiet(problem), problem, data, key=jax.random.key(0))
    np.testing.assert_allclose(solution.params, reference(problem, data, 2.0), atol=2e-4)


@pytest.mark.slow  # compiles a float64 solver
@pytest.mark.parametrize(("problem", "make"), MODELS)
@pytest.mark.parametrize("newton", [True, False])
def test_the_certificate_is_met_and_true(problem, make, newton, monkeypatch):
    if not newton:
        monkeypatch.setattr("dpjax.solvers.erm._minimise.MOST_NEWTON_DIM", 0)
    with jax.enable_x64(True):
        x, y = problem.prepare({k: v.astype(jnp.float64) for k, v in make().items()})
        b, radius = jnp.asarray([3.0, -2.0, 1.0]), problem.radius
        objective = Objective(
            x,
            lambda margins: problem.slopes(margins, y),
            lambda margins: problem.curvatures(margins, y),
            jnp.asarray(2.0),
            b,
            None if radius is None else jnp.asarray(radius),
            problem.slope_bounds().curvature,
        )
        rough, residual = minimise(objective, jnp.asarray(1e-3))
        exact, small = minimise(objective, jnp.asarray(1e-9))
        nearest, rounded = minimise(objective, jnp.asarray(1e-40))
        assert residual <= 1e-3
        assert small <= 1e-9
        assert 0 < rounded <= objective.rounding(nearest)  # what cannot be met ends
        assert jnp.linalg.norm(rough - exact) <= residual / 2.0 + 1e-9
        if radius is not None:
            assert jnp.linalg.norm(exact) <= radius * (1 + 1e-12)


@pytest.mark.slow  # compiles a float64 solver
def test_labels_of_zero_and_one_are_those_of_signs():
    problem, data = LinearModel("logistic", P, 1.0), classes()
    signs = data | {"y": 2 * data["y"] - 1}
    both = [
        dpjax.solve(quiet(problem), problem, each, key=jax.random.key(0)).params
        for each in (data, signs)
    ]
    np.testing.assert_array_equal(*both)


@pytest.mark.slow  # compiles a float64 solver
def test_an_intercept_is_a_coordinate_of_the_input():
    problem = LinearModel("squared", P, 2.0, intercept=0.5)
    data = records()
    data["y"] = data["y"] + 0.3
    found = dpjax.solve(quiet(problem, 1e-3), problem, data, key=jax.random.key(0)).params
    assert found.shape == (P + 1,)
    x = np.concatenate([data["x"], np.full((N, 1), 0.5)], axis=1)
    expected = np.linalg.lstsq(x, np.clip(data["y"], -1, 1), rcond=None)[0]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert problem.input_bound == pytest.approx(np.sqrt(1.25))


def test_inputs_are_brought_within_their_bounds():
    problem = LinearModel("logistic", P, 2.0, feature_bound=0.5)
    x = np.array([[3.0, 0, 0], [np.nan, 0, 0], [1e30, 1e30, 0], [0, 0.1, 0], [0, 0, 1e-30]])
    prepared, labels = problem.prepare({"x": jnp.asarray(x, jnp.float32), "y": jnp.arange(5)})
    norms = np.linalg.norm(np.asarray(prepared, np.float64), axis=1)
    np.testing.assert_allclose(norms, [0.5, 0, 0.5, 0.1, 1e-30], rtol=1e-6)
    assert np.all(norms <= 0.5 * (1 + 1e-6))
    assert labels.tolist() == [-1, -1, 1, 1, 1]  # of a broken record 0
    regression = LinearModel("squared", P, 2.0, label_bound=0.7)
    data = {"x": jnp.ones((3, P)), "y": jnp.asarray([5.0, -jnp.inf, -3.0])}
    inputs, labels = regression.prepare(data)
    np.testing.assert_allclose(labels, [0.7, 0, -0.7], rtol=1e-6)
    assert not inputs[1].any()


@pytest.mark.parametrize("share", [1.0, 0.5, 0.24, 1e-3, 1e-20])
@pytest.mark.parametrize("row", [[1, 0, 0], [1, 1, 1], [1, -1, 0], [1, 1e-30, 0]])
def test_the_largest_floats_are_brought_within_their_bounds(x64, share, row):
    """A reciprocal of theirs is flushed to 0."""
    problem = LinearModel("logistic", 3, feature_bound=2.0)
    for dtype in (jnp.float32, jnp.float64):
        x = share * float(jnp.finfo(dtype).max) * np.array([row])
        given = {"x": jnp.asarray(x, dtype), "y": jnp.ones(1)}
        for prepare in (problem.prepare, jax.jit(problem.prepare)):
            got = np.asarray(prepare(given)[0], float)
            assert np.linalg.norm(got) == pytest.approx(2, rel=1e-6)
            np.testing.assert_allclose(got[0] / got[0, 0], row, atol=1e-6)


@pytest.mark.always  # noise as claimed
def test_one_run_has_both_noises_of_its_event():
    dim = 400
    problem = LinearModel("logistic", dim)
    data = {"x": jnp.zeros((1, dim)), "y": jnp.zeros(1, jnp.int32)}
    # without records the minimiser is -b / lam
    for fields, deviation in (({"scale": 6.0}, 3.0), ({"output_scale": 5.0}, 5.0)):
        params = dpjax.solve(
            quiet(problem, 2.0, **fields), problem, data, key=jax.random.key(3)
        ).params
        assert 0.8 < np.std(np.asarray(params)) / deviation < 1.25


@pytest.mark.slow  # compiles a float64 solver
@pytest.mark.parametrize("noise", ["gaussian", "gamma"])
def test_moments_of_the_noise_and_their_foils(noise):
    # without records the minimiser is -b / lam, and nothing holds it
    problem = LinearModel("logistic", P)
    solver = quiet(problem, 2.0, scale=6.0, noise=noise)
    data = {"x": jnp.zeros((1, P)), "y": jnp.zeros(1, jnp.int32)}
    keys = jax.random.split(jax.random.key(3), 3000)
    run = jax.jit(jax.vmap(lambda key: dpjax.solve(solver, problem, data, key=key).params))
    length = np.linalg.norm(run(keys), axis=1) / 3.0
    law = stats.chi(P) if noise == "gaussian" else stats.gamma(P)
    assert stats.kstest(length, law.cdf).pvalue > 1e-6
    for foil in (2 / 3, 3 / 2):
        assert stats.kstest(length * foil, law.cdf).pvalue < 1e-6
    wrong = stats.gamma(1) if noise == "gamma" else stats.chi(1)
    assert stats.kstest(length, wrong.cdf).pvalue < 1e-6


@pytest.mark.parametrize("link", ["logistic", "huber", "squared"])
@pytest.mark.parametrize("relation", [None, "replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("p", [P, 60])
def test_the_budget_is_met(link, relation, delta, p):
    problem = LinearModel(link, p, 2.0)
    budget = Budget(1.0, delta, relation)
    solver = ObjectivePerturbation.for_budget(problem, 10_000, budget)
    assert solver.guarantee().epsilon(delta) <= 1.0
    assert solver.guarantee().epsilon(delta) > 0.999
    assert solver.relation == (relation or "replace_one")
    if delta == 0 or p == P:
        assert solver.noise == "gamma"
    estimated = link == "huber"
    assert (solver.quantile_range is not None) == estimated
    assert solver.guarantee().prior == pytest.approx(0.01 * (1 + estimated))
    with dpjax.Ledger(Budget(1.1, 2e-6, relation or "replace_one")) as ledger:
        ledger.spend(solver.guarantee().for_ledger(delta))


@pytest.mark.slow  # compiles a float64 solver
def test_the_threshold_is_near_the_quantile():
    problem, data = LinearModel("huber", P, 1.0), records(n=5000)
    solver = ObjectivePerturbation.for_budget(problem, 5000, Budget(4.0, 1e-6))
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    exact = np.quantile(np.abs(data["y"]), 1 - 1 / solver.beyond)
    assert abs(solution.state.threshold - exact) <= 0.06
    small = ObjectivePerturbation.for_budget(problem, 300, Budget(1.0, 1e-6))
    assert small.quantile_range is None
    assert small.guarantee().prior == 0


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_the_draw_of_a_threshold_has_its_range_on_all_small_histograms(relation):
    eta, bins, most = 0.7, 3, 12
    every = [c for c in itertools.product(range(most + 1), repeat=bins) if sum(c) <= most]
    logits = jax.vmap(lambda counts: quantile_logits(counts, 3, jnp.float32(eta)))(jnp.array(every))
    found = dict(zip(every, np.asarray(logits, float), strict=True))
    worst = 0.0
    for counts, logits in found.items():
        for i, j in itertools.product(range(bins), repeat=2):
            other = np.array(counts)
            other[i] += 1
            if relation == "replace_one":
                other[j] -= 1
            moved = found.get(tuple(other))
            if moved is not None:
                change = np.log(special.softmax(moved)) - np.log(special.softmax(logits))
                worst = max(worst, np.ptp(change))
    # twice the sharpness, or a score of half the change, would not pass
    assert 0.75 * eta < worst <= eta


@pytest.mark.always  # the claim
def test_a_threshold_has_the_law_that_its_cost_is_for():
    rng, problem = np.random.default_rng(0), LinearModel("huber", P, 1.0)
    solver = ObjectivePerturbation.for_budget(problem, 125, Budget(4.0, 0.0))
    eta = solver.guarantee().prior - solver.length_range  # what is charged
    y = np.concatenate([np.zeros(9), rng.laplace(scale=0.3, size=115), [7.0]])
    mask = np.arange(125) % 8 > 0
    batch = {"y": jnp.asarray(y * problem.largest_threshold, jnp.float32)}
    inputs = problem, batch, jnp.asarray(mask)
    law = np.abs(y[mask]), solver.beyond, eta, LABEL_OCTAVES
    check_law(lambda key: solver._share(key, *inputs), *law)


@pytest.mark.slow  # compiles a float64 solver of 20,000 rows
@pytest.mark.parametrize("zeros", [3.4, 1.4])
def test_labels_that_are_mostly_one_value_are_learned(zeros):
    """Amounts of claims, of which 93% or 75% are 0: a threshold near 0 predicts their median."""
    rng = np.random.default_rng(5)
    x = np.clip(rng.normal(size=(20_000, 3)), -3, 3)
    some = rng.random(20_000) < 1 / (1 + np.exp(zeros - 2 * x[:, 0]))
    y = np.minimum(some * rng.gamma(2, 2, size=20_000) / 15 - 1, 1)
    problem, data = LinearModel("huber", 3, intercept=1.0), (np.float32(x / 6), np.float32(y))
    fitted = dpjax.fit(problem, data, Budget(2.0, 1e-6, "replace_one"), key=jax.random.key(0))
    predicted = x / 6 @ np.asarray(fitted.params)[:3] + float(fitted.params[3])
    columns = np.c_[x, np.ones(20_000)]
    best = np.mean((columns @ np.linalg.lstsq(columns, y, rcond=None)[0] - y) ** 2)
    assert np.mean((predicted - y) ** 2) < best + 0.2 * (np.var(y) - best)


def test_draws_and_metrics_that_do_not_fit_the_problem_are_refused():
    for link in ("logistic", "squared"):
        problem = LinearModel(link, 1, radius=2.0)
        solver = ObjectivePerturbation.for_budget(problem, 1000, Budget(1.0, 1e-6))
        solver = dataclasses.replace(solver, quantile_range=0.2)
        with pytest.raises(ValueError, match='quantile_range must be None but for a "huber" loss'):
            solver.init(problem, key=jax.random.key(0))


@pytest.mark.parametrize("link", ["logistic", "squared", "huber"])
def test_neighbours_move_no_slope_beyond_its_bound(link):
    problem, rng = LinearModel(link, 2, 0.7, 3.0, threshold=0.4), np.random.default_rng(1)
    bounds, angles = problem.slope_bounds(), np.linspace(0, 2 * np.pi, 360)
    x = 9 * np.stack([np.cos(angles), np.sin(angles)], axis=1).repeat(2, axis=0)
    batch = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray([3.0, -3.0] * 360)}
    w = 0.7 * np.array([0.6, 0.8])
    gradients = problem.per_example_gradients(jnp.asarray(w, jnp.float32), batch)
    rows = np.asarray(gradients.left * gradients.right, float)
    moved = np.linalg.norm(rows[:, None] - rows[None], axis=2).max()
    # squared slopes of both extremes do not meet at one point
    least = 0.5 if link == "squared" else 0.99
    assert least * bounds.largest_change < moved <= bounds.largest_change * (1 + 1e-6)
    short = rows * rng.random((720, 1))
    assert np.linalg.norm(short, axis=1).max() <= bounds.slope * (1 + 1e-6)


@pytest.mark.slow  # compiles a float64 solver
def test_one_program_serves_seeds_and_budgets():
    problem, data = LinearModel("logistic", P, 2.0), classes()
    solvers = [
        ObjectivePerturbation.for_budget(problem, N, Budget(epsilon, 1e-4))
        for epsilon in (1.0, 4.0)
    ]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(list(map(jnp.asarray, leaves))), *solvers)
    keys = jax.random.split(jax.random.key(0), 3)

    def run(solver, key):
        return dpjax.solve(solver, problem, data, key=key).params

    both = jax.vmap(jax.vmap(run, (None, 0)), (0, None))
    found = jax.jit(both)(stacked, keys)
    for i, solver in enumerate(solvers):
        for j, key in enumerate(keys):
            np.testing.assert_allclose(found[i, j], run(solver, key), atol=2e-6)
    with pytest.raises(ValueError, match="guarantee"):
        stacked.guarantee()


@pytest.mark.slow  # compiles a float64 solver
def test_nothing_secret_is_returned_but_the_key():
    problem, data = LinearModel("logistic", P, 2.0), classes()
    solver = ObjectivePerturbation.for_budget(problem, N, Budget(1.0, 1e-4))
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    assert solution.state.residual == 0
    state = solver.init(problem, key=jax.random.key(0))
    after, _ = solver.step(problem, data, jnp.ones(N, bool), state)
    assert 0 < after.residual <= solver.lam * solver.accuracy


@pytest.mark.slow  # compiles a float64 solver
def test_masked_and_broken_records_count_nothing():
    problem, data = LinearModel("logistic", P, 2.0), classes()
    solver, some = quiet(problem), jnp.arange(N) < 300

    def run(data, mask):
        state = solver.init(problem, key=jax.random.key(0))
        return solver.step(problem, data, mask, state)[0].params

    short = {name: leaf[:300] for name, leaf in data.items()}
    alone = run(short, jnp.ones(300, bool))
    np.testing.assert_allclose(run(data, some), alone, atol=1e-6)
    broken = data | {"x": jnp.where(some[:, None], data["x"], jnp.nan)}
    np.testing.assert_allclose(run(broken, jnp.ones(N, bool)), alone, atol=1e-6)


def test_a_problem_with_larger_slopes_is_refused():
    problem, data = LinearModel("squared", P, 2.0), records()
    solver = ObjectivePerturbation.for_budget(problem, N, Budget(1.0, 1e-4))
    for change in ({"radius": 20.0}, {"feature_bound": 3.0}, {"intercept": 1.0}):
        other = dataclasses.replace(problem, **change)
        with pytest.raises(ValueError, match="slope bounds that the noise is for"):
            dpjax.solve(solver, other, data, key=jax.random.key(0))


def test_refusals():
    with pytest.raises(ValueError, match="radius must be given for a squared loss"):
        LinearModel("squared", P)
    with pytest.raises(ValueError, match="link must be"):
        LinearModel("hinge", P)
    risk = dpjax.problems.Risk.linear(lambda m, y: (m - y) ** 2, P, 1.0)
    with pytest.raises(TypeError, match="LinearModel"):
        ObjectivePerturbation.for_budget(risk, N, Budget(1.0, 1e-4))
    problem = LinearModel("logistic", P, 2.0)
    with pytest.raises(TypeError, match="scale"):
        ObjectivePerturbation.for_budget(problem, N, Budget(1.0, 1e-4), scale=0.1)
    with pytest.raises(TypeError, match=r"FullBatch\(1\)"):
        dataclasses.replace(quiet(problem), sampler=dpjax.sampling.FullBatch(2))
    with pytest.raises(ValueError, match="lam must be >"):
        ObjectivePerturbation.for_budget(problem, N, Budget(1.0, 1e-4), lam=0.01)


@pytest.mark.parametrize("link", ["logistic", "huber", "squared"])
def test_constants_bound_gradients_and_losses_are_their_integrals(link):
    problem, data = LinearModel(link, P, 1.5, threshold=0.4), records(n=60)
    params = jnp.array([0.8, -0.7, 0.3])
    want = jax.grad(problem.mean_loss)(params, data)
    dense = np.asarray(problem.per_example_gradients(params, data).materialize())[:, :, 0]
    np.testing.assert_allclose(dense.mean(axis=0), want, rtol=1e-5, atol=1e-6)
    assert np.linalg.norm(dense, axis=1).max() <= problem.lipschitz * (1 + 1e-6)
    curvature = np.linalg.eigvalsh(jax.hessian(problem.mean_loss)(params, data)).max()
    assert curvature <= problem.smoothness * (1 + 1e-6)


def test_noise_of_the_minimiser_is_added_before_it_is_a_float32(monkeypatch):
    """Of many records it is below the last bit that the minimiser would have."""
    module = importlib.import_module("dpjax.solvers.erm._objective_perturbation")
    seen, plain = [], module.plus_noise
    monkeypatch.setattr(
        module,
        "plus_noise",
        lambda values, *rest: seen.append(values.dtype) or plain(values, *rest),
    )
    problem = LinearModel("logistic", 3, radius=2.0)
    solver = module.ObjectivePerturbation.for_budget(problem, 50, dpjax.Budget(1.0, 1e-4))
    data = {"x": jnp.ones((50, 3)) / 2, "y": jnp.tile(jnp.array([0.0, 1.0]), 25)}
    params = dpjax.solve(solver, problem, data, key=jax.random.key(9)).params
    assert seen
    assert set(seen) == {jnp.dtype("float64")}
    assert params.dtype == jnp.result_type(float)


def test_labels_of_other_classes_are_refused():
    problem = LinearModel("logistic", 2, radius=1.0)
    x = np.ones((4, 2), np.float32)
    with pytest.raises(ValueError, match="labels y must be -1 or 0 for one class, and 1"):
        problem.check({"x": x, "y": np.array([1, 2, 2, 1])})
    with pytest.raises(ValueError, match="for more classes use"):
        problem.check({"x": x, "y": np.array([0, 1, 2, 1])})
    problem.check({"x": x, "y": np.array([1.0, -1.0, np.nan, 1.0])})
    with pytest.raises(ValueError, match="y must"):
        problem.check({"x": x, "y": np.ones((4, 1))})


@pytest.mark.parametrize("n", [1000, 10**8])
def test_a_goal_is_above_what_rounding_adds_however_many_records(n):
    problem, budget = LinearModel("logistic", 1), Budget(1.0, 1e-12)
    solver = ObjectivePerturbation.for_budget(problem, n, budget)
    assert solver.lam * solver.accuracy >= 2.0**-50 * n * 0.65
    assert 0.99 < solver.guarantee().epsilon(1e-12) <= 1.0
    if n > 1000:
        assert solver.lam < 1e-3 * n / 4  # and hardly matters
        with pytest.raises(ValueError, match=r"lam must be at least .* got 1: sums in float64"):
            ObjectivePerturbation.for_budget(problem, n, budget, lam=1.0)
        with pytest.raises(ValueError, match="DPSGD needs no such sums"):
            ObjectivePerturbation.for_budget(problem, 10**13, Budget(1.0, 1e-20))


@pytest.mark.slow  # a million records
@pytest.mark.parametrize("alike", [True, False])
def test_the_certificate_is_seen_with_a_million_records(alike):
    n, problem = 2**20, LinearModel("huber", 1)
    solver = ObjectivePerturbation.for_budget(problem, n, Budget(300.0, 1e-9))
    x = jnp.ones((n, 1)) if alike else jax.random.uniform(jax.random.key(1), (n, 1), minval=-1.0)
    data = {"x": x, "y": (jnp.arange(n) % 3 == 0).astype(jnp.float32)}
    state = solver.init(problem, key=jax.random.key(0))
    step = jax.jit(lambda data, state: solver.step(problem, data, jnp.ones(n, bool), state)[0])
    assert 0 < step(data, state).residual <= solver.lam * solver.accuracy
