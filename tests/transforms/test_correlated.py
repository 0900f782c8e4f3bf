import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from noise_maps import noise_map
from scipy import stats

import dpjax
import dpjax.testing as dpt
from dpjax.testing._trees import QUICK
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    NoiseStrategy,
    correlated_noise,
    tree_aggregation,
)

STEPS = 11
STRATEGIES = {
    "tree": BinaryTree(STEPS),
    "growing": BinaryTree(STEPS, exponent=1.0),
    "reduced": BinaryTree(STEPS, variance_reduced=True),
    "toeplitz": BufferedToeplitz(STEPS),
}
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def scan(strategy, updates, key, sensitivity, stddev=1.0):
    noise = correlated_noise(strategy, stddev)

    def body(state, xs):
        out, state = noise.update(xs[0], state, key=key, sensitivity=xs[1])
        return state, out

    start = noise.init(jax.tree.map(lambda leaf: leaf[0], updates))
    return jax.lax.scan(body, start, (updates, sensitivity))[1]


DRAWS, PAST = 4000, STEPS + 2  # one shape, and so one program for each strategy


@each_strategy
@pytest.mark.always  # the claim
def test_prefixes_have_the_covariance_that_is_told(strategy, key):
    scales = np.linspace(0.5, 2.0, STEPS)
    sensitivity = jnp.asarray(np.append(scales, [1.0, 1.0]))
    steps = scan(strategy, jnp.zeros((PAST, DRAWS)), key, sensitivity, 1.5)
    assert np.all(np.isnan(steps[STEPS:]))
    prefixes = np.cumsum(steps[:STEPS], axis=0)
    sizes = 1.5 * strategy.prefix_stddev(scales)
    for t in (0, 6, STEPS - 1):
        dpt.check_scale(prefixes[t], lambda s: stats.norm(scale=s).cdf, sizes[t])
    matrix = 1.5 * noise_map(strategy, scales)
    off = np.abs(np.cov(prefixes) - matrix @ matrix.T)
    dpt.count_false_alarm(1e-7)  # of all entries: of a variance, 9 / sqrt(n) is 6.4 deviations
    np.testing.assert_array_less(off, 9 / DRAWS**0.5 * np.outer(sizes, sizes))


@each_strategy
def test_no_noise_leaves_sums_as_they_are(strategy, key):
    updates = jnp.arange(float(PAST * DRAWS)).reshape(PAST, DRAWS)
    for stddev, sensitivity in ((0.0, jnp.ones(PAST)), (1.0, jnp.zeros(PAST))):
        out = scan(strategy, updates, key, sensitivity, stddev)
        np.testing.assert_array_equal(out[:STEPS], updates[:STEPS])


@each_strategy
def test_wrong_scales_are_nan(strategy, key):
    for wrong in (-1.0, jnp.nan):
        sensitivity = jnp.ones(PAST).at[3].set(wrong)
        out = scan(strategy, jnp.zeros((PAST, DRAWS)), key, sensitivity, 1.0)
        assert np.all(np.isfinite(out[:3]))
        assert np.all(np.isnan(out[3]))


@pytest.mark.parametrize("name", ["reduced", "toeplitz"])
def test_trace_gives_the_prefix_sums(name, key):
    strategy = STRATEGIES[name]
    private_sum = dpjax.chain(correlated_noise(strategy, 0.5), optax.trace(decay=1.0))
    state, noise = private_sum.init(jnp.zeros(4)), jnp.zeros(4)
    inner = correlated_noise(strategy, 0.5)
    inner_state = inner.init(jnp.zeros(4))
    update = jax.jit(private_sum.update)
    inner_update = jax.jit(inner.update)
    for t in range(1, 5):
        total, state = update(jnp.full(4, 2.0), state, key=key)
        step, inner_state = inner_update(jnp.zeros(4), inner_state, key=jax.random.fold_in(key, 0))
        noise += step
        np.testing.assert_allclose(total, 2.0 * t + noise, rtol=1e-5, atol=1e-5)


def test_plain_tree_by_both_transformations(key):
    updates = jnp.arange(3.0 * STEPS).reshape(STEPS, 3)
    steps = scan(BinaryTree(STEPS), updates, key, jnp.ones(STEPS), 0.5)
    aggregation = tree_aggregation(0.5 * np.sqrt(4), STEPS)
    state = aggregation.init(updates[0])
    update = jax.jit(aggregation.update)
    for t, u in enumerate(updates):
        total, state = update(u, state, key=key)
        # each step is rounded to a grid of its own scale
        np.testing.assert_allclose(
            total, np.cumsum(steps, axis=0)[t], rtol=1e-5, atol=(t + 1) / 1024
        )


def test_a_restored_state_goes_on_bit_for_bit(key):
    like = {"a": jnp.zeros((2, 2)), "b": jnp.zeros(3)}
    noise = tree_aggregation(1.0, STEPS, variance_reduced=True)
    update = jax.jit(noise.update)
    state = noise.init(like)
    for t in range(STEPS):
        if t == 5:
            leaves, treedef = jax.tree.flatten(state)
            saved = treedef, [np.asarray(leaf).tobytes() for leaf in leaves], leaves
        out, state = update(like, state, key=key)
    treedef, blobs, leaves = saved
    state = treedef.unflatten(
        jnp.asarray(np.frombuffer(blob, leaf.dtype).reshape(leaf.shape))
        for blob, leaf in zip(blobs, leaves, strict=True)
    )
    for _ in range(5, STEPS):
        again, state = update(like, state, key=key)
    for name, leaf in out.items():
        np.testing.assert_array_equal(again[name], leaf)


def test_vmap_over_keys_and_multipliers():
    def run(key, stddev):
        return scan(BufferedToeplitz(STEPS), jnp.ones((STEPS, 2)), key, jnp.ones(STEPS), stddev)

    keys = jax.random.split(jax.random.key(1), 2)
    stddevs = jnp.array([0.5, 2.0])
    both = jax.vmap(run)(keys, stddevs)
    for i in range(2):
        np.testing.assert_allclose(both[i], run(keys[i], stddevs[i]), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@pytest.mark.parametrize("name", ["tree", "toeplitz", "aggregation"])
def test_noise_is_wide_and_given_back_as_it_came(name, dtype, key):
    like = jnp.zeros(3, dtype)
    if name == "aggregation":
        noise = tree_aggregation(1.0, STEPS)
    else:
        noise = correlated_noise(STRATEGIES[name])
    state = noise.init(like)
    out, after = jax.eval_shape(lambda state: noise.update(like, state, key=key), state)
    assert out.dtype == dtype
    floats = [leaf.dtype for leaf in jax.tree.leaves(after) if leaf.ndim]
    assert all(d in (jnp.promote_types(dtype, "float32"), jnp.float64) for d in floats)
    assert jax.tree.map(lambda leaf: leaf.dtype, state) == jax.tree.map(lambda s: s.dtype, after)


def test_sums_of_narrow_updates_are_kept_wide(key):
    aggregation = tree_aggregation(0.0, 1000)
    state = aggregation.init(jnp.zeros((), jnp.bfloat16))

    def body(state, _):
        out, state = aggregation.update(jnp.ones((), jnp.bfloat16), state, key=key)
        return state, out

    out = jax.lax.scan(body, state, None, length=1000)[1]
    assert out.dtype == jnp.bfloat16
    assert float(out[-1]) == 1000  # bfloat16 alone stays at 256


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["tree", "growing", "toeplitz"])
def test_a_neighbour_makes_the_same_outputs_with_other_noise(name):
    """White box, fully adaptive: updates and their sensitivities follow the noisy sums."""
    strategy, multiplier = STRATEGIES[name], 0.8
    rng = np.random.default_rng(1)
    data, draws = rng.normal(size=(STEPS, 2)), rng.normal(size=(STEPS, 2))
    other = rng.normal(size=2)

    def clipped(v, bound):
        return v * min(1.0, bound / np.linalg.norm(v))

    def step(state, draw, scale):
        return strategy.next(lambda level: jnp.asarray(draw), jnp.asarray(scale), state)

    step = jax.jit(step, compiler_options=QUICK)

    def replay(changed, draws_of):
        state, total, totals, scales = strategy.init(jnp.zeros(2)), np.zeros(2), [], []
        for t in range(STEPS):
            sensitivity = (1 + t) * (0.1 + np.abs(total[0]))  # of what is released alone
            record = other if t == changed else data[t]
            update = clipped(record * (3 + total), sensitivity)
            if t == changed:
                update = 0 * update  # the null record
            scales.append(multiplier * sensitivity)
            noise, state = step(state, draws_of(t, scales, update, total), scales[-1])
            total = total + update + np.asarray(noise)
            totals.append(total)
        return np.array(totals), np.array(scales)

    before, scales = replay(None, lambda t, *_: draws[t])
    matrix = noise_map(strategy, scales)
    for q in (0, 3, STEPS - 1):
        sensitivity = scales[q] / multiplier
        past = np.zeros(2) if q == 0 else before[q - 1]
        lost = clipped(data[q] * (3 + past), sensitivity)
        shift = np.linalg.solve(matrix, (np.arange(STEPS) >= q)[:, None] * lost)
        after, _ = replay(q, lambda t, *_, shift=shift: draws[t] + shift[t])
        np.testing.assert_allclose(after, before, rtol=1e-9)
        assert np.linalg.norm(shift) <= 1 / multiplier * (1 + 1e-9)


@pytest.mark.slow
def test_long_vectors_have_the_same_noise(key, unrounded_steps):
    """Above the size where steps are compiled another way on CPU."""
    for strategy in (STRATEGIES["tree"], STRATEGIES["toeplitz"], STRATEGIES["reduced"]):
        out = scan(strategy, jnp.zeros((STEPS + 1, 2**14, 1)), key, jnp.ones(STEPS + 1))
        want = noise_map(strategy, np.ones(STEPS))
        plain = np.diff(want, axis=0, prepend=0)
        assert np.all(np.isfinite(out[:STEPS]))
        assert np.all(np.isnan(out[STEPS]))
        if strategy is not STRATEGIES["reduced"]:
            drawn = np.stack(
                [strategy.noise(jax.random.fold_in(key, t), out[0])[:, 0] for t in range(STEPS)]
            )
            np.testing.assert_allclose(out[:STEPS, :, 0], plain @ drawn, atol=2e-4)


def test_strategies_are_values():
    for strategy in STRATEGIES.values():
        assert isinstance(strategy, NoiseStrategy)
        assert not jax.tree.leaves(strategy)
    assert hash(BufferedToeplitz(STEPS)) == hash(STRATEGIES["toeplitz"])
    assert BinaryTree(STEPS) == STRATEGIES["tree"] != STRATEGIES["growing"]


def test_wrong_arguments(key):
    with pytest.raises(TypeError, match="strategy"):
        correlated_noise(3.0)
    with pytest.raises(ValueError, match="stddev must be >= 0, got -1"):
        correlated_noise(STRATEGIES["tree"], -1.0)
    noise = correlated_noise(STRATEGIES["tree"])
    state = noise.init(jnp.zeros(2))
    with pytest.raises(ValueError, match="sensitivity must be >= 0, got -1"):
        noise.update(jnp.zeros(2), state, key=key, sensitivity=-1.0)
    with pytest.raises(TypeError, match="key"):
        noise.update(jnp.zeros(2), state)
    aggregation = tree_aggregation(1.0, 3)
    with pytest.raises(ValueError, match="sensitivity"):
        aggregation.update(
            jnp.zeros(2), aggregation.init(jnp.zeros(2)), key=key, sensitivity=jnp.inf
        )


@pytest.mark.parametrize(
    "transform",
    [
        tree_aggregation(1.0, 4),
        correlated_noise(BufferedToeplitz(4)),
        correlated_noise(BinaryTree(4)),
    ],
)
def test_entries_never_share_noise_by_broadcasting(transform):
    state = transform.init(jnp.zeros((3, 1)))
    with pytest.raises((TypeError, ValueError), match="shape"):
        transform.update(jnp.zeros((1, 3)), state, key=jax.random.key(0))
