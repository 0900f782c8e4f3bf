"""Query release in one call."""

import dataclasses
import functools
import itertools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.api._person_records import PersonRecords, check_people
from dpjax.api._predicted import MOST_PREDICTED, gram, level_precisions, predicted_error
from dpjax.api._public_size import public_size
from dpjax.api._released import Release
from dpjax.core import Solver, check_choice
from dpjax.papers._mirror_descent_release import MirrorDescentRelease
from dpjax.papers._mwem import MWEM
from dpjax.papers._saddle_release import SaddleRelease
from dpjax.privacy import Budget, Guarantee, check_budget, compose_guarantees
from dpjax.privacy._budget import relation_name
from dpjax.problems import QueryRelease
from dpjax.queries import Domain, Hierarchy, Marginals, Prefix, Tree
from dpjax.queries._workload import Workload, check_records
from dpjax.queries.tables._frames import container_of
from dpjax.runtime import solve
from dpjax.solvers import FrankWolfeRelease, HistogramRelease, ReleasedRows, RowsFit
from dpjax.solvers._request import candidates
from dpjax.solvers.queries._gaussian_fit import FLOOR, AnswersMeasurement, GaussianFit

METHODS: dict[str, Callable[..., Any]] = {
    "gaussian_fit": GaussianFit.for_budget,
    "frank_wolfe": FrankWolfeRelease.for_budget,
    "mirror_descent": MirrorDescentRelease.for_budget,
    "saddle": SaddleRelease.for_budget,
    "mwem": MWEM.for_budget,
    "histogram": HistogramRelease.for_budget,
    "rows": RowsFit.for_budget,
}
_MOST_CELLS = 2**24  # of a universe that distributions are vectors over
_MISFIT = 1.1  # mean square of residuals, in units of the noise
_MOST_LARGE = 2**14  # cells of tables of three attributes or more, measured over a larger one
# noise in an answer after least squares, above which the prior says more than a large table
_COARSE = 0.05
_CELLS_GAIN = 0.8  # error of fits to cells over the predicted one, which may be negative
_TARGET = 8.0  # precision of tables with what is to be predicted, over that of others
_SLACK = 1e-3  # of epsilon, where it is shared with what is spent
_ATTEMPTS = 30

Choice: TypeAlias = tuple[str, dict[str, Any], str]
"""A method, its options and why."""


def release(
    workload: Workload | Domain,
    data: object,
    budget: Budget,
    *,
    key: jax.Array,
    method: str = "auto",
    num_records: int | None = None,
    target: str | None = None,
    spent: Sequence[Guarantee] = (),
    progress: bool | None = None,
    **options: Any,
) -> Release:
    r"""Private answers to a workload, and a distribution that gives them: synthetic data.

    `"auto"` chooses from public quantities alone, before it looks at the data. For marginals, and
    above 1,024 cells, it chooses between Gaussian noise on all answers and on the histogram, by the
    noise in the worst answer; for other queries by the predicted error after the fit, and for
    `Prefix` among a `Tree` of blocks as well. With marginals whose noise would be above 0.05 it
    measures the tables of one and two attributes below them.
    Marginals over a universe of more than $2^{24}$ cells are measured and fitted by a mixture of
    products (`"rows"`), in memory that depends on the tables alone. `reason` says what it compared.
    With delta = 0 it draws queries (`"frank_wolfe"`).

    Guarantee: that of the method, composed with what is `spent`, at most the budget. Under
    replace-one, the default, the number of records is public; under add-or-remove-one give
    `num_records`, a public constant near it. With `epsilon = math.inf` no noise is added, and the
    guarantee says so: it is non-private. For `PersonRecords` all of it holds for a person joining
    or leaving with all rows.

    Args:
      workload: The queries, of `dpjax.queries`; a `Domain` stands for all tables of two of its
        attributes (*public*).
      data: Records, *secret*: over a domain whatever `Domain.encode` takes (codes `[n, A]`, columns
        by name, a data frame); else cells `[n]`. Or `PersonRecords` of these over a domain, where a
        person has several rows: by `"gaussian_fit"`, `"rows"` or `"histogram"`, under
        add-or-remove-one.
      budget: epsilon, delta and relation; the relation defaults to replace-one.
      key: Typed key, scalar (*secret*). Never use one key for two releases.
      method: `"auto"`, `"gaussian_fit"`, `"frank_wolfe"`, `"mirror_descent"`, `"saddle"`, `"mwem"`,
        `"histogram"` or `"rows"`.
      num_records: *Public* n by which counts are divided; default, under replace-one, their number.
      target: An attribute that models trained on synthetic rows are to predict (*public*). Tables
        with it get eight times the precision of others where tables are measured, and pairs with it
        are measured even where noise leaves nothing else but columns. Others get more noise: of 14
        columns 1.4 times as much in all other pairs.
      spent: Guarantees of what the same records were asked before at a price fixed in advance, as
        by `private_edges`; none for `PersonRecords`, since these are per row.
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
    check_workload(workload, data)
    if isinstance(workload, Domain):
        workload = Marginals.all_kway(workload, min(2, len(workload.attributes)))
    people = data if isinstance(data, PersonRecords) else None
    default = "replace_one" if people is None else "add_or_remove_one"
    relation = relation_name(check_budget(budget).relation_or(default))
    budget = dataclasses.replace(budget, relation=relation)
    check_choice("method", method, ("auto", *METHODS))
    wide = isinstance(workload, Marginals) and workload.universe_size > _MOST_CELLS
    apart = method == "rows" or (wide and method == "auto" and budget.delta > 0)
    problem = QueryRelease(workload, max_bytes=None) if apart else QueryRelease(workload)
    if target is not None:
        _check_target(target, workload, options)
    if people is not None:
        check_people(workload, relation, method, spent)
    if workload.domain is None:
        check_records(data)
        records = np.asarray(data)
    else:
        records = workload.domain.encode(data) if people is None else people.codes(workload.domain)
    if len(records) == 0:
        raise ValueError("data must hold n >= 1 records, got none")
    num_records = public_size(num_records, relation, len(records), bounds=False)
    if relation == "replace_one" and num_records != len(records):
        raise ValueError(
            f"num_records must be {len(records)}, the number of records, which is public under "
            f"replace-one, got {num_records}: leave it out"
        )
    private = budget if math.isfinite(budget.epsilon) else dataclasses.replace(budget, epsilon=1.0)
    reason = "asked for"
    max_rows = 1 if people is None else people.max_rows
    if method == "auto":
        if options:
            raise ValueError(f"options need a method other than 'auto', got {sorted(options)}")
        if private is budget:
            with candidates():
                # noise for a person is larger by the number of rows
                rows = max(num_records // max_rows, 1)
                method, options, reason = choose(problem, rows, budget, target)
        else:
            method, reason = ("rows", "a mixture of products") if apart else ("histogram", "exact")
    measured = options.get("measured", workload)
    tables = isinstance(measured, Marginals) and method in ("gaussian_fit", "rows")
    if target is not None and tables:
        has = np.array([target in clique for clique in measured.cliques])
        options = options | {"allocation": np.where(has, _TARGET, 1.0)}
        reason += f"; tables with {target!r} have {_TARGET:g} times the precision"
    make = functools.partial(METHODS[method], problem, num_records, **options)
    solver, guarantee = _within(make, private, spent, max_rows)
    if private is not budget:
        if isinstance(solver, SaddleRelease):
            raise ValueError("method must be another than 'saddle' for epsilon = inf")
        noises = {field.name for field in dataclasses.fields(solver)} & {"stddev", "noise_scale"}
        solver = dataclasses.replace(solver, **dict.fromkeys(noises, 0.0))
        guarantee, reason = solver.guarantee(), reason + "; without noise: NOT PRIVATE"
    solution = solve(solver, problem, records, key=key, progress=progress)
    fitted = solution.params
    misfit = float(fitted.misfit) if isinstance(fitted, ReleasedRows) else 0.0
    if misfit > _MISFIT + 3 * math.sqrt(2 / workload.num_queries) and private is budget:
        warnings.warn(
            f"squared residuals of the fit are {misfit:.2f} times those of the noise: it has not "
            "converged, and method='rows' takes more fit_steps or rows",
            stacklevel=2,
        )
    told: dict[str, Any] = {"guarantee": guarantee, "method": method, "reason": reason}
    ratio = _noisy_total(solver, solution.state)
    told |= {"delta": budget.delta, "num_records": num_records, "total": ratio * num_records}
    told |= {"max_rows": None if people is None else max_rows}
    told |= {"container": container_of(data if people is None else people.table)}
    bars = _table_stddev(solver, workload)
    told |= {"table_stddev": tuple((clique, bar / ratio) for clique, bar in bars)}
    told |= {"model": fitted.model} if apart else {}
    if isinstance(solver, AnswersMeasurement):
        told |= {"raw": solution.state.measured, "measured": solver.measured}
    log_probs = None if apart else fitted.log_probs
    stddev = _stddev(solver, workload)
    stddev = None if stddev is None else stddev / ratio
    return Release(fitted.answers, log_probs, stddev, workload, **told)


def _within(
    make: Callable[[Budget], Any], budget: Budget, spent: Sequence[Guarantee], max_rows: int
) -> tuple[Any, Guarantee]:
    """The solver of the least noise whose guarantee, with what is spent, meets the budget."""

    def attempt(epsilon: float) -> tuple[Any, Guarantee]:
        solver = make(dataclasses.replace(budget, epsilon=epsilon))
        guarantee = solver.guarantee()
        if max_rows > 1:
            # rows of one person move sums by up to max_rows times as much, and as many cells
            solver = dataclasses.replace(solver, stddev=max_rows * solver.stddev)
            failure = max_rows * solver.guarantee().failure_probability
            guarantee = Guarantee(guarantee.event, guarantee.relation, failure)
        return solver, compose_guarantees(*spent, guarantee) if spent else guarantee

    found = attempt(budget.epsilon)
    if not spent and max_rows == 1:
        return found
    own = compose_guarantees(*spent).epsilon(budget.delta) if spent else 0.0
    if own >= budget.epsilon:
        raise ValueError(f"spent must be < epsilon = {budget.epsilon:g} by itself, got {own:.4g}")
    asked = budget.epsilon
    for _ in range(_ATTEMPTS):
        total = found[1].epsilon(budget.delta)
        if (1 - _SLACK) * budget.epsilon <= total <= budget.epsilon:
            return found
        # of several Gaussians the squares of epsilon nearly add
        square = asked**2 + (1 - _SLACK / 2) ** 2 * budget.epsilon**2 - total**2
        asked = math.sqrt(square) if square > 0 else asked / 2
        found = attempt(asked)
    raise ValueError(f"no noise found that meets {budget} with what is spent: spend less before")


def check_workload(workload: object, data: object) -> None:
    """Raises TypeError unless the first is a workload or domain and the second is none."""
    if not isinstance(workload, Workload | Domain):
        raise TypeError(
            "workload must come first, in release(workload, data, budget, key=key), and be queries "
            f"of dpjax.queries such as Marginals, or a Domain, got {type(workload).__name__}"
        )
    if isinstance(data, Workload | Domain):
        raise TypeError(f"data must be the records, got the workload {type(data).__name__}")


def _check_target(target: str, workload: Workload, options: dict[str, Any]) -> None:
    if not isinstance(workload, Marginals):
        raise TypeError(f"target needs marginals, got the workload {type(workload).__name__}")
    if target not in workload.domain.attributes:
        raise ValueError(f"target must be one of {workload.domain.attributes}, got {target!r}")
    if "allocation" in options:
        raise ValueError("target and allocation both divide the budget: give one")


def choose(
    problem: QueryRelease, num_records: int, budget: Budget, target: str | None = None
) -> Choice:
    """A method, its options and why, from public quantities alone."""
    if budget.delta == 0:
        return "frank_wolfe", {}, "delta = 0, at which Gaussian noise has no epsilon"
    workload = problem.workload
    if isinstance(workload, Marginals) and workload.universe_size > _MOST_CELLS:
        return _choose_rows(problem, workload, num_records, budget, target)
    few = not isinstance(workload, Marginals) and workload.universe_size <= MOST_PREDICTED
    if few or isinstance(workload, Prefix):
        return _choose_predicted(problem, num_records, budget)
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


def _choose_predicted(problem: QueryRelease, num_records: int, budget: Budget) -> Choice:
    """What to measure of few cells, or for prefixes, by the predicted error after the fit."""
    workload = problem.workload
    line, tree = workload, None  # queries of the ordered axis alone
    if isinstance(workload, Prefix):
        line = Prefix(workload.num_queries + 1)
        tree = Tree(workload.universe, workload.attribute)
    elif workload.domain is None:
        tree = Tree(workload.universe_size)
    options: dict[str, dict[str, Any]] = {"answers": {}, "cells": {}}
    if line.universe_size > MOST_PREDICTED:  # of a long axis as of a shorter one
        shorter = QueryRelease(Prefix(MOST_PREDICTED))
        method, fields, why = _choose_predicted(shorter, num_records, budget)
        return method, {"measured": tree} if fields else {}, why
    asked, along = gram(line), None
    if tree is not None:
        along = Tree(line.universe_size)
        options["a tree"] = {"measured": tree, "allocation": level_precisions(along, asked)}
    errors = {}
    for name, fields in options.items():
        if name == "cells":
            cells = HistogramRelease.for_budget(problem, num_records, budget)
            summed = float(cells.stddev) ** 2 * workload.universe_size / line.universe_size
            errors[name] = _CELLS_GAIN * predicted_error(
                asked, np.eye(len(asked)) / summed, workload.num_queries
            )
            continue
        fit = GaussianFit.for_budget(problem, num_records, budget, **fields)
        weights = 1 / np.asarray(fit.stddevs(), np.float64) ** 2
        precision = gram(line if name == "answers" or along is None else along, weights)
        errors[name] = predicted_error(asked, precision, workload.num_queries)
    best = min(errors, key=lambda name: errors[name])
    compared = ", ".join(f"{error:.2g} if {name}" for name, error in errors.items())
    why = f"predicted root mean square error after the fit, by what is measured: {compared}"
    return "histogram" if best == "cells" else "gaussian_fit", options[best], why


def _choose_rows(
    problem: QueryRelease,
    workload: Marginals,
    num_records: int,
    budget: Budget,
    target: str | None,
) -> Choice:
    """What to measure where the universe does not fit in memory."""
    why = f"a mixture of products, for 2**{math.log2(workload.universe_size):.1f} cells"
    orders = np.array([len(clique) for clique in workload.cliques])
    large = int(np.sum(np.array(workload.sizes)[orders > 2]))
    measured, closure = workload, Hierarchy(workload).closure.cliques
    for order in (2, 1):
        full = RowsFit.for_budget(problem, num_records, budget, measured=measured)
        noise = float(jnp.max(jnp.asarray(_stddev(full, measured))))
        if noise <= _COARSE and (order == 1 or large <= _MOST_LARGE):
            break
        below = [c for c in closure if len(c) <= order or (len(c) == 2 and target in c)]
        whole = [c for c in below if not any(set(c) < set(other) for other in below)]
        if set(whole) == set(measured.cliques):
            continue
        measured = Marginals(workload.domain, tuple(whole))
        largest = "two attributes at most" if order == 2 else "one attribute"
        largest += "" if order == 2 or target is None else f", and pairs with {target!r},"
        why += f"; tables of {largest} are measured, since those above them "
        why += f"have noise {noise:.2g}" if noise > _COARSE else f"have {large} cells"
        if order == 1 and target is None:
            why += ", so rows drawn tell nothing of how columns depend on each other"
    return "rows", {"measured": measured}, why


def _stddev(solver: Solver, workload: Workload) -> jax.Array | None:
    """Noise of the best unbiased estimate of each answer, where noise is on answers or cells."""
    if isinstance(solver, HistogramRelease):
        return _histogram_stddev(solver, workload)
    if not isinstance(solver, AnswersMeasurement):
        return None
    measured, noise = solver.measured, solver.stddevs()
    if not (isinstance(workload, Marginals) and isinstance(measured, Marginals)):
        return noise if measured is workload else None
    hierarchy = Hierarchy(measured)
    each = np.maximum(np.asarray(noise)[np.asarray(measured.offsets)], 1e-30)
    spread = dict(zip(hierarchy.closure.cliques, hierarchy.least_squares_stddev(each), strict=True))
    tables = [spread.get(clique, math.nan) for clique in workload.cliques]
    return jnp.asarray(np.asarray(tables)[workload.clique_of], float)


def _noisy_total(solver: Solver, state: Any) -> float:
    """What noisy tables say of the number of records, over the public number; 1 where it is that.

    By as much the shares of a fit, which sum to 1, are larger than sums over the public number.
    """
    if isinstance(solver, HistogramRelease) and solver.projection != "none":
        return float(solver.total(state.noisy))
    if isinstance(solver, AnswersMeasurement):
        return float(solver.total(state.measured, jnp.maximum(solver.stddevs(), FLOOR)))
    return 1.0


def _table_stddev(solver: Solver, workload: Workload) -> tuple[tuple[tuple[str, ...], float], ...]:
    """Noise of a cell of the tables whose noise is known, and small enough in number to list."""
    domain = workload.domain
    if domain is not None and isinstance(solver, HistogramRelease):
        cliques = [c for k in (1, 2) for c in itertools.combinations(domain.attributes, k)]
        summed = [domain.universe_size / domain.project(clique).universe_size for clique in cliques]
        return tuple(zip(cliques, (float(solver.stddev) * np.sqrt(summed)).tolist(), strict=True))
    if isinstance(workload, Marginals) and isinstance(solver, AnswersMeasurement):
        below = Hierarchy(workload).closure
        noise = _stddev(solver, below)
        if noise is not None:
            spread = np.asarray(noise)[list(below.offsets)].tolist()
            return tuple(zip(below.cliques, spread, strict=True))
    return ()


def _histogram_stddev(solver: HistogramRelease, workload: Workload) -> jax.Array:
    # of 0/1 queries; of others it is off by at most their largest entry
    squares = jnp.abs(workload.answers(jnp.ones(workload.universe_size)))
    return jnp.asarray(solver.stddev, float) * jnp.sqrt(squares)
