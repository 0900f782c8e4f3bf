"""Query release in one call."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.api._released import Release
from dpjax.core import Solver, check_choice, check_int
from dpjax.papers._mirror_descent_release import MirrorDescentRelease
from dpjax.papers._mwem import MWEM
from dpjax.papers._saddle_release import SaddleRelease
from dpjax.privacy import Budget, check_budget
from dpjax.privacy._relations import relation_name
from dpjax.problems import QueryRelease
from dpjax.queries import Hierarchy, Marginals
from dpjax.queries._workload import Workload, check_records
from dpjax.runtime import solve
from dpjax.solvers._swamped import candidates
from dpjax.solvers.queries._frank_wolfe_release import FrankWolfeRelease
from dpjax.solvers.queries._gaussian_fit import GaussianFit
from dpjax.solvers.queries._histogram_release import HistogramRelease

_METHODS: dict[str, Callable[..., Any]] = {
    "gaussian_fit": GaussianFit.for_budget,
    "frank_wolfe": FrankWolfeRelease.for_budget,
    "mirror_descent": MirrorDescentRelease.for_budget,
    "saddle": SaddleRelease.for_budget,
    "mwem": MWEM.for_budget,
    "histogram": HistogramRelease.for_budget,
}
# noise in an answer after least squares, above which the prior says more than a large table
_COARSE = 0.05


def release(
    workload: Workload,
    data: object,
    budget: Budget,
    *,
    key: jax.Array,
    method: str = "auto",
    num_records: int | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Release:
    r"""Private answers to a workload, and a distribution that gives them: synthetic data.

    `"auto"` chooses from public quantities alone, before it looks at the data, between Gaussian
    noise on all answers and on the histogram, by the noise in the worst answer; with marginals
    whose noise would be above 0.05 it measures the tables of one and two attributes below them.
    `reason` says what it compared. With delta = 0 it draws queries (`"frank_wolfe"`).

    Guarantee: that of the method, at most the budget. Under replace-one, the default, the number of
    records is public; under add-or-remove-one give `num_records`, a public constant near it. With
    `epsilon = math.inf` no noise is added, and the guarantee says so: it is non-private.

    Args:
      workload: The queries, of `dpjax.queries` (*public*).
      data: Records, *secret*: over a domain whatever `Domain.encode` takes (codes `[n, A]`, columns
        by name, a data frame); else cells `[n]`.
      budget: epsilon, delta and relation; the relation defaults to replace-one.
      key: Typed key, scalar (*secret*). Never use one key for two releases.
      method: `"auto"`, `"gaussian_fit"`, `"frank_wolfe"`, `"mirror_descent"`, `"saddle"`, `"mwem"`
        or `"histogram"`.
      num_records: *Public* n by which counts are divided; default, under replace-one, their number.
      progress: As for `dpjax.solve`.
      **options: Of the method's `for_budget`; none with `"auto"`.

    Returns:
      A `Release`.

    Raises:
      TypeError: If the key is missing or not typed, the budget none, workload or data of another
        kind, or an option no field of the method.
      ValueError: If a value is outside its bound, a record outside the public domain, the universe
        too large, or `num_records` missing under add-or-remove-one.

    Example:
      >>> import dpjax, jax, numpy as np
      >>> domain = dpjax.queries.Domain({"sex": ["F", "M"], "age": 4})
      >>> workload = dpjax.queries.Marginals.all_kway(domain, 2)
      >>> data = {"sex": np.repeat(["F", "M"], 500), "age": np.arange(1000) % 4}
      >>> released = release(workload, data, dpjax.Budget(1.0, 1e-6), key=jax.random.key(0))
      >>> bool(abs(released.answers - 1 / 8).max() < 0.05), released.method
      (True, 'gaussian_fit')
      >>> synthetic = released.sample(jax.random.key(1), 10)
      >>> sorted(set(released.decode(synthetic)["sex"].tolist()))
      ['F', 'M']
    """
    relation = relation_name(check_budget(budget).relation_or("replace_one"))
    check_workload(workload, data)
    check_choice("method", method, ("auto", *_METHODS))
    problem = QueryRelease(workload)
    records = _records(workload, data)
    if num_records is None:
        if relation != "replace_one":
            raise ValueError(
                f"num_records is required under {relation}, where the number of records is secret: "
                "pass a public number near it"
            )
        num_records = len(records)
    check_int("num_records", num_records, minimum=1)
    private = budget if math.isfinite(budget.epsilon) else dataclasses.replace(budget, epsilon=1.0)
    reason = "asked for"
    if method == "auto":
        if options:
            raise ValueError(f"options need a method other than 'auto', got {sorted(options)}")
        if private is budget:
            with candidates():
                method, options, reason = _choose(problem, num_records, budget)
        else:
            method, reason = "histogram", "exact"
    solver = _METHODS[method](problem, num_records, private, **options)
    if private is not budget:
        solver, reason = _without_noise(solver), reason + "; without noise: NOT PRIVATE"
    solution = solve(solver, problem, records, key=key, progress=progress)
    return Release(
        solution.params.answers,
        solution.params.log_probs,
        _stddev(solver, workload),
        workload,
        solution.guarantee,
        method,
        reason,
        budget.delta,
    )


def check_workload(workload: object, data: object) -> None:
    """Raises TypeError unless the first is a workload and the second is none."""
    if not isinstance(workload, Workload):
        raise TypeError(
            "workload must come first, in release(workload, data, budget, key=key), and be queries "
            f"of dpjax.queries such as Marginals, got {type(workload).__name__}"
        )
    if isinstance(data, Workload):
        raise TypeError(f"data must be the records, got the workload {type(data).__name__}")


def _records(workload: Workload, data: object) -> np.ndarray:
    if workload.domain is None:
        check_records(data)
    records = np.asarray(data) if workload.domain is None else workload.domain.encode(data)
    if len(records) == 0:
        raise ValueError("data must hold n >= 1 records, got none")
    return records


def _choose(
    problem: QueryRelease, num_records: int, budget: Budget
) -> tuple[str, dict[str, Any], str]:
    """A method, its options and why, from public quantities alone."""
    if budget.delta == 0:
        return "frank_wolfe", {}, "delta = 0, at which Gaussian noise has no epsilon"
    workload = problem.workload
    full = GaussianFit.for_budget(problem, num_records, budget)
    bars = _stddev(full, workload)
    noise = float(jnp.max(full.stddevs() if bars is None else bars))
    cells = HistogramRelease.for_budget(problem, num_records, budget)
    summed = float(jnp.max(_histogram_stddev(cells, workload)))
    why = f"noise in the worst answer: {noise:.2g} if answers are measured, {summed:.2g} if cells"
    if summed < noise:
        return "histogram", {}, why
    if isinstance(workload, Marginals) and noise > _COARSE:
        below = tuple(c for c in Hierarchy(workload).closure.cliques if len(c) <= 2)
        if set(below) != set(workload.cliques):
            why += f"; above {_COARSE}, so tables of one and two attributes are measured instead"
            measured = Marginals(workload.domain, below, sharding=workload.sharding)
            return "gaussian_fit", {"measured": measured}, why
    return "gaussian_fit", {}, why


def _without_noise(solver: Any) -> Any:
    """The limit of no noise, whose event is non-private."""
    if isinstance(solver, SaddleRelease):
        raise ValueError("method must be another than 'saddle' for epsilon = inf")
    fields = {field.name for field in dataclasses.fields(solver)}
    return dataclasses.replace(solver, **dict.fromkeys(fields & {"stddev", "noise_scale"}, 0.0))


def _stddev(solver: Solver, workload: Workload) -> jax.Array | None:
    """Noise of the best unbiased estimate of each answer, where noise is on answers or cells."""
    if isinstance(solver, HistogramRelease):
        return _histogram_stddev(solver, workload)
    if not isinstance(solver, GaussianFit):
        return None
    measured, noise = solver.measured, solver.stddevs()
    if not (isinstance(workload, Marginals) and isinstance(measured, Marginals)):
        return noise if measured is workload else None
    hierarchy = Hierarchy(measured)
    each = np.maximum(np.asarray(noise)[np.asarray(measured.offsets)], 1e-30)
    spread = dict(zip(hierarchy.closure.cliques, hierarchy.least_squares_stddev(each), strict=True))
    tables = [spread.get(clique, math.nan) for clique in workload.cliques]
    return jnp.asarray(np.asarray(tables)[workload.clique_of], float)


def _histogram_stddev(solver: HistogramRelease, workload: Workload) -> jax.Array:
    # of 0/1 queries; of others it is off by at most their largest entry
    squares = jnp.abs(workload.answers(jnp.ones(workload.universe_size)))
    return jnp.asarray(solver.stddev, float) * jnp.sqrt(squares)
