"""Query release: what is drawn has the law it is accounted as, and nothing else shows the data."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from query_runs import ADD, MARGINALS, REPLACE, UNUSUAL, case, drawing, noising, records, vertices
from scipy import integrate, stats

from dpjax.problems import QueryRelease
from dpjax.queries import Domain, Marginals
from dpjax.random import _normal
from dpjax.sampling import FullBatch
from dpjax.solvers import (
    MWEM,
    FrankWolfeRelease,
    GaussianFit,
    HistogramRelease,
    MirrorDescentRelease,
    SaddleRelease,
)
from dpjax.solvers.queries import _selection as selection
from dpjax.testing import check_counts
from dpjax.testing._trees import QUICK

DRAWS = 60_000
GAPS = np.array([0.3, -0.05, 0.0, 0.12, -0.31, 0.02, 0.2, -0.1], np.float32)


def drawn(draw, *values):
    """Codes of indices and signs of many draws for each of the values, `[values, draws]`."""

    def one(key, value):
        info = draw(key, jnp.asarray(GAPS, float), value)
        digits = 3 ** jnp.arange(info.signs.shape[0])
        return info.index * 1000 + jnp.sum((info.signs.astype(jnp.int32) + 1) * digits)

    every = jax.vmap(jax.vmap(one, (0, None)), (None, 0))
    keys = jax.random.split(jax.random.key(7), DRAWS)
    return np.asarray(jax.jit(every, compiler_options=QUICK)(keys, jnp.asarray(values, float)))


def codes(index, signs):
    """As `drawn` codes them."""
    return index * 1000 + ((signs + 1) * 3 ** np.arange(signs.shape[1])).sum(axis=1)


def compare(found, every, scores):
    """Counts against the softmax of the scores."""
    assert set(found.tolist()) <= set(every.tolist())
    counts = (found[:, None] == every).sum(axis=0)
    law = np.exp(scores - scores.max())
    check_counts(counts, law / law.sum())


def test_queries_are_drawn_by_the_softmax_of_both_signs():
    index, signs = np.tile(np.arange(8), 2), np.repeat([1, -1], 8)[:, None]
    every, scores = codes(index, signs), np.concatenate([GAPS, -GAPS]).astype(float)
    found = drawn(selection.select_query, 3.0, 15.0, 0.0, np.inf, 1e4)
    for row, sharpness in zip(found, (3.0, 15.0, 0.0), strict=False):
        compare(row, every, sharpness * scores)
    assert set(found[3:].ravel().tolist()) == {int(every[12])}
    with pytest.raises(AssertionError):  # a fifth off is seen
        compare(found[0], every, 3.6 * scores)


def test_signs_of_tables_are_drawn_by_the_exponential_mechanism():
    solver = case(FrankWolfeRelease, MARGINALS, REPLACE, vertices="marginals").solver
    index, signs = vertices(solver, MARGINALS)
    every = codes(index, signs)
    padded = np.zeros((3, 4))
    for clique, (start, size) in enumerate(zip(MARGINALS.offsets, MARGINALS.sizes, strict=True)):
        padded[clique, :size] = GAPS[start : start + size]
    scores = (padded[index] * signs).sum(axis=1)
    base = -np.log(2.0) * np.array(MARGINALS.sizes)[index]
    draw = functools.partial(
        lambda key, gaps, s: selection.select_marginal(key, MARGINALS, gaps, s)
    )
    found = drawn(draw, 2.0, 12.0, 0.0, np.inf)
    for row, sharpness in zip(found, (2.0, 12.0, 0.0), strict=False):
        compare(row, every, sharpness * scores + base)
    best = scores == scores.max()
    assert set(found[3].tolist()) <= set(every[best].tolist())
    with pytest.raises(AssertionError):
        compare(found[0], every, 2.5 * scores + base)
    with pytest.raises(AssertionError):  # the base measure counts
        compare(found[0], every, 2.0 * scores)


def test_laplace_noise_picks_the_loudest_query():
    shown = np.concatenate([GAPS, -GAPS]).astype(float)
    every = codes(np.tile(np.arange(8), 2), np.repeat([1, -1], 8)[:, None])
    (found,) = drawn(selection.loudest_query, 0.15)
    grid = np.linspace(-4, 4, 20_001)
    noise = stats.laplace(scale=0.15)
    below = np.sum([noise.logcdf(grid - s) for s in shown], axis=0)
    law = [
        integrate.trapezoid(noise.pdf(grid - s) * np.exp(below - noise.logcdf(grid - s)), grid)
        for s in shown
    ]
    assert sum(law) == pytest.approx(1, abs=1e-5)
    compare(found, every, np.log(law))
    with pytest.raises(AssertionError):  # not a softmax
        compare(found, every, shown / 0.15)


def test_laplace_noise_of_queries_has_the_tail_of_the_transformation(key, monkeypatch):
    """Numbers of JAX end at 16 scales in float32: a query 20 behind would never be chosen."""

    def words(key, shape, count):
        high = jnp.full(shape, 2**31, jnp.uint32).at[0].set(0)
        low, sign = jnp.zeros(shape, jnp.uint32), jnp.ones(shape, jnp.uint32)
        return [high, low, sign, low]

    monkeypatch.setattr(_normal, "random_words", words)
    found = selection.loudest_query(key, jnp.asarray([0.0, 20.0, 3.0], jnp.float32), 1.0)
    assert (int(found.index), int(found.signs[0])) == (0, 1)


def test_rare_signs_are_drawn_as_often_as_they_should():
    line = Marginals(Domain({"a": 4096}), (("a",),))
    gaps = jnp.where(jnp.arange(4096) % 2 == 0, 1.0, -1.0)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def flipped(keys):
        draw = jax.vmap(lambda k: selection.select_marginal(k, line, gaps, 4.0).signs)
        return jnp.sum((draw(keys) * gaps[None] < 0).reshape(-1, 2048, 2), axis=(0, 1))

    rare = np.asarray(flipped(jax.random.split(jax.random.key(3), 200)))
    total, chance = 200 * 2048, 1 / (1 + np.exp(8.0))  # 3.4e-4
    check_counts([*rare, 2 * total - rare.sum()], [chance, chance, 2 * (1 - chance)])
    assert rare.min() > 50


# Nothing but draws depends on the data.


def shown(solver, problem, data, number):
    """All that a run gives, and its secret state; draws are dictated, NaN in the place of noise."""

    def sample(key, logits, k):
        return jnp.asarray([number % logits.shape[0]], jnp.int32)

    def loudest(key, gaps, scale, rest):
        return selection.SelectionInfo(jnp.int32(number % 3), jnp.ones(1, jnp.int8))

    def gumbel(key, shape, *args, **kwargs):
        return jnp.stack([jnp.full(shape[1:], 1e6), jnp.zeros(shape[1:])])

    def plus(key, values, stddev):
        return jnp.full_like(values, jnp.nan)

    def run(data):
        state, infos = solver.init(problem, key=jax.random.key(0)), []
        if hasattr(solver, "prologue"):
            state = solver.prologue(problem, data, state)
        for _ in range(solver.sampler.steps):
            mask = jnp.ones(data.shape[0], bool)
            state, info = solver.step(problem, data, mask, state)
            infos.append(info)
        params = solver.finalize(problem, state)
        redacted = solver.redact(state) if hasattr(solver, "redact") else state
        return (params, infos, redacted._replace(key=None)), state._replace(key=None)

    with (
        drawing(sample),
        mock.patch("dpjax.solvers.queries._selection.loudest_query", loudest),
        mock.patch.object(jax.random, "gumbel", gumbel),
        noising(plus),
    ):
        return jax.tree.map(np.asarray, jax.jit(run, compiler_options=QUICK)(jnp.asarray(data)))


def _once(kind, **fields):
    problem = QueryRelease(MARGINALS)
    measured = {"measured": MARGINALS, "fit_steps": 1} if kind is GaussianFit else {}
    solver = kind(FullBatch(1), stddev=0.1, num_records=3.0, relation=ADD, **measured, **fields)
    return solver, problem


def _mwem():
    problem = QueryRelease(UNUSUAL)
    told = problem.sensitivity(ADD)
    return MWEM(
        FullBatch(2), 0.1, 0.1, 3.0, told.score_range, told.linf, replays=1, relation=ADD
    ), problem


def _case(*args, **fields):
    made = case(*args, **fields)
    return made.solver, made.problem


METHODS = {
    "queries": lambda: _case(FrankWolfeRelease, UNUSUAL, ADD, output="uniform"),
    "marginals": lambda: _case(FrankWolfeRelease, MARGINALS, ADD, vertices="marginals"),
    "laplace": lambda: _case(FrankWolfeRelease, UNUSUAL, ADD, noise="laplace"),
    "saddle": lambda: _case(SaddleRelease, UNUSUAL, ADD),
    "mirror": lambda: _case(MirrorDescentRelease, UNUSUAL, ADD),
    "once": lambda: _case(MirrorDescentRelease, UNUSUAL, ADD, noise="histogram-once"),
    "per-step": lambda: _case(MirrorDescentRelease, UNUSUAL, ADD, noise="per-step"),
    "mwem": _mwem,
    "histogram": lambda: _once(HistogramRelease),
    "answers": lambda: _once(GaussianFit),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "answers" else []) for n in METHODS]
)
def test_what_is_not_drawn_shows_nothing_of_the_data(name):
    solver, problem = METHODS[name]()
    sets = [np.array(cells, np.int32) for cells in ((0, 0, 1), (3, 2))]
    runs = [shown(solver, problem, records(problem.workload, cells), 2) for cells in sets]
    (first, _), (second, _) = runs
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert a.shape == b.shape
        np.testing.assert_array_equal(a, b)
    # what is redacted would show it
    secret = zip(*(jax.tree.leaves(state) for _, state in runs), strict=True)
    differs = any(not np.array_equal(a, b, equal_nan=True) for a, b in secret)
    assert differs == (name not in ("once", "histogram", "answers"))
