import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from learner_games import NAMES, compiled, game, losses, play, sequences, total

from dpjax.geometry import Simplex
from dpjax.papers.learners import coin_betting, parameter_free
from dpjax.papers.learners._constraint_reduction import gradient_outside

RADIUS, EPSILON = 2.0, 0.1


def ball(w):
    return optax.projections.projection_l2_ball(w, RADIUS)


def freegrad_bound(distance, norm, v, epsilon=EPSILON):
    """Of the regret against a comparator so far away; v is the squared norm and the squares."""
    first = np.sqrt(v * np.log1p(2 * distance * v / (epsilon * norm**2)))
    second = norm * np.log1p(4 * distance * np.sqrt(v) / (epsilon * norm))
    return epsilon * norm + distance * max(2 * first, 4 * second)


def kt_bound(distance, norm, steps, epsilon=EPSILON):
    growth = 24 * (steps * distance / epsilon) ** 2
    return norm * (epsilon + distance * np.sqrt(steps * np.log1p(growth)))


def worst(build, w1, learner, radius, factors=(1.0, 1e3)):
    """Largest regret over bound for each factor, of all sequences and comparators near and far."""
    base, push = sequences(w1.shape[0])
    norms = jnp.max(jnp.linalg.norm(base, axis=2) + push, axis=1)

    def one(factor, norm, base, push):
        points, gradients, _, states = game(build(factor, norm), w1, base, push)
        # the last gradient is not in the state before it
        return points[:-1], gradients[:-1], states.scale[-1]

    over_sequences = jax.vmap(one, (None, 0, 0, 0))
    everything = compiled(jax.vmap(over_sequences, (0, None, None, None)))
    played = everything(jnp.array(factors), norms, base, push)
    start, found = np.asarray(w1, np.float64), []
    for games in zip(*(np.asarray(leaf, np.float64) for leaf in played), strict=True):
        ratios = {}
        for name, norm, w, g, scale in zip(NAMES, norms, *games, strict=True):
            against = -total(g) / max(np.linalg.norm(total(g)), 1e-30)
            for share in (0, 1e-6, 1e-3, 0.03, 0.3, 1):
                u = start + share * (radius * against - start)
                far = np.linalg.norm(u - start)
                if learner is coin_betting:
                    bound = kt_bound(far, norm, len(g))
                else:
                    bound = freegrad_bound(far, norm, scale * norm**2)
                ratio = (losses(w, g) - total(g) @ u) / bound
                ratios[name] = max(ratio, ratios.get(name, -np.inf))
        print({name: round(float(ratio), 3) for name, ratio in ratios.items()})
        found.append(max(ratios.values()))
    return found


@pytest.mark.parametrize(
    ("learner", "where", "dim"),
    [
        (parameter_free, "whole space", 1),
        (parameter_free, "ball", 20),
        (parameter_free, "ball, off centre", 3),
        (coin_betting, "whole space", 3),
        (coin_betting, "ball, off centre", 3),
    ],
)
def test_regret(learner, where, dim):
    project = None if where == "whole space" else ball
    w1 = (0.9 * RADIUS if where.endswith("centre") else 0.0) * jnp.eye(dim)[0]

    def build(factor, norm):
        return learner(factor * EPSILON, norm, project)

    right, wrong = worst(build, w1, learner, 50.0 if project is None else RADIUS)
    assert 0.5 < right <= 1 + 1e-4
    assert wrong > 1.2


def test_regret_needs_the_norm_of_the_gradients():
    def build(factor, norm):
        return parameter_free(EPSILON, factor * norm, ball)

    right, wrong = worst(build, jnp.zeros(3), parameter_free, RADIUS, (1.0, 1e4))
    assert right <= 1
    assert wrong > 1.2


def test_wealth_is_at_least_the_potential(rng, x64):
    norm, steps = 2.0, 60
    run = compiled(lambda g: game(parameter_free(EPSILON, norm), jnp.ones(3), g)[0])
    for drift in (0.0, 0.2, 1.0):  # up to an exponent of 30
        g = rng.normal(size=(steps, 3)) + drift * np.array([10.0, 0, 0])
        g *= norm / np.maximum(norm, np.linalg.norm(g, axis=1, keepdims=True))
        w = run(jnp.asarray(g))
        wealth = EPSILON * norm - np.cumsum(np.sum(g * (np.asarray(w) - 1), axis=1))
        theta = np.linalg.norm(np.cumsum(g, axis=0), axis=1)
        v = norm**2 + np.cumsum(np.sum(g**2, axis=1))
        exponent = theta**2 / (2 * v + 2 * norm * theta)
        potential = EPSILON * norm**2 / np.sqrt(v) * np.exp(exponent)
        assert np.all(potential <= wealth * (1 + 1e-9))
        assert potential.max() > 0.1 * EPSILON
        if drift == 1:
            assert potential[-1] > 1e4
            assert potential[-1] > 0.1 * wealth[-1]


def numpy_reduction(name, g, w1, project, norm, xi=0.0, degree=1.0):
    """The points of spelled-out loops."""
    theta, v_sum, coins, wealth, v, points = 0 * w1, norm**2, 0 * w1, EPSILON, w1, [w1]
    for t, at in enumerate(g, 1):
        w = points[-1]
        if np.any(w != w1):
            at = at + xi * t**degree / np.sqrt(t) * (w - w1) / np.linalg.norm(w - w1)
        if np.linalg.norm(v - w) > 1e-12:
            n = (v - w) / np.linalg.norm(v - w)
            at = at - min(0, at @ n) * n
        at = at * min(1, norm / np.linalg.norm(at))
        theta, v_sum = theta + at, v_sum + at @ at
        wealth, coins = wealth - at @ (v - w1) / norm, coins - at / norm
        if name == "coin_betting":
            v = w1 + coins / (t + 1) * wealth
        else:
            size = np.linalg.norm(theta)
            rate = norm**2 * (2 * v_sum + norm * size)
            rate /= 2 * (v_sum + norm * size) ** 2 * np.sqrt(v_sum)
            exponent = min(40, size**2 / (2 * v_sum + 2 * norm * size))
            v = w1 - EPSILON * theta * rate * np.exp(exponent)
        points.append(project(v))
    return np.stack(points[:-1])


SETS = {
    "whole space": (None, lambda v: v),
    "ball": (ball, lambda v: v * min(1, RADIUS / max(np.linalg.norm(v), 1e-30))),
    "box": (lambda w: jnp.clip(w, -0.5, 0.7), lambda v: np.clip(v, -0.5, 0.7)),
}


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("parameter_free", "whole space"),
        ("parameter_free", "ball"),
        ("pulled", "box"),
        ("coin_betting", "whole space"),
        ("coin_betting", "box"),
    ],
)
def test_equals_a_loop_in_numpy(name, where, rng, x64):
    project, by_hand = SETS[where]
    t = np.arange(1, 81)[:, None]
    g = t**2 / 80**2 * (rng.normal(size=(80, 4)) + np.array([1, -1, 0, 0]))
    w1, norm, xi = np.array([0.3, 0.0, -0.2, 0.1]), 2.0, 0.05 if name == "pulled" else 0.0
    if name == "coin_betting":
        learner = coin_betting(EPSILON, norm, project)
    else:
        learner = parameter_free(EPSILON, norm, project, regularizer=xi)
    points = play(learner, jnp.asarray(w1), jnp.asarray(g), degree=0.5)[0]
    want = numpy_reduction(name, g, w1, by_hand, norm, xi, degree=0.5)
    np.testing.assert_allclose(points, want, rtol=1e-8, atol=1e-10)
    assert np.abs(want - w1).max() > 0.1


@pytest.mark.parametrize("name", ["ball", "box", "simplex"])
def test_constraint_reduction(name, rng, x64):
    project = Simplex(4).project if name == "simplex" else SETS[name][0]

    def gaps(v, g, u):
        w, u = project(v), project(u)
        tilde = gradient_outside(g, v, w)
        gap = tilde @ (v - u) - g @ (w - u)
        return gap, jnp.linalg.norm(tilde) - jnp.linalg.norm(g), g @ (v - u) - g @ (w - u)

    v, g, u = (jnp.asarray(a) for a in rng.normal(size=(3, 3000, 4)) * [[[1.5]], [[1.0]], [[3.0]]])
    gap, longer, unreduced = compiled(jax.vmap(gaps))(v, g, u)
    assert gap.min() >= -1e-9
    assert longer.max() <= 1e-12
    assert unreduced.min() < -0.1  # without the reduction it is false


def test_rounding_of_a_projection_is_not_outside(rng):
    v = jnp.asarray(rng.dirichlet(np.ones(50), size=50), jnp.float32)
    g = jnp.asarray(rng.normal(size=(50, 50)), jnp.float32)
    w = compiled(jax.vmap(Simplex(50).project))(v)
    assert np.any(np.asarray(w) != np.asarray(v))
    np.testing.assert_array_equal(compiled(jax.vmap(gradient_outside))(g, v, w), g)


@pytest.mark.parametrize("learner", [parameter_free, coin_betting])
def test_nothing_overflows(learner):
    g = jnp.full((1000, 2), -1e6).at[500:].set(1e6)
    run = compiled(lambda g: [game(learner(1.0, 1.0, p), jnp.zeros(2), g)[0] for p in (None, ball)])
    points, inside = map(np.asarray, run(g))
    assert np.all(np.isfinite(points))
    assert np.abs(points).max() > 1e6
    capped = np.exp(40) * 1.001  # of the initial scale
    assert np.linalg.norm(points, axis=1).max() <= capped
    assert np.all(np.isfinite(inside))
    corner = RADIUS / np.sqrt(2)
    np.testing.assert_allclose(inside[499], corner, rtol=1e-5)
    np.testing.assert_allclose(inside[-1], -corner, rtol=1e-5)  # it comes back


@pytest.mark.parametrize("learner", [parameter_free, coin_betting])
def test_distances_of_all_sizes_without_tuning(learner):
    """Mean loss of |w - m|: for the distance m of 4 orders of magnitude with one setting."""
    tx = learner(EPSILON, 1.0)

    def mean_loss(target):
        def body(carry, _):
            w, state = carry
            u, state = tx.update(jnp.sign(w - target), state, w)
            return (optax.apply_updates(w, u), state), jnp.abs(w - target)

        start = jnp.zeros(()), tx.init(jnp.zeros(()))
        return jnp.mean(jax.lax.scan(body, start, length=2000)[1])

    distances = jnp.array([0.0, 0.01, 1.0, 100.0])
    for distance, loss in zip(distances, compiled(jax.vmap(mean_loss))(distances), strict=True):
        assert loss <= freegrad_bound(distance, 1.0, 2001.0) / 2000 + 1e-3
        assert loss <= 0.35 * distance + 0.01


def test_pull_shrinks_towards_the_start(rng):
    g = jnp.asarray(rng.normal(size=(200, 3)) / 4, float)

    def moved(xi):
        learner = parameter_free(10.0, 10.0, regularizer=xi)
        return jnp.mean(jnp.linalg.norm(game(learner, jnp.ones(3), g, degree=0.5)[0] - 1, axis=1))

    free, pulled = compiled(jax.vmap(moved))(jnp.array([0.0, 0.5]))
    assert pulled < 0.5 * free
    learner = parameter_free(1.0, 1.0, regularizer=0.1)
    with pytest.raises(ValueError, match="weight is required"):
        learner.update(jnp.ones(3), learner.init(jnp.ones(3)), jnp.ones(3))


@pytest.mark.parametrize("learner", [parameter_free, coin_betting])
def test_errors(learner):
    with pytest.raises(ValueError, match=r"initial_scale must be > 0, got 0"):
        learner(0.0, 1.0)
    with pytest.raises(ValueError, match=r"gradient_norm must be > 0, got -1"):
        learner(1.0, -1.0)
    with pytest.raises(ValueError, match="params is required"):
        learner(1.0, 1.0).update(jnp.ones(2), learner(1.0, 1.0).init(jnp.ones(2)))
    with pytest.raises(ValueError, match="regularizer must be >= 0"):
        parameter_free(1.0, 1.0, regularizer=-0.1)
