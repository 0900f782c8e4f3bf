"""Noiseless limits of RateConstrainedSGDA against closed forms, autodiff and scipy."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import dpjax
from dpjax import problems
from dpjax.sampling import FullBatch
from dpjax.solvers import DPSGD, RateConstrainedSGDA


def _noiseless(num_records, steps, primal_step=1.0, dual_step=1.0, **fields):
    descent = DPSGD(
        FullBatch(steps),
        noise_multiplier=0.0,
        clip_norm=1e9,
        learning_rate=primal_step,
        batch_size=float(num_records),
        average="last",
    )
    defaults = {
        "rates": "soft",
        "denominator": "batch",
        "size_floor": 1e-9,
        "multiplier_set": "orthant",
        "histogram_noise": 0.0,
        "proportional_gain": 0.0,
    }
    return RateConstrainedSGDA(descent, dual_step, **(defaults | fields))


def _records(seed, n, p, classes, groups):
    rng = np.random.default_rng(seed)
    return {
        "x": jnp.asarray(rng.normal(size=(n, p))),
        "y": jnp.asarray(rng.integers(classes, size=n)),
        "group": jnp.asarray(rng.integers(groups, size=n)),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "general", "gain"),
    [
        (problems.demographic_parity, True, 0.0),
        (problems.equality_of_odds, False, 0.7),
        (problems.demographic_parity, False, 0.7),
        (problems.equality_of_odds, True, 0.0),
    ],
)
def test_one_step_is_the_gradient_of_the_lagrangian(x64, kind, general, gain):
    """Oracle 1: K = 3, three groups, temperature 2.5; weights are of multipliers ahead."""
    n, p, tau = 40, 5, 2.5
    data = _records(0, n, p, 3, 3)
    con = kind(3, 3, slack=0.03)
    problem = problems.RateConstrained.linear(p, 3, con)
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), problem.init)
    multipliers = jnp.asarray(rng.uniform(size=con.num_constraints))
    linear = problem.logits
    logits = (lambda w, x: linear(w, x)) if general else linear
    problem = problems.RateConstrained(logits, problem.loss, con, params, batched=general)

    def lagrangian(params, multipliers):
        h = problem.logits(params, data["x"])
        soft = jax.nn.softmax(tau * h)
        member = con.membership[:, con.part(data)]
        rates = jnp.einsum("sn,nk->sk", member, soft) / member.sum(axis=1)[:, None]
        values = jnp.einsum("jsk,sk->j", con.weights, rates)
        return problem.loss(h, data["y"]).mean() + multipliers @ (values - con.slack)

    solver = _noiseless(n, 1, temperature=tau, proportional_gain=gain)
    state = solver.init(problem, key=jax.random.key(0))
    state = state._replace(multipliers=multipliers)
    after, _ = jax.jit(solver.step)(problem, data, jnp.ones(n, bool), state)
    slopes = jax.jit(jax.grad(lagrangian, argnums=(0, 1)))
    want_dual = slopes(params, multipliers)[1]
    want_primal = slopes(params, jnp.maximum(multipliers + gain * want_dual, 0))[0]
    moved = jax.tree.map(lambda a, b: np.asarray(b) - a, after.primal.params, params)
    for got, want in zip(jax.tree.leaves(moved), jax.tree.leaves(want_primal), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-8)  # clip 1e9 sets the grid
    want_multipliers = np.maximum(np.asarray(multipliers) + np.asarray(want_dual), 0)
    np.testing.assert_allclose(after.multipliers, want_multipliers, atol=1e-12)


def test_stop_gradient_on_the_cell_weights(x64):
    data = _records(3, 10, 2, 2, 2)
    problem = problems.RateConstrained.linear(2, 2, problems.demographic_parity(2, 2, 0.1))

    def total(weights):
        logits = problem.logits(problem.init, data["x"])
        return problem.cotangent(logits, data, weights, 2.0).sum()

    np.testing.assert_array_equal(jax.jit(jax.grad(total))(np.ones((2, 2))), np.zeros((2, 2)))


def _two_groups(base_rates, sizes, slack):
    """Records of two groups with given positive rates; features are the group, one-hot."""
    y, group = [], []
    for z, (rate, size) in enumerate(zip(base_rates, sizes, strict=True)):
        positives = round(rate * size)
        y += [1] * positives + [0] * (size - positives)
        group += [z] * size
    group = np.asarray(group)
    data = {"x": jnp.asarray(np.eye(2)[group]), "y": jnp.asarray(y), "group": jnp.asarray(group)}
    con = problems.demographic_parity(2, 2, slack=slack)
    return data, problems.RateConstrained.linear(2, 2, con)


@jax.jit
def _rates(problem, params, x):
    return jax.nn.softmax(problem.logits(params, x))


@pytest.mark.parametrize(
    ("base_rates", "sizes", "slack", "want", "net"),
    [
        # 100 records each: one program serves all
        ((0.2, 0.6), (50, 50), 0.0, (0.4, 0.4), 0.416667),
        ((0.2, 0.6), (50, 50), 0.1, (0.3432157, 0.4432157), 0.3176659),
        ((0.3, 0.7), (80, 20), 0.05, (0.3675026, 0.4175026), 0.2323225),
        ((0.4, 0.45), (60, 40), 0.1, (0.4, 0.45), 0.0),
    ],
)
def test_two_groups_closed_form(x64, base_rates, sizes, slack, want, net):
    """Oracle 2; group 1 is the favoured one, rows are (z0,k0), (z0,k1), (z1,k0), (z1,k1)."""
    data, problem = _two_groups(base_rates, sizes, slack)
    solver = _noiseless(sum(sizes), 4_000, primal_step=0.5, dual_step=0.2)
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    rates = np.asarray(_rates(problem, solution.params, np.eye(2)))[:, 1]
    np.testing.assert_allclose(rates, want, atol=1e-5)
    lam = np.asarray(solution.state.multipliers)
    np.testing.assert_allclose(lam[3] + lam[0] - lam[1] - lam[2], net, atol=1e-5)
    if slack > 0 and net:
        np.testing.assert_allclose(lam, [net / 2, 0, 0, net / 2], atol=1e-5)
    if not net:
        np.testing.assert_array_equal(lam, 0)


@pytest.mark.slow
def test_false_negative_rate_closed_form(x64):
    """Oracle 3: an intercept only."""
    y = np.asarray([1] * 30 + [0] * 70)
    data = {"x": jnp.zeros((100, 1)), "y": jnp.asarray(y)}
    con = problems.false_negative_rate(2, slack=0.4)
    problem = problems.RateConstrained.linear(1, 2, con)
    solver = _noiseless(100, 4_000, primal_step=0.5, dual_step=0.2)
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    rate = np.asarray(_rates(problem, solution.params, np.zeros((1, 1))))[0, 1]
    np.testing.assert_allclose(rate, 0.6, atol=1e-6)
    np.testing.assert_allclose(solution.state.multipliers, [1.25], atol=1e-5)


@pytest.mark.slow
def test_multi_class_closed_form(x64):
    """Oracle 4: three classes, slack 0 pools the groups."""
    counts = np.array([[42, 21, 7], [6, 9, 15]])
    y = np.concatenate([np.repeat(np.arange(3), row) for row in counts])
    group = np.repeat([0, 1], counts.sum(axis=1))
    data = {"x": jnp.asarray(np.eye(2)[group]), "y": jnp.asarray(y), "group": jnp.asarray(group)}
    con = problems.demographic_parity(2, 3, slack=0.0)
    problem = problems.RateConstrained.linear(2, 3, con)
    solver = _noiseless(100, 4_000, primal_step=0.5, dual_step=0.2)
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    rates = _rates(problem, solution.params, np.eye(2))
    np.testing.assert_allclose(rates, [[0.48, 0.30, 0.22]] * 2, atol=1e-5)


@pytest.mark.slow
def test_matches_scipy_slsqp(x64):
    """Oracle 5: logistic regression under |gap| <= 0.05."""
    rng = np.random.default_rng(5)
    n, p, slack = 200, 3, 0.05
    x, group = rng.normal(size=(n, p)), rng.integers(2, size=n)
    x[:, 0] += 0.8 * group
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.5]))).astype(int)

    def loss(w):
        t = x @ w[:p] + w[p]
        return np.mean(np.logaddexp(0, t) - y * t)

    def gap(w):
        rate = 1 / (1 + np.exp(-(x @ w[:p] + w[p])))
        return rate[group == 1].mean() - rate[group == 0].mean()

    best = optimize.minimize(
        loss,
        np.zeros(p + 1),
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda w: slack - gap(w)},
            {"type": "ineq", "fun": lambda w: slack + gap(w)},
        ],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert abs(gap(best.x)) > slack - 1e-6  # the constraint binds
    data = {"x": jnp.asarray(x), "y": jnp.asarray(y), "group": jnp.asarray(group)}
    problem = problems.RateConstrained.linear(p, 2, problems.demographic_parity(2, 2, slack))
    # two logits see half the curvature of one, and each constraint stands twice
    solver = _noiseless(n, 5_000, primal_step=0.5, dual_step=0.05)
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))

    @jax.jit
    def found(params):
        soft = problem.constraint_values(params, data, hard=False)
        return problem.mean_loss(params, data), jnp.max(soft)

    mean_loss, worst = found(solution.params)
    np.testing.assert_allclose(mean_loss, best.fun, atol=1e-8)
    assert float(worst) <= slack + 1e-6


@pytest.mark.slow
def test_permuting_records_and_groups_is_equivariant(x64):
    data = _records(7, 50, 4, 2, 3)
    problem = problems.RateConstrained.linear(4, 2, problems.demographic_parity(3, 2, 0.05))
    solver = _noiseless(50, 200, primal_step=0.5, dual_step=0.5)
    base = dpjax.solve(solver, problem, data, key=jax.random.key(0))

    order = np.random.default_rng(0).permutation(50)
    shuffled = jax.tree.map(lambda a: a[order], data)
    again = dpjax.solve(solver, problem, shuffled, key=jax.random.key(0))
    np.testing.assert_allclose(again.params["w"], base.params["w"], atol=1e-9)

    renamed = {**data, "group": (data["group"] + 1) % 3}
    moved = dpjax.solve(solver, problem, renamed, key=jax.random.key(0))
    np.testing.assert_allclose(moved.params["w"], base.params["w"], atol=1e-9)
    want = np.roll(np.asarray(base.state.multipliers).reshape(3, 2), 1, axis=0)
    np.testing.assert_allclose(moved.state.multipliers.reshape(3, 2), want, atol=1e-9)


@pytest.mark.slow
def test_unused_subsets_and_empty_parts_change_nothing(x64):
    data = _records(8, 30, 3, 2, 2)
    con = problems.demographic_parity(2, 2, 0.05)
    wide = problems.RateConstraints(
        jnp.concatenate([jnp.pad(con.membership, ((0, 0), (0, 1))), jnp.ones((1, 3))]),
        jnp.pad(con.weights, ((0, 0), (0, 1), (0, 0))),
        con.slack,
        problems.ByField("group", 3),
    )
    solver = _noiseless(30, 100, primal_step=0.5, dual_step=0.5)
    results = [
        dpjax.solve(
            solver, problems.RateConstrained.linear(3, 2, c), data, key=jax.random.key(0)
        ).params["w"]
        for c in (con, wide)
    ]
    np.testing.assert_allclose(results[0], results[1], atol=1e-12)


OFTEN = {
    (None, "gaussian", "hard"),
    ("batch", "gaussian", "hard"),
    ("ema", "laplace", "hard"),
    ("fixed", "gaussian", "soft"),
}


@pytest.mark.parametrize(
    ("denominator", "histogram", "rates"),
    [
        pytest.param(*case, marks=[] if case in OFTEN else [pytest.mark.slow])
        for case in itertools.product(
            (None, "batch", "ema", "fixed"), ("gaussian", "laplace"), ("hard", "soft")
        )
    ],
)
def test_empty_batches_and_parts_give_finite_outputs(denominator, histogram, rates):
    """Oracle 6: an empty part, an empty batch, a noisy table that is mostly negative."""
    data = _records(9, 20, 3, 2, 2)
    data = {**data, "group": jnp.zeros(20, int)}
    problem = problems.RateConstrained.linear(3, 2, problems.demographic_parity(2, 2, 0.05))
    solver = _noiseless(
        20,
        1,
        denominator=denominator,
        histogram=histogram,
        rates=rates,
        histogram_noise=30.0,
        size_floor=None,
        multiplier_set="box",
    )

    @jax.jit
    def step(key, mask):
        state = solver.prologue(problem, data, solver.init(problem, key=key))
        state = state._replace(multipliers=jnp.asarray([1.0, 0.0, 2.0, 0.5]))
        after, info = solver.step(problem, data, mask, state)
        return after.primal.params, after.multipliers, after.memory.sizes, info

    smallest = []
    for seed in range(40):
        for mask in (jnp.zeros(20, bool), jnp.ones(20, bool)):
            outputs = step(jax.random.key(seed), mask)
            assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(outputs))
            assert np.all(np.asarray(outputs[1]) <= 10)
            smallest.append(np.max(outputs[2]))
    if denominator == "batch":
        assert min(smallest) < 0  # in some table every subset's noisy size was negative


@pytest.mark.slow
def test_as_all_denominators_agree_without_noise_on_the_full_batch(x64):
    data = _records(10, 30, 3, 2, 2)
    problem = problems.RateConstrained.linear(3, 2, problems.demographic_parity(2, 2, 0.05))
    results = [
        dpjax.solve(
            dataclasses.replace(
                _noiseless(30, 50, primal_step=0.5, dual_step=0.5),
                denominator=denominator,
                count_noise=0.0,
            ),
            problem,
            data,
            key=jax.random.key(0),
        ).params["w"]
        for denominator in ("batch", "ema", "fixed")
    ]
    np.testing.assert_allclose(results[1], results[0], atol=1e-12)
    np.testing.assert_allclose(results[2], results[0], atol=1e-12)
