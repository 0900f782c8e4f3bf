"""Query release as printed.

`MirrorDescentRelease` and `SaddleRelease` of this package have printed settings of their own, by
`for_budget(..., as_published=True)`; MWEM has none but its number of steps.
"""

import math
from typing import Any

import jax.numpy as jnp

from dpjax.core import check_int
from dpjax.privacy import Budget
from dpjax.problems import QueryRelease
from dpjax.solvers._published import log_inverse_delta
from dpjax.solvers.queries._frank_wolfe_release import FrankWolfeRelease


def frank_wolfe(
    problem: QueryRelease,
    num_records: int,
    budget: Budget,
    *,
    steps: int | None = None,
    **overrides: Any,
) -> FrankWolfeRelease:
    r"""`FrankWolfeRelease` with the printed T, step, regularisation and noise.

    $$ \alpha = \frac{\log^{1/5}(1/\delta) \log^{2/5} 2m}{(\epsilon n)^{2/5} \log^{4/5} k}, \qquad
       \eta = \frac{2}{\sqrt{2 \alpha T}}, \qquad
       b = \frac{4 D \sqrt{2 T \log(1/\delta)}}{\epsilon n} $$

    with Laplace noise of scale b on the scores and D the l1 diameter of the queries, up to the size
    of the universe, where scores move by 2 / n at most.

    Guarantee: the solver's own, from the range of the scores and zCDP: far below the budget (at
    epsilon 1 below 1e-4 on small workloads).

    Args:
      problem: The workload is used, never data (*public*).
      num_records: n (*public*).
      budget: epsilon, delta > 0 and relation.
      steps: T, if it is to be fixed.
      **overrides: Fields of `FrankWolfeRelease`.

    Returns:
      A `FrankWolfeRelease`.

    Raises:
      ValueError: If a value is outside its bound, or delta is 0.
      TypeError: If `num_records` or `steps` is not an integer, or an override no field.

    Example:
      >>> import dpjax
      >>> workload = dpjax.queries.Marginals.all_kway(dpjax.queries.Domain({"a": 4, "b": 5}), 1)
      >>> problem = dpjax.problems.QueryRelease(workload)
      >>> frank_wolfe(problem, 1000, dpjax.Budget(1.0, 1e-6)).guarantee().epsilon(1e-6) < 0.1
      True
    """
    check_int("num_records", num_records, minimum=1)
    workload = problem.workload
    log_k = math.log(max(2, workload.universe_size))
    log_q, log_delta = math.log(2 * workload.num_queries), log_inverse_delta(budget)
    scale = budget.epsilon * num_records
    alpha = log_delta**0.2 * log_q**0.4 / (scale**0.4 * log_k**0.8)
    diameter = 2.0  # of +-q in the largest entry
    if steps is None:
        steps = max(2, round(diameter**1.5 * scale / (math.sqrt(32 * alpha * log_delta) * log_q)))
    l1_diameter = 2 * float(jnp.max(jnp.abs(workload.answers(jnp.ones(workload.universe_size)))))
    printed = {
        "alpha": alpha,
        "step_size": 2 / math.sqrt(alpha * steps * diameter),
        "noise_scale": 4 * l1_diameter * math.sqrt(2 * steps * log_delta) / scale,
        "noise": "laplace",
        "output": "uniform",
    }
    return FrankWolfeRelease.for_budget(
        problem, num_records, budget, steps=steps, vertices="queries", **(printed | overrides)
    )
