"""Lengths of inputs and sizes of labels that solvers of linear models draw: law, cost, and use."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from scipy import optimize, special

import dpjax
from dpjax.privacy import Budget, Guarantee
from dpjax.problems import LinearModel
from dpjax.solvers import ObjectivePerturbation, SufficientStatistics
from dpjax.solvers.erm import (
    _draws,
    _minimise,
    _objective_perturbation,
    _sufficient_statistics,
)
from dpjax.solvers.erm._draws import beyond_drawn, drawn_share, length_range, pure_event
from tests.solvers.drawn_shares import EDGES, check_law

FULL = dpjax.sampling.FullBatch(1)


def _as_given(sizes):
    return sizes


def records(n=400, p=3, length=0.25, seed=0):
    """Rows of a quarter of the bound, some zero, some beyond it; labels of two signs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    x *= length / np.linalg.norm(x, axis=1, keepdims=True)
    y = 0.3 * np.sign(x[:, 0] + 0.1 * length * rng.normal(size=n))
    x[0], x[1], x[2] = 0.0, 1e30, np.nan
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


@pytest.mark.always  # the claim
def test_a_share_has_the_law_that_its_cost_is_for():
    eta, beyond = 0.8, 4
    sizes = np.concatenate([np.zeros(9), 2.0 ** -np.linspace(0, 4, 41), [7.0, np.inf, np.nan]])
    mask = np.arange(len(sizes)) % 7 > 0
    inputs = jnp.asarray(sizes, jnp.float32), jnp.asarray(mask)
    check_law(
        lambda key: drawn_share(key, _as_given, *inputs, beyond, eta), sizes[mask], beyond, eta
    )


@pytest.mark.always  # the claim
def test_rows_of_nothing_count_with_the_bound():
    """So that few others do not leave the draw to its tilt."""
    eta, beyond = 0.8, 4
    sizes = np.concatenate([np.zeros(9), 2.0 ** -np.linspace(1, 5, 41), [np.nan]])
    as_bound = np.where(sizes > 0, sizes, 1.0)
    inputs = jnp.asarray(sizes, jnp.float32), jnp.ones(len(sizes), bool)
    check_law(
        lambda key: drawn_share(key, _as_given, *inputs, beyond, eta, none_at=0),
        as_bound,
        beyond,
        eta,
    )


@pytest.mark.parametrize("rows", [50, 400, 600])
@pytest.mark.parametrize("none_at", [0, 16])
def test_of_indicators_that_are_mostly_zero_no_tiny_length_is_drawn(rows, none_at):
    sizes, mask = 2.0**-none_at * (jnp.arange(1000) < rows), jnp.ones(1000, bool)
    inputs = _as_given, sizes, mask, 4, length_range(1000, 1.0)
    keys = jax.random.split(jax.random.key(3), 2000)
    draw = jax.vmap(lambda key: drawn_share(key, *inputs, none_at=none_at))
    assert np.mean(np.asarray(jax.jit(draw)(keys)) < 0.9 * 2.0**-none_at) < 0.003


@pytest.mark.slow  # compiles a float64 solver
def test_a_feature_that_is_mostly_zero_keeps_its_weight_within_reason():
    rng = np.random.default_rng(0)
    x = (rng.random((1000, 1)) < 0.4).astype(np.float32)
    data = {"x": x, "y": (rng.random(1000) < 0.3 + 0.4 * x[:, 0]).astype(np.float32)}
    problem = LinearModel("logistic", 1, intercept=1.0)
    solver = ObjectivePerturbation.for_budget(problem, 1000, Budget(1.0, 1e-6))
    found = jax.vmap(lambda key: dpjax.solve(solver, problem, data, key=key).params)(
        jax.random.split(jax.random.key(0), 20)
    )
    assert np.all(np.abs(found) < 4)


@pytest.mark.parametrize("size", [1.0, 0.3, 1e-2, 1e-4])
def test_rows_of_one_length_are_found_below_any_bound(size):
    """Counts below an edge say nothing of how far it is above them all."""
    sizes, mask = jnp.full(1000, size), jnp.ones(1000, bool)
    keys = jax.random.split(jax.random.key(3), 4000)
    inputs = _as_given, sizes, mask, 4, length_range(1000, 1.0)
    draw = jax.jit(jax.vmap(lambda key: drawn_share(key, *inputs)))
    over = np.asarray(draw(keys)) / size
    assert np.mean((over >= 1 - 1e-6) & (over < 1.1)) > 0.97
    assert np.mean(over < 0.5) < 0.01


def test_no_range_is_no_draw():
    inputs = _as_given, jnp.full(50, 0.1), jnp.ones(50, bool)
    none = drawn_share(jax.random.key(0), *inputs, 4, 0.0)
    assert float(none) == 1.0


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 4.0])
def test_the_event_of_a_draw_dominates_all_pure_ones(relation, epsilon):
    """Two outcomes with odds e^epsilon are the worst of all epsilon-DP mechanisms."""
    guarantee = Guarantee(pure_event(epsilon, relation), relation)
    pure = epsilon if relation == "replace_one" else epsilon + epsilon**2 / 4
    assert epsilon * (1 - 1e-9) <= guarantee.epsilon(0.0) <= pure * (1 + 1e-9)
    likely = math.exp(epsilon) / (1 + math.exp(epsilon))
    for part in np.linspace(0.01, 0.99, 15):
        exact = likely - math.exp(part * epsilon) * (1 - likely)
        found = guarantee.delta(part * epsilon)
        above = 0.0 if relation == "replace_one" else math.expm1(part * epsilon / 2) ** 2
        above /= 1 + math.exp(epsilon)
        assert exact * (1 - 1e-12) <= found <= exact + above + 0.01 * epsilon + 1e-6


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_guarantees_with_draws_compose_with_all_others(relation):
    """With draws of bounded range too, which only the accountant of zCDP takes."""
    problem, budget = LinearModel("squared", 5, 2.0), Budget(1.0, 1e-6, relation)
    one = SufficientStatistics.for_budget(problem, 20_000, budget).guarantee()
    others = [
        Guarantee(dpjax.privacy.PureZCDpEvent(0.01, epsilon=0.28), relation),
        dpjax.solvers.DPSGD.for_budget(problem, 20_000, budget).guarantee(),
    ]
    for other in others:
        both = dpjax.privacy.compose_guarantees(one, other).epsilon(1e-6)
        assert one.epsilon(1e-6) < both < one.epsilon(1e-6) + other.epsilon(1e-6) + 0.1
    assert math.isfinite(dpjax.privacy.group_guarantee(one, 2).epsilon(1e-6))


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
@pytest.mark.parametrize(
    ("kind", "delta"),
    [(ObjectivePerturbation, 0.0), (ObjectivePerturbation, 1e-6), (SufficientStatistics, 1e-6)],
)
def test_a_draw_is_charged_and_the_budget_met(kind, delta, relation):
    problem = LinearModel("squared", 5, 2.0, intercept=1.0)
    budget = Budget(1.0, delta, relation)
    solver = kind.for_budget(problem, 20_000, budget)
    without = kind.for_budget(problem, 20_000, budget, length_range=0.0)
    assert solver.length_range == pytest.approx(0.01)
    for made in (solver, without):
        assert 0.999 < made.guarantee().epsilon(delta) <= 1.0
    # the same noise with a draw of more costs as much more, or less where draws and noise compose
    more = dataclasses.replace(solver, length_range=0.31)
    assert more.guarantee().epsilon(delta) > (1.25 if kind is ObjectivePerturbation else 1.05)
    free = dataclasses.replace(solver, length_range=0.0).guarantee().epsilon(delta)
    assert free < solver.guarantee().epsilon(delta)
    few = kind.for_budget(problem, 100, budget)
    assert few.length_range == 0.0


def test_what_two_draws_and_noise_cost_together():
    solver = SufficientStatistics(FULL, 9.0, 9.0, length_range=0.2)
    alone = dataclasses.replace(solver, length_range=0.0).guarantee()
    both = dpe.ComposedDpEvent([alone.event, *2 * [pure_event(0.2, "replace_one")]])
    found = solver.guarantee().epsilon(1e-6)
    assert found == Guarantee(both, "replace_one").epsilon(1e-6)
    assert alone.epsilon(1e-6) + 0.1 < found <= alone.epsilon(1e-6) + 0.4


def test_a_solver_draws_with_the_range_that_it_is_charged_for(monkeypatch):
    seen = []

    def spy(key, sizes_of, batch, mask, beyond, eta, **options):
        seen.append((round(float(eta), 6), beyond))
        return drawn_share(key, sizes_of, batch, mask, beyond, eta, **options)

    for module in (_objective_perturbation, _sufficient_statistics):
        monkeypatch.setattr(module, "drawn_share", spy)
    problem, data = LinearModel("huber", 3, 1.0), records()
    mask = jnp.ones(400, bool)
    bounds = problem.slope_bounds()
    both = ObjectivePerturbation(
        FULL, bounds, 3.0, 2.0, 1e-6, 1e-3, quantile_range=0.3, length_range=0.2, longer=7, beyond=9
    )
    with jax.disable_jit():
        both._share(jax.random.key(0), problem, data, mask)
    both.step(problem, data, mask, both.init(problem, key=jax.random.key(0)))
    assert set(seen) == {(0.3, 9), (0.2, 7)}
    assert both.guarantee().prior == pytest.approx(0.5)
    seen.clear()
    sums = SufficientStatistics(FULL, 3.0, 2.0, length_range=0.2, longer=7, beyond=9)
    sums.step(problem, data, mask, sums.init(problem, key=jax.random.key(0)))
    assert seen == [(0.2, 7), (0.2, 9)]


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.float32, jnp.int32])
@pytest.mark.parametrize("share", [1.0, 0.3, EDGES[0]])
@pytest.mark.always  # the claim
def test_rows_are_within_the_drawn_length(share, dtype):
    problem = LinearModel("logistic", 3, feature_bound=2.0, intercept=0.5)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)) * 10.0 ** rng.integers(-6, 5, size=(60, 1))
    x[0], x[1] = np.inf, 1e38
    with np.errstate(all="ignore"):
        batch = {"x": jnp.asarray(x.astype(dtype)), "y": jnp.ones(60)}
    inside, _ = problem.prepare(batch, jnp.float32(share))
    norms = np.linalg.norm(np.asarray(inside, float)[:, :3], axis=1)
    assert norms.max() <= 2.0 * share * (1 + 1e-6)
    short = np.linalg.norm(np.asarray(problem.prepare(batch)[0], float)[:, :3], axis=1)
    short = short <= 2.0 * share
    assert short.any() or share < 0.1
    np.testing.assert_array_equal(inside[short], problem.prepare(batch)[0][short])
    lengths = np.asarray(problem.feature_lengths(batch), float)
    assert lengths.max() <= 1 + 1e-6
    np.testing.assert_allclose(np.minimum(lengths, share), norms / 2.0, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("rows", [31, 33, 1001])
@pytest.mark.parametrize("dim", [1, 3, 17])
def test_a_length_does_not_depend_on_the_place_of_a_row(rows, dim):
    """Else one record that is taken out could move all others, at an edge of bins."""
    problem = LinearModel("squared", dim, 1.0, feature_bound=1.3, label_bound=0.7)
    rng = np.random.default_rng(rows)

    @jax.jit
    def seen(batch):
        sizes = problem.feature_lengths(batch), jnp.abs(batch["y"]) / problem.label_bound
        return jnp.stack([*sizes, *(jnp.floor(-8 * jnp.log2(size)) for size in sizes)])

    for _ in range(10):
        row, edges = rng.normal(size=dim), 2.0 ** (-rng.integers(0, 20, size=2) / 8)
        row *= 1.3 * edges[0] / np.linalg.norm(row)
        batch = {
            "x": jnp.tile(jnp.asarray(row, jnp.float32), (rows, 1)),
            "y": jnp.full(rows, 0.7 * edges[1], jnp.float32),
        }
        assert np.all(np.ptp(np.asarray(seen(batch)), axis=1) == 0)


@pytest.mark.always  # the claim
@pytest.mark.parametrize("dim", [5, 17, 64])
def test_a_length_does_not_depend_on_the_number_of_rows(dim):
    """By the shape of a batch XLA adds squares in another order: rows at an edge would all move."""
    problem = LinearModel("logistic", dim, 2.0, feature_bound=1.0)
    rng = np.random.default_rng(dim)
    rows = rng.normal(size=(40, dim))
    rows *= 2.0 ** (-rng.integers(4, 20, size=(40, 1)) / 8) / np.linalg.norm(rows, axis=1)[:, None]
    found = []
    for n in (60, 64, 241, 821, 1024, 1025):  # with lengths of all rows at once these differ

        @jax.jit
        def drawn(x):
            batch, mask = {"x": x, "y": x[:, 0]}, jnp.isfinite(x[:, 0])
            return drawn_share(jax.random.key(0), problem.feature_lengths, batch, mask, 4, 100.0)

        tiled = (np.tile(np.float32(row), (n, 1)) for row in rows)
        found.append([float(drawn(jnp.asarray(x))) for x in tiled])
    assert np.ptp(found, axis=0).max() == 0
    assert len(np.unique(found[0])) > 5


@pytest.mark.parametrize("intercept", [None, 0.1, 1.0, 5.0])
@pytest.mark.parametrize("share", [1.0, 0.4, 0.05, 1e-7])
def test_inputs_stay_within_the_slopes_that_the_noise_is_for(share, intercept):
    """As if the problem had been stated for shorter inputs, on a ball that is no larger."""
    problem = LinearModel("logistic", 3, 2.0, feature_bound=1.5, intercept=intercept)
    shorter, factors = _draws.shorter_inputs(problem, jnp.float32(share))
    constant = 0.0 if intercept is None else intercept * float(factors[-1])
    assert float(shorter) * problem.input_bound == pytest.approx(math.hypot(1.5 * share, constant))
    assert share * (1 - 1e-6) <= float(shorter) <= 1 + 1e-6
    # parameters in the ball are no longer, in units in which such inputs are of full length
    most = 2.0 / np.asarray(factors, float) * float(shorter)
    assert most.max() <= 2.0 * (1 + 1e-6)


def forced(monkeypatch, share, label=1.0):
    """Makes solvers draw this length, and this size of labels."""
    every = iter(())

    def draw(*_, **__):
        nonlocal every
        value = next(every, None)
        if value is None:
            every = iter((share, label))
            value = next(every)
        return jnp.float32(value)

    monkeypatch.setattr(_sufficient_statistics, "drawn_share", draw)
    monkeypatch.setattr(_objective_perturbation, "drawn_share", lambda *_, **__: jnp.float32(share))


@pytest.mark.slow  # compiles a float64 solver for each
@pytest.mark.parametrize("intercept", [None, 0.2, 1.0])
@pytest.mark.parametrize("radius", [None, 1.5])
def test_without_noise_it_is_the_minimiser_for_shorter_rows(intercept, radius, monkeypatch):
    """So much regulariser as a record of that length is hidden by."""
    share, lam = 0.25, 3.0
    forced(monkeypatch, share)
    problem = LinearModel("logistic", 3, radius, feature_bound=2.0, intercept=intercept)
    data = records(length=1.0)
    data["y"] = jnp.sign(data["y"])
    solver = ObjectivePerturbation(
        FULL, problem.slope_bounds(), 1e-6, lam, 1e-7, 1e-7, length_range=0.1
    )
    found = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    assert float(found.state.length) == pytest.approx(0.5)
    x = np.asarray(data["x"], float)
    x[~np.isfinite(x).all(axis=1)] = 0.0
    good = np.isfinite(np.asarray(data["x"])).all(axis=1)
    x *= (0.5 / np.maximum(np.linalg.norm(x, axis=1), 0.5))[:, None]
    penalty = np.full(x.shape[1], 1.0)
    constant = 0.0
    if intercept is not None:
        constant = min(intercept, share * max(2.0, intercept))
        x = np.concatenate([x, np.where(good, intercept, 0.0)[:, None]], axis=1)
        penalty = np.append(penalty, (intercept / constant) ** 2)
    whole = math.hypot(2.0, intercept or 0.0)
    penalty *= lam * (0.25 + constant**2) / whole**2
    signs = np.where(np.asarray(data["y"]) > 0, 1.0, -1.0)

    def value(w):
        margins = signs * (x @ w)
        slopes = -signs * special.expit(-margins)
        return np.logaddexp(0, -margins).sum() + penalty @ w**2 / 2, slopes @ x + penalty * w

    ball = [{"type": "ineq", "fun": lambda w: radius**2 - w @ w, "jac": lambda w: -2 * w}]
    best = optimize.minimize(
        value,
        np.full(x.shape[1], 0.01),
        jac=True,
        method="SLSQP",
        constraints=ball if radius else [],
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(found.params, best.x, atol=3e-4)


@pytest.mark.slow  # compiles a float64 solver
@pytest.mark.parametrize("noise", ["gaussian", "gamma"])
def test_noise_follows_the_drawn_length(noise, monkeypatch):
    """Without records the minimiser is the noise over the regulariser."""
    share, scale, lam, dim = 0.25, 5.0, 2.0, 40
    forced(monkeypatch, share)
    problem = LinearModel("logistic", dim - 1, feature_bound=2.0, intercept=1.0)
    solver = ObjectivePerturbation(
        FULL, problem.slope_bounds(), scale, lam, 1e-9, 1e-9, length_range=0.1, noise=noise
    )
    empty = {"x": jnp.zeros((1, dim - 1)), "y": jnp.zeros(1)}
    batch = jax.jit(
        jax.vmap(
            lambda key: solver.step(
                problem, empty, jnp.zeros(1, bool), solver.init(problem, key=key)
            )[0]
        )
    )(jax.random.split(jax.random.key(2), 500))
    shorter, constant = math.hypot(0.5, 0.5) / math.hypot(2.0, 1.0), 0.5
    inputs = np.asarray(batch.params, float) / np.append(np.ones(dim - 1), constant)
    found = -inputs * lam * shorter / scale  # of noise over its scale, for full inputs
    expected = 1.0 if noise == "gaussian" else math.sqrt(dim + 1)
    for part in (found[:, :-1], found[:, -1:]):
        deviation = math.sqrt(np.mean(part**2))
        # a foil of 2/3 or 3/2 would fail
        assert deviation == pytest.approx(expected, rel=0.15)


@pytest.mark.slow  # compiles a float64 solver
@pytest.mark.parametrize("noise", ["gaussian", "gamma"])
def test_the_noise_that_hides_inaccuracy_grows_as_rows_shrink(noise, monkeypatch):
    """As the distance that it hides, of the weight of an intercept less."""
    share, output, dim = 0.25, 3.0, 40
    forced(monkeypatch, share)
    problem = LinearModel("logistic", dim - 1, feature_bound=2.0, intercept=1.0)
    solver = ObjectivePerturbation(
        FULL, problem.slope_bounds(), 1e-9, 2.0, 1e-9, output, length_range=0.1, noise=noise
    )
    empty = {"x": jnp.zeros((1, dim - 1)), "y": jnp.zeros(1)}

    def params(key):
        state = solver.init(problem, key=key)
        return solver.step(problem, empty, jnp.zeros(1, bool), state)[0].params

    found = jax.jit(jax.vmap(params))(jax.random.split(jax.random.key(2), 500))
    shorter = math.hypot(0.5, 0.5) / math.hypot(2.0, 1.0)
    found = np.asarray(found, float) / np.append(np.ones(dim - 1), 0.5) * shorter / output
    expected = 1.0 if noise == "gaussian" else math.sqrt(dim + 1)
    for part in (found[:, :-1], found[:, -1:]):
        assert math.sqrt(np.mean(part**2)) == pytest.approx(expected, rel=0.15)


@pytest.mark.always  # a run that does not end is no run
@pytest.mark.parametrize("radius", [None, 1.0])
def test_certificates_are_met_whatever_is_drawn(radius, monkeypatch):
    """Also where next to nothing is left of rows, labels and an intercept."""
    problem = LinearModel(
        "huber", 3, radius, intercept=0.5, **({} if radius else {"threshold": 1.0})
    )
    solver = ObjectivePerturbation(
        FULL, problem.slope_bounds(), 1.0, 1e-4, 1e-6, 1e-4, quantile_range=0.2, length_range=0.3
    )

    def certified(objective, goal):
        params, residual = _minimise.minimise(objective, goal)
        return params, residual / goal

    monkeypatch.setattr(_objective_perturbation, "minimise", certified)
    data, everybody = records(n=60), jnp.ones(60, bool)
    data["y"] = jnp.where(jnp.isfinite(data["x"][:, 0]), data["x"][:, 0] / 2, 0.0)  # no errors

    @jax.jit
    def run(threshold, length):
        drawn = iter((threshold, length))
        monkeypatch.setattr(_objective_perturbation, "drawn_share", lambda *_, **__: next(drawn))
        state = solver.init(problem, key=jax.random.key(0))
        return solver.step(problem, data, everybody, state)[0]

    for threshold in 2.0 ** -np.asarray([0.0, 12.0, 32.0]):
        for length in 2.0 ** -np.asarray([0.0, 12.0, 32.0]):
            state = run(jnp.float32(threshold), jnp.float32(length))
            assert 0 <= state.residual <= 1, (threshold, length)
            assert np.all(np.isfinite(state.params))


@pytest.mark.slow  # compiles a float64 solver
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_the_noise_of_sums_costs_as_much_whatever_is_drawn(relation, monkeypatch):
    forced(monkeypatch, 0.25, 0.1)
    problem = LinearModel("squared", 30, 4.0, feature_bound=2.0, intercept=1.0)
    solver = SufficientStatistics(FULL, 4.0, 2.0, length_range=0.1, relation=relation)
    empty = {"x": jnp.zeros((1, 30)), "y": jnp.zeros(1)}
    states = jax.jit(
        jax.vmap(lambda key: dpjax.solve(solver, problem, empty, key=key, progress=False).state)
    )(jax.random.split(jax.random.key(1), 200))
    assert np.ptp(np.asarray(states.length)) == 0 == np.ptp(np.asarray(states.label))
    gram = np.asarray(states.gram, float)[:, range(30), range(30)]
    moment = np.asarray(states.moment, float)
    # the constant of the intercept is in each row, also of one that is otherwise 0
    shorter = math.hypot(0.5, 0.5)
    gram[:, -1] -= 0.25 / shorter**2
    found = [math.sqrt(np.mean(np.square(a[:, :-1]))) for a in (gram, moment)]
    change = _sufficient_statistics.statistics_change
    costs = change(1 / found[0], 1 / found[1], relation), change(1 / 4.0, 1 / 2.0, relation)
    assert costs[0] == pytest.approx(costs[1], rel=0.04)
    assert found[0] / found[1] != pytest.approx(2.0, rel=0.1)  # the better ratio


@pytest.mark.slow  # compiles a float64 solver
def test_sums_without_noise_are_regression_on_shorter_rows(monkeypatch):
    forced(monkeypatch, 0.25, 0.25)
    problem = LinearModel("squared", 3, 3.0, feature_bound=2.0, label_bound=0.8, intercept=1.0)
    data = records(length=1.0)
    solver = SufficientStatistics(FULL, 1e-9, 1e-9, length_range=0.1)
    found = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    assert float(found.state.length) == pytest.approx(0.5)
    assert float(found.state.label) == pytest.approx(0.2)
    x = np.asarray(data["x"], float)
    good = np.isfinite(x).all(axis=1)
    x = x[good] * (0.5 / np.maximum(np.linalg.norm(x[good], axis=1), 0.5))[:, None]
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    best = np.linalg.lstsq(x, np.clip(np.asarray(data["y"], float)[good], -0.2, 0.2))[0]
    assert np.linalg.norm(best) < 3.0
    np.testing.assert_allclose(found.params, best, atol=2e-4)


def test_rules_of_the_draws():
    assert length_range(100, 1.0) == 0.0  # too few records
    assert length_range(1000, 1.0) == pytest.approx(0.06)
    assert length_range(10**6, 1.0) == pytest.approx(0.01)
    assert beyond_drawn(1000, 1.0, 10) == (4, 4, 4)
    assert beyond_drawn(200_000, 1.0, 16) == (33, 125, 167)
    assert beyond_drawn(10**8, 1.0, 1) == (1000, 1000, 1000)


@pytest.mark.slow  # compiles float64 solvers
@pytest.mark.parametrize(
    ("link", "radius"), [("logistic", None), ("logistic", 64.0), ("huber", 8.0), ("squared", 8.0)]
)
def test_a_loose_bound_costs_little(link, radius):
    """Features of a twentieth of the stated bound, on average over seeds."""
    rng = np.random.default_rng(3)
    n, dim = 20_000, 5
    x = rng.normal(size=(n, dim)) / math.sqrt(dim)
    margins = 2 * x @ np.ones(dim) + 0.5
    if link == "logistic":
        y = np.where(margins + rng.logistic(size=n) > 0, 1.0, -1.0)
    else:
        y = (margins + 0.5 * rng.normal(size=n)) / 60.0
    data = {"x": jnp.asarray(x / 20.0, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
    problem = LinearModel(link, dim, radius, intercept=1.0)
    wide = jnp.concatenate([data["x"], jnp.ones((n, 1))], axis=1)

    def loss(w):
        margins = wide @ w
        if link == "logistic":
            return jnp.mean(jax.nn.softplus(-data["y"] * margins))
        return jnp.mean((margins - data["y"]) ** 2) / 2

    exact = optimize.minimize(
        jax.jit(jax.value_and_grad(loss)), np.zeros(dim + 1), jac=True, method="BFGS"
    )
    start = float(loss(jnp.zeros(dim + 1))) - exact.fun
    budget = Budget(1.0, 1e-6)

    def excess(**options):
        solver = type(dpjax.solvers.linear_model_solver(problem, n, budget)).for_budget(
            problem, n, budget, **options
        )
        keys = jax.random.split(jax.random.key(4), 4)
        run = jax.jit(
            jax.vmap(lambda key: dpjax.solve(solver, problem, data, key=key, progress=False).params)
        )
        return float(np.mean([float(loss(w)) - exact.fun for w in run(keys)])) / start

    drawn, stated = excess(), excess(length_range=0.0)
    assert drawn < 0.2
    assert drawn < 0.25 * stated
