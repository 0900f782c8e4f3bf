"""Query release with Gaussian noise: what is measured moves no further than the guarantee says."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from query_runs import (
    ADD,
    MARGINALS,
    RECORDS,
    REPLACE,
    SPECIAL,
    UNUSUAL,
    drawing,
    neighbours,
    noising,
    records,
    targets,
)
from scipy import special

import dpjax
from dpjax.privacy import bounded_range_rho
from dpjax.problems import QueryRelease
from dpjax.queries import Dense
from dpjax.sampling import FullBatch
from dpjax.solvers import MWEM, GaussianFit, HistogramRelease, MirrorDescentRelease
from dpjax.testing._trees import QUICK

MU = 0.9
EPSILONS = (0.0, 0.5, 1.0, 2.0, 3.0)


def curve(mu, epsilon):
    """The exact delta of two unit normals this far apart."""
    low = special.ndtr(-epsilon / mu - mu / 2)
    return special.ndtr(-epsilon / mu + mu / 2) - math.exp(epsilon) * low


# One release: centres in units of the noise, of every data set.


def once(relation, kind):
    """A solver of true mu `MU`, and what takes noise out of its state."""
    problem = QueryRelease(UNUSUAL if kind == "dense" else MARGINALS)
    common = {"num_records": float(RECORDS), "relation": relation}
    replaced = relation == REPLACE
    if kind == "marginals":  # each table moves by sqrt 2 or 1
        stddev = np.array([1.0, 2.0, 0.5])
        moved = math.sqrt((2 if replaced else 1) * np.sum(1 / stddev**2))
        stddev = stddev * moved / (RECORDS * MU)
        return problem, GaussianFit(FullBatch(1), MARGINALS, stddev, fit_steps=1, **common)
    if kind == "dense":  # the largest distance of two columns, or norm of one, by hand
        columns = np.array([[7, -3, 2, 2], [5, 6, 7, 5], [-4, -8, -5, -6]], float).T
        norms = [np.linalg.norm(a - (b if replaced else 0)) for a in columns for b in columns]
        stddev = max(norms) / (RECORDS * MU)
        return problem, GaussianFit(FullBatch(1), UNUSUAL, stddev, fit_steps=1, **common)
    stddev = (math.sqrt(2) if replaced else 1) / (RECORDS * MU)
    if kind == "histogram":
        return problem, HistogramRelease(FullBatch(1), stddev, **common)
    steps = 4 if kind == "per-step" else 1
    bound = problem.sensitivity(relation).score_range
    fields = {"alpha": 0.4, "offset": 1.0, "score_range": bound, "noise": kind}
    stddev *= math.sqrt(steps)
    sampler = FullBatch(3 if kind == "histogram-once" else steps)
    return problem, MirrorDescentRelease(sampler, stddev, **common, **fields)


def released(problem, solver, data, noise):
    """What a method shows of its noisy answers, or histogram, with this noise."""
    state = solver.init(problem, key=jax.random.key(0))

    def plus(key, values, stddev):
        assert values.shape == noise.shape  # each its own
        return values + stddev * noise

    with noising(plus):
        if not isinstance(solver, MirrorDescentRelease):
            return solver.step(problem, data, jnp.ones(len(data), bool), state)[0][0]
        state = solver.prologue(problem, data, state)
        return solver.noisy_answers(problem, state)


def distances(problem, solver, relation):
    """How far apart neighbours are, in units of the noise of one release."""
    size = problem.workload.num_queries if isinstance(solver, GaussianFit) else 4
    sets, pairs = neighbours(problem.workload, relation)

    @jax.vmap
    def each(data):
        def show(noise):
            return released(problem, solver, data, noise)

        return show(jnp.zeros(size)), jax.jacfwd(show)(jnp.zeros(size))

    run = jax.jit(each, compiler_options=QUICK)
    made = [run(records(problem.workload, np.array(group))) for group in sets]
    means, slopes = (np.concatenate(leaves).astype(float) for leaves in zip(*made, strict=True))
    np.testing.assert_allclose(slopes, slopes[:1].repeat(len(slopes), axis=0), rtol=1e-5)
    back, moved = np.linalg.pinv(slopes[0], rcond=1e-5), means[pairs[:, 0]] - means[pairs[:, 1]]
    # all that tells data sets apart is hidden by the noise
    np.testing.assert_allclose(moved @ (slopes[0] @ back).T, moved, atol=1e-4)
    return np.linalg.norm(moved @ back.T, axis=1)


@pytest.mark.always  # noise as claimed
@pytest.mark.parametrize("relation", [REPLACE, ADD])
@pytest.mark.parametrize("kind", ["marginals", "dense", "histogram", "histogram-once", "per-step"])
def test_neighbours_are_as_far_apart_as_the_event_says(kind, relation):
    problem, solver = once(relation, kind)
    times = 4 if kind == "per-step" else 1
    found = distances(problem, solver, relation) * math.sqrt(times)
    assert found.max() == pytest.approx(MU, rel=1e-4)
    guarantee = solver.guarantee()
    for epsilon in EPSILONS:
        exact = curve(MU, epsilon)
        assert exact * (1 - 1e-9) <= guarantee.delta(epsilon) <= exact * 1.001 + 1e-9


# Selections and measurements in turn: the exact law of two steps.

PAIR = Dense(np.array([[7.0, -3, 2], [2, 6, 4]], np.float32))


def mwem(relation):
    problem = QueryRelease(PAIR)
    told = problem.sensitivity(relation)
    scale, stddev = told.score_range / RECORDS, told.linf / RECORDS  # eta and the shift are 1
    bounds = float(RECORDS), told.score_range, told.linf
    return problem, MWEM(FullBatch(2), scale, stddev, *bounds, 0.3, 2, relation)


def two_steps(problem, solver, secret):
    """Logs of the first law `[D, 2m]`, centres `[D, m]`, of the next `[D, m, grid, 2m]`; grid."""
    m = problem.workload.num_queries

    def run(secret, first, value):
        state, laws, told = solver.init(problem, key=jax.random.key(0))._replace(**secret), [], []

        def sample(key, logits, k):
            laws.append(jax.nn.log_softmax(logits))
            return jnp.asarray(first, jnp.int32)[None]

        with drawing(sample):
            for unit in (0.0, 1.0, None):
                used = (value - told[0]) / (told[1] - told[0]) if unit is None else unit
                with noising(lambda key, values, stddev, u=used: values + stddev * u):
                    after, info = solver.step(problem, None, None, state)
                told.append(info.measured)
            solver.step(problem, None, None, after)
        return laws[0], told[0], told[1] - told[0], laws[-1], told[2]

    alone = jax.vmap(jax.vmap(run, (None, 0, None)), (0, None, None))
    queries = jnp.arange(m)
    first, means, stddev, _, _ = jax.jit(alone, compiler_options=QUICK)(secret, queries, 0.0)
    np.testing.assert_allclose(stddev, solver.stddev, rtol=1e-5)
    reach = 7 * solver.stddev
    grid = np.linspace(means.min() - reach, means.max() + reach, 601)
    whole = jax.vmap(jax.vmap(jax.vmap(run, (None, None, 0)), (None, 0, None)), (0, None, None))
    *_, second, value = jax.jit(whole, compiler_options=QUICK)(secret, queries, jnp.asarray(grid))
    np.testing.assert_allclose(value, np.broadcast_to(grid, value.shape), atol=1e-4)
    return *(np.asarray(a, float) for a in (first[:, 0], means, second)), grid


def divergence(law, i, j, stddev, epsilon):
    """Hockey stick of data set i from j: the last measurement in closed form, the first summed."""
    first, means, second, grid = law
    first, second = (np.exp(a).reshape(*a.shape[:-1], 2, -1).sum(axis=-2) for a in (first, second))
    centred = (grid - means[:, :, None]) / stddev
    density = np.exp(-(centred**2) / 2) / math.sqrt(2 * math.pi) * (grid[1] - grid[0]) / stddev
    joint = (first[:, :, None] * density)[..., None] * second  # [D, m, grid, m]
    assert joint.sum(axis=(1, 2, 3)) == pytest.approx(1, abs=1e-4)
    p, q = joint[i], math.exp(epsilon) * joint[j]
    shift = np.maximum(np.abs(means[i] - means[j]) / stddev, 1e-9)
    reach = np.log(np.maximum(p, 1e-300) / np.maximum(q, 1e-300)) / shift + shift / 2
    return float(np.sum(p * special.ndtr(reach) - q * special.ndtr(reach - shift)))


@pytest.mark.slow
@pytest.mark.parametrize("relation", [REPLACE, ADD, pytest.param(SPECIAL, marks=pytest.mark.slow)])
def test_selections_and_measurements_together_are_within_their_guarantee(relation):
    problem, solver = mwem(relation)
    sets, pairs = neighbours(PAIR, relation)
    law = two_steps(problem, solver, targets(solver, problem, sets))
    guarantee = solver.guarantee()
    for epsilon in EPSILONS:
        both = np.concatenate([pairs, pairs[:, ::-1]])
        exact = max(divergence(law, *pair, solver.stddev, epsilon) for pair in both)
        assert exact <= guarantee.delta(epsilon) + 1e-6
    # the sizes of both parts are reached, and are those of the event
    (first, means, second, _), (i, j) = law, pairs.T
    for logs in (first, second):
        assert np.ptp(logs[i] - logs[j], axis=-1).max() == pytest.approx(1, rel=1e-4)
    assert np.abs(means[i] - means[j]).max() / solver.stddev == pytest.approx(1, rel=1e-4)
    drawn, measured = guarantee.event.event.events
    assert drawn.rho == pytest.approx(bounded_range_rho(1.0))
    assert measured.noise_multiplier == pytest.approx(2 if relation == REPLACE else 1)
    assert guarantee.event.count == 2


def test_measurements_that_float32_rounds_are_refused():
    """Also those of another workload than the one asked for."""
    if jax.config.jax_enable_x64:
        pytest.skip("float64 holds them")
    problem = QueryRelease(Dense(np.eye(2, dtype=np.float32)))
    far = Dense(np.array([[1e6, 1e6 + 1]], np.float32))
    budget = dpjax.Budget(1.0, 1e-6)
    with pytest.raises(ValueError, match="centre the queries"):
        GaussianFit.for_budget(problem, 1000, budget, measured=far)
    with pytest.raises(ValueError, match="centre the queries"):
        GaussianFit(FullBatch(1), far, 1.0, 1000).guarantee()
