"""Pure differential privacy, delta = 0: what is claimed against likelihoods, enumerated."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dpe

import dpjax
from dpjax.papers import nonsmooth_nonconvex, online_to_batch
from dpjax.privacy import (
    BoundedRangeGuarantee,
    Budget,
    Guarantee,
    Ledger,
    PureZCDpEvent,
    UnsupportedEventError,
    bounded_range_rho,
    calibrate_bounded_range,
    calibrate_noise,
    compose_guarantees,
    group_guarantee,
    max_steps,
)
from dpjax.transforms import BinaryTree

REPLACE = "replace_one"
LAPLACE = dpe.LaplaceDpEvent(4.0)


def largest_ratio(p, q):
    return float(np.max(np.abs(np.log(p) - np.log(q))))


@pytest.mark.parametrize("scale", [0.3, 4.0])
def test_laplace(scale):
    once = Guarantee(dpe.LaplaceDpEvent(scale))
    x = np.linspace(-3, 4, 701)
    assert once.epsilon(0.0) == pytest.approx(np.max(np.abs(x) - np.abs(x - 1)) / scale, rel=1e-12)
    assert once.delta(once.epsilon(0.0)) == 0.0
    assert once.delta(0.99 * once.epsilon(0.0)) > 0
    twice = Guarantee(dpe.SelfComposedDpEvent(once.event, 2))
    assert twice.epsilon(0.0) == 2 * once.epsilon(0.0)
    assert compose_guarantees(once, once).epsilon(0.0) == 2 * once.epsilon(0.0)
    assert Guarantee(dpe.NoOpDpEvent()).epsilon(0.0) == 0.0
    assert Guarantee(dpe.NonPrivateDpEvent()).epsilon(0.0) == math.inf


@pytest.mark.parametrize("rate", [0.01, 0.6])
@pytest.mark.parametrize("scales", [(0.5,), (2.0, 0.7)])
def test_laplace_releases_of_one_poisson_batch(rate, scales):
    """Amplified together: that both are sampled at once is worse than two samplings."""
    inner = dpe.ComposedDpEvent([dpe.LaplaceDpEvent(b) for b in scales])
    got = Guarantee(dpe.PoissonSampledDpEvent(rate, inner)).epsilon(0.0)
    x = np.linspace(-3, 4, 57)
    grid = np.meshgrid(*[x] * len(scales))
    without = math.prod(np.exp(-np.abs(g) / b) for g, b in zip(grid, scales, strict=True))
    within = math.prod(np.exp(-np.abs(g - 1) / b) for g, b in zip(grid, scales, strict=True))
    assert got == pytest.approx(largest_ratio((1 - rate) * without + rate * within, without))
    apart = sum(
        Guarantee(dpe.PoissonSampledDpEvent(rate, dpe.LaplaceDpEvent(b))).epsilon(0.0)
        for b in scales
    )
    assert got >= apart * (1 - 1e-12)


def test_amplification_neither_overflows_nor_helps_beyond_the_rate():
    event = dpe.PoissonSampledDpEvent(0.25, dpe.LaplaceDpEvent(1e-3))
    assert Guarantee(event).epsilon(0.0) == pytest.approx(1000 + math.log(0.25))
    assert Guarantee(dpe.PoissonSampledDpEvent(0.25, dpe.LaplaceDpEvent(1 / 30))).epsilon(
        0.0
    ) == pytest.approx(math.log(0.75 + 0.25 * math.exp(30)))


@pytest.mark.parametrize(("noise", "buckets"), [(0.1, 2), (0.7, 5), (1.0, 3)])
def test_randomised_response(noise, buckets):
    law = np.full((buckets, buckets), noise / buckets) + (1 - noise) * np.eye(buckets)
    got = Guarantee(dpe.RandomizedResponseDpEvent(noise, buckets), REPLACE).epsilon(0.0)
    assert got == pytest.approx(largest_ratio(law[0], law[1]), abs=1e-15)


def test_discrete_laplace():
    k = np.arange(-20, 21)
    law = np.exp(-0.3 * np.abs(k)), np.exp(-0.3 * np.abs(k - 2))
    got = Guarantee(dpe.DiscreteLaplaceDpEvent(0.3, 2)).epsilon(0.0)
    assert got == pytest.approx(largest_ratio(*law))


@pytest.mark.parametrize(("relation", "doubled"), [("add_or_remove_one", 1), (REPLACE, 2)])
@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_pure_trees(relation, doubled, exponent):
    tree = BinaryTree(8, exponent=exponent, distribution="l2")
    got = Guarantee(tree.event(5.0, relation), relation).epsilon(0.0)
    assert got == pytest.approx(doubled / 5.0)
    # with so little noise no loss is representable: nothing is claimed, not 700
    assert Guarantee(tree.event(1e-4, relation), relation).epsilon(0.0) == math.inf


@pytest.mark.parametrize("eta", [0.05, 1.0, 6.0])
def test_a_draw_of_bounded_range_is_eta_private_and_no_better(rng, eta):
    claimed = Guarantee(PureZCDpEvent(bounded_range_rho(eta), epsilon=eta)).epsilon(0.0)
    assert claimed == eta
    largest = 0.0
    for _ in range(300):
        logits = rng.normal(size=5) * rng.choice([0.1, 3.0, 30.0])
        change = eta * rng.choice([0.0, 1.0, rng.uniform()], size=5)
        p, q = (np.exp(v - v.max()) / np.exp(v - v.max()).sum() for v in (logits, logits + change))
        largest = max(largest, largest_ratio(np.maximum(p, 1e-300), np.maximum(q, 1e-300)))
    assert 0.99 * eta < largest <= eta * (1 + 1e-9)


@pytest.mark.parametrize("relation", ["add_or_remove_one", REPLACE])
def test_frank_wolfe_draws_enumerated(rng, relation):
    """All vertices of a step, on data sets that differ in one record, at the worst offsets."""
    n, dim = 6, 4
    problem = dpjax.problems.SimplexRisk(
        loss=lambda w, record: record["c"] @ w, dim=dim, grad_range=1.0
    )
    solver = dpjax.solvers.FrankWolfe.for_budget(problem, n, Budget(2.0, 0.0, relation), steps=3)
    claimed = solver.guarantee().epsilon(0.0)
    assert 2.0 - 1e-9 < claimed <= 2.0
    state = solver.init(problem, key=jax.random.key(0))

    @jax.jit
    def law(costs, mask):
        return jax.nn.log_softmax(solver.direction(problem, {"c": costs}, mask, state).high)

    largest = 0.0
    signs = rng.choice([-50.0, 0.0, 50.0], size=(20, n, dim)) + rng.normal(size=(20, n, dim))
    rare = np.tile([10.0, -10.0, -10.0, -10.0], (n, 1))  # the first vertex is the least likely
    for costs in [*signs, rare]:
        other = costs.copy()
        other[0] = -costs[0] if relation == REPLACE else 0.0
        mask = jnp.ones(n, bool)
        left = mask if relation == REPLACE else mask.at[0].set(False)
        here, there = (
            law(jnp.asarray(costs, jnp.float32), mask),
            law(jnp.asarray(other, jnp.float32), left),
        )
        largest = max(largest, float(jnp.max(jnp.abs(here - there))))
    each = claimed / solver.sampler.steps
    assert 0.5 * each < largest <= each * (1 + 1e-5)


@pytest.mark.parametrize(
    "event",
    [
        dpe.GaussianDpEvent(2.0),
        dpe.ZCDpEvent(0.01),
        dpe.ComposedDpEvent([dpe.LaplaceDpEvent(2.0), dpe.GaussianDpEvent(2.0)]),
        dpjax.privacy.joint_poisson_event(0.1, 5, gaussian=1.0, laplace_scale=1.0),
        dpe.SingleEpochTreeAggregationDpEvent(2.0, 4),
        dpe.SelfComposedDpEvent(PureZCDpEvent(0.01), 2),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_has_no_pure_epsilon_says_so(event):
    relation = "replace_special" if "Tree" in type(event).__name__ else "add_or_remove_one"
    guarantee = Guarantee(event, relation)
    with pytest.raises(UnsupportedEventError, match=r"has no pure epsilon.*ask for delta > 0, or"):
        guarantee.epsilon(0.0)
    assert 0 < guarantee.epsilon(1e-5) < math.inf


def test_a_failure_probability_makes_delta_0_impossible():
    guarantee = Guarantee(LAPLACE, failure_probability=1e-9)
    with pytest.raises(ValueError, match=r"to hold failure_probability = 1e-09, got 0.0"):
        guarantee.epsilon(0.0)
    assert guarantee.epsilon(1e-6) == pytest.approx(0.25, rel=1e-3)
    with pytest.raises(ValueError, match=r"to hold failure_probability"):
        calibrate_noise(dpe.LaplaceDpEvent, Budget(1.0, 0.0), failure_probability=1e-9)


def test_a_pure_epsilon_bounds_epsilon_at_every_delta():
    rho = bounded_range_rho(1.0)
    pure = Guarantee(PureZCDpEvent(rho, epsilon=1.0))
    assert Guarantee(dpe.ZCDpEvent(rho)).epsilon(1e-12) > 1.0
    assert pure.epsilon(1e-12) == 1.0
    assert pure.delta(1.0) == 0.0
    # and changes nothing where it is larger
    assert Guarantee(dpe.SelfComposedDpEvent(pure.event, 50)).epsilon(1e-2) == Guarantee(
        dpe.SelfComposedDpEvent(dpe.ZCDpEvent(rho), 50)
    ).epsilon(1e-2)


@pytest.mark.parametrize("epsilon", [-1.0, math.nan])
def test_a_pure_epsilon_is_no_negative_number(epsilon):
    with pytest.raises(ValueError, match=r"epsilon of PureZCDpEvent.* must be >= 0"):
        Guarantee(PureZCDpEvent(0.01, epsilon=epsilon))


@pytest.mark.parametrize("number", [-5, 0, 0.5])
def test_sensitivities_and_buckets_are_positive_integers(number):
    """Of a difference with its sign the pure epsilon was -5, and took that off other releases'."""
    for event, relation in (
        (dpe.DiscreteLaplaceDpEvent(1.0, number), "add_or_remove_one"),
        (dpe.RandomizedResponseDpEvent(0.5, number), REPLACE),
    ):
        with pytest.raises((ValueError, TypeError), match="must be"):
            Guarantee(dpe.ComposedDpEvent([event, dpe.NoOpDpEvent()]), relation)


@pytest.mark.parametrize("delta", [-0.1, 1.0, 2.0, math.nan])
def test_budgets_allow_delta_0_and_nothing_outside(delta):
    assert Budget(1.0, 0.0).delta == 0.0
    with pytest.raises(ValueError, match=r"delta must lie in \[0, 1\), got"):
        Budget(1.0, delta)


def test_calibration():
    budget = Budget(0.5, 0.0)
    assert 2.0 <= calibrate_noise(dpe.LaplaceDpEvent, budget) <= 2.0 * 1.0001
    with pytest.raises(UnsupportedEventError, match=r"GaussianDpEvent.*has no pure epsilon"):
        calibrate_noise(dpe.GaussianDpEvent, budget)
    steps = max_steps(lambda t: dpe.SelfComposedDpEvent(dpe.LaplaceDpEvent(8.0), t), budget)
    assert steps == 4
    eta = calibrate_bounded_range(budget, 7)
    assert eta == pytest.approx(0.5 / 7)
    assert BoundedRangeGuarantee(eta, 7).epsilon(0.0) <= 0.5
    with pytest.raises(ValueError, match="epsilon must be finite"):
        calibrate_bounded_range(Budget(math.inf, 0.0), 7)


def test_ledgers_and_groups():
    with pytest.raises(ValueError, match="delta must be > 0 for a ledger"):
        Ledger(Budget(1.0, 0.0))
    assert group_guarantee(Guarantee(LAPLACE), 3).epsilon(0.0) == 0.75
    draws = Guarantee(dpe.SelfComposedDpEvent(PureZCDpEvent(0.001, epsilon=0.1), 2))
    assert group_guarantee(draws, 3).epsilon(0.0) == pytest.approx(0.6)
    assert group_guarantee(draws, 3)._direct.epsilon(0.0) == pytest.approx(0.6)


def test_a_ledger_file_keeps_pure_epsilons(tmp_path):
    draws = Guarantee(dpe.SelfComposedDpEvent(PureZCDpEvent(0.001, epsilon=0.1), 2))
    with Ledger(tmp_path / "ledger.json", Budget(2.0, 1e-6)) as ledger:
        ledger.spend(draws)
    again = Ledger(tmp_path / "ledger.json").entries[0].guarantee
    assert again == draws
    assert again.epsilon(0.0) == 0.2


def queries():
    domain = dpjax.queries.Domain({"a": 4, "b": 5})
    return dpjax.problems.QueryRelease(dpjax.queries.Marginals.all_kway(domain, 1))


def risk():
    return dpjax.problems.Risk(
        lambda w, x: jnp.log1p(jnp.exp(x["x"] @ w)), jnp.zeros(3), radius=2.0, lipschitz=1.0
    )


@pytest.mark.parametrize("relation", ["add_or_remove_one", REPLACE])
@pytest.mark.parametrize("name", ["FrankWolfeRelease", "SaddleRelease", "MirrorDescentRelease"])
def test_query_releases_meet_a_pure_budget(name, relation):
    kind, budget = getattr(dpjax.solvers, name), Budget(1.0, 0.0, relation)
    solver = kind.for_budget(queries(), 1000, budget)
    assert 1.0 - 1e-9 < solver.guarantee().epsilon(0.0) <= 1.0
    paper = dpjax.papers.query_release
    as_published = {
        "FrankWolfeRelease": paper.frank_wolfe,
        "SaddleRelease": paper.saddle,
        "MirrorDescentRelease": paper.mirror_descent,
    }[name]
    with pytest.raises(ValueError, match="delta must be > 0 with as_published"):
        as_published(queries(), 1000, budget)


@pytest.mark.parametrize("relation", ["add_or_remove_one", REPLACE])
def test_a_pure_tree_can_be_asked_for(relation):
    solver = dpjax.solvers.OnlineToBatch.for_budget(
        risk(), 200, Budget(1.0, 0.0, relation), single_pass=True, noise="pure_tree"
    )
    assert 0.9999 < solver.guarantee().epsilon(0.0) <= 1.0
    doubled = 2 if relation == REPLACE else 1
    assert 1.0 <= solver.noise_multiplier / doubled < 1.0001
    if relation == "add_or_remove_one":
        assert solver.sampler.failure_probability() == 0


@pytest.mark.parametrize(
    ("name", "problem", "options"),
    [
        ("DPSGD", risk, {}),
        ("DPFTRL", risk, {}),
        ("OnlineToBatch", risk, {}),
        ("OnlineToBatch", risk, {"single_pass": True}),
        ("OnlineToNonconvex", risk, {}),
        ("GaussianFit", queries, {}),
        ("HistogramRelease", queries, {}),
        ("MWEM", queries, {}),
    ],
)
def test_gaussian_methods_refuse_a_pure_budget_before_any_data(name, problem, options):
    kind = getattr(dpjax.solvers, name)
    with pytest.raises(ValueError, match=r"has no pure epsilon.*FrankWolfe"):
        kind.for_budget(problem(), 200, Budget(1.0, 0.0), **options)


def test_published_formulas_refuse_a_pure_budget():
    for paper in (online_to_batch, nonsmooth_nonconvex):
        with pytest.raises(ValueError, match="delta must be > 0 with as_published"):
            paper.as_published(risk(), 200, Budget(1.0, 0.0))


@pytest.mark.parametrize("relation", ["add_or_remove_one", REPLACE])
def test_single_passes_say_their_pure_epsilon(relation):
    """A record of batch t moves the scores of all draws from then on."""
    problem = dpjax.problems.SimplexRisk.linear(
        lambda margin, y: 0.5 * (margin - y) ** 2,
        dpjax.geometry.L1Ball(20),
        grad_range=4.0,
        smoothness=1.0,
    )
    kind = dpjax.solvers.AnytimeMirrorDescent
    with pytest.raises(ValueError, match="delta must be > 0 to plan a single pass"):
        kind.for_budget(problem, 1000, Budget(1.0, 0.0, relation))
    solver = kind.for_budget(problem, 1000, Budget(1.0, 1e-6, relation), refresh=1)
    sampler = solver.sampler
    if relation == "add_or_remove_one":
        sampler = dataclasses.replace(sampler, capacity=1001)
        solver = dataclasses.replace(solver, sampler=sampler)
    sums = []
    for t, size in enumerate(sampler.sizes):
        draws = solver.num_draws * (sampler.steps - t - 1) + solver._last_draws
        moved = (2 if relation == REPLACE else 1) * solver.step_size[0] * solver.grad_range[0]
        sums.append(draws * moved / size)
    assert solver.guarantee().epsilon(0.0) == pytest.approx(max(sums))
    assert solver.guarantee().relation == NeighboringRelation[relation.upper()]


def test_release_with_a_pure_budget():
    domain = dpjax.queries.Domain({"a": 2, "b": 3})
    workload = dpjax.queries.Marginals.all_kway(domain, 1)
    data = {"a": np.arange(60) % 2, "b": np.arange(60) % 3}
    released = dpjax.release(workload, data, Budget(1.0, 0.0), key=jax.random.key(0))
    assert released.method == "frank_wolfe"
    assert 1.0 - 1e-9 < released.guarantee.epsilon(0.0) <= 1.0
