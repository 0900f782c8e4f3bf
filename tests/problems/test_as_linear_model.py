"""Linear losses of one's own that are a `LinearModel`'s: told by values, solved as one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.problems import LinearModel, Risk
from dpjax.problems._as_linear_model import own_linear
from dpjax.solvers import DPSGD, ObjectivePerturbation, SufficientStatistics

BUDGET = dpjax.Budget(1.0, 1e-6)


def new_key():
    return jax.random.key(1)  # the same for several runs


def signed(margin, y):
    return jax.nn.softplus(-y * margin)


def squared(margin, y):
    return (margin - y) ** 2 / 2


def huber(margin, y):
    gap = jnp.abs(margin - y)
    return jnp.where(gap < 0.5, gap**2, gap - 0.25)  # twice optax's


LOGISTIC = LinearModel("logistic", 3, 2.0, feature_bound=1.5)


@pytest.mark.parametrize(
    ("link", "constants", "model", "labels"),
    [
        (signed, {"lipschitz": 1.5}, LOGISTIC, "signed"),
        (lambda m, y: jnp.log1p(jnp.exp(-m * y)), {"lipschitz": 1.5}, LOGISTIC, "signed"),
        (signed, {"lipschitz": 9.0, "smoothness": 0.5625}, LOGISTIC, "signed"),
        (optax.sigmoid_binary_cross_entropy, {"lipschitz": 1.5}, LOGISTIC, "classes"),
        (
            squared,
            {"lipschitz": 9.0, "smoothness": 2.25},
            LinearModel("squared", 3, 2.0, feature_bound=1.5, label_bound=3.0),
            "numbers",
        ),
        (
            lambda m, y: 2 * squared(m, y),
            {"lipschitz": 20.0, "smoothness": 2.0},
            LinearModel("squared", 3, 2.0, feature_bound=1.0, label_bound=8.0),
            "numbers",
        ),
    ],
)
def test_what_is_recognised(link, constants, model, labels):
    own = own_linear(Risk.linear(link, 3, radius=2.0, **constants))
    assert own.labels == labels
    assert own.model.link == model.link
    for name in ("num_features", "radius", "feature_bound", "label_bound", "threshold"):
        want = getattr(model, name)
        assert getattr(own.model, name) == (want and pytest.approx(want, rel=1e-5))


@pytest.mark.parametrize("link", [signed, optax.sigmoid_binary_cross_entropy])
def test_features_without_a_bound_get_one_that_is_never_small(link):
    own = own_linear(Risk.linear(link, 4, radius=2.0))
    assert not own.stated
    assert own.model.feature_bound == 2.0**17
    curved = own_linear(Risk.linear(link, 4, smoothness=2.0))
    assert curved.stated
    assert curved.model.feature_bound == pytest.approx(2 * 2**0.5)


@pytest.mark.parametrize(
    "problem",
    [
        Risk.linear(squared, 3, radius=2.0),  # no bound on features and labels
        Risk.linear(huber, 3, radius=2.0, lipschitz=1.5, smoothness=1.0),  # descent does better
        Risk.linear(squared, 3, lipschitz=9.0, smoothness=1.0),  # no ball
        Risk.linear(squared, 3, radius=1.0, lipschitz=9.0),
        Risk.linear(squared, 3, radius=1.0, lipschitz=1.5, smoothness=1.0),  # labels above .5
        Risk.linear(lambda m, y: jnp.maximum(0.0, 1 - y * m), 3, lipschitz=1.0),
        Risk.linear(lambda m, y: jax.nn.sigmoid(-y * m), 3, lipschitz=1.0),
        Risk.linear(lambda m, y: signed(m, y) + 0.01 * m**2, 3, lipschitz=1.0),
        Risk.linear(lambda m, y: signed(m, jnp.sign(y)), 3, lipschitz=1.0),
        Risk.linear(lambda m, y: 0 * m, 3, lipschitz=1.0, smoothness=1.0, radius=1.0),
        Risk.linear(lambda m, y: m[y], 3, lipschitz=1.0),
        Risk(lambda w, r: signed(r["x"] @ w, r["y"]), jnp.zeros(3), lipschitz=1.0),
        LOGISTIC,
    ],
)
def test_what_is_not(problem):
    assert own_linear(problem) is None


def test_under_a_transformation_nothing_is_recognised():
    def traced(radius):
        return own_linear(Risk.linear(signed, 3, radius=radius, lipschitz=1.0)) is None

    assert jax.jit(lambda r: jnp.asarray(traced(r)))(1.0)
    stacked = Risk.linear(signed, 3, lipschitz=1.0)
    assert own_linear(jax.tree.map(lambda a: jnp.stack([a, a]), stacked)) is None


@pytest.mark.parametrize("link", [signed, optax.sigmoid_binary_cross_entropy, squared])
def test_losses_of_records_are_those_of_the_model(link):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3)) / 9
    y = rng.normal(size=50) / 2
    if link is optax.sigmoid_binary_cross_entropy:
        y = (y > 0).astype(int)
    problem = Risk.linear(link, 3, radius=1.0, lipschitz=20.0, smoothness=5.0)
    own, w = own_linear(problem), rng.normal(size=3)
    records = own.model.prepare(own.records({"x": jnp.asarray(x), "y": jnp.asarray(y)}))
    got = own.model.losses(records[0] @ jnp.asarray(w), records[1])
    want = jax.vmap(link)(jnp.asarray(x @ w), jnp.asarray(y, float))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("link", [signed, optax.sigmoid_binary_cross_entropy, squared])
@pytest.mark.always  # the claim
def test_no_record_moves_a_sum_beyond_the_bounds_and_none_moves_another(link):
    """Sensitivity is enforced for hostile rows, whatever the labels multiply."""
    bounds = {"radius": 1.0, "lipschitz": 4.0, "smoothness": 1.0}
    own, rng = own_linear(Risk.linear(link, 3, **bounds)), np.random.default_rng(3)
    big = [0.0, 1.0, -1.0, 1e30, -1e30, 3e38, np.inf, -np.inf, np.nan, 1e-40]
    x = np.concatenate([rng.choice(big, size=(200, 3)), rng.normal(size=(200, 3))])
    y = rng.choice([0.0, 1.0] if own.labels == "classes" else big, size=400)

    def prepared(x, y):
        records = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
        return own.model.prepare(own.records(records))

    rows, labels = prepared(x, y)
    assert bool(jnp.isfinite(rows).all() & jnp.isfinite(labels).all())
    lengths = np.linalg.norm(np.asarray(rows, float), axis=1)
    assert lengths.max() <= own.model.feature_bound * (1 + 1e-6)
    for radius in (0.0, 0.5, 1.0):
        w = radius * rng.normal(size=3)
        w /= max(1.0, np.linalg.norm(w))
        slopes = np.abs(own.model.slopes(rows @ jnp.asarray(w, jnp.float32), labels))
        assert np.max(slopes * lengths) <= own.model.slope_bounds().slope * (1 + 1e-5)
    x[17], y[17] = 5.0, 1.0
    after = prepared(x, y)
    others = np.arange(400) != 17
    for one, two in zip((rows, labels), after, strict=True):
        np.testing.assert_array_equal(np.asarray(one)[others], np.asarray(two)[others])


def data(kind, n=3_000):
    rng = np.random.default_rng(7)
    x = rng.normal(size=(n, 5)) / 5
    margin = x @ np.array([2.0, -1.0, 0.5, 0.0, 1.0])
    if kind == "squared":
        return {"x": x, "y": margin / 4 + 0.02 * rng.normal(size=n)}
    labels = (rng.random(n) < 1 / (1 + np.exp(-2 * margin))).astype(int)
    return {"x": x, "y": labels if kind == "classes" else 2 * labels - 1}


@pytest.mark.parametrize(
    ("kind", "problem", "solver"),
    [
        (
            "signed",
            Risk.linear(signed, 5, radius=4.0, lipschitz=1.0),
            ObjectivePerturbation,
        ),
        (
            "classes",
            Risk.linear(optax.sigmoid_binary_cross_entropy, 5, radius=4.0, lipschitz=1.0),
            ObjectivePerturbation,
        ),
        (
            "squared",
            Risk.linear(squared, 5, radius=1.0, lipschitz=2.0, smoothness=1.0),
            SufficientStatistics,
        ),
    ],
)
def test_fit_solves_the_model_itself(kind, problem, solver):
    records = data(kind)
    fitted = dpjax.fit(problem, records, BUDGET, key=new_key(), num_records=3_000)
    assert isinstance(fitted.solver, solver)
    assert fitted.guarantee.relation.name == "ADD_OR_REMOVE_ONE"
    assert fitted.guarantee.epsilon(1e-6) <= 1
    assert "by its values" in fitted.reason
    same = dpjax.solve(fitted.solver, own_linear(problem).model, records, key=new_key()).params
    np.testing.assert_array_equal(fitted.params, same)
    other = dpjax.fit(problem, records, BUDGET, key=new_key(), num_records=3_000, method="dpsgd")
    assert isinstance(other.solver, DPSGD)
    losses = [
        problem.mean_loss(p, jax.tree.map(jnp.asarray, records)) for p in (same, other.params)
    ]
    assert losses[0] < losses[1] + 0.005


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_fit_draws_how_long_features_are_that_nobody_bounds(unit):
    problem, records = Risk.linear(signed, 5), data("signed")
    records["x"] = unit * records["x"]
    fitted = dpjax.fit(problem, records, BUDGET, key=new_key(), num_records=3_000)
    assert isinstance(fitted.solver, ObjectivePerturbation)
    assert fitted.solver.length_range > 0
    assert 0.999 < fitted.guarantee.epsilon(1e-6) <= 1
    assert "as long as is drawn" in fitted.reason
    loss = problem.mean_loss(fitted.params, jax.tree.map(jnp.asarray, records))
    assert loss < 0.605  # of no model 0.693, of the best 0.5995


def test_where_no_length_is_drawn_a_bound_must_be_stated():
    problem = Risk.linear(signed, 5)
    assert dpjax.plan(problem, 300, BUDGET).method == "dpsgd"
    with pytest.raises(ValueError, match="lipschitz or smoothness must be stated where"):
        ObjectivePerturbation.for_budget(problem, 300, BUDGET)
    with pytest.raises(ValueError, match="lipschitz or smoothness must be stated where"):
        ObjectivePerturbation.for_budget(problem, 3_000, BUDGET, length_range=0.0)
    stated = Risk.linear(signed, 5, lipschitz=1.0)
    assert ObjectivePerturbation.for_budget(stated, 300, BUDGET).length_range == 0


def test_labels_of_another_kind_are_refused():
    problem = Risk.linear(optax.sigmoid_binary_cross_entropy, 5, radius=4.0, lipschitz=1.0)
    records = data("classes", 300)
    soft = records | {"y": np.where(records["y"] == 1, 0.9, 0.1)}
    with pytest.raises(ValueError, match="must be 0 or 1: for other labels, use method='dpsgd'"):
        dpjax.fit(problem, soft, BUDGET, key=new_key(), num_records=300)
    assert (
        dpjax.fit(problem, soft, BUDGET, key=new_key(), num_records=300, method="dpsgd").params.size
        == 5
    )
    own = own_linear(problem)
    hidden = jax.jit(lambda y: own.records({"x": records["x"], "y": y})["y"])(soft["y"])
    assert np.isnan(hidden).all()


def test_a_solver_of_another_problem_is_refused():
    solver = ObjectivePerturbation.for_budget(LinearModel("logistic", 5), 300, BUDGET)
    hinge = Risk.linear(lambda m, y: jnp.maximum(0.0, 1 - y * m), 5, lipschitz=1.0)
    with pytest.raises(TypeError, match=r"must be a dpjax\.problems\.LinearModel, got Risk"):
        dpjax.solve(solver, hinge, data("signed", 300), key=new_key())
    wider = Risk.linear(signed, 5, lipschitz=2.0)
    with pytest.raises(ValueError, match="slope bounds that the noise is for"):
        dpjax.solve(solver, wider, data("signed", 300), key=new_key())
