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
