"""The classifier: what it guarantees, what it refuses, and how well it does on Adult."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder

import dpjax
from dpjax.sklearn import FairLogisticRegression, PrivacyWarning
from dpjax.sklearn._public import default_delta

PUBLIC = {"classes": [0, 1], "groups": [0, 1], "steps": 20, "random_state": 0}


@pytest.fixture(scope="module")
def adult():
    return dpjax.datasets.adult().split(test=0.25, seed=0)


@pytest.fixture
def small(rng):
    """600 records of 3 features, with labels and groups that depend on them."""
    x = rng.normal(size=(600, 3))
    group = (x[:, 0] + rng.normal(size=600) > 0).astype(int)
    y = (x @ [1.0, 1.0, -1.0] + rng.normal(size=600) > 0).astype(int)
    return x, y, group


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.slow
def test_scikit_learn_is_asked_for_by_this_package_alone_which_names_the_extra():
    code = "import sys, dpjax; assert 'sklearn' not in sys.modules, 'imported too early'\n"
    code += "sys.modules['sklearn'] = None\nimport dpjax.sklearn"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    assert "ImportError: dpjax.sklearn needs scikit-learn" in run.stderr
    assert "dpjax[sklearn]" in run.stderr


@pytest.mark.parametrize(
    ("steps", "most_error", "most_disparity"),
    [(100, 0.175, 0.09), pytest.param(None, 0.16, 0.06, marks=pytest.mark.slow)],
)
def test_adult_is_near_the_quickstart(adult, steps, most_error, most_disparity):
    train, test = adult
    model = FairLogisticRegression(
        epsilon=1.0,
        delta=1e-5,
        slack=0.05,
        classes=[0, 1],
        groups=[0, 1],
        relation="add_or_remove_one",
        num_records=len(train),
        steps=steps,
        random_state=0,
    ).fit(train.x, train.y, sensitive_features=train.group)
    assert model.epsilon_ <= 1.0
    assert 1 - model.score(test.x, test.y) <= most_error
    assert model.disparity(test.x, test.y, sensitive_features=test.group) <= most_disparity


@pytest.mark.slow
def test_the_guarantee_is_that_of_the_solver_with_the_same_arguments(small):
    x, y, group = small
    model = FairLogisticRegression(epsilon=2.0, delta=1e-6, **PUBLIC)
    model.fit(x, y, sensitive_features=group)
    problem = dpjax.problems.RateConstrained.linear(
        3, 2, dpjax.problems.demographic_parity(2, 2, 0.05)
    )
    solver = dpjax.solvers.RateConstrainedSGDA.for_budget(
        problem, 600, dpjax.Budget(2.0, 1e-6, "replace_one"), steps=20
    )
    assert model.guarantee_ == solver.guarantee()
    assert 1.9 < model.epsilon_ == model.guarantee_.epsilon(1e-6) <= 2.0


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove_one"])
def test_the_budget_is_respected_under_both_relations(small, relation):
    x, y, group = small
    model = FairLogisticRegression(relation=relation, num_records=1000, **PUBLIC)
    model.fit(x, y, sensitive_features=group)
    assert model.guarantee_.relation.name.lower() == relation
    assert model.delta_ == default_delta(1000)
    assert 0.9 < model.epsilon_ <= 1.0


def test_delta_is_that_of_the_public_number_alone():
    assert default_delta(10**6) == pytest.approx(1e-9)
    assert default_delta(100) == 1e-5


def test_bounded_rows_are_bounded_alike_in_fit_and_in_predictions(small, rng):
    _, y, group = small
    x = np.eye(3)[rng.integers(0, 3, 600)]  # scaled without rounding
    model = FairLogisticRegression(data_norm=1.0, **PUBLIC)
    coef = model.fit(4 * x, y, sensitive_features=group).coef_
    np.testing.assert_array_equal(clone(model).fit(x, y, sensitive_features=group).coef_, coef)
    np.testing.assert_array_equal(model.decision_function(64 * x), model.decision_function(x))
    free = FairLogisticRegression(**PUBLIC).fit(4 * x, y, sensitive_features=group)
    assert np.any(free.coef_ != coef)
    assert np.any(free.decision_function(64 * x) != free.decision_function(x))


def test_values_beyond_single_precision_do_no_harm(small):
    x, y, group = small
    x[0] = 1e300
    model = FairLogisticRegression(**PUBLIC).fit(x, y, sensitive_features=group)
    assert np.all(np.isfinite(model.coef_))


@pytest.mark.slow
def test_names_of_classes_and_groups_and_three_classes(small):
    x, y, group = small
    y = np.array(["no", "yes", "maybe"])[y + (x[:, 2] > 1)]
    model = FairLogisticRegression(
        **PUBLIC | {"classes": ["yes", "no", "maybe"], "groups": ["m", "f"]},
        constraint="equality_of_odds",
    ).fit(x, y, sensitive_features=np.array(["f", "m"])[group])
    assert model.classes_.tolist() == ["maybe", "no", "yes"]
    assert model.groups_.tolist() == ["f", "m"]
    assert model.coef_.shape == (3, 3)
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(x)), model.predict_proba(x))
    best = model.classes_[np.argmax(model.predict_proba(x), axis=1)]
    np.testing.assert_array_equal(model.predict(x), best)


@pytest.mark.slow
def test_disparity_is_the_difference_of_rates(small):
    x, y, group = small
    model = FairLogisticRegression(**PUBLIC).fit(x, y, sensitive_features=group)
    positive = model.predict(x)
    gap = abs(positive[group == 1].mean() - positive[group == 0].mean())
    assert model.disparity(x, y, sensitive_features=group) == pytest.approx(gap, abs=1e-6)
    missed = FairLogisticRegression(constraint="false_negative_rate", slack=0.3, **PUBLIC)
    missed.fit(x, y)
    rate = np.mean(missed.predict(x)[y == 1] == 0)
    assert missed.disparity(x, y) == pytest.approx(rate, abs=1e-6)


@pytest.mark.slow
def test_a_constraint_is_felt(small):
    """With noise that hardly matters, parity costs most of the gap."""
    x, y, group = (np.repeat(column, 10, axis=0) for column in small)
    settings = PUBLIC | {"epsilon": 8.0, "steps": 100, "batch_size": 1000}
    free = FairLogisticRegression(constraint=None, **settings).fit(x, y)
    fair = FairLogisticRegression(slack=0.02, **settings).fit(x, y, sensitive_features=group)
    rates = free.predict(x)[group == 1].mean() - free.predict(x)[group == 0].mean()
    assert rates > 0.2
    assert fair.disparity(x, y, sensitive_features=group) < rates / 2


def test_options_are_chosen_inside_the_budget(small):  # two calibrations and a compile: seconds
    x, y, group = small
    tune = {"candidates": {"dual_learning_rate": [0.01, 0.1], "steps": [10]}, "trials": 2}
    model = FairLogisticRegression(epsilon=8.0, delta=1e-5, tune=tune, **PUBLIC)
    model.fit(x, y, sensitive_features=group)
    assert isinstance(model.guarantee_, dpjax.privacy.SelectionGuarantee)
    assert model.guarantee_.relation.name == "REPLACE_ONE"
    assert 7.9 < model.epsilon_ <= 8.0
    assert model.choice_["dual_learning_rate"] in (0.01, 0.1)
    assert model.choice_["steps"] == 10
    assert model.coef_.shape == (1, 3)


def test_tune_needs_candidates_by_name(small):
    x, y, group = small
    with pytest.raises(TypeError, match="candidates"):
        FairLogisticRegression(tune={"trials": 2}, **PUBLIC).fit(x, y, sensitive_features=group)


@pytest.mark.parametrize("missing", ["classes", "groups"])
def test_values_read_from_the_data_warn(small, missing):
    x, y, group = small
    model = FairLogisticRegression(**PUBLIC | {missing: None})
    with pytest.warns(PrivacyWarning, match=f"pass {missing}="):
        model.fit(x, y, sensitive_features=group)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"epsilon": float("inf")}, "epsilon"),
        ({"delta": 1.0}, "delta must lie in"),
        ({"constraint": "parity"}, "constraint must be one of"),
        ({"relation": "replace_special"}, "relation must be one of"),
        ({"relation": "add_or_remove_one"}, "num_records is required under add_or_remove_one"),
        ({"num_records": 599}, "num_records must bound the records, got 599"),
        ({"classes": [0, 2]}, "of .* records have another"),
        ({"classes": [0, 0, 1]}, "classes must be distinct"),
        ({"groups": [1, 2]}, "groups must hold every value that occurs: "),
        ({"data_norm": -1.0}, "data_norm must be > 0"),
        ({"random_state": "seed"}, "random_state must be None"),
        ({"slack": float("nan")}, "slack must be finite"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_name(small, parameters, message):
    x, y, group = small
    with pytest.raises(ValueError, match=message):
        FairLogisticRegression(**PUBLIC | parameters).fit(x, y, sensitive_features=group)


def test_groups_are_required_where_a_constraint_needs_them(small):
    x, y, group = small
    with pytest.raises(ValueError, match="sensitive_features is required with constraint='demog"):
        FairLogisticRegression(**PUBLIC).fit(x, y)
    with pytest.raises(ValueError, match="inconsistent"):
        FairLogisticRegression(**PUBLIC).fit(x, y, sensitive_features=group[1:])
    FairLogisticRegression(constraint=None, **PUBLIC).fit(x, y)
    with pytest.raises(ValueError, match="constraint must be set"):
        FairLogisticRegression(constraint=None, **PUBLIC).fit(x, y).disparity(x, y)


def test_fitted_models_survive_pickling(small):
    x, y, group = small
    model = FairLogisticRegression(**PUBLIC)
    with pytest.raises(NotFittedError):
        model.predict(x)
    model.fit(x, y, sensitive_features=group)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    assert again.guarantee_ == model.guarantee_


def test_a_seed_gives_one_model_for_the_same_and_unlike_noise_for_other_inputs(small):
    """What two folds learn must not differ by the records alone."""
    x, y, group = small
    model = FairLogisticRegression(**PUBLIC)

    def coef(x, **parameters):
        fitted = clone(model).set_params(**parameters).fit(x, y, sensitive_features=group)
        return fitted.coef_

    changed = x.copy()
    changed[0] += 1e-3
    alike = coef(x)
    np.testing.assert_array_equal(coef(x), alike)
    # with one noise these would be closer than a millionth
    assert np.all(np.abs(coef(changed) - alike) > 1e-4)
    assert np.all(np.abs(coef(x, clip_norm=4.00001) - alike) > 1e-4)
    assert np.all(np.abs(coef(x, random_state=None) - coef(x, random_state=None)) > 1e-4)


@pytest.mark.slow
def test_a_pipeline_of_public_encoders_with_groups_routed(small, routing):
    x, y, group = small
    table = np.stack([np.digitize(column, [-1, 0, 1]) for column in x.T], axis=1)
    encoder = OneHotEncoder(categories=[range(4)] * 3, sparse_output=False)  # nothing is learned
    model = FairLogisticRegression(**PUBLIC).set_fit_request(sensitive_features=True)
    pipeline = make_pipeline(encoder, model)
    pipeline.fit(table, y, sensitive_features=group)
    assert pipeline.predict(table).shape == (600,)
    assert pipeline[-1].n_features_in_ == 12
    assert pipeline.score(table, y) > 0.5


@pytest.mark.slow
def test_a_grid_search_gets_groups_and_costs_what_its_fits_cost(small, routing):
    x, y, group = small
    model = FairLogisticRegression(**PUBLIC).set_fit_request(sensitive_features=True)
    double = FunctionTransformer(np.sign)
    search = GridSearchCV(
        make_pipeline(double, model), {"fairlogisticregression__slack": [0.1, 0.3]}, cv=2
    )
    search.fit(x, y, sensitive_features=group)
    one = search.best_estimator_[-1].guarantee_
    # each record is in one of two folds for each slack, and in the last fit
    total = dpjax.privacy.compose_guarantees(one, one, one)
    assert 1.3 < total.epsilon(1e-5) < 3.0
