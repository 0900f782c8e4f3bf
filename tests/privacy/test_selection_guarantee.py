"""The guarantee object: bases, failures, calibration, composition and the ledger."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from dp_accounting.pld import privacy_loss_distribution as pld_lib

from dpjax.privacy import (
    Budget,
    BudgetExceeded,
    Guarantee,
    Ledger,
    RunsLaw,
    SelectionGuarantee,
    UnsupportedEventError,
    calibrate_selection,
    compose_guarantees,
)
from dpjax.privacy.accounting._joint import Atoms
from dpjax.privacy.selection._guarantee import _divergence, _zcdp
from tests.privacy.selection_brute import generating

CUT = RunsLaw(16.0, 1.0, max_runs=64)
ONE_NOISE = 3.73063  # of one Gaussian at (1, 1e-5)


def gaussian(noise, relation="add_or_remove_one", failure=0.0):
    return Guarantee(dpe.GaussianDpEvent(noise), relation, failure)


@pytest.mark.parametrize(
    ("mean", "shape", "multiple"),
    [(4, 0, 1.309), (8, -0.5, 1.368), (16, 0, 1.560), (32, 1, 1.871), (64, -0.5, 1.635)],
)
def test_golden_multiples_of_noise(mean, shape, multiple):
    noise = calibrate_selection(gaussian, RunsLaw(mean, shape), Budget(1.0, 1e-5))
    assert abs(noise / ONE_NOISE - multiple) < 1.1e-3


def test_calibration_meets_the_budget_with_failures_and_just_so():
    def base(noise):
        return gaussian(noise, failure=1e-8)

    budget = Budget(0.5, 1e-6)  # a dozen curves: seconds
    noise = calibrate_selection(base, CUT, budget)
    assert SelectionGuarantee((base(noise),), CUT).epsilon(1e-6) <= 0.5
    assert SelectionGuarantee((base(0.998 * noise),), CUT).epsilon(1e-6) > 0.5


def test_one_run_costs_what_it_costs():
    single = SelectionGuarantee((gaussian(3.0),), RunsLaw(1.0, 1.0, max_runs=4))
    assert abs(single.epsilon(1e-5) - gaussian(3.0).epsilon(1e-5)) < 1e-4


def test_failures_count_once_a_run_that_counts():
    exact, failing = (SelectionGuarantee((gaussian(5.0, failure=p),), CUT) for p in (0.0, 1e-7))
    extra = failing.delta(1.0) - exact.delta(1.0)
    assert math.isclose(extra, 16 * 1e-7 * (1 + math.e), rel_tol=1e-6)
    assert failing.failure_probability >= 16 * 1e-7


def test_failures_count_for_the_records_that_they_concern():
    strong, weak = gaussian(9.0, failure=1e-7), gaussian(4.0)
    assert SelectionGuarantee((strong, weak), CUT).delta(0.5) == max(
        SelectionGuarantee((each,), CUT).delta(0.5) for each in (strong, weak)
    )


def test_replace_one_doubles_the_shift():
    once = SelectionGuarantee((gaussian(4.0),), CUT)
    twice = SelectionGuarantee((gaussian(8.0, "replace_one"),), CUT)
    assert once.delta(1.0) == twice.delta(1.0)
    assert twice.relation.name == "REPLACE_ONE"


def test_parts_of_the_records_cost_the_worse():
    low, high = gaussian(9.0), gaussian(4.0)
    both = SelectionGuarantee((low, high), CUT)
    assert both.epsilon(1e-5) == SelectionGuarantee((high,), CUT).epsilon(1e-5)


def test_candidates_of_other_events_cost_at_least_each():
    few = Guarantee(dpe.SelfComposedDpEvent(dpe.LaplaceDpEvent(12.0), 4), failure_probability=1e-9)
    one = gaussian(4.0)
    both = SelectionGuarantee(((few, one),), CUT)
    alone = [SelectionGuarantee((each,), CUT) for each in (few, one)]
    assert both.epsilon(1e-5) >= max(each.epsilon(1e-5) for each in alone) - 1e-6
    assert both.epsilon(1e-5) < 1.1 * max(each.epsilon(1e-5) for each in alone)
    assert both.delta(9.0) >= 16 * 1e-9
    assert both != alone[0]
    assert " or " in repr(both)
    assert SelectionGuarantee(((one, one),), CUT).epsilon(1e-5) == alone[1].epsilon(1e-5)
    with pytest.raises(UnsupportedEventError, match="loss distribution"):
        SelectionGuarantee(((one, Guarantee(dpe.ZCDpEvent(0.1))),), CUT)
    with pytest.raises(ValueError, match="one relation"):
        SelectionGuarantee(((one, gaussian(4.0, "replace_one")),), CUT)


def test_sampled_steps_cost_both_directions():
    event = dpe.SelfComposedDpEvent(dpe.PoissonSampledDpEvent(0.1, dpe.GaussianDpEvent(3.0)), 50)
    one = Guarantee(event)
    best = SelectionGuarantee((one,), CUT)
    assert len(best._losses) == 2
    assert one.epsilon(1e-5) < best.epsilon(1e-5) < 3 * one.epsilon(1e-5)


def test_the_event_never_claims_less_than_the_theorem():
    best = SelectionGuarantee((gaussian(5.0),), CUT)
    price = Guarantee(best.event, best.relation, best.failure_probability)
    for delta in (1e-4, 1e-6, 1e-8):
        assert best.epsilon(delta) <= price.epsilon(delta) <= 1.6 * best.epsilon(delta)


def test_the_line_lies_above_the_divergences():
    pld = pld_lib.from_laplace_mechanism(1.0, value_discretization_interval=0.01)
    dense = pld._pmf_remove.to_dense_pmf()
    mass = np.maximum(dense._probs, 1e-30)
    losses = Atoms((dense._lower_loss + np.arange(mass.size)) * 0.01, mass / mass.sum(), 0.0)
    event, rest = _zcdp([losses])
    assert rest < 2e-12
    for order in (1.001, 1.3, 2.0, 7.7, 40.0, 1e4):
        assert _divergence(losses, order) <= min(event.xi + event.rho * order, event.epsilon)
    assert event.epsilon <= 1.02


def test_the_ledger_takes_it_and_reads_it_back(tmp_path):
    best = SelectionGuarantee((gaussian(10.0),), CUT)
    with Ledger(tmp_path / "ledger.json", Budget(2.0, 1e-5)) as ledger:
        ledger.spend(best, label="tuned")
    again = Ledger(tmp_path / "ledger.json")
    assert again.entries[0].guarantee == Guarantee(
        best.event, best.relation, best.failure_probability
    )
    with Ledger(Budget(0.01, 1e-5)) as ledger, pytest.raises(BudgetExceeded):
        ledger.spend(best)


def test_composes_with_other_guarantees():
    best, other = SelectionGuarantee((gaussian(8.0),), CUT), gaussian(8.0)
    joint = compose_guarantees(best, other)
    assert joint.epsilon(1e-5) > best.epsilon(1e-5)


def test_equal_by_value():
    first, second = (SelectionGuarantee((gaussian(8.0),), CUT) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != SelectionGuarantee((gaussian(8.1),), CUT)
    assert "max_runs=64" in repr(first)


def test_refusals():
    with pytest.raises(UnsupportedEventError, match="not private"):
        SelectionGuarantee((Guarantee(dpe.NonPrivateDpEvent()),), CUT)
    with pytest.raises(UnsupportedEventError, match="loss distribution"):
        SelectionGuarantee((Guarantee(dpe.ZCDpEvent(0.1)),), CUT)
    with pytest.raises(ValueError, match="one relation"):
        SelectionGuarantee((gaussian(3.0), gaussian(3.0, "replace_one")), CUT)
    with pytest.raises(ValueError, match="delta"):
        SelectionGuarantee((gaussian(3.0),), CUT).epsilon(0.0)
    with pytest.raises(ValueError, match="delta"):
        calibrate_selection(gaussian, CUT, Budget(1.0, 0.0))
    with pytest.raises(ValueError, match="no noise"):
        calibrate_selection(lambda z: gaussian(z, failure=1e-5), CUT, Budget(1.0, 1e-6))


@pytest.mark.parametrize("runs", [RunsLaw(16.0), RunsLaw(5.0, 2.0, max_runs=12)])
def test_no_scores_of_randomised_responses_exceed_the_claim_ties_included(runs):
    """Every order of three answers by score, and answers of one score, drawn among at random."""
    one = Guarantee(dpe.RandomizedResponseDpEvent(0.3, 3), "replace_one")
    best = SelectionGuarantee((one,), runs)
    event = Guarantee(best.event, best.relation, best.failure_probability)
    answers = np.full((2, 3), 0.1) + 0.7 * np.eye(2, 3)
    for ranks in itertools.product(range(3), repeat=3):
        of_rank = np.array([answers[:, np.array(ranks) == r].sum(axis=1) for r in range(3)])
        below = np.minimum(np.cumsum(np.vstack([np.zeros(2), of_rank]), axis=0), 1.0)
        wins = np.diff(generating(runs, below), axis=0)
        p, q = np.array([wins[r] * answers[:, i] / of_rank[r] for i, r in enumerate(ranks)]).T
        for epsilon in (0.0, 0.5, 2.0, 4.0):
            for first, second in ((p, q), (q, p)):
                exact = np.maximum(first - np.exp(epsilon) * second, 0).sum()
                assert exact <= best.delta(epsilon) * (1 + 1e-9) + 1e-14
                assert exact <= event.delta(epsilon) * (1 + 1e-9) + 1e-14
