"""Adversaries that choose each guarantee, and when to stop, after seeing outputs: exactly.

The mechanisms are randomised responses, so that every path of the interaction can be enumerated.
An adversary may do at each node whatever the rule admits; the best one over all of them is found by
recursion on (P(path), Q(path), spends so far). Rules that are no filters show that it finds them.
"""

import functools
import math

import numpy as np
import pytest
from dp_accounting import dp_event as dpe

from dpjax.privacy import Budget, Guarantee, Ledger
from dpjax.privacy.accounting._renyi import ORDERS, renyi

DEPTH = 4


def _response(lower, loss):
    """Of the other record's bucket this probability, of the own one e^loss as much."""
    upper = lower * math.exp(loss)
    buckets = round((1 - upper) / lower) + 1
    return dpe.RandomizedResponseDpEvent((1 - upper) / (1 - 1 / buckets), buckets)


def _guarantee(event, failure=0.0):
    return Guarantee(event, "replace_one", failure)


# found by search: a large sure loss, a rare larger one, a middling one
MENU = (
    _guarantee(dpe.RandomizedResponseDpEvent(0.7818, 2)),
    _guarantee(_response(0.0158, 0.7456)),
    _guarantee(dpe.RandomizedResponseDpEvent(0.8204, 2)),
)
WITH_FAILURES = (
    *MENU,
    _guarantee(dpe.NoOpDpEvent(), 2e-4),
    _guarantee(MENU[1].event, 1e-4),
)


def _pairs(guarantee):
    """(P, Q) of each output: both records' buckets, the others as one, and a run that fails."""
    fails = guarantee.failure_probability
    inner = [(1.0, 1.0)]
    if isinstance(guarantee.event, dpe.RandomizedResponseDpEvent):
        noise, k = guarantee.event.noise_parameter, guarantee.event.num_buckets
        kept, swapped = 1 - noise + noise / k, noise / k
        inner = [(kept, swapped), (swapped, kept), *[((k - 2) * swapped,) * 2] * (k > 2)]
    said = [(fails, 0.0), (0.0, fails)] if fails else []  # it says whose data it saw
    return [((1 - fails) * p, (1 - fails) * q) for p, q in inner] + said


def _worst(admits, epsilon_at, menu, depth=DEPTH):
    """sup over adversaries and S of P(S) - integral over S of e^epsilon dQ.

    Rules look at the first spend and, in any order, the others.
    """
    pairs = [_pairs(guarantee) for guarantee in menu]
    allowed, reported = functools.cache(admits), functools.cache(epsilon_at)

    def value(p, q, spends):
        best = max(p - math.exp(min(reported(spends), 50.0)) * q, 0.0)
        for choice in range(len(menu) if len(spends) < depth else 0):
            following = (*spends[:1], *sorted((*spends[1:], choice))) if spends else (choice,)
            if allowed(following):
                after = [value(p * a, q * b, following) for a, b in pairs[choice]]
                best = max(best, math.fsum(after))
        return best

    return value(1.0, 1.0, ())


def _exact_delta(menu, spends, epsilon):
    paths = [(1.0, 1.0)]
    for choice in spends:
        paths = [(p * a, q * b) for p, q in paths for a, b in _pairs(menu[choice])]
    return sum(max(p - math.exp(epsilon) * q, 0.0) for p, q in paths)


@functools.cache
def _ledger(menu, budget, spends):
    """A ledger that has admitted these, or None."""
    ledger = Ledger(budget)
    for choice in spends:
        if not ledger.fits(menu[choice]):
            return None
        ledger.spend(menu[choice])
    return ledger


def _worst_of_ledger(menu, budget):
    return _worst(
        lambda spends: _ledger(menu, budget, spends) is not None,
        lambda _: budget.epsilon,
        menu,
    )


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.05), (1.2, 0.02), (0.73, 0.05)])
@pytest.mark.always  # the claim
def test_no_adversary_gets_more_than_the_budget_out_of_the_ledger(epsilon, delta):
    worst = _worst_of_ledger(WITH_FAILURES, Budget(epsilon, delta, "replace_one"))
    assert 0.4 * delta < worst <= delta  # it gets far


def test_the_exact_curve_of_each_path_is_no_filter():
    budget = Budget(0.7273, 0.00653, "replace_one")

    def admits(spends):
        return _exact_delta(MENU, spends, budget.epsilon) <= budget.delta

    # each path, had it been fixed in advance, is within the budget; the choice among them is not
    worst = _worst(admits, lambda _: budget.epsilon, MENU)
    assert worst > 1.4 * budget.delta
    assert _worst_of_ledger(MENU, budget) <= budget.delta


# one of two rare outputs decides whether a sure loss or a rare larger one follows
FORK = (
    _guarantee(_response(math.exp(-12.0), 0.22813)),
    _guarantee(dpe.RandomizedResponseDpEvent(2 / (1 + math.exp(0.78128)), 2)),
    _guarantee(_response(math.exp(-14.85104), 1.05012)),
)
CURVES = [renyi(guarantee._id).divergence for guarantee in FORK]


def _converted(divergence, order, epsilon=1.0):
    """delta implied by a divergence at an order (Canonne, Kamath and Steinke 2020)."""
    log_delta = (order - 1) * (divergence - epsilon + np.log1p(-1 / order)) - np.log(order)
    return np.exp(np.minimum(log_delta, 0.0))


def _at_best_order(spends):
    return float(_converted(sum(CURVES[choice] for choice in spends), ORDERS).min())


def test_a_sum_within_budget_at_some_order_is_no_filter():
    delta = max(_at_best_order((0, 1)), _at_best_order((0, 2))) * (1 + 1e-9)
    worst = _worst(lambda spends: _at_best_order(spends) <= delta, lambda _: 1.0, FORK)
    assert worst > 1.9 * delta  # each path uses an order of its own: nearly twice
    assert _worst_of_ledger(FORK, Budget(1.0, delta, "replace_one")) <= delta


def test_failures_cannot_be_traded_for_divergences_path_by_path():
    order = ORDERS[int(np.argmin(_converted(CURVES[0] + CURVES[1], ORDERS)))]

    def converted(spends):
        rest = sum(CURVES[choice][order == ORDERS].item() for choice in spends if choice < 2)
        return float(_converted(rest, order))

    delta = converted((0, 1)) * (1 + 1e-9)
    failure = (delta - converted((0,))) / (1 + math.e) * (1 - 1e-9)
    menu = (*FORK[:2], _guarantee(dpe.NoOpDpEvent(), failure))

    def admits(spends):
        fails = spends.count(2) * failure
        return converted(spends) + (1 + math.e) * fails <= delta

    worst = _worst(admits, lambda _: 1.0, menu)
    assert worst > 1.2 * delta
    assert _worst_of_ledger(menu, Budget(1.0, delta, "replace_one")) <= delta


LOOSE = Budget(2.0, 0.02, "replace_one")


def _roomy(spends):
    """A ledger with room, so that one stops where one likes."""
    return _ledger(MENU, LOOSE, spends)


def test_the_odometer_holds_wherever_one_stops():
    worst = _worst(
        lambda spends: _roomy(spends) is not None, lambda spends: _roomy(spends).odometer(), MENU
    )
    assert 0 < worst <= LOOSE.delta
    levels = [_roomy(spends).odometer() for spends in ((0, 2, 2), (0, 2), (0,))]
    assert levels[0] > levels[1] > levels[2] > 0


def test_the_exact_curve_of_each_path_is_no_odometer():
    @functools.cache
    def exact(spends):
        low, high = 0.0, 8.0
        for _ in range(50):
            middle = (low + high) / 2
            within = _exact_delta(MENU, spends, middle) <= LOOSE.delta
            high, low = (middle, low) if within else (high, middle)
        return high

    worst = _worst(lambda spends: _roomy(spends) is not None, exact, MENU)
    assert worst > 1.1 * LOOSE.delta
