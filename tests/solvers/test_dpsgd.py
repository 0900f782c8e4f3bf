"""DPSGD: noiseless limits, general problems, optimizers, averages, diagnostics."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import dp_event as dpe
from scipy import optimize, stats

import dpjax
import dpjax.testing as dpt
from dpjax import problems
from dpjax.sampling import FullBatch
from dpjax.solvers import DPSGD
from dpjax.transforms.clipping._lengths import clip_or_measure, typical_length


def _least_squares(n=50, p=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    y = x @ np.arange(1, p + 1) + 0.1 * rng.normal(size=n)
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def _loss(w, record):
    return 0.5 * (record["x"] @ w - record["y"]) ** 2


def _noiseless(n, steps, **fields):
    defaults = {
        "noise_multiplier": 0.0,
        "clip_norm": 1e6,
        "learning_rate": 0.3,
        "batch_size": float(n),
        "average": "last",
    }
    return DPSGD(FullBatch(steps), **(defaults | fields))


def test_noiseless_limit_is_least_squares():
    data = _least_squares()
    problem = problems.Risk(_loss, jnp.zeros(3))
    solution = dpjax.solve(_noiseless(50, 300), problem, data, key=jax.random.key(0))
    want = np.linalg.lstsq(np.asarray(data["x"]), np.asarray(data["y"]), rcond=None)[0]
    np.testing.assert_allclose(solution.params, want, rtol=1e-4)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.always  # the claim
def test_the_noise_of_a_step_is_the_multiplier_times_the_clip_norm(relation):
    # accountants double the sensitivity for replace-one, so noise is the same
    problem = problems.Risk(_loss, jnp.zeros(6000))
    solver = _noiseless(4, 1, noise_multiplier=1.5, clip_norm=0.7, relation=relation)
    data = {"x": jnp.zeros((4, 6000)), "y": jnp.zeros(4)}
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    noise = np.asarray(solution.params) * 4 / 0.3
    dpt.check_scale(noise, lambda scale: stats.norm(scale=scale).cdf, 1.5 * 0.7)
    assert solver.guarantee().event == dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(1.5), 1)


def test_radius_is_kept_and_the_constrained_optimum_is_found():
    data = _least_squares()
    problem = problems.Risk(_loss, jnp.zeros(3), radius=1.0)
    solution = dpjax.solve(_noiseless(50, 500), problem, data, key=jax.random.key(0))
    x, y = np.asarray(data["x"], float), np.asarray(data["y"], float)
    multiplier = np.inf
    low, high = 0.0, 1e3  # ridge path: the norm falls in the multiplier
    for _ in range(200):
        multiplier = (low + high) / 2
        w = np.linalg.solve(x.T @ x / 50 + multiplier * np.eye(3), x.T @ y / 50)
        low, high = (multiplier, high) if np.linalg.norm(w) > 1 else (low, multiplier)
    np.testing.assert_allclose(solution.params, w, atol=1e-4)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(1.0),
        pytest.param(optax.sgd(1.0, momentum=0.9), marks=pytest.mark.slow),
    ],
    ids=["adam", "momentum"],
)
def test_matches_the_same_optimizer_in_plain_optax(optimizer):
    data = _least_squares()
    problem = problems.Risk(_loss, jnp.zeros(3))
    solver = _noiseless(50, 40, optimizer=optimizer, learning_rate=0.05)
    got = dpjax.solve(solver, problem, data, key=jax.random.key(0)).params

    plain = optax.chain(optimizer, optax.scale(0.05))
    params, state = problem.init, plain.init(problem.init)
    step = jax.jit(
        lambda p, s: plain.update(jax.grad(lambda w: problem.mean_loss(w, data))(p), s, p)
    )
    for _ in range(40):
        updates, state = step(params, state)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(got, params, rtol=1e-4)


def test_averages_are_those_of_the_iterates():
    data, steps = _least_squares(), 4
    problem = problems.Risk(_loss, jnp.zeros(3))
    last = _noiseless(50, steps)
    step, state, iterates = jax.jit(last.step), last.init(problem, key=jax.random.key(0)), []
    for _ in range(steps):
        state, _ = step(problem, data, np.ones(50, bool), state)
        iterates.append(state.params)
    uniform = _noiseless(50, steps, average="uniform")
    got = dpjax.solve(uniform, problem, data, key=jax.random.key(0)).params
    np.testing.assert_allclose(got, np.mean(iterates, axis=0), rtol=1e-5)
    decayed = _noiseless(50, steps, average="ema", decay=0.6)
    got = dpjax.solve(decayed, problem, data, key=jax.random.key(0)).params
    weights = 0.6 ** np.arange(steps)[::-1]
    np.testing.assert_allclose(got, np.average(iterates, axis=0, weights=weights), rtol=1e-5)


@pytest.mark.parametrize("size", [1, 7, 64])
def test_microbatches_change_nothing_but_rounding(size):
    data = _least_squares()
    problem = problems.Risk(_loss, jnp.zeros(3))
    solver = DPSGD.for_budget(problem, 50, dpjax.Budget(1.0, 1e-5), batch_size=20, steps=5)
    key = jax.random.key(0)
    want = dpjax.solve(solver, problem, data, key=key).params
    small = dataclasses.replace(solver, microbatch_size=size)
    got = dpjax.solve(small, problem, data, key=jax.random.key(0)).params
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_neural_network_trains():
    """A general model: per-example gradients by vmap, two layers, microbatched."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 5)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(int)  # no linear model can
    group = (x[:, 2] > 0).astype(int)
    keys = jax.random.split(jax.random.key(1))
    init = {
        "a": jax.random.normal(keys[0], (5, 16)) * 0.5,
        "b": jnp.zeros(16),
        "c": jax.random.normal(keys[1], (16, 2)) * 0.3,
    }

    def logits(params, x):
        return jnp.tanh(x @ params["a"] + params["b"]) @ params["c"]

    con = problems.demographic_parity(2, 2, slack=0.1)
    problem = problems.RateConstrained(
        logits, problems.RateConstrained.linear(1, 2).loss, con, init=init
    )
    solver = dpjax.solvers.RateConstrainedSGDA.for_budget(
        problem, 4000, dpjax.Budget(8.0, 1e-5), steps=400, microbatch_size=64, clip_norm=1.0
    )
    data = {"x": x, "y": y, "group": group}
    params = dpjax.solve(solver, problem, data, key=jax.random.key(0)).params
    assert float(problem.error(params, data)) < 0.25
    assert float(problem.disparity(params, data)) < 0.15


def test_diagnostics_come_back_only_when_asked():
    data = _least_squares()
    problem = problems.Risk(_loss, jnp.zeros(3))
    solver = _noiseless(50, 4, clip_norm=1.0)
    quiet = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    loud = dpjax.solve(solver, problem, data, key=jax.random.key(0), sensitive=True)
    assert quiet.sensitive is None
    np.testing.assert_array_equal(loud.params, quiet.params)
    np.testing.assert_array_equal(loud.sensitive["batch_size"], 50)
    norms = np.linalg.norm(np.asarray(data["x"]) * np.asarray(data["y"])[:, None], axis=1)
    np.testing.assert_allclose(loud.sensitive["clipped_fraction"][0], (norms > 1).mean())


def _softmax(w, record):
    return -jax.nn.log_softmax(record["x"] @ w)[record["y"]]


@pytest.mark.parametrize("measured", [False, True])
def test_clip_norms_are_small_where_noise_is_large(measured):
    problem = problems.Risk(_softmax, jnp.zeros((20, 3)))
    given = {} if measured else {"learning_rate": 0.1}
    at, least, most = (0.5, 0.5, 1.5) if measured else (0.4, 1, 4)
    for n, epsilon in ((500, 1.0), (100_000, 3.0), (30_000, 0.2)):
        solver = DPSGD.for_budget(problem, n, dpjax.Budget(epsilon, 1e-7), **given)
        relative = float(solver.noise_multiplier) * 60**0.5 / float(solver.batch_size)
        assert float(solver.clip_norm) == pytest.approx(np.clip(at / relative, least, most))
        assert (solver.looks is not None) == measured


def test_a_clip_norm_that_is_given_or_stated_is_not_measured():
    def made(**options):
        problem = problems.Risk(_softmax, jnp.zeros((20, 3)), lipschitz=options.pop("stated", None))
        return DPSGD.for_budget(problem, 500, dpjax.Budget(1.0, 1e-7), **options)

    given, stated, few = made(clip_norm=3.0), made(stated=2.5), made(steps=19)
    assert (float(given.clip_norm), float(stated.clip_norm)) == (3.0, 2.5)
    assert given.looks is stated.looks is few.looks is None


@pytest.mark.parametrize(("wide", "shares"), [(50, 1.42), (5, 1.0)])
def test_rates_of_deep_networks_fall_with_their_width(wide, shares):
    """Of as many weights in two matrices and in three: (1000 / d)^(1/4), without biases."""

    def rate(*shapes):
        start = [jnp.ones(shape) for shape in shapes]
        problem = problems.Risk(lambda w, record: jnp.sum(w[0]) * record, start)
        return float(DPSGD.for_budget(problem, 5000, dpjax.Budget(1.0, 1e-7)).learning_rate)

    shallow = rate((40, wide), (wide,), (wide, 40))
    deep = rate((40, wide), (wide,), (wide, 20), (20, wide))
    assert shallow == pytest.approx(shares * deep, rel=0.02)


def test_looks_cost_steps_and_no_privacy():
    problem = problems.Risk(_softmax, jnp.zeros((20, 3)))
    solver = DPSGD.for_budget(problem, 500, dpjax.Budget(1.0, 1e-7))
    without = dataclasses.replace(solver, looks=None)
    assert 0 < solver.narrow_looks < solver.looks
    assert solver.guarantee().event == without.guarantee().event


def test_looks_are_as_many_as_it_takes_to_know_the_length():
    """Without records noise alone is left of what is measured, before a prior draws it to 1."""
    problem = problems.Risk(_softmax, jnp.zeros((20, 3)))
    started = problems.Risk(_softmax, jnp.ones((20, 3)))
    found = []
    for n, epsilon in ((100_000, 3.0), (4_000, 0.5), (500, 0.25)):
        solver = DPSGD.for_budget(problem, n, dpjax.Budget(epsilon, 1e-7))
        noise = float(solver.noise_multiplier) / float(solver.batch_size)
        # the first number of a narrow look is log(s / wide) / 2.5 / 2^.5 a record
        left = 2.5 * 2**0.5 * noise / max(1, solver.narrow_looks) ** 0.5
        found.append((solver.looks - solver.narrow_looks, solver.narrow_looks, left))
        other = DPSGD.for_budget(started, n, dpjax.Budget(epsilon, 1e-7))
        assert (other.looks, other.narrow_looks) == (10, 0)
    (few, none, _), (_, some, middle), (many, most, high) = found
    assert (few, none, many, most) == (10, 0, 30, 50)
    assert 0 < some < 50
    assert middle == pytest.approx(0.12, rel=0.1)
    assert high > 0.12


@pytest.mark.parametrize("kind", ["zero start", "other start", "hinge"])
def test_solvers_for_several_budgets_stack(kind):
    """Their numbers of looks differ, and are leaves."""
    start = jnp.zeros((20, 3)) if kind == "zero start" else jnp.ones((20, 3))
    problem = problems.Risk(_softmax, start)
    if kind == "hinge":
        problem = problems.Risk.linear(_hinge, 4, lipschitz=1.0)
    budgets = [dpjax.Budget(epsilon, 1e-7) for epsilon in (0.25, 1.0, 16.0)]
    solvers = [DPSGD.for_budget(problem, 4000, budget) for budget in budgets]
    stacked = jax.tree.map(lambda *fields: jnp.stack(fields), *solvers)
    assert (len(set(stacked.looks.tolist())) > 1) == (kind != "other start")
    one = jax.tree.map(lambda field: field[1], stacked)
    assert float(one._numbers_of_looks.sum()) == solvers[1].looks


def _of_known_length(longer):
    """Softmax regression on 40 records, and the mean logarithm of its gradients' lengths."""
    rng = np.random.default_rng(0)
    data = {"x": jnp.asarray(longer * rng.normal(size=(40, 5)), jnp.float32)}
    data["y"] = jnp.asarray(rng.integers(0, 3, 40))
    problem = problems.Risk(_softmax, jnp.zeros((5, 3)))
    gradients = jax.vmap(jax.grad(_softmax), (None, 0))(problem.init, data)
    norms = np.linalg.norm(np.asarray(gradients).reshape(40, -1), axis=1)
    return problem, data, np.mean(np.log(norms))


def test_narrow_looks_measure_the_same_length_by_less_noise():
    problem, data, want = _of_known_length(30)
    options = {"clip_norm": 1.0, "optimizer": optax.adam(1.0), "learning_rate": 0.1}

    def logs(noise, narrow):
        solver = _noiseless(40, 13, noise_multiplier=noise, looks=12, **options)
        solver = dataclasses.replace(solver, narrow_looks=narrow)

        def measured(key):
            return dpjax.solve(solver, problem, data, key=key).info.clip_norm[-1]

        return np.log(np.asarray(jax.vmap(measured)(jax.random.split(jax.random.key(1), 50))))

    np.testing.assert_allclose(logs(0.0, 6), want, atol=1e-3)
    wide, narrow = (np.mean((logs(5.0, few) - want) ** 2) ** 0.5 for few in (0, 8))
    # noise of 13 * 5 / 40 / 12^.5 = 0.47, and of 3.5 * 5 / 40 / 8^.5 = 0.16, before a prior
    assert 0.3 < wide < 0.65
    assert 0.1 < narrow < 0.25


@pytest.mark.always  # the claim
@pytest.mark.parametrize("count", [0, 1])
def test_noise_of_wide_and_narrow_looks_is_that_of_a_unit(count):
    problem = problems.Risk(_loss, jnp.zeros(3))
    solver = _noiseless(4, 3, noise_multiplier=1.5, clip_norm=0.7, looks=2)
    solver = dataclasses.replace(solver, narrow_looks=1)
    batch, nobody = {"x": jnp.zeros((4, 3)), "y": jnp.zeros(4)}, jnp.zeros(4, bool)

    def look(key):
        state = solver.init(problem, key=key)._replace(count=jnp.asarray(count, jnp.int32))
        after, _ = solver.step(problem, batch, nobody, state)
        return after.measured

    drawn = np.asarray(jax.jit(jax.vmap(look))(jax.random.split(jax.random.key(0), 4000)))
    np.testing.assert_array_equal(drawn[:, 1 - count], 0)
    dpt.check_scale(drawn[:, count].ravel(), lambda scale: stats.norm(scale=scale).cdf, 1.5)


@pytest.mark.always  # the claim
def test_a_record_adds_at_most_one_to_a_look_however_far_from_what_was_found():
    rng = np.random.default_rng(5)
    norms = jnp.asarray(10.0 ** rng.uniform(-38, 38, size=(3000, 1)), jnp.float32)
    norms = norms.at[0, 0].set(jnp.inf).at[1, 0].set(jnp.nan).at[2, 0].set(0)

    def add(row, near):
        clip = clip_or_measure(0.5, True, near)
        return clip.update(row[None], clip.init(None), mask=jnp.array([True]))[0]

    for near in (0.0, 1e-4, 1.0, 37.0, 1e4):
        values, lengths = jax.jit(jax.vmap(add, in_axes=(0, None)))(norms, near)
        np.testing.assert_array_equal(values, 0)
        assert float(jnp.max(jnp.linalg.norm(lengths, axis=1))) <= 1 + 1e-6
        assert bool(jnp.all(lengths[:2] == 0))


def test_the_average_is_shorter_where_noise_is_large():
    problem = problems.Risk(_softmax, jnp.zeros((20, 3)))
    found = [
        1000 * (1 - float(DPSGD.for_budget(problem, n, dpjax.Budget(epsilon, 1e-7)).decay))
        for n, epsilon in ((100_000, 3.0), (2_000, 1.0), (500, 0.1))
    ]
    assert found[0] == pytest.approx(5)
    assert 5 < found[1] < 50
    assert found[2] == pytest.approx(50)
    started = problems.Risk(_softmax, jnp.ones((20, 3)))
    assert DPSGD.for_budget(started, 500, dpjax.Budget(0.1, 1e-7)).decay == pytest.approx(0.995)
    given = DPSGD.for_budget(problem, 500, dpjax.Budget(0.1, 1e-7), decay=0.5, looks=3)
    assert (given.decay, given.looks) == (0.5, 3)


def test_looks_measure_the_geometric_mean_of_lengths_and_leave_all_else():
    problem, data, log_length = _of_known_length(3)
    solver = _noiseless(40, 3, clip_norm=0.7, looks=2, optimizer=optax.adam(1.0), learning_rate=0.1)
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    want = [0, 0, 0.7 * np.exp(log_length)]
    np.testing.assert_allclose(solution.info.clip_norm, want, rtol=1e-4)
    np.testing.assert_array_equal(solution.info.gradient_norm[:2], 0)
    assert solution.state.opt_state[0].count == 1
    # the first step of adam is of the learning rate in every coordinate
    np.testing.assert_allclose(np.abs(solution.params), 0.1, rtol=1e-3)


@pytest.mark.always  # the claim
def test_noise_of_a_look_and_of_later_steps_is_the_multiplier_times_what_a_record_adds():
    problem = problems.Risk(_loss, jnp.zeros(3000))
    solver = _noiseless(4, 2, noise_multiplier=1.5, clip_norm=0.7, looks=1)
    solver = dataclasses.replace(solver, optimizer=optax.sgd(1.0))
    batch, nobody = {"x": jnp.zeros((4, 3000)), "y": jnp.zeros(4)}, jnp.zeros(4, bool)

    def two_steps(key):
        state, _ = solver.step(problem, batch, nobody, solver.init(problem, key=key))
        after, info = solver.step(problem, batch, nobody, state)
        return state.measured[0], (state.params - after.params) / info.clip_norm * 4 / 0.3

    looks, noise = jax.jit(jax.vmap(two_steps))(jax.random.split(jax.random.key(0), 2000))
    for drawn in (looks, noise[0]):
        dpt.check_scale(np.ravel(drawn), lambda scale: stats.norm(scale=scale).cdf, 1.5)


def test_what_is_measured_under_noise_alone_is_near_one():
    noise = 500 * jax.random.normal(jax.random.key(1), (200, 2))
    lengths = jax.vmap(lambda total: typical_length(total, 100, 500.0))(noise)
    assert np.all((lengths > 1 / 3) & (lengths < 3))
    exact = jnp.array([np.log(5) / np.log(1e4), 1.0]) * 100 / 2**0.5
    assert float(typical_length(exact, 100, 1e-6)) == pytest.approx(5, rel=1e-4)


def test_looks_are_fewer_than_steps_and_of_independent_noise():
    for looks in (0, 3, jnp.array([1, 3])):
        with pytest.raises(ValueError, match=r"looks must be in \[1, 2\]"):
            _noiseless(4, 3, looks=looks)
    with pytest.raises(ValueError, match="looks must be None with correlated noise"):
        _noiseless(4, 1, looks=1, noise=dpjax.transforms.BinaryTree(1))
    for narrow in (1, 2, jnp.array([0, 1])):
        with pytest.raises(ValueError, match="looks - narrow_looks must be > 0"):
            dataclasses.replace(_noiseless(4, 3, looks=1), narrow_looks=narrow)
    with pytest.raises(ValueError, match="rate_power must be"):
        _noiseless(4, 3, rate_power=3)


@pytest.mark.parametrize("length", [1.0, 12.0])
def test_features_of_any_length_are_learned_by_default(length):
    """An instance on which no rule was chosen."""
    rng = np.random.default_rng(17)
    x = rng.normal(size=(1500, 8))
    y = np.argmax(x[:, :3] + 0.5 * rng.gumbel(size=(1500, 3)), axis=1)
    x *= length / 8**0.5
    data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y)}
    problem = problems.Risk(_softmax, jnp.zeros((8, 3)))

    def loss(**options):
        solver = DPSGD.for_budget(problem, 1500, dpjax.Budget(1.0, 1e-5), steps=300, **options)
        keys = jax.random.split(jax.random.key(0), 3)
        each = jax.vmap(lambda key: dpjax.solve(solver, problem, data, key=key).params)(keys)
        return np.mean([float(problem.mean_loss(w, data)) for w in each])

    assert loss() < 0.93 * loss(looks=None)


def test_features_of_norm_one_are_learned_by_default():
    """Of few records; at clip norm 4 whatever the noise, errors are .3."""
    rng = np.random.default_rng(3)
    centres = rng.normal(size=(3, 12))
    y = rng.integers(0, 3, 600)
    x = centres[y] + 0.7 * rng.normal(size=(600, 12))
    x /= np.linalg.norm(x, axis=1).max()

    def loss(w, record):
        return -jax.nn.log_softmax(record["x"] @ w)[record["y"]]

    problem = dpjax.problems.Risk(loss, jnp.zeros((12, 3)))
    data = {"x": x[:400].astype(np.float32), "y": y[:400]}
    budget = dpjax.Budget(2.0, 1e-5)

    def error(**options):
        solver = DPSGD.for_budget(problem, 400, budget, **options)
        keys = jax.random.split(jax.random.key(0), 4)
        each = jax.vmap(lambda key: dpjax.solve(solver, problem, data, key=key).params)(keys)
        return np.mean([np.mean((x[400:] @ w).argmax(axis=1) != y[400:]) for w in np.asarray(each)])

    assert error() < 0.6 * error(clip_norm=4.0)


def test_small_models_have_large_batches():
    def size(problem, n):
        budget = dpjax.Budget(1.0, 1e-9)
        return float(DPSGD.for_budget(problem, n, budget, noise_multiplier=1.0).batch_size)

    for params, n, expected in ((3, 1_000, 256), (3, 10**6, 62_500), (100, 10**6, 10_485)):
        assert size(problems.Risk(_loss, jnp.zeros(params)), n) == pytest.approx(expected)
    for problem in (
        problems.Risk(_loss, jnp.zeros(10_000)),
        problems.RateConstrained.linear(5, 2),
        problems.SimplexRisk(_loss, dpjax.geometry.Simplex(5), grad_range=1.0),
    ):
        assert size(problem, 10**6) == pytest.approx(1024)


@pytest.mark.slow
def test_large_batches_have_less_error_on_many_records():
    n, d = 100_000, 4
    rng = np.random.default_rng(11)
    x = rng.normal(size=(n, d)) / 2
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-x @ rng.normal(size=d))), 1.0, -1.0)
    data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}

    def loss(w):
        return np.mean(np.logaddexp(0, -y * (x @ np.asarray(w, float))))

    least = optimize.minimize(loss, np.zeros(d)).fun
    problem = problems.LinearModel("logistic", d, radius=4.0)

    def excess(**options):
        budget = dpjax.Budget(4.0, 1e-7)
        solver = DPSGD.for_budget(problem, n, budget, steps=200, **options)
        keys = jax.random.split(jax.random.key(1), 3)
        return np.median(
            [loss(dpjax.solve(solver, problem, data, key=key).params) - least for key in keys]
        )

    assert excess() < 0.7 * excess(batch_size=1024)


def test_defaults_shrink_the_step_under_heavy_noise():
    problem = problems.Risk(_loss, jnp.zeros(3))
    small, large = (
        DPSGD.for_budget(problem, 1000, dpjax.Budget(eps, 1e-5), steps=50) for eps in (0.1, 5.0)
    )
    assert small.learning_rate < large.learning_rate == 3.0


def test_an_optimizer_that_is_given_is_used_as_given():
    """A rate made for plain descent would make its steps a tenth, or ten times, as long."""
    budget, adam = dpjax.Budget(0.1, 1e-5), optax.adam(1e-2)
    problem = dpjax.problems.Risk.linear(
        lambda m, y: jax.nn.softplus(-y * m), 400, lipschitz=1.0, smoothness=0.25
    )
    plain = DPSGD.for_budget(problem, 3000, budget, steps=20)
    assert 0 < plain.learning_rate < 0.5
    with pytest.warns(FutureWarning, match="optimizer is used as given since 0.2"):
        solver = DPSGD.for_budget(problem, 3000, budget, steps=20, optimizer=adam)
    assert solver.learning_rate == 1.0
    told = DPSGD.for_budget(
        problem, 3000, budget, steps=20, optimizer=optax.adam(1.0), learning_rate=1e-2
    )
    assert told.learning_rate == 1e-2
    # its first step is as long as it says
    state = solver.init(problem, key=jax.random.key(0))
    batch = {"x": jnp.ones((4, 400)), "y": jnp.ones(4)}
    after, _ = solver.step(problem, batch, jnp.ones(4, bool), state)
    assert np.median(abs(after.params - state.params)) == pytest.approx(1e-2, rel=1e-3)


def test_the_default_rate_of_two_players_beats_a_quarter_and_four_times():
    n, d, rng = 1_000, 12, np.random.default_rng(31)  # instance of no study
    means = rng.uniform(-1, 1, (d, d))
    payoffs = np.where(rng.random((n, d, d)) < (1 + means) / 2, 1, -1)
    game, data = problems.Saddle.matrix_game((d, d)), {"A": jnp.asarray(payoffs, jnp.int8)}
    solver = DPSGD.for_budget(game, n, dpjax.Budget(1.0, 1e-6, "replace_one"))

    def gap(factor, key):
        run = dataclasses.replace(solver, learning_rate=solver.learning_rate * factor)
        x, y = dpjax.solve(run, game, data, key=key, progress=False).params
        mean = jnp.asarray(payoffs.mean(axis=0), x.dtype)
        return jnp.max(x @ mean) - jnp.min(mean @ y)

    factors = jnp.repeat(jnp.array([0.25, 1.0, 4.0]), 4)
    keys = jax.random.split(jax.random.key(0), 12)
    gaps = jax.jit(jax.vmap(gap))(factors, keys).reshape(3, 4).mean(axis=1)
    assert gaps[1] < 0.9 * gaps[0]
    assert gaps[1] < 0.8 * gaps[2]


def _hinge(margin, y):
    return jnp.maximum(0, 1 - y * margin)


def test_a_stated_bound_caps_lengths_and_clip_norms_and_stands_for_what_noise_hides():
    problem = problems.Risk.linear(_hinge, 4, lipschitz=1.0)
    x = jnp.full((40, 4), 0.1, jnp.float32)
    data = {"x": x, "y": jnp.ones(40)}
    short = _noiseless(40, 3, clip_norm=0.7, looks=1, length_bound=1.0, rate_power=2)
    info = dpjax.solve(short, problem, data, key=jax.random.key(0)).info
    np.testing.assert_allclose(info.clip_norm, [0, 0.14, 0.14], rtol=1e-4)
    for factor, options in ((9.0, {}), (0.1, {"clip_floor": 3.0})):
        solver = dataclasses.replace(short, clip_norm=factor, length_bound=0.15, **options)
        info = dpjax.solve(solver, problem, data, key=jax.random.key(0)).info
        np.testing.assert_allclose(info.clip_norm[1:], 0.15, rtol=1e-4)
    noise = 500 * jax.random.normal(jax.random.key(1), (200, 2))
    lengths = jax.vmap(lambda total: typical_length(total, 100, 500.0, 20.0))(noise)
    assert np.all((lengths > 20 / 3) & (lengths < 60))
    with pytest.raises(ValueError, match="length_bound must be"):
        _noiseless(4, 3, looks=1, length_bound=-1.0)


@pytest.mark.always  # the claim
def test_noise_follows_a_clip_norm_that_the_bound_caps():
    problem = problems.Risk.linear(_hinge, 3000, lipschitz=1.0)
    solver = _noiseless(4, 2, noise_multiplier=1.5, clip_norm=9.0, looks=1, length_bound=0.5)
    solver = dataclasses.replace(solver, optimizer=optax.sgd(1.0))
    batch, nobody = {"x": jnp.zeros((4, 3000)), "y": jnp.zeros(4)}, jnp.zeros(4, bool)

    def drawn(key):
        state = solver.init(problem, key=key)._replace(count=jnp.ones((), jnp.int32))
        after, info = solver.step(problem, batch, nobody, state)
        return (state.params - after.params) / 0.5 * 4 / 0.3, info.clip_norm

    noise, clip_norms = jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(0), 500))
    np.testing.assert_allclose(clip_norms, 0.5)
    assert float(jnp.std(noise)) == pytest.approx(1.5, rel=0.01)


def test_convex_losses_with_jumps_are_measured_by_default():
    def made(link, n=5_000, **constants):
        problem = problems.Risk.linear(link, 8, **({"lipschitz": 1.0} | constants))
        return DPSGD.for_budget(problem, n, dpjax.Budget(1.0, 1e-6))

    few = made(_hinge, 500)
    assert 10 < few.looks <= 80
    assert 0 < few.narrow_looks <= 50
    one, ten = made(_hinge), made(lambda m, y: 10 * _hinge(m, y), lipschitz=10.0)
    assert (one.looks, one.length_bound, one.rate_power) == (10, 1.0, 2)
    # the same run in other units: rates are over the square of lengths, ten times as large
    assert float(ten.learning_rate) == pytest.approx(10 * float(one.learning_rate))
    assert made(_hinge, radius=0.1).learning_rate < 0.5 * one.learning_rate
    assert made(lambda m, y: jnp.maximum(0.9 * (y - m), 0.1 * (m - y))).looks == 10
    for link, constants in (
        (lambda m, y: jnp.clip(0.5 - y * m, 0, 1), {}),  # not convex
        (lambda m, y: (m - y) ** 2, {}),  # of slopes without a bound
        (_hinge, {"smoothness": 1.0}),
    ):
        assert made(link, **constants).length_bound is None


@pytest.mark.always  # the claim
def test_one_record_adds_at_most_the_clip_norm_that_the_bound_caps():
    problem = problems.Risk.linear(_hinge, 3, lipschitz=1.0)
    solver = _noiseless(4, 2, clip_norm=9.0, looks=1, length_bound=0.5)
    solver = dataclasses.replace(solver, optimizer=optax.sgd(1.0))
    state = solver.init(problem, key=jax.random.key(3))._replace(count=jnp.ones((), jnp.int32))
    rng = np.random.default_rng(3)
    x = 10.0 ** rng.uniform(-3, 3, size=(200, 4, 1)) * rng.normal(size=(200, 4, 3))
    x = jnp.asarray(x, jnp.float32).at[0, 0].set(jnp.inf).at[1, 0].set(jnp.nan).at[2, 0].set(3e38)

    def added(rows, mask):
        after, _ = solver.step(problem, {"x": rows, "y": jnp.ones(4)}, mask, state)
        return (state.params - after.params) * 4 / 0.3

    both = jax.jit(jax.vmap(added, (0, None)))
    everyone, others = both(x, jnp.ones(4, bool)), both(x, jnp.arange(4) > 0)
    change = np.linalg.norm(everyone - others, axis=1)
    assert 0.499 < change.max() < 0.5 * (1 + 1e-4)


@pytest.mark.parametrize("length", [0.05, 1.0])
def test_hinges_are_learned_also_where_features_are_shorter_than_stated(length):
    """An instance on which no rule was chosen."""
    rng = np.random.default_rng(23)
    x = rng.normal(size=(4000, 10)) / 10**0.5
    y = np.sign(x @ rng.normal(size=10) + 0.3 * rng.normal(size=4000))
    x *= length / np.linalg.norm(x, axis=1).max()
    data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
    problem = problems.Risk.linear(_hinge, 10, lipschitz=1.0)
    solver = DPSGD.for_budget(problem, 4000, dpjax.Budget(1.0, 1e-5), steps=300)
    params = dpjax.solve(solver, problem, data, key=jax.random.key(0)).params
    assert float(problem.mean_loss(params, data)) < 0.4
