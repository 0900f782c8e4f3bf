"""One entry point to the conformance suites."""

from dpjax.testing._cases import Entry
from dpjax.testing._conformance_aggregators import check_aggregator
from dpjax.testing._conformance_samplers import check_sampler
from dpjax.testing._conformance_solvers import check_solver
from dpjax.testing._conformance_transforms import check_transform

_CHECKS = {
    "transform": check_transform,
    "aggregator": check_aggregator,
    "sampler": check_sampler,
    "solver": check_solver,
}


def check_entry(entry: Entry) -> None:
    """Runs the suite that belongs to an entry's kind.

    Args:
      entry: Of the registry, or made for the occasion.

    Raises:
      AssertionError: Naming the entry and what it does not hold to.

    Example:
      >>> import dpjax, dpjax.testing as dpt, jax.numpy as jnp
      >>> def make():
      ...     return dpt.AggregatorCase(dpjax.transforms.clip_by_norm, jnp.ones((3, 2)))
      >>> dpt.check_entry(dpt.Entry("clip", "aggregator", make))
    """
    _CHECKS[entry.kind](entry)
