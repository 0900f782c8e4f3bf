"""Private linear models of scikit-learn: logistic regression and least squares."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from dpjax.core import check_choice, check_finite, check_positive
from dpjax.problems import LinearModel
from dpjax.runtime import solve
from dpjax.sklearn import _public as shared
from dpjax.sklearn._tuned_linear import tuned_linear_model
from dpjax.solvers import linear_model_solver


@dataclass(kw_only=True, eq=False, repr=False)
class _LinearEstimator(shared.PrivateEstimator):
    """What both have in common: scales of features, one solve, and what is released of it."""

    data_norm: float | None = None
    feature_scale: ArrayLike | None = None
    radius: float | None = None
    fit_intercept: bool = True
    tune: dict[str, Any] | None = None

    def _solve(self, link: str, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Weights of the features as given and the intercept's, `[p + 1]`."""
        size, budget = self._public_size(len(rows))
        dim = rows.shape[1]
        given = np.ones(dim) if self.feature_scale is None else self.feature_scale
        each = np.asarray(given, np.float64)  # public divisors, applied before norms are taken
        if each.shape != (dim,) or not np.all((each > 0) & np.isfinite(each)):
            raise ValueError(
                f"feature_scale must be positive numbers of shape [{dim}], got shape "
                f"{list(each.shape)}"
            )
        scale = each * self._norm(rows / each) if self.tune is None else each
        with np.errstate(over="ignore"):
            data = {"x": (rows / scale).astype(np.float32), "y": labels}
        key = self._key(size, *data.values())
        if self.tune is None:
            intercept = 1.0 if self.fit_intercept else None
            problem = LinearModel(link, dim, self.radius, intercept=intercept)
            solver = linear_model_solver(problem, size, budget)
            solution = solve(solver, problem, data, key=key, progress=False)
            params, guarantee, self.choice_ = solution.params, solution.guarantee, None
        else:
            chosen = {"num_records": size} | self.tune
            options: dict[str, float | None] = {"radius": self.radius}
            candidates = chosen.get("candidates")
            left_out = isinstance(candidates, Mapping) and "data_norm" not in candidates
            if self.data_norm is not None or left_out:
                options["data_norm"] = self._norm(rows / each)
            chosen["candidates"] = shared.with_options(candidates, options)
            found = tuned_linear_model(
                link, data, budget, chosen, fit_intercept=self.fit_intercept, key=key
            )
            params, guarantee, self.choice_ = found.params, found.guarantee, found.choice
        self._spent(guarantee, budget)
        weights = np.asarray(params, np.float64)
        weights = np.append(weights, np.zeros(dim + 1 - weights.size))  # if without intercept
        return np.append(weights[:dim] / scale, weights[dim:])

    def _norm(self, rows: np.ndarray) -> float:
        """The bound on norms of rows: the public one, or the largest, with a warning."""
        if self.data_norm is None:
            told = "a public bound on it, and feature_scale= where features differ in size"
            _warn("data_norm", "the largest norm of a row", told)
            with np.errstate(over="ignore"):
                norm = np.linalg.norm(rows, axis=1).max()
            return float(norm) if 0 < norm < np.inf else 1.0
        check_positive("data_norm", self.data_norm)
        return self.data_norm


@dataclass(kw_only=True, eq=False, repr=False)
class LogisticRegression(shared.LinearClassifier, _LinearEstimator):
    r"""Logistic regression of two classes, private in all of a record.

    `dpjax.solvers.ObjectivePerturbation` on `dpjax.problems.LinearModel("logistic")`: one minimiser
    from one draw of noise, with the regulariser that the solver's rule gives.

    Guarantee: (`epsilon`, `delta`) for what a fit leaves, label included: `guarantee_` is the
    solver's. Rows are scaled down to `data_norm`. Public, and so never to be computed from the
    data: every argument of the constructor, the numbers and names of features, and under
    replace-one, the default, the number of records. Classes and norms that are read from the data,
    which warns, are **not** covered; neither are predictions for, and scores on, other private
    records, nor a choice between fits.

    | input | effect |
    | --- | --- |
    | NaN or inf | ValueError, before anything runs |
    | a class that is not among the public ones | ValueError, likewise |
    | a row longer than `data_norm` | scaled down to it in `fit`; as it is in predictions |

    Args:
      epsilon: > 0 (*public*).
      delta: In [0, 1), 0 for a pure guarantee; None: $n^{-3/2}$, at most 1e-5, of the public
        number n (*public*).
      classes: `[2]`, the labels that there may be; None reads them from `y`, with a
        `PrivacyWarning`.
      data_norm: Bound on the l2 norm of a row of `X`, after `feature_scale`; None reads it from
        `X`, with a `PrivacyWarning`.
      feature_scale: `[p]`, what each feature is divided by; None for 1 (*public*).
      radius: Bound on the l2 norm of the parameters for rows of norm 1, that is of `data_norm`
        times `coef_` times `feature_scale`, with `intercept_`; None for no bound (*public*).
      fit_intercept: Whether there is one; it is regularised as the others are (*public*).
      relation: `"replace_one"`, or `"add_or_remove_one"`, under which `num_records` is required
        (*public*).
      num_records: *Public* bound on the number of records, and the nominal size; None: the number
        of rows, which is public under replace-one only.
      tune: Arguments of `dpjax.tune`, by name, to choose bounds inside the same budget:
        `candidates`, values of `data_norm` and `radius` by name, or a function of a key that gives
        such, and perhaps `trials` or `validation`; None uses the given bounds, with less noise.
        `guarantee_` is then that of the selection (*public*).
      random_state: None for a key that nobody knows; what is released should have that. An integer,
        `RandomState` or `Generator` makes runs repeatable and is *secret*.

    Attributes:
      classes_: Labels, sorted, `[2]`.
      coef_: `[1, p]`.
      intercept_: `[1]`.
      guarantee_: `dpjax.privacy.ObjectivePerturbationGuarantee`.
      delta_: The delta asked for, or the default.
      epsilon_: `guarantee_.epsilon(delta_)`, at most `epsilon`.
      choice_: With `tune`, the winner's bounds, by name; else None.
      n_features_in_: Number of features p.
      feature_names_in_: Their names, where `X` has some.

    Example:
      >>> import dpjax, dpjax.sklearn
      >>> train, test = dpjax.datasets.adult().split()
      >>> model = dpjax.sklearn.LogisticRegression(classes=[0, 1], data_norm=train.norm_bound)
      >>> model = model.fit(train.x, train.y)
      >>> model.epsilon_ <= 1.0, model.score(test.x, test.y) > 0.8
      (True, True)
    """

    classes: ArrayLike | None = None

    def fit(self, X: ArrayLike, y: ArrayLike) -> "LogisticRegression":
        """Trains on records, once, for the whole budget.

        Args:
          X: Features, `[n, p]` (*secret*).
          y: Labels, `[n]` (*secret*).

        Returns:
          The estimator.

        Raises:
          ValueError: If a parameter is outside its bound, a value is not finite, or there are not
            two classes.
          TypeError: If `tune` holds no candidates, or others than `data_norm` and `radius`.
        """
        rows, targets = shared.checked_rows(self, X, y)
        check_classification_targets(targets)
        self.classes_, labels = shared.public_codes("classes", targets, self.classes)
        if len(self.classes_) > 2:
            kind = type_of_target(targets)
            raise ValueError(
                f"Only binary classification is supported. The type of the target is {kind}: "
                "see FairLogisticRegression(constraint=None) for more classes"
            )
        weights = self._solve("logistic", np.asarray(rows, np.float64), labels)
        self.coef_, self.intercept_ = weights[None, :-1], weights[-1:]
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Logits of the second class, `[n]`."""
        check_is_fitted(self)
        rows = shared.checked_rows(self, X, reset=False)
        return rows @ self.coef_[0] + self.intercept_[0]

    def __sklearn_tags__(self) -> Any:
        """Two classes alone."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class LinearRegression(RegressorMixin, _LinearEstimator):
    r"""Least squares, private in all of a record.

    `dpjax.solvers.linear_model_solver` on `dpjax.problems.LinearModel`: by default a Huber loss,
    whose threshold is estimated within the budget, by objective perturbation.

    Guarantee: (`epsilon`, `delta`) for what a fit leaves, target included: `guarantee_` is the
    solver's. Rows are scaled down to `data_norm` and targets clipped to `target_range`. Public, and
    so never to be computed from the data: every argument of the constructor, the numbers and names
    of features, and under replace-one, the default, the number of records. A norm and a range that
    are read from the data, which warns, are **not** covered; neither are scores on other private
    records, nor a choice between fits.

    | input | effect |
    | --- | --- |
    | NaN or inf | ValueError, before anything runs |
    | a row longer than `data_norm` | scaled down to it in `fit`; as it is in predictions |
    | a target outside `target_range` | clipped to it |

    Args:
      epsilon: > 0 (*public*).
      delta: In [0, 1), 0 for a pure guarantee; None: $n^{-3/2}$, at most 1e-5, of the public
        number n (*public*).
      target_range: `[2]`, low and high, between which targets lie; None reads them from `y`, with
        a `PrivacyWarning`.
      data_norm: Bound on the l2 norm of a row of `X`, after `feature_scale`; None reads it from
        `X`, with a `PrivacyWarning`.
      feature_scale: `[p]`, what each feature is divided by; None for 1 (*public*).
      loss: `"huber"`, which heavy residuals change little, or `"squared"`, which needs a `radius`
        (*public*).
      radius: Bound on the l2 norm of the parameters for rows of norm 1 and targets in [-1, 1];
        None for no bound (*public*).
      fit_intercept: Whether there is one beside the middle of the range; it is regularised as the
        others are (*public*).
      relation: `"replace_one"`, or `"add_or_remove_one"`, under which `num_records` is required
        (*public*).
      num_records: *Public* bound on the number of records, and the nominal size; None: the number
        of rows, which is public under replace-one only.
      tune: Arguments of `dpjax.tune`, by name, to choose bounds inside the same budget:
        `candidates`, values of `data_norm` and `radius` by name, or a function of a key that gives
        such, and perhaps `trials` or `validation`; None uses the given bounds, with less noise.
        `guarantee_` is then that of the selection (*public*).
      random_state: None for a key that nobody knows; what is released should have that. An integer,
        `RandomState` or `Generator` makes runs repeatable and is *secret*.

    Attributes:
      coef_: `[p]`.
      intercept_: A number; the middle of the range is in it, whatever `fit_intercept` is.
      guarantee_: That of the solver.
      delta_: The delta asked for, or the default.
      epsilon_: `guarantee_.epsilon(delta_)`, at most `epsilon`.
      choice_: With `tune`, the winner's bounds, by name; else None.
      n_features_in_: Number of features p.
      feature_names_in_: Their names, where `X` has some.

    Example:
      >>> import numpy as np, dpjax.sklearn
      >>> rng = np.random.default_rng(0)
      >>> x = rng.uniform(-1, 1, size=(20_000, 3))
      >>> y = x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=20_000)
      >>> model = dpjax.sklearn.LinearRegression(target_range=(-4, 4), data_norm=3**0.5)
      >>> model.fit(x, y).score(x, y) > 0.9
      True
    """

    target_range: ArrayLike | None = None
    loss: str = "huber"

    def fit(self, X: ArrayLike, y: ArrayLike) -> "LinearRegression":
        """Trains on records, once, for the whole budget.

        Args:
          X: Features, `[n, p]` (*secret*).
          y: Targets, `[n]` (*secret*).

        Returns:
          The estimator.

        Raises:
          ValueError: If a parameter is outside its bound, or a value is not finite.
          TypeError: If `tune` holds no candidates, or others than `data_norm` and `radius`.
        """
        check_choice("loss", self.loss, ("huber", "squared"))
        rows, targets = shared.checked_rows(self, X, y, y_numeric=True)
        targets = np.asarray(targets, np.float64)
        if self.target_range is None:
            _warn("target_range", "the least and the largest target", "a public range")
            low, high = float(targets.min()), float(targets.max())
        else:
            check_finite("target_range", self.target_range)
            ends = np.asarray(self.target_range, np.float64)
            if ends.shape != (2,) or not ends[0] < ends[1]:
                raise ValueError(f"target_range must be (low, high), got {self.target_range!r}")
            low, high = ends.tolist()
        middle, half = low / 2 + high / 2, (high / 2 - low / 2) or 1.0
        labels = np.clip((targets - middle) / half, -1, 1).astype(np.float32)
        weights = half * self._solve(self.loss, np.asarray(rows, np.float64), labels)
        self.coef_, self.intercept_ = weights[:-1], float(weights[-1] + middle)
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Predicted targets, `[n]`."""
        check_is_fitted(self)
        rows = shared.checked_rows(self, X, reset=False)
        return rows @ self.coef_ + self.intercept_


def _warn(name: str, what: str, instead: str) -> None:
    warnings.warn(
        f"{name} is None: {what} is read from the data, which the guarantee does not cover; pass "
        f"{name}=, {instead}",
        shared.PrivacyWarning,
        stacklevel=4,
    )
