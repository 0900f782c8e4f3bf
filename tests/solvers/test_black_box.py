"""Losses of which only values can be had, on census data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.problems import Risk
from dpjax.solvers import OnlineToNonconvex

BUDGET = dpjax.Budget(1.0, 1e-5)


@pytest.fixture(scope="module")
def census():
    train, test = dpjax.datasets.adult().split(test=0.25, seed=0)

    def rows(part):
        x = np.asarray(part.x, np.float32) / np.float32(train.norm_bound)
        return {"x": x, "y": np.where(part.y == 1, 1.0, -1.0).astype(np.float32)}

    return rows(train), rows(test)


def accuracy(params, rows):
    return np.mean((rows["x"] @ np.asarray(params) > 0) == (rows["y"] > 0))


@pytest.mark.slow
def test_counting_mistakes_trains_a_linear_classifier(census):
    train, test = census

    def mistake(margin, label):
        return (label * margin <= 0).astype(jnp.float32)

    problem = Risk.linear(mistake, train["x"].shape[1])
    slopes = problem.per_example_gradients(problem.init, jax.tree.map(lambda a: a[:8], train))
    assert not np.any(slopes.right)  # nothing to be had from gradients
    solver = OnlineToNonconvex.for_budget(
        problem, len(train["y"]), BUDGET, oracle="zeroth", radius=2.0
    )
    solution = dpjax.solve(solver, problem, train, key=jax.random.key(0))
    assert solution.guarantee.epsilon(1e-5) <= 1.0
    assert accuracy(solution.params, test) > 0.84  # 0.758 say no to all


@pytest.mark.slow
def test_a_rule_computed_outside_jax_is_tuned(census):
    train, test = census
    names = dpjax.datasets.adult().feature_names
    chosen = [i for i, name in enumerate(names) if name.startswith(("education", "marital"))]
    few = {"x": train["x"][:, chosen], "y": train["y"]}

    def on_host(weights, x, y):  # a scorecard of rounded points, against a threshold
        points = np.round(np.asarray(weights[..., :-1]) * 4) / 4
        score = np.sum(points * np.asarray(x), axis=-1)
        return ((score > weights[..., -1] / 4) != (np.asarray(y) > 0)).astype(np.float32)

    def loss(weights, record):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.pure_callback(
            on_host, shape, weights, record["x"], record["y"], vmap_method="broadcast_all"
        )

    problem = Risk(loss, jnp.zeros(len(chosen) + 1))
    solver = OnlineToNonconvex.for_budget(
        problem, len(train["y"]), BUDGET, oracle="zeroth", radius=2.0, steps=150, num_directions=8
    )
    solution = dpjax.solve(solver, problem, few, key=jax.random.key(1))
    held_out = test["x"][:, chosen]
    errors = on_host(np.asarray(solution.params), held_out, test["y"])
    assert np.mean(errors) < 0.22  # 0.242 say no to all
