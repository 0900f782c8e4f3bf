"""Solvers of matrix games: what one record moves, what they claim, and whom they find."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from jax.extend.core import jaxprs_in_params

import dpjax
from dpjax.privacy import Budget, Guarantee, bounded_range_rho
from dpjax.problems import Saddle, max_loss
from dpjax.sampling import FullBatch
from dpjax.solvers import DoubleOracle, NestedGame
from dpjax.solvers.games import _double_oracle, _nested, _oracle
from dpjax.solvers.games._nested import line_sum
from dpjax.solvers.games._oracle import Lines
from dpjax.transforms.clipping._weighted_sum import Pair

_BUDGET = Budget(1.0, 1e-6, "replace_one")
_N = 30_000
_D = 12


def _core(d):
    matrix = np.zeros((d, d))
    matrix[:3, :3] = [[0, -1, 1], [1, 0, -1], [-1, 1, 0]]
    matrix[3:, :3], matrix[:3, 3:] = 1, -1
    return matrix


def _gap(matrix, x, y):
    x, y = np.asarray(x, float), np.asarray(y, float)
    return np.max(x @ matrix) - np.min(matrix @ y)


def _lines(sums, n=_N):
    sums = jnp.asarray(sums, jnp.result_type(float))

    def pair(line):
        return Pair(line, jnp.zeros_like(line))

    return Lines(lambda i: pair(sums[i]), lambda j: pair(sums[:, j]), sums.shape, n)


def _sums(matrix, n=_N):
    sums = jnp.asarray(matrix * n, jnp.result_type(float))
    return Pair(sums, jnp.zeros_like(sums))


def _nested_strategies(matrix, scale, seed=0):
    sums = _sums(matrix)
    known = _nested.unmeasured(matrix.shape, sums.high.dtype)
    return _nested.nested_measurement(jax.random.key(seed), sums, _N, scale, known)


def _play(solver, matrix, seed=0, n=_N):
    sums = _sums(matrix, n)

    def nested(key, scale):
        known = _nested.unmeasured(matrix.shape, sums.high.dtype)
        return _nested.nested_measurement(key, sums, n, scale, known)

    return solver.play(jax.random.key(seed), _lines(matrix * n, n), nested, 1.0)


# what is claimed


def test_nested_measurement_is_one_gaussian_of_the_published_mu():
    solver = NestedGame.for_budget(Saddle.matrix_game((50, 50)), _N, _BUDGET)
    assert 2 / solver.noise_multiplier == pytest.approx(0.236704, abs=2e-6)
    assert 0.999 < solver.guarantee().epsilon(1e-6) <= 1.0
    one = NestedGame.for_budget(
        Saddle.matrix_game((50, 50)), _N, Budget(1.0, 1e-6, "add_or_remove_one")
    )
    assert 1 / one.noise_multiplier == pytest.approx(0.236704, abs=2e-6)


def test_an_accountant_doubles_a_gaussian_under_replace_one_but_no_rho():
    draws = dpe.SelfComposedDpEvent(dpe.ZCDpEvent(bounded_range_rho(0.04328)), 26)
    mu = 0.19113

    def epsilon(event):
        return Guarantee(dpe.ComposedDpEvent([draws, event]), "replace_one").epsilon(1e-6)

    assert epsilon(dpe.ZCDpEvent(mu**2 / 2)) == pytest.approx(0.99993, abs=2e-4)
    assert epsilon(dpe.GaussianDpEvent(2 / mu)) == pytest.approx(0.99993, abs=2e-4)
    assert epsilon(dpe.GaussianDpEvent(1 / mu)) == pytest.approx(1.886, abs=1e-3)


@pytest.mark.always  # the claim
def test_the_claim_of_an_oracle_is_all_of_its_rho_on_every_branch():
    for fallback in ("rounds", "nested"):
        solver = DoubleOracle.for_budget(
            Saddle.matrix_game((50, 50)), _N, _BUDGET, fallback=fallback
        )
        assert solver.rho > 1.1 * 0.024355  # that of zero-concentrated DP
        assert solver.rho * 0.999 < solver.guarantee().event.rho <= solver.rho
        assert 0.999 < solver.guarantee().epsilon(1e-6) <= 1.0
    assert sum(_double_oracle._PASSED) == pytest.approx(_double_oracle._REST)
    failed = _double_oracle._FAILED
    assert sum(failed["rounds"]) == pytest.approx(_double_oracle._REST)
    assert sum(failed["nested"]) + _double_oracle._CHECK == pytest.approx(_double_oracle._REST)
    first = sum(_double_oracle._FIRST) + _double_oracle._CHECK
    assert first + _double_oracle._REST == pytest.approx(1)
    assert sum(_nested._SHARES) == pytest.approx(1)


# what one record moves: runs are recorded, and neighbours' changes put in

Draw = collections.namedtuple("Draw", "i j x y sharpness")
Batch = collections.namedtuple("Batch", "which stddev")
Check = collections.namedtuple("Check", "i j x y best_row best_column stddev")


def _recorded(monkeypatch, solver, matrix):
    """Everything a run released of the data, in order, and whether its check passed."""
    ((seen, passed),) = _recorded_runs(monkeypatch, solver, matrix, [None])
    return seen, passed


def _recorded_runs(monkeypatch, solver, matrix, limits):
    """The same by one program with any limit of the check; None for the solver's own."""
    seen = []

    def keep(kind, *values):
        jax.debug.callback(
            lambda *got: seen.append(kind(*(np.asarray(v, float) for v in got))), *values
        )

    draws, measure, check = _oracle.best_responses, _nested.measured_once, _oracle.noisy_gap

    def recorded_draws(key, at, sharpness, moved):
        keep(Draw, at.i, at.j, at.x, at.y, sharpness)
        return draws(key, at, sharpness, moved)

    def recorded_measure(key, known, sums, num_records, stddev, which, *limit):
        keep(Batch, which, stddev)
        return measure(key, known, sums, num_records, stddev, which, *limit)

    def recorded_check(key, at, i, j, lines, stddev):
        keep(Check, at.i, at.j, at.x, at.y, i, j, stddev)
        return check(key, at, i, j, lines, stddev)

    for module in (_oracle, _double_oracle):
        monkeypatch.setattr(module, "best_responses", recorded_draws)
    for module in (_oracle, _nested):
        monkeypatch.setattr(module, "measured_once", recorded_measure)
    monkeypatch.setattr(_double_oracle, "noisy_gap", recorded_check)

    @jax.jit
    def play(limit):
        if limit is not None:
            monkeypatch.setattr(DoubleOracle, "_predicted", lambda solver, shape: limit)
        return _play(solver, matrix)[3]

    for limit in limits:
        passed = bool(play(limit))
        jax.effects_barrier()
        if passed and solver.fallback == "nested":  # a second check is not released then
            del seen[[type(event) for event in seen].index(Check, 1 + _first_check(seen))]
            del seen[max(k for k, event in enumerate(seen) if isinstance(event, Draw))]
        yield seen.copy(), passed
        seen.clear()


def _first_check(seen):
    return next(k for k, event in enumerate(seen) if isinstance(event, Check))


def _charge(seen, change, n):
    """What a run spends of rho where one record moves the sums by `change`, of entries +-2."""
    rho = 0.0
    for event in seen:
        if isinstance(event, Batch):  # whichever payoffs these are
            rho += np.sum(event.which) * (2 / (n * event.stddev)) ** 2 / 2
            continue
        i, j = event.i.astype(int), event.j.astype(int)
        if isinstance(event, Draw):
            for score in (event.x @ change[i], change[:, j] @ event.y):
                rho += (event.sharpness * np.ptp(score)) ** 2 / 8
        else:
            best_row, best_column = int(event.best_row), int(event.best_column)
            gain = event.x @ change[i, best_column] - change[best_row, j] @ event.y
            rho += (gain / (n * event.stddev)) ** 2 / 2
    return rho


def _changes(rng, d):
    """Differences of two records of payoffs in [-1, 1]."""
    signs = 2.0 * (-1.0) ** np.arange(d)
    yield np.broadcast_to(signs, (d, d))
    yield np.broadcast_to(signs, (d, d)).T
    yield np.full((d, d), 2.0)
    for _ in range(20):
        yield 2.0 * rng.choice([-1.0, 1.0], (d, d))


@pytest.mark.parametrize("fallback", ["rounds", "nested"])
@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.once  # the claim
def test_no_neighbour_moves_a_run_by_more_than_its_rho(monkeypatch, passes, fallback):
    rng = np.random.default_rng(3)
    matrix = _core(_D) if passes else rng.uniform(-1, 1, (_D, _D))
    rho = 0.024 if passes else 2.0
    solver = DoubleOracle(FullBatch(1), rho, float(_N), rounds=2, fallback=fallback)
    seen, passed = _recorded(monkeypatch, solver, matrix)
    draws = 2 + 1 + (solver.more_rounds if passed else 16 + (fallback == "nested"))
    assert sum(isinstance(event, Draw) for event in seen) == draws
    spent = [_charge(seen, change, _N) for change in _changes(rng, _D)]
    assert max(spent) <= solver.rho * (1 + 1e-5)
    assert max(spent) > 0.4 * solver.rho  # else nothing was put to the test


def test_half_the_noise_of_replace_one_is_found_out(monkeypatch):
    monkeypatch.setattr(_double_oracle, "relation_factor", lambda relation: 1)
    solver = DoubleOracle(FullBatch(1), 0.024, float(_N), rounds=2)
    seen, _ = _recorded(monkeypatch, solver, _core(_D))
    spent = [_charge(seen, change, _N) for change in _changes(np.random.default_rng(3), _D)]
    assert max(spent) > 1.5 * solver.rho


@pytest.mark.always  # noise and sharpness as claimed
def test_draws_and_the_check_are_charged_to_the_full(monkeypatch):
    solver = DoubleOracle(FullBatch(1), 0.024, float(_N), rounds=2)
    seen, _ = _recorded(monkeypatch, solver, _core(_D))
    # of the column player, against any mixture of the row player
    event, share, parts = seen[0], 0.06, 2 * solver.rounds
    change = np.broadcast_to(2.0 * (-1.0) ** np.arange(_D), (_D, _D))
    largest = (event.sharpness * np.ptp(event.x @ change[event.i.astype(int)])) ** 2 / 8
    assert isinstance(event, Draw)
    assert largest == pytest.approx(solver.rho * share / parts, rel=1e-4)
    (event,) = (event for event in seen if isinstance(event, Check))
    spent = [_charge([event], change, _N) for change in _changes(np.random.default_rng(4), _D)]
    assert max(spent) <= 0.01 * solver.rho * (1 + 1e-5)
    change = np.full((_D, _D), 2.0)
    change[int(event.best_row)] = -2.0
    bound = (2 * 2 / _N / event.stddev) ** 2 / 2
    assert _charge([event], change, _N) <= bound * (1 + 1e-5)
    assert bound == pytest.approx(0.01 * solver.rho, rel=1e-4)


@pytest.mark.always  # noise as claimed
@pytest.mark.parametrize("fallback", ["rounds", "nested"])
def test_new_payoffs_are_charged_as_if_every_slot_held_a_strategy(monkeypatch, fallback):
    monkeypatch.setattr(_double_oracle, "_WORST", {fallback: 100.0})
    solver = DoubleOracle(FullBatch(1), 0.5, float(_N), rounds=2, fallback=fallback)
    runs = _recorded_runs(monkeypatch, solver, _core(_D), [100.0, -100.0])
    for (seen, passed), passes in zip(runs, (True, False), strict=True):
        assert passed == passes
        measured = [event for event in seen if isinstance(event, Batch)]
        # the last three are those of the block, or of all payoffs
        first, later = measured[:2], measured[2:-3]
        slots = 3
        then = slots + (4 if passes else 16)
        share = {"rounds": 0.15, "nested": 0.05}[fallback] if not passes else 0.05
        assert len(later) == then - slots
        for events, payoffs, part in ((first, slots**2, 0.06), (later, then**2 - slots**2, share)):
            for event in events:
                spent = payoffs * (2 / (_N * event.stddev)) ** 2 / 2
                assert spent == pytest.approx(part * solver.rho, rel=1e-4)


def test_rounds_of_the_nested_measurement_spend_their_shares(monkeypatch):
    seen, noise = [], _nested.noisy_mean

    def recorded(sums, num_records, stddev, draws):
        jax.debug.callback(lambda value: seen.append(float(value)), stddev)
        return noise(sums, num_records, stddev, draws)

    monkeypatch.setattr(_nested, "noisy_mean", recorded)
    scale = 2 / (_N * 0.2367)
    _nested_strategies(_core(_D), scale)
    jax.effects_barrier()
    left = [(s / scale) ** 2 * w for s, w in zip(seen, _nested._SHARES, strict=True)]
    assert left[0] == pytest.approx(_D**2, rel=1e-5)
    assert round(left[2]) <= round(left[1]) < _D**2
    assert left[2] == pytest.approx(round(left[2]), rel=1e-4)
    # the square of 2 sqrt(m) / n over the noise, of m payoffs that a record moves by 2 each
    mus = [4 * m / (_N * s) ** 2 for m, s in zip(left, seen, strict=True)]
    assert sum(mus) == pytest.approx(0.2367**2, rel=1e-5)


@pytest.mark.always  # noise as claimed
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_the_nested_game_measures_with_the_noise_of_its_event(monkeypatch, relation):
    seen, noise, z, n = [], _nested.noisy_mean, 4.0, 20

    def recorded(sums, num_records, stddev, draws):
        jax.debug.callback(lambda value: seen.append(float(value)), stddev)
        return noise(sums, num_records, stddev, draws)

    monkeypatch.setattr(_nested, "noisy_mean", recorded)
    solver = NestedGame(FullBatch(1), z, num_records=n, interval=(-1.0, 1.0), relation=relation)
    game, key = Saddle.matrix_game((3, 3)), jax.random.key(0)
    dpjax.solve(solver, game, {"A": jnp.zeros((n, 3, 3))}, key=key)
    jax.effects_barrier()
    # the first round measures all nine payoffs, each moved by one under add-or-remove
    first = 9 / (n * seen[0]) ** 2
    assert 0.99 * _nested._SHARES[0] / z**2 < first < _nested._SHARES[0] / z**2
    assert solver.guarantee().event.noise_multiplier == z


def test_a_record_adds_no_more_than_half_the_interval():
    payoffs = jnp.array([[jnp.nan, jnp.inf, -jnp.inf, 1e30, 0.3], [3.0, 2.0, 1.0, 2.0, 2.0]])
    mask = jnp.ones(2, bool)
    got = line_sum(lambda record: record, payoffs, mask, (1.0, 3.0))
    assert np.allclose(got.high, [0 + 1, 1 + 0, -1 - 1, 1 + 0, -1 + 0])
    assert np.allclose(
        line_sum(lambda record: record, payoffs, mask.at[0].set(False), (1.0, 3.0)).high,
        [1, 0, -1, 0, 0],
    )


# whom they find


def test_without_noise_both_find_the_equilibrium():
    rng = np.random.default_rng(0)
    games = jnp.asarray(rng.uniform(-1, 1, (16, 5, 4)), jnp.float32)
    mean = np.mean(np.asarray(games, float), axis=0)
    problem = Saddle.matrix_game((5, 4))
    exact = NestedGame(FullBatch(1), 1e-6, 16.0)
    drawn = DoubleOracle(FullBatch(1), 1e14, 16.0, fallback="nested")
    for solver in (exact, drawn):
        x, y = dpjax.solve(solver, problem, {"A": games}, key=jax.random.key(1)).params
        assert abs(_gap(mean, x, y)) < 1e-4


def test_functions_and_matrices_make_the_same_game():
    rng = np.random.default_rng(1)
    data = {"u": jnp.asarray(rng.normal(size=(16, 5))), "v": jnp.asarray(rng.normal(size=(16, 4)))}
    functions = Saddle.game(lambda r, i, j: jnp.tanh(r["u"][i] * r["v"][j]), (5, 4))
    matrices = {"A": jnp.tanh(data["u"][:, :, None] * data["v"][:, None, :])}
    solver = NestedGame(FullBatch(1), 0.5, 16.0)
    one = dpjax.solve(solver, functions, data, key=jax.random.key(0)).params
    matrix_game = Saddle.matrix_game((5, 4))
    two = dpjax.solve(solver, matrix_game, matrices, key=jax.random.key(0)).params
    assert np.allclose(one[0], two[0], atol=1e-4)
    assert np.allclose(one[1], two[1], atol=1e-4)
    record = jax.tree.map(lambda leaf: leaf[0], data)
    point = jnp.full(5, 0.2), jnp.full(4, 0.25)
    assert functions.loss(*point, record) == pytest.approx(float(jnp.mean(matrices["A"][0])))
    rows, columns = jnp.array([0, 3]), jnp.array([2, 2])
    got = functions.gradients_at_vertices((rows, columns), data)
    want = matrix_game.gradients_at_vertices((rows, columns), matrices)
    assert np.allclose(got[0], want[0], atol=1e-6)
    assert np.allclose(got[1], want[1], atol=1e-6)


def test_the_largest_of_affine_losses_is_a_game_of_vertices():
    vertices = jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    targets = jnp.tile(jnp.array([[0.5, 0.25]]), (16, 1))
    problem = max_loss(
        lambda x, target: jnp.stack([target[0] - x[0], target[1] - x[1], x[0] + x[1] - 0.5]),
        3,
        grad_range=(2.0, 2.0),
        vertices=vertices,
        smoothness=0.0,
        payoff_interval=(-1.0, 1.0),
    )
    x, y = dpjax.solve(
        NestedGame(FullBatch(1), 1e-6, 16.0), problem, targets, key=jax.random.key(0)
    ).params
    # equal losses 1/12 at (5/12, 1/6)
    assert np.allclose(x, [5 / 12, 1 / 6], atol=1e-3)
    assert np.allclose(y, 1 / 3, atol=1e-3)


@pytest.mark.always  # accuracy that the method is for
def test_dropped_strategies_stay_as_constraints():
    matrices = np.stack([np.random.default_rng(5 + s).uniform(-1, 1, (50, 50)) for s in range(8)])

    @jax.jit
    @jax.vmap
    def play(sums):
        known = _nested.unmeasured(sums.shape, sums.dtype)
        pair, scale = Pair(sums, jnp.zeros_like(sums)), 2 / (_N * 0.2367)
        return _nested.nested_measurement(jax.random.key(0), pair, _N, scale, known)

    xs, ys = play(jnp.asarray(_N * matrices, jnp.result_type(float)))
    gaps = [_gap(*each) for each in zip(matrices, xs, ys, strict=True)]
    assert max(gaps) < 0.015  # .008, and without these constraints above .03


@pytest.mark.slow
def test_few_rounds_find_a_core_among_many_strategies():
    solver = DoubleOracle.for_budget(Saddle.matrix_game((300, 300)), _N, _BUDGET)
    matrix = _core(300)
    for seed in range(3):
        x, y, gap, passed, again = _play(solver, matrix, seed)
        assert passed
        assert again == gap
        assert abs(gap) < 0.1
        assert _gap(matrix, x, y) < 0.01


@pytest.mark.slow  # many runs of a large game
def test_no_run_misses_a_core_by_far():
    d, rng = 300, np.random.default_rng(8)
    sums = []
    for _ in range(60):
        matrix = _core(d)
        matrix[:3, :3] = rng.uniform(-1, 1, (3, 3))
        sums.append(matrix)

    @jax.jit
    def play(matrix, key):
        known = _nested.unmeasured(matrix.shape, matrix.dtype)
        pair = Pair(matrix * _N, jnp.zeros_like(matrix))
        return _nested.nested_measurement(key, pair, _N, 2 / (_N * 0.2367), known)

    gaps = [
        _gap(matrix, *play(jnp.asarray(matrix, jnp.result_type(float)), jax.random.key(seed)))
        for seed, matrix in enumerate(sums)
    ]
    assert max(gaps) < 0.1, sorted(gaps)[-4:]


def test_longer_rounds_are_checked_before_all_payoffs_are_measured():
    d, solver = 600, DoubleOracle.for_budget(Saddle.matrix_game((600, 600)), _N, _BUDGET)
    assert solver.fallback == "nested"
    rng, nothing = np.random.default_rng(30), jnp.zeros(d)
    cored, dense = _core(d), rng.uniform(-1, 1, (d, d))
    cored[:25, 25:], cored[25:, :25] = -1, 1
    cored[:25, :25], cored[25:, 25:] = dense[:25, :25], 0
    played = []
    for matrix in (cored, dense):
        lines = _lines(matrix * _N)
        key = jax.random.key(1)
        played.append(solver.play(key, lines, lambda key, scale: (nothing, nothing), 1.0))
    (x, y, gap, passed, again), (other, _, _, _, other_again) = played
    assert not passed
    assert again < 0.1 < gap
    assert _gap(cored, x, y) < 0.03  # measured at once, all payoffs give .01 to .2
    assert other_again > 0.5
    assert not other.any()


@pytest.mark.slow  # a large game
def test_the_check_does_not_pass_too_early_in_a_game_of_low_rank():
    d, rank, rng = 2_500, 6, np.random.default_rng(21)
    gains = np.tanh(2 * rng.normal(size=(d, rank)))
    gains -= gains.mean(axis=1, keepdims=True)  # no column is best against every row
    gains[: d // 2] -= 0.4
    left = rng.dirichlet(np.full(rank, 0.3), d) * rng.uniform(0.3, 0.9, rank)
    matrix = left @ np.clip(gains, -1, 1).T
    solver = DoubleOracle.for_budget(Saddle.matrix_game((d, d)), _N, _BUDGET)
    assert solver.fallback == "rounds"
    gaps = [_gap(matrix, *_play(solver, matrix, seed)[:2]) for seed in range(3)]
    assert np.mean(gaps) < 0.02  # .007; .023 if a gap of .1 passes, .30 by uniform play


def test_an_oracle_forms_nothing_of_the_size_of_all_payoffs():
    d = 100_000
    problem = Saddle.game(lambda record, i, j: record[i % 3] * record[j % 3], (d, d))
    solver = DoubleOracle.for_budget(problem, 64, Budget(1.0, 1e-6))
    assert solver.fallback == "rounds"
    state = jax.eval_shape(lambda key: solver.init(problem, key=key), jax.random.key(0))
    given = jnp.zeros((64, 3)), jnp.ones(64, bool), state
    step = jax.make_jaxpr(lambda *args: solver.step(problem, *args))(*given)
    slots = solver.rounds + 1 + 16
    assert _largest(step.jaxpr) <= slots * d


def _largest(jaxpr):
    sizes = [0]
    for eqn in jaxpr.eqns:
        sizes += [math.prod(getattr(var.aval, "shape", ())) for var in eqn.outvars]
        for inner in jaxprs_in_params(eqn.params):
            sizes.append(_largest(inner))
    return max(sizes)
