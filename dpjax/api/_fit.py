"""Private training in one call."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.api._fitted import Fitted
from dpjax.api._plan import plan
from dpjax.core import PyTree
from dpjax.core._records import num_rows
from dpjax.privacy import Budget
from dpjax.privacy._relations import relation_name
from dpjax.privacy._warnings import PrivacyWarning, warn
from dpjax.problems import QueryRelease, RateConstrained
from dpjax.problems._linear import LinearLogits
from dpjax.problems._parts import ByCodes
from dpjax.problems._rate_constrained import cross_entropy
from dpjax.queries.tables._frames import float_array, typed_by_rows
from dpjax.runtime import solve


def fit(
    problem: PyTree,
    data: PyTree,
    budget: Budget,
    *,
    key: jax.Array,
    num_records: int | None = None,
    method: str = "auto",
    validation: PyTree = None,
    progress: bool | None = None,
    **options: Any,
) -> Fitted:
    """Solves a problem by the method that should do best, chosen from public numbers.

    `dpjax.plan(problem, num_records, budget)` shows the choice without data.

    Guarantee: that of the solver, at most the budget. `num_records` is public: under replace-one it
    may be the number of records; else give a public number near it.

    Args:
      problem: `LinearModel`, `Risk`, `RateConstrained`, `SimplexRisk`, `Saddle` or `QueryRelease`
        (*public*).
      data: A dict of arrays `[n, ...]`, a pair (x, y), or a data frame, whose columns are the
        fields; for a `QueryRelease` what `Domain.encode` takes (*secret*). The type of an array is
        *public*. That of a frame's column follows from its rows (integers are floats if one is
        missing), so numbers of frames and their columns enter as floats, missing ones as NaN; but
        labels and groups of a `RateConstrained` as int32, -1 where they are no integer. For a loss
        that needs other integers, pass arrays.
      budget: epsilon, delta and relation to meet.
      key: Typed key, scalar (*secret*). Never use one key for two fits.
      num_records: *Public* number of records. By default it is read from the data, with a warning
        unless the relation is replace-one.
      method: `"auto"`, or a name from the table of `dpjax.plan`.
      validation: *Public* records, whose mean loss is reported; not used to choose.
      progress: As for `dpjax.solve`.
      **options: Of the `for_budget` of a method that is named.

    Returns:
      A `Fitted`.

    Raises:
      TypeError: If the key is not typed, or problem or data are of another kind.
      ValueError: If a value is outside its bound, or the budget cannot be met.

    Warns:
      PrivacyWarning: If `num_records` is read from data whose number is secret.

    Example:
      >>> import dpjax, jax, numpy as np
      >>> x = np.linspace(-1, 1, 4000)[:, None]
      >>> problem = dpjax.problems.LinearModel("squared", 1, radius=1.0)
      >>> budget = dpjax.Budget(1.0, 1e-6, "replace_one")
      >>> fitted = dpjax.fit(problem, (x, x[:, 0] / 2), budget, key=jax.random.key(0))
      >>> abs(float(fitted.params[0]) - 0.5) < 0.1, fitted.method
      (True, 'sufficient_statistics')
    """
    records = _records(problem, data)
    if num_records is None:
        num_records = num_rows(records)
        if budget.relation is None or relation_name(budget.relation) != "replace_one":
            warn(
                f"num_records = {num_records} is read from the data, and public under replace_one "
                "alone: give a public number near it",
                PrivacyWarning,
            )
    planned = plan(problem, num_records, budget, method=method, **options)
    solution = solve(planned.solver, problem, records, key=key, progress=progress)
    loss = None
    if validation is not None:
        loss = float(problem.mean_loss(solution.params, _records(problem, validation)))
    return Fitted(
        solution.params,
        solution.guarantee,
        planned.solver,
        planned.method,
        planned.reason,
        planned.considered,
        budget.delta,
        loss,
    )


def _records(problem: PyTree, data: PyTree) -> PyTree:
    """Records as the problem reads them."""
    if isinstance(problem, QueryRelease):
        domain = problem.workload.domain
        return np.asarray(data) if domain is None else domain.encode(data)
    if isinstance(data, tuple) and len(data) == 2 and not hasattr(data, "_fields"):
        data = dict(zip(("x", "y"), data, strict=True))
    elif hasattr(data, "columns") and hasattr(data, "__getitem__"):
        data = {str(name): data[name] for name in data.columns}
    if isinstance(data, dict):
        codes = _code_fields(problem)
        data = {name: _column(name, leaf, name in codes) for name, leaf in data.items()}
    return jax.tree.map(jnp.asarray, data)


def _column(name: str, leaf: PyTree, codes: bool) -> PyTree:
    """A column of a frame, of a type that follows from the problem alone; arrays as they are."""
    if isinstance(leaf, list | tuple) or not typed_by_rows(leaf):
        return leaf
    floats = float_array(name, leaf)
    if not codes:
        return floats
    whole = (floats == np.floor(floats)) & (np.abs(floats) < 2**31)
    return np.where(whole, floats, -1).astype(np.int32)


def _code_fields(problem: PyTree) -> frozenset[str]:
    """Fields that a problem reads as integer codes."""
    if not isinstance(problem, RateConstrained):
        return frozenset()
    part = problem.constraints.part if problem.num_constraints else None
    groups = part.sizes if isinstance(part, ByCodes) else {}
    labelled = problem.loss is cross_entropy or isinstance(problem.logits, LinearLogits)
    return frozenset([*groups, *["y"] * labelled])
