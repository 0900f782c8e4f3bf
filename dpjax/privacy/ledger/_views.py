"""What a ledger says about what has been spent."""

import abc

from dpjax.privacy._budget import Budget
from dpjax.privacy._compose import compose_guarantees, composed_epsilon
from dpjax.privacy._relations import relation_name
from dpjax.privacy.accounting._group import GroupGuarantee
from dpjax.privacy.ledger._state import LedgerEntry, State


class LedgerViews(abc.ABC):
    """The part of `Ledger` that changes nothing; where the state is kept is `Ledger`'s to say."""

    @abc.abstractmethod
    def _read(self) -> State:
        """The state now."""

    def spent(self, part: str | None = None, *, group: int = 1) -> float:
        """Epsilon, at the budget's delta, of what has been spent, as if fixed in advance.

        The exact composition: what these guarantees cost had they been chosen without looking at
        outputs. Where they were not it is a description, not a guarantee: that is the budget, or
        the `odometer`.

        Args:
            part: For a record of this part; None: for the worst part.
            group: For groups of so many records; see `group_guarantee`.

        Returns:
            Epsilon, 0 for nothing spent.

        Raises:
            UnsupportedEventError: If group is above 1 and no accountant composes all events.

        Example:
            >>> from dp_accounting import dp_event as dpe
            >>> from dpjax.privacy import Guarantee, Ledger
            >>> ledger = Ledger(Budget(1.0, 1e-5))
            >>> query = Guarantee(dpe.GaussianDpEvent(10.0))
            >>> ledger.spend(query).guarantee == query
            True
            >>> ledger.spent() == query.epsilon(1e-5)
            True
        """
        state = self._read()
        totals = []
        for name in state.concerned(part):
            guarantees = [record.entry.guarantee for record in state.touching(name)]
            if group == 1 or not guarantees:
                totals.append(composed_epsilon(guarantees, state.budget.delta))
            else:
                joint = compose_guarantees(*guarantees)
                totals.append(GroupGuarantee(joint, group).epsilon(state.budget.delta))
        return max(totals)

    def odometer(self, part: str | None = None) -> float:
        r"""An epsilon that holds whenever one stops, however that moment is chosen.

        $P(S) \le \int_S e^{\hat\epsilon} dQ + \delta$

        32 filters run side by side, at levels of epsilon from 1/16 to 3/2 of the budget and at
        delta / 32 each; the answer is the lowest level whose filter still holds. The views on
        which level i is reported are views of a mechanism stopped by filter i, so that each costs
        at most delta / 32, and the sum (a union bound) delta.

        Guarantee: the budget's delta, for the epsilon reported at a stop that may depend on
        all outputs. Coarser and larger than `spent`; infinite above 3/2 of the budget's epsilon.

        Args:
            part: For a record of this part; None: for the worst part.

        Returns:
            Epsilon, 0 for nothing spent.

        Example:
            >>> from dp_accounting import dp_event as dpe
            >>> from dpjax.privacy import Guarantee, Ledger
            >>> ledger = Ledger(Budget(1.0, 1e-5))
            >>> entry = ledger.spend(Guarantee(dpe.GaussianDpEvent(10.0)))
            >>> ledger.spent() < ledger.odometer() < 1.0
            True

        Source: Rogers, Roth, Ullman and Vadhan (2016), "Privacy odometers and filters"; Lécuyer
        (2021).
        """
        state = self._read()
        return max(state.odometer(name) for name in state.concerned(part))

    @property
    def budget(self) -> Budget:
        """The budget, with the relation once it is fixed."""
        return self._read().budget

    @property
    def adaptive(self) -> bool:
        """Whether guarantees may be chosen after seeing outputs."""
        return self._read().adaptive

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The spends in order: `(time, label, run, part, guarantee)`."""
        return tuple(record.entry for record in self._read().records)

    def table(self) -> str:
        """The entries as text, and what the ledger counts for each part."""
        state = self._read()
        budget = state.budget
        relation = relation_name(budget.relation) if budget.relation else "of the first spend"
        lines = [
            f"budget: epsilon={budget.epsilon:g}, delta={budget.delta:g}, relation {relation}, "
            + ("guarantees may follow outputs" if state.adaptive else "guarantees fixed"),
        ]
        for name in state.parts:
            who = "records of no other part" if name is None else f"part {name!r}"
            who = "all records" if state.parts == (None,) else who
            counted = state.judge(name)[0]
            lines.append(f"counted for {who}: epsilon={counted:.4g}")
        for number, record in enumerate(state.records, start=1):
            entry = record.entry
            notes = [f"run {entry.run!r}"] if entry.run is not None else []
            notes += [f"part {entry.part!r}"] if entry.part is not None else []
            alone = entry.guarantee.epsilon(budget.delta)
            text = ", ".join([entry.label or "(no label)", *notes])
            lines.append(f"{number:4d}  {entry.time}  alone epsilon={alone:.4g}  {text}")
        return "\n".join(lines)
