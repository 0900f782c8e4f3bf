"""Share of the budget to spend on the table of predictions."""

import math
from typing import Any

import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_positive, check_shape


def optimal_histogram_share(
    problem: Any,
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
      >>> share = dpjax.solvers.optimal_histogram_share(
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
