"""The privacy ledger: what has been spent on some data, and what may still be."""

import datetime
import os
import threading
from collections.abc import Callable
from typing import Self

from dpjax.core._checks import check_finite, check_type
from dpjax.privacy._budget import Budget, check_budget, relation_name
from dpjax.privacy._guarantee import Guarantee, compose_guarantees, composed_epsilon
from dpjax.privacy.accounting._event_json import Json
from dpjax.privacy.accounting._group import GroupGuarantee
from dpjax.privacy.ledger import _state as states
from dpjax.privacy.ledger._file import LedgerFile
from dpjax.privacy.ledger._state import plan

_RELATIVE = 1e-3  # how closely `largest` looks


class Ledger:
    """A budget for all that is ever released about some data, and what has been spent of it.

        sum of Rényi divergences at one order, fixed by the first spend <= what the budget allows

    `spend` comes before the release: it records the guarantee and returns, or raises
    `BudgetExceeded` and records nothing. On a file, the record is on the disk when it returns;
    a crash at any moment loses no spend, and processes that share the file take turns.

    Guarantee: all that is released under admitted spends is together (epsilon, delta)-DP, for
    the budget's relation. With `adaptive=True` each guarantee (noise, steps, whether there is a
    run at all) may be chosen after seeing the outputs of the earlier ones. This is a filter: one
    order is fixed before any output; "within budget at some order" would spend up to twice the
    delta, since each path could use its own. A share of delta (1/16, more where the first spend
    declares some) is kept for failure probabilities. A first spend may also fit by its exact
    curve alone, so that a run made for the whole budget does; after such a one nothing else fits.
    With `adaptive=False` all guarantees are fixed without looking at any output, and composed
    exactly; more fits.

    The ledger counts what it is told. It knows nothing of releases that were not spent on it, of
    another ledger on the same data, or of a guarantee that does not hold.

    Args:
        path_or_budget: The file, in an existing folder, or the budget of a ledger in memory.
        budget: The budget; for an existing file the stored one, or None. A relation of None is
            fixed by the first spend. *Public*.
        adaptive: As above. None: True for a new ledger, and where a budget is given; else as
            stored.
        timeout: Seconds to wait for another process that holds the file.

    Raises:
        ValueError: If the file holds another budget, relation or `adaptive`, or is no ledger.
        FileNotFoundError: If there is no such folder, or no file and no budget.
        TypeError: If `budget` is no `Budget`, or two are given.

    Example:
        >>> from dp_accounting import dp_event as dpe
        >>> from dpjax.privacy import Budget, BudgetExceeded, Guarantee, Ledger
        >>> query = Guarantee(dpe.GaussianDpEvent(8.0))
        >>> with Ledger(Budget(1.0, 1e-5)) as ledger:
        ...     while ledger.fits(query):
        ...         entry = ledger.spend(query)  # now release its answer
        >>> len(ledger.entries)
        3

    Source: Feldman and Zrnic (2021), "Individual privacy accounting via a Rényi filter"; Lécuyer
    (2021), "Practical privacy filters and odometers with Rényi differential privacy".
    """

    def __init__(
        self,
        path_or_budget: str | os.PathLike[str] | Budget,
        budget: Budget | None = None,
        *,
        adaptive: bool | None = None,
        timeout: float = 60.0,
    ):
        self._file: LedgerFile | None = None
        self._lock = threading.RLock()
        self._cached: tuple[dict[str, Json], states.State] | None = None
        self._closed = False
        if isinstance(path_or_budget, Budget) and budget is not None:
            raise TypeError("give Ledger(path, budget) or Ledger(budget), got two budgets")
        asked = path_or_budget if isinstance(path_or_budget, Budget) else budget
        if asked is not None:
            check_finite("epsilon", check_budget(asked).epsilon)
            if asked.delta == 0:
                raise ValueError(
                    "delta must be > 0 for a ledger, got 0: pure guarantees simply add up, so "
                    "sum guarantee.epsilon(0.0)"
                )
        if isinstance(path_or_budget, Budget):
            self._write(states.State(path_or_budget, adaptive is not False))
            return
        self._file = LedgerFile(path_or_budget, timeout)
        with self._file.locked():
            if os.path.exists(self._file.path):
                self._agree(budget, adaptive)
            elif budget is None:
                raise FileNotFoundError(
                    f"{self._file.path} does not exist: give a budget to start a ledger there"
                )
            else:
                self._write(states.State(budget, adaptive is not False))

    def __enter__(self) -> Self:
        self._closed = False
        return self

    def __exit__(self, *error: object) -> None:
        self._closed = True

    def spend(
        self,
        *guarantees: Guarantee,
        label: str = "",
        run: str | None = None,
        part: str | None = None,
    ) -> states.LedgerEntry:
        """Records a spend, or raises. Call it before anything is released.

        Guarantee: after it returns, what the guarantees describe may be released *once*.

        Args:
            guarantees: One, or several fixed together; they count as one entry. *Public*.
            label: A note. *Public*.
            run: A name for a run that may be resumed: spending the equal guarantee under the same
                name again costs nothing. Only right if the second run repeats the first to the
                bit: the same data, solver and key, as `dpjax.solve(checkpoint=...)` does. With
                fresh noise or other data it is a new run, under a new name.
            part: The name of the part of the data that it looks at. Parts are disjoint: each
                record is in at most one, by a rule that looks at no other record, and under
                replace_one and replace_special stays in it when it is replaced. A record pays
                for the spends on its own part and for those without part.

        Returns:
            The entry, the old one where a run was resumed.

        Raises:
            BudgetExceeded: If it does not fit; nothing is recorded.
            ValueError: If the ledger is closed, the relation is not the ledger's, or the run is
                known with another guarantee or part.
            TimeoutError: If another process holds the file; nothing is recorded.
            UnsupportedEventError: If no accountant composes several guarantees given together.

        Example:
            >>> from dp_accounting import dp_event as dpe
            >>> ledger = Ledger(Budget(1.0, 1e-5))
            >>> ledger.spend(Guarantee(dpe.GaussianDpEvent(9.0)), label="a histogram").label
            'a histogram'
        """
        if self._closed:
            raise ValueError("the ledger is closed: spend inside its `with` block")
        record = self._record(guarantees, label, run, part)
        with self._lock if self._file is None else self._file.locked():
            state = self._read()
            for known in (r.entry for r in state.records if run and r.entry.run == run):
                if known.guarantee != record.entry.guarantee or known.part != part:
                    raise ValueError(
                        f"run {run!r} was spent at {known.time} with another guarantee or part "
                        f"({known.guarantee}, part {known.part!r}), got {record.entry.guarantee}, "
                        f"part {part!r}: a new run needs a new name"
                    )
                return known
            self._write(state.spend(record))
        return record.entry

    def fits(self, *guarantees: Guarantee, part: str | None = None) -> bool:
        """Whether `spend` would accept these now; changes nothing.

        Args:
            guarantees: As in `spend`.
            part: As in `spend`.

        Returns:
            True or False. Another process may spend in between: only `spend` itself decides.

        Raises:
            ValueError: If the relation is not the ledger's.

        Example:
            >>> from dp_accounting import dp_event as dpe
            >>> Ledger(Budget(1.0, 1e-5)).fits(Guarantee(dpe.GaussianDpEvent(1.0)))
            False
        """
        try:
            self._read().spend(self._record(guarantees, "", None, part))
        except states.BudgetExceeded:
            return False
        return True

    def largest(
        self,
        make: Callable[[float], Guarantee],
        low: float,
        high: float,
        *,
        part: str | None = None,
    ) -> float:
        """The largest x in [low, high] for which `make(x)` fits what is left.

        Args:
            make: From a number to a guarantee that costs more the larger it is. *Public*.
            low: A number for which it fits. *Public*.
            high: An upper end. *Public*.
            part: As in `spend`.

        Returns:
            A number that fits: to a relative 1e-3; exact where both ends are integers.

        Raises:
            BudgetExceeded: If `make(low)` does not fit.

        Example:
            >>> from dp_accounting import dp_event as dpe
            >>> ledger = Ledger(Budget(1.0, 1e-5))
            >>> once = dpe.GaussianDpEvent(20.0)
            >>> ledger.largest(lambda n: Guarantee(dpe.SelfComposedDpEvent(once, n)), 1, 1000)
            28
        """
        if not low <= high:
            raise ValueError(f"low must be <= high = {high!r}, got {low!r}")
        self._read().spend(self._record((make(low),), "", None, part))
        if self.fits(make(high), part=part):
            return high
        whole = isinstance(low, int) and isinstance(high, int)
        while high - low > (1 if whole else _RELATIVE * abs(high)):
            middle = (low + high) // 2 if whole else (low + high) / 2
            low, high = (middle, high) if self.fits(make(middle), part=part) else (low, middle)
        return low

    def __repr__(self) -> str:
        where = "in memory" if self._file is None else repr(self._file.path)
        try:
            state = self._read()
        except (OSError, ValueError):
            return f"Ledger({where}, unreadable)"
        number = len(state.records)
        return f"Ledger({where}, {state.budget}, adaptive={state.adaptive}, {number} entries)"

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
    def entries(self) -> tuple[states.LedgerEntry, ...]:
        """The spends in order: `(time, label, run, part, guarantee)`."""
        return tuple(record.entry for record in self._read().records)

    def table(self) -> str:
        """The entries as text, and what the ledger counts for each part."""
        state = self._read()
        budget = state.budget
        relation = relation_name(budget.relation) if budget.relation else "of the first spend"
        lines = [
            f"budget: epsilon={budget.epsilon:g}, delta={budget.delta:g}, relation {relation}, "
            + ("guarantees may follow outputs" if state.adaptive else "guarantees fixed")
        ]
        for name in state.parts:
            who = "records of no other part" if name is None else f"part {name!r}"
            who = "all records" if state.parts == (None,) else who
            lines.append(f"counted for {who}: epsilon={state.judge(name)[0]:.4g}")
        for number, record in enumerate(state.records, start=1):
            entry = record.entry
            notes = [f"run {entry.run!r}"] if entry.run is not None else []
            notes += [f"part {entry.part!r}"] if entry.part is not None else []
            alone = entry.guarantee.epsilon(budget.delta)
            text = ", ".join([entry.label or "(no label)", *notes])
            lines.append(f"{number:4d}  {entry.time}  alone epsilon={alone:.4g}  {text}")
        return "\n".join(lines)

    def _record(
        self, guarantees: tuple[Guarantee, ...], label: str, run: str | None, part: str | None
    ) -> states.Record:
        for name, value in {"label": label, "run": run or "", "part": part or ""}.items():
            check_type(name, value, str, "a string")
        if part == "" or run == "":
            raise ValueError("part and run must be None or a name, got ''")
        joint = compose_guarantees(*guarantees)
        budget = self._read().budget
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        chosen = plan(joint, float(budget.epsilon), float(budget.delta))
        return states.Record(states.LedgerEntry(now, label, run, part, joint), chosen)

    def _read(self) -> states.State:
        # a local name: another thread's view may replace the attribute at any time
        cached, content = self._cached, {} if self._file is None else self._file.read()
        if cached is None or cached[0] != content:
            try:
                self._cached = cached = content, states.state_from_json(content)
            except ValueError as error:
                path = "" if self._file is None else self._file.path
                raise ValueError(f"{path} cannot be read as a ledger: {error}") from error
        return cached[1]

    def _write(self, state: states.State) -> None:
        content: dict[str, Json] = {}
        if self._file is not None:
            content = states.state_to_json(state)
            self._file.write(content)
        self._cached = content, state

    def _agree(self, budget: Budget | None, adaptive: bool | None) -> None:
        """What is given are the stored terms, or an error; a relation given late is fixed now."""
        state, where = self._read(), "" if self._file is None else self._file.path
        stored = state.budget
        if adaptive is None:
            adaptive = state.adaptive if budget is None else True
        budget = stored if budget is None else budget
        if (stored.epsilon, stored.delta) != (budget.epsilon, budget.delta):
            raise ValueError(
                f"budget must be the one stored in {where}, epsilon={stored.epsilon!r} and "
                f"delta={stored.delta!r}, got {budget.epsilon!r} and {budget.delta!r}"
            )
        if adaptive != state.adaptive:
            raise ValueError(
                f"adaptive must be as stored in {where}, {state.adaptive}, got {adaptive}"
            )
        if stored.relation is None and budget.relation is not None:
            self._write(states.State(budget, adaptive))
        elif budget.relation not in (None, stored.relation):
            raise ValueError(
                f"budget.relation must be the one stored in {where}, "
                f"{relation_name(stored.relation)}, got {relation_name(budget.relation)}"
            )
