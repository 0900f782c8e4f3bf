"""OnlineToBatch: noiseless limits, guarantees, budgets, sweeps, edge cases and errors."""

import dataclasses
import functools
import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import optimize, stats

import dpjax
from dpjax.papers.online._learners import LEARNERS
from dpjax.papers.online_to_batch import PublishedOnlineToBatch, as_published
from dpjax.problems import RateConstrained, Risk, SimplexRisk
from dpjax.sampling import (
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    PoissonSampler,
    TaperedPartition,
)
from dpjax.solvers import OnlineToBatch
from dpjax.testing._trees import QUICK, fresh, save_and_load, to_numpy
from dpjax.transforms import BinaryTree, BufferedToeplitz, SplitNoise, rounding_allowance

LOOSE = {"clip_norm": 25.0, "smoothness": 20.0, "learning_rate": 1.0}
BUDGET = dpjax.Budget(1.0, 1e-5)
SLOW = [pytest.mark.slow]


def _least_squares(n=20, d=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    y = x @ np.arange(1, d + 1) + 0.1 * rng.normal(size=n)
    return {"x": jnp.asarray(x), "y": jnp.asarray(y)}


def _loss(w, rec):
    return 0.5 * (rec["x"] @ w - rec["y"]) ** 2


BALL = Risk(_loss, np.zeros(3), radius=1.0)
SIMPLEX = SimplexRisk(_loss, dim=3, grad_range=8.0)


def trace(solver, problem, data, key):
    """The states after each step, but for the noise's, and what was released."""
    return _trace(solver, jax.tree.map(jnp.asarray, problem), data, key)


@functools.partial(jax.jit, compiler_options=QUICK)
def _trace(solver, problem, data, key):
    n = jax.tree.leaves(data)[0].shape[0]
    init_key, plan_key = jax.random.split(key)

    def body(state, x):
        rows, mask = solver.sampler.batch(x, n)
        batch = data if rows is None else jax.tree.map(lambda a: a[rows], data)
        after, info = solver.step(problem, batch, mask, state)
        return after, (after._replace(noise=None, key=None), info)

    xs = solver.sampler.plan(plan_key, n)
    return jax.lax.scan(body, solver.init(problem, key=init_key), xs)[1]


def solved(solver, problem, data, seed=0, sensitive=False):
    """`dpjax.solve`, of which the program is compiled in less time."""

    def run(words):
        key = jax.random.wrap_key_data(words)
        solution = dpjax.solve(solver, problem, data, key=key, sensitive=sensitive)
        return solution._replace(guarantee=None)

    words = jax.random.key_data(jax.random.key(seed))
    solution = jax.jit(run, compiler_options=QUICK)(words)
    return solution._replace(guarantee=solver.guarantee())


def optimum(problem, data):
    """The best point and its mean loss, by scipy."""
    x, y = (np.asarray(data[k], np.float64) for k in "xy")
    if problem is BALL:
        rule = {"type": "ineq", "fun": lambda w: 1 - w @ w, "jac": lambda w: -2 * w}
        start, bounds = np.zeros(3), None
    else:
        rule = {"type": "eq", "fun": lambda w: w.sum() - 1}
        start, bounds = np.full(3, 1 / 3), [(0, 1)] * 3
    found = optimize.minimize(
        lambda w: 0.5 * np.mean((x @ w - y) ** 2),
        start,
        jac=lambda w: x.T @ (x @ w - y) / len(y),
        bounds=bounds,
        constraints=[rule],
        options={"ftol": 1e-14},
        method="SLSQP",
    )
    assert found.success
    return found.x, found.fun


# Noiseless limits, for every learner: rate, and the share of the first excess that may be left.

EASY = {
    "optimistic": (2.0, 1e-3),
    "dual_averaging": (2.0, 1e-2),
    "adagrad_norm": (2.0, 1e-2),
    "gradient_descent": (0.2, 1e-3),
    "optimistic_descent": (0.2, 1e-3),
    "exponentiated": (10.0, 1e-2),
    "optimistic_exponentiated": (1.0, 1e-3),
    "strongly_convex": (3.0, 1e-2),
    "distance_adaptive": (0.05, 1e-3),
    "parameter_free": (1.0, 5e-2),
    "coin_betting": (3.0, 0.3),
}
STEPS = 200


def _check_averages_and_regret(problem, data, states, solver, best):
    """x_t are weighted means of w_t, and bound the excess by what the learner lost."""
    t = np.arange(1.0, STEPS + 1)
    beta = (t / STEPS) ** solver.weight_exponent
    total = np.cumsum(beta)
    points = np.asarray(states.previous)  # x_1, x_2, ...
    iterates = np.concatenate([np.asarray(problem.init)[None], np.asarray(states.iterate)[:-1]])
    means = np.cumsum(beta[:, None] * iterates, axis=0) / total[:, None]
    np.testing.assert_allclose(points, means, atol=1e-9)
    x, y = (np.asarray(data[k]) for k in "xy")
    residuals = points @ x.T - y
    gradients = residuals @ x / len(y)
    losses = 0.5 * np.mean(residuals**2, axis=1)
    for u in (best, np.asarray(problem.init), points[STEPS // 2]):
        excess = total * (losses - 0.5 * np.mean((x @ u - y) ** 2))
        lost = np.cumsum(beta * np.sum(gradients * (iterates - u), axis=1))
        assert (excess <= lost + 1e-9).all()
    return gradients, losses


@pytest.mark.parametrize("learner", LEARNERS)
def test_learners_find_the_optimum_without_noise(learner, x64):
    problem = SIMPLEX if "exponentiated" in learner else BALL
    data = _least_squares()
    rate, left = EASY[learner]
    fields = LOOSE | {"learning_rate": rate, "learner": learner, "batch_size": 20.0}
    solver = OnlineToBatch(FullBatch(STEPS), SplitNoise(STEPS), 0.0, clip="plain", **fields)
    best, least = optimum(problem, data)
    states, info = trace(solver, problem, data, jax.random.key(0))
    gradients, losses = _check_averages_and_regret(problem, data, states, solver, best)
    np.testing.assert_allclose(states.estimate, gradients, atol=1e-8)
    np.testing.assert_allclose(info.gradient_norm, np.linalg.norm(gradients, axis=1), atol=1e-8)
    assert -1e-9 <= losses[-1] - least <= left * (losses[0] - least)
    # with noise, and whatever it does, averages are averages and the bound is a bound
    noisy = dataclasses.replace(solver, noise_multiplier=0.3, smoothness=1.0)
    states, _ = trace(noisy, problem, data, jax.random.key(1))
    _check_averages_and_regret(problem, data, states, noisy, best)


def test_estimates_of_a_linear_loss_add_up_weighted_changes(x64):
    """In a single pass: each batch's gradient weighs what its step adds to the weight."""
    steps, k = 9, 2.5
    rng = np.random.default_rng(0)
    data = {"x": jnp.asarray(rng.normal(size=(2 * steps, 3)))}
    problem = Risk(lambda w, rec: rec["x"] @ w, np.zeros(3), radius=1.0)
    sampler = DisjointPartition(steps, 2, "given")
    fields = LOOSE | {"batch_size": 2.0, "weight_exponent": k, "smoothness": 0.0}
    solver = OnlineToBatch(sampler, BufferedToeplitz(steps), 0.0, **fields)
    theta = (np.arange(steps + 1) / steps) ** k
    batches = np.asarray(data["x"]).reshape(steps, 2, 3).mean(axis=1)
    want = np.cumsum(np.diff(theta)[:, None] * batches, axis=0)
    states, info = trace(solver, problem, data, jax.random.key(0))
    np.testing.assert_allclose(states.estimate, want, atol=1e-12)
    larger = 1 + 2 * rounding_allowance(2, "float64")
    np.testing.assert_allclose(info.sensitivity, larger * np.diff(theta) * 25.0 / 2, rtol=1e-12)
    assert not np.allclose(want[-1], batches[-1])  # it is no gradient of one batch


@pytest.mark.parametrize("clip", ["centred", pytest.param("plain", marks=SLOW), "whole"])
def test_estimates_of_records_that_are_all_one_are_gradients(clip, x64):
    steps = 9
    data = {"x": jnp.ones((steps, 3)), "y": jnp.ones(steps)}
    sampler = DisjointPartition(steps, 1)
    fields = LOOSE | {"batch_size": 1.0, "learning_rate": 0.1, "learner": "gradient_descent"}
    solver = OnlineToBatch(sampler, BinaryTree(steps), 0.0, clip=clip, **fields)
    states, _ = trace(solver, BALL, data, jax.random.key(0))
    gradients = jax.vmap(lambda w: jax.grad(_loss)(w, {"x": jnp.ones(3), "y": 1.0}))(
        states.previous
    )
    theta = (np.arange(1, steps + 1) / steps) ** 2
    np.testing.assert_allclose(states.estimate, theta[:, None] * gradients, atol=1e-12)
    assert np.ptp(states.point) > 0.05


@pytest.mark.slow
def test_convex_losses_are_not_biased_by_centred_clipping(x64):
    """The change of a gradient is within H/2 of (H/2) times that of the point: no more is kept."""
    data = _least_squares()
    tight = float(jnp.max(jnp.sum(data["x"] ** 2, axis=1)))  # of the worst record
    fields = LOOSE | {"smoothness": tight, "batch_size": 20.0, "learner": "optimistic"}
    solver = OnlineToBatch(FullBatch(40), SplitNoise(40), 0.0, **fields)
    states, info = trace(solver, BALL, data, jax.random.key(0))
    x, y = np.asarray(data["x"]), np.asarray(data["y"])
    gradients = (np.asarray(states.previous) @ x.T - y) @ x / 20
    np.testing.assert_allclose(states.estimate, gradients, atol=1e-9)
    # half of what the triangle inequality asks for
    plain = dataclasses.replace(solver, clip="plain")
    _, wider = trace(plain, BALL, data, jax.random.key(0))
    np.testing.assert_allclose(wider.sensitivity[1:], 2 * info.sensitivity[1:], rtol=1e-6)
    np.testing.assert_allclose(info.sensitivity[0], 25.0 / 20, rtol=1e-3)  # and roundings
    # and less would be too little
    small = dataclasses.replace(solver, smoothness=tight / 4)
    states, _ = trace(small, BALL, data, jax.random.key(0))
    gradients = (np.asarray(states.previous) @ x.T - y) @ x / 20
    assert np.abs(states.estimate - gradients).max() > 1e-3


def _descent(solver, problem):
    return dpjax.transforms.projected(optax.scale(-solver.learning_rate))


@pytest.mark.parametrize("degree", [0.0, 1.5])
def test_shrinkage_takes_off_what_is_noise(degree, x64):
    """James and Stein: of the squared norm the noise has d times its variance, of which d - 2."""
    steps, d = 12, 5
    data = _least_squares(d=d)
    problem = Risk(_loss, np.zeros(d))
    noise = SplitNoise(steps, 0.3)
    fields = {"learner": _descent, "estimate_exponent": degree, "learning_rate": 0.1}
    solver = OnlineToBatch(FullBatch(steps), noise, 1.0, 10.0, 5.0, batch_size=20.0, **fields)
    t = np.arange(1, steps + 1) / steps
    found = []
    for z, shrinkage, seed in [(1.5, True, 0), (1e3, True, 0), (1e3, True, 1), (1.5, False, 0)]:
        changed = dataclasses.replace(solver, noise_multiplier=z, shrinkage=shrinkage)
        states, info = trace(changed, problem, data, jax.random.key(seed))
        estimate, kept = np.asarray(states.estimate), np.ones(steps)
        if shrinkage:
            variance = np.cumsum((z * np.asarray(info.sensitivity)) ** 2 / noise.shares)
            np.testing.assert_allclose(states.variance, variance, rtol=1e-9)
            kept = np.maximum(0, 1 - (d - 2) * variance / np.sum(estimate**2, axis=1))
            found += kept.tolist()
        moves = np.diff(np.asarray(states.iterate), axis=0, prepend=np.zeros((1, d)))
        want = -0.1 * (kept * t ** (2.0 - degree))[:, None] * estimate
        np.testing.assert_allclose(moves, want, rtol=1e-6, atol=1e-12)
    assert min(found) == 0
    assert any(0.1 < each < 0.9 for each in found)


def test_factored_gradients_train_the_same_model():
    data = _least_squares(n=24)
    problems = [BALL, Risk.linear(lambda m, y: 0.5 * (m - y) ** 2, 3, radius=1.0)]
    solver = OnlineToBatch.for_budget(problems[0], 24, BUDGET, steps=5, clip_norm=3.0)
    points = [solved(solver, p, data).params for p in problems]
    np.testing.assert_allclose(*points, atol=1e-5)
    assert np.linalg.norm(points[0]) > 0


# What is guaranteed is what the releases cost, composed here in another way.

RELATIONS = ("add_or_remove_one", "replace_one", "replace_special")


def _solver(noise, relation, sampler=None, z=3.0, **fields):
    full = isinstance(noise, SplitNoise)
    given = FullBatch(noise.num_steps) if full else DisjointPartition(noise.num_steps, 4)
    if relation == "add_or_remove_one" and not full:
        given = IndependentPartition(noise.num_steps, 40, capacity=41)
    fields = {"clip": "plain", "relation": relation} | fields
    return OnlineToBatch(sampler or given, noise, z, 1.0, 1.0, 1.0, 4.0, **fields)


def _compose(deviations):
    parts = [
        pld.from_gaussian_mechanism(float(d), value_discretization_interval=1e-3)
        for d in deviations
    ]
    return functools.reduce(lambda a, b: a.compose(b), parts).get_epsilon_for_delta(1e-5)


@pytest.mark.parametrize("relation", RELATIONS)
def test_epsilon_is_that_of_all_releases(relation):
    moves = 2 if relation == "replace_one" else 1
    exact = dp_accounting.get_epsilon_gaussian(3.0 / moves, 1e-5)
    split = SplitNoise(4, 0.6, 0.5)
    tree, buffered = BinaryTree(13), BufferedToeplitz(13)
    for noise in (split, tree, buffered, BinaryTree(13, exponent=1.0, variance_reduced=True)):
        guarantee = _solver(noise, relation).guarantee()
        assert guarantee.failure_probability == 0
        assert guarantee.relation.name.lower() == relation
        assert guarantee.epsilon(1e-5) == pytest.approx(exact, rel=1e-4)
    each_step = _compose(3.0 / moves / np.sqrt(split.shares))
    assert each_step == pytest.approx(exact, rel=5e-3)
    # a record is in four nodes at most, of noise as that many need
    first = tree.node_factor
    assert first == 2
    assert _compose([3.0 / moves * first] * 4) == pytest.approx(exact, rel=5e-3)


@pytest.mark.parametrize("distribution", ["l2", "linf"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_pure_trees_are_pure(distribution, relation):
    moves = 2 if relation == "replace_one" else 1
    norm = {"norm": "linf"} if distribution == "linf" else {}
    for exponent in (0.0, 1.0):
        tree = BinaryTree(5, exponent, distribution=distribution)
        epsilon = _solver(tree, relation, **norm).guarantee().epsilon(1e-13)
        assert 0.98 * moves / 3 <= epsilon <= moves / 3 + 5e-4  # the grid's


@pytest.mark.parametrize("steps", [8, 13])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_published_noise_reports_its_true_epsilon(steps, epsilon):
    solver = as_published(BALL, 60, dpjax.Budget(epsilon, 1e-5), steps=steps)
    rho = epsilon / (2 * math.sqrt(math.log(1e5)))
    assert solver.noise_multiplier == pytest.approx(2 / rho)  # for a record against none
    assert (solver.weight_exponent, solver.clip, solver.relation) == (1.0, "plain", "replace_one")
    # a record is in 4 nodes, whose noise was made for log2(2 T)
    factor = math.sqrt(math.log2(2 * steps) / 4)
    true = solver.guarantee().epsilon(1e-5)
    assert true == pytest.approx(dp_accounting.get_epsilon_gaussian(factor / rho, 1e-5), rel=1e-4)
    assert true < 0.8 * epsilon


def test_published_noise_has_the_published_deviation(x64):
    """(2 (k + 1) / rho) t^(k - 1) (G + H max r) sqrt(log2(2 T)) on every node, as printed."""
    steps, rho = 13, 0.7
    noise = BinaryTree(steps)
    fields = {"weight_exponent": 1.0, "clip": "plain", "relation": "replace_one"}
    solver = PublishedOnlineToBatch(
        DisjointPartition(steps, 1),
        noise,
        2 / rho,
        1.5,
        0.8,
        1.0,
        1.0,
        learner="optimistic",
        **fields,
    )
    data = _least_squares(n=steps)
    states, info = trace(solver, BALL, data, jax.random.key(0))
    iterates = np.concatenate([np.zeros((1, 3)), np.asarray(states.iterate)[:-1]])
    before = np.concatenate([np.zeros((1, 3)), np.asarray(states.previous)[:-1]])
    reach = np.maximum.accumulate(np.linalg.norm(iterates - before, axis=1))
    printed = (2 * 2 / rho) * (1.5 + 0.8 * reach) * math.sqrt(math.log2(2 * steps))
    got = 2 / rho * noise.node_factor * np.asarray(info.sensitivity) * steps  # theta_t = t / T
    larger = 1 + 2 * rounding_allowance(1, "float64")
    np.testing.assert_allclose(got, larger * printed, rtol=1e-9)


def test_surplus_records_of_a_batch_are_paid_for():
    sampler = IndependentPartition(4, 40, capacity=24)
    p = sampler.failure_probability()
    assert 1e-7 < p < 1e-5
    guarantee = _solver(BufferedToeplitz(4), RELATIONS[0], sampler).guarantee()
    assert guarantee.failure_probability == p
    epsilon = guarantee.epsilon(1e-4)
    a, b = 1 / 6 - 3 * epsilon, -1 / 6 - 3 * epsilon
    delta = stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b)
    assert delta + (1 + math.exp(epsilon)) * p == pytest.approx(1e-4, rel=1e-3)


PLANS = [
    {"single_pass": False},
    *[
        {"single_pass": True, "noise": noise}
        for noise in (None, "buffered", "tree", "variance_reduced_tree", "pure_tree")
    ],
]


@pytest.mark.parametrize("relation", [None, *RELATIONS])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: str(plan.get("noise", "full")))
def test_budgets_are_spent(plan, relation):
    budget = dpjax.Budget(1.0, 1e-5, relation)
    solver = OnlineToBatch.for_budget(BALL, 4096, budget, steps=12, **plan)
    natural = "replace_one" if plan["single_pass"] else "add_or_remove_one"
    assert solver.relation == (relation or natural)
    kind = FullBatch
    if plan["single_pass"]:
        added = solver.relation == "add_or_remove_one"
        kind = IndependentPartition if added else DisjointPartition
    assert isinstance(solver.sampler, kind)
    assert solver.noise.num_steps == solver.sampler.steps == 12
    assert 0.999 <= solver.guarantee().epsilon(1e-5) <= 1.0
    assert solver.batch_size == (341.0 if plan["single_pass"] else 4096.0)


def test_plans_take_public_constants_alone():
    stated = Risk(_loss, np.zeros(3), 2.0, lipschitz=3.0, smoothness=0.5)
    solver = OnlineToBatch.for_budget(stated, 100, BUDGET)
    assert (solver.clip_norm, solver.smoothness) == (3.0, 0.5)
    assert solver.clip == "centred"
    ball = SimplexRisk(_loss, dpjax.geometry.L1Ball(5, 3.0), 5, grad_range=6.0)
    solver = OnlineToBatch.for_budget(ball, 100, BUDGET)
    assert (solver.norm, solver.clip, solver.clip_norm) == ("linf", "plain", 1.0)
    assert solver.learner == "optimistic_exponentiated"
    given = DisjointPartition(5, 7)
    solver = OnlineToBatch.for_budget(BALL, 100, BUDGET, single_pass=True, sampler=given)
    assert (solver.sampler, solver.batch_size) == (given, 7.0)
    kept = OnlineToBatch.for_budget(
        BALL, 100, BUDGET, learner="strongly_convex", learning_rate=0.5, noise_multiplier=9.0
    )
    assert (kept.learning_rate, kept.noise_multiplier) == (0.5, 9.0)


@pytest.mark.parametrize("single_pass", [False, True])
def test_plans_do_not_depend_on_the_unit_of_length(single_pass):
    """A ball of three times the radius with records a third as long is the same problem."""

    def plan(radius):
        ball = dpjax.geometry.L1Ball(50, radius)
        problem = SimplexRisk(_loss, ball, 50, grad_range=2.0, smoothness=4.0)
        options = {"single_pass": True} if single_pass else {}
        return OnlineToBatch.for_budget(problem, 900, BUDGET, **options)

    one, three = plan(1.0), plan(3.0)
    assert (one.clip, one.sampler) == (three.clip, three.sampler)
    assert jax.tree.map(float, one.noise) == jax.tree.map(float, three.noise)
    assert float(three.clip_norm) == pytest.approx(float(one.clip_norm) / 3)
    assert float(three.smoothness) == pytest.approx(float(one.smoothness) / 9)


def _once(dim, n, slope=0.5, **options):
    """Of a single pass, with HR over G = `slope`."""
    loss = Risk.linear(lambda m, y: jax.nn.softplus(-y * m), dim, 2.0, lipschitz=3.0, smoothness=1)
    loss = dataclasses.replace(loss, smoothness=slope * 3.0 / 2.0)
    budget = dpjax.Budget(options.pop("epsilon", 1.0), 1e-6)
    return OnlineToBatch.for_budget(loss, n, budget, single_pass=True, **options)


@pytest.mark.filterwarnings("ignore:delta = .* is at least 1 / num_records")
@pytest.mark.parametrize(
    ("much", "little"),
    [
        ({"dim": 10, "n": 3_000}, {"dim": 10, "n": 100_000}),
        ({"dim": 100, "n": 30_000}, {"dim": 10, "n": 30_000}),
        ({"dim": 10, "n": 10_000}, {"dim": 10, "n": 10_000, "epsilon": 4.0}),
        (
            {"dim": 10, "n": 1_000, "noise_multiplier": 8.0},
            {"dim": 10, "n": 1_000, "noise_multiplier": 0.0},
        ),
        ({"dim": 10, "n": 30_000, "noise": "tree"}, {"dim": 10, "n": 30_000}),
        ({"dim": 99, "n": 10**6, "noise": "pure_tree"}, {"dim": 99, "n": 10**6, "noise": "tree"}),
    ],
    ids=["records", "dimension", "epsilon", "multiplier", "noise", "pure noise"],
)
def test_a_single_pass_clips_whole_increments_only_where_noise_dominates(much, little):
    """Their bias does not fall with the number of records, noise does."""
    assert (_once(**much).clip, _once(**little).clip) == ("whole", "centred")
    assert _once(**much, clip="centred").clip == "centred"
    assert _once(**little, clip="whole").clip == "whole"
    assert _once(**much, slope=11.0).clip == "centred"  # gradients turn within a small distance


@pytest.mark.filterwarnings("ignore:delta = .* is at least 1 / num_records")
def test_a_single_pass_on_vertices_clips_as_noise_tells():
    domain = dpjax.geometry.L1Ball(10, 2.0)
    problem = SimplexRisk(_loss, domain, 10, grad_range=4.0, smoothness=1.0)
    for n, clip in ((1_000, "whole"), (100_000, "plain")):
        solver = OnlineToBatch.for_budget(problem, n, BUDGET, single_pass=True)
        assert (solver.clip, solver.norm) == (clip, "linf")


@pytest.mark.filterwarnings("ignore:delta = .* is at least 1 / num_records")
def test_steps_of_a_single_pass_are_shorter_where_noise_grows_with_the_way():
    def stride(**options):
        solver = _once(10, **options)
        return float(solver.learning_rate * solver.smoothness)

    assert stride(n=1_000) == pytest.approx(4.0)  # whole increments: noise does not grow
    assert stride(n=30_000, slope=8.0) == pytest.approx(1.0)
    assert 1.0 < stride(n=100_000, slope=3.0) < stride(n=200_000, slope=3.0) < 4.0
    assert stride(n=10**7, slope=8.0) == pytest.approx(4.0)
    assert stride(n=30_000, noise_multiplier=0.0) == pytest.approx(4.0)


def test_multipliers_of_a_sweep_may_be_traced():
    def clip_norm(z):
        solver = _once(10, 1_000, steps=32, noise_multiplier=z)
        assert solver.clip == "whole"
        return solver.noise_multiplier

    np.testing.assert_array_equal(jax.vmap(clip_norm)(jnp.arange(3.0)), jnp.arange(3.0))
    several = _once(10, 1_000, steps=32, noise_multiplier=jnp.asarray([0.0, 8.0]))
    assert several.clip == "whole"  # by the largest


# How it does: logistic regression in a ball of radius 2, on fresh records.

LOGISTIC = Risk.linear(
    lambda m, y: jax.nn.softplus(-y * m), 10, 2.0, lipschitz=1.0, smoothness=0.25
)


def _logistic_data(n, seed):
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(99).normal(size=10)
    truth *= 1.5 / np.linalg.norm(truth)
    x = rng.normal(size=(n, 10))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = 2.0 * (rng.uniform(size=n) < 1 / (1 + np.exp(-4 * x @ truth))) - 1
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


@functools.cache
def _pool():
    """A large sample and its least loss in the ball, by projected accelerated descent."""
    data = jax.tree.map(lambda a: np.asarray(a, np.float64), _logistic_data(20_000, 1))
    x, y = data["x"], data["y"]
    w = v = np.zeros(10)
    for t in range(1, 400):
        step = v + 4 * (x * (y / (1 + np.exp(y * (x @ v))))[:, None]).mean(axis=0)
        new = step * min(1, 2 / np.linalg.norm(step))
        w, v = new, new + t / (t + 3) * (new - w)
    return x, y, np.logaddexp(0, -y * (x @ w)).mean()


def mean_excess(n, seeds, epsilon=1.0, make=OnlineToBatch.for_budget, **options):
    """Over runs with data and noise of their own."""
    budget = dpjax.Budget(epsilon, 1e-5, "replace_one")
    solver = make(LOGISTIC, n, budget, **options)
    data = [_logistic_data(n, 100 + seed) for seed in range(seeds)]
    data = jax.tree.map(lambda *a: jnp.stack(a), *data)

    def run(data, words):
        key = jax.random.wrap_key_data(words)
        return dpjax.solve(solver, LOGISTIC, data, key=key).params

    words = jax.random.key_data(jax.random.split(jax.random.key(0), seeds))
    found = jax.jit(jax.vmap(run), compiler_options=QUICK)(data, words)
    found = np.asarray(found, np.float64)
    x, y, least = _pool()
    return np.logaddexp(0, -y[None] * (found @ x.T)).mean(axis=1).mean() - least


@pytest.mark.slow
def test_it_does_better_than_as_published():
    single = mean_excess(1024, 8, single_pass=True)
    assert mean_excess(1024, 8, make=as_published) > 3 * single
    assert 0 < mean_excess(1024, 8) < single < 0.05


@pytest.mark.slow
def test_at_larger_size_too():
    """At the same budget, and one gradient of each record, but for the full batch."""
    single = mean_excess(4096, 16, single_pass=True)
    assert mean_excess(4096, 16, make=as_published) > 3 * single
    assert mean_excess(4096, 16, single_pass=True, noise="tree") > 1.2 * single
    assert mean_excess(4096, 16) < 0.7 * single
    assert single < 0.01


@pytest.mark.slow
def test_one_pass_finds_an_optimum_inside_the_ball():
    """By default: clipping whole increments has a bias there, whatever the number of records."""
    n, seeds, truth = 20_000, 4, 3.0 * np.eye(10)[0]
    inside = Risk.linear(
        lambda m, y: jax.nn.softplus(-y * m), 10, 4.0, lipschitz=1.0, smoothness=0.25
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(seeds, n, 10))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    chance = 1 / (1 + np.exp(-x @ truth))
    y = 2.0 * (rng.uniform(size=(seeds, n)) < chance) - 1
    data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
    words = jax.random.key_data(jax.random.split(jax.random.key(0), seeds))
    inputs, chance = x.reshape(-1, 10), chance.ravel()

    def risk(w):  # expected over the labels of these inputs: `truth` is its exact minimiser
        margin = inputs @ w
        return np.mean(np.logaddexp(0, margin) - chance * margin)

    def mean_share(**options):
        """Of the start's excess."""
        budget = dpjax.Budget(1.0, 1e-5, "replace_one")
        solver = OnlineToBatch.for_budget(inside, n, budget, single_pass=True, **options)

        def run(data, words):
            return dpjax.solve(solver, inside, data, key=jax.random.wrap_key_data(words)).params

        found = jax.jit(jax.vmap(run), compiler_options=QUICK)(data, words)
        least = risk(truth)
        excess = np.mean([risk(w) for w in np.asarray(found, np.float64)]) - least
        return excess / (risk(np.zeros(10)) - least)

    assert 0 < mean_share() < 0.03
    assert mean_share(clip="whole") > 0.04


# Runs: what comes back, sweeps, going on from a saved state.


@pytest.mark.parametrize("single_pass", [False, True])
def test_what_comes_back_is_released_but_for_the_key(single_pass):
    data = _least_squares()
    solver = OnlineToBatch.for_budget(BALL, 20, BUDGET, single_pass=single_pass, steps=5)
    solution = solved(solver, BALL, data, sensitive=True)
    state = solution.state
    assert state.noise is None
    assert jnp.issubdtype(state.key.dtype, jax.dtypes.prng_key)
    assert int(state.count) == 5
    np.testing.assert_array_equal(solution.params, state.point)
    # what is told of a step follows from the points and estimates, which are released
    norm = jnp.sqrt(jnp.sum(state.estimate**2))
    np.testing.assert_allclose(solution.info.gradient_norm[-1], norm, rtol=1e-6)
    assert solution.info.displacement[0] == 0
    assert set(solution.info._fields) == {"gradient_norm", "displacement", "sensitivity"}
    assert solution.guarantee.epsilon(1e-5) <= 1
    batch = solution.sensitive["batch_size"]
    np.testing.assert_array_equal(batch, 4 if single_pass else 20)
    shares = {k for k in solution.sensitive if k.endswith("fraction")}
    assert shares == {"clipped_fraction"} | (set() if single_pass else {"clipped_changes_fraction"})


@pytest.mark.slow
def test_a_sweep_compiles_once_and_equals_its_runs():
    data = dpjax.Records(jax.tree.map(lambda a: jnp.concatenate([a, a]), _least_squares()), 20)
    base = OnlineToBatch.for_budget(BALL, 20, BUDGET, steps=6, shrinkage=False)
    traces = []

    def run(solver, data, words):
        traces.append(None)
        return dpjax.solve(solver, BALL, data, key=jax.random.wrap_key_data(words)).params

    jitted = jax.jit(run, compiler_options=QUICK)
    swept = {
        "learning_rate": 0.1,
        "noise_multiplier": 0.5,
        "clip_norm": 0.3,
        "smoothness": 2.0,
        "batch_size": 30.0,
    }
    words = jax.random.key_data(jax.random.split(jax.random.key(3), 6))
    solvers = [base, *(dataclasses.replace(base, **{k: v}) for k, v in swept.items())]
    single = np.stack([jitted(s, data, w) for s, w in zip(solvers, words, strict=True)])
    again = np.stack([jitted(s, data, words[0]) for s in solvers])
    assert len(traces) == 1
    assert len(np.unique(again, axis=0)) == len(solvers)  # each field matters
    many = jax.tree.map(lambda *a: jnp.stack([jnp.asarray(v, float) for v in a]), *solvers)
    every = jax.jit(jax.vmap(run, (0, None, 0)), compiler_options=QUICK)(many, data, words)
    np.testing.assert_allclose(every, single, atol=1e-6)


@pytest.mark.parametrize("noise", [BufferedToeplitz(7), BinaryTree(7), SplitNoise(7)])
def test_a_run_goes_on_from_a_saved_state_bit_for_bit(noise):
    data = jax.tree.map(lambda a: a[:14].reshape(7, 2, *a.shape[1:]), _least_squares())
    solver = _solver(noise, "replace_one", learner="parameter_free")

    @functools.partial(jax.jit, compiler_options=QUICK)
    def step(state, batch):
        return solver.step(BALL, batch, jnp.ones(2, bool), state)[0]

    states = [solver.init(BALL, key=jax.random.key(0))]
    for t in range(7):
        batch = jax.tree.map(lambda a, t=t: a[t], data)
        states.append(step(fresh(states[-1]), batch))
    state = save_and_load(states[3])
    for t in range(3, 7):
        state = step(fresh(state), jax.tree.map(lambda a, t=t: a[t], data))
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(states[-1]), strict=True):
        np.testing.assert_array_equal(to_numpy(a), to_numpy(b))
    assert float(jnp.max(jnp.abs(states[-1].estimate - states[3].estimate))) > 0


# Edge cases.


@pytest.mark.parametrize("single_pass", [False, True])
def test_one_step_on_one_record(single_pass):
    solver = OnlineToBatch.for_budget(BALL, 1, BUDGET, steps=1, single_pass=single_pass)
    assert 0.999 <= solver.guarantee().epsilon(1e-5) <= 1
    data = {"x": jnp.ones((1, 3)), "y": jnp.ones(1)}
    params = solved(solver, BALL, data).params
    assert float(jnp.linalg.norm(params)) <= 1 + 1e-6


def test_an_empty_batch_changes_the_estimate_as_the_centre_says(x64):
    batch = {"x": jnp.ones((2, 3)), "y": jnp.zeros(2)}

    @functools.partial(jax.jit, compiler_options=QUICK, static_argnums=0)
    def steps(clip):
        solver = _solver(BufferedToeplitz(7), "replace_one", z=0.0, clip=clip)
        state = solver.init(BALL, key=jax.random.key(0))
        state, _ = solver.step(BALL, batch, jnp.ones(2, bool), state)
        state = state._replace(point=state.point + jnp.array([0.1, 0.0, -0.2]))
        after, info = solver.step(BALL, batch, jnp.zeros(2, bool), state)
        return state.point - state.previous, after.estimate - state.estimate, info.displacement

    moved, change, displacement = steps("centred")
    np.testing.assert_allclose(change, (2 / 7) ** 2 * moved / 2, atol=1e-12)
    assert displacement == pytest.approx(np.linalg.norm(moved))
    np.testing.assert_array_equal(steps("plain")[1], 0)


@pytest.mark.parametrize("clip", ["centred", pytest.param("plain", marks=SLOW), "whole"])
def test_no_bounds_release_nothing(clip):
    data = _least_squares()
    solver = OnlineToBatch.for_budget(
        BALL, 20, BUDGET, steps=4, clip=clip, clip_norm=0.0, smoothness=0.0, learning_rate=1.0
    )
    solution = solved(solver, BALL, data)
    np.testing.assert_array_equal(solution.state.estimate, 0)
    np.testing.assert_array_equal(solution.params, 0)
    np.testing.assert_array_equal(solution.info.sensitivity, 0)
    assert solution.guarantee.epsilon(1e-5) <= 1


def test_without_smoothness_the_first_gradient_is_all_there_is(x64):
    data = _least_squares()
    fields = LOOSE | {"smoothness": 0.0, "batch_size": 20.0}
    solver = OnlineToBatch(FullBatch(5), SplitNoise(5), 1.0, **fields)
    states, info = trace(solver, BALL, data, jax.random.key(0))
    np.testing.assert_array_equal(states.estimate, states.estimate[:1].repeat(5, axis=0))
    np.testing.assert_array_equal(info.sensitivity[1:], 0)
    assert info.displacement[-1] > 0


@pytest.mark.slow
def test_more_steps_than_the_noise_is_made_for_are_nan():
    batch = {"x": jnp.ones((2, 3)), "y": jnp.zeros(2)}

    @functools.partial(jax.jit, compiler_options=QUICK, static_argnums=0)
    def run(noise):
        solver = _solver(noise, "replace_one", shrinkage=True)
        state = solver.init(BALL, key=jax.random.key(0))
        for _ in range(2):
            state = solver.step(BALL, batch, jnp.ones(2, bool), state)[0]
        return state, solver.step(BALL, batch, jnp.ones(2, bool), fresh(state))[0]

    for noise in (SplitNoise(2, 0.5), BufferedToeplitz(2), BinaryTree(2)):
        last, beyond = run(noise)
        assert np.isfinite(last.point).all()
        assert np.isnan(beyond.estimate).all()
        assert np.isnan(beyond.point).all()


TREE = {"a": np.zeros((2, 1), np.float32), "b": [np.zeros(1, np.float32)]}


def _tree_loss(w, rec):
    return _loss(jnp.append(w["a"][:, 0], w["b"][0]), rec)


@pytest.mark.parametrize("single_pass", [pytest.param(False, marks=SLOW), True])
def test_parameters_may_be_trees_and_batches_be_split(single_pass):
    data = _least_squares()
    problem = Risk(_tree_loss, TREE, radius=1.0)
    options = {"steps": 5, "single_pass": single_pass, "noise_multiplier": 0.0, "clip_norm": 3.0}
    params = []
    for p, size in ((problem, None), (BALL, 3)):
        solver = OnlineToBatch.for_budget(p, 20, BUDGET, **options, microbatch_size=size)
        params.append(solved(solver, p, data).params)
    flat = np.append(params[0]["a"][:, 0], params[0]["b"][0])
    np.testing.assert_allclose(flat, params[1], atol=1e-5)
    assert np.linalg.norm(flat) > 0.1


def test_parameters_of_few_digits_and_without_bounds():
    data = _least_squares()
    problem = Risk(_loss, jnp.zeros(3, jnp.bfloat16))
    solver = OnlineToBatch.for_budget(problem, 20, dpjax.Budget(8.0, 1e-5), steps=8)
    solution = solved(solver, problem, data)
    assert solution.params.dtype == jnp.bfloat16
    assert solution.state.estimate.dtype == jnp.float32
    assert np.isfinite(np.asarray(solution.params, np.float32)).all()


def test_learners_may_be_functions():
    def learner(solver, problem):
        return dpjax.transforms.projected(optax.adam(solver.learning_rate), problem.project)

    data = _least_squares()
    solver = OnlineToBatch.for_budget(
        BALL, 20, BUDGET, learner=learner, learning_rate=0.1, noise_multiplier=0.0, clip_norm=25.0
    )
    assert solver.learner is learner
    params = solved(solver, BALL, data).params
    assert float(BALL.mean_loss(params, data)) < 1.1 * optimum(BALL, data)[1]


# Errors.

FULL = {
    "sampler": FullBatch(3),
    "noise": SplitNoise(3),
    "noise_multiplier": 1.0,
    "clip_norm": 1.0,
    "smoothness": 1.0,
    "learning_rate": 1.0,
    "batch_size": 1.0,
}
PASS = FULL | {"sampler": DisjointPartition(3, 2), "noise": BufferedToeplitz(3)}
PUBLISHED = PASS | {
    "noise": BinaryTree(3),
    "clip": "plain",
    "weight_exponent": 1.0,
    "kind": PublishedOnlineToBatch,
}
WRONG = [
    (FULL, {"noise_multiplier": -1.0}, "noise_multiplier must be >= 0, got -1.0"),
    (FULL, {"clip_norm": math.inf}, "clip_norm must be finite, got inf"),
    (FULL, {"smoothness": -0.5}, "smoothness must be >= 0, got -0.5"),
    (FULL, {"learning_rate": 0.0}, "learning_rate must be > 0, got 0.0"),
    (FULL, {"batch_size": 0.0}, "batch_size must be > 0, got 0.0"),
    (FULL, {"microbatch_size": 0}, "microbatch_size must be >= 1, got 0"),
    (FULL, {"learner": "sgd"}, "learner must be one of .*got 'sgd'"),
    (FULL, {"clip": "none"}, "clip must be one of .*got 'none'"),
    (FULL, {"norm": "l1"}, "norm must be one of .*got 'l1'"),
    (FULL, {"norm": "linf"}, "clip must be 'plain' or 'whole' with norm='linf', got 'centred'"),
    (
        FULL,
        {"weight_exponent": -0.5},
        "weight_exponent must be .* >= 0 with FullBatch, got -0.5",
    ),
    (
        PASS,
        {"weight_exponent": 0.5},
        "weight_exponent must be .* >= 1 with Disjoint.*, got 0.5",
    ),
    (PASS, {"weight_exponent": math.nan}, "weight_exponent must be finite"),
    (PASS, {"estimate_exponent": 0.0}, "estimate_exponent must be .*>= 1 .*got 0.0"),
    (FULL, {"noise": BinaryTree(3)}, "noise must be SplitNoise with FullBatch.*BinaryTree"),
    (FULL, {"noise": BufferedToeplitz(3)}, "noise must be SplitNoise.*BufferedToeplitz"),
    (FULL, {"noise": SplitNoise(2)}, "noise.num_steps must be >= sampler.steps = 3, got 2"),
    (PASS, {"noise": BufferedToeplitz(2)}, "noise.num_steps must be >= sampler.steps = 3, got 2"),
    (PASS, {"sampler": PoissonSampler(0.1, 3, 20)}, "sampler must be .*got PoissonSampler"),
    (PASS, {"sampler": TaperedPartition(3, 9)}, "sampler must .*got TaperedPartition"),
    (
        PASS,
        {"sampler": IndependentPartition(3, 9, tapered=True)},
        "batches of one size .*, got .*tapered=True",
    ),
    (PASS, {"relation": "add_or_remove_one"}, "relation must be .* with DisjointPartition"),
    (
        PASS,
        {"noise": BinaryTree(3, distribution="linf")},
        "norm must be 'linf' with BinaryTree.*got 'l2'",
    ),
    (
        PASS,
        {"kind": PublishedOnlineToBatch},
        "published noise needs noise=BinaryTree and clip='plain'",
    ),
    (PUBLISHED, {"clip": "whole"}, "published noise needs .*'whole'"),
    (
        PUBLISHED,
        {"estimate_exponent": 5.0},
        "estimate_exponent must be .* = 1.0 .*got 5.0",
    ),
]


@pytest.mark.parametrize(("fields", "wrong", "message"), WRONG, ids=lambda v: str(v)[:40])
def test_wrong_fields_are_named(fields, wrong, message):
    _made(**fields)
    with pytest.raises(ValueError, match=message):
        _made(**(fields | wrong))


def _made(kind=OnlineToBatch, **fields):
    return kind(**({"relation": "replace_one"} | fields))


WRONG_PLANS = [
    ({"num_records": 0}, ValueError, "num_records must be >= 1, got 0"),
    ({"num_records": 2.5}, TypeError, "num_records must be an integer, got 2.5"),
    ({"steps": 0}, ValueError, "steps must be >= 1, got 0"),
    ({"steps": 1.5}, TypeError, "steps must be an integer, got 1.5"),
    ({"steps": 60, "single_pass": True}, ValueError, "steps must be <= num_records = 50.*got 60"),
    ({"rate": 1.0}, TypeError, "unknown field 'rate'; OnlineToBatch has .*learning_rate"),
    ({"relation": "replace_one"}, TypeError, "unknown field 'relation'"),
    ({"learner": "sgd"}, ValueError, "learner must be one of .*got 'sgd'"),
    ({"learner": "strongly_convex"}, ValueError, "learning_rate is required .*1 / mu"),
    ({"smoothness": 0.0}, ValueError, "smoothness must be > 0, got 0.0"),
    ({"noise": "tree"}, ValueError, "noise must be SplitNoise with FullBatch, got 'tree'"),
    ({"noise": "white", "single_pass": True}, ValueError, "noise must be .*'pure_tree'.*'white'"),
    ({"sampler": PoissonSampler(0.1, 3, 50)}, ValueError, "sampler must be .*PoissonSampler"),
]


def test_wrong_published_plans_are_named():
    with pytest.raises(ValueError, match=r"got 40\.0 .* a true epsilon of 41.76"):
        as_published(BALL, 50, dpjax.Budget(40.0, 1e-5))
    with pytest.raises(ValueError, match=r"published noise needs .*'centred'"):
        as_published(BALL, 50, BUDGET, clip="centred")


def test_the_spelling_of_0_1_warns():
    with pytest.warns(DeprecationWarning, match="dpjax.papers.online_to_batch.as_published"):
        old = OnlineToBatch.for_budget(BALL, 50, BUDGET, as_published=True)
    assert old == as_published(BALL, 50, BUDGET)


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG_PLANS, ids=lambda v: str(v)[:40])
def test_wrong_plans_are_named(wrong, error, message):
    with pytest.raises(error, match=message):
        OnlineToBatch.for_budget(BALL, **({"num_records": 50, "budget": BUDGET} | wrong))


def test_other_errors():
    with pytest.raises(TypeError, match=r"noise must be a strategy.*got 'buffered'"):
        OnlineToBatch(**(PASS | {"noise": "buffered"}))
    solver = OnlineToBatch(**FULL, learner="exponentiated")
    with pytest.raises(ValueError, match="need a simplex or an l1 ball, with Risk"):
        solver.init(BALL, key=jax.random.key(0))
    with pytest.raises(TypeError, match="key is required"):
        solver.init(SIMPLEX, key=None)
    parity = dpjax.problems.demographic_parity(2, 2, slack=0.1)
    problem = RateConstrained.linear(3, 2, parity)
    assert OnlineToBatch.for_budget(problem, 50, BUDGET).clip_norm == 1.0
