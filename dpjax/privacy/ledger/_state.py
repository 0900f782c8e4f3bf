r"""State of a ledger, its admission rule, and its JSON form.

When to stop: a filter over guarantees that may be chosen after seeing earlier outputs.

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
from typing import Any, NamedTuple

import numpy as np
from dp_accounting import NeighboringRelation

from dpjax.privacy._budget import Budget, relation_name
from dpjax.privacy._guarantee import Guarantee, composed_epsilon, quiet_epsilon
from dpjax.privacy.accounting._event_json import guarantee_from_json, guarantee_to_json
from dpjax.privacy.accounting._renyi import ORDERS, divergence_at, renyi
from dpjax.privacy.accounting._structure import flatten

_LEVELS = 32  # of the odometer, from budget / 16 to 3/2 budget
_LOWEST, _HIGHEST = 1 / 16, 3 / 2
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
        largest = _largest_divergence(self.epsilon, self.delta, share, np.array([order]))
        failure = _failure_cap(self.epsilon, self.delta, share)
        return Cost(float(largest[0]), _INFINITE_SHARE * self.delta, failure)

    def cost(self, guarantees: Sequence[Guarantee]) -> Cost:
        """The sums of these guarantees."""
        order, up = self.plan.order, 1 + _ROUNDING
        each = [(*divergence_at(g._id, order), float(g.failure_probability)) for g in guarantees]
        return Cost(*(math.fsum(terms) * up for terms in zip((0.0,) * 3, *each, strict=True)))

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
    return epsilon + slack - _ROUNDING * (epsilon + np.abs(slack))


def _failure_cap(epsilon: float, delta: float, share: float) -> float:
    """p with (1 + e^epsilon) p = share * delta."""
    return share * delta * math.exp(-epsilon) / (1 + math.exp(-epsilon)) * (1 - _ROUNDING)


class BudgetExceeded(RuntimeError):
    """A spend that would exceed the budget; nothing was recorded, and nothing may be released.

    Attributes:
        epsilon: What the spend would have brought the total to, for a record of `part`.
        delta: The delta of the budget.
        spent: The epsilon counted before.
        budget: The budget.
        part: The part of the data whose records it concerns, or None.
    """

    def __init__(self, epsilon: float, spent: float, budget: Budget, part: str | None):
        where = f" for the records of part {part!r}" if part is not None else ""
        super().__init__(
            f"this spend would bring the total{where} to epsilon={epsilon:.4g} at "
            f"delta={budget.delta!r}, above the budget of {budget.epsilon!r}; spent before: "
            f"epsilon={spent:.4g}. Nothing was recorded: release nothing of this run"
        )
        self.epsilon, self.delta, self.spent = epsilon, budget.delta, spent
        self.budget, self.part = budget, part

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.epsilon, self.spent, self.budget, self.part)


class LedgerEntry(NamedTuple):
    """One spend: when (UTC, ISO 8601), its label, its run and part if named, what it cost.

    Attributes:
        time: Of the spend.
        label: The note given with it, or "".
        run: The name of the run, or None.
        part: The name of the part of the data, or None for all records.
        guarantee: What was spent; several given together are composed.
    """

    time: str
    label: str
    run: str | None
    part: str | None
    guarantee: Guarantee


class Record(NamedTuple):
    """An entry, and the filter that it fixes for the records that it is the first to touch."""

    entry: LedgerEntry
    plan: Plan


class State(NamedTuple):
    """A ledger at one moment; the relation of the budget is None until the first spend."""

    budget: Budget
    adaptive: bool
    records: tuple[Record, ...] = ()

    @property
    def parts(self) -> tuple[str | None, ...]:
        """The parts with spends, and None for the records of no part."""
        return (None, *dict.fromkeys(r.entry.part for r in self.records if r.entry.part))

    def touching(self, part: str | None) -> list[Record]:
        """The spends that concern a record of this part and cost something, in order."""
        concerning = [r for r in self.records if r.entry.part in (None, part)]
        return [r for r in concerning if not is_free(r.entry.guarantee)]

    def concerned(self, part: str | None) -> tuple[str | None, ...]:
        """The parts whose records a spend on `part` concerns: a spend without part, all."""
        return self.parts if part is None else (part,)

    def spend(self, record: Record) -> "State":
        """With one more spend; the first one fixes the relation.

        Raises:
            BudgetExceeded: If it does not fit for the records of some part.
            ValueError: If its relation is not the ledger's.
        """
        relation, fixed = record.entry.guarantee.relation, self.budget.relation
        if fixed not in (None, relation):
            raise ValueError(
                f"guarantee must be under the ledger's relation, {relation_name(fixed)}, got one "
                f"under {relation_name(relation)}: make the solver for "
                f"Budget(epsilon, delta, {relation_name(fixed)!r})"
            )
        budget = Budget(self.budget.epsilon, self.budget.delta, relation)
        following = State(budget, self.adaptive, (*self.records, record))
        for part in following.concerned(record.entry.part):
            epsilon, fits = following.judge(part)
            if not fits:
                raise BudgetExceeded(epsilon, self.judge(part)[0], budget, part)
        return following

    def judge(self, part: str | None) -> tuple[float, bool]:
        """The epsilon counted for a record of this part, and whether it is within budget."""
        records = self.touching(part)
        if not records:
            return 0.0, True
        rule = Filter(float(self.budget.epsilon), float(self.budget.delta), records[0].plan)
        return _judge([r.entry.guarantee for r in records], rule, self.adaptive)

    def odometer(self, part: str | None) -> float:
        """The smallest level of 32 whose own filter, at delta / 32, has not been exceeded."""
        guarantees = [r.entry.guarantee for r in self.touching(part)]
        if not guarantees:
            return 0.0
        delta = self.budget.delta / _LEVELS
        for level in range(_LEVELS):
            growth = (_HIGHEST / _LOWEST) ** (level / (_LEVELS - 1))
            epsilon = self.budget.epsilon * _LOWEST * growth
            rule = Filter(epsilon, delta, plan(guarantees[0], epsilon, delta))
            if _judge(guarantees, rule, self.adaptive)[1]:
                return epsilon
        return math.inf


def _judge(guarantees: Sequence[Guarantee], rule: Filter, adaptive: bool) -> tuple[float, bool]:
    if not adaptive:
        total = composed_epsilon(guarantees, rule.delta)
        return total, total <= rule.epsilon
    total, admitted = rule.judge(guarantees)
    if len(guarantees) == 1:
        # The first is chosen before any output, so its exact curve may decide. If it is past the
        # filter it stays alone: which of the two rules holds is known before any output too.
        total = min(total, quiet_epsilon(guarantees[0], rule.delta))
        admitted = admitted or total <= rule.epsilon
    return total, admitted


def state_to_json(state: State) -> dict[str, Any]:
    """The state as JSON values; floats are written so that they read back to the last bit."""
    budget = state.budget
    relation = relation_name(budget.relation) if budget.relation else None
    epsilon, delta = float(budget.epsilon), float(budget.delta)
    entries = []
    for entry, chosen in state.records:
        own = {"guarantee": guarantee_to_json(entry.guarantee), "filter": chosen._asdict()}
        entries.append(entry._asdict() | own)
    return {
        "budget": {"epsilon": epsilon, "delta": delta, "relation": relation},
        "adaptive": state.adaptive,
        "entries": entries,
    }


def state_from_json(content: dict[str, Any]) -> State:
    """The inverse.

    Raises:
        ValueError: If the content is nothing that `state_to_json` writes.
    """
    try:
        budget = Budget(**content["budget"])
        records = [_record(entry, budget.relation) for entry in content["entries"]]
        return State(budget, bool(content["adaptive"]), tuple(records))
    except (KeyError, TypeError) as error:
        raise ValueError(f"no content of a ledger: {error!r}") from error


def _record(entry: dict[str, Any], relation: NeighboringRelation) -> Record:
    guarantee = guarantee_from_json(entry["guarantee"], relation)
    names = {name: entry[name] for name in ("time", "label", "run", "part")}
    return Record(LedgerEntry(**names, guarantee=guarantee), Plan(**entry["filter"]))
