"""Objective perturbation in the metric of noisy second moments, with slopes held to a share."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

import dpjax
from dpjax.privacy import Budget, SlopeBounds
from dpjax.problems import LinearModel
from dpjax.solvers import ObjectivePerturbation
from dpjax.solvers.erm import _draws, _minimise, _moments, _objective_perturbation
from dpjax.solvers.erm._moments import (
    inputs_in_metric,
    metric_and_lengths,
    noisy_symmetric,
    statistics_change,
    swamped,
)
from dpjax.solvers.erm._objective_plan import held_bounds

FULL = dpjax.sampling.FullBatch(1)
RELATIONS = ["replace_one", "add_or_remove_one"]


def records(n=300, p=3, offset=3.0, seed=0):
    """Off centre, labels of two signs, one row of zeros, one huge and one broken."""
    rng = np.random.default_rng(seed)
    x = offset + rng.normal(size=(n, p))
    y = np.sign(x @ np.array([1.0, -1.0, 0.5]) - 0.5 * offset + rng.logistic(size=n))
    x[0], x[1], x[2] = 0.0, 1e30, np.nan
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def forced(monkeypatch, *shares):
    """Draws of lengths, in order."""
    drawn = itertools.cycle(shares)
    monkeypatch.setattr(
        _objective_perturbation, "drawn_share", lambda *_, **__: jnp.float32(next(drawn))
    )


def solver_of(problem, **fields):
    fields = {"scale": 1e-7, "lam": 2.0, "accuracy": 1e-8, "output_scale": 1e-8} | fields
    return ObjectivePerturbation(FULL, problem.slope_bounds(), **fields)


def held(problem, y, steepest):
    return _minimise.held_slopes(
        lambda margins: problem.slopes(margins, y),
        lambda margins: problem.curvatures(margins, y),
        jnp.float32(steepest),
    )


def in_double(function):
    return lambda *arrays: jax.tree.map(np.asarray, _minimise.in_double(function)(*arrays))


@pytest.mark.slow  # compiles a float64 solver for each
@pytest.mark.parametrize("link", ["logistic", "huber"])
@pytest.mark.parametrize("intercept", [None, 0.7])
def test_without_noise_it_is_the_minimiser_in_the_metric(link, intercept, monkeypatch):
    share, longest, held_to, lam = 0.5, 0.8, 0.6, 3.0
    forced(monkeypatch, share, longest)
    threshold = {"threshold": 0.8} if link == "huber" else {}
    problem = LinearModel(link, 3, feature_bound=8.0, intercept=intercept, **threshold)
    # large noise on second moments has a draw of its own; with this, they are nearly exact
    gram = 3.0
    solver = solver_of(problem, lam=lam, gram_stddev=gram, slope_share=held_to, length_range=0.1)
    monkeypatch.setattr(_moments, "noisy_symmetric", lambda sums, *_: sums)
    data = records()
    found = dpjax.solve(solver, problem, data, key=jax.random.key(0))

    x, y = np.asarray(data["x"], float), np.asarray(data["y"], float)
    good = np.isfinite(x).all(axis=1)
    x, y = x[good], np.clip(y[good], -1, 1)
    x *= np.minimum(1, 4.0 / np.maximum(np.linalg.norm(x, axis=1), 1e-9))[:, None]
    unit = x / 4.0
    if intercept is not None:
        x = np.concatenate([x, np.full((len(x), 1), intercept)], axis=1)
        unit = np.concatenate([unit, np.ones((len(x), 1))], axis=1) / math.sqrt(2)
    factors = unit[5] / x[5]
    values, basis = np.linalg.eigh(unit.T @ unit)
    eta = math.sqrt(2 * len(factors)) * gram * (1 + 3e-4)  # what rounding is allowed for
    metric = basis @ np.diag(np.sqrt(eta / (values + eta))) @ basis.T
    v = unit @ metric
    v *= problem.input_bound / np.maximum(np.linalg.norm(v, axis=1), longest)[:, None]
    steepest = held_to * problem.slope_bounds().slope / problem.input_bound

    def gradient(p):
        margins = v @ p
        if link == "logistic":
            slopes = -y * special.expit(-y * margins)
        else:
            slopes = np.clip(margins - y, -0.8, 0.8)
        return np.clip(slopes, -steepest, steepest) @ v + lam * p

    best = optimize.root(gradient, np.zeros(v.shape[1]), tol=1e-12)
    assert np.linalg.norm(gradient(best.x)) < 1e-8
    expected = factors * (metric @ best.x) * problem.input_bound / longest
    np.testing.assert_allclose(found.params, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.always  # noise as claimed
def test_the_noise_of_second_moments_and_its_foils():
    dim, stddev = 120, 3.0
    draws = jax.random.normal(jax.random.key(4), (dim, dim))
    sums = 1e3 * jnp.ones((dim, dim))
    noise = np.asarray(noisy_symmetric(sums, jnp.float32(stddev), draws)) - 1e3
    np.testing.assert_array_equal(noise, noise.T)
    above = noise[np.triu_indices(dim, 1)]
    for part, deviation in ((np.diag(noise), stddev), (above, stddev / math.sqrt(2))):
        # a foil of 2/3 or 3/2 would fail
        assert 0.8 < np.std(part) / deviation < 1.2
    # isotropic in the Frobenius norm, in which the change is measured
    assert np.sum(noise**2) / (stddev**2 * dim * (dim + 1) / 2) == pytest.approx(1.0, abs=0.1)


@pytest.mark.always  # noise as claimed
def test_a_run_has_the_noise_of_second_moments_that_it_is_charged_for():
    """Without records the metric is that of noise alone, from which half of it can be read."""
    dim = 60
    problem = LinearModel("logistic", dim)
    empty = {"x": jnp.zeros((1, dim)), "y": jnp.zeros(1)}
    for stddev, seed in ((1.0, 5), (40.0, 6)):
        solver = solver_of(problem, gram_stddev=stddev, length_range=0.1)
        noise, drawn = jax.random.split(jax.random.key(seed), 2)
        metric, longest = solver._metric(
            noise, drawn, problem, empty, jnp.zeros(1, bool), jnp.ones(())
        )
        eta = swamped(stddev, dim) * (1 + 3e-4)
        values = eta * (1 / np.linalg.eigvalsh(np.asarray(metric, float)) ** 2 - 1)
        # eigenvalues of noise are symmetric about 0, and of the negative ones nothing is left
        found = 2 * np.sum(values**2) / (dim * (dim + 1) / 2)
        assert 0.75 < math.sqrt(found) / stddev < 1.25
        assert 0 < longest <= 1


@pytest.mark.slow  # compiles a float64 solver
def test_noise_in_the_metric_and_its_foils(monkeypatch):
    """Without records the minimiser is the noise over the regulariser, mapped back."""
    scale, lam, dim, longest = 5.0, 2.0, 40, 0.5
    forced(monkeypatch, 1.0, longest)
    problem = LinearModel("logistic", dim, feature_bound=2.0)
    empty = {"x": jnp.zeros((1, dim)), "y": jnp.zeros(1)}
    monkeypatch.setattr(_moments, "noisy_symmetric", lambda sums, *_: sums)
    for fields, expected in (
        ({"scale": scale}, scale / lam),
        ({"output_scale": 5.0}, 5.0),
    ):
        solver = solver_of(problem, lam=lam, gram_stddev=1.0, length_range=0.1, **fields)

        def run(key, solver=solver):
            state = solver.init(problem, key=key)
            return solver.step(problem, empty, jnp.zeros(1, bool), state)[0].params

        params = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(2), 200))
        # the metric is the identity, and inputs of `input_bound` are those of features / longest
        assert np.std(np.asarray(params)) * longest == pytest.approx(expected, rel=0.1)


ROWS = [
    [1.0, 0.0, 0.0],
    [-1.0, 0.0, 0.0],
    [0.0, 1.0, 0.0],
    [0.6, -0.8, 0.0],
    [0.0, 0.0, 0.0],
    [1e30, 1e30, -1e30],
    [3.0, 2.0, 1.0],
    [1e-30, 0.0, 0.0],
    [math.inf, 0.0, 0.0],
    [math.nan, 1.0, 1.0],
]


@pytest.mark.parametrize("intercept", [None, 0.3, 5.0])
def test_no_record_changes_more_than_is_charged_for(intercept):
    """Second moments, inputs in any metric, and gradients with slopes held, over neighbours."""
    problem = LinearModel("logistic", 3, feature_bound=0.7, intercept=intercept)
    x = jnp.asarray(ROWS * 2, jnp.float32)
    data = {"x": x, "y": jnp.asarray([1.0] * len(ROWS) + [-1.0] * len(ROWS))}
    everybody, length = jnp.ones(len(x), bool), jnp.float32(0.5)
    grams = []

    def spied(sums, *_):
        grams.append(sums)
        return sums

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_moments, "noisy_symmetric", spied)
        with jax.disable_jit(), jax.enable_x64(True):
            for i in range(len(x)):
                one = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], data)
                dim = problem.num_params
                metric_and_lengths(
                    problem, one, everybody[:1], jnp.zeros((dim, dim)), length, jnp.ones(())
                )
    grams = np.stack(grams)
    changes = np.linalg.norm((grams[:, None] - grams[None]).reshape(-1, dim * dim), axis=1)
    alone = np.linalg.norm(grams.reshape(-1, dim * dim), axis=1)
    assert 0.5 * statistics_change(1.0, 0.0, "add_or_remove_one") < alone.max() <= 1 + 1e-6
    assert changes.max() <= statistics_change(1.0, 0.0, "replace_one") * (1 + 1e-6)
    if intercept is None:
        assert changes.max() > 0.99 * statistics_change(1.0, 0.0, "replace_one")

    rng = np.random.default_rng(1)
    for scale in (1e-6, 1.0, 1e6):
        matrix = jnp.asarray(scale * rng.normal(size=(dim, dim)), jnp.float32)
        longest = jnp.float32(0.3 * min(scale, 1.0))
        inputs = in_double(
            lambda matrix, longest: tuple(
                a.astype(jnp.float32)
                for a in inputs_in_metric(
                    problem,
                    data,
                    everybody,
                    length.astype(jnp.float64),
                    matrix.astype(jnp.float64),
                    longest.astype(jnp.float64),
                )
            )
        )(matrix, longest)[0]
        assert np.all(np.isfinite(inputs))
        assert np.linalg.norm(inputs, axis=1).max() <= problem.input_bound * (1 + 1e-6)
        own = problem.slope_bounds()
        bounds = held_bounds(own, 0.75, in_metric=True)
        slopes, _ = held(problem, data["y"], 0.75 * own.slope / problem.input_bound)
        for length_of_p in (0.0, 1.0, 1e3):
            p = jnp.asarray(length_of_p * rng.normal(size=dim), jnp.float32)
            each = np.asarray(slopes(inputs @ p))[:, None] * inputs
            pairs = np.linalg.norm((each[:, None] - each[None]).reshape(-1, dim), axis=1)
            assert np.linalg.norm(each, axis=1).max() <= bounds.slope * (1 + 1e-6)
            assert pairs.max() <= bounds.largest_change * (1 + 1e-6)


def test_held_slopes_are_those_of_a_convex_smooth_loss():
    problem = LinearModel("logistic", 1)
    margins = jnp.linspace(-8, 8, 4001)
    for y in (1.0, -1.0):
        slopes, curvatures = held(problem, jnp.asarray(y), 0.7)
        values = np.asarray(slopes(margins), float)
        steps = np.diff(values) / np.diff(np.asarray(margins, float))
        assert np.all(steps >= 0)
        assert np.max(steps) <= 0.25 * (1 + 1e-2)
        assert np.max(np.abs(values)) == pytest.approx(0.7)
        middle = np.asarray(curvatures((margins[1:] + margins[:-1]) / 2), float)
        assert np.mean(np.abs(middle - steps) > 0.01) < 1e-3  # but where it bends


def test_held_bounds():
    own = SlopeBounds(0.25, 0.9, False, 1.3)
    assert held_bounds(own, 1.0, in_metric=False) == own
    assert held_bounds(own, 0.5, in_metric=False) == SlopeBounds(0.25, 0.45, False, 0.9)
    # in a metric directions and slopes may be any
    assert held_bounds(own, 1.0, in_metric=True) == SlopeBounds(0.25, 0.9, False, 1.8, True)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("link", ["logistic", "huber"])
def test_second_moments_and_their_draw_are_charged(link, relation):
    problem = LinearModel(link, 8, intercept=1.0)
    budget = Budget(1.0, 1e-6, relation)
    solver = ObjectivePerturbation.for_budget(problem, 20_000, budget)
    assert solver.gram_stddev is not None
    assert (solver.slope_share is not None) == (link == "logistic")
    guarantee = solver.guarantee()
    assert 0.99 < guarantee.epsilon(1e-6) <= 1.0
    assert (solver.centre_range is not None) == (link == "huber")
    draws = 2 * solver.length_range + (solver.quantile_range or 0.0) + (solver.centre_range or 0.0)
    assert guarantee.prior == pytest.approx(draws)
    ratio = (math.sqrt(2) if relation == "replace_one" else 1.0) / solver.gram_stddev
    inaccuracy = 2 * solver.accuracy / solver.output_scale
    assert guarantee.tolerance == pytest.approx(math.hypot(ratio, inaccuracy))
    # two thirds of the noise, or none that is charged for
    less = dataclasses.replace(solver, gram_stddev=solver.gram_stddev / 4)
    assert less.guarantee().epsilon(1e-6) > 1.1
    none = dataclasses.replace(solver, gram_stddev=None).guarantee()
    assert none.epsilon(1e-6) < 0.98
    assert none.prior == pytest.approx(draws - solver.length_range)
    if link == "logistic":
        steeper = dataclasses.replace(solver, slope_share=None).guarantee()
        assert steeper.epsilon(1e-6) > 1.05


def test_a_gaussian_release_and_objective_perturbation_cost_what_is_claimed():
    """Exactly, in one dimension without a ball: the two losses added, on a grid."""
    lam, nu, sigma = 9.5, 0.4, 3.0
    problem = LinearModel("logistic", 1)
    solver = ObjectivePerturbation(
        FULL,
        problem.slope_bounds(),
        sigma,
        lam,
        1e-9,
        1e3,
        gram_stddev=1 / nu,
        relation="add_or_remove_one",
        slope_share=0.7,
    )
    guarantee = solver.guarantee()
    z = np.linspace(-60, 60, 40_001) * sigma / lam

    def log_density(records):
        slopes, curvatures = np.zeros_like(z), np.full_like(z, lam)
        for u in records:
            steepness = special.expit(-u * z)
            slopes -= u * np.minimum(steepness, 0.7)
            curvatures += np.where(steepness < 0.7, steepness * (1 - steepness), 0.0)
        b = -(lam * z + slopes)
        return -(b**2) / (2 * sigma**2) + np.log(curvatures)

    def normalised(records):
        logs = log_density(records)
        return logs - np.log(np.sum(np.exp(logs)))

    grid = np.linspace(-7, 7, 281)
    weights = np.exp(-(grid**2) / 2)
    weights /= weights.sum()
    pairs = [((), (1.0,)), ((1.0,), (1.0, -1.0)), ((-1.0,), (-1.0, -1.0))]
    for epsilon in (0.4, 0.8, 1.2):
        worst = 0.0
        for one, other in [*pairs, *((b, a) for a, b in pairs)]:
            p, q = normalised(one), normalised(other)
            ratio = (p - q)[:, None] + (nu * grid + nu**2 / 2)[None, :]
            mass = np.exp(p)[:, None] * weights[None, :]
            worst = max(worst, float(np.sum(mass * np.maximum(-np.expm1(epsilon - ratio), 0))))
        assert 0 < worst <= guarantee.delta(epsilon)
        if epsilon == 0.8:
            assert worst > 0.1 * guarantee.delta(epsilon)
            # without the first release the claim would be false
            mutant = dataclasses.replace(guarantee, tolerance=1e-9)
            assert worst > mutant.delta(epsilon)


def test_the_draws_are_those_that_are_charged(monkeypatch):
    seen = []

    def spy(key, sizes_of, batch, mask, beyond, eta, **options):
        longest = float(jnp.nanmax(sizes_of(batch)))
        seen.append((round(float(eta), 6), beyond, longest <= 1 + 1e-6))
        return _draws.drawn_share(key, sizes_of, batch, mask, beyond, eta, **options)

    monkeypatch.setattr(_objective_perturbation, "drawn_share", spy)
    problem, data = LinearModel("logistic", 3, intercept=1.0), records()
    solver = solver_of(problem, gram_stddev=5.0, length_range=0.2, longer=7, metric_longer=9)
    solver.step(problem, data, jnp.ones(300, bool), solver.init(problem, key=jax.random.key(0)))
    assert seen == [(0.2, 7, True), (0.2, 9, True)]
    assert solver.guarantee().prior == pytest.approx(0.4)


def test_rules_of_the_metric():
    free, budget = LinearModel("logistic", 8, intercept=1.0), Budget(1.0, 1e-6)

    def made(problem=free, n=20_000, budget=budget, **options):
        return ObjectivePerturbation.for_budget(problem, n, budget, **options)

    assert made().gram_stddev is not None
    for few in (
        made(LinearModel("logistic", 8, 3.0)),  # a ball
        made(n=600),  # noise hides them
        made(budget=Budget(1.0, 0.0)),  # pure
        made(LinearModel("logistic", 1_500), n=900_000),  # too many
        made(gram_share=0.0),
    ):
        assert few.gram_stddev is None
        assert few.metric_longer == _draws.LEAST_BEYOND
    more = made(gram_share=0.3)
    assert more.gram_stddev < made().gram_stddev
    assert 0.99 < more.guarantee().epsilon(1e-6) <= 1.0
    shares = [made(n=n).slope_share for n in (600, 20_000, 200_000)]
    assert shares[0] == pytest.approx(0.65)
    assert shares[0] < shares[1] < shares[2] < 1.0


def test_refusals():
    ball = LinearModel("logistic", 8, 3.0)
    with pytest.raises(ValueError, match="gram_share must be 0 for a ball"):
        ObjectivePerturbation.for_budget(ball, 20_000, Budget(1.0, 1e-6), gram_share=0.1)
    with pytest.raises(ValueError, match="gram_share must be"):
        ObjectivePerturbation.for_budget(
            LinearModel("logistic", 8), 20_000, Budget(1.0, 1e-6), gram_share=1.0
        )
    with pytest.raises(ValueError, match="gram_stddev must be None but for a problem without"):
        solver_of(ball, gram_stddev=1.0).init(ball, key=jax.random.key(0))
    with pytest.raises(ValueError, match="noise must be 'gaussian' with gram_stddev"):
        solver_of(ball, gram_stddev=1.0, noise="gamma")
    with pytest.raises(ValueError, match="slope_share must be"):
        solver_of(ball, slope_share=1.5)


@pytest.mark.slow  # compiles float64 solvers
def test_columns_off_centre_are_learned():
    """Where the regulariser of inputs of one length hid what little they vary."""
    rng = np.random.default_rng(0)
    n, truth = 20_000, np.array([1.0, -1.0, 0.5, 0.0, 2.0, 0.0])
    x = 20 + rng.normal(size=(n, 6))
    margins = (x - 20) @ truth
    y = rng.random(n) < special.expit(margins)
    data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.int32)}
    problem = LinearModel("logistic", 6, feature_bound=100.0, intercept=1.0)
    best = np.mean((margins > 0) == y)

    def right(**options):
        solver = ObjectivePerturbation.for_budget(problem, n, Budget(1.0, 1e-6), **options)
        run = jax.vmap(lambda key: dpjax.solve(solver, problem, data, key=key).params)
        params = np.asarray(jax.jit(run)(jax.random.split(jax.random.key(1), 3)), float)
        return np.mean(((x @ params[:, :-1].T + params[:, -1]) > 0) == y[:, None])

    assert best - right() < 0.005
    assert best - right(gram_share=0.0) > 0.02
