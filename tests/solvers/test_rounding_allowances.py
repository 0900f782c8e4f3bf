"""What rounding may add to a sensitivity is added to it, and integer sums have room for it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.core import Transform
from dpjax.geometry import L1Ball, Simplex
from dpjax.papers._saddle_mirror_descent import SaddleMirrorDescent
from dpjax.privacy._budget import relation_factor
from dpjax.problems import SimplexRisk
from dpjax.sampling import DisjointPartition, FullBatch
from dpjax.solvers import AnytimeMirrorDescent, FrankWolfe
from dpjax.solvers.vertices._steps import shrunk
from dpjax.transforms.clipping._weighted_sum import noised_sum, rounding_allowance, weighted_sum

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("rows", [1, 1024, 10**6])
def test_the_allowance_counts_three_roundings_for_each_of_two_neighbours(rows, dtype):
    roundings = 2 * 3 * EPS[dtype] / 2 * rows  # each of a sum of norm `rows`, by half a spacing
    floating = EPS[dtype] * rows
    assert rounding_allowance(rows, dtype) >= 2.0**-12 + roundings + floating


def test_noise_is_larger_by_the_allowance():
    def one(updates, state, params=None, *, key, **extra):
        return jax.tree.map(lambda u: u + 1, updates), state

    noise = Transform(lambda params: optax.EmptyState(), one)
    for rows in (8, 4096):
        total = {"w": jnp.zeros(3), "b": jnp.zeros(2, jnp.float32)}
        made, _ = noised_sum(noise, total, optax.EmptyState(), rows=rows, key=jax.random.key(0))
        added = np.concatenate([np.asarray(leaf, float) for leaf in jax.tree.leaves(made)]) - 1
        assert added == pytest.approx(rounding_allowance(rows, jnp.float32), rel=1e-3)


@pytest.mark.parametrize("moved", [1e-3, 0.1, 2.0, 50.0])
def test_a_shrunk_weight_leaves_room_for_two_hundred_roundings(moved):
    for logit, total in ((0.0, 0.0), (300.0, 40.0)):
        left = float(shrunk(1.0, moved, jnp.float32, logit, total))
        added = (200 + logit + total * moved) * EPS["float32"]
        assert left > 0
        assert left * moved + added <= moved * (1 - 2.0**-19)


def test_rounding_alone_leaves_no_weight():
    assert float(shrunk(1.0, 1e-7, jnp.float32)) == 0.0


@pytest.mark.parametrize("bound", [1.0, float(np.nextafter(np.float32(2), np.float32(0)))])
def test_records_that_all_reach_the_bound_do_not_overflow(bound):
    for rows in (1, 2, 64, 1000, 1024):
        full = jnp.full((rows, 2), bound, jnp.float32) * jnp.array([[1, -1]], jnp.float32)
        got = weighted_sum(full, jnp.ones(rows, jnp.float32), bound)
        assert np.asarray(got, float) == pytest.approx([rows * bound, -rows * bound], rel=1e-6)


def test_a_draw_of_frank_wolfe_leaves_room_for_its_rounding():
    """At a range of 1e-3 that room is 3.6 % in float32."""
    problem = SimplexRisk.linear(lambda margin, y: margin * y, Simplex(4), grad_range=2.0)
    solver = FrankWolfe(FullBatch(1), 1e-3, 2.0, 2.0)
    data = {"x": jnp.asarray([[1.0, -1.0, 0.0, 0.0]]), "y": jnp.ones(1)}
    state = solver.init(problem, key=jax.random.key(0))
    scores = solver.direction(problem, data, jnp.ones(1, bool), state)
    eta = 1e-3 * 2.0 / 2.0
    room = 300 * float(jnp.finfo(state.params.dtype).eps) / eta + 2.0**-18
    assert 1 - 1.1 * room < float(jnp.ptp(scores.high)) / eta < 1 - 0.9 * room


def test_a_draw_of_mirror_descent_leaves_room_for_its_rounding():
    solver = SaddleMirrorDescent(DisjointPartition(2, 4), (1e-3,), (2.0,))
    (weight,) = solver._step_weights(jnp.int32(0), jnp.float32)
    factor = relation_factor(solver.relation)
    assert 0.5 < factor * float(weight) * 2.0 / (factor * 1e-3 * 2.0 / 4) < 0.97


@pytest.mark.parametrize("num_records", [100_000, 1_000_000])
@pytest.mark.parametrize("kind", [AnytimeMirrorDescent, SaddleMirrorDescent])
def test_rounding_leaves_default_plans_their_steps(kind, num_records):
    """25,683 steps of the anytime method had nothing left, and its result was that of no data."""
    problem = SimplexRisk.linear(
        lambda margin, y: margin * y, L1Ball(100), grad_range=4.2, smoothness=1.0, third_order=0.0
    )
    budget = dpjax.Budget(1.0, 1e-9, "replace_one")
    solver = kind.for_budget(problem, num_records, budget)
    data = {"x": 2.1 * jnp.eye(1, 100), "y": jnp.ones(1)}  # of the largest range
    state = solver.init(problem, key=jax.random.key(0))
    for count in (0, solver.sampler.steps - 1):
        now = solver.prepare(problem, state._replace(count=jnp.int32(count)))
        now = solver.accept(problem, solver.sample(problem, now), now)
        after = solver.advance(problem, data, jnp.ones(1, bool), now)
        (moved, *_) = jax.tree.leaves(after.scores)
        step = 2.1 * float(solver.step_size[0]) / solver.sampler.sizes[count]
        assert 0.9 < float(jnp.max(jnp.abs(moved))) / step <= 1
