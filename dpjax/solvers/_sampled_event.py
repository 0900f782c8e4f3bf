"""The event of a run: what is released in a step, composed over what the sampler runs."""

from typing import Any

import dp_accounting

from dpjax.core import Sampler
from dpjax.privacy import joint_poisson_event, resolve_relation
from dpjax.sampling import (
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    PoissonSampler,
    TaperedPartition,
)

_FIXED_PARTITIONS = (DisjointPartition, TaperedPartition)


def run_event(
    sampler: Any,
    *,
    gaussian: float,
    histogram_gaussian: float | None = None,
    laplace_scale: float | None = None,
) -> dp_accounting.DpEvent:
    """Event of `sampler.steps` steps that each release these from one batch.

    Args:
      sampler: The object that runs.
      gaussian: Noise multiplier of the gradient sum.
      histogram_gaussian: Noise multiplier of a histogram of the same batch.
      laplace_scale: Laplace scale of a histogram of the same batch.

    Raises:
      TypeError: If the sampler is of an unknown kind.
    """
    releases: dict[str, Any] = {
        "gaussian": gaussian,
        "histogram_gaussian": histogram_gaussian,
        "laplace_scale": laplace_scale,
    }
    if isinstance(sampler, PoissonSampler):
        if sampler.overflow == "truncate":
            releases["truncated_batch_size"] = sampler.capacity
            releases["num_records"] = sampler.num_records
        return joint_poisson_event(sampler.rate, sampler.steps, **releases)
    if isinstance(sampler, FullBatch):
        return joint_poisson_event(1.0, sampler.steps, **releases)
    if isinstance(sampler, (*_FIXED_PARTITIONS, IndependentPartition)):
        return joint_poisson_event(1.0, 1, **releases)
    raise TypeError(f"no event is known for a sampler of type {type(sampler).__name__}")


def natural_relation(sampler: Any) -> str:
    """The relation a sampler's guarantee is stated for, unless the user asks for another."""
    if isinstance(sampler, _FIXED_PARTITIONS) or getattr(sampler, "overflow", "") == "truncate":
        return "replace_one"
    return "add_or_remove_one"


def check_relation(sampler: Any, relation: Any) -> None:
    """Raises where there is no sampler, or it cannot give a guarantee under a relation."""
    if not isinstance(sampler, Sampler):
        raise TypeError(f"sampler must be a Sampler, got {sampler!r}")
    name = resolve_relation(relation).name.lower()
    if isinstance(sampler, _FIXED_PARTITIONS) and name == "add_or_remove_one":
        kind = type(sampler).__name__
        raise ValueError(
            f"relation must be replace_one or replace_special with {kind}, whose batches "
            f"depend on the number of records, got {name}; IndependentPartition takes it"
        )
    if getattr(sampler, "overflow", None) == "truncate" and name != "replace_one":
        raise ValueError(
            "relation must be replace_one with overflow='truncate', whose event holds for one "
            f"public number of records alone, got {name}; overflow='declare' takes any relation"
        )


def participation_rate(sampler: Any, num_records: int) -> float:
    """Probability that a record is in a batch."""
    if isinstance(sampler, PoissonSampler):
        return sampler.rate
    if isinstance(sampler, IndependentPartition):
        return 1 / sampler.steps
    if isinstance(sampler, TaperedPartition):
        return float(sampler.sizes.mean()) / num_records
    return getattr(sampler, "batch_size", num_records) / num_records
