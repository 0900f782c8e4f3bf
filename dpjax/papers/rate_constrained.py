"""Rate-constrained training as printed: Yaghini et al. 2025 (RaCO-DP)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.privacy import Budget
from dpjax.problems import RateConstrained, RateConstraints
from dpjax.solvers.descent._rate_constrained_sgda import RateConstrainedSGDA
from dpjax.solvers.descent._rates import (
    RateMemory,
    RateReading,
    default_size_floor,
    value_deviation,
)

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


@dataclass(frozen=True)
class Ratio:
    """Rates as printed: noisy counts over noisy sizes at their floor or above, held to [0, 1].

    Their bias in small groups loses to the default; `estimator` of `RateConstrainedSGDA` takes them
    by name.

    Attributes:
      deviation: Standard deviation of the noise of a cell.
      denominator: `"batch"` for the sizes of this table, `"ema"` for a mean of all so far,
        `"fixed"` for those of the first memory (static).
      floor: Of sizes; None for `default_size_floor`.
      decay: Of the mean; None weights all tables so far equally.
    """

    deviation: ArrayLike
    denominator: str
    floor: ArrayLike | None = None
    decay: ArrayLike | None = None

    def init(self, constraints: RateConstraints) -> RateMemory:
        """Nothing is known."""
        _, subsets, classes = constraints.weights.shape
        return RateMemory(jnp.zeros(subsets), jnp.full((subsets, classes), 1 / classes))

    def read(
        self, constraints: RateConstraints, cells: jax.Array, memory: RateMemory, count: jax.Array
    ) -> RateReading:
        """What the `count`-th table `[Q, K]` says by itself."""
        before = memory.sizes
        if self.denominator == "batch":
            before = constraints.counts(cells)
        elif self.denominator == "ema":
            equal = 1 / count
            rate = equal if self.decay is None else jnp.where(count == 1, 1.0, 1 - self.decay)
            before = before + rate * (constraints.counts(cells) - before)
        floor = self.floor
        if floor is None:
            floor = default_size_floor(self.deviation, constraints)
        sizes = jnp.maximum(before, floor)
        sums = jnp.matmul(constraints.membership, cells, precision=jax.lax.Precision.HIGHEST)
        rates = jnp.clip(sums / sizes[:, None], 0, 1)
        deviation = value_deviation(constraints, sizes, rates, self.deviation)
        values = constraints.weighted(rates)
        return RateReading(sizes, rates, values, deviation, RateMemory(before, memory.rates))
