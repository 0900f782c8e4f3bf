"""Private sums that start anew: noise at every step, fresh in every period."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noise_maps import noise_map
from scipy import stats

import dpjax.testing as dpt
from dpjax.papers.nonsmooth_nonconvex import PublishedOnlineToNonconvex
from dpjax.sampling import DisjointPartition
from dpjax.testing._trees import QUICK
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    RestartNoise,
    SplitNoise,
    correlated_noise,
    restarted_sums,
)

SLOW = [pytest.mark.slow]
STRATEGIES = {
    "one": SplitNoise(1, 1.0),
    "tree of 4": BinaryTree(4),
    "tree of 5": BinaryTree(5),
    "toeplitz": BufferedToeplitz(3),
    "split": SplitNoise(3),
    "restart": RestartNoise(BufferedToeplitz(2)),
}
each_strategy = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("one", "tree of 4", "restart") else SLOW)
        for name in STRATEGIES
    ],
)


def run(strategy, stddev, updates, key, scales=None):
    """All sums."""
    sums = restarted_sums(strategy, stddev)
    count = jax.tree.leaves(updates)[0].shape[0]
    scales = np.ones(count, np.float32) if scales is None else scales

    @functools.partial(jax.jit, compiler_options=QUICK)
    def scan(updates, scales):
        def body(state, x):
            out, state = sums.update(x[0], state, key=key, sensitivity=x[1])
            return state, out

        start = sums.init(jax.tree.map(lambda u: u[0], updates))
        return jax.lax.scan(body, start, (updates, scales))

    return jax.tree.map(np.asarray, scan(updates, scales))


@pytest.mark.slow
@each_strategy
def test_every_period_is_one_run_of_correlated_noise_with_a_key_of_its_own(name, key, rng):
    strategy = STRATEGIES[name]
    period, count = strategy.num_steps, 3 * strategy.num_steps + 1
    updates = {"a": rng.normal(size=(count, 2)), "b": rng.normal(size=(count, 1, 3))}
    updates = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), updates)
    scales = rng.uniform(0.5, 2.0, count).astype(np.float32)
    state, got = run(strategy, 1.3, updates, key, scales)
    assert state.count == count
    noise = correlated_noise(strategy, 1.3)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def one(period_key, updates, scales):
        def body(state, x):
            out, state = noise.update(x[0], state, key=period_key, sensitivity=x[1])
            return state, out

        like = jax.tree.map(lambda u: u[0], updates)
        return jax.lax.scan(body, noise.init(like), (updates, scales))[1]

    for start in range(0, count - 1, period):
        here = slice(start, start + period)
        own = jax.random.fold_in(key, start // period)
        steps = one(own, jax.tree.map(lambda u, h=here: u[h], updates), scales[here])
        for leaf in "ab":
            np.testing.assert_allclose(
                got[leaf][here], np.cumsum(steps[leaf], axis=0), rtol=1e-4, atol=1e-5
            )
    # the first sum of the fourth period holds nothing of the third
    assert np.abs(got["a"][-1] - updates["a"][-1]).max() < 8 * 1.3 * 2 * 3**0.5


@each_strategy
@pytest.mark.once  # the claim
def test_every_sum_has_the_noise_that_is_due_independent_of_other_periods(name, key):
    strategy = STRATEGIES[name]
    period = strategy.num_steps
    zeros = jnp.zeros((3 * period, 3000))
    scales = np.tile(np.linspace(2.0, 0.5, period), 3).astype(np.float32)
    _, sums = run(strategy, 1.7, zeros, key, scales)
    want = 1.7 * strategy.prefix_stddev(scales[:period])
    assert (want > 0).all()  # the last of a period too, where "t mod period" would be 0
    for t in (0, period - 1, period, 2 * period - 1):
        dpt.check_scale(sums[t], lambda s: stats.norm(scale=s).cdf, want[t % period])
    for t in range(period):  # with the noise of the first period again it could be subtracted
        dpt.check_uncorrelated(sums[t], sums[t + period])
        dpt.check_uncorrelated(sums[t + period], sums[t + 2 * period])


def test_without_noise_sums_are_sums_of_a_period(rng, key):
    updates = rng.normal(size=(11, 2)).astype(np.float32)
    for period in (1, 4, 16):
        _, got = run(BinaryTree(period), 0.0, jnp.asarray(updates), key)
        want = [updates[t - t % period : t + 1].sum(axis=0) for t in range(11)]
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_stopped_run_goes_on_with_its_noise(key, rng):
    sums = restarted_sums(RestartNoise(BinaryTree(3)), 1.0)
    updates = jnp.asarray(rng.normal(size=(9, 2)), jnp.float32)
    _, want = run(RestartNoise(BinaryTree(3)), 1.0, updates, key)
    update = jax.jit(
        lambda u, s: sums.update(u, s, key=key, sensitivity=1.0), compiler_options=QUICK
    )
    state = sums.init(updates[0])
    for t in range(9):
        out, state = update(updates[t], jax.tree.map(jnp.asarray, jax.device_get(state)))
        np.testing.assert_allclose(out, want[t], rtol=1e-5, atol=1e-6)


def test_narrow_updates_are_summed_in_float32(key):
    """Small changes are not lost beside a large first gradient."""
    updates = jnp.concatenate([jnp.full((1, 1), 256.0), jnp.full((255, 1), 0.25)])
    state, out = run(BinaryTree(256), 0.0, updates.astype(jnp.bfloat16), key)
    assert out.dtype == jnp.bfloat16
    assert state.total.dtype == np.float32
    assert state.total[0] == 256 + 255 / 4


def test_wrong_arguments(key):
    with pytest.raises(TypeError, match="strategy must be a NoiseStrategy, got 2"):
        restarted_sums(2)
    with pytest.raises(ValueError, match="stddev must be >= 0, got -1"):
        restarted_sums(BinaryTree(2), -1.0)
    sums = restarted_sums(BinaryTree(2))
    state = sums.init(jnp.zeros(2))
    for updates, fields, error, message in (
        (jnp.zeros(2), {}, TypeError, "key"),
        (jnp.zeros(2), {"key": key, "sensitivity": -1.0}, ValueError, "sensitivity must be >= 0"),
        (jnp.zeros(()), {"key": key}, ValueError, "shape"),
    ):
        with pytest.raises(error, match=message):
            jax.eval_shape(lambda s, u=updates, f=fields: sums.update(u, s, **f), state)
    _, out = run(BinaryTree(2), 1.0, jnp.zeros((2, 1)), key, np.array([1.0, np.nan], np.float32))
    assert np.isnan(out).ravel().tolist() == [False, True]


# The tree as published, corrected.


def _printed_tree(period):
    """[period, *]: draws of each prefix as printed, with the lengths that are printed."""
    lengths = [2**k for k in reversed(range(max(1, math.ceil(math.log2(period)))))]
    rows = []
    for t in range(1, period + 1):
        start, used = 0, []
        for length in lengths:
            if start + length <= t:
                used.append((start, length))
                start += length
        rows.append(used)
    names = sorted({node for used in rows for node in used})
    return np.array([[float(node in used) for node in names] for used in rows])


def test_printed_tree_releases_a_last_change_without_noise(x64):
    for period in (2, 4, 8, 16):
        matrix = _printed_tree(period)
        np.testing.assert_array_equal(matrix[-1], matrix[-2])  # so their difference is exact
        ours = noise_map(BinaryTree(period), np.ones(period))
        assert np.linalg.matrix_rank(ours) == period
        assert np.abs(ours[-1] - ours[-2]).max() >= 1
    # and with the position taken as t mod period, the last sum of a period has no noise at all
    assert sum(int(digit) for digit in f"{16 % 16:b}") == 0
    assert (BinaryTree(16).prefix_stddev() > 0).all()


@pytest.mark.slow
def test_one_tree_for_large_and_small_steps_costs_what_is_declared(x64):
    """The column norms of the tree's map, for every period to 64."""
    largest = noise_map(BinaryTree(64), np.ones(64)) / BinaryTree(64).node_factor
    assert set(np.unique(largest)) == {0.0, 1.0}
    np.testing.assert_allclose(
        noise_map(BinaryTree(12), np.ones(12)) / BinaryTree(12).node_factor, largest[:12, :12]
    )
    for period in range(1, 65):
        levels, nodes = period.bit_length(), largest[:period, :period]
        shifts = np.linalg.solve(nodes, np.tril(np.ones((period, period))))
        touched = np.square(shifts).sum(axis=0)  # nodes that each step is in
        assert touched[0] == pytest.approx(levels)
        assert period == 1 or touched[1:].max() == pytest.approx(levels - 1)
        for clip, batch, size in ((1.0, 9.0, 1), (1.0, 2.0, 4), (0.1, 1.0, 1), (3.0, 30.0, 2)):
            solver = PublishedOnlineToNonconvex(
                DisjointPartition(1, 3 + (period - 1) * size),
                1.3,
                clip,
                0.1,
                0.3,
                batch,
                0.1,
                0.25,
                BinaryTree(period),
                difference_batch_size=size,
                relation="replace_one",
            )
            bound = min(0.25 * 2 * 0.3, 2 * clip)
            steps = np.array([clip / batch] + (period - 1) * [bound / size])
            own = [
                float(solver._sensitivity(c, jnp.float32(b)))
                for c, b in ((clip, batch), (bound, size))
            ]
            assert own[0] == own[1]  # the same on all nodes
            sigma = 1.3 * levels**0.5 * own[0]
            mu = max(steps[0] * levels**0.5, steps[-1] * (levels - 1) ** 0.5) / sigma
            exact = (steps * np.sqrt(touched)).max() / sigma
            assert exact == pytest.approx(mu, rel=1e-6)
            assert exact == pytest.approx(1 / 1.3, rel=1e-6)  # as the event has it, no less
