"""What a user asks for."""

import dataclasses
import math
from typing import Any

from dp_accounting import NeighboringRelation

from dpjax.core._checks import check_positive, check_probability, check_scalar
from dpjax.privacy._relations import RelationLike, resolve_relation


@dataclasses.dataclass(frozen=True)
class Budget:
    """A target (epsilon, delta) under a neighbouring relation.

    P(M(D) in E) <= e^epsilon P(M(D') in E) + delta for all events E and neighbours D, D'.

    Args:
        epsilon: > 0. *Public*. `math.inf` asks for no privacy, which `dpjax.release` understands,
            and what calibrates noise refuses.
        delta: In (0, 1); choose it well below 1 / number of records. *Public*.
        relation: A `dp_accounting.NeighboringRelation` or its lower-case name. None leaves the
            choice to the solver: add_or_remove_one where it samples.

    Raises:
        TypeError: If epsilon or delta is no number.
        ValueError: If a value is outside its bound.

    Example:
        >>> Budget(1.0, 1e-5, "replace_one").relation.name
        'REPLACE_ONE'
    """

    epsilon: float
    delta: float
    relation: RelationLike | None = None

    def __post_init__(self) -> None:
        check_scalar("epsilon", self.epsilon)
        if self.epsilon != math.inf:
            check_positive("epsilon", self.epsilon)
        check_probability("delta", self.delta)
        if self.relation is not None:
            object.__setattr__(self, "relation", resolve_relation(self.relation))

    def relation_or(self, natural: RelationLike = "add_or_remove_one") -> NeighboringRelation:
        """The relation asked for, or `natural` where none was.

        Args:
            natural: The relation under which the solver's guarantee comes out best.

        Returns:
            The enum member.

        Example:
            >>> Budget(1.0, 1e-5).relation_or("replace_one").name
            'REPLACE_ONE'
        """
        return resolve_relation(natural if self.relation is None else self.relation)


def check_budget(budget: Any) -> Budget:
    """Returns the budget, or says that it is none.

    Guarantee: none is given; nothing is released.

    Args:
      budget: What was given as one (*public*).

    Returns:
      The budget.

    Raises:
      TypeError: If it is no `Budget`.

    Example:
      >>> check_budget(Budget(1.0, 1e-5)).epsilon
      1.0
    """
    if not isinstance(budget, Budget):
        raise TypeError(
            f"budget must be a dpjax.Budget(epsilon, delta), got {type(budget).__name__}"
        )
    return budget
