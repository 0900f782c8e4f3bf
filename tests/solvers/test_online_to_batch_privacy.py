"""OnlineToBatch: how far one record moves an increment, and noise that hides it altogether."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from replays import assert_same, given, replay, run, steps_of

from dpjax.core import register_dataclass
from dpjax.papers.online._increment import (
    CLIPS,
    Gradients,
    IncrementBound,
    clipped_increments,
    clipped_share,
    combination,
)
from dpjax.papers.online._learners import LEARNERS
from dpjax.papers.online_to_batch import PublishedOnlineToBatch
from dpjax.problems import RateConstrained, Risk, SimplexRisk
from dpjax.sampling import DisjointPartition, FullBatch, IndependentPartition
from dpjax.solvers import OnlineToBatch
from dpjax.testing import largest_change
from dpjax.testing._trees import QUICK
from dpjax.transforms import BinaryTree, BufferedToeplitz, OuterProduct, SplitNoise

pytestmark = pytest.mark.usefixtures("unrounded_steps")

SLOW = [pytest.mark.slow]

# One increment: gradients of any kind, at a step at which all terms count.

P = 3
BOUND = IncrementBound(*(jnp.float32(v) for v in (0.3, 0.8, 1.7, 0.4)))
OFFSET = jnp.array([0.1, -0.3, 0.2], jnp.float32)
OFFSET = OFFSET * 0.4 / jnp.linalg.norm(OFFSET)  # as long as the radius
KINDS = [
    (clip, norm) for clip in CLIPS for norm in ("l2", "linf") if (clip, norm) != (CLIPS[0], "linf")
]

QUICK_SEARCH = [("centred", "l2", False)]


def increment(clip, norm, centre, bound=BOUND):
    """`(records, mask) -> sum`; records hold gradients, or the factors of gradients."""
    aggregator = clipped_increments(bound, clip, norm, centre)

    def of(records, mask):
        gradients = Gradients(records["before"], records["now"])
        if "left" in records:
            gradients = Gradients(*(OuterProduct(records["left"], right) for right in gradients))
        return aggregator.update(gradients, None, mask=mask)[0]

    return of


def centre_of(clip, shape):
    return OFFSET.reshape(shape) if clip == "centred" else jnp.zeros(shape, jnp.float32)


def records_of(rng, factored, dtype=jnp.float32):
    """Of all sizes and directions, some of both gradients in one direction, and garbage."""
    n = 600
    sizes = 10.0 ** rng.uniform(-3, 4, size=(2, n, 1))
    width = 1 if factored else P
    left = rng.normal(size=(n, P)) * 10.0 ** rng.uniform(-2, 2, size=(n, 1))
    before, change = rng.normal(size=(2, n, width)) * sizes
    along = slice(0, n // 2)
    change[along] = before[along] * 10.0 ** rng.uniform(-3, 4, size=(n // 2, 1))
    if not factored:
        before[:8] = 1e6 * np.array(np.meshgrid(*[(-1, 1)] * P)).reshape(P, -1).T
        change[:8] = before[:8]
    now = before + change
    records = {"left": left, "before": before, "now": now} if factored else {}
    records |= {"before": before, "now": now}
    for row, bad in enumerate([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30, 1e-30], 10):
        for column, leaf in enumerate(records.values()):
            leaf[row + 10 * column, 0] = bad
    return {name: jnp.asarray(leaf, dtype) for name, leaf in records.items()}


each_kind = pytest.mark.parametrize(("clip", "norm"), KINDS)
each_form = pytest.mark.parametrize("factored", [False, True], ids=["dense", "factored"])


@each_form
@each_kind
@pytest.mark.always  # the claim
def test_one_record_moves_an_increment_as_far_as_its_bound(clip, norm, factored, rng):
    of = increment(clip, norm, centre_of(clip, (P,)))
    bound = float(BOUND.sensitivity(clip))
    assert bound == pytest.approx(1.7 if clip == "whole" else 0.3 * 1.7 + 0.8 * 0.4)
    records = records_of(rng, factored)
    others = jax.tree.map(lambda a: a[:5], records_of(rng, factored))

    def added(record):
        batch = jax.tree.map(lambda a, r: jnp.concatenate([a, r[None]]), others, record)
        both = [of(batch, jnp.arange(6) < n) for n in (5, 6)]
        return both[1] - both[0]

    moves = np.asarray(jax.jit(jax.vmap(added), compiler_options=QUICK)(records), np.float64)
    order = 2 if norm == "l2" else np.inf
    sizes = np.linalg.norm(moves, ord=order, axis=1)
    assert sizes.max() <= bound * (1 + 1e-5)
    assert sizes.max() >= bound * (1 - 1e-4)  # so that no smaller bound would do
    furthest = np.linalg.norm(moves - moves[sizes.argmax()], ord=order, axis=1).max()
    assert 2 * bound * 0.95 <= furthest <= 2 * bound * (1 + 1e-5)


@pytest.mark.parametrize(
    ("clip", "norm", "factored"),
    [
        pytest.param(*kind, factored, marks=[] if (*kind, factored) in QUICK_SEARCH else SLOW)
        for kind in KINDS
        for factored in (False, True)
    ],
)
def test_no_neighbour_found_uphill_moves_it_further(clip, norm, factored, rng, key):
    records = jax.tree.map(lambda a: a[50:54], records_of(rng, factored))
    bound = float(BOUND.sensitivity(clip))
    of = increment(clip, norm, centre_of(clip, (P,)))
    for relation, factor in (("add_or_remove_one", 1), ("replace_one", 2)):
        worst = largest_change(of, records, norm=norm, relation=relation, key=key, steps=40)
        assert worst.change <= factor * bound * (1 + 1e-5), worst
        assert worst.change > 0.4 * factor * bound


@pytest.mark.parametrize(
    ("clip", "norm"),
    [
        pytest.param(*kind, marks=SLOW if "whole" in kind or kind == KINDS[1] else [])
        for kind in KINDS
    ],
)
def test_factored_gradients_give_the_sums_of_dense_ones(clip, norm, rng, x64):
    def sums(records, mask, centre, bound):
        def outer(right):
            return jnp.einsum("bp,bk->bpk", records["left"], right)

        of = increment(clip, norm, centre, bound)
        return of(records, mask), of({k: outer(records[k]) for k in ("before", "now")}, mask)

    compare = jax.jit(sums, compiler_options=QUICK)
    records = jax.tree.map(lambda a: a[40:], records_of(rng, True, float))
    mask = jnp.asarray(rng.uniform(size=560) < 0.7)
    got, want = compare(records, mask, centre_of(clip, (P,)), BOUND)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    # layers of several outputs, whose parameters are matrices
    records |= {k: jnp.asarray(rng.normal(size=(560, 2))) for k in ("before", "now")}
    centre = jnp.full((P, 2), 0.4 / 6**0.5 if clip == "centred" else 0.0)
    got, want = compare(records, mask, centre, BOUND)
    assert got.shape == (P, 2)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_gradients_of_linear_models_stay_factored():
    def link(margin, y):
        return (margin - y) ** 2

    data = {"x": jnp.ones((4, P)), "y": jnp.zeros(4)}
    labels = data | {"y": jnp.zeros(4, jnp.int32)}
    problems = [
        (SimplexRisk.linear(link, dim=P, grad_range=1.0), data),
        (Risk.linear(link, P), data),
        (RateConstrained.linear(P, 2), labels),
    ]
    for problem, batch in problems:

        def change(batch, problem=problem):
            first, second = (problem.per_example_gradients(problem.init, batch) for _ in range(2))
            return combination(-1.0, first, 1.0, second)

        shapes = jax.eval_shape(change, batch)
        found = jax.tree.leaves(shapes, is_leaf=lambda a: isinstance(a, OuterProduct))
        assert any(isinstance(leaf, OuterProduct) for leaf in found)


@pytest.mark.parametrize("clip", CLIPS)
def test_gradients_in_few_digits_are_clipped_in_many(clip, rng):
    centre = centre_of(clip, (P,))
    bound = BOUND._replace(old_weight=jnp.float32(0.0), clip_norm=jnp.float32(1.0))
    of = increment(clip, "l2", centre, bound)
    records = jax.tree.map(lambda a: a.astype(jnp.bfloat16)[40:], records_of(rng, False))

    @functools.partial(jax.jit, compiler_options=QUICK)
    def one(records):
        return jax.vmap(lambda r: of(jax.tree.map(lambda a: a[None], r), jnp.ones(1, bool)))(
            records
        )

    sums = one(records)
    assert sums.dtype == jnp.float32
    sizes = np.linalg.norm(np.asarray(sums, np.float64), axis=1)
    assert sizes.max() <= float(bound.sensitivity(clip)) * (1 + 1e-5)


def test_diagnostics_count_what_clipping_changes():
    before = jnp.array([[3.0, 0, 0], [0.1, 0, 0], [0.1, 0, 0]])
    now = before + jnp.array([[0.0, 0, 0], [0, 5.0, 0], [0, 0, 0]]) + OFFSET[None]
    shares = clipped_share(BOUND, "centred", "l2", OFFSET, Gradients(before, now))
    assert shares["clipped"].tolist() == [True, False, False]
    assert shares["clipped_changes"].tolist() == [False, True, False]
    whole = clipped_share(BOUND, "whole", "l2", OFFSET, Gradients(before, now))
    assert whole["clipped"].tolist() == [False, True, False]


# Replays. A record's gradient is as large as it likes, in a direction of its own, and grows along
# another: with these it can move an increment by all that the guarantee allows.

D = 3
N = 14


def _steep(w, rec):
    growth = 1 + rec["growth"] * jax.lax.stop_gradient(rec["along"] @ w)
    return rec["size"] * growth * (rec["direction"] @ w)


BALL = Risk(_steep, np.zeros(D), radius=1.0)
SIMPLEX = SimplexRisk(_steep, dim=D + 1, grad_range=2.0)


def _data(d, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "direction": jnp.asarray(rng.normal(size=(N, d))),
        "along": jnp.asarray(rng.normal(size=(N, d))),
        "size": jnp.asarray(rng.normal(size=N)),
        "growth": jnp.ones(N),
    }


def _put(data, record, leaves):
    return {name: leaf.at[record].set(leaves[name]) for name, leaf in data.items()}


PASS = DisjointPartition(7, 2)
FULL = FullBatch(4)
OWN = IndependentPartition(7, N, capacity=N)
ADD = {"relation": "add_or_remove_one"}
DEFAULTS = {
    "noise_multiplier": 1.3,
    "clip_norm": 0.9,
    "smoothness": 0.6,
    "learning_rate": 0.5,
    "batch_size": 2.0,
    "learner": "optimistic",
    "shrinkage": False,
}
BUFFERED = BufferedToeplitz(7)
TREE = BinaryTree(7, exponent=1.0)


def _solver(sampler, noise, kind=OnlineToBatch, **fields):
    return kind(sampler, given(noise), **(DEFAULTS | fields))


def _worst(solver, problem, data, draws, record):
    """Data without the record, with one that moves increments most, and with its negative."""
    nobody = _put(data, record, jax.tree.map(lambda a: jnp.full(a.shape[1:], jnp.nan), data))
    points = np.asarray(run(solver, problem, nobody, draws).states[0].previous)  # x_1, x_2, ...
    steps = steps_of(solver, N)[record]
    before = points[max(steps[0] - 1, 0)]
    moved = [points[t] - points[t - 1] for t in steps if t]
    # so that the gradient grows from each point to the next, from 1 or more
    along = np.linalg.lstsq(np.stack([before, *moved]), np.append(0.0, np.ones(len(moved))))[0]
    direction = np.random.default_rng(record).choice([-1.0, 1.0], size=draws.shape[1])
    leaves = {"direction": direction, "along": along, "size": 1e9, "growth": 1e3}
    return nobody, *(_put(data, record, leaves | {"size": size}) for size in (1e9, -1e9))


def _spent(solver, moved):
    """Of the budget of one record against the null record, which is 1."""
    distribution = getattr(solver.noise, "distribution", "gaussian")
    z = solver.noise_multiplier
    if distribution == "gaussian":
        return float(np.sum(moved**2)) * z**2
    return float(np.linalg.norm(moved, 2 if distribution == "l2" else np.inf, axis=1).sum()) * z


def check_replay(solver, step=2, reached=0.0):
    """Null record, worst record, its negative, another: the same run, at no more than declared."""
    simplex = "exponentiated" in str(solver.learner) or solver.norm == "linf"
    problem = SIMPLEX if simplex else BALL
    data = _data(problem.num_params)
    shape = (solver.sampler.steps, problem.num_params)
    draws = np.random.default_rng(1).normal(size=shape)
    record = next(i for i, steps in enumerate(steps_of(solver, N)) if step in steps)
    nobody, worst, negative = _worst(solver, problem, data, draws, record)
    pure = getattr(solver.noise, "distribution", "gaussian") != "gaussian"
    twice = 2 if pure else 4
    pairs = [(nobody, worst, 1), (worst, negative, twice), (negative, data, twice)]
    for first, second, bound in pairs:
        a, b, draws, moved = replay(solver, problem, first, second, draws, record)
        assert_same(a, b)
        assert np.isfinite(np.asarray(b.states[0].estimate)).all()
        spent = _spent(solver, moved)
        assert 1e-3 * bound <= spent <= bound * (1 + 1e-6)
        if second is not data:
            assert spent >= reached * bound


def _published(steps):
    return {
        "noise": BinaryTree(steps),
        "clip": "plain",
        "weight_exponent": 1.0,
        "kind": PublishedOnlineToBatch,
    }


_FLAT = {"weight_exponent": 1.0, "smoothness": 1e-6}  # every step has the same sensitivity
SIMPLEX_FIELDS = {"norm": "linf", "learner": "optimistic_exponentiated"}
REPLAYS = {
    "buffered, centred": (_solver(PASS, BUFFERED), 5, 0.999),
    "buffered, plain, wide": (_solver(PASS, BUFFERED, clip="plain", weight_exponent=3.0), 2, 0.999),
    "buffered, whole": (_solver(PASS, BUFFERED, clip="whole"), 4, 0.999),
    "buffered, for more steps": (_solver(PASS, BufferedToeplitz(12)), 3, 0.8),
    "buffered, other weights": (_solver(PASS, BUFFERED, estimate_exponent=1.0), 4, 0.999),
    "buffered, first step": (_solver(PASS, BUFFERED), 0, 0.999),
    "buffered, last step": (_solver(PASS, BUFFERED), 6, 0.999),
    "buffered, independent": (_solver(OWN, BUFFERED, **ADD), 3, 0.999),
    "buffered, microbatches": (_solver(PASS, BUFFERED, microbatch_size=1), 3, 0.999),
    "buffered, linf": (_solver(PASS, BUFFERED, clip="plain", **SIMPLEX_FIELDS), 3, 0.999),
    "tree, flat": (_solver(PASS, BinaryTree(7), clip="plain", **_FLAT), 0, 0.999),
    "tree, growing": (_solver(PASS, TREE), 3, 0.1),
    "tree, published": (_solver(PASS, **_published(7)), 0, 0.05),
    "tree, published, linf": (_solver(PASS, **(_published(7) | SIMPLEX_FIELDS)), 2, 0.02),
    "tree, pure": (
        _solver(PASS, BinaryTree(7, distribution="l2"), clip="plain", **_FLAT),
        0,
        0.999,
    ),
    "tree, pure, growing": (_solver(PASS, BinaryTree(7, 1.0, distribution="l2")), 3, 0.1),
    "tree, pure, linf": (
        _solver(PASS, BinaryTree(7, distribution="linf"), clip="plain", **_FLAT, **SIMPLEX_FIELDS),
        0,
        0.999,
    ),
    "split, centred": (_solver(FULL, SplitNoise(4), **ADD), 0, 0.999),
    "split, shrunk": (
        _solver(FULL, SplitNoise(4), shrinkage=True, noise_multiplier=0.3),
        0,
        0.999,
    ),
    "split, plain": (_solver(FULL, SplitNoise(4, 0.4, 2.0), clip="plain"), 0, 0.999),
    "split, whole": (_solver(FULL, SplitNoise(4), clip="whole", estimate_exponent=1.0), 0, 0.999),
    "split, wide": (_solver(FULL, SplitNoise(4), estimate_exponent=2.0), 0, 0.999),
    "split, linf": (_solver(FULL, SplitNoise(4), clip="plain", **SIMPLEX_FIELDS), 0, 0.999),
    "split, one pass": (_solver(PASS, SplitNoise(7)), 3, 0.01),
}
SELDOM = {
    "buffered, independent",
    "split, whole",
    "tree, growing",
    "tree, pure, linf",
    "buffered, for more steps",
    "buffered, other weights",
    "buffered, last step",
    "buffered, first step",
    "buffered, plain, wide",
    "buffered, microbatches",
    "tree, pure, growing",
    "tree, published, linf",
    "split, plain",
    "split, wide",
    "split, one pass",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=SLOW if n in SELDOM else []) for n in REPLAYS]
)
@pytest.mark.once  # the claim
def test_noise_hides_a_record_at_the_declared_cost(name, x64):
    check_replay(*REPLAYS[name])


NOISES = itertools.cycle([(PASS, BUFFERED), (FULL, SplitNoise(4)), (PASS, TREE)])


@pytest.mark.parametrize(
    ("learner", "noise"), list(zip(LEARNERS, NOISES, strict=False)), ids=list(LEARNERS)
)
def test_learners_see_what_is_released_and_nothing_else(learner, noise, x64):
    rate = 0.1 if learner in ("optimistic_descent", "gradient_descent") else 0.5
    solver = _solver(*noise, learner=learner, learning_rate=rate)
    if "exponentiated" in learner:
        solver = dataclasses.replace(solver, norm="linf", clip="plain")
    check_replay(solver, 2)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class _Leaky(OnlineToBatch):
    """Lets something of the data through: by default nothing."""

    leak: str = dataclasses.field(default="", metadata={"static": True})

    def step(self, problem, batch, mask, state):
        after, info = super().step(problem, batch, mask, state)
        raw = problem.per_example_gradients(state.point, batch)
        raw = jnp.sum(jnp.where(mask[:, None] & jnp.isfinite(raw), jnp.clip(raw, -1, 1), 0), axis=0)
        if self.leak == "learner":
            after = after._replace(iterate=after.iterate + 1e-3 * raw)
        if self.leak == "state":
            after = after._replace(reach=after.reach + 1e-3 * jnp.sum(raw))
        if self.leak == "info":
            info = info._replace(gradient_norm=info.gradient_norm + 1e-3 * jnp.sum(raw))
        return after, info

    def _record_bound(self, bound, weights, reach, count):
        own = super()._record_bound(bound, weights, reach, count)
        return own * {"half": 0.5, "slightly": 0.99}.get(self.leak, 1.0)


def _leaky(solver, leak):
    fields = {f.name: getattr(solver, f.name) for f in dataclasses.fields(solver)}
    return _Leaky(**fields, leak=leak)


@pytest.mark.parametrize(
    "leak",
    [
        "learner",
        pytest.param("state", marks=SLOW),
        pytest.param("info", marks=SLOW),
        pytest.param("half", marks=SLOW),
        "slightly",
        "",
    ],
)
def test_leaks_and_too_little_noise_are_caught(leak, x64):
    solver, step, reached = REPLAYS["buffered, centred"]
    if leak:
        with pytest.raises(AssertionError):
            check_replay(_leaky(solver, leak), step, reached)
    else:
        check_replay(_leaky(solver, leak), step, reached)


def test_noise_for_one_step_is_too_little_for_records_in_all(x64):
    """Which is why the solver does not take it, unless it pretends."""
    kind = type("Pretending", (type(given(BUFFERED)),), {"every_step": True})
    noise = jax.tree_util.register_static(kind)(4)
    with pytest.raises(AssertionError):
        check_replay(OnlineToBatch(FULL, noise, **DEFAULTS), 0)


@pytest.mark.parametrize("clip", ["plain", "centred"])
@pytest.mark.parametrize("field", ["clip_norm", "radius"])
def test_a_traced_bound_below_zero_hides_nothing(clip, field):
    rng = np.random.default_rng(5)
    rows = Gradients(*(jnp.asarray(10 * rng.normal(size=(1, 3)), jnp.float32) for _ in range(2)))

    @jax.jit
    def added_and_allowed(value):
        bound = BOUND._replace(**{field: value})
        aggregator = clipped_increments(bound, clip, "l2", jnp.full(3, 0.05))
        added, _ = aggregator.update(rows, None, mask=jnp.ones(1, bool))
        return jnp.linalg.norm(added), bound.sensitivity(clip)

    added, allowed = added_and_allowed(-1.5)
    assert added <= allowed * (1 + 1e-5)
