"""Logistic and linear regression: what they guarantee, refuse, and learn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss

import dpjax
from dpjax.api import _tune
from dpjax.privacy import ObjectivePerturbationGuarantee, SelectionGuarantee
from dpjax.problems import LinearModel
from dpjax.sklearn import LinearRegression, LogisticRegression, PrivacyWarning
from dpjax.sklearn._public import default_delta
from dpjax.sklearn._tuned_linear import ScaledLinear
from dpjax.solvers import linear_model_solver

CLASSES = {"classes": [0, 1], "data_norm": 2.0, "random_state": 0}
RANGE = {"target_range": (4.0, 8.0), "data_norm": 2.0, "random_state": 0}
compiles = pytest.mark.slow  # float64 solvers


@pytest.fixture
def small(rng):
    """600 records of 3 features in the ball of radius 2, labels and targets about 6."""
    x = rng.normal(size=(600, 3))
    x *= 2 / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 2)
    y = x @ [0.6, 0.3, -0.3]
    return x, (y + 0.3 * rng.normal(size=600) > 0).astype(int), 6 + y


@compiles
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_the_guarantee_is_that_of_the_solver(small, relation):
    x, y, _ = small
    model = LogisticRegression(relation=relation, num_records=700, **CLASSES).fit(x, y)
    budget = dpjax.Budget(1.0, default_delta(700), relation)
    solver = linear_model_solver(LinearModel("logistic", 3, intercept=1.0), 700, budget)
    assert model.guarantee_ == solver.guarantee()
    assert isinstance(model.guarantee_, ObjectivePerturbationGuarantee)
    assert 0.99 < model.epsilon_ <= 1.0
    assert repr(model).splitlines()[-1].endswith(f"relation={relation!r}")


@compiles
def test_a_large_budget_gives_the_classifier_without_noise(small):
    x, y, _ = (np.repeat(column, 50, axis=0) for column in small)
    model = LogisticRegression(epsilon=50.0, **CLASSES).fit(x, y)
    loss = np.mean(np.logaddexp(0, -(2 * y - 1) * model.decision_function(x)))
    # by Newton's method
    rows, w = np.column_stack([x, np.ones(len(x))]), np.zeros(4)
    for _ in range(20):
        p = 1 / (1 + np.exp(-rows @ w))
        hessian = (rows * (p * (1 - p))[:, None]).T @ rows
        w -= np.linalg.solve(hessian, rows.T @ (p - y))
    best = np.mean(np.logaddexp(0, -(2 * y - 1) * (rows @ w)))
    assert best <= loss < best + 1e-3
    np.testing.assert_allclose(np.append(model.coef_, model.intercept_), w, atol=0.1)
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(x)), model.predict_proba(x))
    assert model.coef_.shape == (1, 3)
    assert model.intercept_.shape == (1,)


@compiles
@pytest.mark.parametrize(("loss", "radius"), [("huber", None), ("squared", 3.0)])
def test_a_large_budget_gives_least_squares_in_the_units_of_the_targets(small, loss, radius):
    x, _, y = small
    model = LinearRegression(epsilon=50.0, loss=loss, radius=radius, **RANGE).fit(x, y)
    np.testing.assert_allclose(model.coef_, [0.6, 0.3, -0.3], atol=0.03)
    assert model.intercept_ == pytest.approx(6.0, abs=0.03)
    assert model.score(x, y) > 0.99
    through = LinearRegression(epsilon=50.0, fit_intercept=False, **RANGE).fit(x, y)
    assert through.intercept_ == 6.0


@compiles
def test_scales_of_features_are_undone(small):
    x, y, _ = small
    scale = np.array([1.0, 4.0, 0.25])  # powers of two, without rounding
    model = LogisticRegression(feature_scale=scale, **CLASSES).fit(x * scale, y)
    same = LogisticRegression(feature_scale=scale, **CLASSES).fit(x * scale, y)
    np.testing.assert_array_equal(model.coef_, same.coef_)
    free = LogisticRegression(epsilon=50.0, **CLASSES).fit(x, y)
    scaled = LogisticRegression(epsilon=50.0, feature_scale=scale, **CLASSES).fit(x * scale, y)
    np.testing.assert_allclose(scaled.coef_[0] * scale, free.coef_[0], atol=0.3)


@compiles
def test_a_seed_gives_one_model_for_the_same_and_unlike_noise_for_other_inputs(small):
    x, y, _ = small
    model = LogisticRegression(**CLASSES)
    alike = model.fit(x, y).coef_
    np.testing.assert_array_equal(clone(model).fit(x, y).coef_, alike)
    changed = x.copy()
    changed[0] += 1e-3
    assert np.all(np.abs(clone(model).fit(changed, y).coef_ - alike) > 1e-5)


@compiles
def test_what_is_read_from_the_data_warns(small):
    x, y, target = small
    with pytest.warns(PrivacyWarning) as told:
        LogisticRegression().fit(x, y)
    assert {str(each.message).split(" ")[0] for each in told} == {"classes", "data_norm"}
    with pytest.warns(PrivacyWarning) as told:
        LinearRegression().fit(x, target)
    assert {str(each.message).split(" ")[0] for each in told} == {"target_range", "data_norm"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"delta": 1.0}, "delta must lie in"),
        ({"relation": "replace_special"}, "relation must be one of"),
        ({"relation": "add_or_remove_one"}, "num_records is required under add_or_remove_one"),
        ({"num_records": 599}, "num_records must bound the records, got 599"),
        ({"classes": [0, 2]}, "of .* records have another"),
        ({"classes": [0, 1, 2]}, "Only binary classification is supported"),
        ({"data_norm": -1.0}, "data_norm must be > 0"),
        ({"feature_scale": [1.0, 2.0]}, "feature_scale must be positive numbers of shape"),
        ({"feature_scale": [1.0, 0.0, 2.0]}, "feature_scale must be positive numbers of shape"),
        ({"radius": 0.0}, "radius must be > 0"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_name(small, parameters, message):
    x, y, _ = small
    with pytest.raises(ValueError, match=message):
        LogisticRegression(**CLASSES | parameters).fit(x, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"target_range": (1.0, 1.0)}, "target_range must be"),
        ({"target_range": 3.0}, "target_range must be"),
        ({"target_range": (0.0, np.inf)}, "target_range must be finite"),
        ({"loss": "absolute"}, "loss must be one of"),
        ({"loss": "squared"}, "radius must be given for a squared loss"),
    ],
)
def test_regressions_out_of_bounds_are_refused_with_their_name(small, parameters, message):
    x, _, y = small
    with pytest.raises(ValueError, match=message):
        LinearRegression(**RANGE | parameters).fit(x, y)


def test_nothing_is_predicted_before_a_fit(small):
    for model in (LogisticRegression(), LinearRegression()):
        with pytest.raises(NotFittedError):
            model.predict(small[0])


@pytest.fixture
def heavy(rng):
    """4,000 records, most of them shorter than 4."""
    x = np.clip(rng.standard_t(3, size=(4000, 3)), -50, 50)
    margins = x @ [0.6, 0.3, -0.3] + 0.5
    noise = rng.normal(size=4000)
    return x, (margins + 0.2 * noise > 0).astype(int), np.clip(margins + 0.2 * noise, -20, 20)


LOOSE = 1e16  # so loose that not even a draw of the length reaches what rows are
NORMS = {"candidates": {"data_norm": [2.0, 3.0, 4.0, 6.0, LOOSE]}, "trials": 8}


@compiles
@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
@pytest.mark.parametrize("intercept", [True, False])
def test_a_bound_on_rows_is_chosen_inside_the_budget(heavy, relation, intercept):
    x, y, _ = heavy
    fields = {"relation": relation, "num_records": 4000, "fit_intercept": intercept}
    model = LogisticRegression(classes=[0, 1], tune=NORMS, random_state=0, **fields).fit(x, y)
    loose = LogisticRegression(classes=[0, 1], data_norm=LOOSE, random_state=0, **fields).fit(x, y)
    assert model.choice_["radius"] is None
    assert model.choice_["data_norm"] < LOOSE
    assert loose.choice_ is None
    assert isinstance(model.guarantee_, SelectionGuarantee)
    assert 0.999 < model.epsilon_ <= 1.0
    losses = [log_loss(y, each.predict_proba(x)) for each in (model, loose)]
    # without an intercept a second draw, in the metric of moments, does reach what rows are
    assert losses[0] < losses[1] + (-0.2 if intercept else 0.02)
    assert losses[0] < 0.45
    assert (model.intercept_[0] != 0) == intercept
    assert "fitted: epsilon 1.000 at" in repr(model)


@compiles
def test_bounds_of_a_regression_are_chosen_too(heavy):
    x, _, target = heavy
    fields = {"target_range": (-20, 20), "random_state": 0, "epsilon": 2.0}
    loose = LinearRegression(data_norm=LOOSE, **fields).fit(x, target)
    drawn = {"candidates": lambda key: {"data_norm": 5.0, "radius": 2.0}, "trials": 1}
    for tune in (NORMS, drawn):
        model = LinearRegression(tune=tune, **fields).fit(x, target)
        assert model.score(x, target) > 0.7 > loose.score(x, target)
        assert model.epsilon_ <= 2.0
    assert model.choice_ == {"radius": 2.0, "data_norm": 5.0}
    # in units of the features: one per cent of the scale is a hundred times the weight
    scaled = LinearRegression(tune=NORMS, feature_scale=[0.01, 1.0, 1.0], **fields).fit(
        x * [0.01, 1.0, 1.0], target
    )
    again = LinearRegression(tune=NORMS, **fields).fit(x, target)
    np.testing.assert_allclose(scaled.coef_ * [0.01, 1, 1], again.coef_, atol=0.3)


@compiles
@pytest.mark.parametrize("intercept", [1.0, None])
@pytest.mark.parametrize("link", ["logistic", "huber"])
def test_a_scaled_run_is_that_of_its_solver_on_scaled_rows(heavy, link, intercept):
    x, y, target = heavy
    own = LinearModel(link, 3, intercept=intercept)
    solver = linear_model_solver(own, 4000, dpjax.Budget(2.0, 1e-6, "replace_one"))
    scaled = ScaledLinear(solver, 8.0, own)
    data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y if link == "logistic" else target)}
    data["x"] = data["x"].at[:3, 0].set(jnp.array([jnp.nan, jnp.inf, 3e38]))
    outer, key = LinearModel(link, 3, intercept=1.0), jax.random.key(3)
    found = dpjax.solve(scaled, outer, data, key=key)
    inner = data | {"x": data["x"] / 8}
    known = dpjax.solve(solver, own, inner, key=jax.random.clone(key))
    assert found.guarantee == known.guarantee
    np.testing.assert_allclose(found.params[:3] * 8, known.params[:3], rtol=1e-5, atol=1e-6)
    assert found.params[3] == (0 if intercept is None else known.params[3])


def test_what_runs_has_the_noise_that_is_accounted(heavy, monkeypatch):
    x, y, _ = heavy
    seen = []

    def stop(*arguments):
        seen.append(arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(_tune, "_best", stop)
    accounted = []

    def noted(*arguments):
        accounted.append(SelectionGuarantee(*arguments))
        return accounted[-1]

    monkeypatch.setattr(_tune, "SelectionGuarantee", noted)
    with pytest.raises(KeyboardInterrupt):
        LogisticRegression(classes=[0, 1], tune=NORMS).fit(x, y)
    solvers, _, _, _, _, (train, held), _ = seen[0]
    (charged, scoring) = accounted[0].bases
    assert len(solvers) == 5
    for one in solvers:
        assert one.guarantee() == charged
        assert one.solver.scale == charged.scale
        assert one.solver.lam == charged.lam
    assert train.num_records + len(held["x"]) == 4000
    half = dataclasses.replace(charged, scale=charged.scale / 2)
    mutant = SelectionGuarantee((half, scoring), accounted[0].runs)
    assert mutant.epsilon(1e-5) > 1.5 * accounted[0].epsilon(1e-5)


@compiles
def test_a_score_on_public_data_and_a_small_epsilon(heavy):
    x, y, _ = heavy

    def score(params):
        return -abs(params[3])

    tune = {"candidates": {"data_norm": [3.0]}, "trials": 2, "score": score}
    model = LogisticRegression(classes=[0, 1], tune=tune, epsilon=0.01, random_state=0).fit(x, y)
    assert 0.0099 < model.epsilon_ <= 0.01
    assert len(model.guarantee_.bases) == 1


@compiles
def test_a_norm_that_is_not_chosen_is_read_with_a_warning(heavy):
    x, y, _ = heavy
    tune = {"candidates": {"radius": [1.0, 5.0]}, "trials": 1}
    with pytest.warns(PrivacyWarning, match="data_norm=.*feature_scale="):
        LogisticRegression(classes=[0, 1], tune=tune).fit(x, y)


@pytest.mark.parametrize(
    ("tune", "error", "message"),
    [
        ({}, TypeError, "candidates of tune must be a dict of lists"),
        ({"candidates": [1.0]}, TypeError, "candidates of tune must be a dict of lists"),
        ({"candidates": {"data_norm": [-1.0]}}, ValueError, "data_norm must be > 0"),
        ({"candidates": {"data_norm": [1.0], "lam": [1.0]}}, TypeError, "got 'lam'"),
        ({"candidates": {"data_norm": [1.0]}, "trials": 0}, ValueError, "trials must be >= 1"),
        ({"candidates": lambda key: {"radius": 1.0}}, TypeError, "tune needs data_norm"),
    ],
)
def test_what_tune_cannot_hold_is_refused(small, tune, error, message):
    x, y, _ = small
    with pytest.raises(error, match=message):
        LogisticRegression(classes=[0, 1], tune=tune).fit(x, y)
