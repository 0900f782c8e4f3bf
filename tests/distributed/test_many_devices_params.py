"""Parameters and vertices spread over devices: noise is drawn where it is added."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from placements import assert_same, collectives, compiled_loop, job_of, mesh_of, put, with_params

import dpjax
from dpjax.geometry import L1Ball
from dpjax.problems import QueryRelease, RateConstrained, Risk, SimplexRisk, demographic_parity
from dpjax.sampling import DisjointPartition, FullBatch, PoissonSampler, TaperedPartition
from dpjax.solvers import (
    DPFTRL,
    DPSGD,
    AnytimeMirrorDescent,
    FrankWolfe,
    MultilevelSaddle,
    OnlineToBatch,
    OnlineToNonconvex,
    PolishedFrankWolfe,
    RateConstrainedSGDA,
    SaddleMirrorDescent,
)
from dpjax.testing import entries
from dpjax.transforms import Banded, BinaryTree, BufferedToeplitz, RestartNoise, SplitNoise

N, D = 64, 2**14  # from this length on sums, noise and buffers take other paths on one CPU
PASS, FULL = DisjointPartition(4, 16), FullBatch(3)


def _logistic(w, record):
    return jax.nn.softplus((1 - 2 * record["y"]) * (record["x"] @ w))


def _squares(margin, y):
    return (margin - y) ** 2 / 2


RISK = Risk(_logistic, jnp.zeros(D, jnp.float32), radius=2.0)
LINEAR = Risk.linear(_squares, D)
SIMPLEX = SimplexRisk.linear(_squares, dim=D, grad_range=2.0)
BALL = SimplexRisk.linear(_squares, L1Ball(D, 2.0), grad_range=1.3)
RATES = RateConstrained.linear(D, 2, demographic_parity(2, 2, slack=0.05))


def _dpsgd(problem, sampler=FULL, **options):
    # else one device pads its rows, by which noise is rounded
    relation = "replace_one" if sampler is FULL else "add_or_remove_one"
    options = {"decay": 0.9, "relation": relation} | options
    return DPSGD(sampler, 1.0, 0.7, 0.5, 64.0, **options), problem


def _ftrl(strategy):
    options = {"relation": "replace_one", "noise": strategy}
    return DPFTRL(PASS, 1.0, 0.7, 0.5, 16.0, **options), RISK


def _to_batch(noise, problem=RISK, sampler=PASS, **options):
    return OnlineToBatch(sampler, noise, 1.0, 0.7, 0.5, 0.3, 16.0, **options), problem


def _nonconvex(problem, sampler=FULL, **options):
    return OnlineToNonconvex(sampler, 1.0, 0.7, 0.5, 0.1, 16.0, 0.05, **options), problem


CASES = {
    "DPSGD": lambda: _dpsgd(RISK),
    "DPSGD, linear": lambda: _dpsgd(LINEAR),
    "DPSGD, microbatches, adam": lambda: _dpsgd(
        RISK, microbatch_size=16, optimizer=optax.adam(0.1), average="last"
    ),
    "DPSGD, Poisson": lambda: _dpsgd(LINEAR, PoissonSampler(0.1, 3, N)),
    "DPSGD, Poisson by shards": lambda: _dpsgd(RISK, PoissonSampler(0.1, 3, N, shards=2)),
    "RateConstrainedSGDA": lambda: (
        RateConstrainedSGDA(_dpsgd(None)[0], dual_learning_rate=0.1, histogram_noise=1.0),
        RATES,
    ),
    "DPFTRL, tree": lambda: _ftrl(BinaryTree(4)),
    "DPFTRL, tree, variance reduced": lambda: _ftrl(BinaryTree(4, variance_reduced=True)),
    "DPFTRL, tree, l2": lambda: _ftrl(BinaryTree(4, distribution="l2")),
    "DPFTRL, tree, linf": lambda: _ftrl(BinaryTree(4, distribution="linf")),
    "DPFTRL, buffered": lambda: _ftrl(BufferedToeplitz(4)),
    "DPFTRL, banded": lambda: _ftrl(Banded(4, coefficients=(1.0, 0.6, 0.3))),
    "OnlineToBatch, split": lambda: _to_batch(
        SplitNoise(3), sampler=FULL, relation="add_or_remove_one"
    ),
    "OnlineToBatch, buffered, optimistic": lambda: _to_batch(
        BufferedToeplitz(4), learner="optimistic"
    ),
    "OnlineToBatch, tree, parameter-free": lambda: _to_batch(
        BinaryTree(4, exponent=1.0), clip="whole", learner="parameter_free"
    ),
    "OnlineToBatch, tree, adagrad": lambda: _to_batch(BinaryTree(4), learner="adagrad_norm"),
    "OnlineToBatch, exponentiated": lambda: _to_batch(
        SplitNoise(3), SIMPLEX, FULL, norm="linf", clip="plain", learner="exponentiated"
    ),
    "OnlineToNonconvex, first": lambda: _nonconvex(LINEAR),
    "OnlineToNonconvex, first, of records": lambda: _nonconvex(RISK, directions="record"),
    "OnlineToNonconvex, zeroth": lambda: _nonconvex(LINEAR, oracle="zeroth", num_directions=4),
    "OnlineToNonconvex, zeroth, of records": lambda: _nonconvex(
        LINEAR, oracle="zeroth", num_directions=4, directions="record"
    ),
    "OnlineToNonconvex, periods": lambda: _nonconvex(
        RISK,
        DisjointPartition(3, 16),
        noise=RestartNoise(BufferedToeplitz(2)),
        smoothness=3.0,
        relation="replace_one",
        difference_batch_size=4,
    ),
    "OnlineToNonconvex, min-norm": lambda: _nonconvex(
        LINEAR,
        FullBatch(2),
        noise=SplitNoise(3),
        smoothness=3.0,
        selection="min_norm",
        block_size=2,
    ),
    "FrankWolfe, simplex": lambda: (FrankWolfe(FULL, 50.0, SIMPLEX.grad_range, 20.0), SIMPLEX),
    "FrankWolfe, ball": lambda: (FrankWolfe(FULL, 50.0, BALL.grad_range, 20.0), BALL),
    "PolishedFrankWolfe": lambda: (
        PolishedFrankWolfe(
            FrankWolfe(FULL, 50.0, BALL.grad_range, 20.0),
            DPSGD(FULL, 1.0, 2.0, 0.1, 20.0, decay=0.5),
            1.0,
        ),
        BALL,
    ),
    "SaddleMirrorDescent": lambda: (SaddleMirrorDescent(PASS, (0.1,), SIMPLEX.ranges, 8), SIMPLEX),
    "AnytimeMirrorDescent, simplex": lambda: (
        AnytimeMirrorDescent(TaperedPartition(4, N), (0.1,), SIMPLEX.ranges, 8),
        SIMPLEX,
    ),
    "AnytimeMirrorDescent, ball": lambda: (
        AnytimeMirrorDescent(TaperedPartition(4, N), (0.1,), BALL.ranges, 8),
        BALL,
    ),
    "MultilevelSaddle": lambda: (
        MultilevelSaddle(TaperedPartition(18, N), (0.1,), SIMPLEX.ranges, (0, 1, 0, 0), 1),
        SIMPLEX,
    ),
}
CASES |= {e.name: e.facts["spread"] for e in entries("solver") if callable(e.facts.get("spread"))}
QUICK = ("DPFTRL, tree, variance reduced", "OnlineToNonconvex, first", "FrankWolfe, ball")

D_OVER_4 = 0.25  # what a device has of a vector, in units of D numbers
# Records that are drawn across shares are found by a sum over devices, which add 0 or a record.
SUMMED = {DisjointPartition: 16 / 4, TaperedPartition: 32 / 4, PoissonSampler: N / 4}
# What may change place as it is, why, and how much of it in units of D numbers at most. Else
# nothing of D / 4 numbers may: noise, gradients, buffers and parameters stay where they are.
MOVED = {
    "DPSGD, Poisson": ("records of a batch, drawn across shares", N / 4),
    "OnlineToNonconvex, zeroth, of records": ("directions of records, public", 8),
    "OnlineToNonconvex, periods": ("records of a batch, cut in parts", 4),
    "AnytimeMirrorDescent, simplex": ("records of a batch of uneven size", 6),
    "AnytimeMirrorDescent, ball": ("the same; scores of both signs", 6),
    "MultilevelSaddle": ("records of a batch of uneven size", 2),
    "PolishedFrankWolfe": ("coordinates are sorted, twice a run", 1),
}


@functools.cache
def _data(rates):
    x = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32) / D**0.5
    y = (x[:, 0] > 0).astype(np.int32 if rates else np.float32)
    return {"x": x, "y": y} | ({"group": np.arange(N, dtype=np.int32) % 2} if rates else {})


def _placed(problem, mesh):
    """The problem and data on a mesh of records and parameters."""
    data = _data(isinstance(problem, RateConstrained))
    data = {k: put(v, mesh, "records", *["params"] * (v.ndim - 1)) for k, v in data.items()}
    if not isinstance(problem, SimplexRisk):
        problem = with_params(problem, mesh, lambda leaf: leaf.ndim > 0 and leaf.shape[0] == D)
    return problem, data


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_parameters_stay_spread_and_results_are_those_of_one_device(name):
    solver, problem = CASES[name]()
    mesh = mesh_of(2, 4)
    placed, data = _placed(problem, mesh)
    one = dpjax.solve(solver, problem, _data("group" in data), key=jax.random.key(1))
    many = dpjax.solve(solver, placed, data, key=jax.random.key(1))
    # differences of losses, and of points that set the scale of noise, lose digits; steps with
    # correlated noise lie on a grid
    coarse = any(word in name for word in ("zeroth", "split", "buffered", "periods"))
    tolerance = 1e-3 if coarse else 1e-5
    assert_same((many.params, many.info), (one.params, one.info), tolerance)

    for leaf in jax.tree.leaves(many.state):
        if leaf.dtype == jnp.float32 and D in leaf.shape[-2:]:
            assert leaf.addressable_shards[0].data.size == leaf.size // 4, leaf.shape
    compiled = compiled_loop(job_of(solver, placed, data, jax.random.key(1)))
    _, most = MOVED.get(name, ("", 0.0))
    # of gradients a device sums its own coordinates with others that have the same
    own = D_OVER_4
    columns = max(1, problem.num_params // D)  # which are summed at once
    summed = max(most, SUMMED.get(type(solver.sampler), own * columns))
    for kind, array, size in collectives(compiled):
        limit, unit = summed if kind == "all-reduce" else most, D * jnp.zeros(0).dtype.itemsize
        assert size <= unit * limit or (kind != "all-reduce" and size < unit * own), (kind, array)


def test_every_kind_of_solver_is_here_and_every_exception_named():
    assert set(MOVED) | set(QUICK) <= set(CASES)
    facts = [entry.facts for entry in entries("solver") if entry.facts]
    facts = [f for f in facts if not isinstance(f["planned"], QueryRelease)]
    kinds = {f["arguments"].make for f in facts if not isinstance(f.get("spread"), str)}
    assert kinds == {type(make()[0]) for make in CASES.values()}, "spread= is missing in an entry"


def _nothing(w, record):
    return 0.0 * jnp.sum(w) * record["y"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        None,
        BinaryTree(2),
        pytest.param(BinaryTree(2, variance_reduced=True), marks=pytest.mark.slow),
        pytest.param(BufferedToeplitz(2), marks=pytest.mark.slow),
        pytest.param(BinaryTree(2, distribution="linf"), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_noise_is_the_single_draw_of_every_coordinate(strategy):
    """Without gradients parameters are minus the noise: one device's draw, no shard another's."""
    problem = Risk(_nothing, jnp.zeros(D, jnp.float32))
    if strategy is None:
        solver = DPSGD(FullBatch(2), 1.0, 1.0, 1.0, 1.0, average="last")
    else:
        sampler = DisjointPartition(2, 8)
        solver = DPFTRL(sampler, 1.0, 1.0, 1.0, 1.0, noise=strategy, relation="replace_one")
        solver = dataclasses.replace(solver, average="last")
    mesh = mesh_of(8, names=("params",))
    placed = with_params(problem, mesh)
    records = {"y": np.ones(16, np.float32)}
    want = dpjax.solve(solver, problem, records, key=jax.random.key(2)).params
    got = dpjax.solve(solver, placed, records, key=jax.random.key(2)).params
    assert_same(got, want, 1e-6)
    shards = np.stack([np.asarray(shard.data) for shard in got.addressable_shards])
    assert shards.shape == (8, D // 8)
    correlations = np.corrcoef(shards)[~np.eye(8, dtype=bool)]
    assert np.abs(correlations).max() < 0.15  # 6.8 deviations of independent ones
    assert np.abs(shards).min(axis=1).max() < 0.1 * np.abs(shards).max()  # noise in each


def test_memory_of_a_device_falls_as_devices_grow():
    def bytes_of(devices):
        mesh = mesh_of(devices, names=("params",))
        placed = with_params(RISK, mesh)
        data = _data(False)
        data = {"x": put(data["x"], mesh, None, "params"), "y": put(data["y"], mesh)}
        solver = _ftrl(BinaryTree(4))[0]
        memory = compiled_loop(job_of(solver, placed, data, jax.random.key(0))).memory_analysis()
        return memory.argument_size_in_bytes, memory.temp_size_in_bytes

    few, many = bytes_of(2), bytes_of(8)
    for before, after in zip(few, many, strict=True):
        assert after < 0.3 * before
