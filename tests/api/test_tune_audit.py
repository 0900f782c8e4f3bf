"""What `dpjax.tune` runs against what it claims: noise, draws, parts, and an audit."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.api import _tune
from dpjax.api._tune_scores import Scores, levels_of
from dpjax.audit import lower_bound_of_scores

RELATION = "add_or_remove_one"
MEAN = dpjax.problems.Risk(lambda w, r: -jnp.sum(w * r["x"]), jnp.zeros(1))
ABSENT = {"x": np.float32([[math.nan]] + [[0.0]] * 7)}  # a record without a finite gradient
PRESENT = {"x": np.eye(8, 1, dtype=np.float32)}


def first_weight(params):
    return params[0]


@pytest.fixture(scope="module")
def plan():
    """One step on all records, clipped to 1: a sum with noise; a larger one scores higher."""
    seen, release = [], _tune._Plan.release
    try:
        _tune._Plan.release = lambda self, *rest: seen.append(self)
        dpjax.tune(
            {"learning_rate": [1.0], "clip_norm": [1.0], "batch_size": [8.0]}
            | {"average": ["last"], "sampler": [dpjax.sampling.FullBatch(1)]},
            dpjax.solvers.DPSGD,
            MEAN,
            PRESENT,
            dpjax.Budget(4.8, 1e-5, RELATION),
            key=jax.random.key(0),
            num_records=8,
            trials=1.5,
            score=first_weight,
        )
    finally:
        _tune._Plan.release = release
    return seen[0]


def with_noise(plan, factor):
    """The same claim, and other noise in what runs."""
    solvers = [
        dataclasses.replace(one, noise_multiplier=factor * one.noise_multiplier)
        for one in plan.solvers
    ]
    return dataclasses.replace(plan, solvers=solvers)


def noise_that_runs(plan):
    """Deviation of a sum of one step, over the clip norm."""
    stacked = jax.tree.map(lambda leaf: jnp.full((4000,), leaf, float), plan.solvers[0])
    keys = jax.random.split(jax.random.key(1), 4000)
    rows = dpjax.Records({"x": np.pad(ABSENT["x"], ((0, 24), (0, 0)))}, 8)
    (params, _), _ = plan._compiled(stacked, keys, rows, None)
    return float(np.std(np.asarray(params))) * 8


def test_training_has_the_noise_that_is_accounted(plan):
    (base,) = plan.guarantee.bases
    declared = base.event.event.noise_multiplier
    assert 0.95 < noise_that_runs(plan) / declared < 1.05
    for factor in (0.5, 2 / 3, 1.5):
        assert not 0.95 < noise_that_runs(with_noise(plan, factor)) / declared < 1.05


@pytest.mark.parametrize("grades", [False, True])
@pytest.mark.always  # the claim
def test_scores_have_the_noise_that_is_accounted(grades):
    def correct(params, records):
        x = records["x"][:, 0] * params[0]
        return jnp.full_like(x, 0.5) if grades else x > 0

    size, noise = 50.0, 8.0
    scores = Scores(MEAN, correct, size, 0.0, 1, RELATION, levels_of(correct, MEAN, ABSENT, 8))
    keys = jax.random.split(jax.random.key(0), 400)
    found = jax.vmap(lambda key: scores(jnp.zeros((1, 1)), ABSENT, noise, key)[1])(keys)
    assert 0.8 < np.std(np.asarray(found)) * 2 * size / noise < 1.25
    assert scores.guarantee(noise).event.noise_multiplier == noise


def winners(plan, data, runs, seed):
    keys = jax.random.split(jax.random.key(seed), (runs, 4))
    found = [plan.release(data, 0.0, True, one) for one in keys]
    return np.array([float(one.params[0]) for one in found])


@pytest.mark.slow  # two thousand selections
def test_an_audit_stays_below_the_claim_and_finds_half_the_noise(plan):
    def scores(plan):
        return [winners(plan, data, 500, seed) for seed, data in enumerate((PRESENT, ABSENT))]

    right, half = scores(plan), scores(with_noise(plan, 0.5))
    for delta in (0.05, 0.3):
        assert lower_bound_of_scores(*right, delta=delta) < plan.guarantee.epsilon(delta)
    assert lower_bound_of_scores(*right, delta=0.05) > 0.15 * plan.guarantee.epsilon(0.05)
    assert lower_bound_of_scores(*half, delta=0.3) > plan.guarantee.epsilon(0.3)


class Stop(Exception):
    pass


def handed_over(monkeypatch, **options):
    """What the runs get: solvers, draws, how many count, and records."""
    seen = []

    def stop(*arguments):
        seen.append(arguments)
        raise Stop

    monkeypatch.setattr(_tune, "_best", stop)
    monkeypatch.setattr(_tune, "calibrate_selection", lambda *_: 40.0)
    with pytest.raises(Stop):
        dpjax.tune(
            {"learning_rate": [0.1, 1.0], "steps": [10]},
            dpjax.solvers.DPSGD,
            dpjax.problems.RateConstrained.linear(num_features=1, num_classes=2),
            {"x": jnp.arange(200.0)[:, None], "y": jnp.zeros(200, int)},
            dpjax.Budget(1.0, 1e-5, options.pop("relation", RELATION)),
            num_records=200,
            trials=4,
            **options,
        )
    return seen[0]


@pytest.mark.parametrize("relation", [RELATION, "replace_one"])
def test_records_that_score_do_not_train(monkeypatch, relation):
    handed = handed_over(monkeypatch, key=jax.random.key(0), relation=relation)
    train, held = handed[5]
    trained = train.arrays["x"][: train.num_records]
    train, held = ({int(x) for x in np.ravel(part)} for part in (trained, held["x"]))
    assert not train & held
    assert train | held == set(range(200))
    assert 15 < len(held) < 70


def test_scores_on_the_training_records_see_them_all(monkeypatch):
    train, held = handed_over(monkeypatch, key=jax.random.key(0), validation=0)[5]
    assert train.num_records == 200
    assert train.arrays["x"][:200].shape == held["x"].shape == (200, 1)


def test_the_number_of_runs_that_count_is_drawn_by_its_law(monkeypatch):
    law, keys = dpjax.privacy.RunsLaw(4.0, 1.0, max_runs=16), range(6)
    counted = {handed_over(monkeypatch, key=jax.random.key(seed))[2] for seed in keys}
    assert len(counted) > 2
    drawn = [_tune._draw_runs(law, key) for key in jax.random.split(jax.random.key(0), 1000)]
    seen = np.bincount(drawn, minlength=17)[1:]
    expected = 1000 * law.pmf(np.arange(1, 17))
    assert np.sum((seen - expected) ** 2 / expected) < 60  # 15 degrees of freedom
