"""Budgets, and the relations that they are for."""

import dataclasses
import math
from typing import TypeAlias

import jax
from dp_accounting import NeighboringRelation

from dpjax.core import check_delta, check_int, check_positive, check_scalar, check_type
from dpjax.privacy._warnings import warn

RelationLike: TypeAlias = NeighboringRelation | str
"""A neighbouring relation: a member of `dp_accounting`'s enumeration, or its lower-case name."""

_FACTORS = {
    NeighboringRelation.REPLACE_ONE: 2,
    NeighboringRelation.ADD_OR_REMOVE_ONE: 1,
    NeighboringRelation.REPLACE_SPECIAL: 1,
}


def resolve_relation(relation: RelationLike) -> NeighboringRelation:
    """The neighbouring relation that an enum member or its lower-case name stands for.

    Args:
        relation: A `dp_accounting.NeighboringRelation`, or one of "add_or_remove_one",
            "replace_one" (one record becomes any other) and "replace_special" (one record becomes
            the zero record). *Public*.

    Returns:
        The enum member.

    Raises:
        ValueError: If the name is none of these.

    Example:
        >>> resolve_relation("replace_one").name
        'REPLACE_ONE'
    """
    if isinstance(relation, NeighboringRelation):
        return relation
    names = {member.name.lower(): member for member in NeighboringRelation}
    if not isinstance(relation, str) or relation not in names:
        raise ValueError(f"relation must be one of {sorted(names)}, got {relation!r}")
    return names[relation]


def relation_factor(relation: RelationLike) -> int:
    """How many contributions of one record two neighbours' sums differ by: 2 under replace_one.

    Noise multipliers are relative to the add-or-remove sensitivity; this times it is the relation's
    own.
    """
    return _FACTORS[resolve_relation(relation)]


def relation_name(relation: RelationLike | None) -> str:
    """The lower-case name, for messages and files."""
    return "none" if relation is None else resolve_relation(relation).name.lower()


@dataclasses.dataclass(frozen=True)
class Budget:
    """A target (epsilon, delta) under a neighbouring relation.

    P(M(D) in E) <= e^epsilon P(M(D') in E) + delta for all events E and neighbours D, D'.

    Args:
        epsilon: > 0. *Public*. `math.inf` asks for no privacy, which `dpjax.release` understands,
            and what calibrates noise refuses.
        delta: In [0, 1); choose it well below 1 / number of records, from which on solvers warn by
            a `DeltaWarning`. *Public*. 0 asks for pure privacy, which solvers with Gaussian noise
            or a failure probability refuse.
        relation: A `dp_accounting.NeighboringRelation` or its lower-case name. None leaves the
            choice to the solver: add_or_remove_one where it samples.

    Raises:
        TypeError: If epsilon or delta is no number, or a traced one.
        ValueError: If a value is outside its bound.

    Example:
        >>> Budget(1.0, 1e-5, "replace_one").relation.name
        'REPLACE_ONE'
    """

    epsilon: float
    delta: float
    relation: RelationLike | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta"):
            if isinstance(getattr(self, name), jax.core.Tracer):
                raise TypeError(
                    f"{name} must be known outside of jit and vmap, got a traced number: make a "
                    "solver for each budget, and sweep over its fields"
                )
        check_scalar("epsilon", self.epsilon)
        if self.epsilon != math.inf:
            check_positive("epsilon", self.epsilon)
        check_delta("delta", self.delta)
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


def check_budget(budget: Budget, num_records: int | None = None) -> Budget:
    """Returns the budget, or says that it is none; warns where its delta is large for the data.

    A mechanism that publishes a few records at random meets any delta of 1 / number of records, so
    that such a delta allows what a guarantee is there to rule out. Pure privacy has delta 0.

    Guarantee: none is given; nothing is released.

    Args:
      budget: What was given as one (*public*).
      num_records: Public number of records that it is for; None where it is not known yet.

    Returns:
      The budget.

    Warns:
      DeltaWarning: If `delta >= 1 / num_records` and epsilon is finite.

    Raises:
      TypeError: If it is no `Budget`, or `num_records` no integer.
      ValueError: If `num_records < 1`.

    Example:
      >>> check_budget(Budget(1.0, 1e-5), 1000).epsilon
      1.0
    """
    check_type("budget", budget, Budget, "a dpjax.Budget(epsilon, delta)")
    if num_records is None:
        return budget
    check_int("num_records", num_records, minimum=1)
    share = 1 / num_records
    if budget.delta >= share and budget.epsilon < math.inf:  # else nothing is promised anyway
        warn(
            f"delta = {budget.delta:.3g} is at least 1 / num_records = 1 / {num_records}, which "
            "would allow publishing a record at random: choose delta far below 1 / num_records, "
            f"such as num_records^-1.5 = {share**1.5:.1g}"
        )
    return budget
