import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
import dpjax.testing as dpt
from dpjax.geometry import entropic
from dpjax.papers.estimators import Multilevel, draw_levels, multilevel
from dpjax.transforms import mirror_step

DIM = 3
BOTH = pytest.mark.parametrize("antithetic", [False, True])
# a cubic: its gradient is linear + b + half of T[x, x]
_RNG = np.random.default_rng(0)
_CUBE = _RNG.normal(size=(DIM, DIM, DIM))
CUBE = sum(np.transpose(_CUBE, p) for p in itertools.permutations(range(3))) / 6
LINEAR = _CUBE[0] + _CUBE[0].T
LAW = np.array([0.5, 0.3, 0.2])


def gradient(x, cube=CUBE):
    """Gradients of the cubic at points [..., DIM]."""
    return 0.5 * np.einsum("jab,...a,...b->...j", cube, x, x) + x @ LINEAR + 1.0


def constant(max_level):
    return 2 - 2.0**-max_level


@functools.lru_cache
def law_of_estimates(max_level, antithetic, cube=1.0):
    """All outcomes: estimates [levels, draws, DIM], and their probabilities [levels, draws]."""
    estimator = multilevel(max_level, antithetic)
    draws = np.array(list(itertools.product(range(DIM), repeat=estimator.num_draws)))
    unit = np.eye(DIM)[draws]
    levels = jnp.arange(max_level + 1)
    weights = np.asarray(jax.jit(jax.vmap(estimator.weights))(levels), np.float64)
    points = np.einsum("lpk,nkd->lnpd", weights, unit)
    gradients = jnp.asarray(gradient(points, cube * CUBE), float)

    def combine(level, g):
        return estimator.update(g, estimator.init(None), level=level)[0]

    estimates = jax.jit(jax.vmap(jax.vmap(combine, (None, 0))))(levels, gradients)
    chances = estimator.probabilities[:, None] * np.prod(LAW[draws], axis=1)[None]
    return np.asarray(estimates, np.float64), chances


@BOTH
@pytest.mark.parametrize("max_level", [0, 1, 2])
def test_mean_is_that_of_all_draws(max_level, antithetic):
    """Exactly, by summing over every pool of draws and every level."""
    estimates, chances = law_of_estimates(max_level, antithetic)
    np.testing.assert_allclose(chances.sum(), 1, rtol=1e-12)
    mean = np.einsum("lnd,ln->d", estimates, chances)
    covariance = np.diag(LAW) - np.outer(LAW, LAW)
    draws = 2 ** (max_level + 1)
    want = gradient(LAW) + np.einsum("jab,ab->j", CUBE, covariance) / (2 * draws)
    np.testing.assert_allclose(mean, want, rtol=1e-5)
    # and not that of half or of twice as many draws
    for other in (draws / 2, draws * 2):
        off = gradient(LAW) + np.einsum("jab,ab->j", CUBE, covariance) / (2 * other)
        assert np.max(np.abs(mean - off)) > 1e-3


def second_moment(max_level, antithetic, cube):
    estimates, chances = law_of_estimates(max_level, antithetic, cube)
    centred = estimates - gradient(LAW, cube * CUBE)
    return np.einsum("lnd,ln->", centred**2, chances)


def test_antithetic_has_the_smaller_second_moment():
    plain, antithetic = (second_moment(2, a, 1.0) for a in (False, True))
    assert antithetic < 0.8 * plain
    # of a quadratic nothing is left but the first draw
    plain, antithetic = (second_moment(2, a, 0.0) for a in (False, True))
    first = np.einsum(
        "jd,d->", (gradient(np.eye(DIM), 0 * CUBE) - gradient(LAW, 0 * CUBE)).T ** 2, LAW
    )
    np.testing.assert_allclose(antithetic, first, rtol=1e-4)
    assert antithetic < 0.6 * plain


def test_second_moment_grows_with_the_number_of_levels():
    """For a linear gradient the difference has second moment C_M (M + 1) / 2 that of one draw."""
    one = np.einsum("jd,d->", ((np.eye(DIM) - LAW) @ LINEAR).T ** 2, LAW)
    for max_level in (0, 1, 2):
        estimates, chances = law_of_estimates(max_level, False, 0.0)
        draws = np.array(list(itertools.product(range(DIM), repeat=2 ** (max_level + 1))))
        step = estimates - gradient(np.eye(DIM), 0 * CUBE)[draws[:, 0]]
        got = np.einsum("lnd,ln->", step**2, chances)
        np.testing.assert_allclose(got, constant(max_level) * (max_level + 1) / 2 * one, rtol=1e-4)


@BOTH
def test_points_are_means_of_leading_draws(antithetic):
    estimator = multilevel(3, antithetic)
    assert (estimator.num_draws, estimator.num_points) == (16, 4 if antithetic else 3)
    traced = jax.jit(estimator.weights)
    for level in range(4):
        size = 2**level
        rows = np.zeros((estimator.num_points, 16))
        rows[0, : 2 * size] = 1 / (2 * size)
        rows[1, :size] = 1 / size
        if antithetic:
            rows[2, size : 2 * size] = 1 / size
        rows[-1, 0] = 1
        np.testing.assert_array_equal(estimator.weights(level), rows)
        np.testing.assert_array_equal(traced(jnp.asarray(level)), rows)


def merged(estimator, level):
    """Which points are one and the same, for draws that all differ: their classes, [P]."""
    weights = np.asarray(estimator.weights(level))
    return np.unique(weights, axis=0, return_inverse=True)[1].reshape(-1)


@BOTH
@pytest.mark.parametrize("max_level", [0, 1, 2, 6])
def test_factor_is_reached_and_never_exceeded(rng, max_level, antithetic):
    """Gradients of range 1, equal at equal points: all extreme ones, and others at random."""
    estimator = multilevel(max_level, antithetic)
    update = jax.jit(jax.vmap(lambda g, at: estimator.update(g, (), level=at)[0], (0, None)))
    for level in range(max_level + 1):
        classes = merged(estimator, level)
        count = classes.max() + 1
        assert count == (estimator.num_points if level else 2 if not antithetic else 3)
        signs = np.array(list(itertools.product([-0.5, 0.5], repeat=count)))[:, classes]
        extreme = np.stack([signs, -signs, 0 * signs], axis=-1)
        inner = rng.uniform(size=(2000, count, 3))[:, classes]
        inner = inner / np.ptp(inner, axis=-1, keepdims=True) + rng.normal(size=(2000, 1, 1))
        ranges = [
            np.ptp(np.asarray(update(jnp.asarray(g, float), level), np.float64), axis=1).max()
            for g in (extreme, inner)
        ]
        factor = estimator.factor(level)
        np.testing.assert_allclose(ranges[0], factor, rtol=1e-6)
        assert ranges[1] <= factor * (1 + 1e-5)
        # batches of `records` make all levels as sensitive as one unit, nearly
        ratio = factor / estimator.records(level)
        assert ratio <= 1
        if max_level == 6:
            assert ratio > 0.98


def test_factors_and_records():
    assert [multilevel(2).factor(n) for n in range(3)] == [2.5, 8.0, 15.0]
    assert [multilevel(2, antithetic=True).factor(n) for n in range(3)] == [2.75, 8.0, 15.0]
    assert [multilevel(2).records(n) for n in range(3)] == [3, 9, 17]


def change_of_scores(estimator, level, pool):
    """Of log cosh(s (x_1 - x_2 - c)) / s: a record's gradient is tanh of either sign."""
    draws = np.eye(2)[pool + [0] * (estimator.num_draws - len(pool))]
    points = np.asarray(estimator.weights(level), np.float64) @ draws
    values = points[:, 0] - points[:, 1]
    threshold = (values[0] + values[1:-1].min()) / 2  # the fine point above, a coarse one below
    slope = np.tanh(1e4 * (values - threshold))
    records = np.stack([slope, -slope], axis=1), np.stack([-slope, slope], axis=1)
    moved = [estimator.update(jnp.asarray(g, float), (), level=level)[0] for g in records]
    return float(jnp.max(jnp.abs(moved[0] - moved[1])))


@pytest.mark.parametrize(
    ("antithetic", "level", "pool", "want"),
    [
        (False, 0, [1, 0], 5.9375),
        (False, 1, [0, 1, 0, 0], 8.9375),
        (False, 2, [0, 1, 1, 1, 0, 0, 0, 0], 8.4375),
        (True, 0, [0, 1], 5.96875),
    ],
)
def test_steep_gradients_reach_the_largest_change_of_scores(antithetic, level, pool, want):
    """A batch of 2^N records, one replaced: 6, 9, 8.5 times step size and bound, but for 2^-M."""
    estimator = multilevel(6, antithetic)
    change = change_of_scores(estimator, level, pool) / 2**level
    np.testing.assert_allclose(change, want, atol=5e-4)
    np.testing.assert_allclose(2 * estimator.factor(level) / 2**level, want, rtol=1e-12)


def test_levels_have_their_law():
    levels = draw_levels(0, 3, 20_000)
    assert levels.dtype == np.int32
    estimator = multilevel(3)
    np.testing.assert_allclose(estimator.probabilities, np.array([8, 4, 2, 1]) / 15, rtol=1e-15)
    dpt.check_counts(np.bincount(levels, minlength=4), estimator.probabilities)
    for other in (0.4, 0.6):
        with pytest.raises(AssertionError):
            dpt.check_counts(np.bincount(levels, minlength=4), other ** np.arange(4))
    for max_level in range(8):
        size = np.exp2(np.arange(max_level + 1))
        mean = size @ multilevel(max_level).probabilities
        np.testing.assert_allclose(mean, (max_level + 1) / constant(max_level), rtol=1e-14)
    np.testing.assert_array_equal(draw_levels(np.random.default_rng(0), 3, 5), levels[:5])


def test_runs_in_a_chain_and_is_static(key):
    estimator = multilevel(2)
    assert estimator == multilevel(2)
    assert hash(estimator) == hash(Multilevel(2, False))
    chain = dpjax.chain(estimator.transform, mirror_step(entropic(), 0.1))
    coords = entropic().init(jnp.zeros(3))
    gradients = jnp.asarray(np.arange(9.0).reshape(3, 3) ** 2)
    updates, _ = chain.update(gradients, chain.init(coords), coords, level=1, key=key)
    estimate, _ = estimator.update(gradients, (), level=1)
    after = jax.nn.softmax(coords - 0.1 * estimate)
    np.testing.assert_allclose(jnp.exp(coords + updates), after, rtol=1e-5)


def test_small_types_are_combined_in_float32():
    g = jnp.asarray([256.0, 255.0, 1.0], jnp.bfloat16)[:, None]
    out, _ = multilevel(0).update(g, (), level=0)
    assert out.dtype == jnp.bfloat16
    assert float(out[0]) == 2.0


def test_errors():
    with pytest.raises(ValueError, match="max_level must be >= 0, got -1"):
        multilevel(-1)
    with pytest.raises(ValueError, match="size must be >= 0"):
        draw_levels(0, 1, -1)
    estimator = multilevel(2)
    for call in (estimator.weights, estimator.factor, estimator.records):
        for bad in (-1, 3):
            with pytest.raises(ValueError, match=rf"level must lie in 0..2, got {bad}"):
                call(bad)
    with pytest.raises(ValueError, match=r"updates must have shape \[3, 5\], got \[4, 5\]"):
        estimator.update(jnp.zeros((4, 5)), (), level=0)
