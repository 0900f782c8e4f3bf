r"""When to stop: a filter over guarantees that may be chosen after seeing earlier outputs.

Fix one Rényi order a in advance. If along every path of the interaction the divergences at a sum
to at most B, the whole interaction has divergence at most B: under Q,
$\prod_t (dP_t/dQ_t)^a e^{-(a-1) R_t}$ is a supermartingale. Three rules look like it and are not
filters (tests/privacy/test_ledger_adaptive.py has an adversary for each):

-   a sum that is within budget at *some* order: paths use different orders, which costs a union
    bound over the orders; with two paths delta is nearly doubled;
-   the exact curve of the events on each path;
-   trading additive terms (failures of a run, mass of infinite loss) against divergences path by
    path: divergences are weighed by $(dP/dQ)^a Q$, failures by P and Q, and an adversary uses each
    where its weight lies. So each of the three sums has a cap of its own, fixed in advance.

Source: Feldman and Zrnic (2021), "Individual privacy accounting via a Rényi filter"; Lécuyer
(2021), "Practical privacy filters and odometers with Rényi differential privacy".
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpjax.privacy._guarantee import Guarantee
from dpjax.privacy.accounting._renyi import ORDERS, divergence_at, renyi
from dpjax.privacy.accounting._structure import flatten

_FAILURE_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # the first where no failure is declared
_INFINITE_SHARE = 2.0**-20  # tails of order 1e-23 a step
_ROUNDING = 1e-12


class Cost(NamedTuple):
    """What guarantees add up to: divergence at the filter's order, infinite mass, failure."""

    divergence: float
    infinite: float
    failure: float


class Plan(NamedTuple):
    """The choices made before any output: the order, and the share of delta for failures."""

    order: float
    failure_share: float


class Filter(NamedTuple):
    """The rule at a target (epsilon, delta): three sums below three caps."""

    epsilon: float
    delta: float
    plan: Plan

    @property
    def caps(self) -> Cost:
        """The largest sums."""
        order, share = self.plan
        return Cost(
            float(_largest_divergence(self.epsilon, self.delta, share, np.array([order]))[0]),
            _INFINITE_SHARE * self.delta,
            _failure_cap(self.epsilon, self.delta, share),
        )

    def cost(self, guarantees: Sequence[Guarantee]) -> Cost:
        """The sums of these guarantees."""
        divergence, infinite, failure = [0.0], [0.0], [0.0]
        for guarantee in guarantees:
            one, beyond = divergence_at(guarantee._id, self.plan.order)
            divergence.append(one)
            infinite.append(beyond)
            failure.append(float(guarantee.failure_probability))
        up = 1 + _ROUNDING
        return Cost(*(math.fsum(terms) * up for terms in (divergence, infinite, failure)))

    def judge(self, guarantees: Sequence[Guarantee]) -> tuple[float, bool]:
        """The epsilon counted for these at the filter's delta, infinite past the other two caps.

        And whether they stay within the target, in any order and however chosen.
        """
        cost, caps = self.cost(guarantees), self.caps
        if cost.infinite > caps.infinite or cost.failure > caps.failure:
            return math.inf, False
        if not any(cost):
            return 0.0, True
        total = max(0.0, self.epsilon + cost.divergence - caps.divergence)
        return total, cost.divergence <= caps.divergence


def plan(first: Guarantee, epsilon: float, delta: float) -> Plan:
    """The choices with which the first guarantee could be repeated most often."""
    curve = renyi(first._id).divergence
    best, choice = -math.inf, Plan(float(ORDERS[0]), _FAILURE_SHARES[0])
    failure = float(first.failure_probability)
    for share in _FAILURE_SHARES if failure else _FAILURE_SHARES[:1]:
        with np.errstate(divide="ignore", invalid="ignore"):
            repeats = _largest_divergence(epsilon, delta, share, ORDERS) / curve
        repeats = np.where(np.isnan(repeats), -math.inf, repeats)
        index = int(np.argmax(repeats))
        most = float(repeats[index])
        if failure:
            most = min(most, _failure_cap(epsilon, delta, share) / failure)
        if most > best:
            best, choice = most, Plan(float(ORDERS[index]), share)
    return choice


def is_free(guarantee: Guarantee) -> bool:
    """Whether nothing depends on the data."""
    return guarantee.failure_probability == 0 and not flatten(guarantee.event)


def _largest_divergence(
    epsilon: float, delta: float, share: float, orders: np.ndarray
) -> np.ndarray:
    """The divergence at each order that implies (epsilon, what failures leave of delta).

    R + log(1 - 1/a) - log(delta a) / (a - 1) <= epsilon: Canonne, Kamath and Steinke (2020),
    proposition 12, whose proof holds for P of mass below 1 as well.
    """
    log_delta = math.log(delta) + math.log1p(-share - _INFINITE_SHARE)
    slack = -np.log1p(-1 / orders) + (log_delta + np.log(orders)) / (orders - 1)
    largest = epsilon + slack
    return largest - _ROUNDING * (epsilon + np.abs(slack))


def _failure_cap(epsilon: float, delta: float, share: float) -> float:
    """p with (1 + e^epsilon) p = share * delta."""
    return share * delta * math.exp(-epsilon) / (1 + math.exp(-epsilon)) * (1 - _ROUNDING)
