"""What all online learners have in common."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learner_games import compiled, game

from dpjax.geometry import L1Ball, Simplex, entropic, product
from dpjax.papers.learners import (
    adagrad_norm,
    coin_betting,
    dual_averaging,
    mirrored,
    optimistic_descent,
    parameter_free,
    strongly_convex_descent,
)
from dpjax.transforms import exponentiated_gradient, projected

ball = optax.projections.projection_l2_ball
# by a scale that may be traced
LEARNERS = {
    "projected": lambda v: projected(optax.sgd(v), ball),
    "projected(adam)": lambda v: projected(optax.adam(v)),
    "adagrad_norm": lambda v: adagrad_norm(v, ball),
    "dual_averaging": lambda v: dual_averaging(v, ball),
    "optimistic": lambda v: dual_averaging(v, ball, optimistic=True, hint_scale=1.0),
    "optimistic_descent": lambda v: optimistic_descent(v, ball),
    "descent": lambda v: strongly_convex_descent(1 / v, ball),
    "ftrl": lambda v: strongly_convex_descent(1 / v, ball, "ftrl"),
    "parameter_free": lambda v: parameter_free(v, 2.0, ball, regularizer=0.1 * v),
    "coin_betting": lambda v: coin_betting(v, 2.0, ball),
}
ON_POLYTOPES = {
    "mirrored": lambda v: mirrored(optax.sgd(v), entropic()),
    "exponentiated": lambda v: exponentiated_gradient(Simplex(5), v),
    "on l1 ball": lambda v: exponentiated_gradient(L1Ball(5, 2.0), v, optimistic=True),
}
ALL = LEARNERS | ON_POLYTOPES


T, DIM = 8, 5
START = jnp.array([0.1, 0.2, 0.3, 0.25, 0.15])
TRACES = []


@functools.cache
def runner(name):
    """The points, of a value, a start `[DIM]` and gradients `[T, DIM]`; one program for all."""

    def run(value, w1, gradients):
        TRACES.append(name)
        return game(ALL[name](value), w1, gradients)[0]

    return compiled(run)


@pytest.fixture
def gradients(rng):
    return jnp.asarray(rng.normal(size=(T, DIM)), float)


def split(flat):
    return {"b": flat[..., 4], "w": flat[..., :4].reshape(*flat.shape[:-1], 2, 2)}


@pytest.mark.parametrize("name", LEARNERS)
def test_leaves_are_one_vector(name, gradients):
    flat = runner(name)(0.5, START, gradients)
    run = compiled(lambda w1, g: game(LEARNERS[name](0.5), w1, g)[0])
    trees = run(split(START), split(gradients))
    for tree, want in zip(jax.tree.leaves(trees), jax.tree.leaves(split(flat)), strict=True):
        np.testing.assert_allclose(tree, want, rtol=1e-5, atol=1e-6)
    assert np.abs(np.diff(flat, axis=0)).max() > 0.01


def test_mirrored_players_of_a_product(gradients):
    def both(gradients):
        pair = product(entropic(), entropic())
        start = jnp.full(2, 1 / 2), jnp.full(3, 1 / 3)
        parts = gradients[:, :2], gradients[:, 2:]
        together = game(mirrored(optax.sgd(0.5), pair), start, parts)[0]
        one = mirrored(optax.sgd(0.5), entropic())
        return together, tuple(game(one, w, g)[0] for w, g in zip(start, parts, strict=True))

    together, alone = compiled(both)(gradients)
    for got, want in zip(together, alone, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_one_compilation_for_all_values(name, gradients):
    points = [runner(name)(value, START, gradients) for value in (0.1, 1.0)]
    assert np.abs(points[0] - points[1]).max() > 1e-3
    assert TRACES.count(name) == 1


@pytest.mark.parametrize("name", ["adagrad_norm", "parameter_free", "exponentiated"])
def test_a_sweep_is_a_loop(name, gradients):
    values = jnp.array([0.1, 1.0, 3.0])
    swept = jax.vmap(lambda value: game(ALL[name](value), START, gradients)[0])
    alone = [runner(name)(value, START, gradients) for value in values]
    np.testing.assert_allclose(compiled(swept)(values), alone, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_nothing_learnt_from_zeros(name):
    gradients = jnp.zeros((T, DIM)).at[4, 0].set(1.0)
    points = runner(name)(0.5, START, gradients)
    np.testing.assert_allclose(points[:5], np.broadcast_to(START, (5, DIM)), rtol=1e-6)
    assert np.all(np.isfinite(points))
    assert points[5, 0] < START[0] - 1e-3


@pytest.mark.parametrize("scale", [2.0**70, 2.0**-70])
@pytest.mark.parametrize(
    "name", ["adagrad_norm", "dual_averaging", "optimistic", "exponentiated", "on l1 ball"]
)
def test_the_unit_of_gradients_does_not_matter(name, scale, gradients):
    """Squares of such gradients would overflow or vanish in float32."""
    small, usual = (runner(name)(0.5, START, gradients * c) for c in (scale, 1.0))
    np.testing.assert_allclose(small, usual, rtol=1e-6)


@pytest.mark.parametrize("learner", [parameter_free, coin_betting])
def test_the_unit_of_gradients_and_their_bound_does_not_matter(learner, gradients):
    run = compiled(lambda g, norm: game(learner(0.5, norm, ball), START, g)[0])
    want = run(gradients, jnp.asarray(2.0))
    for scale in (2.0**70, 2.0**-70):
        got = run(gradients * scale, jnp.asarray(2.0 * scale))
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [("adagrad_norm", 0.1), ("ftrl", 0.1), ("parameter_free", 1.0), ("on l1 ball", 0.1)],
)
def test_small_types(name, value, gradients):
    """bfloat16 parameters keep their type, and stay near those of float32."""
    g, w1 = gradients.astype(jnp.bfloat16), START.astype(jnp.bfloat16)
    points = compiled(lambda w1, g: game(ALL[name](value), w1, g)[0])(w1, g)
    assert points.dtype == jnp.bfloat16
    wide = runner(name)(value, w1.astype(float), g.astype(float))
    np.testing.assert_allclose(points.astype(float), wide, atol=0.03)
    assert np.ptp(wide, axis=0).max() > 0.05


def test_goes_into_an_optax_chain(gradients):
    """Prefix sums of increments, in the unit of the last weight, then a learner."""
    chain = optax.chain(optax.scale(0.1), optax.trace(decay=1.0), adagrad_norm(0.5, ball))
    points = compiled(lambda g: game(chain, START, g)[0])(gradients)
    want = runner("adagrad_norm")(0.5, START, 0.1 * jnp.cumsum(gradients, axis=0))
    np.testing.assert_allclose(points, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
def test_needs_the_point(name):
    w = jnp.full(5, 0.2)
    learner = ALL[name](0.5)
    extra = {"weight": 1.0, "total_weight": 1.0, "average": w}
    with pytest.raises(ValueError, match="params is required"):
        learner.update(w, learner.init(w), **extra)


def test_errors():
    w = jnp.full(3, 0.2)
    for learner in (adagrad_norm, dual_averaging):
        with pytest.raises(ValueError, match="diameter must be > 0, got 0"):
            learner(0.0)
    with pytest.raises(ValueError, match="learning_rate must be > 0, got -1"):
        optimistic_descent(-1.0)
    with pytest.raises(ValueError, match="hint_scale must be 'none' or a number, got 'some'"):
        dual_averaging(1.0, optimistic=True, hint_scale="some")
    with pytest.raises(ValueError, match="hint_scale must be finite"):
        dual_averaging(1.0, optimistic=True, hint_scale=np.nan)
    for wrap in (projected, lambda base: mirrored(base, entropic())):
        with pytest.raises(TypeError, match="no transformation"):
            wrap(0.1)
    with pytest.raises(ValueError, match="form must be one of"):
        strongly_convex_descent(1.0, form="other")
    with pytest.raises(ValueError, match="strong_convexity must be > 0"):
        strongly_convex_descent(0.0)
    extra = {"weight": 1.0, "total_weight": 1.0, "average": w}
    for form in ("descent", "ftrl"):
        learner = strongly_convex_descent(1.0, form=form)
        for name in extra:
            others = {key: value for key, value in extra.items() if key != name}
            with pytest.raises(ValueError, match=f"^{name} is required"):
                learner.update(w, learner.init(w), w, **others)


def test_errors_of_exponentiated_gradients():
    simplex, l1_ball = Simplex(3), L1Ball(3, 0.5)
    with pytest.raises(TypeError, match="Simplex or an L1Ball, got MirrorMap"):
        exponentiated_gradient(entropic())
    with pytest.raises(ValueError, match="scale must be > 0"):
        exponentiated_gradient(simplex, 0.0)
    with pytest.raises(ValueError, match="inside the simplex, entries > 0, got 0"):
        exponentiated_gradient(simplex).init(jnp.array([0.5, 0.5, 0.0]))
    with pytest.raises(ValueError, match=r"l1 norm below 0\.5, got 0\.6"):
        exponentiated_gradient(l1_ball).init(jnp.array([0.3, 0.0, -0.3]))
    with pytest.raises(ValueError, match=r"params must have shape \[3\]"):
        exponentiated_gradient(simplex).init(jnp.ones(4))
    with pytest.raises(ValueError, match="one array, got a tree of 2"):
        exponentiated_gradient(simplex).init({"a": jnp.ones(3), "b": jnp.ones(3)})
