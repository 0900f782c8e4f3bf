"""PreconditionedSGD: noiseless limit, noise of its three parts, what it is for, and refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from scipy import optimize, special, stats

import dpjax
import dpjax.testing as dpt
from dpjax.api import _plan
from dpjax.problems import RateConstrained, demographic_parity
from dpjax.sampling import FullBatch
from dpjax.solvers import DPSGD, PreconditionedSGD


def _table(n=3000, seed=0):
    """A table's inputs, scaled by loose bounds: one long direction, and short ones that tell."""
    rng = np.random.default_rng(seed)
    x = np.stack([0.9 + 0.02 * rng.normal(size=n), 0.05 * rng.normal(size=n)], axis=1)
    x = np.concatenate([x, 0.3 * rng.normal(size=(n, 2))], axis=1)
    scores = x @ np.array([[40.0, -40, 0], [20, 0, -20], [1, -1, 0], [0, 1, -1]])
    y = np.argmax(scores - scores.mean(axis=0) + rng.gumbel(size=(n, 3)), axis=1)
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.int32)}


def _solver(n, steps=400, **fields):
    defaults = {
        "noise_multiplier": 0.0,
        "clip_norm": 1e3,
        "learning_rate": 1.0,
        "batch_size": float(n),
        "decay": max(0.0, 1 - 20 / steps),
    }
    return PreconditionedSGD(FullBatch(steps), **(defaults | fields))


def _loss(params, data):
    x, y = np.asarray(data["x"], float), np.asarray(data["y"])
    logits = x @ np.asarray(params["w"], float) + np.asarray(params["b"], float)
    return float(np.mean(special.logsumexp(logits, axis=1) - logits[np.arange(len(y)), y]))


def _optimum(data):
    x = np.asarray(data["x"], float)
    u, one_hot = np.column_stack([x, np.ones(len(x))]), np.eye(3)[np.asarray(data["y"])]

    def loss(w):
        logits = u @ w.reshape(-1, 3)
        slope = u.T @ (special.softmax(logits, axis=1) - one_hot) / len(u)
        value = np.mean(special.logsumexp(logits, axis=1) - np.sum(logits * one_hot, axis=1))
        return value, slope.ravel()

    return optimize.minimize(loss, np.zeros(u.shape[1] * 3), jac=True, method="BFGS").fun


# two programs of 400 steps
def test_noiseless_limit_is_the_optimum_where_descent_is_far_from_it():
    data, problem = _table(), RateConstrained.linear(4, 3)
    n, best = len(data["y"]), _optimum(data)
    ours = dpjax.solve(_solver(n), problem, data, key=jax.random.key(0)).params
    plain = DPSGD(FullBatch(400), 0.0, 1e3, 2.0, float(n), average="last")  # 2: still stable
    theirs = dpjax.solve(plain, problem, data, key=jax.random.key(1)).params
    start = np.log(3) - best
    assert _loss(ours, data) - best < 0.01 * start
    assert _loss(theirs, data) - best > 0.2 * start


@pytest.mark.always  # the claim
def test_the_noise_of_each_part_is_the_multiplier_times_what_it_is_clipped_to():
    problem = RateConstrained.linear(60, 40)
    solver = _solver(4, 4, noise_multiplier=1.5, clip_norm=0.7, looks=1, moment_looks=1)
    batch = {"x": jnp.zeros((4, 60)), "y": jnp.zeros(4, jnp.int32)}
    nobody = jnp.zeros(4, bool)
    state = solver.init(problem, key=jax.random.key(1))

    @jax.jit
    def step(state):
        return solver.step(problem, batch, nobody, state)

    def looked(key):
        return step(state._replace(key=key))[0].measured

    looks = np.asarray(jax.lax.map(looked, jax.random.split(jax.random.key(2), 2000))).ravel()
    dpt.check_scale(looks, lambda scale: stats.norm(scale=scale).cdf, 1.5)
    # lengths of 4 records, whose logarithms are 0.4 / 1.5 of that of 10^4
    state = state._replace(
        count=jnp.asarray(1, jnp.int32), measured=jnp.array([0.4, 1.5]) / np.sqrt(2) * 4
    )
    length, squared = solver._lengths(state)
    moments = np.asarray(step(state)[0].moment).ravel()
    dpt.check_scale(moments, lambda s: stats.norm(scale=s).cdf, 1.5 * 1.5 * float(squared))
    state = state._replace(count=jnp.asarray(2, jnp.int32), inverse=jnp.eye(61))
    after, info = step(state)
    assert float(info.clip_norm) == pytest.approx(0.7 * float(length))
    rate = 1.0 / 4  # the first rate, over the size of a batch
    moved = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(after.params)])
    dpt.check_scale(moved / rate, lambda s: stats.norm(scale=s).cdf, 1.5 * 0.7 * float(length))
    assert solver.guarantee().event == dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(1.5), 4)


@pytest.mark.always  # the claim
def test_no_record_adds_more_than_what_noise_is_for_and_some_add_as_much():
    problem, solver = RateConstrained.linear(3, 2), _solver(4, 4, clip_norm=0.7)
    state = solver.init(problem, key=jax.random.key(0))._replace(inverse=jnp.eye(4))
    state = state._replace(measured=jnp.array([0.4, 1.5]))
    length, squared = (float(size) for size in solver._lengths(state))

    @jax.jit
    def added(count, x, y):
        before = state._replace(count=count)
        after, _ = solver.step(problem, {"x": x, "y": y}, jnp.ones(1, bool), before)
        moved = jax.tree.map(lambda a: 4 * a, after.params)  # the rate is 1, over 4 records
        return [after.measured - before.measured, after.moment, moved]

    bounds = [1.0, 1.5 * squared, 0.7 * length]
    largest = np.zeros(3)
    for scale in (0.0, 1e-30, 0.01, 1.0, 30.0, 1e6, 1e18, 1e30, np.inf, np.nan):
        for label in (-1, 0, 1, 2):
            x, y = scale * jnp.array([[1.0, -1, 0.5]]), jnp.array([label], jnp.int32)
            for part in range(3):
                sums = added(jnp.asarray(part, jnp.int32), x, y)
                sizes = [
                    float(np.sqrt(sum(np.sum(np.square(a)) for a in jax.tree.leaves(s))))
                    for s in sums
                ]
                assert sizes[part] <= bounds[part] * (1 + 1e-3), (scale, label, part)
                assert all(size == 0 for at, size in enumerate(sizes) if at != part)
                largest[part] = max(largest[part], sizes[part])
                if not 0 <= label < 2 or not np.isfinite(scale):
                    assert sizes[part] == 0
    np.testing.assert_allclose(largest, bounds, rtol=1e-3)


def test_second_moments_are_those_of_the_inputs():
    data, problem = _table(500), RateConstrained.linear(4, 3)
    solver = _solver(500, 3)
    state = dpjax.solve(solver, problem, data, key=jax.random.key(0)).state
    u = np.column_stack([np.asarray(data["x"]), np.ones(500)])
    lengths = np.linalg.norm(u, axis=1)
    typical = np.exp(np.mean(np.log(lengths)))
    kept = np.minimum(1, 1.5 * typical**2 / lengths**2)
    assert 0 < np.mean(kept < 1) < 0.1
    moment = (u * kept[:, None]).T @ u
    np.testing.assert_allclose(state.moment, moment, rtol=1e-4, atol=1e-2)
    wanted = np.linalg.inv(0.5 * (moment / 500 + 1.5e-6 * typical**2 * np.eye(5)))
    np.testing.assert_allclose(state.inverse, wanted, rtol=0.02, atol=0.02 * wanted.max())


def test_the_plan_takes_it_where_noise_is_small_and_nothing_is_constrained():
    budget = dpjax.Budget(1.0, 1e-9, "replace_one")

    def first(problem, n):
        return next(_plan._of_rates(problem, n, budget))

    plain, pair = RateConstrained.linear(20, 5), demographic_parity(2, 5, slack=0.1)
    few, many = (first(plain, n) for n in (1_000, 50_000))
    assert (few.method, many.method) == ("dpsgd", "preconditioned_sgd")
    assert "above 0.065: it hides second moments" in few.remark
    assert "at most 0.065" in many.remark
    assert first(RateConstrained.linear(20, 5, pair), 50_000).method == "rate_constrained_sgda"
    other = RateConstrained.linear(20, 5, loss=lambda logits, y: -logits[y])
    assert first(other, 50_000).method == "dpsgd"  # of a curvature that is not known
    wide = first(RateConstrained.linear(1_500, 5), 10**7)
    assert (wide.method, wide.remark[:25]) == ("dpsgd", "1500 features, above 1000")


@pytest.mark.slow  # three runs of each of two methods
def test_the_default_has_less_error_than_descent_on_a_table():
    data, problem = _table(40_000, seed=3), RateConstrained.linear(4, 3)
    budget, best = dpjax.Budget(1.0, 1e-6, "replace_one"), _optimum(data)
    excess = {
        method: np.median(
            [
                _loss(dpjax.fit(problem, data, budget, key=key, method=method).params, data) - best
                for key in jax.random.split(jax.random.key(5), 3)
            ]
        )
        for method in ("auto", "dpsgd")
    }
    assert excess["auto"] < 0.5 * excess["dpsgd"]


def test_what_it_cannot_solve_is_refused():
    budget, key = dpjax.Budget(1.0, 1e-6), jax.random.key(0)
    constrained = RateConstrained.linear(3, 2, demographic_parity(2, 2, slack=0.1))
    network = RateConstrained(lambda w, x: x @ w, init=jnp.zeros((3, 2)))
    with pytest.raises(ValueError, match="no constraints, which RateConstrainedSGDA is for, got"):
        PreconditionedSGD.for_budget(constrained, 1000, budget)
    with pytest.raises(TypeError, match=r"problem\.logits must be those of"):
        PreconditionedSGD.for_budget(network, 1000, budget)
    with pytest.raises(
        TypeError, match=r"problem must be a dpjax\.problems.RateConstrained.linear"
    ):
        _solver(10).init(dpjax.problems.LinearModel("logistic", 3), key=key)
    with pytest.raises(ValueError, match=r"sampler\.steps must be >= 3, got 2"):
        _solver(10, 2)
    with pytest.raises(TypeError, match="relation"):  # that of the budget alone is calibrated for
        PreconditionedSGD.for_budget(
            RateConstrained.linear(3, 2), 1000, budget, relation="replace_one"
        )
    solver = PreconditionedSGD.for_budget(RateConstrained.linear(3, 2), 1000, budget)
    stacked = dataclasses.replace(solver, noise_multiplier=jnp.ones(2))
    with pytest.raises(ValueError, match="noise_multiplier"):
        stacked.guarantee()
