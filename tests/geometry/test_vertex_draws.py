"""`sample_vertices` draws from the softmax, whatever the logits, in one pass over them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.geometry import L1Ball, Polytope, sample_vertices
from dpjax.geometry._blocks import block_size, stages
from dpjax.random._normal import gumbels
from dpjax.testing import check_distribution, count_false_alarm

from ._laws import POWER, assert_follows, assert_law, law_pvalue, softmax

DRAWS = 100_000
# one, two and three stages, exact and ragged last blocks; 4919 is a prime
SIZES = [2, 50, 1000, 4914, 4919]


def normal_logits(rng, dim, scale=1.0):
    return jnp.asarray(scale * rng.normal(size=dim), jnp.float32)


@pytest.mark.parametrize("dim", SIZES)
def test_law(key, rng, dim):
    logits = normal_logits(rng, dim)
    assert_law(sample_vertices(key, logits, DRAWS), logits)


@pytest.mark.parametrize("dim", SIZES)
def test_uniform_law(key, dim):
    draws = sample_vertices(key, jnp.zeros(dim), DRAWS)
    assert_follows(draws, np.full(dim, 1 / dim))
    tilted = softmax(0.2 * np.sin(np.arange(dim)))
    assert law_pvalue(draws, tilted) < POWER


@pytest.mark.parametrize("dim", [1, 33, 1000])
def test_every_vertex_can_be_drawn_and_excluded_ones_never_are(key, dim):
    chosen = np.unique(np.linspace(0, dim - 1, 120).astype(int))
    alone = jnp.where(jnp.asarray(chosen)[:, None] == jnp.arange(dim)[None], 3.0, -jnp.inf)
    draws = jax.vmap(lambda row: sample_vertices(key, row, 3))(alone)
    np.testing.assert_array_equal(draws, np.repeat(chosen[:, None], 3, 1))


def test_blocks_without_a_vertex(key):
    with jax.debug_nans(True):
        logits = np.full(1000, -np.inf, np.float32)
        logits[[3, 4, 500, 999]] = [0.0, 1.0, 2.0, -1.0]
        assert_law(sample_vertices(key, logits, DRAWS), logits)


def test_extreme_logits(key):
    logits = np.linspace(-300, 0, 1000, dtype=np.float32)
    assert_law(sample_vertices(jax.random.clone(key), logits, DRAWS), logits)
    high = np.array([1e4, 1e4 - 1, -1e4, 1e4 - 2] * 250, np.float32)
    assert_law(sample_vertices(key, high, DRAWS), high)


def test_a_million_equal_logits(key):
    # with default Gumbels and one stage, ties move the mean from 0.5 to 0.485
    dim, count = 10**6, 30_000
    draws = np.asarray(sample_vertices(key, jnp.zeros(dim), count))
    standard_error = math.sqrt(1 / 12 / count)
    count_false_alarm(2e-9)
    assert abs((draws + 0.5).mean() / dim - 0.5) < 6 * standard_error
    check_distribution((draws + 0.5) / dim, stats.uniform.cdf)
    expected = count * (count - 1) / 2 / dim
    repeated = count - np.unique(draws).size
    count_false_alarm(1e-8)
    assert abs(repeated - expected) < 6 * math.sqrt(expected)


@pytest.mark.slow
def test_noise_has_no_ties_in_its_tail(key):
    # of low resolution, they have about a thousand values above 9, none above 16
    noise = np.asarray(gumbels(key, (5_000_000,), jnp.float32))
    tail = noise[noise > 9]
    assert tail.size > 400
    count_false_alarm(1e-9)  # of some 617 floats, 0.1 pairs are equal in the mean
    assert np.unique(tail).size >= tail.size - 5
    default = np.asarray(jax.random.gumbel(jax.random.key(1), noise.shape, jnp.float32, mode="low"))
    assert np.unique(default[default > 9]).size < 0.95 * np.sum(default > 9)


@pytest.mark.parametrize("impl", ["rbg", "threefry2x32"])
def test_gumbels_by_each_generator(impl):
    noise = np.asarray(gumbels(jax.random.key(3, impl=impl), (400, 500), jnp.float32))
    check_distribution(noise.ravel(), stats.gumbel_r.cdf)
    assert np.unique(noise).size > 0.98 * noise.size
    # neither rows nor columns repeat
    assert np.unique(noise[:, 0]).size > 395
    assert np.unique(noise[0]).size > 495


def test_gumbels_are_those_of_jax_of_the_same_words():
    key = jax.random.key(0, impl="rbg")
    theirs = jax.random.gumbel(jax.random.clone(key), (1000,), jnp.float32, mode="high")
    np.testing.assert_allclose(gumbels(key, (1000,), jnp.float32), theirs, rtol=1e-6, atol=1e-6)


def test_draws_of_one_call_are_independent(key, rng):
    dim = 50
    logits = normal_logits(rng, dim)
    draws = np.asarray(sample_vertices(key, logits, DRAWS))
    law = softmax(logits)
    pairs = draws[::2] * dim + draws[1::2]
    assert_follows(pairs, np.outer(law, law).ravel())
    same_block = np.where(np.arange(DRAWS // 2) % 20 == 0, draws[::2] * (dim + 1), pairs)
    assert law_pvalue(same_block, np.outer(law, law).ravel()) < POWER


def test_draws_of_many_keys(rng):
    logits = normal_logits(rng, 50)
    keys = jax.random.split(jax.random.key(7), 20_000)
    draws = jax.vmap(lambda key: sample_vertices(key, logits, 1))(keys)
    assert_law(draws, logits)


def test_relabelled_vertices(key, rng):
    logits = np.asarray(normal_logits(rng, 50))
    order = rng.permutation(50)
    draws = np.asarray(sample_vertices(key, logits[order], DRAWS))
    assert_law(order[draws], logits)
    assert law_pvalue(draws, softmax(logits)) < POWER


def test_common_shift(key, rng):
    logits = np.round(8 * np.asarray(normal_logits(rng, 1000))) / 8
    draws = sample_vertices(jax.random.clone(key), logits, DRAWS)
    shifted = sample_vertices(key, logits + 64, DRAWS)
    assert np.mean(np.asarray(draws) == np.asarray(shifted)) > 0.999
    assert_law(shifted, logits)


@pytest.mark.slow
def test_vmap_equals_loop(rng):
    logits = jnp.asarray(rng.normal(size=(2, 1000)), jnp.float32)
    keys = jax.random.split(jax.random.key(3), 2)
    together = jax.vmap(lambda key, row: sample_vertices(key, row, DRAWS))(keys, logits)
    alone = [sample_vertices(key, row, DRAWS) for key, row in zip(keys, logits, strict=True)]
    np.testing.assert_array_equal(together, jnp.stack(alone))


def test_jit_traces_once_and_same_key_gives_same_draws(key, rng):
    traces = []

    @functools.partial(jax.jit, static_argnames="k")
    def draw(key, logits, k):
        traces.append(None)
        return sample_vertices(key, logits, k)

    logits = normal_logits(rng, 50)
    first = draw(jax.random.clone(key), logits, k=DRAWS)
    again = draw(jax.random.clone(key), logits + 0, k=DRAWS)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(first, sample_vertices(key, logits, DRAWS))
    assert len(traces) == 1
    other = draw(jax.random.key(1), logits, k=DRAWS)
    assert np.any(np.asarray(first) != np.asarray(other))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32"])
def test_dtypes(key, dtype):
    if dtype == "float64" and not jax.config.jax_enable_x64:
        pytest.skip("needs 64 bits")
    logits = (jnp.arange(50) // 8).astype(dtype)
    draws = sample_vertices(key, logits, DRAWS)
    assert draws.dtype == jnp.int32
    assert draws.shape == (DRAWS,)
    assert_law(draws, np.arange(50) // 8)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_improper_logits_give_an_index_in_range(key, bad):
    for logits in (np.full(100, bad), np.where(np.arange(100) == 40, bad, 0.0)):
        draws = np.asarray(sample_vertices(key, jnp.asarray(logits, jnp.float32), 20))
        assert draws.min() >= 0
        assert draws.max() < 100
        key = jax.random.clone(key)
    one_inf = jnp.where(jnp.arange(100) == 40, jnp.inf, 0.0)
    assert np.all(np.asarray(sample_vertices(key, one_inf, 20)) == 40)


@pytest.mark.parametrize(("dim", "radius"), [(1, 0.5), (20, 2.0), (700, 0.5)])
def test_law_on_the_l1_ball(key, rng, dim, radius):
    ball = L1Ball(dim, radius)
    v = normal_logits(rng, dim, 2.0)
    assert_law(ball.sample(key, v, DRAWS), ball.scores(v))


def test_extreme_scores_on_the_l1_ball(key, rng):
    ball = L1Ball(700, 1.0)
    v = np.linspace(-300, 300, 700, dtype=np.float32)
    v[3] = 299.5
    assert_law(ball.sample(key, v, DRAWS), ball.scores(v))


@pytest.mark.slow
def test_l1_ball_vmap_equals_loop(rng):
    v = jnp.asarray(rng.normal(size=(2, 700)), jnp.float32)
    radii = jnp.array([0.5, 2.0])
    keys = jax.random.split(jax.random.key(3), 2)
    together = jax.vmap(lambda key, r, row: L1Ball(700, r).sample(key, row, DRAWS))(keys, radii, v)
    rows = zip(keys, radii, v, strict=True)
    np.testing.assert_array_equal(
        together, jnp.stack([L1Ball(700, float(r)).sample(key, row, DRAWS) for key, r, row in rows])
    )


def test_polytope_draws_from_its_scores(key, rng):
    polytope = Polytope(jnp.asarray(rng.normal(size=(30, 4)), jnp.float32))
    v = normal_logits(rng, 4)
    draws = polytope.sample(jax.random.clone(key), v, 500)
    np.testing.assert_array_equal(draws, sample_vertices(key, polytope.scores(v), 500))


@pytest.mark.parametrize("dim", [1, 40, 64, 65, 97, 1000, 4919, 10**5, 10**6, 10**6 + 3, 10**7])
def test_blocks_are_short_and_whole_where_they_can_be(dim):
    size = block_size(dim)
    assert 32 <= size < 64
    assert dim % size == 0 or all(dim % other for other in range(32, 64))
    sizes = []

    def lengths(logits):
        levels = stages(logits)
        sizes.extend(level.size for level in levels)
        return [level.logits for level in levels]

    shapes = jax.eval_shape(lengths, jax.ShapeDtypeStruct((dim,), jnp.float32))
    counts = [shape.shape[0] for shape in shapes]
    assert counts[0] == sizes[0] <= max(32, dim if dim <= 2 * size else 0)
    assert counts[-1] == dim
    assert all(16 <= size < 32 for size in sizes[1:-1])
    for coarse, fine, block in zip(counts, counts[1:], sizes[1:], strict=False):
        assert coarse == -(-fine // block)


def largest_array(jaxpr):
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [math.prod(v.aval.shape) for v in equation.outvars if hasattr(v.aval, "shape")]
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    sizes.append(largest_array(inner))
    return max(sizes)


def test_memory(key):
    dim, k = 10**6, 64
    v = jax.ShapeDtypeStruct((dim,), jnp.float32)
    for draw in (
        lambda v: sample_vertices(key, v, k),
        lambda v: L1Ball(dim, 2.0).sample(key, v, k),
    ):
        largest = largest_array(jax.make_jaxpr(draw)(v).jaxpr)
        assert dim <= largest <= 2 * dim + 2 * k * math.isqrt(dim)
    # the check sees what it should: one stage of Gumbels for all draws
    whole = jax.make_jaxpr(lambda v: jax.random.categorical(key, v, shape=(k,)))(v)
    assert largest_array(whole.jaxpr) >= k * dim


def test_arguments_are_checked(key):
    with pytest.raises(TypeError, match="typed key"):
        sample_vertices(jax.random.key_data(key), jnp.zeros(3), 1)
    with pytest.raises(ValueError, match=r"k must be >= 1, got 0"):
        sample_vertices(key, jnp.zeros(3), 0)
    with pytest.raises(TypeError, match="k must be an integer"):
        sample_vertices(key, jnp.zeros(3), 1.0)
    for shape in [(), (0,), (2, 2)]:
        with pytest.raises(ValueError, match=r"logits must be a vector of >= 1 entries, got shape"):
            sample_vertices(key, jnp.zeros(shape), 1)
    with pytest.raises(ValueError, match=r"v must have shape \[3\], got \[4\]"):
        L1Ball(3).sample(key, jnp.zeros(4), 1)
    with pytest.raises(ValueError, match=r"k must be >= 1, got -1"):
        L1Ball(3).sample(key, jnp.zeros(3), -1)
