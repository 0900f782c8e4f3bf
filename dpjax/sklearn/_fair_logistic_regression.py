"""Private logistic regression under rate constraints, as a classifier of scikit-learn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from dpjax.api import tune as tuned_by
from dpjax.core import check_choice, check_positive
from dpjax.problems import demographic_parity, equality_of_odds, false_negative_rate
from dpjax.problems._constraints import RateConstraints
from dpjax.problems._rate_constrained import RateConstrained
from dpjax.runtime import solve
from dpjax.sklearn import _public as shared
from dpjax.solvers import RateConstrainedSGDA

_OF_GROUPS: dict[str | None, Callable[..., RateConstraints]] = {
    "demographic_parity": demographic_parity,
    "equality_of_odds": equality_of_odds,
}
CONSTRAINTS = (*_OF_GROUPS, "false_negative_rate", None)


@dataclass(kw_only=True, eq=False, repr=False)
class FairLogisticRegression(shared.LinearClassifier, shared.PrivateEstimator):
    r"""Logistic regression with a bound on disparity, private in all of a record.

    $$ \min_{W, b} \frac1n \sum_i \ell(x_i W + b, y_i) \quad\text{s.t.}\quad
       \Gamma_j(W, b) \le \gamma $$

    `dpjax.solvers.RateConstrainedSGDA` with its defaults; any number of classes.

    Guarantee: (`epsilon`, `delta`) for what a fit leaves, group and label included: `guarantee_`
    is the solver's, of the event that ran. No bound on features is needed, since each record's
    gradient is clipped. Public, and so never to be computed from the data: every argument of the
    constructor, the numbers and names of features, and under replace-one, the default, the number
    of records. Classes and groups that are read from the data, which warns, are **not** covered;
    neither are predictions for, and scores on, other private records, nor a choice between fits: m
    fits of one record cost m times, see `dpjax.privacy.compose_guarantees`.

    | input | effect |
    | --- | --- |
    | NaN or inf | ValueError, before anything runs |
    | a class or group that is not among the public ones | ValueError, likewise |
    | a group without records | its rates count as 0 |

    Args:
      epsilon: > 0 (*public*).
      delta: In (0, 1); None: $n^{-3/2}$, at most 1e-5, of the public number n (*public*).
      constraint: `"demographic_parity"` or `"equality_of_odds"` between groups, the
        `"false_negative_rate"` of the last of two classes, of each class where there are more, or
        None for no constraint (*public*).
      slack: gamma, bound on the disparity or rate, scalar (*public*).
      classes: `[K]`, the labels that there may be; None reads them from `y`, with a
        `PrivacyWarning`.
      groups: `[G]`, the same of `sensitive_features`.
      data_norm: Rows of `X` longer than this, in the l2 norm, are scaled down to it, in `fit` and
        in predictions; None: no row is (*public*). For the model's sake, not the guarantee's:
        features should be of the size of 1, by public constants.
      relation: `"replace_one"`, or `"add_or_remove_one"`, under which the same noise has a smaller
        epsilon and `num_records` is required (*public*). `RateConstrainedSGDA` itself defaults to
        the latter; not so here, since `fit(X, y)` gives no number of records that is public under
        it. The repr shows which holds.
      num_records: *Public* bound on the number of records, and the nominal size; None: the number
        of rows, which is public under replace-one only.
      steps: Number of steps; None: 1000, or 500 or 250 where noise is large.
      batch_size: Expected records a step; None: by the public size.
      clip_norm: Bound on a record's gradient; None: from public numbers, and it follows the
        multipliers.
      solver_options: Other arguments of `RateConstrainedSGDA.for_budget`, by name.
      tune: Arguments of `dpjax.tune`, by name, to choose options inside the same budget:
        `candidates`, a grid or a sampler of options of the solver, and perhaps `trials`,
        `validation`, `violation_weight` or `checkpoints`; None takes the defaults, which is often
        the better buy. `guarantee_` is then that of the selection (*public*).
      random_state: None for a key that nobody knows; what is released should have that. An integer,
        `RandomState` or `Generator` makes runs repeatable and is *secret*; each set of records and
        parameters gets a key of its own from it, so that fits do not share noise.

    Attributes:
      classes_: Labels, sorted, `[K]`.
      groups_: Groups, sorted; None where there are none.
      coef_: `[1, p]` of two classes, else `[K, p]`.
      intercept_: `[1]` or `[K]`.
      guarantee_: A `dpjax.Guarantee`.
      delta_: The delta asked for, or the default.
      epsilon_: `guarantee_.epsilon(delta_)`, at most `epsilon`.
      choice_: With `tune`, the winner's options, by name; else None.
      n_features_in_: Number of features p.
      feature_names_in_: Their names, where `X` has some.

    Example:
      >>> import dpjax, dpjax.sklearn
      >>> train, test = dpjax.datasets.adult().split()
      >>> model = dpjax.sklearn.FairLogisticRegression(
      ...     epsilon=1.0, slack=0.05, classes=[0, 1], groups=[0, 1], steps=100)
      >>> model = model.fit(train.x, train.y, sensitive_features=train.group)
      >>> model.epsilon_ <= 1.0, model.score(test.x, test.y) > 0.75
      (True, True)
    """

    constraint: str | None = "demographic_parity"
    slack: ArrayLike = 0.05
    classes: ArrayLike | None = None
    groups: ArrayLike | None = None
    data_norm: float | None = None
    steps: int | None = None
    batch_size: float | None = None
    clip_norm: float | None = None
    solver_options: dict[str, Any] | None = None
    tune: dict[str, Any] | None = None

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, sensitive_features: ArrayLike | None = None
    ) -> "FairLogisticRegression":
        """Trains on records, once, for the whole budget.

        Args:
          X: Features, `[n, p]` (*secret*).
          y: Labels, `[n]` (*secret*).
          sensitive_features: Groups, `[n]` (*secret*); needed by constraints between groups, and
            looked at by no other.

        Returns:
          The estimator.

        Raises:
          ValueError: If a parameter is outside its bound, `sensitive_features` is missing, a value
            is not finite, a class or group is not among the public ones, or there is but one.
        """
        check_choice("constraint", self.constraint, CONSTRAINTS)
        rows, targets = shared.checked_rows(self, X, y)
        check_classification_targets(targets)
        size, budget = self._public_size(len(rows))
        check_positive("epsilon", self.epsilon)
        self.classes_, labels = shared.public_codes("classes", targets, self.classes)
        with np.errstate(over="ignore"):  # a record of infinite gradient contributes nothing
            data = {"x": self._features(rows).astype(np.float32), "y": labels}
        self.groups_: Any = None
        if self.constraint in _OF_GROUPS:
            self.groups_, data["group"] = self._groups(rows, sensitive_features, self.groups)
        problem = self._problem()
        options: dict[str, Any] = {"steps": self.steps, "batch_size": self.batch_size}
        options |= {} if self.clip_norm is None else {"clip_norm": self.clip_norm}
        options |= self.solver_options or {}
        key = self._key(size, *data.values())
        solution: Any
        if self.tune is None:
            solver = RateConstrainedSGDA.for_budget(problem, size, budget, **options)
            solution, self.choice_ = solve(solver, problem, data, key=key, progress=False), None
        else:
            rest = {"num_records": size} | self.tune
            given = shared.with_options(rest.pop("candidates", None), options)
            solution = tuned_by(given, RateConstrainedSGDA, problem, data, budget, key=key, **rest)
            self.choice_ = solution.choice
        weights = np.asarray(solution.params["w"], np.float64).T
        offsets = np.asarray(solution.params["b"], np.float64)
        if len(self.classes_) == 2:
            weights, offsets = np.diff(weights, axis=0), np.diff(offsets)
        self.coef_, self.intercept_ = weights, offsets
        self._spent(solution.guarantee, budget)
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Logits `[n, K]`; of two classes the second's less the first's, `[n]`."""
        check_is_fitted(self)
        rows = shared.checked_rows(self, X, reset=False)
        logits = self._features(rows) @ self.coef_.T + self.intercept_[None]
        return logits[:, 0] if len(self.classes_) == 2 else logits

    def disparity(
        self, X: ArrayLike, y: ArrayLike, *, sensitive_features: ArrayLike | None = None
    ) -> float:
        r"""The largest constraint value $\max_j \Gamma_j$ of the predictions. **Not private**.

        Args:
          X: Features, `[n, p]`.
          y: Labels, `[n]`.
          sensitive_features: Groups, `[n]`, for constraints between groups.

        Returns:
          A difference of rates, or a rate: what `slack` bounds.

        Raises:
          ValueError: If there is no constraint, or a label or group was not there in `fit`.
        """
        if self.constraint is None:
            raise ValueError("constraint must be set for a disparity, got None")
        predicted = np.searchsorted(self.classes_, self.predict(X))
        _, labels = shared.public_codes("classes", column_or_1d(y), self.classes_)
        check_consistent_length(X, labels)
        data = {"y": labels}
        if self.groups_ is not None:
            _, data["group"] = self._groups(X, sensitive_features, self.groups_)
        constraints = self._problem().constraints
        one_hot = np.eye(len(self.classes_), dtype=np.float32)[predicted]
        cells = constraints.tabulate(one_hot, constraints.part(data))
        sizes = np.maximum(constraints.counts(cells), 1e-9)
        return float(np.max(constraints.values(cells, sizes)))

    def _problem(self) -> RateConstrained:
        classes, constraints = len(self.classes_), None
        if self.constraint in _OF_GROUPS:
            make = _OF_GROUPS[self.constraint]
            constraints = make(len(self.groups_), classes, slack=self.slack)
        elif self.constraint is not None:
            constraints = false_negative_rate(classes, self.slack)
        return RateConstrained.linear(self.n_features_in_, classes, constraints)

    def _groups(
        self, X: ArrayLike, sensitive_features: ArrayLike | None, public: ArrayLike | None
    ) -> tuple[Any, np.ndarray]:
        if sensitive_features is None:
            raise ValueError(
                f"sensitive_features is required with constraint={self.constraint!r}: pass "
                "each record's group, or constraint=None"
            )
        groups = column_or_1d(sensitive_features)
        check_consistent_length(X, groups)
        return shared.public_codes("groups", groups, public)

    def _features(self, rows: np.ndarray) -> np.ndarray:
        """Rows as the model sees them, each by itself, `[n, p]` float64."""
        rows = np.asarray(rows, np.float64)
        if self.data_norm is None:
            return rows
        check_positive("data_norm", self.data_norm)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows * (self.data_norm / np.maximum(norms, self.data_norm))
