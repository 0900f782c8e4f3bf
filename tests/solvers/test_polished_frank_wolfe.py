"""Frank-Wolfe with rounds of descent: its events by replay of every kind of step; its method."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax.geometry import L1Ball, Polytope, Simplex
from dpjax.problems import SimplexRisk
from dpjax.sampling import FullBatch, PoissonSampler
from dpjax.solvers import DPSGD, FrankWolfe, PolishedFrankWolfe
from dpjax.solvers.vertices._polished_frank_wolfe import (
    OnSupport,
    largest_coordinates,
    norm_counts,
)
from dpjax.testing._trees import QUICK
from dpjax.transforms.noise import _noisy_counts as counting

ADD, REPLACE = "add_or_remove_one", "replace_one"


def squares(margin, y):
    return 0.5 * (margin - y) ** 2


def distance(w, rec):
    return jnp.abs(jnp.dot(rec["x"], w) - rec["y"])


def ball(p, radius=1.0):
    bound = 2 * radius * (radius + 1)
    return SimplexRisk.linear(squares, L1Ball(p, radius), grad_range=bound, smoothness=radius**2)


PROBLEMS = {
    "l1 ball": ball(4, 2.0),
    "simplex": SimplexRisk(distance, Simplex(4), grad_range=1.5),
}


def rows(n, p, truth=None, seed=1, noise=0.1):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, p))
    truth = np.zeros(p) if truth is None else truth
    y = np.clip(x @ truth + noise * rng.normal(size=n), -1, 1)
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def small(problem, n, relation=ADD, noise=1.0, counts=2.0, **options):
    draws = FrankWolfe(FullBatch(3), 2.0, problem.grad_range, n, relation=relation)
    descent = DPSGD(FullBatch(2), noise, 9.0, 0.2, n, decay=0.5, relation=relation, **options)
    return PolishedFrankWolfe(draws, descent, counts)


@pytest.mark.parametrize("relation", [None, ADD, REPLACE])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_budget_is_spent(relation, epsilon):
    budget = dpjax.Budget(epsilon, 1e-6, relation)
    for dense in (None, False, True):
        solver = PolishedFrankWolfe.for_budget(ball(30), 20_000, budget, dense=dense)
        assert solver.relation == (relation or ADD)
        assert dense in (None, solver.dense)
        assert 0.99 * epsilon <= solver.guarantee().epsilon(1e-6) <= epsilon


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_the_event_counts_every_release(relation):
    solver = small(ball(4), 50.0, relation, noise=3.0, counts=5.0)
    factor = 2 if relation == REPLACE else 1
    # zCDP by hand: draws of range eta, two histograms and four steps of gradients
    eta = factor * 2.0 * 4.0 / 50.0
    rho = 3 * eta**2 / 8 + factor**2 * (2 / (2 * 5.0**2) + 4 / (2 * 3.0**2))
    a = np.linspace(1.01, 200, 400_000)
    by_hand = rho * a + np.log1p(-1 / a) - (math.log(1e-6) + np.log(a)) / (a - 1)
    assert solver.guarantee().epsilon(1e-6) == pytest.approx(by_hand.min(), rel=3e-3)
    assert solver.sampler.steps == 3 + 2 * (1 + 2)
    assert 0 < solver.guarantee().failure_probability < 1e-14


def test_what_does_not_fit_is_refused():
    solver = small(ball(4), 50.0)
    for changes, message in [
        ({"draws": solver.descent}, "draws"),
        ({"descent": solver.draws}, "descent"),
        ({"descent": DPSGD(PoissonSampler(0.1, 3, 50), 1.0, 1.0, 0.1, 5.0)}, "FullBatch"),
    ]:
        with pytest.raises(TypeError, match=message):
            dataclasses.replace(solver, **changes)
    other = dataclasses.replace(solver.descent, relation=REPLACE)
    with pytest.raises(ValueError, match="relations must be the same"):
        dataclasses.replace(solver, descent=other)
    budget = dpjax.Budget(1.0, 1e-6)
    hull = SimplexRisk(distance, Polytope(np.eye(5, 3)), grad_range=1.0)
    with pytest.raises(TypeError, match="Polytope"):
        PolishedFrankWolfe.for_budget(hull, 100, budget)
    with pytest.raises(ValueError, match="delta must be > 0"):
        PolishedFrankWolfe.for_budget(ball(3), 100, dpjax.Budget(1.0, 0.0))


def _hostile(rng, count, p):
    scale = 10.0 ** rng.integers(-1, 5, (count, 1))
    x = rng.normal(size=(count, p)) * scale + rng.choice([0, 100.0], (count, 1))
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(rng.normal(size=count), jnp.float32)}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_record_counts_once_in_a_histogram(name, rng):
    problem, n = PROBLEMS[name], 11
    data, records = rows(n, 4), _hostile(rng, 200, 4)
    point = jnp.asarray(problem.init)
    face = OnSupport(problem, jnp.arange(4) < 3, point)
    edges = 2.0 ** -jnp.arange(6.0)

    @jax.jit
    @jax.vmap
    def change(record):
        with_it = jax.tree.map(lambda a, r: a.at[4].set(r), data, record)
        mask = jnp.ones(n, bool)
        here = norm_counts(face, point, edges, with_it, mask, 3)
        return here - norm_counts(face, point, edges, with_it, mask.at[4].set(False), 3)

    found = np.asarray(change(records))
    assert (np.abs(found).sum(axis=1) <= 1).all()
    assert len(np.unique(np.argmax(found, axis=1))) >= 3


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.once  # the claim
def test_no_neighbour_moves_a_gradient_further_than_noise_allows(name, relation, rng):
    """Of a step of descent, at supports and clip norms that were released."""
    problem, n = PROBLEMS[name], 13
    solver = small(problem, 12.0, relation, noise=0.0, counts=0.0, microbatch_size=4)
    solver = dataclasses.replace(
        solver, descent=dataclasses.replace(solver.descent, learning_rate=1.0)
    )
    data = rows(n, 4)
    state = solver.init(problem, key=jax.random.key(2))
    step = jax.jit(solver.step, compiler_options=QUICK)
    for _ in range(5):  # the fifth is the first of descent
        before, (state, info) = state, step(problem, data, jnp.ones(n, bool), state)
    assert info.gradient_norm > 0
    clip = float(before.clip_norm)
    assert 0 < clip <= 9
    face = OnSupport(problem, before.support, before.draws.params)
    sums = dataclasses.replace(solver.descent, clip_norm=before.clip_norm)

    class Free(OnSupport):
        def project(self, params):
            return params

    @jax.jit
    @jax.vmap
    def apart(record, other):
        def total(record, present):
            changed = jax.tree.map(lambda a, r: a.at[4].set(r), data, record)
            mask = jnp.ones(n, bool).at[4].set(present)
            after, _ = sums.step(Free(*face), changed, mask, before.descent)
            return (before.descent.params - after.params) * 12.0

        moved = total(record, True) - (
            total(record, False) if relation == ADD else total(other, True)
        )
        return jnp.nan_to_num(jnp.linalg.norm(moved), nan=jnp.inf)

    found = np.asarray(apart(_hostile(rng, 300, 4), _hostile(rng, 300, 4)))
    allowed = clip * (2 if relation == REPLACE else 1)
    assert 0.8 * allowed <= found.max() <= allowed * (1 + 1e-4)


@pytest.mark.always  # the claim
def test_noise_of_a_step_is_the_multiplier_times_the_clip_norm_of_its_round():
    problem, n = ball(400), 40
    solver = small(problem, 1.0, noise=3.0, counts=1.0)
    data = rows(n, 400)
    state = solver.init(problem, key=jax.random.key(0))
    step = jax.jit(solver.step, compiler_options=QUICK)
    state = state._replace(count=jnp.asarray(3, jnp.int32))
    state, _ = jax.jit(dataclasses.replace(solver, dense=True).step)(
        problem, data, jnp.zeros(n, bool), state
    )
    assert bool(state.support.all())
    _, info = step(problem, data, jnp.zeros(n, bool), state)  # no record: noise alone
    deviation = float(info.gradient_norm) / 20
    expected = 3.0 * float(state.clip_norm)
    low, high = np.sqrt(stats.chi2(400).ppf([1e-9, 1 - 1e-9]) / 400)
    assert low <= deviation / expected <= high
    assert high < 1.5
    assert low > 2 / 3


def test_rates_fall_where_noise_would_move_further_and_not_below_a_tenth():
    """Of 4 coordinates of radius 2: noise of z C 2 / n a step, root 2 of it in two steps."""
    problem = ball(4, 2.0)
    for noise, far in [(0.0, 0.2), (1e-3, 0.2), (0.5, 0.5 * 2 / 2 / (0.5 * 2 * 0.1 * 2**0.5))]:
        solver = dataclasses.replace(small(problem, 10.0, noise=noise), reach=0.5)
        rate = solver._rate(problem, jnp.ones(4, bool), jnp.asarray(1.0))
        assert float(rate) == pytest.approx(min(far, 0.2))
    crowded = dataclasses.replace(small(problem, 10.0, noise=50.0), reach=0.5)
    for solver, expected in [(crowded, 0.0354), (dataclasses.replace(crowded, reach=0.0), 0.02)]:
        rate = solver._rate(problem, jnp.ones(4, bool), jnp.asarray(1.0))
        assert float(rate) == pytest.approx(expected, rel=0.01)
    with pytest.raises(ValueError, match="reach must be"):
        dataclasses.replace(crowded, reach=-1.0)


@pytest.mark.always  # noise as claimed
def test_the_noise_of_a_histogram_is_that_of_its_event(monkeypatch):
    problem, n = ball(4), 40
    solver, seen = small(problem, n, counts=7.0), []
    noisy = counting.noisy_counts

    def recorded(key, counts, stddev, tables):
        seen.append(float(stddev))
        return noisy(key, counts, stddev, tables)

    monkeypatch.setattr(counting, "noisy_counts", recorded)
    state = solver.init(problem, key=jax.random.key(0))
    state = state._replace(count=jnp.asarray(3, jnp.int32))
    jax.eval_shape(solver.step, problem, rows(n, 4), jnp.ones(n, bool), state)
    assert set(seen) == {7.0}


def test_draws_histograms_and_rounds_have_keys_of_their_own():
    problem, n = ball(400), 40
    solver = dataclasses.replace(small(problem, 1.0, noise=3.0), dense=True)
    none = jnp.zeros(n, bool)
    state = solver.init(problem, key=jax.random.key(0))
    step = jax.jit(solver.step, compiler_options=QUICK)
    norms = []
    for _ in range(solver.sampler.steps):
        state, info = step(problem, rows(n, 400), none, state)
        norms.append(float(info.gradient_norm))
    drawn = [norm for norm in norms if norm > 0]
    assert len(drawn) == len({round(norm, 3) for norm in drawn}) == 4


def test_coordinates_are_twice_as_many_as_the_point_has_and_two():
    for size in (1, 3, 10):
        point = jnp.zeros(50).at[jnp.arange(size) * 3].set(-0.1)
        support = largest_coordinates(point)
        assert 2 * size + 2 <= int(support.sum()) <= 2 * size + 3
        assert bool(support[jnp.arange(size) * 3].all())
    assert int(largest_coordinates(jnp.ones(5)).sum()) == 5
    assert 2 <= int(largest_coordinates(jnp.zeros(5)).sum()) <= 5


@pytest.mark.parametrize("domain", ["l1 ball", "simplex"])
def test_without_noise_it_finds_the_optimum_on_its_support(domain):
    p, n = 20, 2_000
    truth = np.zeros(p)
    truth[[1, 5, 8]] = [0.5, -0.2, 0.2] if domain == "l1 ball" else [0.5, 0.3, 0.2]
    data = rows(n, p, truth)
    kind = L1Ball(p) if domain == "l1 ball" else Simplex(p)
    problem = SimplexRisk.linear(squares, kind, grad_range=4.0, smoothness=1.0)
    draws = FrankWolfe(FullBatch(30), 1e6, 4.0, n)
    descent = DPSGD(FullBatch(64), 0.0, 9.0, 1.0, n, decay=1 - 5 / 64, schedule="linear")
    solver = PolishedFrankWolfe(draws, descent, 0.0)
    solution = dpjax.solve(solver, problem, data, key=jax.random.key(0))
    # up to what clipping a twentieth of the records does
    assert np.abs(solution.params - truth).max() < 0.02
    assert int(solution.info.support[-1]) <= 10
    first = jnp.where(solution.info.drawn >= 0, 1, 0)
    assert first.tolist() == [1] * 30 + [0] * 130


@pytest.mark.parametrize("support", [4, 60])
def test_it_beats_draws_alone_by_far(support):
    """Sparse optima, and dense ones that noise allows; other instances than the rules' own."""
    n, p = 20_000, 60
    rng = np.random.default_rng(5)
    truth = np.zeros(p)
    truth[:support] = rng.normal(size=support)
    truth *= 0.9 / np.abs(truth).sum()
    problem, data = ball(p), rows(n, p, truth, seed=6)
    budget = dpjax.Budget(1.0, 1e-6, REPLACE)

    def excess(kind):
        solver = kind.for_budget(problem, n, budget)
        run = jax.jit(lambda key: dpjax.solve(solver, problem, data, key=key).params)
        lost = [float(problem.mean_loss(run(jax.random.key(i)), data)) for i in range(3)]
        return np.median(lost) - float(problem.mean_loss(jnp.asarray(truth, jnp.float32), data))

    assert excess(PolishedFrankWolfe) < 0.3 * excess(FrankWolfe)
