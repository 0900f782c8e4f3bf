"""Rate-constrained training as printed: Yaghini et al. 2025 (RaCO-DP)."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_positive, check_shape
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
    "proportional_gain": 0.0,
    "swing_bound": None,
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


def optimal_histogram_share(
    problem: RateConstrained,
    *,
    batch_size: float,
    clip_norm: float,
    multiplier_norm: float,
    subset_shares: ArrayLike,
    rates: ArrayLike | None = None,
    logit_gradient_norm: float = 1.0,
    temperature: float = 1.0,
) -> float:
    r"""Share of the table that minimises the noise in a step's descent direction.

    $$ \phi^* = \frac{\sqrt{A_h}}{\sqrt{A_h} + \sqrt{A_g}}, \quad A_g = \frac{d C^2}{m^2}, \quad
       A_h = (\bar\lambda \tau \|\partial h\|)^2 \max_j \sum_s |I_s|
             \sum_k \frac{(\alpha_{jsk} - \bar\alpha_{js})^2}{(m f_s)^2} $$

    By the delta method; minimises $A_g z^2 + A_h z_h^2$ at fixed $z^{-2} + z_h^{-2}$. It counts the
    noise of the table in the gradient only, not in the multipliers, which average it. For Adult it
    gives less than 0.1; `for_budget` takes 0.1, or 0.2 of runs of fewer than 1000 steps.

    Guarantee: none needed; a function of *public* guesses.

    Args:
      problem: A `RateConstrained` problem with J >= 1.
      batch_size: m.
      clip_norm: C.
      multiplier_norm: Guess of the l1 norm of the multipliers.
      subset_shares: Guess of the subsets' shares of the data, `[S]` in (0, 1].
      rates: Guess of the prediction rates, `[S, K]`; default uniform.
      logit_gradient_norm: Guess of the norm of the logits' gradient.
      temperature: tau.

    Returns:
      The share, in (0, 1).

    Raises:
      ValueError: If a guess is not positive, or of the wrong shape.

    Example:
      >>> import dpjax
      >>> parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
      >>> problem = dpjax.problems.RateConstrained.linear(98, 2, parity)
      >>> share = dpjax.papers.rate_constrained.optimal_histogram_share(
      ...     problem, batch_size=1024, clip_norm=4.0, multiplier_norm=0.5,
      ...     subset_shares=[0.33, 0.67, 0.67, 0.33], logit_gradient_norm=3.3)
      >>> round(share, 3)
      0.065
    """
    constraints = problem.constraints
    weights = np.asarray(constraints.weights, float)
    _, subsets, classes = weights.shape
    shares = np.asarray(subset_shares, float)
    for name, value in (
        ("batch_size", batch_size),
        ("clip_norm", clip_norm),
        ("multiplier_norm", multiplier_norm),
        ("subset_shares", shares),
        ("logit_gradient_norm", logit_gradient_norm),
        ("temperature", temperature),
    ):
        check_positive(name, value)
    check_shape("subset_shares", shares, (subsets,))
    rates = np.full((subsets, classes), 1 / classes) if rates is None else np.asarray(rates, float)
    check_shape("rates", rates, (subsets, classes))
    parts = np.asarray(constraints.membership, float).sum(axis=1)
    centred = weights - (weights * rates).sum(axis=2, keepdims=True)
    by_row = (parts / (batch_size * shares) ** 2 * (centred**2).sum(axis=2)).sum(axis=1)
    table = multiplier_norm * temperature * logit_gradient_norm * math.sqrt(by_row.max())
    gradient = math.sqrt(problem.num_params) * clip_norm / batch_size
    return table / (table + gradient)


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
