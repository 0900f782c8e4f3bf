"""Query release as printed: Micali, Lezane and Betken 2024, and algorithm 5 of González, Guzmán and
Paquette 2024.

MWEM has no printed setting but its number of steps. The map to code is in `docs/papers.md`.
"""

import math
from typing import Any

import jax.numpy as jnp

from dpjax.core import check_int
from dpjax.papers._log_delta import log_inverse_delta
from dpjax.papers._mirror_descent_release import MirrorDescentRelease
from dpjax.papers._saddle_release import SaddleRelease
from dpjax.privacy import Budget
from dpjax.problems import QueryRelease
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


def mirror_descent(
    problem: QueryRelease,
    num_records: int,
    budget: Budget,
    *,
    width: float | None = None,
    **overrides: Any,
) -> MirrorDescentRelease:
    r"""`MirrorDescentRelease` with the printed T, sigma and alpha, and noise in every step.

    With k the size of the universe and $L = \log(1/\delta)$,

    $$ T = \sqrt{\frac{\log k}{L}} \frac{\epsilon n}{w}, \qquad
       \sigma = \frac{4\sqrt{T L}}{\epsilon n}, \qquad
       \alpha = \frac{\sqrt{L w}}{\log^{3/4}k \sqrt{\epsilon n}}, \qquad
       c = \sqrt{\frac{8}{\sigma\alpha}} $$

    The printed sign and step are mended.

    Guarantee: that of `MirrorDescentRelease` with noise `"per-step"`, below the budget.

    Args:
      problem: The workload is used, never data (*public*).
      num_records: n (*public*).
      budget: epsilon, delta > 0 and relation.
      width: $w = E \max_j |\langle q_j, N(0, I) \rangle|$; default: the bound
        $\max_j \|q_j\|_2 \sqrt{2 \log 2m}$.
      **overrides: Fields of `MirrorDescentRelease`.

    Returns:
      A `MirrorDescentRelease`.

    Raises:
      ValueError: If a value is outside its bound, or delta is 0.
      TypeError: If `num_records` is not an integer, or an override no field.
    """
    check_int("num_records", num_records, minimum=1)
    workload, log_delta = problem.workload, log_inverse_delta(budget)
    if width is None:
        squares = float(jnp.max(jnp.abs(workload.answers(jnp.ones(workload.universe_size)))))
        width = math.sqrt(squares * 2 * math.log(2 * workload.num_queries))
    log_k, scale = math.log(max(2, workload.universe_size)), num_records * budget.epsilon
    steps = max(1, round(math.sqrt(log_k / log_delta) * scale / width))
    sigma = 4 * math.sqrt(steps * log_delta) / scale
    alpha = math.sqrt(log_delta * width) / (log_k**0.75 * math.sqrt(scale))
    printed = {"noise_scale": sigma, "alpha": alpha, "offset": math.sqrt(8 / (sigma * alpha))}
    return MirrorDescentRelease.for_budget(
        problem, num_records, budget, steps=steps, noise="per-step", **(printed | overrides)
    )


def saddle(
    problem: QueryRelease,
    num_records: int,
    budget: Budget,
    *,
    steps: int | None = None,
    **overrides: Any,
) -> SaddleRelease:
    r"""`SaddleRelease` with the printed T and step sizes.

    With k the size of the universe, m the number of queries and $L = \log(1/\delta)$,

    $$ T = \frac{6 n\epsilon}{16\sqrt{2L}\,\log 2m}, \qquad
       \tau_x = \sqrt{\frac{\log k}{9T}}, \qquad
       \tau_y = \frac{\log 2m}{6\sqrt{T \log k}} $$

    Queries count with both signs, since the objective has no absolute value.

    Guarantee: that of `SaddleRelease`: far below the budget, for printed is the sensitivity of T
    steps at range 2 where one of t - 1 at range 1 is due (0.016 at (1, 1e-6), with ten thousand
    queries on as many cells).

    Args:
      problem: The workload is used, never data (*public*).
      num_records: n (*public*).
      budget: epsilon, delta > 0 and relation.
      steps: T - 1, if it is to be fixed.
      **overrides: Fields of `SaddleRelease`.

    Returns:
      A `SaddleRelease`.

    Raises:
      ValueError: If a value is outside its bound, or delta is 0.
      TypeError: If `num_records` or `steps` is not an integer, or an override no field.

    Source: González, Guzmán and Paquette, 2024, algorithm 5 and theorem G.1.
    """
    check_int("num_records", num_records, minimum=1)
    log_k = math.log(max(2, problem.workload.universe_size))
    log_m, log_delta = math.log(2 * problem.workload.num_queries), log_inverse_delta(budget)
    if steps is None:
        spent = 6 * num_records * budget.epsilon / (16 * math.sqrt(2 * log_delta) * log_m)
        steps = max(2, round(spent)) - 1
    check_int("steps", steps, minimum=1)
    printed = {
        "dual_step_size": log_m / (6 * math.sqrt((steps + 1) * log_k)),
        "step_size": math.sqrt(log_k / (9 * (steps + 1))),
    }
    return SaddleRelease.for_budget(
        problem, num_records, budget, steps=steps, **(printed | overrides)
    )
