"""Privacy by replay: how far one record moves what every draw of a run was a softmax of."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.geometry import L1Ball, Polytope, log_normalize
from dpjax.papers.estimators import multilevel
from dpjax.problems import Saddle, SimplexRisk, max_loss
from dpjax.sampling import DisjointPartition, IndependentPartition, TaperedPartition
from dpjax.solvers import AnytimeMirrorDescent, MultilevelSaddle, SaddleMirrorDescent

QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
ALPHAS = (1.5, 2.0, 4.0, 16.0)
ROUNDING = 1e-4
NOTHING = 1e-5
CORNERS = np.random.default_rng(7).normal(size=(5, 3)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    """A run; `mixture` where draws come from an average of softmaxes."""

    solver: Any
    problem: Any
    data: dict[str, Any]
    mixture: bool = False


class Change(NamedTuple):
    """What a neighbour changed, largest seen: per draw `[rows, blocks]`, and summed over draws."""

    width: jax.Array
    spent: jax.Array
    touched: jax.Array


# Problems. Entries of records are large, so that clipping acts and a record's negative is as far
# from it as the guarantee allows.


def _matrices(n, shape, scale=1e3, seed=0):
    return {"A": jnp.asarray(scale * np.random.default_rng(seed).normal(size=(n, *shape)))}


def _rows(n, p, scale=30.0, seed=1):
    rng = np.random.default_rng(seed)
    x = jnp.asarray(scale * rng.normal(size=(n, p)))
    return {"x": x, "y": jnp.asarray(scale * rng.normal(size=n))}


def _game(n):
    return Saddle.matrix_game((3, 4), value_range=1.4), _matrices(n, (3, 4))


def _bilinear(n):
    problem = Saddle(lambda x, y, rec: x @ rec["A"] @ y, (3, 4), grad_range=(1.0, 0.7))
    return problem, _matrices(n, (3, 4))


def _curved(n):
    def loss(x, y, rec):
        return x @ rec["A"] @ y + 50 * jnp.sum((x - rec["A"][0, 0]) ** 2) - 20 * jnp.sum(y**3)

    domains = (L1Ball(2, 0.5), Polytope(CORNERS))
    problem = Saddle(loss, grad_range=(1.3, 0.9), vertices=domains, third_order=1.0)
    return problem, _matrices(n, (2, 3))


def _largest(n):
    def losses(x, rec):
        return rec["A"] @ x + 20 * jnp.sum((x - rec["A"][0, 0]) ** 2)

    problem = max_loss(losses, 3, grad_range=(1.3, 0.9), dim=4, smoothness=1.0, third_order=0.0)
    return problem, _matrices(n, (3, 4))


def _logistic(n):
    def loss(w, rec):
        return jax.nn.softplus(rec["y"] * (rec["x"] @ w))

    return SimplexRisk(loss, dim=4, grad_range=0.8), _rows(n, 4)


def _regression(n):
    def link(margin, y):
        return 0.5 * (margin - y) ** 2

    return SimplexRisk.linear(link, L1Ball(3, 2.0), grad_range=1.1), _rows(n, 3)


def _over_corners(n):
    def loss(w, rec):
        return jnp.abs(rec["x"] @ w - rec["y"])

    return SimplexRisk(loss, CORNERS, grad_range=1.2), _rows(n, 3)


# Cases: (solver of a problem's number of blocks, problem, number of records).


def _case(make, build, n, mixture=False):
    problem, data = make(n)
    blocks = len(problem.domains)
    return Case(build(blocks, problem.ranges), problem, data, mixture)


def _smd(make, sampler, k, output, n, relation="replace_one", polar=False):
    return _case(
        make,
        lambda blocks, ranges: SaddleMirrorDescent(
            sampler, (0.5, 0.4)[:blocks], ranges, k, output, polar, relation=relation
        ),
        n,
    )


def _anytime(make, sampler, k, q, n, output_draws=None, relation="replace_one"):
    return _case(
        make,
        lambda blocks, ranges: AnytimeMirrorDescent(
            sampler, (0.5,), ranges, k, q, output_draws, relation=relation
        ),
        n,
        mixture=True,
    )


LEVELS = (1, 0, 2, 0, 1)
BATCHES = 9 + 3 + 17 + 3 + 9


def _multilevel(make, sampler, n, antithetic=False, relation="replace_one"):
    return _case(
        make,
        lambda blocks, ranges: MultilevelSaddle(
            sampler, (1.5, 1.1)[:blocks], ranges, LEVELS, 2, antithetic, relation=relation
        ),
        n,
    )


ADD = "add_or_remove_one"
CASES: dict[str, Callable[[], Case]] = {
    "game, played, tapered": lambda: _smd(_game, TaperedPartition(4, 13, "given"), 2, "played", 14),
    "game, fresh, equal batches in random order": lambda: _smd(
        _game, DisjointPartition(4, 2), 1, "fresh", 9
    ),
    "curved, played, tapered in random order": lambda: _smd(
        _curved, TaperedPartition(4, 11), 3, "played", 11
    ),
    "l1 ball, fresh, tapered": lambda: _smd(
        _regression, TaperedPartition(4, 12, "given"), 2, "fresh", 12
    ),
    "bilinear, fresh, independent": lambda: _smd(
        _bilinear, IndependentPartition(4, 12, tapered=True), 2, "fresh", 11, ADD
    ),
    "polytope, played, independent equal": lambda: _smd(
        _over_corners, IndependentPartition(4, 10), 1, "played", 10, ADD
    ),
    "largest loss, polar, fresh, tapered": lambda: _smd(
        _largest, TaperedPartition(4, 13, "given"), 2, "fresh", 14, polar=True
    ),
    "largest loss, polar, played, independent": lambda: _smd(
        _largest, IndependentPartition(4, 12, tapered=True), 3, "played", 11, ADD, polar=True
    ),
    "anytime, simplex": lambda: _anytime(
        _logistic, TaperedPartition(5, 13, "given", tail=2), 2, 1, 13, output_draws=3
    ),
    "anytime, l1 ball, refresh 3": lambda: _anytime(_regression, DisjointPartition(7, 2), 1, 3, 14),
    "anytime, polytope, refresh 3, independent": lambda: _anytime(
        _over_corners, IndependentPartition(8, 16, tapered=True), 2, 3, 16, relation=ADD
    ),
    "multilevel, game, tapered": lambda: _multilevel(
        _game, TaperedPartition(BATCHES, 44, "given"), 44
    ),
    "multilevel, l1 ball, antithetic, independent": lambda: _multilevel(
        _regression, IndependentPartition(BATCHES, 45, tapered=True), 45, True, ADD
    ),
    "multilevel, curved, equal batches in random order": lambda: _multilevel(
        _curved, DisjointPartition(BATCHES, 1), 43
    ),
}
SELDOM = {
    "largest loss, polar, played, independent",
    "game, played, tapered",
    "anytime, simplex",
    "l1 ball, fresh, tapered",
    "game, fresh, equal batches in random order",
    "polytope, played, independent equal",
    "anytime, l1 ball, refresh 3",
    "multilevel, l1 ball, antithetic, independent",
    "multilevel, curved, equal batches in random order",
}
UPHILL = {"curved, played, tapered in random order"}


# Attack.


def transcript(case, seed=0):
    """What a run drew, and its batches."""
    n = jax.tree.leaves(case.data)[0].shape[0]
    solver, problem = case.solver, case.problem

    def run(data, key, plan_key):
        def body(state, x):
            rows, mask = solver.sampler.batch(x, n)
            return solver.step(problem, jax.tree.map(lambda a: a[rows], data), mask, state)

        xs = solver.sampler.plan(plan_key, n)
        return jax.lax.scan(body, solver.init(problem, key=key), xs)[1], xs

    keys = jax.random.split(jax.random.key(seed))
    return jax.jit(run, compiler_options=QUICK)(case.data, *keys)


def batches_of_records(sampler, xs, n):
    """For each record its batch, -1 where it takes part in none."""
    rows, masks = jax.vmap(lambda x: sampler.batch(x, n))(xs)
    where = np.full(n, -1)
    for t, (row, mask) in enumerate(zip(np.asarray(rows), np.asarray(masks), strict=True)):
        where[row[mask]] = t
    return where


def draws_at_end(solver, block):
    """Draws of one block for the result."""
    if isinstance(solver, SaddleMirrorDescent):
        return drawn_together(solver, block)
    if isinstance(solver, AnytimeMirrorDescent):
        return solver.num_draws if solver.output_draws is None else solver.output_draws
    return 0


def drawn_together(solver, block):
    """Vertices of one block that mirror descent draws in a step; of losses one, where polar."""
    return 1 if solver.polar and block else solver.num_draws + (solver.output == "fresh")


def changes(case, info, xs):
    """`(record, position) -> Change`: against what is there, or its absence under add-or-remove."""
    add_or_remove = case.solver.relation == ADD

    def scores(data, xs):
        made = case.solver.replay(case.problem, data, info, xs)
        return made.logits, made.drawn

    def change(record, position):
        put = jax.tree.map(lambda a, r: a.at[position].set(r), case.data, record)
        if add_or_remove:
            indices, mask = xs
            before, drawn = scores(put, (indices, mask & (indices != position)))
        else:
            before, drawn = scores(case.data, xs)
        after, _ = scores(put, xs)
        widths, spent, touched = [], [], []
        for b, (s, t) in enumerate(zip(before, after, strict=True)):
            number = jnp.sum(info.indices[b] >= 0, axis=1)
            number = jnp.where(drawn, jnp.append(number, draws_at_end(case.solver, b)), 0)
            width, each = _mixture_loss(s, t) if case.mixture else _softmax_loss(s, t)
            # a NaN must not pass for no change
            width = jnp.where(jnp.isnan(width), jnp.inf, width)
            widths.append(jnp.where(number > 0, width, 0))
            spent.append(jnp.sum(jnp.where(number > 0, number * each, 0)))
            touched.append(jnp.sum(jnp.where(width > NOTHING, number, 0)))
        return Change(jnp.stack(widths, axis=1), sum(spent), jnp.stack(touched))

    return change


def _softmax_loss(s, t):
    """Range of the change of the scores, and its square over 8."""
    width = jnp.ptp(t - s, axis=-1)
    return width, width**2 / 8


def _mixture_loss(s, t):
    """Largest modulus of the log of the ratio, and the largest of D_alpha / alpha."""
    p, q = jax.vmap(log_normalize)(s), jax.vmap(log_normalize)(t)

    def divergence(p, q, alpha):
        log_sum = jax.nn.logsumexp(alpha * p + (1 - alpha) * q, axis=-1)
        return log_sum / (alpha - 1) / alpha

    each = [divergence(a, b, alpha) for alpha in ALPHAS for a, b in ((p, q), (q, p))]
    return jnp.max(jnp.abs(p - q), axis=-1), functools.reduce(jnp.maximum, each)


def starting_points(data, seed):
    """For each position records `[n, starts, ...]`: negatives of its own, normals, extremes."""
    rng = np.random.default_rng(seed)
    leaves, treedef = jax.tree.flatten(data)
    columns = []
    for leaf in leaves:
        own = np.asarray(leaf)
        normals = [scale * rng.normal(size=own.shape) for scale in (0.1, 3.0, 1e3)]
        extremes = [np.full(own.shape, v) for v in (0.0, 1e30, np.inf, np.nan)]
        # a loss of one margin has the gradient's negative at the same inputs, the label turned
        turned = own if len(leaves) > 1 and own.ndim > 1 else -1e3 * own
        columns.append(np.stack([turned, -own, *normals, *extremes], axis=1))
    return jax.tree.unflatten(treedef, [jnp.asarray(c, leaves[0].dtype) for c in columns])


def attack(case, info, xs, steps, seed=1):
    """The largest `Change` seen at each position, leaves `[n, ...]`: from many starts uphill."""
    n = jax.tree.leaves(case.data)[0].shape[0]
    change = changes(case, info, xs)

    def climb(record, position):
        if not steps:
            return change(record, position)
        unit = jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), jnp.abs(a), 1).mean(), record)

        def body(carry, rate):
            moving, worst = carry
            (_, seen), slope = jax.value_and_grad(
                lambda r: (lambda c: (jnp.sum(c.width), c))(change(r, position)), has_aux=True
            )(moving)
            worst = jax.tree.map(jnp.maximum, worst, seen)

            def move(a, g, u):
                g = jnp.where(jnp.isfinite(g), g, 0)
                top = jnp.max(jnp.abs(g), initial=0)
                return a + rate * u * g / jnp.where(top > 0, top, 1)

            return (jax.tree.map(move, moving, slope, unit), worst), None

        shapes = jax.eval_shape(change, record, position)
        zero = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        rates = 0.5 * 0.8 ** jnp.arange(steps)
        return jax.lax.scan(body, (record, zero), rates)[0][1]

    every = jax.vmap(jax.vmap(climb, (0, None)), (0, 0))
    found = jax.jit(every, compiler_options=QUICK)(starting_points(case.data, seed), jnp.arange(n))
    return jax.tree.map(lambda a: np.asarray(a.max(axis=1), float), found)


def declared(solver):
    """`[(rho, count)]` of each block's draws, from the event."""
    parts = [(part.event.rho, part.count) for part in solver.guarantee().event.events]
    return parts, sum(rho * count for rho, count in parts)


def left_by_hand(solver, block=0):
    """Draws of one block that a record of each batch meets, from the method's definition."""
    steps = solver.sampler.steps
    if isinstance(solver, MultilevelSaddle):
        left, total = [], 0
        for level in reversed(solver.levels):
            left += [total] * (3 if level == 0 else 4 * 2**level + 1)
            total += 2 ** (level + 1) + 1
        return np.array(left[::-1])
    if isinstance(solver, SaddleMirrorDescent):
        return drawn_together(solver, block) * np.arange(steps, 0, -1)
    q, k = solver.refresh, solver.num_draws
    times = [t for t in range(1, steps + 1) if t <= q or t % q == 0]  # within the run
    last = k if solver.output_draws is None else solver.output_draws
    # the batch of time t is seen from time t + 1 on
    return np.array([k * sum(s > t for s in times) + last for t in range(1, steps + 1)])


def width_by_hand(solver, t):
    """eta of each block for a record of batch t."""
    c = 1 if solver.relation == ADD else 2
    size = float(solver.sampler.sizes[t])
    if isinstance(solver, MultilevelSaddle):
        records = [3 if level == 0 else 4 * 2**level + 1 for level in solver.levels]
        level = np.repeat(solver.levels, records)[t]
        estimator = multilevel(solver.max_level, solver.antithetic)
        size *= estimator.records(level) / estimator.factor(level)
    pairs = zip(solver.step_size, solver.grad_range, strict=True)
    return np.array([c * float(tau) * float(omega) / size for tau, omega in pairs])


def check(case, info, xs, steps=0, claimed=None):
    """Asserts that no neighbour found exceeds the guarantee; the largest share of rho seen."""
    solver = case.solver if claimed is None else claimed
    n = jax.tree.leaves(case.data)[0].shape[0]
    where = batches_of_records(solver.sampler, xs, n)
    found = attack(case, info, xs, steps)
    parts, total = declared(solver)
    blocks = range(len(case.problem.domains))
    left = np.stack([left_by_hand(solver, b) for b in blocks], axis=1)
    assert np.isfinite(found.spent).all()
    for position, t in enumerate(where):
        width, spent, touched = (leaf[position] for leaf in found)
        if t < 0:
            assert (width <= NOTHING).all()
            continue
        assert (width <= width_by_hand(solver, t) * (1 + ROUNDING)).all(), (position, t)
        assert (width[: t + 1] <= NOTHING).all(), (position, t)
        assert (touched <= left[t]).all(), (position, t)
        assert spent <= total * (1 + 2 * ROUNDING), (position, t, spent / total)
    # the event is that of a batch which exists, and of its draws
    worst = int(np.argmax(left[:, 0] / np.square(width_scale(solver))))
    np.testing.assert_allclose([rho for rho, _ in parts], width_by_hand(solver, worst) ** 2 / 8)
    np.testing.assert_array_equal([count for _, count in parts], left[worst])
    assert (found.touched[where == worst] == left[worst]).all()
    return found.spent.max() / total


def width_scale(solver):
    """Batch sizes, in units in which one record's influence is the same."""
    return np.array([1 / width_by_hand(solver, t)[0] for t in range(solver.sampler.steps)])


def run_case(name, steps):
    case = CASES[name]()
    share = check(case, *transcript(case), steps)
    print(f"{name}: {share:.3f} of rho")
    # the bound of the others is reached by constructed transcripts: see below
    assert share >= (0.9 if isinstance(case.solver, SaddleMirrorDescent) else 0.02)


@pytest.mark.parametrize("name", [name for name in CASES if name not in SELDOM])
@pytest.mark.once  # the claim
def test_no_neighbour_moves_a_draw_further_than_declared(name):
    run_case(name, 4 if name in UPHILL else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_neighbour_found_by_a_long_climb_does(name):
    run_case(name, 20)


# The checks above can fail, and the bounds that random runs do not reach can be reached.


@pytest.mark.slow
@pytest.mark.parametrize(
    "tampered",
    [
        {"step_size": (0.75, 0.6)},
        pytest.param({"grad_range": (2.1, 2.1)}, marks=pytest.mark.slow),
        pytest.param({"num_draws": 3}, marks=pytest.mark.slow),
    ],
    ids=lambda tampered: next(iter(tampered)),
)
def test_a_run_that_moves_scores_more_than_it_says_is_caught(tampered):
    case = CASES["game, played, tapered"]()
    louder = dataclasses.replace(case, solver=dataclasses.replace(case.solver, **tampered))
    with pytest.raises(AssertionError):
        check(louder, *transcript(louder), claimed=case.solver)


@pytest.mark.slow
def test_batches_smaller_than_their_divisors_say_are_no_excuse():
    case = CASES["bilinear, fresh, independent"]()
    sampler = dataclasses.replace(case.solver.sampler, num_records=18)
    claimed = dataclasses.replace(case.solver, sampler=sampler)
    with pytest.raises(AssertionError):
        check(case, *transcript(case), claimed=claimed)


def _picky(w, rec):
    """Gradient `(s, 0)` where `w[0]` is near an entry of `rec["plus"]`, else `(-s, 0)`."""
    near = jnp.min(jnp.abs(jax.lax.stop_gradient(w[0]) - rec["plus"])) < 1e-3
    return rec["s"] * jnp.where(near, 1.0, -1.0) * w[0]


@pytest.mark.parametrize("antithetic", [False, True])
def test_multilevel_estimates_reach_their_sensitivity_at_every_level(antithetic):
    # draws of vertex 0: the first only; so the points are 2^-(N+1), 2^-N, (0 and) 1
    levels, max_level = (0, 1, 2, 0), 6
    estimator = multilevel(max_level, antithetic)
    sizes = [estimator.records(level) for level in levels]
    starts = np.cumsum([0, *sizes])
    steps = int(starts[-1])
    solver = MultilevelSaddle(
        DisjointPartition(steps, 1, "given"), 1.0, 1.0, levels, max_level, antithetic
    )
    problem = SimplexRisk(_picky, dim=2, grad_range=1.0)
    indices = np.full((steps, 2 ** (max_level + 1) + 1), -1)
    plus = np.full((steps, 2), -1.0)
    for level, start in zip(levels, starts, strict=False):
        indices[start, : 2 ** (level + 1)] = 1
        indices[start, [0, -1]] = 0
        # at level 0 the first draw is also the coarse point, which outweighs it unless halved
        first = 1.0 if level or antithetic else -1.0
        plus[start] = [2.0 ** -(level + 1), first]
    data = {"s": jnp.zeros(steps), "plus": jnp.asarray(plus)}
    info = dpjax.solvers.VertexInfo((jnp.asarray(indices),))
    xs = solver.sampler.plan(jax.random.key(0), steps)

    @jax.jit
    def widths(position):
        logits = [
            solver.replay(problem, data | {"s": data["s"].at[position].set(s)}, info, xs).logits[0]
            for s in (1.0, -1.0)
        ]
        return jnp.max(jnp.ptp(logits[0] - logits[1], axis=1))

    for level, start in zip(levels[:3], starts, strict=False):
        width = float(widths(int(start)))
        assert width == pytest.approx(width_by_hand(solver, start)[0], rel=1e-4)
        bound = 2 * estimator.factor(level) / estimator.records(level)
        assert (1 - 1e-4) * bound < width <= bound * (1 + 1e-6)
        if not antithetic:
            in_unit_batches = width * estimator.records(level) / 2**level
            assert in_unit_batches == pytest.approx([5.9375, 8.9375, 8.4375][level], rel=1e-4)
    # so a solver that forgot the factor would be caught
    assert width_by_hand(solver, 3)[0] > 1.5 * 2 / estimator.records(1)


@pytest.mark.slow
def test_late_draws_of_an_average_reach_their_bound():
    # an early record moves all but the first iterate: its share of rho tends to 1
    steps = 120
    problem = SimplexRisk(lambda w, rec: rec["c"] @ w, dim=2, grad_range=1.0)
    solver = AnytimeMirrorDescent(DisjointPartition(steps, 1, "given"), 0.05, 1.0)
    data = {"c": jnp.zeros((steps, 2)).at[0].set(jnp.array([1.0, 0.0]))}
    case = Case(solver, problem, data, mixture=True)
    info, xs = transcript(case)
    found = jax.jit(changes(case, info, xs))({"c": jnp.array([-1.0, 0.0])}, 0)
    _, total = declared(solver)
    assert 0.9 < float(found.spent) / total < 1 + ROUNDING
    assert float(found.spent) * 1.5**2 > total  # a step size 1.5 times as large would be caught
    assert int(found.touched[0]) == left_by_hand(solver)[0] == steps


@pytest.mark.parametrize("shift", [0.0, 20.0, 2e4])
def test_rounding_does_not_grow_with_what_gradients_have_in_common(shift):
    """A sum of 300 gradients of 20 times their range; one of 15,000 records turns."""
    steps, size, tau = 300, 50, 0.1
    problem = SimplexRisk(lambda w, rec: rec["c"] @ w, dim=50, grad_range=2.0)
    solver = SaddleMirrorDescent(DisjointPartition(steps, size, "given"), tau, 2.0)
    rng = np.random.default_rng(0)
    first = jnp.asarray(rng.choice([-1.0, 1.0], size=(steps * size, 50)), jnp.float32)
    second = first.at[0].multiply(-1)
    info = dpjax.solvers.VertexInfo((jnp.zeros((steps, 1), jnp.int32),))
    xs = solver.sampler.plan(jax.random.key(0), steps * size)
    run = jax.jit(lambda c: solver.replay(problem, {"c": c}, info, xs).logits[0])
    a, b = (np.asarray(run(c + shift), float) for c in (first, second))
    eta = 2 * tau * 2.0 / size
    # the step is smaller by what rounding may add
    assert 0.99 * eta < np.ptp(a - b, axis=1).max() <= eta
    assert np.abs(a.max(axis=1)).max() < 1e-5  # centred


@pytest.mark.parametrize(
    "name", [pytest.param("game", marks=pytest.mark.slow), "anytime", "multilevel"]
)
def test_replay_retraces_a_run(name):
    name = {
        "game": "game, fresh, equal batches in random order",
        "anytime": "anytime, l1 ball, refresh 3",
        "multilevel": "multilevel, l1 ball, antithetic, independent",
    }[name]
    case = CASES[name]()
    solver, problem, data = case.solver, case.problem, case.data
    n = jax.tree.leaves(data)[0].shape[0]

    def run(data, key, plan_key):
        def body(state, x):
            rows, mask = solver.sampler.batch(x, n)
            seen = solver.logits(problem, solver.prepare(problem, state))
            drawn = jnp.asarray(solver.draws_now(state))
            state, info = solver.step(problem, jax.tree.map(lambda a: a[rows], data), mask, state)
            return state, (seen, drawn, info)

        xs = solver.sampler.plan(plan_key, n)
        state, (seen, drawn, info) = jax.lax.scan(body, solver.init(problem, key=key), xs)
        last = solver.logits(problem, solver.prepare(problem, state))
        replayed = solver.replay(problem, data, info, xs)
        return (
            jax.tree.map(lambda a, b: jnp.append(a, b[None], axis=0), seen, last),
            drawn,
            replayed,
        )

    keys = jax.random.split(jax.random.key(0))
    seen, drawn, replayed = jax.jit(run, compiler_options=QUICK)(data, *keys)
    for a, b in zip(seen, replayed.logits, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
        assert np.ptp(b, axis=1).max() > 0.1
    assert replayed.drawn.tolist() == [*drawn.tolist(), not isinstance(solver, MultilevelSaddle)]


@pytest.mark.slow
def test_solve_draws_what_the_transcripts_here_hold():
    case = CASES["game, fresh, equal batches in random order"]()
    info = dpjax.solve(case.solver, case.problem, case.data, key=jax.random.key(0)).info
    for got, want in zip(info.indices, transcript(case)[0].indices, strict=True):
        np.testing.assert_array_equal(got, want)
