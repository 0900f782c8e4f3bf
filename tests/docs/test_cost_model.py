"""docs/cost_model.md says what the formulas and the committed run give, and XLA counts alike."""

import ast

import jax
import numpy as np
import pytest

import dpjax
from benchmarks import _scaling_far, _scaling_instances, _scaling_page, _scaling_rounding, scaling
from benchmarks import _scaling_model as model
from benchmarks._scaling_curves import CURVES


def test_the_page_has_the_tables_of_the_model_and_of_the_committed_run():
    text = _scaling_page.PAGE.read_text(encoding="utf-8")
    assert _scaling_page.filled(text) == text, "run: python -m benchmarks readme"


def test_every_formula_is_of_a_solver_and_has_curves():
    public = vars(dpjax.solvers) | vars(dpjax.papers)
    modelled = set(model.COSTS)
    assert modelled < {name for name, value in public.items() if hasattr(value, "for_budget")}
    assert {curve.solver for curve in CURVES} == modelled
    assert {far.solver for far in _scaling_far.FAR} == modelled
    assert len({curve.name for curve in CURVES}) == len(CURVES)
    assert set(scaling.FAST) < {curve.name for curve in CURVES}


def test_formulas_speak_of_known_sizes():
    for cost in model.COSTS.values():
        for formula in (*cost[:-1], cost.split[1]):
            names = {n.id for n in ast.walk(ast.parse(formula)) if isinstance(n, ast.Name)}
            assert names <= {*model.SYMBOLS, "log2"}, formula


def counted(instance):
    """What XLA counts in one step: operations, exponentials and their like, bytes."""
    solver, problem, data, _ = instance
    key, num = jax.random.key(0), jax.tree.leaves(data)[0].shape[0]

    def first(data, key):
        state = solver.init(problem, key=key)
        return solver.prologue(problem, data, state) if hasattr(solver, "prologue") else state

    def step(data, state, x):
        indices, mask = solver.sampler.batch(x, num)
        batch = data if indices is None else jax.tree.map(lambda a: a[indices], data)
        return solver.step(problem, batch, mask, state)

    x = jax.eval_shape(lambda k: jax.tree.map(lambda a: a[0], solver.sampler.plan(k, num)), key)
    compiled = jax.jit(step).lower(data, jax.eval_shape(first, data, key), x).compile()
    found = compiled.cost_analysis()
    found = found[0] if isinstance(found, list) else found  # older jax: one a computation
    return found["flops"], found.get("transcendentals", 0.0), found["bytes accessed"]


@pytest.mark.parametrize(
    ("name", "build", "sizes"),
    [
        ("DPSGD", "dpsgd", {"n": 4096, "m": 1024, "p": 1024, "c": 8, "T": 4}),
        ("DPSGD", "dpsgd", {"n": 4096, "m": 128, "p": 1024, "c": 8, "T": 4}),
        ("DPSGD", "dpsgd", {"n": 4096, "m": 1024, "p": 128, "c": 8, "T": 4}),
        ("DPSGD", "dpsgd", {"n": 64, "m": 4, "p": 2**16, "c": 2, "T": 4}),
        ("DPFTRL", "dpftrl", {"n": 64, "p": 2**16, "c": 2, "T": 16}),
        # from 512 on by parts of a batch, in a loop of which XLA counts one turn
        ("OnlineToBatch", "online_to_batch", {"n": 4096, "p": 500, "T": 3}),
        (
            "OnlineToNonconvex",
            "online_to_nonconvex",
            {"n": 4096, "m": 1024, "p": 512, "T": 3, "q": 1},
        ),
        ("SaddleMirrorDescent", "saddle_mirror_descent", {"n": 4096, "p": 512, "T": 4, "q": 3}),
        ("AnytimeMirrorDescent", "anytime", {"n": 40, "p": 2**16, "T": 4, "q": 3}),
        ("FrankWolfeRelease", "frank_wolfe_release", {"n": 100, "a": 7, "w": 2, "T": 4}),
        ("SaddleRelease", "saddle_release", {"n": 100, "j": 128, "k": 2048, "T": 4}),
        ("MWEM", "mwem", {"n": 100, "a": 7, "w": 2, "T": 4, "r": 1}),
    ],
)
def test_xla_counts_about_what_the_formulas_say(name, build, sizes):
    instance = getattr(_scaling_instances, build)(**sizes)
    cost = model.COSTS[name]

    def said(formula):
        return model.value(formula, instance.sizes)

    operations, exponentials, moved = counted(instance)
    width = 2 if jax.config.jax_enable_x64 else 1  # the formulas are for 32 bits
    random = 200 * said(cost.noise) + 100 * said(cost.words)
    assert operations / 2 < said(cost.flops) + random < 2 * operations
    assert exponentials / 2 < said(cost.specials) < 2 * exponentials
    assert moved / 2 < width * said(cost.bytes) < 2 * moved


def test_slopes_are_those_of_the_upper_sizes():
    at = [1.0, 2.0, 4.0, 8.0, 16.0]
    found = scaling.slope(at, [9.0, 9.0, *(3 * x**1.5 for x in at[2:])])
    assert np.allclose([found[k] for k in ("fitted", "least", "largest")], 1.5)
    bent = scaling.slope(at, [1.0, 1.0, 1.0, 2.0, 8.0])
    assert np.allclose([bent["least"], bent["fitted"], bent["largest"]], [1.0, 1.5, 2.0])


def test_predicted_slopes_are_those_of_what_grows():
    machine = _scaling_far.H100._replace(step=0.0, run=0.0)

    def slope(name, symbol, **sizes):
        at = [1e6, 1e7, 1e8]
        return scaling.slope(at, [model.seconds(name, sizes | {symbol: x}, machine) for x in at])[
            "fitted"
        ]

    linear = {"n": 1e4, "m": 500, "B": 600, "p": 10, "c": 2, "d": 22, "T": 8}
    # batches are drawn at a cost free of n
    assert slope("DPSGD", "n", **linear) == pytest.approx(0, abs=1e-9)
    assert slope("DPSGD", "T", **linear) == pytest.approx(1)
    assert slope("OnlineToBatch", "B", **linear) == pytest.approx(1, abs=1e-3)
    assert slope("GaussianFit", "k", n=1e3, j=10, u=8, a=3, E=5) == pytest.approx(1, abs=1e-3)
    one, many = (model.seconds("DPSGD", linear, _scaling_far.H100, runs=r) for r in (1, 64))
    assert one < many < 64 * one  # a step's fixed cost is paid once


def test_data_are_held_once_and_spread_over_devices():
    one, many = (model.memory("DPSGD", _scaling_far.FAR[0].sizes, runs) for runs in (1, 3))
    assert 4e13 < one < 4.1e13
    assert many < 1.01 * one
    assert _scaling_far.devices(_scaling_far.FAR[0]) == 1024  # of 64 GB


def test_rounding_is_small_for_few_records():
    (row,) = _scaling_rounding.measure((2**10,))
    assert row["excess"] < 1e-3


def test_more_records_than_int32_counts_are_refused(x64):
    matrix = np.random.default_rng(0).random((3, 4))
    problem = dpjax.problems.QueryRelease(dpjax.queries.Dense(matrix))
    problem.check_number(2**31 - 1)
    with pytest.raises(ValueError, match=str(2**31 - 1)):
        problem.check_number(2**31)
