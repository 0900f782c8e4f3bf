"""Solvers of matrix games: nothing is used that was not released, and all that was is charged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.core._pairs import Pair
from dpjax.problems import Saddle
from dpjax.sampling import FullBatch
from dpjax.solvers import DoubleOracle
from dpjax.solvers.games import _double_oracle, _nested, _oracle
from dpjax.solvers.games._oracle import Lines

_N = 1_000.0


def _games(rows, columns):
    rng = np.random.default_rng(0)
    for _ in range(2):
        sums = jnp.asarray(_N * rng.uniform(-1, 1, (rows, columns)), jnp.result_type(float))
        yield Pair(sums, jnp.zeros_like(sums))


def _noise_alone(sums, num_records, stddev, draws):
    return 0.3 * draws + 0 * stddev


@pytest.mark.always  # all that depends on data is noisy
def test_a_nested_measurement_uses_noisy_means_alone(monkeypatch):
    monkeypatch.setattr(_nested, "noisy_mean", _noise_alone)

    @jax.jit
    def play(sums):
        known = _nested.unmeasured(sums.high.shape, sums.high.dtype)
        return _nested.nested_measurement(jax.random.key(0), sums, _N, 0.05, known)

    one, other = (play(sums) for sums in _games(8, 7))
    assert np.array_equal(one[0], other[0])
    assert np.array_equal(one[1], other[1])


@pytest.mark.always  # all that depends on data is noisy or drawn
@pytest.mark.parametrize("fallback", ["rounds", "nested"])
def test_an_oracle_uses_noisy_means_and_draws_alone(monkeypatch, fallback):
    monkeypatch.setattr(_nested, "noisy_mean", _noise_alone)
    monkeypatch.setattr(_oracle, "noisy_mean", _noise_alone)

    def draw(key, logits, number):
        return jax.random.randint(key, (number,), 0, logits.shape[0], jnp.int32)

    monkeypatch.setattr(_oracle, "sample_vertices", draw)
    solver = DoubleOracle(FullBatch(1), 0.02, _N, rounds=2, more_rounds=1, fallback=fallback)

    @jax.jit
    def play(sums, limit):
        monkeypatch.setattr(DoubleOracle, "_predicted", lambda solver, shape: limit)
        lines = Lines(
            lambda i: Pair(sums.high[i], sums.low[i]),
            lambda j: Pair(sums.high[:, j], sums.low[:, j]),
            sums.high.shape,
            _N,
        )
        uniform = tuple(jnp.full(d, 1 / d) for d in lines.shape)
        return solver.play(jax.random.key(0), lines, lambda key, scale: uniform, 1.0)

    for passes in (True, False):
        limit = 100.0 if passes else -100.0
        one, other = (play(sums, limit) for sums in _games(8, 7))
        for got, want in zip(one, other, strict=True):
            assert np.array_equal(got, want)
        _, _, gap, passed, again = one
        assert passed == passes
        # a second check that is not paid for is not released
        assert (again == gap) == (passes or fallback == "rounds")


@pytest.mark.always  # noise as claimed
def test_a_check_has_the_noise_it_is_charged_with():
    sums, places = Pair(jnp.zeros((3, 3)), jnp.zeros((3, 3))), jnp.arange(3)
    weights = jnp.full(3, 1 / 3)
    at = _oracle.Supports(places, places, sums, sums, None, weights, weights)
    lines = Lines(lambda i: sums, lambda j: sums, (3, 3), _N)

    def gap(key):
        return _oracle.noisy_gap(key, at, 0, 1, lines, 0.25)

    gaps = jax.vmap(gap)(jax.random.split(jax.random.key(0), 2000))
    assert 0.2 < np.std(np.asarray(gaps)) < 0.3


@pytest.mark.always  # a payoff is paid for once
def test_what_is_measured_is_not_measured_again():
    sums = next(_games(4, 4))
    lines = Lines(
        lambda i: Pair(sums.high[i], sums.low[i]),
        lambda j: Pair(sums.high[:, j], sums.low[:, j]),
        (4, 4),
        _N,
    )

    @jax.jit
    def twice():
        start = _oracle.first_supports(jax.random.key(0), lines, 3)
        once = _oracle.measured(jax.random.key(1), start, lines, 0.1)
        return once.known, _oracle.measured(jax.random.key(2), once, lines, 0.1).known

    once, again = twice()
    assert float(once.precision[0, 0]) == pytest.approx(100)
    assert np.array_equal(once.precision, again.precision)
    assert np.array_equal(once.total, again.total)


def _rho(phase):
    return phase.mu**2 / 2 + sum(count * eta**2 / 8 for eta, count in phase.draws)


@pytest.mark.always  # the event is that of all releases
@pytest.mark.parametrize("fallback", ["rounds", "nested"])
def test_draws_payoffs_and_check_are_charged_on_both_branches(fallback):
    solver = DoubleOracle(FullBatch(1), 0.02, 30_000.0, fallback=fallback)
    guarantee = solver.guarantee()
    passed, failed = guarantee.branches
    assert _rho(guarantee.first) == pytest.approx(0.15 * 0.02, rel=1e-6)
    assert _rho(passed) == pytest.approx(0.85 * 0.02, rel=1e-6)
    assert _rho(failed) == pytest.approx(0.85 * 0.02, rel=1e-6)
    draws = [sum(count for _, count in phase.draws) for phase in (guarantee.first, passed, failed)]
    assert draws == [2 * 8 + 2, 2 * 4, 2 * 16 + (2 if fallback == "nested" else 0)]


@pytest.mark.always  # noise as claimed
def test_the_fallback_spends_what_the_checks_and_rounds_left(monkeypatch):
    seen, nested = [], _double_oracle.nested_measurement

    def recorded(key, sums, num_records, scale, known, **options):
        if "limit" in options:
            jax.debug.callback(lambda value: seen.append(float(value)), scale)
        return nested(key, sums, num_records, scale, known, **options)

    monkeypatch.setattr(_double_oracle, "nested_measurement", recorded)
    monkeypatch.setattr(DoubleOracle, "_predicted", lambda solver, shape: jnp.float32(-100.0))
    solver = DoubleOracle(FullBatch(1), 0.5, 20.0, rounds=1, more_rounds=1, fallback="nested")
    game, data = Saddle.matrix_game((3, 3)), {"A": jnp.zeros((20, 3, 3))}
    solution = dpjax.solve(solver, game, data, key=jax.random.key(0))
    jax.effects_barrier()
    assert not solution.info.passed[0]
    (scale,) = seen
    mu = 2 / (20 * scale)  # of one payoff, which a record moves by 2 of 20
    assert 0.99 * 0.62 * 0.5 < mu**2 / 2 <= 0.62 * 0.5 * (1 + 1e-6)
    # what is charged after the first check: that, new payoffs .05, a number .01, draws .15 and .02
    (_, failed) = solver.guarantee().branches
    assert failed.mu**2 / 2 == pytest.approx((0.62 + 0.05 + 0.01) * 0.5, rel=1e-6)
    assert _rho(failed) - failed.mu**2 / 2 == pytest.approx((0.15 + 0.02) * 0.5, rel=1e-6)


def test_runs_under_vmap_are_one_program_and_those_of_a_loop():
    traced = []
    solver = DoubleOracle(FullBatch(1), 5.0, 20.0, rounds=1, more_rounds=1)
    game = Saddle.matrix_game((4, 3))
    data = {"A": jnp.asarray(np.random.default_rng(1).choice([-1.0, 1.0], (20, 4, 3)), jnp.float32)}

    @jax.jit
    def many(keys):
        traced.append(1)
        return jax.vmap(lambda key: dpjax.solve(solver, game, data, key=key).params)(keys)

    keys = jax.random.split(jax.random.key(0), 3)
    together = many(keys)
    many(jax.random.split(jax.random.key(1), 3))
    assert len(traced) == 1
    key = jax.random.split(jax.random.key(0), 3)[1]
    alone = dpjax.solve(solver, game, data, key=key).params
    for all_, one in zip(together, alone, strict=True):
        assert np.allclose(all_[1], one, atol=1e-4)
