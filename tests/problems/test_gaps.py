"""Duality gaps against linear programs, closed forms, brute force and certificates."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

from dpjax.geometry import L1Ball, Polytope, Simplex
from dpjax.problems._gaps import (
    best_response,
    duality_gap,
    matrix_game_gap,
    max_loss_gap,
    quadratic_saddle_centres,
    quadratic_saddle_gap,
)

_quadratic_gap = jax.jit(quadratic_saddle_gap)
_matrix_gap = jax.jit(matrix_game_gap)


def _solve_game(matrix):
    """Value and strategies of both players, each from a linear program of its own."""

    def rows(a):
        d, k = a.shape
        found = optimize.linprog(
            np.append(np.zeros(d), 1.0),
            A_ub=np.hstack([a.T, -np.ones((k, 1))]),
            b_ub=np.zeros(k),
            A_eq=np.append(np.ones(d), 0.0)[None],
            b_eq=[1.0],
            bounds=[(0, None)] * d + [(None, None)],
        )
        return found.fun, found.x[:-1]

    value, x = rows(matrix)
    minus_value, y = rows(-matrix.T)
    assert abs(value + minus_value) < 1e-9
    return value, x, y


def _points(rng, dims):
    return [jnp.asarray(rng.dirichlet(np.ones(d)), float) for d in dims]


def _simplex_grid(d, steps):
    combos = itertools.product(range(steps + 1), repeat=d - 1)
    return np.array([(*c, steps - sum(c)) for c in combos if sum(c) <= steps]) / steps


def test_gap_of_a_matrix_game_is_zero_exactly_at_the_solution_of_the_linear_program(rng):
    for dims in [(4, 4), (3, 7), (8, 2)]:
        matrix = rng.uniform(-1, 1, dims)
        value, x, y = _solve_game(matrix)
        assert abs(float(_matrix_gap(matrix, jnp.asarray(x), jnp.asarray(y)))) < 1e-6
        other_x, other_y = _points(rng, dims)
        gap = float(_matrix_gap(matrix, other_x, other_y))
        loss = float(_matrix_gap(matrix, other_x, jnp.asarray(y)))
        assert gap > 1e-3
        assert abs(loss - (np.max(matrix.T @ np.asarray(other_x)) - value)) < 1e-5


def test_diagonal_games_have_their_known_value():
    a = np.array([0.5, 1.0, 2.0, 4.0])
    value = 1 / np.sum(1 / a)
    x = jnp.asarray(value / a)
    assert abs(float(_matrix_gap(np.diag(a), x, x))) < 1e-6
    pure = jnp.asarray([1.0, 0, 0, 0])
    assert float(_matrix_gap(np.diag(a), x, pure)) == pytest.approx(value, abs=1e-6)
    assert float(_matrix_gap(np.diag(a), pure, x)) == pytest.approx(0.5 - value, abs=1e-6)


def test_matrix_gap_takes_integers_and_maps_like_a_loop(rng):
    matrix = jnp.asarray(rng.choice([-1, 1], (3, 5)), jnp.int8)
    xs = jnp.asarray(rng.dirichlet(np.ones(3), 4), float)
    ys = jnp.asarray(rng.dirichlet(np.ones(5), 4), float)
    mapped = jax.jit(jax.vmap(matrix_game_gap, in_axes=(None, 0, 0)))(matrix, xs, ys)
    loop = [float(_matrix_gap(matrix, x, y)) for x, y in zip(xs, ys, strict=True)]
    np.testing.assert_allclose(mapped, loop, atol=1e-6)


@pytest.mark.parametrize(("mu", "nu"), [(1.0, 2.0), (0.3, 0.0), (0.0, 0.7), (0.0, 0.0)])
def test_quadratic_gap_against_brute_force(rng, mu, nu):
    dx, dy, steps = 3, 2, 120
    matrix, a, b = rng.uniform(-1, 1, (dx, dy)), rng.normal(size=dx), rng.normal(size=dy)

    x, y = _points(rng, (dx, dy))
    got = float(_quadratic_gap(matrix, x, y, mu=mu, nu=nu, a=a, b=b))
    x, y = np.asarray(x), np.asarray(y)
    xs, ys = _simplex_grid(dx, steps), _simplex_grid(dy, 10 * steps)
    highest = np.max(ys @ (matrix.T @ x) - nu / 2 * np.sum((ys - b) ** 2, axis=1))
    lowest = np.min(xs @ (matrix @ y) + mu / 2 * np.sum((xs - a) ** 2, axis=1))
    highest += mu / 2 * np.sum((x - a) ** 2)
    lowest -= nu / 2 * np.sum((y - b) ** 2)
    assert -1e-5 <= got - (highest - lowest) <= 4e-3


def test_quadratic_gap_vanishes_at_the_saddle_point_that_the_centres_were_made_for(rng):
    matrix = rng.uniform(-1, 1, (6, 4))
    x, y = _points(rng, (6, 4))
    a, b = quadratic_saddle_centres(matrix, x, y, mu=0.5, nu=2.0)
    assert abs(float(_quadratic_gap(matrix, x, y, mu=0.5, nu=2.0, a=a, b=b))) < 1e-5
    away, _ = _points(rng, (6, 4))
    assert float(_quadratic_gap(matrix, away, y, mu=0.5, nu=2.0, a=a, b=b)) > 1e-3


def test_quadratic_gap_sweeps_curvatures_down_to_the_matrix_game(rng):
    matrix = rng.uniform(-1, 1, (5, 5))
    x, y = _points(rng, (5, 5))
    curvatures = jnp.asarray([0.0, 1e-3, 1.0])
    gap = jax.jit(jax.vmap(lambda m: quadratic_saddle_gap(matrix, x, y, mu=m, nu=m)))
    gaps = gap(curvatures)
    assert float(gaps[0]) == pytest.approx(float(_matrix_gap(matrix, x, y)), abs=1e-6)
    assert float(gaps[1]) == pytest.approx(float(gaps[0]), abs=2e-3)
    assert abs(float(gaps[2] - gaps[0])) > 1e-2


def _distances(x):
    return 0.5 * jnp.stack([jnp.sum((x - e) ** 2) for e in jnp.eye(2, x.shape[0])])


def test_max_of_two_distances_has_value_one_quarter():
    domain = Simplex(4)
    x, y = jnp.asarray([0.5, 0.5, 0, 0]), jnp.asarray([0.5, 0.5])
    assert float(jnp.max(_distances(x))) == 0.25
    gap = jax.jit(lambda x, y: max_loss_gap(_distances, domain, x, y))
    at_saddle = gap(x, y)
    assert abs(float(at_saddle.lower)) < 1e-5
    assert abs(float(at_saddle.upper)) < 1e-5
    # at weights (w, 1 - w) the mixture is least at w e_1 + (1 - w) e_2, where it is w (1 - w)
    away = gap(jnp.asarray([0, 0, 1.0, 0]), jnp.asarray([0.8, 0.2]))
    assert float(away.lower) - 1e-6 <= 1.0 - 0.16 <= float(away.upper) + 1e-6
    assert float(away.upper - away.lower) < 1e-5


def test_linear_losses_give_the_matrix_game_gap_from_both_sides(rng):
    matrix = jnp.asarray(rng.uniform(-1, 1, (5, 3)), float)
    x, y = _points(rng, (5, 3))
    exact = float(_matrix_gap(matrix, x, y))

    @jax.jit
    def both(x, y):
        return (
            max_loss_gap(lambda x: x @ matrix, Simplex(5), x, y, steps=1),
            duality_gap(lambda x, y: x @ matrix @ y, (Simplex(5), Simplex(3)), x, y, steps=1),
        )

    for bounds in both(x, y):
        assert float(bounds.lower) == pytest.approx(exact, abs=1e-6)
        assert float(bounds.upper) == pytest.approx(exact, abs=1e-6)


def test_duality_gap_brackets_the_exact_gap_of_quadratics(rng):
    matrix = jnp.asarray(rng.uniform(-1, 1, (8, 6)), float)
    a, b = jnp.asarray(rng.normal(size=8), float), jnp.asarray(rng.normal(size=6), float)

    def payoff(x, y):
        return jnp.sum((x - a) ** 2) / 2 + x @ matrix @ y - jnp.sum((y - b) ** 2)

    @jax.jit
    def both(x, y):
        bounds = duality_gap(payoff, (Simplex(8), Simplex(6)), x, y, steps=500)
        return bounds, quadratic_saddle_gap(matrix, x, y, mu=1.0, nu=2.0, a=a, b=b)

    for _ in range(5):
        (lower, upper), exact = both(*_points(rng, (8, 6)))
        assert float(lower) - 1e-5 <= float(exact) <= float(upper) + 1e-5
        assert float(upper - lower) < 1e-4


DOMAINS = {
    "simplex": lambda rng: Simplex(6),
    "ball": lambda rng: L1Ball(6, radius=2.0),
    "polytope": lambda rng: Polytope(jnp.asarray(rng.normal(size=(9, 4)), float)),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("simplex", "squares"), ("ball", "logistic"), ("ball", "squares"), ("polytope", "quartic")],
)
def test_best_response_brackets_the_minimum_that_scipy_finds(rng, name, kind):
    domain = DOMAINS[name](rng)
    rows = rng.normal(size=(20, domain.dim))
    goal = rng.normal(size=20)

    def value(margins, xp):
        return {
            "squares": lambda m: xp.mean((m - goal) ** 2) / 2,
            "logistic": lambda m: xp.mean(xp.logaddexp(m, 0.0) - 0.3 * m),
            "quartic": lambda m: xp.mean((m - goal) ** 4),
        }[kind](margins)

    vertices = np.stack([domain.average(jnp.asarray([i])) for i in range(domain.num_vertices)])
    matrix = rows @ vertices.astype(float).T
    found = optimize.minimize(
        lambda w: value(matrix @ w, np),
        np.full(len(vertices), 1 / len(vertices)),
        method="SLSQP",
        bounds=[(0, 1)] * len(vertices),
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-12, "maxiter": 500},
    )
    response = jax.jit(
        lambda: best_response(
            lambda p: value(jnp.asarray(rows, p.dtype) @ p, jnp), domain, steps=400
        )
    )()
    scale = 1 + abs(found.fun)
    assert float(response.lower) <= found.fun + 1e-5 * scale
    assert found.fun <= float(response.value) + 1e-5 * scale
    assert float(response.value - response.lower) < 1e-3 * scale
    reached = value(rows @ np.asarray(response.point, float), np)
    assert reached == pytest.approx(float(response.value), abs=1e-5 * scale)


def test_best_response_certifies_at_scale():
    """10^4 dimensions, 2 * 10^4 vertices: 1e-3 within 100 steps, whatever the scale of the loss."""
    goal = jnp.full(10_000, 1e-2)

    @jax.jit
    def respond(scale):
        return best_response(lambda p: scale * jnp.sum((p - goal) ** 2), L1Ball(10_000), steps=100)

    for scale in (1e-3, 1.0, 1e3):
        response = respond(scale)
        assert float(response.value - response.lower) < 1e-3 * scale
        assert float(response.lower) > 0.9 * scale  # the minimum is (1 - 1/100)^2 = .9801


@pytest.mark.slow
def test_best_response_stays_total():
    constant = best_response(lambda p: 0.0 * jnp.sum(p) + 2.0, Simplex(3), steps=50)
    assert (float(constant.value), float(constant.lower)) == (2.0, 2.0)
    single = best_response(lambda p: jnp.sum(p**2), Simplex(1), steps=10)
    assert float(single.value) == pytest.approx(1.0)
    assert float(single.lower) == pytest.approx(1.0)
    # the uniform point is optimal already
    flat = best_response(lambda p: jnp.sum(p**2), Simplex(5), steps=100)
    assert float(flat.value) == pytest.approx(0.2, abs=1e-6)
    assert float(flat.lower) == pytest.approx(0.2, abs=1e-5)


def test_wrong_arguments_are_named():
    x = jnp.asarray([0.5, 0.5])
    with pytest.raises(ValueError, match=r"x must have shape \[3\], got \[2\]"):
        matrix_game_gap(jnp.zeros((3, 2)), x, x)
    with pytest.raises(ValueError, match="mu must be >= 0, got -1"):
        quadratic_saddle_gap(jnp.eye(2), x, x, mu=-1.0, nu=0.0)
    with pytest.raises(ValueError, match="nu must be > 0, got 0"):
        quadratic_saddle_centres(jnp.eye(2), x, x, mu=1.0, nu=0.0)
    with pytest.raises(ValueError, match=r"losses\(x\) must have shape \[3\], got \[2\]"):
        max_loss_gap(_distances, Simplex(2), x, jnp.full(3, 1 / 3))
    with pytest.raises(ValueError, match="steps must be >= 1, got 0"):
        best_response(jnp.sum, Simplex(2), steps=0)
