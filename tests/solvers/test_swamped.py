"""Runs whose noise swamps any signal are told of when they are planned, and sensible ones not."""

import warnings

import jax
import jax.numpy as jnp
import pytest

import dpjax
from dpjax.privacy import NoiseWarning
from dpjax.solvers import (
    DPFTRL,
    DPSGD,
    MWEM,
    AnytimeMirrorDescent,
    FrankWolfe,
    FrankWolfeRelease,
    GaussianFit,
    HistogramRelease,
    MirrorDescentRelease,
    MultilevelSaddle,
    ObjectivePerturbation,
    OnlineToBatch,
    OnlineToNonconvex,
    RateConstrainedSGDA,
    SaddleMirrorDescent,
    SaddleRelease,
)
from tests.entries import planned

WIDE = dpjax.problems.RateConstrained.linear(1000, 2)
FAIR = dpjax.problems.RateConstrained.linear(
    1000, 2, dpjax.problems.demographic_parity(2, 2, slack=0.05)
)
RISK = dpjax.problems.Risk(lambda w, record: (record["x"] @ w) ** 2, jnp.zeros(1000), radius=1.0)
QUERIES = dpjax.problems.QueryRelease(
    dpjax.queries.Marginals.all_kway(dpjax.queries.Domain({"a": 4, "b": 5}), 1)
)
SIMPLEX = dpjax.problems.SimplexRisk.linear(
    lambda margin, y: 0.5 * (margin - y) ** 2,
    dpjax.geometry.L1Ball(100),
    grad_range=4.0,
    smoothness=1.0,
)
GAME = dpjax.problems.Saddle.matrix_game((5, 5))
FEW = dpjax.Budget(0.05, 1e-5)
GRADIENTS = [
    (DPSGD, WIDE),
    (DPFTRL, WIDE),
    (RateConstrainedSGDA, FAIR),
    (OnlineToBatch, RISK),
    (OnlineToNonconvex, RISK),
]
ANSWERS = [
    GaussianFit,
    HistogramRelease,
    MWEM,
    FrankWolfeRelease,
    MirrorDescentRelease,
    SaddleRelease,
]
DRAWS = [(FrankWolfe, SIMPLEX), (SaddleMirrorDescent, GAME), (AnytimeMirrorDescent, SIMPLEX)]
DEFAULTS = [
    (AnytimeMirrorDescent, planned.ON_SIMPLEX),
    (MultilevelSaddle, planned.GAME),
    (OnlineToNonconvex, planned.RISK),
]


def told(kind, problem, num_records, budget, **options):
    """The warnings about noise, each shown where the user's code is."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind.for_budget(problem, num_records, budget, **options)
    assert all(issubclass(warning.category, NoiseWarning) for warning in caught)
    assert all(warning.filename == __file__ for warning in caught)
    # what the noise hides of rates is told beside it
    return [str(warning.message) for warning in caught if warning.category is NoiseWarning]


@pytest.mark.parametrize(("kind", "problem"), GRADIENTS)
def test_a_mean_gradient_of_noise_alone_is_told_of_once(kind, problem):
    options = {} if kind is OnlineToBatch else {"steps": 20}
    (message,) = told(kind, problem, 300, FEW, **options)
    assert "times as long as that mean can be" in message
    assert "num_records = 300" in message
    assert (
        told(kind, problem, 30_000, FEW, **options) == []
    )  # the same with a hundred times the records


@pytest.mark.parametrize("link", ["logistic", "huber"])
def test_a_minimiser_of_noise_alone_is_told_of(link):
    problem = dpjax.problems.LinearModel(link, 30, intercept=1.0)
    (message,) = told(ObjectivePerturbation, problem, 400, dpjax.Budget(0.3, 1e-5))
    assert "31 parameters and num_records = 400" in message
    assert told(ObjectivePerturbation, problem, 4_000, dpjax.Budget(0.3, 1e-5)) == []


def test_the_ratio_is_noise_over_the_root_of_steps():
    def ratio(**options):
        (message,) = told(DPSGD, WIDE, 300, FEW, noise_multiplier=600.0, **options)
        return float(message.split(" times as long")[0].split()[-1])

    exact = 600 * 2002**0.5 / (256 * 16**0.5)
    assert ratio(steps=16, batch_size=256.0) == pytest.approx(exact, rel=0.05)
    assert ratio(steps=4, batch_size=256.0) == pytest.approx(2 * exact, rel=0.05)
    assert ratio(steps=4, batch_size=128.0) == pytest.approx(4 * exact, rel=0.05)


def test_it_is_the_data_and_not_the_normaliser_that_bounds_the_signal():
    sampler = dpjax.sampling.FullBatch(4)
    solver = DPSGD(sampler, 1.0, 1.0, 1.0, 1.0, relation="replace_one")  # sums, not means
    assert dpjax.solvers._request.checked_gradients(solver, WIDE, 10_000) is solver


@pytest.mark.parametrize("kind", ANSWERS)
def test_answers_of_noise_alone_are_told_of(kind):
    (message,) = told(kind, QUERIES, 5, FEW)
    assert "answers range over 1" in message
    assert told(kind, QUERIES, 30_000, FEW) == []


@pytest.mark.parametrize(("kind", "problem"), DRAWS)
def test_uniform_draws_are_told_of(kind, problem):
    (message,) = told(kind, problem, 5, FEW)
    assert "the logits of a draw range over at most" in message
    assert told(kind, problem, 30_000, FEW) == []


@pytest.mark.parametrize("rule", [False, True])
def test_payoffs_of_noise_alone_are_told_of_once(rule):
    class Rule:
        for_budget = staticmethod(dpjax.solvers.solver_for_game)

    kind = Rule if rule else dpjax.solvers.NestedGame
    (message,) = told(kind, GAME, 60, FEW)
    assert "the noise in each payoff, all measured at once, is" in message
    assert told(kind, GAME, 3_000, FEW) == []


def test_steps_that_move_no_draw_are_told_of():
    def loss(x, y, record):
        return x @ record["A"] @ y

    # steps shrink with the third derivative; with too few records there is no plan at all
    bent = dpjax.problems.Saddle(loss, (5, 5), grad_range=2.0, third_order=30.0)
    (message,) = told(MultilevelSaddle, bent, 300, dpjax.Budget(1.0, 1e-5))
    assert "the logits of a draw range over at most" in message
    assert told(MultilevelSaddle, bent, 100_000, dpjax.Budget(1.0, 1e-6)) == []


@pytest.mark.parametrize(
    ("options", "batch", "periods"),
    [({}, 256, 16), ({"passes": "single"}, 18, 16), ({"period": 4}, 300, 4)],
)
def test_the_noise_of_periods_is_independent(options, batch, periods):
    (message,) = told(OnlineToNonconvex, RISK, 300, FEW, noise_multiplier=1e3, steps=16, **options)
    exact = 1e3 * 1000**0.5 / (batch * periods**0.5)
    assert float(message.split(" times as long")[0].split()[-1]) == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(("kind", "problem"), DEFAULTS)
def test_registered_defaults_are_not(kind, problem):
    assert told(kind, problem, 1000, dpjax.Budget(1.0, 1e-5)) == []


def test_sensible_settings_are_not():
    adult = dpjax.problems.RateConstrained.linear(
        100, 2, dpjax.problems.demographic_parity(2, 2, slack=0.05)
    )
    small = dpjax.problems.RateConstrained.linear(5, 2)
    for kind in (RateConstrainedSGDA, DPFTRL):
        assert told(kind, adult, 36_000, dpjax.Budget(0.5, 1e-6), steps=20) == []
        assert told(kind, small, 200, dpjax.Budget(1.0, 1e-5), steps=20) == []
    assert told(GaussianFit, QUERIES, 1000, dpjax.Budget(0.5, 1e-6)) == []


@pytest.mark.parametrize("noise", [0.0, jnp.array([50.0, 500.0])])
def test_no_noise_and_stacks_of_it_are_passed_over(noise):
    assert told(DPSGD, WIDE, 300, FEW, noise_multiplier=noise, learning_rate=1.0) == []


@pytest.mark.slow
def test_release_tells_of_it_once():
    with pytest.warns(NoiseWarning, match="the noise in each answer is at least") as caught:
        dpjax.release(
            QUERIES.workload,
            jnp.zeros((10, 2), jnp.int32),
            FEW,
            key=jax.random.key(0),
        )
    assert len(caught) == 1
