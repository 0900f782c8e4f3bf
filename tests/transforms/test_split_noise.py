"""Independent noise with shares of one budget, for records that are in every step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from noise_maps import noise_map, scale_families, smallest_shifts
from scipy import stats

import dpjax.testing as dpt
from dpjax.testing._trees import QUICK
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    NoiseStrategy,
    SplitNoise,
    correlated_noise,
    is_every_step,
)

STEPS = 6


@pytest.mark.parametrize("decay", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("first", [0.1, 0.95])
def test_shares_add_up_and_fall_as_told(first, decay):
    shares = SplitNoise(STEPS, first, decay).shares
    assert shares.sum() == pytest.approx(1, abs=1e-12)
    assert shares[0] == first
    t = np.arange(2, STEPS + 1)
    np.testing.assert_allclose(shares[1:] / shares[1], (t / 2.0) ** -decay)


def test_a_single_step_has_all_of_it():
    for first in (1.0, 0.3):
        np.testing.assert_array_equal(SplitNoise(1, first).shares, [1.0])


@pytest.mark.parametrize("noise", [SplitNoise(STEPS), SplitNoise(STEPS, 0.2, 0.0)])
@pytest.mark.always  # the claim
def test_records_of_every_step_cost_what_the_event_says(noise, x64):
    """Whatever the scales: each step's shift over its deviation, squared, adds up to 1 / z^2."""
    for scales in scale_families(STEPS).values():
        matrix = noise_map(noise, scales)
        deviations = np.diag(matrix)
        np.testing.assert_allclose(matrix, np.tril(np.ones((STEPS, STEPS))) * deviations)
        assert np.sum((scales / deviations) ** 2) == pytest.approx(1)
        np.testing.assert_allclose(deviations**2, noise_variances(noise, scales), rtol=1e-9)
        sizes = np.linalg.norm(matrix, axis=1)
        np.testing.assert_allclose(noise.prefix_stddev(scales), sizes, rtol=1e-9)
    # in one step alone they cost less
    one = np.sum(smallest_shifts(matrix, scales) ** 2, axis=0)
    np.testing.assert_allclose(one, noise.shares, rtol=1e-6)
    for z in (0.0, 2.5):
        assert noise.event(z) == noise.event(z, "replace_one") == dpe.GaussianDpEvent(z)


def noise_variances(noise, scales):
    return [noise.variance(scale, t) for t, scale in enumerate(scales)]


def test_strategies_for_one_step_would_be_too_little(x64):
    """A record in every step shifts all prefixes; the shifts that hide it are longer than 1."""
    scales = np.ones(STEPS)
    wanted = np.cumsum(scales)
    for strategy, every in ((SplitNoise(STEPS), True), (BinaryTree(STEPS), False)):
        shift = np.linalg.lstsq(noise_map(strategy, scales), wanted, rcond=None)[0]
        assert (np.sum(shift**2) <= 1 + 1e-9) == every == is_every_step(strategy)
    assert not is_every_step(BufferedToeplitz(STEPS))
    assert not is_every_step(None)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def _prefixes(strategy, key, sensitivity):
    noise = correlated_noise(strategy, 1.5)
    zeros = {"a": jnp.zeros(2000, jnp.bfloat16), "b": jnp.zeros((2000, 1))}

    def body(state, s):
        return noise.update(zeros, state, key=key, sensitivity=s)[::-1]

    return jax.lax.scan(body, noise.init(zeros), sensitivity)[1]


def test_noise_has_the_deviation_that_is_told(key):
    noise = SplitNoise(STEPS, 0.6)
    scales = np.linspace(0.5, 2.0, STEPS)
    steps = _prefixes(noise, key, jnp.append(scales, 1.0))
    assert steps["a"].dtype == jnp.bfloat16
    assert np.isnan(steps["b"][STEPS:]).all()
    drawn = np.asarray(steps["b"][:STEPS, :, 0], np.float64)
    for t in (0, 1, STEPS - 1):
        size = 1.5 * scales[t] / noise.shares[t] ** 0.5
        dpt.check_scale(drawn[t], lambda s: stats.norm(scale=s).cdf, size)
    correlation = np.corrcoef(np.concatenate([drawn, np.asarray(steps["a"][:STEPS], np.float64)]))
    dpt.count_false_alarm(1e-9)
    assert np.abs(correlation - np.eye(2 * STEPS)).max() < 7 / 2000**0.5


def test_wrong_scales_are_nan(key):
    noise = SplitNoise(STEPS)
    for wrong in (-1.0, np.nan):
        steps = _prefixes(noise, key, jnp.ones(STEPS + 1).at[2].set(wrong))
        assert np.isnan(steps["b"][2]).all()
        assert np.isfinite(steps["b"][3:STEPS]).all()


def test_it_is_a_static_strategy():
    noise = SplitNoise(STEPS, 0.4)
    assert isinstance(noise, NoiseStrategy)
    assert noise == SplitNoise(STEPS, 0.4) != SplitNoise(STEPS, 0.5)
    assert hash(noise) == hash(SplitNoise(STEPS, 0.4))
    assert jax.tree.leaves(noise) == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0,), ValueError, "num_steps must be >= 1, got 0"),
        ((2.0,), TypeError, "num_steps must be an integer, got 2.0"),
        ((2, 0.0), ValueError, "first_share must lie in .*got 0.0"),
        ((2, 1.2), ValueError, "first_share must lie in .*got 1.2"),
        ((2, 1.0), ValueError, "first_share must be < 1 with num_steps = 2 > 1, got 1.0"),
        ((2, 0.5, -1.0), ValueError, "decay must be >= 0, got -1.0"),
        ((2, 0.5, np.inf), ValueError, "decay must be finite, got inf"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        SplitNoise(*arguments)


def test_wrong_multipliers_and_scales_are_named():
    with pytest.raises(ValueError, match=r"noise_multiplier must be >= 0, got -1\.0"):
        SplitNoise(2).event(-1.0)
    with pytest.raises(ValueError, match="scales must have shape"):
        SplitNoise(2).prefix_stddev([1.0, 1.0, 1.0])
