import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learner_games import (
    NAMES,
    T,
    along,
    along_largest,
    compiled,
    game,
    losses,
    play,
    sequences,
    squares,
    total,
)

from dpjax.geometry import L1Ball, Simplex, entropic
from dpjax.papers.learners import (
    adagrad_norm,
    dual_averaging,
    mirrored,
    optimistic_descent,
    strongly_convex_descent,
)
from dpjax.transforms import exponentiated_gradient, projected

RADIUS = 1.5
DIAMETER = 2 * RADIUS
FACTORS = (1.0, 100.0, 0.01)  # of the step size that the bound is for


def ball(w):
    return optax.projections.projection_l2_ball(w, RADIUS)


def all_games(build, w1, respond, factors=FACTORS, **more):
    """`play` for every factor and every sequence: leaves `[3, F, T, dim]`."""
    base, push = sequences(w1.shape[0])

    def one(factor, base, push):
        return game(build(factor), w1, base, push, respond, **more)[:3]

    over_sequences = jax.vmap(one, (None, 0, 0))
    return compiled(jax.vmap(over_sequences, (0, None, None)))(jnp.array(factors), base, push)


def each(ratio, *arrays):
    """`ratio` of every game: `[3, F]`."""
    return [[ratio(*game) for game in zip(*row, strict=True)] for row in zip(*arrays, strict=True)]


def check_ratios(ratios, tight=0.3):
    """Regret over bound: at most 1 for the right step size, and no longer for one far off."""
    right, large, small = np.asarray(ratios)
    print({name: round(float(r), 3) for name, r in zip(NAMES, right, strict=True)})
    print(f"worst {right.max():.3f}; too large: {large.max():.2f}; too small: {small.max():.2f}")
    assert right.max() <= 1 + 1e-4
    assert right.max() > tight  # the games are no walk-overs
    assert large.max() > 1.2
    assert small.max() > 1.2


ETA = 0.1
ON_BALL = {
    "ogd": (
        lambda f: projected(optax.sgd(ETA * f), ball),
        lambda g: DIAMETER**2 / (2 * ETA) + ETA / 2 * squares(g),
    ),
    "adagrad_norm": (
        lambda f: adagrad_norm(DIAMETER * f, ball),
        lambda g: np.sqrt(2) * DIAMETER * np.sqrt(squares(g)),
    ),
    "dual_averaging": (
        lambda f: dual_averaging(DIAMETER * f, ball),
        lambda g: (0.5 + np.sqrt(5)) * DIAMETER * np.sqrt(squares(g)),
    ),
    "optimistic_averaging": (
        lambda f: dual_averaging(DIAMETER * f, ball, optimistic=True),
        lambda g: (0.5 + np.sqrt(5)) * DIAMETER * np.sqrt(squares(surprises(g))),
    ),
    "optimistic_descent": (
        lambda f: optimistic_descent(ETA * f, ball),
        lambda g: DIAMETER**2 / (2 * ETA) + ETA / 2 * squares(surprises(g)),
    ),
}


def surprises(g):
    return np.diff(np.asarray(g, np.float64), axis=0, prepend=0)


@pytest.mark.parametrize(
    ("name", "dim"),
    [*((name, 3) for name in ON_BALL), ("adagrad_norm", 1), ("optimistic_averaging", 40)],
)
def test_regret_on_a_ball(name, dim):
    build, bound = ON_BALL[name]
    w1 = RADIUS * jnp.eye(dim)[0]  # as far from the best comparator as can be
    points, gradients, _ = all_games(build, w1, along)
    assert np.linalg.norm(points, axis=-1).max() <= RADIUS * (1 + 1e-5)

    def ratio(w, g):
        return (losses(w, g) + RADIUS * np.linalg.norm(total(g))) / bound(g)

    check_ratios(each(ratio, points, gradients))


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("simplex", 40),
        ("simplex, optimistic", 3),
        ("l1_ball", 10),
        ("mirrored sgd", 40),
    ],
)
def test_regret_on_polytopes(name, dim):
    if name == "l1_ball":
        domain, w1, count, unit = L1Ball(dim, RADIUS), jnp.zeros(dim), 2 * dim, RADIUS
    else:
        domain, w1, count, unit = Simplex(dim), jnp.full(dim, 1 / dim), dim, 1.0
    optimistic = name.endswith("optimistic")
    eta, factors = 0.3, (1.0, 30.0, 0.01) if name == "mirrored sgd" else (1.0, 1e4, 1e-4)

    def build(factor):
        if name == "mirrored sgd":
            return mirrored(optax.sgd(eta * factor), entropic())
        return exponentiated_gradient(domain, factor, optimistic)

    def bound(g):
        sizes = unit**2 * squares(surprises(g) if optimistic else g, np.inf)
        if name == "mirrored sgd":
            return np.log(dim) / eta + eta / 2 * sizes
        return (np.sqrt(np.log(count)) + np.sqrt(np.log(count) + 16)) * np.sqrt(sizes)

    points, gradients, _ = all_games(build, w1, along_largest, factors)
    if name == "l1_ball":
        assert np.abs(points).sum(axis=-1).max() <= RADIUS * (1 + 1e-5)
    else:
        assert points.min() >= 0
        np.testing.assert_allclose(points[0].sum(axis=-1), 1, rtol=1e-5)

    def ratio(w, g):
        best = -RADIUS * np.abs(total(g)).max() if name == "l1_ball" else total(g).min()
        return (losses(w, g) - best) / bound(g)

    check_ratios(each(ratio, points, gradients), tight=0.1)


@pytest.mark.parametrize(
    ("form", "dim", "degree"), [("descent", 1, 3.0), ("descent", 20, 1.0), ("ftrl", 3, 2.0)]
)
def test_regret_with_strong_convexity(form, degree, dim, x64):
    mu, beta = 0.5, np.arange(1, T + 1) ** degree
    start = RADIUS * jnp.eye(dim)[0]
    points, gradients, averages = all_games(
        lambda f: strongly_convex_descent(mu / f, ball, form), start, along, degree=degree
    )

    def ratio(*game):
        w, g, x = (np.asarray(a, np.float64) for a in game)

        def of_all(u):
            return np.sum(g * u) + mu / 4 * beta @ np.sum((u - x) ** 2, axis=1)

        u = (beta @ x - 2 / mu * total(g)) / beta.sum()
        u *= min(1, RADIUS / np.linalg.norm(u))
        bars = g + mu / 2 * beta[:, None] * (w - x)
        bound = np.sum(np.sum(bars**2, axis=1) / (mu * np.cumsum(beta)))
        return (of_all(w) - of_all(u)) / max(bound, 1e-30)

    check_ratios(each(ratio, points, gradients, averages))


def simplex_projection(v):
    ordered = np.sort(v)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(v) + 1)
    return np.maximum(v - excess[ordered > excess][-1], 0)


def reference(name, g, w1, degree=1.0):
    """The points of spelled-out loops on the simplex, with NumPy."""
    project, w, points = simplex_projection, w1, [w1]
    theta, s, hint, v, mean = np.zeros_like(w1), 0.0, np.zeros_like(w1), w1, np.zeros_like(w1)
    x, big = w1, 0.0
    for t, at in enumerate(g, 1):
        beta, theta = t**degree, theta + at
        big += beta
        x = x + beta / big * (w - x)
        mean = mean + beta * x
        if name == "ogd":
            w = project(w - 0.1 * at)
        elif name == "adagrad_norm":
            s += at @ at
            w = project(w - 2.0 * at / np.sqrt(2 * s))
        elif name == "dual_averaging":
            s += at @ at
            w = project(w1 - 2.0 / np.sqrt(s) * theta)
        elif name in ("optimistic", "growing hints"):
            s += (at - hint) @ (at - hint)
            hint = at * (((t + 1) / t) ** 1.5 if name == "growing hints" else 1)
            w = project(w1 - 2.0 / np.sqrt(s) * (theta + hint))
        elif name == "optimistic_descent":
            v = project(v - 0.1 * at)
            w = project(v - 0.1 * at)
        elif name == "descent":
            w = project(w - 2 / (0.5 * big) * at - beta / big * (w - x))
        elif name == "ftrl":
            w = project(mean / big - 2 / (0.5 * big) * theta)
        elif name == "exponentiated":
            s += np.abs(at).max() ** 2
            w = np.exp(-1.5 * np.sqrt(np.log(len(w1)) / s) * theta)
            w /= w.sum()
        elif name == "mirrored":
            w = np.exp(-0.1 * theta)
            w /= w.sum()
        points.append(w)
    return np.stack(points[:-1])


SIMPLEX = Simplex(5)
LEARNERS = {
    "ogd": projected(optax.sgd(0.1), SIMPLEX.project),
    "adagrad_norm": adagrad_norm(2.0, SIMPLEX.project),
    "dual_averaging": dual_averaging(2.0, SIMPLEX.project),
    "optimistic": dual_averaging(2.0, SIMPLEX.project, optimistic=True),
    "growing hints": dual_averaging(2.0, SIMPLEX.project, optimistic=True, hint_scale=1.5),
    "optimistic_descent": optimistic_descent(0.1, SIMPLEX.project),
    "descent": strongly_convex_descent(0.5, SIMPLEX.project),
    "ftrl": strongly_convex_descent(0.5, SIMPLEX.project, form="ftrl"),
    "exponentiated": exponentiated_gradient(SIMPLEX, 1.5),
    "mirrored": mirrored(optax.sgd(0.1), entropic()),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_equals_a_loop_in_numpy(name, rng, x64):
    g, degree = rng.normal(size=(60, 5)), 2.0
    w1 = np.full(5, 0.2)
    points = play(LEARNERS[name], jnp.asarray(w1), jnp.asarray(g), degree=degree)[0]
    assert points.dtype == jnp.float64
    np.testing.assert_allclose(points, reference(name, g, w1, degree), rtol=1e-9, atol=1e-12)


def test_exponentiated_on_the_l1_ball_is_that_of_its_vertices(rng, x64):
    g, dim, radius = rng.normal(size=(60, 4)), 4, 3.0
    vertices = radius * np.concatenate([np.eye(dim), -np.eye(dim)])
    start = np.array([0.5, -1.0, 0.0, 0.0])
    prior = (1 - 0.5) / 8 + np.maximum(vertices @ start, 0) / radius**2
    want, s = [start], 0.0
    for t, at in enumerate(g, 1):
        s += (radius * np.abs(at).max()) ** 2
        weights = prior * np.exp(-np.sqrt(np.log(8) / s) * vertices @ g[:t].sum(axis=0))
        want.append(weights / weights.sum() @ vertices)
    learner = exponentiated_gradient(L1Ball(dim, radius))
    got = play(learner, jnp.asarray(start), jnp.asarray(g))[0]
    np.testing.assert_allclose(got, want[:-1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("domain", [None, SIMPLEX])
def test_optimism_with_zero_hints_is_none(domain, rng):
    def learner(optimistic):
        if domain is None:
            return dual_averaging(DIAMETER, ball, optimistic)
        return exponentiated_gradient(domain, 1.0, optimistic)

    def several(w1, g):
        plain, hopeful = learner(False), learner(True)
        none = game(hopeful, w1, g, hint=jnp.zeros(5))[0]
        ignored = game(plain, w1, g, hint=jnp.ones(5))[0]
        return game(plain, w1, g)[0], none, ignored, game(hopeful, w1, g)[0]

    g, w1 = jnp.asarray(rng.normal(size=(40, 5)), float), jnp.full(5, 0.2)
    plain, none, ignored, hopeful = compiled(several)(w1, g)
    np.testing.assert_allclose(none, plain, rtol=1e-6)
    np.testing.assert_allclose(ignored, plain, rtol=1e-6)
    assert np.abs(hopeful - plain).max() > 0.01


def test_hints_given_by_the_caller_are_used(rng):
    g, w1 = jnp.asarray(rng.normal(size=5), float), jnp.zeros(5)
    descent, averaging = optimistic_descent(0.1), dual_averaging(1.0, optimistic=True)

    def several(g, w1):
        state = descent.init(w1)
        own, given = descent.update(g, state, w1)[0], descent.update(g, state, w1, hint=-g)[0]
        _, state = averaging.update(g, averaging.init(w1), w1, hint=3 * g)
        return own, given, averaging.update(3 * g, state, w1)[1].length

    own, given, length = compiled(several)(g, w1)
    np.testing.assert_allclose(own, -0.2 * g, rtol=1e-6)
    np.testing.assert_allclose(given, 0 * g, atol=1e-7)
    np.testing.assert_allclose(length, np.linalg.norm(g), rtol=1e-6)  # the second was no surprise


def test_mirrored_keeps_the_simplex_under_huge_gradients():
    base = np.random.default_rng(1).integers(-3, 4, size=(T, 6))
    g = jnp.asarray(1000 * base, float)
    points, _, _, states = play(mirrored(optax.sgd(0.5), entropic()), jnp.full(6, 1 / 6), g)
    assert points.min() >= 0
    np.testing.assert_allclose(points.sum(axis=1), 1, rtol=1e-4)
    logits = -500 * np.cumsum(base, axis=0)[:-1]
    want = logits - logits.max(axis=1, keepdims=True)  # weights as small as exp(-20000)
    got = np.asarray(states.coords[1:])
    np.testing.assert_allclose(got - got.max(axis=1, keepdims=True), want, rtol=1e-4, atol=0.1)
    learner = exponentiated_gradient(Simplex(6), 100.0)
    points = play(learner, jnp.full(6, 1 / 6), g)[0]
    assert points.min() >= 0
    np.testing.assert_allclose(points.sum(axis=1), 1, rtol=1e-5)


def test_slow_gradients_cost_the_optimistic_nothing():
    g = jnp.broadcast_to(jnp.array([3.0, -4.0]), (T, 2))
    points = play(dual_averaging(DIAMETER, ball, optimistic=True), jnp.array([RADIUS, 0.0]), g)[0]
    regret = losses(points, g) + RADIUS * np.linalg.norm(total(g))
    assert regret <= 2.74 * DIAMETER * 5.0  # not times the square root of T
