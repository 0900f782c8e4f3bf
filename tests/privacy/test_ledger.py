"""The ledger in memory: what fits, what is refused, and what it says."""

import math
import pickle
import threading

import numpy as np
import pytest
from dp_accounting import dp_event as dpe

import dpjax
from dpjax.privacy import (
    Budget,
    BudgetExceeded,
    Guarantee,
    Ledger,
    calibrate_gaussian,
    max_steps,
)

BUDGET = Budget(1.0, 1e-5)
QUERY = Guarantee(dpe.GaussianDpEvent(10.0))


def _spend_all(ledger, guarantee, **where):
    while ledger.fits(guarantee, **where):
        ledger.spend(guarantee, **where)
    return len(ledger.entries)


def _most_by_hand(divergence_per_order, budget):
    """The largest number of equal spends, over a fine grid of orders; 1/16 of delta is kept."""
    order = 1 + np.logspace(-2, 5, 100_000)
    rest = budget.delta * (1 - 1 / 16) * (1 - 1e-6)
    allowed = budget.epsilon - np.log1p(-1 / order) + np.log(rest * order) / (order - 1)
    return int(np.max(np.floor(allowed / (order * divergence_per_order))))


@pytest.mark.parametrize(
    ("event", "relation", "rho"),
    [
        (dpe.GaussianDpEvent(10.0), "add_or_remove_one", 1 / 200),
        (dpe.GaussianDpEvent(20.0), "replace_one", 1 / 200),  # twice the sensitivity
        (dpe.ZCDpEvent(0.002), "replace_one", 0.002),
    ],
)
def test_as_many_fit_as_by_hand(event, relation, rho):
    ledger = Ledger(BUDGET)
    count = _spend_all(ledger, Guarantee(event, relation))
    assert count == _most_by_hand(rho, BUDGET) >= 5
    exact = max_steps(
        lambda n: dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(1 / math.sqrt(2 * rho)), n), BUDGET
    )
    assert 0.8 * exact <= count <= exact


def test_guarantees_fixed_in_advance_are_composed_exactly():
    ledger = Ledger(BUDGET, adaptive=False)
    exact = max_steps(lambda n: dpe.SelfComposedDpEvent(QUERY.event, n), BUDGET)
    assert _spend_all(ledger, QUERY) == exact
    assert ledger.spent() <= 1.0


def test_a_run_for_the_whole_budget_fits_and_nothing_after_it():
    noise = calibrate_gaussian(1.0, 100, BUDGET)
    ledger = dpjax.Ledger(BUDGET)
    ledger.spend(Guarantee(dpe.SelfComposedDpEvent(dpe.GaussianDpEvent(noise), 100)))
    assert 0.99 < ledger.spent() <= 1.0
    assert not ledger.fits(Guarantee(dpe.ZCDpEvent(1e-9)))
    assert ledger.fits(Guarantee(dpe.NoOpDpEvent()))  # looks at no data
    ledger.spend(Guarantee(dpe.NoOpDpEvent()), label="a constant")
    assert not ledger.fits(Guarantee(dpe.ZCDpEvent(1e-9)))


def test_what_looks_at_no_data_does_not_fix_the_order():
    ledger = Ledger(BUDGET)
    ledger.spend(Guarantee(dpe.NoOpDpEvent()))
    assert _spend_all(ledger, QUERY) == 1 + _most_by_hand(1 / 200, BUDGET)


def test_a_refusal_says_what_and_records_nothing():
    ledger = Ledger(BUDGET)
    ledger.spend(QUERY)
    before = ledger.entries
    with pytest.raises(
        dpjax.BudgetExceeded, match=r"epsilon=.* at delta=1e-05.* 1\.0; spent"
    ) as no:
        ledger.spend(Guarantee(dpe.GaussianDpEvent(1.0)))
    assert ledger.entries == before
    error = no.value
    assert error.epsilon > 1.0 > error.spent > 0
    assert error.delta == 1e-5
    assert error.budget.epsilon == 1.0
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.epsilon) == (str(error), error.epsilon)
    with pytest.raises(BudgetExceeded, match="epsilon=inf"):
        ledger.spend(Guarantee(dpe.NonPrivateDpEvent()))
    ledger.spend(QUERY)  # a refusal changes nothing


def test_guarantees_given_together_are_one_entry_with_an_exact_curve():
    noise = 3.7307  # just meets (1, 1e-5): calibrate_noise's example
    halves = [Guarantee(dpe.GaussianDpEvent(noise * math.sqrt(2)))] * 2
    one_by_one = Ledger(BUDGET)
    one_by_one.spend(halves[0])
    assert not one_by_one.fits(halves[1])
    together = Ledger(BUDGET)
    together.spend(*halves)
    assert len(together.entries) == 1


def test_relations_do_not_mix():
    ledger = Ledger(BUDGET)
    assert ledger.budget.relation is None
    ledger.spend(QUERY)
    assert ledger.budget.relation.name == "ADD_OR_REMOVE_ONE"
    other = Guarantee(dpe.GaussianDpEvent(100.0), "replace_one")
    with pytest.raises(ValueError, match=r"add_or_remove_one, got one under replace_one: make the"):
        ledger.spend(other)
    with pytest.raises(ValueError, match="replace_one"):
        ledger.fits(other)
    strict = Ledger(Budget(1.0, 1e-5, "replace_one"))
    with pytest.raises(ValueError, match="replace_one, got one under add_or_remove_one"):
        strict.spend(QUERY)


def test_parts_pay_for_themselves_and_for_what_concerns_all():
    ledger = Ledger(BUDGET)
    for part in ("east", "west"):
        _spend_all(ledger, QUERY, part=part)
    each = len([entry for entry in ledger.entries if entry.part == "east"])
    assert each == _most_by_hand(1 / 200, BUDGET) == len(ledger.entries) / 2
    assert ledger.spent("east") == ledger.spent()
    with pytest.raises(BudgetExceeded, match="part 'east'"):
        ledger.spend(QUERY)  # concerns all records, and two parts have nothing left
    assert ledger.fits(QUERY, part="north")

    shared = Ledger(BUDGET)
    shared.spend(QUERY)
    shared.spend(QUERY, part="east")
    twice = Guarantee(dpe.SelfComposedDpEvent(QUERY.event, 2)).epsilon(1e-5)
    assert shared.spent("east") == shared.spent() == pytest.approx(twice, rel=1e-6)
    assert shared.spent("elsewhere") == pytest.approx(QUERY.epsilon(1e-5), rel=1e-6)
    assert shared.odometer("elsewhere") < shared.odometer("east") == shared.odometer()


def test_a_resumed_run_is_charged_once():
    ledger = Ledger(BUDGET)
    first = ledger.spend(QUERY, run="train", part="east")
    assert ledger.spend(Guarantee(dpe.GaussianDpEvent(10.0)), run="train", part="east") == first
    assert len(ledger.entries) == 1
    with pytest.raises(ValueError, match="a new run needs a new name"):
        ledger.spend(Guarantee(dpe.GaussianDpEvent(11.0)), run="train", part="east")
    with pytest.raises(ValueError, match="a new run needs a new name"):
        ledger.spend(QUERY, run="train", part="west")
    with pytest.raises(ValueError, match="a new run needs a new name"):
        ledger.spend(QUERY, run="train")
    ledger.spend(QUERY, part="east")  # without a name: again
    assert len(ledger.entries) == 2


def test_failures_have_their_own_share_of_delta():
    # 1/16 of delta for failures, at (1 + e) each, where the first spend declares none
    unsafe = Guarantee(dpe.GaussianDpEvent(100.0), failure_probability=1e-8)
    most = math.floor(1e-5 / 16 / (1 + math.e) / 1e-8)
    ledger = Ledger(BUDGET)
    ledger.spend(Guarantee(dpe.GaussianDpEvent(100.0)))
    assert _spend_all(ledger, unsafe) == most + 1
    assert ledger.fits(QUERY)  # divergence is left
    with pytest.raises(BudgetExceeded, match="epsilon=inf"):
        ledger.spend(unsafe)
    # where the first one declares some, the share is chosen for it
    assert _spend_all(Ledger(BUDGET), unsafe) > 2 * most


def test_largest_finds_what_is_left():
    ledger = Ledger(BUDGET)
    ledger.spend(QUERY)

    def make(count):
        return Guarantee(dpe.SelfComposedDpEvent(QUERY.event, count))

    most = _most_by_hand(1 / 200, BUDGET) - 1
    assert ledger.largest(make, 1, 50) == most
    assert ledger.largest(make, 1, 2) == 2
    noise = ledger.largest(lambda x: Guarantee(dpe.GaussianDpEvent(1 / x)), 0.01, 5.0)
    left = _most_by_hand(1 / 200_000, BUDGET) / 200_000 - 1 / 200
    assert noise**2 / 2 == pytest.approx(left, rel=0.01)
    ledger.spend(make(most))
    with pytest.raises(BudgetExceeded):
        ledger.largest(make, 1, 50)
    with pytest.raises(ValueError, match="low must be"):
        ledger.largest(make, 3, 2)


def test_views_describe_and_change_nothing():
    ledger = Ledger(BUDGET)
    assert ledger.spent() == ledger.odometer() == 0.0
    assert ledger.entries == ()
    ledger.spend(QUERY, label="ages", run="r1", part="east")
    entry = ledger.entries[0]
    assert (entry.label, entry.run, entry.part, entry.guarantee) == ("ages", "r1", "east", QUERY)
    assert entry.time.endswith("+00:00")
    assert ledger.spent() == QUERY.epsilon(1e-5)
    assert ledger.spent() < ledger.odometer() < 1.0
    assert ledger.spent(group=2) == Guarantee(dpe.GaussianDpEvent(5.0)).epsilon(1e-5)
    assert "ages" in ledger.table()
    assert "run 'r1'" in ledger.table()
    assert "1 entries" in repr(ledger)
    assert ledger.adaptive
    assert len(ledger.entries) == 1


def test_a_closed_ledger_does_not_spend():
    with Ledger(BUDGET) as ledger:
        ledger.spend(QUERY)
    assert len(ledger.entries) == 1
    with pytest.raises(ValueError, match="closed"):
        ledger.spend(QUERY)


def test_wrong_arguments_are_named():
    ledger = Ledger(BUDGET)
    with pytest.raises(TypeError, match=r"must be a dpjax\.Guarantee, got GaussianDpEvent"):
        ledger.spend(dpe.GaussianDpEvent(1.0))
    with pytest.raises(ValueError, match="at least 1"):
        ledger.spend()
    with pytest.raises(TypeError, match="part must be a string"):
        ledger.spend(QUERY, part=3)
    with pytest.raises(ValueError, match="None or a name"):
        ledger.spend(QUERY, run="")
    with pytest.raises(TypeError, match="two budgets"):
        Ledger(BUDGET, BUDGET)


@pytest.mark.parametrize("where", ["memory", "file"])
def test_threads_share_one_ledger(where, tmp_path):
    on_file = where == "file"
    ledger = Ledger(tmp_path / "ledger.json", BUDGET) if on_file else Ledger(BUDGET)
    admitted = []

    def work():
        while True:
            try:
                admitted.append(ledger.spend(QUERY))
            except BudgetExceeded:
                return
            ledger.spent()  # a view, which reads without the lock

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == len(ledger.entries) == _most_by_hand(1 / 200, BUDGET)
