"""Checks of record counts, and of relations that make them public."""

from dp_accounting import NeighboringRelation

from dpjax.core._checks import check_int

# indices are int32, and compiled code wraps larger ones without a word: a record would come twice
MOST_RECORDS = 2**31 - 1


def check_num_records(num_records: int) -> None:
    """Raises unless there is a record, and int32 can number all of them.

    Raises:
      TypeError: If it is no integer.
      ValueError: If it is below 1 or above 2^31 - 1.
    """
    check_int("num_records", num_records, minimum=1)
    if num_records > MOST_RECORDS:
        raise ValueError(
            f"num_records must be <= {MOST_RECORDS}, which int32 can number, got {num_records}: "
            "give each shard of the data its own sampler"
        )


def check_fixed_partition(sampler: object, relation: NeighboringRelation) -> None:
    """Raises for a relation under which neighbours differ in the number that batches are cut from.

    Raises:
      ValueError: If it is add-or-remove-one.
    """
    if relation == NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise ValueError(
            f"relation must be replace_one or replace_special with {type(sampler).__name__}, whose "
            "batches depend on the number of records, got add_or_remove_one; IndependentPartition "
            "takes it"
        )


def check_bound(num_records: int, bound: int) -> None:
    """Raises unless the number of records is one, and within a sampler's public bound.

    Raises:
      TypeError: If it is no integer.
      ValueError: If it is below 1 or above the bound.
    """
    check_int("num_records", num_records, minimum=1)
    if num_records > bound:
        raise ValueError(
            f"the data have more records than the sampler's public bound num_records = {bound}"
        )
