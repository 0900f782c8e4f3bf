"""Networks of flax and equinox: training, and the bound on what one record changes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from sklearn.datasets import load_digits

import dpjax

CLIP, STEPS, WIDTH = 0.5, 60, 8


def nnx_network():
    model = nnx.Sequential(
        nnx.Linear(64, WIDTH, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(WIDTH, 10, rngs=nnx.Rngs(1))
    )
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    return params, lambda params, x: nnx.merge(graph, params, rest)(x)


def eqx_network():
    with jax.debug_key_reuse(False):  # the oldest equinox splits a key twice
        network = eqx.nn.MLP(64, 10, WIDTH, 1, key=jax.random.key(1))
    params, static = eqx.partition(network, eqx.is_inexact_array)
    return params, lambda params, x: eqx.combine(params, static)(x)


@pytest.fixture(params=[nnx_network, eqx_network], ids=["flax", "equinox"])
def network(request):
    """Parameters, and the loss of one record."""
    params, apply = request.param()

    def loss(params, x, y):
        return optax.losses.softmax_cross_entropy_with_integer_labels(apply(params, x), y)

    return params, loss


@pytest.fixture(scope="module")
def digits():
    """1,797 images of eight by eight; pixels are known to lie in 0..16."""
    x, y = load_digits(return_X_y=True)
    return jnp.asarray(x / 16, jnp.float32), jnp.asarray(y)


def test_training_with_our_parts_lowers_the_loss_at_a_stated_epsilon(network, digits, key):
    params, loss = network
    x, y = digits
    n, rate = len(y), 0.2
    sampler = dpjax.sampling.PoissonSampler(rate, STEPS, num_records=n)
    failure = sampler.failure_probability()
    z = dpjax.privacy.calibrate_gaussian(
        rate, STEPS, dpjax.Budget(4.0, 1e-5), failure_probability=failure
    )
    clip = dpjax.transforms.clip_by_norm(CLIP)
    noise = dpjax.transforms.add_gaussian(z * clip.sensitivity("add_or_remove_one"))
    private_sum, optimizer = dpjax.chain(clip, noise), optax.adam(0.05)

    @jax.jit
    def fit(params, key):
        batch_key, noise_key = jax.random.split(key)

        def step(carry, plan):
            params, state, opt_state = carry
            rows, mask = sampler.batch(plan, n)
            gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x[rows], y[rows])
            total, state = private_sum.update(gradients, state, key=noise_key, mask=mask)
            mean = jax.tree.map(lambda leaf: leaf / (rate * n), total)
            updates, opt_state = optimizer.update(mean, opt_state)
            return (optax.apply_updates(params, updates), state, opt_state), None

        start = params, private_sum.init(params), optimizer.init(params)
        return jax.lax.scan(step, start, sampler.plan(batch_key, n))[0][0]

    def mean_loss(params):
        return float(jax.vmap(loss, (None, 0, 0))(params, x, y).mean())

    trained = fit(params, key)
    assert mean_loss(trained) < 0.6 * mean_loss(params)
    assert jax.tree.structure(trained) == jax.tree.structure(params)
    event = dpjax.privacy.joint_poisson_event(rate, STEPS, gaussian=z)
    assert 3.9 < dpjax.Guarantee(event, failure_probability=failure).epsilon(1e-5) <= 4.0


def test_one_record_moves_the_sum_by_the_stated_sensitivity_at_most(network, digits, key):
    """Removed, or replaced by whatever does most harm; and the bound is met, not idle."""
    params, loss = network
    x, y = digits[0][:6], digits[1][:6]
    clip = dpjax.transforms.clip_by_norm(CLIP)

    @jax.jit
    def total(x, y, mask):
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, x, y)
        return clip.update(gradients, clip.init(params), mask=mask, key=None)[0]

    def distance(left, right):
        return float(optax.tree.norm(jax.tree.map(jnp.subtract, left, right)))

    everybody = jnp.ones(6, bool)
    here = total(x, y, everybody)
    removed = distance(here, total(x, y, everybody.at[0].set(False)))
    assert 0.99 * CLIP < removed <= clip.sensitivity("add_or_remove_one") * (1 + 1e-5)
    largest = 0.0
    for value in (1e-3, -1.0, 1e4, -1e4, 1e20, np.inf, np.nan):
        for label in (0, 9):
            moved = total(x.at[0].set(value), y.at[0].set(label), everybody)
            largest = max(largest, distance(here, moved))
    assert CLIP < largest <= clip.sensitivity("replace_one") * (1 + 1e-5)


@pytest.mark.slow
def test_a_solver_takes_the_network_as_it_is(network, digits, key):
    params, loss = network
    x, y = digits
    problem = dpjax.problems.Risk(lambda p, record: loss(p, record["x"], record["y"]), params)
    solver = dpjax.solvers.DPSGD.for_budget(
        problem, len(y), dpjax.Budget(4.0, 1e-5), steps=20, clip_norm=CLIP, batch_size=300
    )
    solution = dpjax.solve(solver, problem, {"x": x, "y": y}, key=key)
    assert jax.tree.structure(solution.params) == jax.tree.structure(params)
    data = {"x": x, "y": y}
    assert problem.mean_loss(solution.params, data) < problem.mean_loss(params, data)
    assert solution.guarantee.epsilon(1e-5) <= 4.0


def records(n=200):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 64)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 10, n), "group": (x[:, 0] > 0).astype(np.int32)}


def modules():
    with jax.debug_key_reuse(False):
        network = eqx.nn.MLP(64, 10, WIDTH, 1, key=jax.random.key(1))
    flax = nnx.Sequential(nnx.Linear(64, WIDTH, rngs=nnx.Rngs(0)), nnx.relu)
    return [network, nnx.Sequential(flax, nnx.Linear(WIDTH, 10, rngs=nnx.Rngs(1)))]


@pytest.mark.slow
@pytest.mark.parametrize("module", modules(), ids=["equinox", "flax"])
def test_a_module_as_it_comes_is_the_logits_of_one_record(module):
    parity = dpjax.problems.demographic_parity(2, 10, slack=0.1)
    problem = dpjax.problems.RateConstrained(module, constraints=parity)
    data = records()
    assert problem.num_params == 65 * WIDTH + (WIDTH + 1) * 10
    moved = jax.tree.map(lambda leaf: leaf + 0.1, problem.init)
    whole = problem.logits.with_params(moved)
    want = jax.vmap(whole)(jnp.asarray(data["x"]))
    np.testing.assert_allclose(problem.class_logits(moved, data["x"]), want, atol=1e-6)
    assert jax.tree.structure(whole) == jax.tree.structure(module)

    # gradients of one record at a time, of the loss and of weights of the constraints
    gradients = problem.per_example_gradients(problem.init, data)
    alone = jax.tree.map(lambda a: a[3:4], data)
    for all_, one in zip(
        *(jax.tree.leaves(g) for g in (gradients, problem.per_example_gradients(moved, alone))),
        strict=True,
    ):
        assert all_.shape == (200, *one.shape[1:])
    again = problem.per_example_gradients(problem.init, alone)
    for all_, one in zip(jax.tree.leaves(gradients), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(all_[3], one[0], atol=1e-5)


@pytest.mark.slow
def test_functions_of_a_batch_are_taken_by_name():
    parity = dpjax.problems.demographic_parity(2, 10, slack=0.1)
    init, data = {"w": jnp.ones((64, 10)), "b": jnp.ones(10)}, records(20)

    def one(params, x):
        return x @ params["w"] + params["b"]

    def batch(params, x):
        return x.reshape(-1, 64) @ params["w"] + params["b"][None]

    def loss(logits, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)[:, 0]

    make = dpjax.problems.RateConstrained
    single = make(one, constraints=parity, init=init)
    together = make(batch, loss, parity, init, batched=True)
    for of in (make.per_example_gradients, make.mean_loss):
        for left, right in zip(
            *(jax.tree.leaves(of(p, init, data)) for p in (single, together)), strict=True
        ):
            np.testing.assert_allclose(left, right, atol=1e-5)
    with pytest.raises(ValueError, match=r"got shape \[20, 1, 10\].*unless batched=True"):
        make(batch, constraints=parity, init=init).error(init, data)
    with pytest.raises(ValueError, match=r"loss must give one number a record.*\[20, 10\]"):
        make(one, lambda h, y: h * y, parity, init).mean_loss(init, data)


def test_modules_are_refused_where_parameters_belong():
    assert dpjax.problems.RateConstrained(modules()[0]).num_params == 65 * WIDTH + 9 * 10
    module = modules()[0]
    with pytest.raises(TypeError, match="init must hold arrays, got functions too"):
        dpjax.problems.RateConstrained(lambda params, x: params(x), init=module)
    with pytest.raises(TypeError, match="model must be callable and a tree with arrays"):
        dpjax.problems.Network(jnp.tanh)


@pytest.mark.slow
@pytest.mark.parametrize("module", modules(), ids=["equinox", "flax"])
def test_a_constrained_module_trains(module, digits):
    x, y = digits
    data = {"x": x, "y": y, "group": (x.sum(axis=1) > 20).astype(jnp.int32)}
    parity = dpjax.problems.demographic_parity(2, 10, slack=0.2)
    problem = dpjax.problems.RateConstrained(module, constraints=parity)
    budget = dpjax.Budget(8.0, 1e-5)
    solver = dpjax.solvers.RateConstrainedSGDA.for_budget(problem, len(y), budget, steps=100)
    params = dpjax.solve(solver, problem, data, key=jax.random.key(0)).params
    assert problem.mean_loss(params, data) < 0.9 * problem.mean_loss(problem.init, data)
    assert jax.tree.structure(params) == jax.tree.structure(problem.init)
