"""The neighbouring relation of a guarantee, by enum or by name."""

from typing import TypeAlias

from dp_accounting import NeighboringRelation

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
