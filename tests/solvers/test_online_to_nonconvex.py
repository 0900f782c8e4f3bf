"""OnlineToNonconvex: its runs move by move, against NumPy and against what is proved of them."""

import contextlib
import dataclasses
import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpjax
import dpjax.testing as dpt
from dpjax.papers import nonsmooth_nonconvex
from dpjax.papers.nonsmooth_nonconvex import (
    PublishedOnlineToNonconvex,
    as_published,
    stationarity_plan,
)
from dpjax.privacy import Budget
from dpjax.problems import Risk
from dpjax.sampling import (
    DisjointPartition,
    FullBatch,
    IndependentPartition,
    PoissonSampler,
    TaperedPartition,
)
from dpjax.solvers import OnlineToNonconvex
from dpjax.solvers.nonconvex import _online_to_nonconvex as module
from dpjax.testing._trees import QUICK
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    RestartNoise,
    SplitNoise,
    smooth_first_order,
    smooth_zeroth_order,
)

N, D = 12, 3


class Moves:
    """Every move of the last run: points, gradients, and what the descent made of them."""

    points: list
    gradients: list
    shares: list
    steps: list


def _tell_place(point, gradient):
    Moves.points.append(np.asarray(point))
    Moves.gradients.append(np.asarray(gradient))


def _tell_step(share, step):
    Moves.shares.append(float(share))
    Moves.steps.append(np.asarray(step))


def _flat(tree):
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.fixture
def told(monkeypatch, everywhere_x64):
    real_add, real_descent = module.add_to_block, module.clipped_displacement

    def add(state, point, gradient, *rest):
        jax.debug.callback(_tell_place, _flat(point), _flat(gradient), ordered=True)
        return real_add(state, point, gradient, *rest)

    def descent(*arguments, **named):
        inner = real_descent(*arguments, **named)

        def update(*given, **named):
            moves, state = inner.update(*given, **named)
            jax.debug.callback(_tell_step, state.share, _flat(state.displacement), ordered=True)
            return moves, state

        return type(inner)(inner.init, update)

    monkeypatch.setattr(module, "add_to_block", add)
    monkeypatch.setattr(module, "clipped_displacement", descent)


@functools.partial(jax.jit, compiler_options=QUICK)
def _run(solver, problem, data):
    n = jax.tree.leaves(data)[0].shape[0]
    init_key, plan_key = jax.random.split(jax.random.key(2))
    xs = solver.sampler.plan(plan_key, n)

    def body(state, x):
        rows, mask = solver.sampler.batch(x, n)
        batch = data if rows is None else jax.tree.map(lambda a: a[rows], data)
        after, info = solver.step(problem, batch, mask, state)
        directions = jax.random.key_data(solver._keys(state)[0])
        rows = jnp.arange(n) if rows is None else rows
        return after, (info, directions, rows, mask, after.blocks.chosen)

    state, every = jax.lax.scan(body, solver.init(problem, key=init_key), xs)
    return solver.finalize(problem, state), *every


def run(solver, problem, data):
    """Parameters, and for each period: info, key of directions, records, mask; moves are told."""
    Moves.points, Moves.gradients, Moves.shares, Moves.steps = [], [], [], []
    out = jax.block_until_ready(_run(solver, problem, data))
    jax.effects_barrier()
    assert len(Moves.points) == len(Moves.shares) == solver.num_moves
    Moves.points, Moves.gradients = np.array(Moves.points), np.array(Moves.gradients)
    Moves.shares, Moves.steps = np.array(Moves.shares), np.array(Moves.steps)
    return jax.tree.map(np.asarray, out)


# A loss that is neither convex nor smooth, in JAX and in NumPy.


def loss(w, rec):
    flat = _flat(w)
    return rec["s"] * jnp.sin(2 * (rec["a"] @ flat)) + jnp.abs(rec["b"] @ flat - 0.2)


def value(w, data, i):
    a, b, s = data["a"][i], data["b"][i], data["s"][i]
    return s * np.sin(2 * (a @ w)) + abs(b @ w - 0.2)


def gradient(w, data, i):
    a, b, s = data["a"][i], data["b"][i], data["s"][i]
    return 2 * s * np.cos(2 * (a @ w)) * a + np.sign(b @ w - 0.2) * b


def _data(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "a": rng.normal(size=(N, D)),
        "b": rng.normal(size=(N, D)),
        "s": rng.uniform(0.5, 3.0, size=N),
    }


START = np.array([0.3, -0.4, 0.1])


def clip(v, bound):
    size = np.linalg.norm(v)
    return v if size <= bound else v * (bound / size)


def directions_of(solver, words):
    """[m, D]: the directions of a period, by what each coordinate stands for."""
    key, count = jax.random.wrap_key_data(jnp.asarray(words)), solver.num_directions
    oracle = smooth_zeroth_order(None, solver.smoothing_radius, count)
    point = jnp.asarray(START)
    stand_for = jax.vmap(lambda v: oracle.gradient(v, point, key=key))
    one = jax.jit(stand_for, compiler_options=QUICK)(jnp.eye(count))
    directions = np.asarray(one) / math.sqrt(D / count)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1.0, rtol=1e-6)
    return directions


def by_hand(solver, data, every, shares):
    """A run without noise, in NumPy: points, gradients, steps, and what is returned."""
    _, words, rows, masks, chosen = every
    period, total = solver.noise.num_steps, solver.num_moves
    z, last, step = START.copy(), None, np.zeros(D)
    directions = [directions_of(solver, w) for w in words] if solver.oracle == "zeroth" else []
    points, gradients, steps = [], [], []
    for t in range(total):
        k, p = divmod(t, period)
        here = rows[k][masks[k]]
        if solver.difference_batch_size is not None:
            size, changes = solver.difference_batch_size, period - 1
            first = len(here) - changes * size
            here = here[:first] if p == 0 else here[first + (p - 1) * size :][:size]
        if solver.oracle == "first":

            def tells(w, i):
                return gradient(w, data, i)
        else:
            y, rho = directions[k], solver.smoothing_radius

            def tells(w, i, y=y, rho=rho):
                ends = [value(w + rho * u, data, i) - value(w - rho * u, data, i) for u in y]
                return math.sqrt(D / len(y)) * np.array(ends) / (2 * rho)

        if p == 0:
            told = sum(clip(tells(z, i), solver.clip_norm) for i in here) / solver.batch_size
        else:
            published = isinstance(solver, PublishedOnlineToNonconvex)
            far = 2 * solver.max_displacement if published else np.linalg.norm(z - last)
            bound = min(solver.smoothness * far, 2 * solver.clip_norm)
            divisor = solver.difference_batch_size or solver.batch_size
            told = told + sum(clip(tells(z, i) - tells(last, i), bound) for i in here) / divisor
        g = told if solver.oracle == "first" else math.sqrt(D / len(y)) * told @ y
        points.append(z)
        gradients.append(g)
        left = 1.0 if solver.schedule == "constant" else 1 - t / total
        share, before = shares[t - 1] if t else 1.0, step
        step = solver.decay * step - solver.learning_rate * left * g
        step = clip(step, solver.max_displacement * left)
        steps.append(step)
        moved = z + (1 - share) * before + shares[t] * step
        last, z = z, clip(moved, solver_radius(data))
    size = solver.block_size
    means = np.array(points).reshape(-1, size, D).mean(axis=1)
    norms = np.linalg.norm(np.array(gradients).reshape(-1, size, D).mean(axis=1), axis=1)
    which = {"last": -1, "uniform": int(chosen[-1]), "min_norm": int(norms.argmin())}
    return np.array(points), np.array(gradients), np.array(steps), means[which[solver.selection]]


def solver_radius(data):
    return data.get("radius", np.inf)


def _solver(sampler, noise=None, noise_multiplier=0.0, kind=OnlineToNonconvex, **fields):
    defaults = {
        "clip_norm": 1.4,
        "learning_rate": 0.5,
        "max_displacement": 0.3,
        "batch_size": 3.0,
        "smoothing_radius": 0.0,
        "smoothness": 1.1,
    }
    noise = SplitNoise(1, 1.0) if noise is None else noise
    return kind(sampler, noise_multiplier=noise_multiplier, noise=noise, **(defaults | fields))


CHANGES = {"difference_batch_size": 1, "relation": "replace_one"}
VALUES = {"oracle": "zeroth", "num_directions": 4, "smoothing_radius": 0.3}
APART = {"directions": "record", "reuse_directions": False}
BY_HAND = {
    "poisson": (_solver(PoissonSampler(0.4, 8, N, capacity=N), block_size=4, decay=0.9), None),
    "restarts": (
        _solver(
            DisjointPartition(2, 6), RestartNoise(BufferedToeplitz(3)), block_size=2, **CHANGES
        ),
        None,
    ),
    "restarts, ball": (
        _solver(
            DisjointPartition(2, 6),
            RestartNoise(BinaryTree(3)),
            selection="min_norm",
            schedule="constant",
            max_displacement=0.6,
            smoothness=20.0,
            **CHANGES,
        ),
        0.6,
    ),
    "published": (
        _solver(
            DisjointPartition(2, 6),
            BinaryTree(4),
            selection="uniform",
            schedule="constant",
            block_size=2,
            kind=PublishedOnlineToNonconvex,
            **(CHANGES | APART),
        ),
        None,
    ),
    "values": (
        _solver(FullBatch(3), SplitNoise(4), selection="min_norm", block_size=3, **VALUES),
        None,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n == "restarts" else []) for n in BY_HAND]
)
def test_runs_without_noise_are_those_computed_by_hand(name, told):
    solver, radius = BY_HAND[name]
    data = _data()
    problem = Risk(loss, START, radius)
    params, info, *every = run(solver, problem, data)
    if radius is not None:
        data = data | {"radius": radius}
    points, gradients, steps, result = by_hand(solver, data, (info, *every), Moves.shares)
    np.testing.assert_allclose(Moves.points, points, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(Moves.gradients, gradients, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(Moves.steps, steps, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(params, result, rtol=1e-6, atol=1e-7)
    # ways and directions are drawn anew for every move, or period
    dpt.count_false_alarm(1e-9)  # one pair of floats may be equal
    assert len(np.unique(Moves.shares)) >= solver.num_moves - 1
    assert len(np.unique(every[0], axis=0)) == solver.sampler.steps
    # what is told at the end of a period
    period, size = solver.noise.num_steps, solver.block_size
    ends = np.arange(period - 1, solver.num_moves, period)
    np.testing.assert_allclose(info.gradient_norm, np.linalg.norm(gradients[ends], axis=1), 1e-5)
    np.testing.assert_allclose(info.displacement, np.linalg.norm(steps[ends], axis=1), 1e-5)
    blocks = [gradients[t - t % size : t + 1].mean(axis=0) for t in ends]
    np.testing.assert_allclose(info.block_norm, np.linalg.norm(blocks, axis=1), 1e-5)
    if radius is not None:
        lengths = np.linalg.norm(Moves.points, axis=1)
        assert lengths.max() <= radius * (1 + 1e-6)
        assert (lengths > radius * (1 - 1e-6)).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "selection"),
    [
        ("linear", "last"),
        pytest.param("constant", "last", marks=pytest.mark.slow),
        pytest.param("linear", "uniform", marks=pytest.mark.slow),
        pytest.param("constant", "min_norm", marks=pytest.mark.slow),
    ],
)
def test_noisy_runs_stay_where_they_should(schedule, selection, told):
    solver = _solver(
        FullBatch(10),
        SplitNoise(4),
        noise_multiplier=3.0,
        smoothing_radius=0.05,
        learning_rate=5.0,
        schedule=schedule,
        selection=selection,
        block_size=8,
    )
    tree = {"a": START[:1], "b": START[1:].reshape(2, 1)}
    params, _, *every = run(solver, Risk(loss, tree), _data())
    far = solver.max_displacement * np.linspace(1, 0, 40, endpoint=False)
    if schedule == "constant":
        far = np.full(40, solver.max_displacement)
    dpt.check_distribution(Moves.shares, lambda s: np.clip(s, 0, 1))
    sizes = np.linalg.norm(Moves.steps, axis=1)
    assert (sizes <= far * (1 + 1e-6)).all()
    assert (sizes >= far * (1 - 1e-6)).sum() > 30
    np.testing.assert_array_equal(Moves.points[0], START)  # z_1 = x_0
    moved = np.linalg.norm(np.diff(Moves.points, axis=0), axis=1)
    assert (moved <= np.append(0, far[:-2]) + far[:-1] + 1e-6).all()
    blocks = Moves.points.reshape(5, 8, D)
    means = blocks.mean(axis=1)
    norms = np.linalg.norm(Moves.gradients.reshape(5, 8, D).mean(axis=1), axis=1)
    which = {"last": 4, "uniform": int(every[-1][-1]), "min_norm": int(norms.argmin())}[selection]
    got = np.concatenate([params["a"], params["b"][:, 0]])
    np.testing.assert_allclose(got, means[which], rtol=1e-6, atol=1e-7)
    # all points where gradients were taken, those of the smoothing included
    reach = np.linalg.norm(blocks[which] - means[which], axis=1).max() + 0.05
    radius = solver.goldstein_radius()
    assert reach <= radius
    shown = [0, 1, 2, 3, 4] if selection != "last" else [4]
    reaches = np.linalg.norm(blocks - means[:, None], axis=2).max(axis=1)[shown] + 0.05
    assert reaches.max() <= radius
    left = 9 / 40 if (schedule, selection) == ("linear", "last") else 1.0
    assert radius == pytest.approx(0.05 + 4.5 * solver.max_displacement * left)


@pytest.mark.slow
def test_records_of_a_batch_are_in_one_move_each_and_keep_their_places():
    solver = _solver(
        DisjointPartition(2, 9), BinaryTree(4), **(CHANGES | {"difference_batch_size": 2})
    )
    batch = {"a": jnp.arange(9.0), "b": jnp.arange(18.0).reshape(9, 2)}
    first, later = solver._parts(batch, jnp.arange(9) % 2 == 0)
    for part in (first, later):
        np.testing.assert_array_equal(part.batch["a"], part.places)
        np.testing.assert_array_equal(part.batch["b"][..., 0], 2 * part.places)
        np.testing.assert_array_equal(part.mask, part.places % 2 == 0)
    assert first.places.tolist() == [0, 1, 2]
    assert later.places.tolist() == [[3, 4], [5, 6], [7, 8]]
    whole, none = _solver(FullBatch(2), SplitNoise(3))._parts(batch, jnp.ones(9, bool))
    assert whole.places.tolist() == list(range(9))
    assert none is None


def test_radius_of_a_single_point_is_that_of_the_smoothing():
    assert _solver(FullBatch(4), smoothing_radius=0.2).goldstein_radius() == 0.2
    whole = _solver(FullBatch(4), smoothing_radius=0.2, block_size=4)
    assert whole.goldstein_radius() == pytest.approx(0.2 + 2.5 * 0.3)


ORACLES = [
    ("first", {"directions": "shared", "num_directions": 2, "smoothing_radius": 0.4}),
    ("zeroth", VALUES),
    pytest.param("zeroth", VALUES | {"directions": "record"}, marks=pytest.mark.slow),
    pytest.param(
        "first", {"directions": "record", "smoothing_radius": 0.4}, marks=pytest.mark.slow
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("oracle", "fields"), ORACLES)
def test_changes_add_up_to_estimates_along_the_directions_of_their_period(oracle, fields, told):
    """Without noise and clipping, on all records."""
    fields = fields | {"oracle": oracle, "clip_norm": 1e6, "smoothness": 1e9, "batch_size": N}
    solver = _solver(FullBatch(2), SplitNoise(3), **fields)
    problem, data = Risk(loss, START), jax.tree.map(jnp.asarray, _data())
    _, _, words, *_ = run(solver, problem, data)
    kind, count, radius = solver.directions, solver.num_directions, solver.smoothing_radius

    @functools.partial(jax.jit, compiler_options=QUICK)
    def plain(points, words):
        key = jax.random.wrap_key_data(words)
        key = key if kind == "shared" else jax.random.fold_in(key, 0)
        if oracle == "first":
            own = smooth_first_order(problem.per_example_gradients, radius, count, directions=kind)
        else:
            own = smooth_zeroth_order(problem.per_example_losses, radius, count, directions=kind)
        return jax.vmap(lambda z: jnp.mean(own(z, data, key=key), axis=0))(points)

    for k in range(2):
        here = slice(3 * k, 3 * k + 3)
        want = plain(jnp.asarray(Moves.points[here]), jnp.asarray(words[k]))
        np.testing.assert_allclose(Moves.gradients[here], want, rtol=1e-7, atol=1e-9)
    # other directions in the second period
    other = plain(jnp.asarray(Moves.points[3:]), jnp.asarray(words[0]))
    assert np.abs(other - Moves.gradients[3:]).max() > 1e-2


@pytest.mark.parametrize("oracle", ["first", "zeroth"])
def test_changes_along_directions_apart_are_noisy_where_nothing_moves(oracle):
    """And those along common ones are 0, so that they can be clipped at how far points moved."""
    problem = Risk(lambda w, rec: jnp.abs(rec @ w - 0.1), jnp.zeros(D))
    records = jnp.asarray(_data()["a"], jnp.float32)
    part = module.Part(records, jnp.ones(N, bool), jnp.arange(N))
    for common in (True, False):
        solver = _solver(
            FullBatch(2),
            SplitNoise(2),
            directions="record",
            reuse_directions=common,
            smoothing_radius=0.3,
            oracle=oracle,
        )
        point = jnp.zeros(D)
        own = module.make_oracle(solver, problem, point)
        change = jax.jit(own.change, compiler_options=QUICK)
        moved = np.asarray(change(point, point, part, 1e6, jax.random.key(0)))
        assert np.any(moved) != common


def test_blocks_are_drawn_uniformly_before_data_are_seen():
    solver = _solver(FullBatch(12), block_size=3, selection="uniform")
    problem = Risk(loss, START)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def chosen(words):
        return jax.vmap(
            lambda w: solver.init(problem, key=jax.random.wrap_key_data(w)).blocks.chosen
        )(words)

    words = jax.random.key_data(jax.random.split(jax.random.key(0), 4000))
    dpt.check_counts(np.bincount(np.asarray(chosen(words)), minlength=4), np.full(4, 0.25))


# Edges.


def test_no_records_no_clip_norm_or_no_displacement_and_nothing_is_released(told):
    problem, data = Risk(loss, START), _data()
    lost = {name: np.full_like(leaf, np.nan) for name, leaf in data.items()}
    noise = SplitNoise(2)
    for fields, given in (
        ({"noise_multiplier": 0.0}, lost),
        ({"clip_norm": 0.0, "noise_multiplier": 7.0}, data),
    ):
        run(_solver(FullBatch(3), noise, **fields), problem, given)
        assert not np.any(Moves.gradients)
        np.testing.assert_array_equal(Moves.points, np.tile(START, (6, 1)))
    # no way or no change of gradients, and no noise for it
    run(_solver(FullBatch(3), noise, max_displacement=0.0, noise_multiplier=7.0), problem, data)
    np.testing.assert_array_equal(Moves.points, np.tile(START, (6, 1)))
    np.testing.assert_array_equal(Moves.gradients[::2], Moves.gradients[1::2])
    assert len(np.unique(Moves.gradients[:, 0])) == 3
    run(_solver(FullBatch(3), noise, smoothness=0.0, noise_multiplier=7.0), problem, data)
    np.testing.assert_array_equal(Moves.gradients[::2], Moves.gradients[1::2])
    assert np.linalg.norm(np.diff(Moves.points, axis=0), axis=1).min() > 0


@pytest.mark.slow
def test_an_empty_batch_is_a_step_along_noise(told):
    problem = Risk(loss, START)
    solver = _solver(FullBatch(2), SplitNoise(2), noise_multiplier=2.0)
    run(solver, problem, {name: np.full_like(leaf, np.nan) for name, leaf in _data().items()})
    assert np.isfinite(Moves.points).all()
    assert np.unique(Moves.gradients[:, 0]).size == 4
    along = Moves.steps[0] / np.linalg.norm(Moves.steps[0])
    np.testing.assert_allclose(along, -Moves.gradients[0] / np.linalg.norm(Moves.gradients[0]))


def _counted(seen):
    """0 or 1, by NumPy alone, and the number of times it was asked."""

    def on_host(w, x, y):
        seen.append(None)
        margin = np.sum(np.asarray(x) * np.asarray(w), axis=-1)
        return (np.asarray(y) * margin <= 0).astype(np.float32)

    def outside(w, rec):
        like = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.pure_callback(on_host, like, w, rec["x"], rec["y"], vmap_method="expand_dims")

    def inside(w, rec):
        return (rec["y"] * jnp.sum(rec["x"] * w) <= 0).astype(jnp.float32)

    return outside, inside


@pytest.mark.slow
def test_values_may_come_from_outside_and_jump():
    """The share of errors, counted by NumPy: the run of the same loss in JAX, and it learns."""
    rng, seen = np.random.default_rng(0), []
    x = rng.normal(size=(200, D)).astype(np.float32)
    data = {"x": x, "y": np.sign(x @ np.array([1.0, -1.0, 0.5])).astype(np.float32)}
    outside, inside = _counted(seen)
    solver = OnlineToNonconvex(
        FullBatch(30),
        20.0,
        2.0,
        0.3,
        0.3,
        200.0,
        0.5,
        oracle="zeroth",
        num_directions=8,
        block_size=3,
        schedule="constant",
    )
    start = np.array([-0.3, 0.3, 0.3], np.float32)

    @functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
    def solved(f, data):
        return dpjax.solve(solver, Risk(f, start), data, key=jax.random.key(1)).params

    got = [solved(f, data) for f in (outside, inside)]
    assert seen
    np.testing.assert_allclose(*got, rtol=1e-3, atol=1e-3)
    errors = np.mean(data["y"] * (x @ got[0]) <= 0)
    assert errors < 0.25 < np.mean(data["y"] * (x @ start) <= 0)


@pytest.mark.slow  # of one field, the conformance suite shows it
def test_sweeps_compile_once():
    traced = []

    def counted(w, rec):
        traced.append(None)
        return jnp.abs(rec["a"] @ w)

    problem = Risk(counted, START.astype(np.float32))
    data = {"a": jnp.asarray(_data()["a"], jnp.float32)}
    solver = _solver(
        DisjointPartition(2, 4), RestartNoise(BinaryTree(1)), noise_multiplier=1.0, **CHANGES
    )

    def solve(words, noise_multiplier, max_displacement, learning_rate):
        own = dataclasses.replace(
            solver,
            noise_multiplier=noise_multiplier,
            max_displacement=max_displacement,
            learning_rate=learning_rate,
            smoothing_radius=max_displacement,
            smoothness=1 / max_displacement,
        )
        return dpjax.solve(own, problem, data, key=jax.random.wrap_key_data(words)).params

    sweep = jax.jit(jax.vmap(solve), compiler_options=QUICK)
    words = jax.random.key_data(jax.random.split(jax.random.key(0), 3))
    fields = [jnp.array(v) for v in ([0.5, 1.0, 2.0], [0.1, 0.2, 0.3], [1.0, 0.5, 0.1])]
    together, count = np.asarray(sweep(words, *fields)), len(traced)
    assert count
    back = sweep(words[::-1], *[f[::-1] for f in fields])
    assert len(traced) == count
    np.testing.assert_allclose(back, together[::-1], rtol=1e-5)
    for i, field in enumerate(fields):  # every one of them counts
        others = [*fields[:i], field * 1.1, *fields[i + 1 :]]
        assert (np.abs(np.asarray(sweep(words, *others)) - together).max(axis=1) > 1e-4).all()


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ["first", pytest.param("zeroth", marks=pytest.mark.slow)])
def test_parameters_of_few_digits_move_in_many(oracle):
    """The points of a bfloat16 problem are in float32, and are rounded for the loss alone."""
    seen = []

    def told(w, rec):
        seen.append(w.dtype)
        return jnp.sum(jnp.abs(w)) + 0 * rec.astype(w.dtype)

    problem = Risk(told, jnp.ones(D, jnp.bfloat16))
    solver = _solver(
        FullBatch(2), SplitNoise(2), 1.0, oracle=oracle, smoothing_radius=0.1, max_displacement=1e-4
    )
    data = jnp.zeros(4, jnp.bfloat16)
    state = solver.init(problem, key=jax.random.key(0))
    step = jax.jit(
        lambda s: solver.step(problem, data, jnp.ones(4, bool), s)[0], compiler_options=QUICK
    )
    after = step(step(state))
    assert after.point.dtype == after.descent.displacement.dtype == jnp.float32
    assert 0 < np.abs(np.asarray(after.point) - 1).max() < 1e-3
    assert set(seen) == {jnp.dtype(jnp.bfloat16)}
    assert solver.finalize(problem, after).dtype == jnp.bfloat16
    assert jnp.finfo(after.sums.total.dtype).bits >= 32


# Defaults and refusals.

PROBLEM = Risk(loss, START.astype(np.float32), lipschitz=2.0)


@pytest.mark.parametrize("oracle", ["first", "zeroth"])
@pytest.mark.parametrize("passes", ["multi", "single"])
@pytest.mark.parametrize("period", [1, 5])
def test_defaults_meet_the_budget_and_the_radius(oracle, passes, period):
    budget = Budget(2.0, 1e-5)
    solver = OnlineToNonconvex.for_budget(
        PROBLEM, 600, budget, radius=0.4, oracle=oracle, passes=passes, period=period, steps=60
    )
    assert solver.noise.num_steps == period
    assert solver.num_moves == 60
    assert solver.relation == ("replace_one" if passes == "single" else "add_or_remove_one")
    assert solver.clip_norm == 2.0
    assert 0.2 <= solver.goldstein_radius() <= 0.4
    guarantee = solver.guarantee()
    assert guarantee.epsilon(1e-5) <= 2.0
    less = dataclasses.replace(solver, noise_multiplier=0.99 * solver.noise_multiplier)
    assert less.guarantee().epsilon(1e-5) > 2.0
    assert (solver.difference_batch_size is not None) == (passes == "single" and period > 1)
    # nothing about data: the same for records of any kind
    assert solver == OnlineToNonconvex.for_budget(
        PROBLEM, 600, budget, radius=0.4, oracle=oracle, passes=passes, period=period, steps=60
    )


def test_batches_that_may_be_cut_are_paid_for():
    budget = Budget(1.0, 1e-5)
    for sampler in (
        PoissonSampler(0.1, 20, 1000, capacity=154),
        IndependentPartition(10, 1000, capacity=155),
    ):
        assert 2e-7 < sampler.failure_probability() < 2e-6
        solver = OnlineToNonconvex.for_budget(PROBLEM, 1000, budget, sampler=sampler)
        assert 0.999 < solver.guarantee().epsilon(1e-5) <= 1.0


def test_steps_on_bounded_features_follow_their_scale():
    """Features three times as long want steps a third as long; noise shortens them."""

    def hinge(margin, y):
        return jnp.maximum(0, 1 - y * margin)

    def fields(lipschitz, epsilon=1.0, smoothness=None, within=None, link=hinge, **options):
        problem = Risk.linear(link, 8, within, lipschitz=lipschitz, smoothness=smoothness)
        return OnlineToNonconvex.for_budget(problem, 4_000, Budget(epsilon, 1e-6), **options)

    one, long, noisy = fields(1.0), fields(3.0), fields(1.0, epsilon=0.05)
    assert one.decay == long.decay == 0.99
    np.testing.assert_allclose(3 * long.max_displacement, one.max_displacement, rtol=1e-6)
    np.testing.assert_allclose(9 * long.learning_rate, one.learning_rate, rtol=1e-6)
    assert noisy.max_displacement < 0.7 * one.max_displacement
    assert fields(1.0, link=lambda m, y: jnp.abs(m - y)).decay == 1.0  # it settles
    assert fields(1.0, smoothness=1.0).decay == fields(1.0, oracle="zeroth").decay == 1.0
    assert fields(1.0, within=0.5).max_displacement == pytest.approx(0.025)
    few, more = (fields(1.0, steps=steps, noise_multiplier=0.01) for steps in (200, 4_000))
    assert few.decay == 0.95
    assert 2 * more.max_displacement == pytest.approx(few.max_displacement)
    assert few.max_displacement == pytest.approx(6.3 / 1_000**0.5)
    assert fields(1.0, decay=0.5, max_displacement=0.1).max_displacement == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ["first", pytest.param("zeroth", marks=pytest.mark.slow)])
def test_published_fields(oracle):
    """Noise by the printed formula; the true epsilon is told, and is less than half."""
    for records, epsilon in ((500, 0.5), (5000, 1.0)):
        solver = as_published(PROBLEM, records, Budget(epsilon, 1e-6), oracle=oracle)
        period = solver.noise.num_steps
        first = solver.clip_norm / period
        change = 2 * solver.smoothness * solver.max_displacement
        node = 4 * 2 * max(first, change) * math.sqrt(math.log(period) * math.log(1e6)) / epsilon
        unit = float(solver._sensitivity(0.0, jnp.float32(1.0)))
        got = solver.noise_multiplier * unit * solver.noise.node_factor
        assert got == pytest.approx(node, rel=1e-5)
        true = solver.guarantee().epsilon(1e-6)
        assert 0.05 * epsilon < true < 0.5 * epsilon
        levels = period.bit_length()
        mu = 2 * max(first * levels**0.5, change * (levels - 1) ** 0.5) / node
        tail = stats.norm.cdf(mu / 2 - true / mu)
        delta = tail - math.exp(true) * stats.norm.cdf(-mu / 2 - true / mu)
        assert delta == pytest.approx(1e-6, rel=2e-2)  # which is four digits of epsilon
        assert isinstance(solver, PublishedOnlineToNonconvex)
        assert (solver.batch_size, solver.difference_batch_size) == (period, 1)
        assert not solver.reuse_directions
        assert solver.sampler.steps * solver.sampler.batch_size <= records
        assert solver.num_moves == solver.sampler.steps * period
        # half of the radius for the smoothing, and blocks of a fourth of the other
        assert solver.goldstein_radius() <= 0.1
    with pytest.raises(ValueError, match=r"epsilon must be smaller as published, got 200"):
        as_published(PROBLEM, 1000, Budget(200.0, 9e-4))


BUDGET = Budget(1.0, 1e-5)
ADD = Budget(1.0, 1e-5, "add_or_remove_one")
REFUSED = {
    "too many moves": (
        {"passes": "single", "steps": 101},
        r"steps must be <= 100 in a single pass over num_records = 100 .* got 101",
    ),
    "too many moves in periods": (
        {"passes": "single", "steps": 80, "period": 4},
        r"steps must be <= 56 .* in periods of 4, got 80",
    ),
    "period longer than the run": ({"steps": 3, "period": 4}, "steps must be >= 4, got 3"),
    "period of nothing": ({"period": 0}, "period must be >= 1, got 0"),
    "no bound in so few moves": (
        {"plan": "bound", "steps": 1, "period": 5},
        "period must be smaller for num_records = 100 .* nothing fits period = 5",
    ),
    "no bound for so few records": (
        {"plan": "bound", "passes": "single", "period": 100},
        "period must be smaller for num_records = 100 .* nothing fits period = 100",
    ),
    "moves of a bound": (
        {"plan": "bound", "passes": "single", "steps": 20},
        "steps must be left out with passes='single', got 20",
    ),
    "moves as published": (
        {"as_published": True, "passes": "single", "steps": 20},
        "steps must be left out with a sampler, got 20",
    ),
    "period as published": (
        {"as_published": True, "passes": "single", "period": 2},
        "period must be left out with a noise, got 2",
    ),
    "plan": ({"plan": "best"}, "plan must be one of .*got 'best'"),
    "passes": ({"passes": "two"}, "passes must be one of .*got 'two'"),
    "oracle": ({"oracle": "second"}, "oracle must be one of .*got 'second'"),
    "directions": ({"directions": "none"}, "directions must be one of .*got 'none'"),
    "schedule": ({"schedule": "cosine"}, "schedule must be one of .*got 'cosine'"),
    "selection": ({"selection": "best"}, "selection must be one of .*got 'best'"),
    "radius": ({"radius": 0.0}, r"radius must be > 0, got 0\.0"),
    "batch size": ({"batch_size": 0}, "batch_size must be > 0, got 0"),
    "gap": ({"plan": "bound", "initial_gap": -1.0}, r"initial_gap must be > 0, got -1\.0"),
    "values at the point": (
        {"oracle": "zeroth", "smoothing_radius": 0.0},
        r"smoothing_radius must be > 0, got 0\.0",
    ),
    "block": ({"block_size": 7}, "block_size must divide the number of moves 1000, got 7"),
    "shared apart": (
        {"reuse_directions": False},
        "reuse_directions=False needs directions='record', got 'shared'",
    ),
    "noise for one step": ({"noise": BufferedToeplitz(4)}, "noise must be SplitNoise where all"),
    "pure noise": (
        {"noise": BinaryTree(4, distribution="l2"), "passes": "single"},
        "noise must be Gaussian",
    ),
    "changes of a full batch": (
        {"period": 3, "difference_batch_size": 2},
        "difference_batch_size needs DisjointPartition",
    ),
    "published, several passes": (
        {"as_published": True},
        "passes must be 'single' with as_published, got 'multi'",
    ),
    "published, other noise": (
        {"as_published": True, "passes": "single", "noise": SplitNoise(4)},
        r"noise must be BinaryTree\(period\) as published",
    ),
    "published, grown tree": (
        {"as_published": True, "passes": "single", "noise": BinaryTree(4, 1.0)},
        r"noise must be BinaryTree\(period\) as published",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(name):
    fields, message = REFUSED[name]
    with _quiet(), pytest.raises(ValueError, match=message):
        OnlineToNonconvex.for_budget(PROBLEM, 100, BUDGET, **fields)


@contextlib.contextmanager
def _quiet():
    """Without the warnings of spellings of 0.1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@pytest.mark.parametrize(
    ("fields", "name"), [({"plan": "bound"}, "by_bound"), ({}, "as_published")]
)
def test_spellings_of_0_1_warn(fields, name):
    old = fields or {"as_published": True}
    with pytest.warns(DeprecationWarning, match=f"nonsmooth_nonconvex.{name} since 0.2") as caught:
        solver = OnlineToNonconvex.for_budget(PROBLEM, 200, BUDGET, passes="single", **old)
    assert caught[0].filename == __file__
    same = {"passes": "single"} if fields else {}
    assert solver == getattr(nonsmooth_nonconvex, name)(PROBLEM, 200, BUDGET, **same)


def test_plans_choose_the_moves_of_a_single_pass():
    with pytest.raises(ValueError, match="steps must be left out with passes='single', got 20"):
        stationarity_plan(PROBLEM, 1000, BUDGET, passes="single", steps=20)


def test_noise_that_is_no_strategy_is_refused():
    with pytest.raises(TypeError, match="noise must be a NoiseStrategy, got 'tree'"):
        OnlineToNonconvex.for_budget(PROBLEM, 100, BUDGET, noise="tree")
    with pytest.raises(TypeError, match="noise must be a NoiseStrategy, got 3"):
        _solver(FullBatch(3), noise=3)


@pytest.mark.parametrize("fields", [{}, {"plan": "bound"}, {"as_published": True}, {"period": 4}])
def test_fixed_batches_are_for_a_known_number_of_records(fields):
    if fields in ({},):  # a partition of each record by itself
        solver = OnlineToNonconvex.for_budget(PROBLEM, 100, ADD, passes="single", **fields)
        assert isinstance(solver.sampler, IndependentPartition)
        return
    with (
        _quiet(),
        pytest.raises(ValueError, match="relation must be replace_one or replace_special"),
    ):
        OnlineToNonconvex.for_budget(PROBLEM, 100, ADD, passes="single", **fields)


def test_plans_ask_for_no_more_records_than_there_are():
    for records in (1, 2, 3, 4, 5, 9, 20):
        try:
            solver = as_published(PROBLEM, records, BUDGET)
        except ValueError as error:
            assert "num_records" in str(error)  # noqa: PT017
            continue
        assert solver.sampler.steps * solver.sampler.batch_size <= records


def test_unknown_fields_are_named():
    for field in ("step", "relation", "learner", "initial_gap"):
        with pytest.raises(TypeError, match=f"unknown field '{field}'"):
            OnlineToNonconvex.for_budget(PROBLEM, 100, BUDGET, **{field: 3})


@pytest.mark.parametrize(
    ("sampler", "noise", "fields", "message"),
    [
        (FullBatch(3), BufferedToeplitz(2), {}, "noise must be SplitNoise"),
        (FullBatch(3), BinaryTree(1), {}, "noise must be SplitNoise"),
        (PoissonSampler(0.2, 3, 50), RestartNoise(BinaryTree(2)), {}, "noise must be SplitNoise"),
        (IndependentPartition(3, 50), BinaryTree(2), {}, "noise must be SplitNoise"),
        (TaperedPartition(3, 50), BinaryTree(2), {"relation": "replace_one"}, "must be SplitNoise"),
        (
            DisjointPartition(3, 5),
            RestartNoise(BinaryTree(2)),
            {"relation": "replace_one"},
            "noise must be SplitNoise",
        ),
        (
            IndependentPartition(3, 50),
            BinaryTree(2),
            {"difference_batch_size": 1},
            "difference_batch_size needs DisjointPartition.* got IndependentPartition",
        ),
        (
            DisjointPartition(3, 4),
            BinaryTree(3),
            {"difference_batch_size": 2, "relation": "replace_one"},
            "2 changes of 2 are more than batch_size - 1 = 3",
        ),
        (DisjointPartition(3, 4), None, {}, "relation must be replace_one or replace_special"),
        (
            DisjointPartition(3, 4),
            BinaryTree(2, distribution="l2"),
            {"difference_batch_size": 1, "relation": "replace_one"},
            "noise must be Gaussian",
        ),
        (
            FullBatch(3),
            None,
            {"kind": PublishedOnlineToNonconvex},
            r"noise must be BinaryTree\(period\)",
        ),
        (
            DisjointPartition(3, 4),
            BinaryTree(1),
            {"kind": PublishedOnlineToNonconvex, "relation": "replace_one"},
            "difference_batch_size is required as published",
        ),
        (FullBatch(3), None, {"smoothness": -1.0}, "smoothness must be >= 0, got -1"),
        (FullBatch(3), None, {"clip_norm": np.inf}, "clip_norm must be finite, got inf"),
        (FullBatch(3), None, {"batch_size": 0.0}, "batch_size must be > 0, got 0"),
        (FullBatch(3), None, {"num_directions": 0}, "num_directions must be >= 1, got 0"),
        (FullBatch(3), None, {"microbatch_size": 0}, "microbatch_size must be >= 1, got 0"),
    ],
)
def test_wrong_pairs_are_refused(sampler, noise, fields, message):
    with pytest.raises(ValueError, match=message):
        _solver(sampler, noise, **fields)
