"""Online-to-batch as printed: theorems 6, 8 and 11."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism

import dpjax
from dpjax.papers import online_to_batch

N, DELTA = 50, 1e-5
BUDGET = dpjax.Budget(1.0, DELTA, "replace_one")
BALL = dpjax.problems.Risk(
    lambda w, rec: (rec["x"] @ w - rec["y"]) ** 2 / 2,
    jnp.zeros(3),
    radius=1.0,
    lipschitz=2.0,
    smoothness=1.0,
)
MAKERS = {
    "optimistic": (online_to_batch.optimistic, {}, 1.0),
    "strongly convex": (online_to_batch.strongly_convex, {"strong_convexity": 0.5}, 2.0),
    "parameter free": (online_to_batch.parameter_free_pulled, {"diameter": 2.0}, 3.0),
}


@pytest.mark.parametrize("name", MAKERS)
def test_noise_is_printed_and_epsilon_true(name):
    make, options, weights = MAKERS[name]
    solver = make(BALL, N, BUDGET, **options)
    rho = 1 / (2 * math.sqrt(math.log(1 / DELTA)))
    assert (solver.sampler.steps, solver.sampler.batch_size) == (N, 1)
    assert (solver.weight_exponent, solver.clip) == (weights, "plain")
    assert solver.noise_multiplier == pytest.approx(2 / rho)
    # sigma_t = rho^-1 s_t sqrt(log2 2T) on each node, and a record in 6 nodes of a tree of 50
    multiplier = math.sqrt(math.log2(2 * N) / 6) / rho
    true = gaussian_mechanism.get_epsilon_gaussian(multiplier, DELTA)
    assert solver.guarantee().epsilon(DELTA) == pytest.approx(true, rel=1e-3)
    assert true < 0.8


def test_learners_are_printed():
    assert online_to_batch.optimistic(BALL, N, BUDGET).learner == "optimistic"
    convex = online_to_batch.strongly_convex(BALL, N, BUDGET, strong_convexity=0.5)
    assert (convex.learner, convex.learning_rate) == ("strongly_convex", 2.0)
    free = online_to_batch.parameter_free_pulled(BALL, N, BUDGET, diameter=2.0)
    rho, d, g, h, reach = 1 / (2 * math.sqrt(math.log(1 / DELTA))), 3, 2.0, 1.0, 2.0
    phi = math.sqrt(math.log(20 * d * N * math.log(2 * (1 + reach * h / g) * N) / 0.05))
    a, b = 8 * math.sqrt(2), 8 * math.sqrt(d)
    noise = b * (g + reach * h) * phi * math.log2(2 * N) / rho
    longest = g * N**3 + a * (2 * g + 57 * reach * h) * phi * N**2.5 + 2 * noise * N**2
    printed = (a * g * phi, noise, 28 * a * h * phi, longest)
    assert [float(pull) for pull in free.learner.pulls(free, d)] == pytest.approx(printed, rel=1e-5)


def test_the_pull_is_added_to_gradients():
    solver = online_to_batch.parameter_free_pulled(BALL, N, BUDGET, diameter=2.0, steps=2)
    learner = solver.learner(solver, BALL)
    plain = dpjax.papers.learners.parameter_free(
        0.1, solver.learner.pulls(solver, 3)[3] / 8, BALL.project
    )
    start, gradient = jnp.zeros(3), jnp.array([0.5, 0.0, -1.0])
    change, state = learner.update(gradient, learner.init(start), start)
    # at the start there is no pull
    np.testing.assert_allclose(change, plain.update(gradient, plain.init(start), start)[0])
    often, noise, bend, _ = solver.learner.pulls(solver, 3)
    point = start + change
    far = np.linalg.norm(point)
    pull = (often * 2**2.5 + noise * 4) / far + 2 * bend * 2**2.5
    pulled, _ = learner.update(gradient, state, point)
    expected, _ = plain.update(gradient + pull / 8 * point, state, point)
    np.testing.assert_allclose(pulled, expected, rtol=1e-5)
    assert float(jnp.linalg.norm(pulled - plain.update(gradient, state, point)[0])) > 1e-4


@pytest.mark.slow  # three programs to compile
@pytest.mark.parametrize("name", MAKERS)
def test_printed_settings_run(name):
    make, options, _ = MAKERS[name]
    solver = make(BALL, N, BUDGET, steps=4, **options)
    data = {"x": jnp.ones((N, 3)) / 2, "y": jnp.ones(N)}
    params = dpjax.solve(solver, BALL, data, key=jax.random.key(0)).params
    assert params.shape == (3,)
    assert float(jnp.linalg.norm(params)) <= 1 + 1e-6


def test_bounds_are_printed():
    options = {"dim": 3, "rho": 0.2, "clip_norm": 2.0, "smoothness": 1.0, "diameter": 2.0}
    t, log = 1000, math.log2(2000)
    printed = 2 * 7.0 / t**2 + 2 * 4 * 2 / math.sqrt(2) * (
        4 / math.sqrt(t) + math.sqrt(6) * 4 * log / (0.2 * t)
    )
    assert online_to_batch.excess_bound(7.0, steps=t, **options) == pytest.approx(printed)
    printed = 3 * 7.0 / t**3 + 16 * 27 / (2 * 0.5) * (16 / t + 2 * 3 * 16 * log**2 / (0.2 * t) ** 2)
    bound = online_to_batch.excess_bound(7.0, steps=t, weights=2.0, strong_convexity=0.5, **options)
    assert bound == pytest.approx(printed)
    with pytest.raises(ValueError, match="weights must be >= 2"):
        online_to_batch.excess_bound(7.0, steps=t, strong_convexity=0.5, **options)
