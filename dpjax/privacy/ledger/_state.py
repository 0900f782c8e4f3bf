"""State of a ledger, its admission rule, and its JSON form."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from dp_accounting import NeighboringRelation

from dpjax.privacy._budget import Budget
from dpjax.privacy._compose import composed_epsilon
from dpjax.privacy._guarantee import Guarantee, quiet_epsilon
from dpjax.privacy._relations import relation_name
from dpjax.privacy.accounting._event_json import guarantee_from_json, guarantee_to_json
from dpjax.privacy.ledger._filter import Filter, Plan, is_free, plan

_LEVELS = 32  # of the odometer, from budget / 16 to 3/2 budget
_LOWEST, _HIGHEST = 1 / 16, 3 / 2


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
    relation = state.budget.relation
    return {
        "budget": {
            "epsilon": float(state.budget.epsilon),
            "delta": float(state.budget.delta),
            "relation": relation_name(relation) if relation else None,
        },
        "adaptive": state.adaptive,
        "entries": [
            {
                **record.entry._asdict(),
                "guarantee": guarantee_to_json(record.entry.guarantee),
                "filter": record.plan._asdict(),
            }
            for record in state.records
        ],
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
