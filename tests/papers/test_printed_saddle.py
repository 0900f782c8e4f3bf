"""Saddle points as printed: sizes and steps from the formulas, and the true epsilon."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import dpjax
from dpjax.papers import saddle

BUDGET = dpjax.Budget(1.0, 1e-6, "replace_one")
LOG = math.log(1e6)
N = 100_000


def game(m=1000, third=0.0):
    return dpjax.problems.Saddle(
        lambda x, y, rec: x @ rec["A"] @ y,
        (m, m),
        grad_range=2.0,
        smoothness=1.0,
        coupling=1.0,
        third_order=third,
    )


def risk(m=1000, third=0.0):
    return dpjax.problems.SimplexRisk(
        lambda w, rec: rec["c"] @ w, dim=m, grad_range=2.0, smoothness=1.0, third_order=third
    )


def epsilon(rho, delta=1e-6):
    """Of rho-zCDP: min over alpha of the conversion of Canonne, Kamath and Steinke."""

    def at(log_excess):
        a = 1 + math.exp(log_excess)
        return rho * a + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)

    return optimize.minimize_scalar(at, bounds=(-5, 12), method="bounded").fun


def test_the_printed_privacy_constants_are_these_epsilons():
    for rho, true in ((32, 0.282), (16, 0.408), (64, 0.195)):
        assert epsilon(1 / (rho * LOG)) == pytest.approx(true, abs=1e-3)


@pytest.mark.parametrize("smooth", ["quadratic", "second", "first"])
@pytest.mark.parametrize("blocks", [2, 1])
def test_algorithm_1_is_as_printed(smooth, blocks):
    problem = game() if blocks == 2 else risk()
    ell = blocks * math.log(1000)
    t = {
        "quadratic": N / math.sqrt(ell * LOG),
        "second": (N / (ell**0.25 * math.sqrt(LOG))) ** 0.8,
        "first": N ** (2 / 3) / LOG ** (1 / 3),
    }[smooth]
    t = int(t)
    k = int({"quadratic": 1, "second": math.sqrt(t / ell), "first": t / ell}[smooth])
    tau = (N // t) / (8 * math.sqrt(2 * t * (k + 1) * LOG))
    assert tau < math.sqrt(ell / t)  # privacy decides
    solver = saddle.mirror_descent(problem, N, BUDGET, smooth=smooth)
    assert (solver.sampler.steps, solver.sampler.batch_size) == (t - 1, N // t)
    assert (solver.num_draws, solver.output) == (k, "fresh")
    assert solver.step_size == pytest.approx((tau,) * blocks)
    rho = 2 * blocks * (t - 1) * (k + 1) * (tau / (N // t)) ** 2
    assert solver.guarantee().epsilon(1e-6) == pytest.approx(epsilon(rho), rel=2e-3)
    if blocks == 2:
        assert 0.278 < solver.guarantee().epsilon(1e-6) < 0.2825


def test_algorithm_3_is_as_printed():
    n, ell = 800_000, 2 * math.log(1000)
    solver = saddle.multilevel(game(third=1.0), n, BUDGET)
    moment = math.sqrt(2 + ell)
    u = n * moment / math.sqrt(4 * 48 * 81 * ell * LOG)
    assert u == pytest.approx(1846, rel=4e-3)
    tau = math.sqrt(ell / u) / moment
    unit = math.ceil((2 / (48 * 81 * LOG * tau**2 * n)) ** (-1 / 3))
    top = int(math.log2(u) / 2)
    assert solver.max_level == top
    assert solver.step_size == pytest.approx((tau, tau))
    assert solver.sampler.batch_size == unit
    sizes = 2 ** np.array(solver.levels)
    assert solver.sampler.steps == sizes.sum()
    assert sizes[:-1].sum() <= u - 2**top < sizes.sum()
    assert sizes.sum() * unit <= n
    # a record of estimate t meets the draws of all later ones, in both blocks
    c = 2 - 2.0**-top
    kappa = np.where(sizes == 1, 2 * c - 1, 2 * c * sizes + 1)
    eta = 4 * tau * kappa / (sizes * unit)
    draws = np.cumsum((4 * sizes + 2)[::-1])[::-1] - (4 * sizes + 2)
    rho = float(np.max(draws * eta**2) / 8)
    true = solver.guarantee().epsilon(1e-6)
    assert true == pytest.approx(epsilon(rho), rel=2e-3)
    assert 0.3 < true < 0.408


@pytest.mark.parametrize("smooth", ["first", "second"])
def test_algorithm_4_is_as_printed(smooth):
    ell = math.log(1000)
    if smooth == "first":
        t = int(N**0.8 / (LOG * ell) ** 0.4)
        q, k = int(math.sqrt(t) / ell), int(t / ell)
        h = 1 + 2 * q * math.sqrt(ell / k) + q / (math.sqrt(ell) * k**1.5)
    else:
        t = int(N / (ell * math.sqrt(LOG)))
        q, k = int(math.sqrt(t / ell)), int(math.sqrt(t * ell))
        h = 1 + q * ell / k + q / k**2
    private = (N // t) / (8 * math.sqrt(2 * (t * k / q + q * k) * LOG))
    tau = min(math.sqrt(ell / (h * t)), 1 / q, private)
    solver = saddle.anytime(risk(third=1.0), N, BUDGET, smooth=smooth)
    assert (solver.sampler.steps, solver.sampler.batch_size) == (t - 1, N // t)
    assert (solver.num_draws, solver.refresh) == (k, q)
    assert solver.step_size == pytest.approx((tau,))
    draws = k * (q + t // q - 2 + (t % q > 0))
    rho = 2 * draws * (tau / (N // t)) ** 2
    true = solver.guarantee().epsilon(1e-6)
    assert true == pytest.approx(epsilon(rho), rel=2e-3)
    assert tau == private
    assert 0.18 < true < 0.1955


@pytest.mark.slow  # three programs to compile
@pytest.mark.parametrize(
    ("make", "problem", "n"),
    [
        (saddle.mirror_descent, game(4), 400),
        (saddle.multilevel, game(4, 1.0), 3_000),
        (saddle.anytime, risk(4), 400),
    ],
)
def test_printed_settings_run(make, problem, n):
    solver = make(problem, n, BUDGET)
    data = {
        "A": jnp.broadcast_to(jnp.eye(4), (n, 4, 4)),
        "c": jnp.broadcast_to(jnp.arange(4.0) / 2 - 1, (n, 4)),
    }
    params = dpjax.solve(solver, problem, data, key=jax.random.key(0)).params
    for point in jax.tree.leaves(params):
        assert float(jnp.sum(point)) == pytest.approx(1.0, rel=1e-5)
        assert bool(jnp.all(point >= 0))


def test_what_is_too_small_is_refused():
    with pytest.raises(ValueError, match="U < 4"):
        saddle.multilevel(game(third=1.0), 100, BUDGET)
    with pytest.raises(ValueError, match="delta must be > 0"):
        saddle.mirror_descent(game(), N, dpjax.Budget(1.0, 0.0, "replace_one"))
    with pytest.raises(ValueError, match="relation"):
        saddle.anytime(risk(), N, dpjax.Budget(1.0, 1e-6, "add_or_remove_one"))


@pytest.mark.parametrize(
    ("output", "sizes", "bound"), [("played", (1010, 34), 1.10), ("fresh", (5500, 1), 0.641)]
)
def test_bounds_of_algorithm_1(output, sizes, bound):
    """At the largest step that (1, 1e-6) allows, rho = 0.024356."""
    t, k = sizes
    each = k + (output == "fresh")
    private = (N // (t - 1)) / 2 * math.sqrt(0.024356 / ((t - 1) * each))
    ell = 2 * math.log(1000)
    tau = min(math.sqrt(2 * ell / (5 * t)), private)
    assert saddle.gap_bound(game(), t, k, tau, output) == pytest.approx(bound, rel=0.02)
