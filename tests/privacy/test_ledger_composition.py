"""Whatever is spent in whatever order, its exact composition is within the budget."""

import math

from dp_accounting import dp_event as dpe
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.privacy import Budget, Guarantee, Ledger, compose_guarantees

BUDGET = Budget(1.5, 1e-5)


def _sampled(rate, noise, count):
    step = dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(noise))
    return dpe.SelfComposedDpEvent(step, count)


EVENTS = st.one_of(
    st.builds(dpe.GaussianDpEvent, st.sampled_from([4.0, 9.0])),
    st.builds(dpe.LaplaceDpEvent, st.sampled_from([5.0, 20.0])),
    st.builds(dpe.ZCDpEvent, st.sampled_from([2e-3, 0.02])),
    st.builds(_sampled, st.just(0.05), st.just(1.2), st.sampled_from([10, 60])),
)
FAILURES = st.sampled_from([0.0, 0.0, 3e-8])


def _realised(event):
    """zCDP as the Gaussian that attains it, whose curve is exact."""
    if isinstance(event, dpe.ZCDpEvent):
        return dpe.GaussianDpEvent(1 / math.sqrt(2 * event.rho))
    return event


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(EVENTS, FAILURES), min_size=4, max_size=16))
def test_nothing_past_the_budget_is_admitted(spends):
    ledger = Ledger(BUDGET)
    refused = 0
    for event, failure in spends:
        guarantee = Guarantee(event, failure_probability=failure)
        if ledger.fits(guarantee):
            ledger.spend(guarantee)
        else:
            refused += 1
    held = [entry.guarantee for entry in ledger.entries]
    exact = compose_guarantees(
        *(Guarantee(_realised(g.event), g.relation, g.failure_probability) for g in held)
    )
    assert exact.epsilon(BUDGET.delta) <= BUDGET.epsilon
    assert len(held) + refused == len(spends)
    # nor does the odometer claim less than the exact curve of the path
    assert ledger.odometer() >= exact.epsilon(BUDGET.delta)


def test_a_ledger_composes_what_no_accountant_takes_together():
    joint = dpe.ComposedDpEvent([dpe.LaplaceDpEvent(20.0), dpe.GaussianDpEvent(20.0)])
    batch = Guarantee(dpe.PoissonSampledDpEvent(0.1, joint))  # has a PLD only
    draw = Guarantee(dpe.ZCDpEvent(0.001))  # has Rényi divergences only
    ledger = Ledger(BUDGET, adaptive=False)
    for guarantee in (batch, draw, batch):
        ledger.spend(guarantee)
    realised = Guarantee(_realised(draw.event))
    exact = compose_guarantees(batch, batch, realised).epsilon(BUDGET.delta)
    assert exact <= ledger.spent() <= 1.3 * exact
