"""What is raised where a budget ends."""

from typing import Any

from dpjax.privacy._budget import Budget


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
