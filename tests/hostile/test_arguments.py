"""Arguments of the wrong kind are refused by name, before anything is computed with them."""

import ast
import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import privacy, solvers
from dpjax.queries import Prefix
from dpjax.testing import entries
from tests.entries.planned import GAME, ON_SIMPLEX, RISK, TABLES

PLANNED = [
    (entry.facts["arguments"].make, entry.facts["planned"])
    for entry in entries("solver")
    if "planned" in entry.facts
]
NO_BUDGET = r"budget must be a dpjax\.Budget\(epsilon, delta\), got (float|tuple)"


@pytest.mark.parametrize("budget", [1.0, (1.0, 1e-5)])
@pytest.mark.parametrize(("kind", "problem"), PLANNED)
def test_a_number_is_no_budget(kind, problem, budget):
    with pytest.raises(TypeError, match=NO_BUDGET):
        kind.for_budget(problem, 1000, budget)


@pytest.mark.parametrize(("kind", "problem"), PLANNED)
def test_arguments_out_of_order_are_told(kind, problem):
    with pytest.raises(TypeError, match="got int: the arguments are problem, num_records, budget"):
        kind.for_budget(1000, problem, dpjax.Budget(1.0, 1e-5))


def test_every_solver_was_tried():
    public = (vars(solvers) | vars(dpjax.papers)).values()
    public = {v for v in public if hasattr(v, "for_budget")}
    assert public == {kind for kind, _ in PLANNED}


@pytest.mark.parametrize(("kind", "problem"), PLANNED)
def test_an_unknown_field_is_named_and_known_ones_listed(kind, problem):
    with pytest.raises(
        TypeError, match=rf"unknown field 'nonsense'; {kind.__name__} has \["
    ) as told:
        kind.for_budget(problem, 1000, dpjax.Budget(1.0, 1e-5), nonsense=1.0)
    known = ast.literal_eval(str(told.value).partition(" has ")[2])
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields & set(known)
    options = set(inspect.signature(kind.for_budget).parameters)
    if hasattr(kind, "plan"):
        options |= set(inspect.signature(kind.plan).parameters)
    if kind in NAMED:
        assert NAMED[kind] <= set(known)
        assert not {"relation", "num_records", "budget"} & set(known)
        assert set(known) <= fields | options


NAMED = {
    solvers.FrankWolfe: {"microbatch_size", "assume_bounded", "sharpness", "certified", "steps"},
    solvers.AnytimeMirrorDescent: {"assume_bounded", "order", "refresh", "num_draws", "steps"},
    solvers.SaddleMirrorDescent: {"assume_bounded", "order", "step_size", "steps"},
    solvers.MultilevelSaddle: {"antithetic", "assume_bounded", "max_level", "seed"},
    solvers.GaussianFit: {"measured", "allocation", "prior", "fit_steps", "stddev"},
    solvers.RowsFit: {"measured", "information", "excess", "rows", "fit_steps", "fits", "stddev"},
    solvers.MWEM: {"steps", "step_size", "replays", "stddev"},
    solvers.HistogramRelease: {"projection", "stddev"},
    solvers.FrankWolfeRelease: {"steps", "vertices", "output", "noise_scale"},
    solvers.MirrorDescentRelease: {"steps", "width", "alpha", "noise"},
    solvers.SaddleRelease: {"steps", "step_size", "dual_step_size"},
}


def test_unknown_choices_of_a_plan_are_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'order'"):
        solvers.AnytimeMirrorDescent.plan(ON_SIMPLEX, 1000, dpjax.Budget(1.0, 1e-5), order="given")


@pytest.mark.parametrize(("kind", "problem"), PLANNED)
def test_stacked_solvers_have_a_guarantee_each(kind, problem):
    budgets = [dpjax.Budget(epsilon, 1e-5) for epsilon in (0.5, 1.0)]
    fixed = {"steps": 4} if "steps" in inspect.signature(kind.for_budget).parameters else {}
    if kind in (solvers.OnlineToNonconvex, solvers.AnytimeMirrorDescent):
        fixed = (
            {"steps": 4, "num_draws": 2, "refresh": 1} if problem is ON_SIMPLEX else {"steps": 4}
        )
    if kind is solvers.SaddleMirrorDescent:
        fixed |= {"num_draws": 2, "output": "played"}
    if kind is solvers.MultilevelSaddle:
        fixed = {"max_level": 0}
    one = kind.for_budget(problem, 1000, budgets[1], **fixed)
    solver = jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * 2), one)
    with pytest.raises(ValueError, match=r"is stacked, of shape \[2\]: .* several runs") as told:
        solver.guarantee()
    taken = str(told.value).partition("that of run i is ")[2]
    assert taken.startswith("jax.tree.map(")
    guarantee = eval(taken, {"jax": jax, "solver": solver, "i": 1})  # as the message says
    # two draws of epsilon 0.06, a multiple of the accountant's grid, are rounded up or not
    rel = 3e-4 if kind is solvers.SufficientStatistics else 1e-5
    assert guarantee.epsilon(1e-5) == pytest.approx(one.guarantee().epsilon(1e-5), rel=rel)
    traced = jax.jit(lambda s: s.guarantee())
    with pytest.raises(TypeError, match=r"is traced by jit or vmap.*outside the transformation"):
        traced(one)


def test_where_one_field_is_stacked_it_is_replaced():
    one = solvers.HistogramRelease.for_budget(TABLES, 1000, dpjax.Budget(1.0, 1e-5))
    solver = dataclasses.replace(one, stddev=jnp.array([1.0, 2.0]) * one.stddev)
    with pytest.raises(ValueError, match=r"stddev is stacked") as told:
        solver.guarantee()
    taken = str(told.value).partition("that of run i is ")[2]
    assert taken.startswith("dataclasses.replace(solver, stddev=solver.stddev[i])")
    guarantee = eval(taken, {"dataclasses": dataclasses, "solver": solver, "i": 1})
    assert guarantee.epsilon(1e-5) < 0.6 * one.guarantee().epsilon(1e-5)


def test_release_takes_the_workload_before_the_data():
    workload, budget = TABLES.workload, dpjax.Budget(1.0, 1e-5)
    codes = np.zeros((40, 2), np.int32)
    for wrong in (codes, {"a": codes[:, 0], "b": codes[:, 1]}, None, "marginals"):
        kind = type(wrong).__name__
        with pytest.raises(TypeError, match=rf"workload must come first, in release.* got {kind}"):
            dpjax.release(wrong, workload, budget, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"data must be the records, got the workload Prefix"):
        dpjax.release(workload, Prefix(4), budget, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"data must be the records, got the workload Marginals"):
        dpjax.release(workload.domain, workload, budget, key=jax.random.key(0))
    for wrong in ({"a": codes[:, 0]}, None, "cells"):
        with pytest.raises(TypeError, match=rf"records must be an array.* {type(wrong).__name__}"):
            dpjax.release(Prefix(4), wrong, budget, key=jax.random.key(0))


@pytest.mark.parametrize(
    "call",
    [
        lambda b: privacy.calibrate_gaussian(0.1, 10, b),
        lambda b: privacy.zcdp_budget(b),
        lambda b: privacy.max_steps(lambda n: None, b),
    ],
)
def test_nor_is_it_one_for_calibration(call):
    with pytest.raises(TypeError, match=NO_BUDGET):
        call(1.0)


@pytest.mark.parametrize("kind", [kind for kind, p in PLANNED if p in (ON_SIMPLEX, GAME)])
def test_vertices_are_asked_for(kind):
    with pytest.raises(TypeError, match=r"problem must be one over vertices, .* got Risk"):
        kind.for_budget(RISK, 1000, dpjax.Budget(1.0, 1e-5))


def test_the_solver_comes_first():
    solver = solvers.DPSGD.for_budget(RISK, 100, dpjax.Budget(1.0, 1e-5), steps=2)
    data = {"x": jnp.ones((100, 3)), "y": jnp.ones(100)}
    with pytest.raises(TypeError, match=r"solver must come first, .* got Risk"):
        dpjax.solve(RISK, solver, data, key=jax.random.key(0))


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_no_message_shows_records(make):
    records = make([[8.125, 2.0], [3.0, 4.0]])
    sampler = dpjax.sampling.PoissonSampler(0.5, 2, num_records=10)
    for call in (
        lambda: sampler.plan(jax.random.key(0), records),
        lambda: solvers.DPSGD.for_budget(RISK, records, dpjax.Budget(1.0, 1e-5)),
    ):
        with pytest.raises(TypeError, match=r"num_records must be an integer, got .*shape") as told:
            call()
        assert "8.125" not in str(told.value)


@pytest.mark.parametrize(
    ("kind", "problem", "fields"),
    [
        (solvers.FrankWolfe, ON_SIMPLEX, {"grad_range": 8.0}),
        (solvers.FrankWolfeRelease, TABLES, {"score_range": 8.0}),
        (solvers.FrankWolfeRelease, TABLES, {"noise": "laplace", "vertices": "queries"}),
        (dpjax.papers.MWEM, TABLES, {"answer_range": 5.0}),
        (dpjax.papers.MirrorDescentRelease, TABLES, {"score_range": 8.0}),
        (dpjax.papers.SaddleRelease, TABLES, {"score_range": 8.0}),
    ],
)
def test_fields_that_cost_more_than_the_budget_are_refused(kind, problem, fields):
    with pytest.raises(ValueError, match=r"above the budget's 1, with .* as given: leave that out"):
        kind.for_budget(problem, 1000, dpjax.Budget(1.0, 1e-6), **fields)
