"""Result of tuning: the winner, and nothing of the other runs."""

import dataclasses
from typing import Any

from dpjax.core import PyTree, register_dataclass
from dpjax.privacy import Guarantee


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Tuned:
    """The released winner of `dpjax.tune`; all of it is covered by the guarantee.

    Attributes:
      params: Its parameters, a tree.
      choice: Its hyperparameters by name, or its index in a list of solvers.
      score: Its score: noisy accuracy, less a penalty where there are constraints, or that on
        public data. Biased upward, as the best of many.
      guarantee: `guarantee.epsilon(delta)`, of the training, the scores and the choice together.
      solver: Its solver; `solver.guarantee()` is that of a single run, **not** of this release.
      steps: Steps after which its parameters were taken, all of them without `checkpoints`.
    """

    params: PyTree
    choice: Any = dataclasses.field(metadata={"static": True})
    score: float = dataclasses.field(metadata={"static": True})
    guarantee: Guarantee = dataclasses.field(metadata={"static": True})
    solver: Any = dataclasses.field(metadata={"static": True})
    steps: int = dataclasses.field(metadata={"static": True})

    def __repr__(self) -> str:
        """Choice, score and guarantee."""
        private = "" if self.guarantee.delta(1.0) < 1 else ", NOT PRIVATE"
        return f"Tuned(choice={self.choice}, score={self.score:.4g}{private})\n  {self.guarantee!r}"
