"""Private training in one call, its result and the file of it."""

import dataclasses
import importlib.metadata
import io
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import NeighboringRelation

from dpjax.api._person_records import PersonRecords
from dpjax.api._plan import Candidate, check_problem, plan, table_of
from dpjax.api._public_size import public_size
from dpjax.api._table_model import TableModel
from dpjax.core import PyTree, Solver
from dpjax.core._records import Records, num_rows
from dpjax.privacy import Budget, Guarantee
from dpjax.privacy._budget import relation_name, resolve_relation
from dpjax.privacy._guarantee import epsilon_line
from dpjax.privacy._warnings import PrivacyWarning, warn
from dpjax.privacy.accounting._event_json import guarantee_from_json, guarantee_to_json
from dpjax.problems import PersonLoss, QueryRelease, RateConstrained, Risk
from dpjax.problems._constraints import ByCodes
from dpjax.problems._rate_constrained import LinearLogits, cross_entropy
from dpjax.queries import Domain
from dpjax.queries.tables._frames import float_array, named_columns, typed_by_rows
from dpjax.runtime import solve

_INFO, _PARAMS, _TABLE = "fit.json", "params.npz", "table.json"
_PLAIN = ("method", "reason", "delta", "validation_loss")  # fields, as JSON has them
_NEAR = 1.5  # numbers of records, as a ratio
_DELTAS = tuple(10.0**-k for k in range(1, 13))


@dataclasses.dataclass(frozen=True)
class StoredGuarantee:
    """Points of the curve of a guarantee that is no event, as `load` reads them.

    Guarantee: what was claimed when it was saved, at the points that were.

    Attributes:
      points: Pairs (delta, epsilon), by falling delta.
      relation: Of the guarantee.
    """

    points: tuple[tuple[float, float], ...]
    relation: NeighboringRelation

    def epsilon(self, delta: float) -> float:
        """Epsilon at the largest saved delta up to this one; infinity below all of them."""
        return next((epsilon for at, epsilon in self.points if at <= delta), math.inf)

    def delta(self, epsilon: float) -> float:
        """The least saved delta at which epsilon is no more than this; 1 without one."""
        return min((at for at, own in self.points if own <= epsilon), default=1.0)


@dataclasses.dataclass(frozen=True, repr=False)
class Fitted:
    """Parameters and how they were made; all of it is covered by the guarantee, or public.

    Attributes:
      params: The released parameters.
      guarantee: `guarantee.epsilon(delta)`.
      solver: What ran; after `load` its repr.
      method: Its name.
      reason: Why it was chosen.
      considered: All methods, the choice first.
      delta: Of the budget.
      validation_loss: Mean loss of the *public* validation records, if there were any.
      version: Of dpjax, with which it was made.
      table: Of `python -m dpjax fit`: schema, target, and texts of missing values.
    """

    params: PyTree
    guarantee: PyTree
    solver: Solver | str
    method: str
    reason: str
    considered: tuple[Candidate, ...]
    delta: float
    validation_loss: float | None = None
    version: str = ""
    table: PyTree = None

    def __repr__(self) -> str:
        """A summary that a person can read."""
        shapes = ", ".join(str(list(np.shape(leaf))) for leaf in jax.tree.leaves(self.params))
        lines = [
            f"Fitted by {self.method}: {self.reason}",
            f"{epsilon_line(self.guarantee, self.delta)}, "
            f"relation={relation_name(self.guarantee.relation)!r}",
            f"params {shapes}",
        ]
        if self.validation_loss is not None:
            lines.append(f"mean loss of the validation records {self.validation_loss:.4g}")
        return "\n  ".join(lines) + "\n" + table_of(self.considered)

    @property
    def model(self) -> TableModel:
        """How `params` read a table.

        Raises:
          ValueError: If it is none of `python -m dpjax fit`.
        """
        if self.table is None:
            raise ValueError(
                "this fit must be of `python -m dpjax fit --output` to read tables: it has no "
                "schema; use what reads its params, as problem.predict(fitted.params, x)"
            )
        return TableModel(Domain.from_json(self.table["schema"]), self.table["target"])

    def predict(self, table: object) -> np.ndarray:
        """Values `[n]` of the target of `python -m dpjax fit` for the rows of a table.

        Args:
          table: As `Domain.encode` takes it; the target may be absent (*secret*, or public).

        Raises:
          ValueError: If it is no fit of that command, or a value is outside the schema.
        """
        return self.model.predict(self.params, table)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes parameters, guarantee and public fields to one file; nothing that is secret.

        Args:
          path: Of the file, which is replaced.

        Raises:
          TypeError: If the parameters are not nested dicts, lists, tuples or arrays.
        """
        leaves, treedef = jax.tree.flatten(self.params)
        shape = _shape_of(jax.tree.unflatten(treedef, range(len(leaves))))
        guarantee, relation = self.guarantee, resolve_relation(self.guarantee.relation)
        if isinstance(guarantee, Guarantee):
            told: PyTree = guarantee_to_json(guarantee)
        else:
            deltas = sorted({*_DELTAS, self.delta} - {0.0}, reverse=True)
            points = [(delta, float(guarantee.epsilon(delta))) for delta in deltas]
            told = {"points": [point for point in points if math.isfinite(point[1])]}
        info = {
            "version": _version(),
            "guarantee": told,
            "relation": relation_name(relation),
            "params": shape,
            "solver": repr(self.solver) if not isinstance(self.solver, str) else self.solver,
            "considered": [list(candidate) for candidate in self.considered],
        }
        info |= {name: getattr(self, name) for name in _PLAIN}
        arrays = io.BytesIO()
        named: dict[str, PyTree] = {str(i): np.asarray(leaf) for i, leaf in enumerate(leaves)}
        np.savez(arrays, **named)
        with zipfile.ZipFile(Path(path), "w") as file:
            file.writestr(_INFO, json.dumps(info, indent=1))
            file.writestr(_PARAMS, arrays.getvalue())
            if self.table is not None:
                file.writestr(_TABLE, json.dumps(self.table))


def _version() -> str:
    try:
        return importlib.metadata.version("dpjax")
    except importlib.metadata.PackageNotFoundError:  # of a checkout that is not installed
        return "unknown"


def load(path: str | os.PathLike[str]) -> Fitted:
    """What `Fitted.save` wrote; parameters as NumPy arrays, the solver as text.

    Guarantee: that which was saved; one that had a curve of its own comes back as points of it.

    Args:
      path: Of the file.

    Returns:
      A `Fitted`.

    Raises:
      ValueError: If the file is none of these.
    """
    try:
        with zipfile.ZipFile(Path(path)) as file:
            info = json.loads(file.read(_INFO))
            with np.load(io.BytesIO(file.read(_PARAMS)), allow_pickle=False) as arrays:
                leaves = [arrays[str(i)] for i in range(len(arrays.files))]
            table = json.loads(file.read(_TABLE)) if _TABLE in file.namelist() else None
        relation, told = resolve_relation(info["relation"]), info["guarantee"]
        guarantee: PyTree
        if "points" in told:
            guarantee = StoredGuarantee(tuple(map(tuple, told["points"])), relation)
        else:
            guarantee = guarantee_from_json(told, relation)
        return Fitted(
            _params_of(info["params"], leaves),
            guarantee,
            considered=tuple(Candidate(*row) for row in info["considered"]),
            table=table,
            **{name: info[name] for name in (*_PLAIN, "solver", "version")},
        )
    except (KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be a file of Fitted.save: {error}") from error


def _shape_of(tree: PyTree) -> PyTree:
    """A tree of numbers as JSON: a dict by its items, a list or tuple by its kind."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, dict):
        return {"dict": {str(name): _shape_of(entry) for name, entry in tree.items()}}
    if isinstance(tree, list | tuple):
        return {type(tree).__name__: [_shape_of(entry) for entry in tree]}
    raise TypeError(f"params must be dicts, lists, tuples or arrays, got {type(tree).__name__}")


def _params_of(shape: PyTree, leaves: list[np.ndarray]) -> PyTree:
    if isinstance(shape, int):
        return leaves[shape]
    ((kind, entries),) = shape.items()
    if kind == "dict":
        return {name: _params_of(entry, leaves) for name, entry in entries.items()}
    values = [_params_of(entry, leaves) for entry in entries]
    return values if kind == "list" else tuple(values)


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
    may be the number of records; else give a public number near it. For `PersonRecords` all of it
    holds for a person as one record, with the mean loss of the rows that are kept (`PersonLoss`).

    Args:
      problem: `LinearModel`, `Risk`, `RateConstrained`, `SimplexRisk`, `Saddle` or `QueryRelease`
        (*public*).
      data: A dict of arrays `[n, ...]`, a pair (x, y), or a data frame, whose columns are the
        fields; for a `QueryRelease` what `Domain.encode` takes (*secret*). The type of an array is
        *public*. That of a frame's column follows from its rows (integers are floats if one is
        missing), so numbers of frames and their columns enter as floats, missing ones as NaN; but
        labels and groups of a `RateConstrained` as int32, -1 where they are no integer, arrays of
        bools or floats too. For a loss that needs other integers, pass arrays. For a `Risk` also
        `PersonRecords`, where a person has several rows.
      budget: epsilon, delta and relation to meet.
      key: Typed key, scalar (*secret*). Never use one key for two fits.
      num_records: *Public* number of records. By default it is read from the data, with a warning
        unless the relation is replace-one. Of people it is required then.
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
      UserWarning: If `num_records` is not near their number, where that is public.

    Example:
      >>> import dpjax, jax, numpy as np
      >>> x = np.linspace(-1, 1, 4000)[:, None]
      >>> problem = dpjax.problems.LinearModel("squared", 1, radius=1.0)
      >>> budget = dpjax.Budget(1.0, 1e-6, "replace_one")
      >>> fitted = dpjax.fit(problem, (x, x[:, 0] / 2), budget, key=jax.random.key(0))
      >>> abs(float(fitted.params[0]) - 0.5) < 0.1, fitted.method
      (True, 'sufficient_statistics')
    """
    check_problem(problem)
    people = isinstance(data, PersonRecords)
    if people:
        problem, data = _of_people(problem), data.people()
        if isinstance(validation, PersonRecords):
            validation = validation.people()
    records = _records(problem, data)
    rows = records.num_records if isinstance(records, Records) else num_rows(records)
    size = rows if num_records is None else num_records
    planned = plan(problem, size, budget, method=method, **options)
    guarantee: Any = planned.solver.guarantee()
    if relation_name(guarantee.relation) != "replace_one":
        if people:
            public_size(num_records, relation_name(guarantee.relation), rows, bounds=False)
        if num_records is None:
            warn(
                "num_records is read from the data, and public under replace_one alone: give a "
                "public number near it",
                PrivacyWarning,
            )
    elif not size / _NEAR <= rows <= size * _NEAR:
        warn(
            f"num_records = {size} is far from the {rows} records that there are: leave it out "
            "under replace_one, or step sizes and noise are for other data",
            UserWarning,
        )
    solution = solve(planned.solver, problem, records, key=key, progress=progress)
    loss = None
    if validation is not None:
        loss = float(problem.mean_loss(solution.params, _records(problem, validation)))
    made = {"delta": budget.delta, "validation_loss": loss, **vars(planned)}
    return Fitted(solution.params, solution.guarantee, **made)


def _of_people(problem: PyTree) -> Risk:
    """The problem whose records are people."""
    if not isinstance(problem, Risk):
        raise TypeError(
            f"problem must be a Risk for PersonRecords, got {type(problem).__name__}: write the "
            "loss of a row, dpjax.problems.Risk(loss, init); queries go to dpjax.release"
        )
    loss = problem.loss if isinstance(problem.loss, PersonLoss) else PersonLoss(problem.loss)
    return dataclasses.replace(problem, loss=loss)


def _records(problem: PyTree, data: PyTree) -> PyTree:
    """Records as the problem reads them."""
    if isinstance(problem, QueryRelease):
        domain = problem.workload.domain
        return np.asarray(data) if domain is None else domain.encode(data)
    if isinstance(data, tuple) and len(data) == 2 and not hasattr(data, "_fields"):
        data = dict(zip(("x", "y"), data, strict=True))
    elif hasattr(data, "columns") and hasattr(data, "__getitem__"):
        data = named_columns(data)
    if isinstance(data, dict):
        codes = _code_fields(problem)
        data = {name: _column(name, leaf, name in codes) for name, leaf in data.items()}
    return jax.tree.map(jnp.asarray, data)


def _column(name: str, leaf: PyTree, codes: bool) -> PyTree:
    """A column of a frame, of a type that follows from the problem alone, as are codes of any kind.

    Other arrays and lists stay as they are.
    """
    if hasattr(leaf, "toarray"):
        raise TypeError(f"{name} must be a dense array, got {type(leaf).__name__}: take .toarray()")
    if isinstance(leaf, list | tuple):
        converted = codes or any(isinstance(each, str) for each in leaf)
    elif isinstance(leaf, np.ndarray | jax.Array):
        converted = leaf.dtype.kind in ("OUSbf" if codes else "OUS")
    else:
        converted = typed_by_rows(leaf)
    if not converted:
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
