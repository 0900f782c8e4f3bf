"""Estimates of rates from noisy tables: bias, variance, what they depend on, and the dual walk."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import problems
from dpjax.papers.rate_constrained import Ratio
from dpjax.problems import RateConstrained
from dpjax.solvers import DPSGD, RateConstrainedSGDA
from dpjax.solvers.descent._rates import ControlVariate, RateMemory, check_multipliers, dual_step

PARITY = problems.demographic_parity(2, 2, slack=0.0)
ODDS = problems.equality_of_odds(2, 2, slack=0.0)
MISSED = problems.false_negative_rate(3, slack=0.2)
THREE = problems.demographic_parity(3, 3, slack=0.0)
DRAWS = 50_000


def _tables(means, deviation, draws=DRAWS, seed=0):
    """Tables of Poisson cells with Gaussian noise, `[draws, Q, K]`."""
    rng = np.random.default_rng(seed)
    cells = rng.poisson(means, (draws, *means.shape))
    return jnp.asarray(cells + deviation * rng.normal(size=cells.shape), float)


def _read(estimator, constraints, tables, memory, count=1):
    """The readings of many tables, each with the same memory."""
    one = lambda table: estimator.read(constraints, table, memory, jnp.asarray(count))  # noqa: E731
    return jax.jit(jax.vmap(one))(tables)


def _subsets(constraints, means):
    sums = np.asarray(constraints.membership) @ means
    return sums.sum(axis=1), sums / sums.sum(axis=1, keepdims=True)


def _gamma(constraints, rates):
    return np.tensordot(np.asarray(constraints.weights), rates, axes=2)


CELLS = {
    "parity": (PARITY, [[44, 11], [220, 14]], 23.6),
    "odds": (ODDS, [[40, 30], [60, 25], [20, 90], [50, 80]], 15.0),
    "missed": (MISSED, [[60, 20, 9], [20, 40, 10], [30, 5, 50]], 12.0),
    "three": (THREE, [[60, 20, 30], [90, 70, 10], [30, 80, 40]], 20.0),
}


@pytest.mark.always  # what the estimate is for
@pytest.mark.parametrize(
    "name", ["parity", *(pytest.param(n, marks=pytest.mark.slow) for n in CELLS if n != "parity")]
)
def test_bias_is_the_product_of_two_errors(name):
    """Sizes wrong by a factor, references wrong: as derived, within five standard errors."""
    constraints, means, deviation = CELLS[name]
    means = np.asarray(means, float)
    sizes, rates = _subsets(constraints, means)
    tables = _tables(means, deviation)
    estimator = ControlVariate(deviation, float(means.sum()), 100, fixed=True, floor=1.0)
    classes = means.shape[1]
    skewed = np.asarray([0.8, *[0.2 / (classes - 1)] * (classes - 1)])
    for factor, reference in itertools.product((0.5, 1.0, 2.0), (1 / classes, skewed)):
        given = np.broadcast_to(reference, rates.shape)
        memory = RateMemory(jnp.asarray(factor * sizes, float), jnp.asarray(given, float))
        values = np.asarray(_read(estimator, constraints, tables, memory).values)
        want = _gamma(constraints, rates + (1 / factor - 1) * (rates - given))
        error = values.std(axis=0) / DRAWS**0.5
        assert np.all(np.abs(values.mean(axis=0) - want) < 5 * error + 1e-5), (factor, reference)


@pytest.mark.parametrize(
    ("means", "deviation"),
    [([[44.0, 11.0], [140.4, 93.6]], 23.6), ([[17.6, 70.4], [28.05, 158.95]], 44.1)],
)
def test_ratios_are_biased_where_the_estimate_is_not(means, deviation):
    means = np.asarray(means)
    sizes, rates = _subsets(PARITY, means)
    tables = _tables(means, deviation)
    truth = _gamma(PARITY, rates)
    memory = RateMemory(jnp.asarray(sizes, float), jnp.full(rates.shape, 0.5))
    new = ControlVariate(deviation, float(means.sum()), 100, fixed=True, floor=1.0)
    old = Ratio(deviation, "batch")
    unbiased = np.asarray(_read(new, PARITY, tables, memory).values)
    biased = np.asarray(_read(old, PARITY, tables, old.init(PARITY)).values)
    error = unbiased.std(axis=0) / DRAWS**0.5
    assert np.all(np.abs(unbiased.mean(axis=0) - truth) < 5 * error)
    assert np.max(np.abs(biased.mean(axis=0) - truth) / error) > 10


@pytest.mark.parametrize("name", CELLS)
def test_deviation_is_that_of_the_estimate(name):
    constraints, means, deviation = CELLS[name]
    means = np.asarray(means, float)
    sizes, rates = _subsets(constraints, means)
    memory = RateMemory(jnp.asarray(sizes, float), jnp.asarray(rates, float))
    estimator = ControlVariate(deviation, float(means.sum()), 100, fixed=True, floor=1.0)
    reading = _read(estimator, constraints, _tables(means, deviation), memory)
    found = np.asarray(reading.values).std(axis=0)
    np.testing.assert_allclose(np.asarray(reading.deviation)[0], found, rtol=0.02)


def test_without_noise_the_estimate_is_exact():
    means = np.asarray([[20.0, 30.0], [10.0, 40.0]])
    sizes, rates = _subsets(PARITY, means)
    estimator = ControlVariate(0.0, 100.0, 10, fixed=False)
    given = jnp.asarray([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5], [0.0, 1.0]])
    memory = RateMemory(jnp.asarray(sizes, float), given)
    reading = _read(estimator, PARITY, jnp.asarray(means, float)[None], memory)
    np.testing.assert_allclose(reading.values[0], _gamma(PARITY, rates), atol=1e-6)
    np.testing.assert_allclose(reading.rates.sum(axis=-1), 1, atol=1e-6)


ALLOWED = {
    "parity": (PARITY, 0.25),
    "no copies": (PARITY.dedupe(), 0.5),
    "missed": (problems.false_negative_rate(2, slack=0.2), 0.5),
    "odds": (ODDS, 0.5 / 2 / 2**0.5),
}


@pytest.mark.always  # how far noise moves multipliers
@pytest.mark.parametrize(
    "name", ["parity", *(pytest.param(n, marks=pytest.mark.slow) for n in ALLOWED if n != "parity")]
)
def test_a_dual_step_counts_copies_and_directions(name):
    """Noise that a multiplier may gather: .25 with each row twice, .5 with one, .177 for odds."""
    constraints, want = ALLOWED[name]
    steps = jax.jit(dual_step, static_argnums=2)
    noisy = steps(constraints, jnp.full(constraints.num_constraints, 3.0), 100)
    np.testing.assert_allclose(np.asarray(noisy) * 3 * 10, want, rtol=1e-5)
    exact = steps(constraints, jnp.zeros(constraints.num_constraints), 100)
    np.testing.assert_allclose(exact, 0.15, rtol=1e-6)


@pytest.mark.always  # noise may not be divided by
def test_sizes_start_from_a_public_prior():
    """One table of noise alone moves them little, however large the noise."""
    estimator = ControlVariate(200.0, 80.0, 100, fixed=False)
    start = estimator.init(PARITY)
    tables = 200.0 * np.random.default_rng(0).normal(size=(500, 2, 2))
    reading = _read(estimator, PARITY, jnp.asarray(tables, float), start)
    np.testing.assert_allclose(reading.memory.sizes, np.full((500, 4), 40.0), atol=10)
    assert np.abs(reading.values).max() < 30


def test_the_whole_recursion_is_unbiased_and_walks_as_stated():
    """Sizes, references and deviations are learned; the model is frozen at a binding constraint."""
    means = np.asarray([[0.25 * 88, 0.75 * 88], [0.35 * 187, 0.65 * 187]])
    steps, deviation = 250, 68.1
    _, rates = _subsets(PARITY, means)
    truth = _gamma(PARITY, rates)
    estimator = ControlVariate(deviation, 275.0, steps, fixed=False)

    def run(key):
        def step(carry, t):
            memory, multipliers = carry
            one, two = jax.random.split(jax.random.fold_in(key, t))
            cells = jax.random.poisson(one, jnp.asarray(means)).astype(float)
            cells += deviation * jax.random.normal(two, means.shape)
            reading = estimator.read(PARITY, cells, memory, t + 1)
            rate = dual_step(PARITY, reading.deviation, steps)
            multipliers += rate * (reading.values - jnp.asarray(truth, float))
            return (reading.memory, multipliers), reading.values

        start = estimator.init(PARITY), jnp.zeros(4)
        (_, multipliers), values = jax.lax.scan(step, start, jnp.arange(steps))
        return multipliers, values.mean(axis=0), values[-100:].mean(axis=0)

    keys = jax.random.split(jax.random.key(3), 500)
    multipliers, mean, late = map(np.asarray, jax.jit(jax.vmap(run))(keys))
    assert np.all(np.abs(mean.mean(axis=0) - truth) <= 0.006)
    assert np.all(np.abs(late.mean(axis=0) - truth) <= 0.009)
    assert np.all((multipliers.std(axis=0) > 0.22) & (multipliers.std(axis=0) < 0.27))


def _solver(**fields):
    descent = {"noise_multiplier": 1.0, "clip_norm": 1.0, "learning_rate": 0.5, "batch_size": 20.0}
    primal = DPSGD(dpjax.sampling.FullBatch(5), **descent)
    return RateConstrainedSGDA(primal, None, histogram_noise=5.0, **fields)


def _data(n=40):
    rng = np.random.default_rng(0)
    return {
        "x": jnp.asarray(rng.normal(size=(n, 3)), float),
        "y": jnp.asarray(rng.integers(2, size=n)),
        "group": jnp.asarray(rng.integers(2, size=n)),
    }


@pytest.mark.always  # the guarantee rests on it
@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_what_sees_the_table_of_its_step(gain):
    """Multipliers and memory after it; before, by the gain alone, weights and clip norm."""
    problem, data = RateConstrained.linear(3, 2, PARITY), _data()
    solver = _solver(adaptive_clip=True, proportional_gain=gain)
    state = solver.init(problem, key=jax.random.key(0))
    state = state._replace(multipliers=jnp.asarray([1.0, 0.0, 0.5, 2.0]))
    step = jax.jit(solver.step)
    one, info = step(problem, data, jnp.ones(40, bool), state)
    other, told = step(problem, data, jnp.ones(40, bool), state._replace(key=jax.random.key(9)))
    for same in ("sizes", "rates", "deviation"):
        np.testing.assert_array_equal(getattr(info, same), getattr(told, same))
    assert (info.clip_norm == told.clip_norm) == (gain == 0)
    assert np.all(one.primal.params["w"] == other.primal.params["w"]) == (gain == 0)
    assert np.any(np.asarray(one.multipliers) != np.asarray(other.multipliers))
    assert np.any(np.asarray(one.memory.sizes) != np.asarray(other.memory.sizes))


@pytest.mark.always  # the guarantee rests on it
def test_clip_norm_follows_the_multipliers_and_noise_follows_it():
    problem, data = RateConstrained.linear(3, 2, PARITY), _data()
    solver = _solver(adaptive_clip=True, proportional_gain=0.0)
    state = solver.init(problem, key=jax.random.key(0))
    multipliers = jnp.asarray([0.0, 3.0, 2.0, 0.0])
    state = state._replace(multipliers=multipliers)
    sizes = np.asarray(state.memory.sizes)
    weights = 20.0 * np.asarray(PARITY.cell_weights(multipliers, jnp.asarray(sizes)))
    want = np.ptp(weights, axis=1).max()
    assert want > 5

    @jax.jit
    def stepped(key):
        keyed = state._replace(primal=state.primal._replace(key=key))
        # an empty batch: parameters move by the noise alone
        after, info = solver.step(problem, data, jnp.zeros(40, bool), keyed)
        return after.primal.params["w"], info.clip_norm

    moved, norms = jax.vmap(stepped)(jax.random.split(jax.random.key(1), 2_000))
    np.testing.assert_allclose(norms, want, rtol=1e-5)
    np.testing.assert_allclose(np.std(moved), 0.5 * 1.0 * want / 20.0, rtol=0.03)


def test_noise_step_bounds_how_far_noise_moves():
    problem, data = RateConstrained.linear(3, 2, PARITY), _data()
    solver = _solver(adaptive_clip=True, noise_step=0.1)
    state = solver.init(problem, key=jax.random.key(0))
    state = state._replace(multipliers=jnp.asarray([0.0, 3.0, 2.0, 0.0]))
    stepped = jax.jit(lambda s: solver.step(problem, data, jnp.zeros(40, bool), s)[0].primal.params)
    moved = jax.vmap(lambda key: stepped(state._replace(primal=state.primal._replace(key=key))))(
        jax.random.split(jax.random.key(1), 500)
    )
    squares = sum(
        np.sum(np.square(leaf), axis=tuple(range(1, leaf.ndim)))
        for leaf in jax.tree.leaves(jax.tree.map(np.asarray, moved))
    )
    np.testing.assert_allclose(np.sqrt(squares.mean()), 0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("n", "params", "epsilon", "steps", "clip_norm"),
    [
        (33_916, 206, 1.0, 1000, 4.0),
        (33_916, 206, 0.1, 250, 1.73),
        (3_000, 206, 1.0, 250, 1.23),
        (10_000, 206, 1.0, 500, 2.92),
        (4_406, 40, 0.1, 250, 1.0),
    ],
)
def test_steps_share_and_clip_norm_follow_the_noise(n, params, epsilon, steps, clip_norm):
    parity = problems.demographic_parity(2, 2, slack=0.05)
    problem = RateConstrained.linear(params // 2 - 1, 2, parity)
    budget = dpjax.Budget(epsilon, 1e-5)
    solver = RateConstrainedSGDA.for_budget(problem, n, budget)
    assert solver.sampler.steps == steps
    np.testing.assert_allclose(solver.primal.clip_norm, clip_norm, atol=0.005)
    assert solver.guarantee().epsilon(1e-5) <= epsilon
    share = 0.1 if steps == 1000 else 0.2
    precisions = solver.histogram_noise**-2, solver.primal.noise_multiplier**-2
    np.testing.assert_allclose(precisions[0] / sum(precisions), share, rtol=1e-6)


def test_slacks_below_the_resolution_are_warned_of():
    parity = problems.demographic_parity(2, 2, slack=0.02)
    problem = RateConstrained.linear(10, 2, parity)
    with pytest.warns(dpjax.privacy.ResolutionWarning, match="cannot see constraint 0"):
        solver = RateConstrainedSGDA.for_budget(problem, 3_000, dpjax.Budget(0.3, 1e-5))
    seen = solver.resolution(problem)
    assert seen.shape == (4,)
    assert np.all(seen > 0.005)
    # smaller groups are seen worse
    assert np.all(solver.resolution(problem, shares=[0.1, 0.9, 0.9, 0.1]) > seen)
    with pytest.raises(ValueError, match="shares"):
        solver.resolution(problem, shares=[0.5, 0.5])


@pytest.mark.parametrize(
    ("kind", "bound", "ended", "named"),
    [
        ("box", 2.0, [0.0, 2.0, 1.9], [1]),
        ("box", 2.0, [0.0, 1.9, 1.9], []),
        ("l1", 2.0, [0.0, 0.5, 1.5], [1, 2]),
        ("l1", 2.0, [0.0, 0.5, 1.0], []),
        ("orthant", 2.0, [9.0, 9.0, 9.0], []),
    ],
)
def test_multipliers_that_end_at_their_bound_are_told(kind, bound, ended, named, recwarn):
    check_multipliers(kind, jnp.array(ended), bound)
    told = [w for w in recwarn if w.category is dpjax.privacy.MultiplierWarning]
    assert len(told) == bool(named)
    if named:
        message = str(told[0].message)
        assert f"constraints {named} ended at their bound, multiplier_bound = 2" in message
        assert "raise multiplier_bound" in message


@pytest.mark.slow
def test_a_run_that_cannot_meet_its_constraints_says_so(key):
    problem = RateConstrained.linear(2, 2, problems.false_negative_rate(2, slack=-0.5))
    budget = dpjax.Budget(float("inf"), 1e-5)
    solver = RateConstrainedSGDA.for_budget(
        problem, 40, budget, steps=20, multiplier_bound=0.5, dual_learning_rate=0.15
    )
    data = {"x": np.ones((40, 2), np.float32), "y": np.arange(40) % 2}
    with pytest.warns(dpjax.privacy.MultiplierWarning, match=r"constraints \[0\] ended"):
        dpjax.solve(solver, problem, data, key=key)


def test_ratio_settings_are_refused_by_the_control_variate():
    with pytest.raises(ValueError, match="denominator"):
        _solver(estimator="control", denominator="ema")
    assert dataclasses.replace(_solver(), denominator="ema").denominator == "ema"


def test_infinite_epsilon_is_the_method_without_privacy():
    problem = RateConstrained.linear(3, 2, problems.demographic_parity(2, 2, slack=0.05))
    budget = dpjax.Budget(float("inf"), 1e-5)
    solver = RateConstrainedSGDA.for_budget(problem, 40, budget, steps=20)
    assert solver.guarantee().epsilon(1e-5) == float("inf")
    assert solver.sampler == dpjax.sampling.FullBatch(20)
    runs = [dpjax.solve(solver, problem, _data(), key=jax.random.key(seed)) for seed in (0, 1)]
    np.testing.assert_array_equal(runs[0].params["w"], runs[1].params["w"])
