"""The privacy ledger: what has been spent on some data, and what may still be."""

import contextlib
import datetime
import os
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from dpjax.core._checks import check_finite
from dpjax.privacy._budget import Budget
from dpjax.privacy._budget_exceeded import BudgetExceeded
from dpjax.privacy._compose import compose_guarantees
from dpjax.privacy._guarantee import Guarantee
from dpjax.privacy._relations import relation_name
from dpjax.privacy.ledger._file import LedgerFile
from dpjax.privacy.ledger._filter import plan
from dpjax.privacy.ledger._state import LedgerEntry, Record, State, state_from_json, state_to_json
from dpjax.privacy.ledger._views import LedgerViews

_RELATIVE = 1e-3  # how closely `largest` looks


class _Memory:
    """A state in memory, behind the interface of a file."""

    def __init__(self, content: dict[str, Any]):
        self._content = content
        self._lock = threading.RLock()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with self._lock:
            yield

    def read(self) -> dict[str, Any]:
        return self._content

    def write(self, content: dict[str, Any]) -> None:
        self._content = content


class Ledger(LedgerViews):
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
        self._store: LedgerFile | _Memory
        self._cached: tuple[dict[str, Any], State] | None = None
        self._closed = False
        for asked in (path_or_budget, budget):
            if isinstance(asked, Budget):
                check_finite("epsilon", asked.epsilon)
                if asked.delta == 0:
                    raise ValueError(
                        "delta must be > 0 for a ledger, got 0: pure guarantees simply add up, so "
                        "sum guarantee.epsilon(0.0)"
                    )
        if isinstance(path_or_budget, Budget):
            if budget is not None:
                raise TypeError("give Ledger(path, budget) or Ledger(budget), got two budgets")
            fresh = State(path_or_budget, adaptive is not False)
            self._path = None
            self._store = _Memory(state_to_json(fresh))
            return
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget must be a dpjax.Budget, got {type(budget).__name__}")
        self._store = LedgerFile(path_or_budget, timeout)
        self._path = self._store.path
        with self._store.locked():
            if not self._store.exists():
                if budget is None:
                    raise FileNotFoundError(
                        f"{self._path} does not exist: give a budget to start a ledger there"
                    )
                self._write(State(budget, adaptive is not False))
            elif budget is not None:
                self._agree(budget, adaptive is not False)
            else:
                stored = self._read()
                self._agree(stored.budget, stored.adaptive if adaptive is None else adaptive)

    def __enter__(self) -> Self:
        self._closed = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True

    def spend(
        self,
        *guarantees: Guarantee,
        label: str = "",
        run: str | None = None,
        part: str | None = None,
    ) -> LedgerEntry:
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
        with self._store.locked():
            state = self._read()
            for known in state.records:
                if run is not None and known.entry.run == run:
                    _check_resumed(known.entry, record.entry)
                    return known.entry
            _check_relation(state, record.entry.guarantee)
            following = state.with_record(record)
            for concerned in following.concerned(part):
                epsilon, fits = following.judge(concerned)
                if not fits:
                    before, _ = state.judge(concerned)
                    raise BudgetExceeded(epsilon, before, following.budget, concerned)
            self._write(following)
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
        state = self._read()
        record = self._record(guarantees, "", None, part)
        _check_relation(state, record.entry.guarantee)
        following = state.with_record(record)
        return all(following.judge(concerned)[1] for concerned in following.concerned(part))

    def largest(
        self,
        make: Callable[[Any], Guarantee],
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
        if not self.fits(make(low), part=part):
            state = self._read()
            following = state.with_record(self._record((make(low),), "", None, part))
            worst = max(following.concerned(part), key=lambda name: following.judge(name)[0])
            raise BudgetExceeded(
                following.judge(worst)[0], state.judge(worst)[0], following.budget, worst
            )
        if self.fits(make(high), part=part):
            return high
        whole = isinstance(low, int) and isinstance(high, int)
        while high - low > (1 if whole else _RELATIVE * abs(high)):
            middle = (low + high) // 2 if whole else (low + high) / 2
            low, high = (middle, high) if self.fits(make(middle), part=part) else (low, middle)
        return low

    def __repr__(self) -> str:
        where = "in memory" if self._path is None else repr(self._path)
        try:
            state = self._read()
        except (OSError, ValueError):
            return f"Ledger({where}, unreadable)"
        number = len(state.records)
        return f"Ledger({where}, {state.budget}, adaptive={state.adaptive}, {number} entries)"

    def _record(
        self,
        guarantees: tuple[Guarantee, ...],
        label: str,
        run: str | None,
        part: str | None,
    ) -> Record:
        for name, value in {"label": label, "run": run or "", "part": part or ""}.items():
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a string, got {value!r}")
        if part == "" or run == "":
            raise ValueError("part and run must be None or a name, got ''")
        joint = compose_guarantees(*guarantees)
        budget = self._read().budget
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        chosen = plan(joint, float(budget.epsilon), float(budget.delta))
        return Record(LedgerEntry(now, label, run, part, joint), chosen)

    def _read(self) -> State:
        content, cached = self._store.read(), self._cached
        if cached is None or cached[0] != content:
            try:
                # a local name: another thread's view may replace the attribute at any time
                self._cached = cached = content, state_from_json(content)
            except ValueError as error:
                raise ValueError(f"{self._path} cannot be read as a ledger: {error}") from error
        return cached[1]

    def _write(self, state: State) -> None:
        content = state_to_json(state)
        self._store.write(content)
        self._cached = content, state

    def _agree(self, budget: Budget, adaptive: bool) -> None:
        """The stored terms are those given, or an error; a relation given late is fixed now."""
        state = self._read()
        stored = state.budget
        if (stored.epsilon, stored.delta) != (budget.epsilon, budget.delta):
            raise ValueError(
                f"budget must be the one stored in {self._path}, epsilon={stored.epsilon!r} and "
                f"delta={stored.delta!r}, got {budget.epsilon!r} and {budget.delta!r}"
            )
        if adaptive != state.adaptive:
            raise ValueError(
                f"adaptive must be as stored in {self._path}, {state.adaptive}, got {adaptive}"
            )
        if stored.relation is None and budget.relation is not None:
            self._write(State(budget, adaptive))
        elif budget.relation not in (None, stored.relation):
            raise ValueError(
                f"budget.relation must be the one stored in {self._path}, "
                f"{relation_name(stored.relation)}, got {relation_name(budget.relation)}"
            )


def _check_relation(state: State, guarantee: Guarantee) -> None:
    fixed = state.budget.relation
    if fixed is not None and guarantee.relation != fixed:
        raise ValueError(
            f"guarantee must be under the ledger's relation, {relation_name(fixed)}, got one under "
            f"{relation_name(guarantee.relation)}: make the solver for "
            f"Budget(epsilon, delta, {relation_name(fixed)!r})"
        )


def _check_resumed(known: LedgerEntry, again: LedgerEntry) -> None:
    if known.guarantee != again.guarantee or known.part != again.part:
        raise ValueError(
            f"run {known.run!r} was spent at {known.time} with another guarantee or part "
            f"({known.guarantee}, part {known.part!r}), got {again.guarantee}, part "
            f"{again.part!r}: a new run needs a new name"
        )
