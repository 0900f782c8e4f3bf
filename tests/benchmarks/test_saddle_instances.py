"""Instances have the means, optima and gaps that they claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import _peers, _saddle_instances
from dpjax.geometry import L1Ball
from dpjax.problems._gaps import best_response, matrix_game_gap
from dpjax.testing import count_false_alarm
from dpjax.testing._trees import QUICK

_solve_game = _peers.solve_game_by_lp


def _quick(run):
    return jax.jit(run, compiler_options=QUICK)


@pytest.mark.parametrize(("core", "value"), [("rps", 0.0), ("pennies", 0.0), ("uneven", 0.2)])
@pytest.mark.parametrize("d", [3, 12])
def test_padding_keeps_the_value_of_the_core(core, value, d):
    matrix = _saddle_instances.core_padded_matrix(d, core)
    x, y = _solve_game(jnp.asarray(matrix, float))
    assert float(matrix_game_gap(matrix, x, y)) < 1e-5
    assert float(x @ jnp.asarray(matrix, float) @ y) == pytest.approx(value, abs=1e-6)


def test_uniform_play_is_bad_in_padded_games():
    instance = _saddle_instances.core_padded(50, 1)
    uniform = jnp.full(50, 1 / 50)
    assert float(instance.gap((uniform, uniform))) == pytest.approx(1.88, abs=1e-5)
    best = jnp.zeros(50).at[:3].set(1 / 3)
    assert float(instance.gap((best, best))) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("core", ["rps", "uneven"])
def test_records_are_signs_with_the_mean_of_the_game(core, monkeypatch):
    monkeypatch.setattr(_saddle_instances, "_CHUNK", 1000)  # several chunks
    instance = _saddle_instances.core_padded(6, 20_000, core=core, seed=3)
    records = instance.data["A"]
    assert records.dtype == np.int8
    assert set(np.unique(records)) == {-1, 1}
    deviation = np.sqrt((1 - instance.matrix**2) / len(records))
    mean = records.mean(axis=0)
    count_false_alarm(1e-7)  # of all entries and pairs, at 6.5 deviations
    np.testing.assert_array_less(abs(mean - instance.matrix), 6.5 * deviation + 1e-9)
    constant = abs(instance.matrix) == 1
    np.testing.assert_array_equal(mean[constant], instance.matrix[constant])
    again = _saddle_instances.core_padded(6, 20_000, core=core, seed=3).data["A"]
    np.testing.assert_array_equal(records, again)
    other = _saddle_instances.core_padded(6, 20_000, core=core, seed=4).data["A"]
    assert (records != other).mean() > 0.1
    # entries of one record, and neighbouring records, are uncorrelated
    free = records[:, ~constant].astype(float) - instance.matrix[~constant]
    correlations = free.T @ free / len(free)
    assert np.max(abs(correlations - np.diag(np.diag(correlations)))) < 6.5 / np.sqrt(len(free))
    assert abs(np.mean(free[1:, 0] * free[:-1, 0])) < 6.5 / np.sqrt(len(free))


def test_mean_of_signs_has_the_law_of_the_mean_of_records():
    matrix = _saddle_instances.core_padded_matrix(40, "uneven")
    mean = _saddle_instances.mean_of_signs(matrix, 500, seed=0)
    certain = abs(matrix) == 1
    np.testing.assert_array_equal(mean[certain], matrix[certain])
    scaled = (mean - matrix)[~certain] / np.sqrt((1 - matrix[~certain] ** 2) / 500)
    count_false_alarm(1e-8)
    assert abs(scaled.mean()) < 6 / np.sqrt(scaled.size)
    assert abs(scaled.var() - 1) < 6 * np.sqrt(2 / scaled.size)


@pytest.mark.parametrize("core", ["rps", "uneven"])
def test_seeded_games_agree_by_row_by_column_and_with_their_mean(core):
    game = _saddle_instances.seeded_game(9, core)
    seeds = jnp.asarray(game.seeds(4000))
    assert seeds.dtype == jnp.uint32
    at = jnp.arange(9)

    @_quick
    def matrices(seeds):
        every = jax.vmap(jax.vmap(game.row, (None, 0)), (0, None))
        return every(seeds, at), jax.vmap(jax.vmap(game.col, (None, 0)), (0, None))(seeds, at)

    rows, columns = matrices(seeds)
    np.testing.assert_array_equal(rows, jnp.swapaxes(columns, 1, 2))
    assert rows.dtype == jnp.int8
    assert set(np.unique(rows)) == {-1, 1}
    mean = _saddle_instances.core_padded_matrix(9, core)
    deviation = np.sqrt((1 - mean**2) / len(rows))
    count_false_alarm(1e-7)  # of all entries and pairs, at 6.5 deviations
    np.testing.assert_array_less(
        abs(np.asarray(rows, float).mean(axis=0) - mean), 6.5 * deviation + 1e-9
    )
    free = np.asarray(rows, float)[:, 3:, 3:].reshape(len(rows), -1)
    correlations = free.T @ free / len(free) - np.eye(free.shape[1])
    assert np.max(abs(correlations)) < 6.5 / np.sqrt(len(free)) + 1e-2


def test_gap_of_a_seeded_game_needs_no_matrix(rng):
    matrix = _saddle_instances.core_padded_matrix(7, "uneven")
    game = _saddle_instances.seeded_game(7, "uneven")
    gap = _quick(game.gap)
    for _ in range(10):
        params = tuple(jnp.asarray(rng.dirichlet(np.full(7, 0.3)), float) for _ in range(2))
        assert float(gap(params)) == pytest.approx(
            float(matrix_game_gap(matrix, *params)), abs=1e-6
        )
    big = _saddle_instances.seeded_game(10**6)
    best = jnp.zeros(10**6).at[:3].set(1 / 3)
    assert float(big.gap((best, best))) == pytest.approx(0, abs=1e-6)


def test_gradients_of_a_seeded_game_are_rows_and_columns():
    game = _saddle_instances.seeded_game(5)
    seeds = jnp.asarray(game.seeds(3))
    rows, columns = jnp.asarray([0, 4, 4]), jnp.asarray([1, 2, 2])
    gx, gy = _quick(game.gradients_at_vertices)(rows, columns, seeds)
    every = jax.vmap(jax.vmap(game.row, (None, 0)), (0, None))
    matrices = np.asarray(_quick(every)(seeds, jnp.arange(5)), float)
    for b, matrix in enumerate(matrices):
        np.testing.assert_allclose(gx[b], matrix[:, np.asarray(columns)].mean(axis=1), atol=1e-6)
        np.testing.assert_allclose(gy[b], matrix[np.asarray(rows)].mean(axis=0), atol=1e-6)


def test_regression_risk_at_zero_and_at_the_optimum():
    instance = _saddle_instances.l1_regression(30, 5000)
    x, y = instance.data["x"], instance.data["y"]
    assert (x.dtype, y.dtype) == (np.int8, np.float32)
    assert np.abs(instance.optimum).sum() == pytest.approx(1)
    assert np.abs(y).max() <= instance.label_bound
    assert float(instance.excess(jnp.zeros(30))) == pytest.approx(0.175, abs=1e-6)
    assert float(instance.excess(instance.optimum)) == pytest.approx(0, abs=1e-6)
    fitted = np.linalg.lstsq(x.astype(float), y, rcond=None)[0]
    np.testing.assert_allclose(fitted, instance.optimum, atol=0.01)


def test_logistic_optimum_is_that_of_a_large_sample():
    instance = _saddle_instances.l1_logistic(8, 50_000, evaluation=5000)
    assert np.abs(instance.optimum).sum() == pytest.approx(1, abs=1e-5)
    x, y = jnp.asarray(instance.data["x"], float), jnp.asarray(instance.data["y"], float)

    def risk(theta):
        return jnp.mean(jax.nn.softplus(-y * (x @ theta)))

    sample = jax.jit(lambda: best_response(risk, L1Ball(8), steps=60))()
    np.testing.assert_allclose(sample.point, instance.optimum, atol=0.04)
    assert abs(float(risk(jnp.asarray(instance.optimum, float)) - sample.value)) < 3e-4
    assert float(instance.excess(sample.point)) < 1e-3
    assert float(instance.excess(jnp.zeros(8))) > 0.05
    assert float(instance.excess(instance.optimum)) == pytest.approx(0, abs=1e-6)
    on_sample = float(risk(jnp.zeros(8)) - risk(jnp.asarray(instance.optimum, float)))
    assert float(instance.excess(jnp.zeros(8))) == pytest.approx(on_sample, abs=1e-2)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="d must be >= 3, the size of the core, got 2"):
        _saddle_instances.core_padded_matrix(2)
    with pytest.raises(ValueError, match="core must be square"):
        _saddle_instances.core_padded_matrix(4, np.array([[2.0]]))
    with pytest.raises(ValueError, match="energy"):
        _saddle_instances.l1_regression(10, 5, sparsity=2, energy=0.35)
