"""Thresholds by group: what they choose, what they cost, what one record moves."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax.problems import RateConstrained, demographic_parity
from dpjax.random import _integer_tables as integer_tables
from dpjax.solvers import GroupThresholds, TrainedModel
from dpjax.solvers.descent._group_thresholds import chosen_places

BUDGET = dpjax.Budget(1.0, 1e-5)


def problem(slack=0.05, groups=2):
    return RateConstrained.linear(1, 2, demographic_parity(groups, 2, slack=slack))


# the score is that of x
TRAINED = {"w": jnp.array([[0.0, 1.0]]), "b": jnp.zeros(2)}


def records(n=4000, groups=2):
    rng = np.random.default_rng(0)
    group = rng.integers(0, groups, n)
    x = rng.normal(size=n) + 1.0 * (group == 1)
    y = (rng.random(n) < 1 / (1 + np.exp(-x))).astype(int)
    return {"x": x[:, None].astype(np.float32), "y": y, "group": group}


@pytest.mark.parametrize("width", [0.0, 0.1, 0.3, 1.0])
def test_the_chosen_thresholds_make_the_fewest_errors_that_the_width_allows(width):
    rng = np.random.default_rng(1)
    histograms = rng.integers(0, 20, (40, 3, 2, 4)).astype(np.float32)
    got = np.asarray(jax.jit(jax.vmap(lambda h: chosen_places(h, width)))(jnp.asarray(histograms)))
    ahead = []
    for histogram, places in zip(histograms, got, strict=True):

        def correct_and_spread(at, histogram=histogram):
            sides = []
            for group, t in zip(histogram, at, strict=True):
                # how much of each bin lies above
                share = np.clip(np.arange(4) + 1 - t, 0, 1)
                above = group @ share
                sides.append((above[1] + group[0].sum() - above[0], above.sum() / group.sum()))
            correct, rates = np.array(sides).T
            return correct.sum(), rates.max() - rates.min()

        tried = [correct_and_spread(at) for at in itertools.product(np.arange(5), repeat=3)]
        most = max(correct for correct, spread in tried if spread <= width + 1e-6)
        correct, spread = correct_and_spread(places)
        assert correct >= most - 1e-3
        assert spread <= width + 1e-5
        ahead.append(correct - most)
    assert (np.max(ahead) > 1) == (width < 1)  # parts of bins are taken where they help


def test_no_threshold_on_a_finer_grid_is_better():
    rng = np.random.default_rng(2)
    for histogram in rng.integers(0, 20, (4, 2, 2, 4)).astype(np.float32):
        places = np.asarray(chosen_places(jnp.asarray(histogram), 0.05))
        at = np.linspace(0, 4, 201)
        share = np.clip(np.arange(4)[:, None] + 1 - np.r_[at, places], 0, 1)
        above = histogram @ share
        gain = above[:, 1] - above[:, 0]
        rates = above.sum(axis=1) / histogram.sum(axis=(1, 2))[:, None]
        both = gain[0][:, None] + gain[1]
        far = np.abs(rates[0][:, None] - rates[1]) > 0.05 + 1e-5
        best = np.where(far, -np.inf, both)
        assert best[201, 202] >= best.max() - 1e-3


def test_a_slack_of_nothing_does_not_mean_to_predict_nothing(key):
    data = records()
    solver = GroupThresholds(dpjax.sampling.FullBatch(1), 2.0, bins=16)
    model = dpjax.solve(solver, TrainedModel(problem(0.0), TRAINED), data, key=key).params
    predicted = np.asarray(solver.predict(problem(), model, data["x"], data["group"]))
    rates = [predicted[data["group"] == z].mean() for z in (0, 1)]
    assert min(rates) > 0.3
    assert abs(rates[0] - rates[1]) < 0.02
    assert (predicted != data["y"]).mean() < 0.36


def test_a_group_without_records_binds_no_other():
    histogram = np.zeros((3, 2, 8), np.float32)
    histogram[:2, 1, 4:], histogram[:2, 0, :4] = 50, 50
    places = np.asarray(chosen_places(jnp.asarray(histogram), 0.0))
    assert np.allclose(places[:2], 4, atol=1e-3)


@pytest.mark.slow
def test_without_noise_the_gap_on_the_records_is_within_the_slack(key):
    data, made = records(), problem(0.05)
    solver = GroupThresholds(dpjax.sampling.FullBatch(1), 0.0)
    model = dpjax.solve(solver, TrainedModel(made, TRAINED), data, key=key).params
    predicted = np.asarray(solver.predict(made, model, data["x"], data["group"]))
    rates = [predicted[data["group"] == z].mean() for z in (0, 1)]
    assert abs(rates[0] - rates[1]) <= 0.05 + 1e-6
    assert min(rates) > 0.3
    # one threshold for both is further off
    assert made.disparity(TRAINED, data) > 0.2
    assert (predicted != data["y"]).mean() < 0.35


def _rounded(deviation):
    """Probabilities of -40..40 under a rounded Gaussian."""
    edges = np.arange(-40.5, 41.5)
    return np.diff(stats.norm.cdf(edges / deviation))


@pytest.mark.always  # the claim
def test_the_release_of_neighbours_is_within_the_guarantee_exactly():
    """One count differs by 1; of integers with rounded noise all outcomes are enumerated."""
    data, made = records(50), TrainedModel(problem(), TRAINED)
    solver = GroupThresholds(dpjax.sampling.FullBatch(1), 1.0, bins=4)
    exact = dataclasses.replace(solver, histogram_noise=0.0)

    def counts(mask):
        state = exact.init(made, key=jax.random.key(0))
        return exact.step(made, data, mask, state)[0].histogram

    masks = ~np.eye(50, dtype=bool)
    everybody, *without = np.asarray(
        jax.jit(jax.vmap(counts))(np.r_[[masks[0] | ~masks[0]], masks])
    )
    assert everybody.sum() == 50
    for histogram in without:
        assert (everybody - histogram).sum() == np.abs(everybody - histogram).sum() == 1
    here = _rounded(1.0)
    there = np.roll(here, 1)
    for epsilon in (0.5, 1.0, 3.0):
        delta = np.maximum(here - np.exp(epsilon) * there, 0).sum()
        claimed = solver.guarantee().delta(epsilon)
        assert 0.5 * claimed < delta <= claimed


def test_the_sampler_is_charged_for_every_count_that_a_record_moves():
    """Under replace-one that is the cell that it leaves and the one that it enters."""
    one = integer_tables.shortfall(1.0, rounded=True)
    for relation, moved in (("add_or_remove_one", 1), ("replace_one", 2)):
        solver = GroupThresholds(dpjax.sampling.FullBatch(1), 1.0, relation=relation)
        assert 0.9 * moved * one < solver.guarantee().failure_probability < 1.1 * moved * one


@pytest.mark.always
def test_the_noise_of_the_counts_has_the_law_of_the_event(key):
    made, none = TrainedModel(problem(), TRAINED), jnp.zeros(4, bool)
    solver = GroupThresholds(dpjax.sampling.FullBatch(1), 1.0, bins=64)
    batch = records(4)

    def drawn(key):
        return solver.step(made, batch, none, solver.init(made, key=key))[0].histogram

    draws = np.asarray(jax.jit(jax.vmap(drawn))(jax.random.split(key, 400))).ravel()
    seen = np.array([(draws == k).mean() for k in range(-2, 3)])
    for deviation, right in ((1.0, True), (2 / 3, False), (1.5, False)):
        want = _rounded(deviation)[38:43]
        far = np.abs(seen - want) / np.sqrt(want * (1 - want) / draws.size)
        assert (far.max() < 6) == right


def test_histogram_and_training_meet_one_budget():
    made = problem()
    for relation in ("add_or_remove_one", "replace_one"):
        budget = dpjax.Budget(1.0, 1e-5, relation)
        solver = GroupThresholds.for_budget(made, 20_000, budget)
        training = solver.training(made, 20_000, budget, steps=100)
        both = dpjax.privacy.compose_guarantees(training.guarantee(), solver.guarantee())
        assert 0.99 < both.epsilon(1e-5) <= 1.0
        assert both.relation == training.guarantee().relation
        alone = GroupThresholds.for_budget(made, 20_000, budget, share=1.0)
        assert 0.99 < alone.guarantee().epsilon(1e-5) <= 1.0


def test_fewer_bins_where_noise_is_large():
    bins = [GroupThresholds.for_budget(problem(), n, BUDGET).bins for n in (50_000, 10_000, 1000)]
    assert bins == [64, 16, 8]


def test_other_constraints_are_refused():
    odds = RateConstrained.linear(1, 2, dpjax.problems.equality_of_odds(2, 2, slack=0.1))
    three = RateConstrained.linear(1, 3, demographic_parity(2, 3, slack=0.1))
    for other in (odds, three, RateConstrained.linear(1, 2)):
        with pytest.raises(ValueError, match="demographic_parity constraints of two classes"):
            GroupThresholds.for_budget(other, 1000, BUDGET)
    signed = RateConstrained.linear(1, 2, demographic_parity(2, 2, bounds={1: (0.1, 0.2)}))
    with pytest.raises(ValueError, match=r"slack must be >= 0, got -0\.1"):
        GroupThresholds.for_budget(signed, 1000, BUDGET)


def test_a_trained_model_is_planned_for_as_its_problem():
    plain = GroupThresholds.for_budget(problem(), 4000, BUDGET)
    assert GroupThresholds.for_budget(TrainedModel(problem(), TRAINED), 4000, BUDGET) == plain
    with pytest.raises(TypeError, match="problem must be RateConstrained, got LinearModel"):
        GroupThresholds.for_budget(dpjax.problems.LinearModel("logistic", 2), 4000, BUDGET)
