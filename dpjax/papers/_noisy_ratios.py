"""Rates as printed for rate-constrained training, whose bias in small groups loses to the default.

See `estimator` of `dpjax.solvers.RateConstrainedSGDA`, which takes them by name.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.problems._constraints import RateConstraints
from dpjax.solvers.descent._rates import (
    RateMemory,
    RateReading,
    default_size_floor,
    value_deviation,
)


@dataclass(frozen=True)
class Ratio:
    """Rates as printed: noisy counts over noisy sizes at their floor or above, held to [0, 1].

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
