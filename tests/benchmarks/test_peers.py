"""Peers run, hold their budgets and their sensitivities, and are right without noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from benchmarks import _peers, _saddle_instances
from dpjax.problems._gaps import matrix_game_gap
from dpjax.testing import count_false_alarm
from dpjax.testing._trees import QUICK

BUDGET = dpjax.Budget(1.0, 1e-6, "replace_one")
LAVISH = dpjax.Budget(50.0, 1e-6, "replace_one")
FEW = {"steps": 20, "batch_size": 50.0}
LABELS = {"label_bound": 1.1}


def _payoff(x, y, record):
    return x @ record["A"].astype(x.dtype) @ y


SADDLE = dpjax.problems.Saddle(loss=_payoff, dims=(5, 5), grad_range=2.0)
PEERS = {
    "noisy_mean_game": lambda d, b, k: _peers.noisy_mean_game(d["game"]["A"], b, k),
    "noisy_mean_game by hedge": lambda d, b, k: _peers.noisy_mean_game(
        d["game"]["A"], b, k, method="hedge"
    ),
    "dpsgda": lambda d, b, k: _peers.dpsgda(SADDLE, d["game"], b, k, **FEW),
    "dp_sgd_l1": lambda d, b, k: _peers.dp_sgd_l1(d["regression"], b, k, **FEW),
    "noisy_statistics": lambda d, b, k: _peers.noisy_statistics(d["regression"], b, k, **LABELS),
}
LOOPED = ("noisy_mean_game", "dp_sgd_l1")  # one of each kind of program


def _instances(n):
    return {
        "game": _saddle_instances.core_padded(5, n, core="uneven"),
        "regression": _saddle_instances.l1_regression(6, n),
        "logistic": _saddle_instances.l1_logistic(6, n),
    }


def _quick(run):
    return jax.jit(run, compiler_options=QUICK)


@pytest.fixture(scope="module")
def small():
    return {name: jax.tree.map(jnp.asarray, i.data) for name, i in _instances(400).items()}


@pytest.fixture(scope="module")
def large():
    return _instances(20_000)


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_meets_its_budget_and_maps_over_keys(name, small):
    run = PEERS[name]

    def seeded(data, seed):
        return run(data, BUDGET, jax.random.key(seed))

    many = _quick(jax.vmap(seeded, (None, 0)))(small, jnp.arange(11, 13))
    assert many.guarantee.relation.name == "REPLACE_ONE"
    assert 0.99 < many.guarantee.epsilon(1e-6) <= 1.0
    for leaf in jax.tree.leaves(many.params):
        assert not np.allclose(leaf[0], leaf[1])
        assert np.max(np.sum(abs(np.asarray(leaf)), axis=1)) <= 1 + 1e-5  # all are unit balls
    if name not in LOOPED:
        return
    alone = _quick(seeded)(small, 12)
    assert alone.guarantee == many.guarantee
    for one, two in zip(jax.tree.leaves(alone.params), jax.tree.leaves(many.params), strict=True):
        np.testing.assert_allclose(one, two[1], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lp", "hedge"])
def test_without_noise_the_mean_game_is_solved(large, method):
    records = jnp.asarray(large["game"].data["A"])
    params, _ = _quick(
        lambda r: _peers.noisy_mean_game(r, LAVISH, jax.random.key(0), method=method)
    )(records)
    mean = np.mean(records, axis=0, dtype=float)
    assert float(matrix_game_gap(mean, *params)) < 0.01


def test_without_noise_descent_ascent_solves_the_game(large):
    options = {"steps": 300, "batch_size": 100.0, "noise_multiplier": 1e-2, "learning_rate": 0.1}
    params, _ = _quick(lambda d: _peers.dpsgda(SADDLE, d, LAVISH, jax.random.key(0), **options))(
        jax.tree.map(jnp.asarray, large["game"].data)
    )
    assert float(large["game"].gap(params)) < 0.05


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("dp_sgd_l1", "regression", {"noise_multiplier": 1e-2, "batch_size": 100.0, "steps": 300}),
        ("noisy_statistics", "regression", LABELS),
    ],
)
def test_without_noise_the_optimum_on_the_ball_is_found(large, name, kind, options):
    peer = getattr(_peers, name)
    params, _ = _quick(lambda d: peer(d, LAVISH, jax.random.key(0), **options))(
        jax.tree.map(jnp.asarray, large[kind].data)
    )
    assert float(large[kind].excess(params)) < 2e-3
    assert float(large[kind].excess(jnp.zeros(6))) > 0.05


def test_noise_of_the_mean_game_is_that_of_its_event(monkeypatch):
    monkeypatch.setattr(_peers, "solve_game_by_lp", lambda matrix: matrix)
    n, shape = 100_000, (200, 150)
    noisy, guarantee = _peers.noisy_mean_of(jnp.zeros(shape), n, BUDGET, jax.random.key(0))
    one_record = np.linalg.norm(np.ones(shape)) / n
    multiplier = float(jnp.std(noisy)) / one_record
    count_false_alarm(2e-9)  # six standard errors
    assert multiplier == pytest.approx(guarantee.event.noise_multiplier, rel=0.025)
    # replacing a record moves the mean by 2 one_record, a Gaussian of half the multiplier
    curve = dpjax.Guarantee(guarantee.event).epsilon(1e-6)
    assert 0.4 < curve / guarantee.epsilon(1e-6) < 0.55


def test_records_beyond_their_bounds_count_as_clipped(large):
    data = {k: jnp.asarray(v[:2000], float) for k, v in large["regression"].data.items()}
    wild = {"x": data["x"] * 100, "y": data["y"]}
    np.testing.assert_allclose(
        _peers.clipped_statistics(data, 1.1)[0], _peers.clipped_statistics(wild, 1.1)[0]
    )
    records = jnp.asarray(large["game"].data["A"][:500], float)
    solve = _quick(lambda r: _peers.noisy_mean_game(r, BUDGET, jax.random.key(3)).params[0])
    np.testing.assert_allclose(solve(records), solve(10 * records), atol=1e-6)


def test_statistics_of_one_record_stay_within_their_sensitivity(rng):
    p, label, noise = 5, 0.7, 3.0
    deviations = _peers.statistics_noise(p, 2.0, label, noise)
    of_one = jax.jit(lambda x, y: _peers.clipped_statistics({"x": x, "y": y}, label))

    def spent(x, y):
        pair = zip(of_one(jnp.asarray(x[None]), jnp.asarray(y[None])), deviations, strict=True)
        return np.hypot(*[np.linalg.norm(value) / deviation for value, deviation in pair])

    costs = [spent(2 * rng.normal(size=p), rng.normal(size=())) for _ in range(20)]
    assert max(costs) <= (1 + 1e-5) / noise
    assert spent(np.full(p, -1.0), np.full((), 9.0)) == pytest.approx(1 / noise, rel=1e-5)


def test_step_sizes_sweep_in_one_program(small):
    rates = jnp.asarray([0.01, 0.1])
    key = jax.random.key(5)

    def run(rate):
        return _peers.dp_sgd_l1(small["regression"], BUDGET, key, learning_rate=rate, **FEW)

    swept = _quick(jax.vmap(run))(rates)
    assert swept.guarantee.epsilon(1e-6) <= 1.0
    assert float(jnp.sum(abs(swept.params[0]))) < float(jnp.sum(abs(swept.params[1])))


def test_settings_are_chosen_by_the_criterion():
    settings, value, tried = _peers.best_over(
        lambda a, b: np.array([(a - 2) ** 2 + b, np.nan if a == 3 else b]),
        {"a": [1, 2, 3], "b": [0.5, 1.0]},
    )
    assert settings == {"a": 2, "b": 0.5}
    assert value == 0.5
    assert len(tried) == 6


def test_another_relation_is_refused():
    budget = dpjax.Budget(1.0, 1e-6, "add_or_remove_one")
    with pytest.raises(ValueError, match="relation must be replace_one"):
        _peers.noisy_mean_of(jnp.zeros((2, 2)), 10, budget, jax.random.key(0))


def test_diffprivlib_where_it_is_installed():
    pytest.importorskip("diffprivlib.models", exc_type=ImportError)
    instance = _saddle_instances.l1_logistic(6, 4000)
    params, guarantee = _peers.diffprivlib_logistic(instance.data, 100.0)
    assert guarantee.epsilon(0.0) == 100.0
    assert float(instance.excess(params)) < 0.02
