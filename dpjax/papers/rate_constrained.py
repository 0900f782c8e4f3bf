"""Rate-constrained training as printed: Yaghini et al. 2025 (RaCO-DP)."""

from typing import Any

from dpjax.privacy import Budget
from dpjax.problems import RateConstrained
from dpjax.solvers.descent._rate_constrained_sgda import RateConstrainedSGDA

_PRINTED: dict[str, Any] = {
    "histogram": "laplace",
    "rates": "soft",
    "estimator": "ratio",
    "denominator": "batch",
    "histogram_share": 0.1,
    "clip_norm": 4.0,
    "size_floor": 1.0,
    "multiplier_set": "orthant",
    "average": "last",
}


def rate_constrained_sgda(
    problem: RateConstrained, num_records: int, budget: Budget, **overrides: Any
) -> RateConstrainedSGDA:
    """The printed method: a Laplace table of soft rates, and nothing that this package adds.

    Subset sizes come from the batch, with floor 1; multipliers are unbounded; the last iterate is
    returned.

    Guarantee: that of `RateConstrainedSGDA`, with its true epsilon: table and gradient of one batch
    are accounted jointly, where the printed accounting amplifies each separately.

    Args:
      problem: A `RateConstrained` problem; only its public sizes are used.
      num_records: *Public* bound on the number of records, and nominal size.
      budget: epsilon, delta and relation to meet.
      **overrides: As in `RateConstrainedSGDA.for_budget`; they go before the printed settings.

    Returns:
      A solver whose `guarantee().epsilon(budget.delta) <= budget.epsilon`.

    Raises:
      ValueError: If a value is outside its bound, or the budget cannot be met.
      TypeError: If an override is no field.

    Source: Yaghini, Cebere, Menart, Bellet and Papernot, "Private rate-constrained optimization
    with applications to fair learning", 2025 (RaCO-DP).
    """
    settings: dict[str, Any] = _PRINTED | overrides
    if settings.get("sampler") is None and settings.get("steps") is None:
        settings["steps"] = 1000
    return RateConstrainedSGDA.for_budget(problem, num_records, budget, **settings)
