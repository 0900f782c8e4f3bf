"""Noise of a first step apart: as an exact linear map of its draws, and as it is drawn."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from noise_maps import levels_of, noise_map, scale_families, smallest_shifts
from scipy import stats

import dpjax.testing as dpt
from dpjax.testing._trees import QUICK
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    RestartNoise,
    SplitNoise,
    correlated_noise,
)

LATER = {
    "tree": BinaryTree(7),
    "tree, growing": BinaryTree(6, exponent=1.0),
    "tree, reduced": BinaryTree(5, variance_reduced=True),
    "toeplitz": BufferedToeplitz(9),
    "split": SplitNoise(4),
    "one": BufferedToeplitz(1),
    "restart": RestartNoise(BufferedToeplitz(3)),
}
each_later = pytest.mark.parametrize("name", LATER)


@functools.partial(jax.jit, static_argnums=(0, 1), compiler_options=QUICK)
def _map(noise, levels, scales):
    size = scales.size * levels

    def body(state, x):
        t, scale = x
        step, state = noise.next(
            lambda level: jnp.zeros(size).at[t * levels + level].set(1.0), scale, state
        )
        return state, step

    steps = (jnp.arange(scales.size), scales)
    return jnp.cumsum(jax.lax.scan(body, noise.init(jnp.zeros(size)), steps)[1], axis=0)


def restart_map(noise, scales):
    """[T, T * levels]: what each draw does to every prefix; levels are those of the later."""
    return np.asarray(_map(noise, levels_of(noise.later), jnp.asarray(scales, float)))


@each_later
@pytest.mark.always  # the claim
def test_noise_makes_up_for_any_step_whatever_the_scales(name, x64):
    noise = RestartNoise(LATER[name])
    steps, levels = noise.num_steps, levels_of(noise.later)
    families = scale_families(steps) | {"large first": np.append(1e3, np.ones(steps - 1))}
    for scales in families.values():
        matrix = restart_map(noise, scales)
        np.testing.assert_allclose(
            noise.prefix_stddev(scales), np.linalg.norm(matrix, axis=1), rtol=1e-9
        )
        # the first draw is in every sum, in one multiple, and alone in the first
        np.testing.assert_allclose(matrix[:, 0], scales[0], rtol=1e-12)
        assert not np.any(matrix[0, 1:])
        assert not np.any(matrix[:, 1:levels])
        # after it the noise is that of the later strategy
        if not isinstance(noise.later, RestartNoise):
            np.testing.assert_allclose(
                matrix[1:, levels:], noise_map(noise.later, scales[1:]), atol=1e-12
            )
        norms = np.linalg.norm(smallest_shifts(matrix, scales), axis=0)
        assert norms.max() <= 1 + 1e-9
        if levels == 1:  # with more draws than sums a step is hidden better than is counted on
            assert norms[0] == pytest.approx(1.0, rel=1e-9)


def test_later_steps_do_not_pay_for_the_first(x64):
    """Mean variances of known mechanisms for a step of sensitivity 3 (10, 1) and 63 of 1."""
    for first, joint, tree, toeplitz, best in (
        (3.0, 190, 27.0, 13.9, 11.7),
        (10.0, 2111, 118, 104.9, 102.6),
        (1.0, 21.1, 19.0, 5.9, 4.4),
    ):
        scales = np.append(first, np.ones(63))
        alike = np.full(64, first)  # one deviation for all nodes
        got = [
            np.mean(noise.prefix_stddev(s) ** 2)
            for noise, s in (
                (BinaryTree(64), alike),
                (RestartNoise(BinaryTree(63)), scales),
                (RestartNoise(BufferedToeplitz(63)), scales),
            )
        ]
        assert got[0] == pytest.approx(joint, rel=5e-3)
        assert got[1] == pytest.approx(tree, rel=5e-3)
        assert 0.9 * toeplitz <= got[2] <= 1.01 * toeplitz
        assert best <= got[2] <= 2 * best


def _run(noise, updates, key, **extra):
    transform = correlated_noise(noise, 1.0)

    def body(state, x):
        out, state = transform.update(x[0], state, key=key, sensitivity=x[1])
        return state, out

    scales = extra["scales"]
    start = transform.init(jax.tree.map(lambda u: u[0], updates))
    return jax.lax.scan(body, start, (updates, scales))[1]


def test_draws_have_their_scale_and_are_shared_by_all_sums(key):
    noise, scales = RestartNoise(BinaryTree(3)), jnp.array([3.0, 1.0, 0.5, 1.0])
    zeros = {"a": jnp.zeros((4, 3000)), "b": jnp.zeros((4, 1, 1000))}
    run = jax.jit(functools.partial(_run, noise), compiler_options=QUICK)
    steps = jax.tree.map(np.asarray, run(zeros, key, scales=scales))
    sums = np.cumsum(np.concatenate([steps["a"], steps["b"][:, 0]], axis=1), axis=0)
    for t, want in enumerate(noise.prefix_stddev(np.asarray(scales))):
        dpt.check_scale(sums[t], lambda s: stats.norm(scale=s).cdf, want)
    for t in range(1, 4):  # what comes after the first has nothing of it
        later = noise.later.prefix_stddev(np.asarray(scales[1:]))[t - 1]
        dpt.check_scale(sums[t] - sums[0], lambda s: stats.norm(scale=s).cdf, later)
        dpt.check_uncorrelated(sums[t] - sums[0], sums[0])
    dpt.count_false_alarm(1e-9)  # of 3000 on a grid of 1/512, about 2300 in the mean
    assert len(np.unique(steps["a"][0])) >= 2200


class Recorder(RestartNoise):
    keys: list = []  # noqa: RUF012

    def noise(self, key, like):
        self.keys.append(np.asarray(jax.random.key_data(key)).tobytes())
        return super().noise(key, like)


def test_no_two_draws_share_a_key():
    Recorder.keys.clear()
    later = BinaryTree(4, variance_reduced=True)
    noise = correlated_noise(Recorder(later))
    with jax.disable_jit():
        state = noise.init(jnp.zeros(2))
        for _ in range(later.num_steps + 1):
            _, state = noise.update(jnp.zeros(2), state, key=jax.random.key(0))
    assert len(set(Recorder.keys)) == len(Recorder.keys)
    assert len(Recorder.keys) >= 5 + 3  # nodes 2 and 4 on their higher levels


def test_scales_that_are_none_and_steps_too_many_give_nan(key):
    noise = correlated_noise(RestartNoise(BufferedToeplitz(2)), 1.0)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def run(scales):
        def body(state, scale):
            out, state = noise.update(jnp.zeros(()), state, key=key, sensitivity=scale)
            return state, out

        return jax.lax.scan(body, noise.init(jnp.zeros(())), scales)[1]

    ones = np.ones(5, np.float32)
    assert np.isnan(run(ones)).tolist() == [False] * 3 + [True] * 2
    for at, bad in itertools.product(range(3), (-1.0, np.nan)):
        scales = ones.copy()
        scales[at] = bad
        assert np.isnan(np.cumsum(run(scales)))[at:].all()
    # no noise where nothing is due, and then as much as is due
    seen = np.asarray(run(np.array([0, 0, 1, 1, 1], np.float32)))
    assert not np.any(seen[:2])
    assert seen[2] != 0


@each_later
def test_event_is_one_gaussian(name):
    for z in (0.0, 0.7, 3.0):
        assert RestartNoise(LATER[name]).event(z) == dpe.GaussianDpEvent(z)


@pytest.mark.parametrize(("factor", "want"), [(1 / 3, 1.0), (3.0, 3.0)])
def test_event_is_the_worse_of_both_parts(factor, want):
    """A strategy that claims less than it is asked for is believed."""

    def event(self, noise_multiplier, relation="add_or_remove_one"):
        return dpe.GaussianDpEvent(factor * noise_multiplier)

    kind = type("Other", (BufferedToeplitz,), {"event": event})
    assert RestartNoise(kind(4)).event(3.0) == dpe.GaussianDpEvent(want)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="later must be a NoiseStrategy, got 3"):
        RestartNoise(3)
    with pytest.raises(ValueError, match="later must have Gaussian noise, got BinaryTree"):
        RestartNoise(BinaryTree(3, distribution="l2"))
    with pytest.raises(ValueError, match="scales must have shape"):
        RestartNoise(BinaryTree(3)).prefix_stddev(np.ones(3))
    with pytest.raises(ValueError, match="noise_multiplier"):
        RestartNoise(BinaryTree(3)).event(-1.0)
    assert hash(RestartNoise(BinaryTree(3))) == hash(RestartNoise(BinaryTree(3)))
    assert RestartNoise(BinaryTree(3)) != RestartNoise(BinaryTree(4))
