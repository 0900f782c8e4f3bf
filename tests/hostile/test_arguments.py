"""Arguments of the wrong kind are refused by name, before anything is computed with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import privacy, problems, solvers
from dpjax.queries import Domain, Marginals

RISK = problems.Risk.linear(lambda margin, y: (margin - y) ** 2, 3, radius=1.0, lipschitz=1.0)
ON_SIMPLEX = problems.SimplexRisk(loss=lambda w, r: r["c"] @ w, dim=5, grad_range=1.0)
GAME = problems.Saddle.matrix_game((5, 5))
TABLES = problems.QueryRelease(Marginals.all_kway(Domain({"a": 2, "b": 3}), 1))
RATES = problems.RateConstrained.linear(3, 2)
PLANNED = [
    (solvers.DPSGD, RISK),
    (solvers.RateConstrainedSGDA, RATES),
    (solvers.DPFTRL, RISK),
    (solvers.OnlineToBatch, RISK),
    (solvers.OnlineToNonconvex, RISK),
    (solvers.FrankWolfe, ON_SIMPLEX),
    (solvers.AnytimeMirrorDescent, ON_SIMPLEX),
    (solvers.SaddleMirrorDescent, GAME),
    (solvers.MultilevelSaddle, GAME),
    (solvers.GaussianFit, TABLES),
    (solvers.MWEM, TABLES),
    (solvers.HistogramRelease, TABLES),
    (solvers.FrankWolfeRelease, TABLES),
    (solvers.MirrorDescentRelease, TABLES),
    (solvers.SaddleRelease, TABLES),
]
NO_BUDGET = r"budget must be a dpjax\.Budget\(epsilon, delta\), got (float|tuple)"


@pytest.mark.parametrize("budget", [1.0, (1.0, 1e-5)])
@pytest.mark.parametrize(("kind", "problem"), PLANNED)
def test_a_number_is_no_budget(kind, problem, budget):
    with pytest.raises(TypeError, match=NO_BUDGET):
        kind.for_budget(problem, 1000, budget)


def test_every_solver_was_tried():
    public = {v for v in vars(solvers).values() if hasattr(v, "for_budget")}
    assert public == {kind for kind, _ in PLANNED}


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
