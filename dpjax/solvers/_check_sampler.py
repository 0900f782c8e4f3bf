"""Whether a solver can run with a sampler, and be accounted under a relation."""

from dpjax.core import Sampler
from dpjax.core import check_sampler as check_is_sampler
from dpjax.privacy import Budget, RelationLike, check_budget, resolve_relation


def check_sampler(sampler: Sampler, relation: RelationLike) -> None:
    """Raises unless this is a sampler whose event holds under the relation.

    Raises:
      TypeError: If it lacks something of a `Sampler`.
      ValueError: If its event does not hold under the relation.
    """
    check_is_sampler(sampler)
    sampler.check_relation(resolve_relation(relation))


def sampled_relation(budget: Budget, num_records: int, sampler: Sampler) -> str:
    """The relation of a budget, by default the sampler's; raises as `check_sampler`."""
    check_is_sampler(sampler)
    relation = check_budget(budget, num_records).relation_or(sampler.default_relation)
    sampler.check_relation(relation)
    return relation.name.lower()
