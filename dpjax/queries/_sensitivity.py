"""Sensitivities of a workload's answers."""

import math
from typing import NamedTuple

from dpjax.core import check_nonnegative_scalar
from dpjax.privacy import resolve_relation
from dpjax.privacy._relations import RelationLike


class QuerySensitivity(NamedTuple):
    r"""Largest changes between neighbours of $n$ times the mean answers, $\sum_i q_j(z_i)$.

    Divide by the number of records, which is public under replace-one, or under add/remove by a
    public normaliser. All values are *public*: they depend on the workload and the relation alone.

    Attributes:
      value_range: $R = \max_j (\max_z q_j(z) - \min_z q_j(z))$, whatever the relation.
      score_range: Over the symmetric class $\{q_j, -q_j\}$, the largest change of a score less the
        smallest: $2R$ for replace-one. For add/remove $R$, **of queries centred at mid-range**
        ($q_j$ less `workload.centre`), which a selection must score then. A draw from the softmax
        of $\beta$ times the scores is of bounded range $\beta$ times this.
      l2_answers: Of the vector of all answers, in the l2 norm (queries as they are, not centred).
      l2_histogram: Of the counts of the cells, in the l2 norm: $\sqrt 2$, or 1 for add/remove.
      linf: Of a single answer (not centred).
    """

    value_range: float
    score_range: float
    l2_answers: float
    l2_histogram: float
    linf: float


def query_sensitivity(
    relation: RelationLike,
    *,
    value_range: float,
    largest: float,
    l2_replaced: float,
    l2_record: float,
    universe_size: int,
) -> QuerySensitivity:
    r"""The sensitivities of a workload from four constants of its queries.

    Guarantee: they bound every pair of neighbours if the constants are what they say. Relation:
    any; replace-special, where a record becomes the zero record, moves as much as add/remove.

    Args:
        relation: A `dp_accounting.NeighboringRelation` or its lower-case name (*public*).
        value_range: $\max_j(\max_z q_j(z) - \min_z q_j(z))$.
        largest: $\max_{j,z} |q_j(z)|$.
        l2_replaced: $\max_{z,z'} \|q(z) - q(z')\|_2$, $q(z)$ the answers of one record.
        l2_record: $\max_z \|q(z)\|_2$.
        universe_size: Number of cells; in a universe of one cell nothing can be replaced.

    Returns:
        A `QuerySensitivity` of Python floats.

    Raises:
        ValueError: The relation is unknown, or a constant is negative or not finite.
        TypeError: If a constant is not a number.

    Example:
        >>> query_sensitivity("add_or_remove_one", value_range=1.0, largest=1.0, l2_replaced=2**0.5,
        ...                   l2_record=1.0, universe_size=2).score_range
        1.0
    """
    constants = {
        "value_range": value_range,
        "largest": largest,
        "l2_replaced": l2_replaced,
        "l2_record": l2_record,
    }
    for name, value in constants.items():
        check_nonnegative_scalar(name, value)
    if resolve_relation(relation).name == "REPLACE_ONE":
        histogram = math.sqrt(2) if universe_size > 1 else 0.0
        changes = (2 * value_range, l2_replaced, histogram, value_range)
    else:
        changes = (value_range, l2_record, 1.0, largest)
    return QuerySensitivity(float(value_range), *map(float, changes))
