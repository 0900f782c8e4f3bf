"""Gradients whose dense layers keep their factors, against those of `jax.grad`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
import dpjax.testing as dpt
from dpjax import problems
from dpjax.core import register_dataclass
from dpjax.solvers import DPSGD
from dpjax.transforms import OuterProduct, per_example_norm

_RNG = np.random.default_rng(0)
_B, _P, _H, _K = 7, 5, 6, 3


def _array(*shape):
    return jnp.asarray(_RNG.normal(size=shape), jnp.float32)


PARAMS = {"in": _array(_P, _H), "bias": _array(_H), "out": _array(_K, _H), "scale": _array(_H)}
BATCH = {"x": _array(_B, _P), "y": jnp.arange(_B) % _K}


def _entropy(logits, y):
    return -jax.nn.log_softmax(logits)[y]


def plain(p, r):
    hidden = jax.nn.relu(r["x"] @ p["in"] + p["bias"])  # relu: a custom jvp, nested
    return _entropy(p["out"] @ (hidden * p["scale"]), r["y"])


def in_a_batch_of_one(p, r):
    hidden = jnp.tanh(r["x"][None] @ p["in"] + p["bias"][None])
    return _entropy((hidden @ p["out"].T)[0], r["y"])


def with_a_penalty(p, r):
    return plain(p, r) + jnp.sum(p["out"] ** 2)


def tied(p, r):
    hidden = r["x"] @ p["in"]
    return plain(p, r) + jnp.sum((p["in"] @ hidden) ** 2)


def of_rows(p, r):
    rows = jnp.stack([r["x"], 2 * r["x"]])
    return _entropy(p["out"] @ jnp.sum(rows @ p["in"], axis=0), r["y"])


def in_a_loop(p, r):
    def layer(h, _):
        return jnp.tanh(h @ p["out"].T @ p["out"]), None

    hidden = jax.lax.scan(layer, r["x"] @ p["in"], None, length=2)[0]
    return _entropy(p["out"] @ hidden, r["y"])


def nothing_of_it(p, r):
    return jnp.sum(p["scale"]) * jnp.sum(r["x"])


@jax.jit
def compiled(p, r):
    return plain(p, r)


def printing(p, r):
    jax.debug.callback(lambda: None)
    return plain(p, r)


def frozen(p, r):
    return plain({**p, "in": jax.lax.stop_gradient(p["in"])}, r)


# which weights keep factors
LOSSES = {
    plain: {"in", "out"},
    in_a_batch_of_one: {"in"},
    with_a_penalty: {"in"},
    tied: {"out"},
    of_rows: {"out"},
    in_a_loop: {"in"},
    nothing_of_it: set(),
    compiled: set(),
    printing: set(),
    frozen: {"out"},
}


def _full(leaf):
    return leaf.materialize() if isinstance(leaf, OuterProduct) else leaf


@pytest.mark.parametrize(("loss", "rows"), [*((loss, _B) for loss in LOSSES), (plain, 0)])
def test_they_are_the_gradients(loss, rows):
    batch = jax.tree.map(lambda a: a[:rows], BATCH)
    problem = problems.Risk(loss, PARAMS)
    got = jax.jit(problem.factored_gradients)(PARAMS, batch)
    assert {name for name, leaf in got.items() if isinstance(leaf, OuterProduct)} == LOSSES[loss]
    want = problem.per_example_gradients(PARAMS, batch)
    for name, leaf in want.items():
        np.testing.assert_allclose(_full(got[name]), leaf, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(per_example_norm(got), per_example_norm(want), rtol=1e-5)


def test_of_stacked_parameters_and_constants_that_are_traced():
    several = jax.tree.map(lambda a: jnp.stack([a, -a]), PARAMS)

    @jax.jit
    @jax.vmap
    def both(params, shift):
        def loss(p, r):
            return plain(p, r | {"x": r["x"] + shift})

        problem = problems.Risk(loss, params)
        got = problem.factored_gradients(params, BATCH)
        return jax.tree.map(_full, got, is_leaf=lambda a: isinstance(a, OuterProduct)), (
            problem.per_example_gradients(params, BATCH)
        )

    for got, want in zip(*map(jax.tree.leaves, both(several, jnp.arange(2.0))), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_parameters_that_are_no_floats_are_refused_as_by_jax():
    params = {"in": jnp.ones((_P, _K), jnp.int32)}
    problem = problems.Risk(lambda p, r: jnp.sum(r["x"] @ p["in"]), params)
    with pytest.raises(TypeError, match="real- or complex-valued inputs"):
        problem.factored_gradients(params, BATCH)


@dataclasses.dataclass(frozen=True)
class _Halved(problems.Risk):
    def per_example_gradients(self, params, batch):
        return jax.tree.map(lambda g: g / 2, super().per_example_gradients(params, batch))


def test_gradients_of_a_subclass_are_its_own():
    problem = _Halved(plain, PARAMS)
    got = problem.factored_gradients(PARAMS, BATCH)
    np.testing.assert_array_equal(
        got["in"], problems.Risk(plain, PARAMS).per_example_gradients(PARAMS, BATCH)["in"] / 2
    )


@pytest.mark.parametrize("batched", [False, True])
def test_networks_of_rate_constraints_have_factors_too(batched):
    params = {"in": PARAMS["in"], "out": PARAMS["out"].T}

    def logits(p, x):
        return jax.nn.relu(x @ p["in"]) @ p["out"]

    loss = jax.vmap(_entropy) if batched else _entropy
    problem = problems.RateConstrained(logits, loss, init=params, batched=batched)
    got = problem.factored_gradients(params, BATCH)
    assert all(isinstance(leaf, OuterProduct) for leaf in got.values())
    for name, want in problem.per_example_gradients(params, BATCH).items():
        np.testing.assert_allclose(_full(got[name]), want, rtol=1e-5, atol=1e-5)


def test_a_step_is_the_same_and_a_bad_record_adds_nothing():
    sampler = dpjax.sampling.FullBatch(3)
    solver = DPSGD(sampler, 0.0, 0.3, 0.5, float(_B))
    data = BATCH | {"x": BATCH["x"].at[0].set(jnp.nan).at[1].set(jnp.inf).at[2].multiply(1e20)}

    @register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Unfactored(problems.Risk):
        def per_example_gradients(self, params, batch):
            return super().per_example_gradients(params, batch)

    got, want = (
        dpjax.solve(solver, kind(plain, PARAMS), data, key=jax.random.key(0)).params
        for kind in (problems.Risk, Unfactored)
    )
    for name, leaf in want.items():
        assert np.all(np.isfinite(got[name]))
        np.testing.assert_allclose(got[name], leaf, rtol=1e-5, atol=1e-6)


def _moved(solver, problem):
    """What a step adds to the gradient sum, by rows and mask; plain descent of rate 0.1."""

    def moved(key, x, mask):
        state = solver.init(problem, key=key)
        after, _ = solver.step(problem, {"x": x, "y": BATCH["y"]}, mask, state)
        gone = jax.tree.map(lambda a, b: (a - b) * _B / 0.1, state.params, after.params)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gone)])

    return jax.jit(jax.vmap(moved, in_axes=(0, 0, None)))


@pytest.mark.always  # the claim
def test_a_record_of_a_network_adds_at_most_the_clip_norm():
    problem = problems.Risk(plain, PARAMS)
    moved = _moved(DPSGD(dpjax.sampling.FullBatch(3), 0.0, 0.3, 0.1, float(_B)), problem)
    rng = np.random.default_rng(1)
    x = 10.0 ** rng.uniform(-6, 19, size=(300, _B, 1)) * rng.normal(size=(300, _B, _P))
    x = jnp.asarray(x, jnp.float32).at[0, 0].set(jnp.inf).at[1, 0].set(jnp.nan).at[2, 0].set(3e38)
    keys = jax.random.split(jax.random.key(0), 300)
    both = (moved(keys, x, mask) for mask in (jnp.ones(_B, bool), jnp.arange(_B) > 0))
    norms = np.linalg.norm(np.subtract(*both), axis=1)
    assert 0.299 < norms.max() <= 0.3 * (1 + 1e-4)


@pytest.mark.always  # the claim
def test_noise_of_a_network_is_the_multiplier_times_the_clip_norm():
    problem = problems.Risk(plain, PARAMS)
    moved = _moved(DPSGD(dpjax.sampling.FullBatch(3), 1.5, 0.3, 0.1, float(_B)), problem)
    keys = jax.random.split(jax.random.key(3), 200)
    drawn = moved(keys, jnp.zeros((200, _B, _P)), jnp.zeros(_B, bool)) / 0.3
    dpt.check_scale(np.ravel(drawn), lambda scale: stats.norm(scale=scale).cdf, 1.5)
