"""Banded noise: the matrix that runs, what it hides, and its event with Poisson groups."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from noise_maps import noise_map, scale_families, smallest_shifts
from scipy import linalg, stats

import dpjax
from dpjax.sampling import CyclicPoisson, FullBatch, RepeatedPartition
from dpjax.transforms import Banded
from dpjax.transforms.noise.correlated._banded import _log_error, fitted_bands
from dpjax.transforms.noise.correlated._buffered_toeplitz import root_mean_square

SIGNED = (1.0, 0.8, -0.6, 0.3)
STRATEGIES = {
    "one band": Banded(5, 1),
    "fitted": Banded(9, 3),
    "signs": Banded(10, coefficients=SIGNED),
    "fewer steps than bands": Banded(3, coefficients=SIGNED),
    "as many": Banded(4, coefficients=SIGNED),
}


def dense(strategy):
    """C, from its coefficients alone."""
    c = np.zeros(strategy.num_steps)
    kept = min(len(strategy.coefficients), strategy.num_steps)
    c[:kept] = strategy.coefficients[:kept]
    return np.tril(linalg.toeplitz(c))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_ring_of_past_noise_solves_the_banded_system(name, x64):
    strategy = STRATEGIES[name]
    c = dense(strategy)
    norms = np.linalg.norm(c, axis=0)
    np.testing.assert_allclose(strategy.column_norms, norms, rtol=1e-12)
    for scales in scale_families(strategy.num_steps).values():
        want = np.cumsum((scales * norms)[:, None] * linalg.inv(c), axis=0)
        matrix = noise_map(strategy, scales)
        np.testing.assert_allclose(matrix, want, rtol=1e-8, atol=1e-9 * scales.max())
        sizes = strategy.prefix_stddev(scales)
        np.testing.assert_allclose(sizes, np.linalg.norm(want, axis=1), rtol=1e-8)


def shifts_of(strategy, scales=None):
    scales = np.ones(strategy.num_steps) if scales is None else scales
    return smallest_shifts(noise_map(strategy, scales), scales)


@pytest.mark.always  # noise as claimed
@pytest.mark.parametrize("name", STRATEGIES)
def test_steps_a_band_apart_are_hidden_by_draws_of_their_own(name, x64):
    strategy = STRATEGIES[name]
    steps = np.arange(strategy.num_steps)
    apart = abs(steps[:, None] - steps) >= len(strategy.coefficients)
    for scales in scale_families(strategy.num_steps).values():
        shifts = shifts_of(strategy, scales)
        gram = shifts.T @ shifts
        np.testing.assert_allclose(np.diag(gram), 1.0, rtol=1e-6)
        np.testing.assert_allclose(gram[apart], 0.0, atol=1e-6)
        touched = abs(shifts) > 1e-7  # which draws: those of the step and of the next ones
        rows, columns = np.nonzero(touched)
        assert np.all(rows >= columns)
        assert np.all(rows < columns + len(strategy.coefficients))


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ScalesDraws(Banded):
    """Multiplies the draw by the column's norm, in place of what the recursion gives."""

    def next(self, draw, scale, state):
        norm = jnp.asarray(self.column_norms)[state.count]
        step, state = super().next(lambda level: norm * draw(level), scale, state)
        return step / norm, state


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Forgets(Banded):
    """A ring that is one step behind."""

    def init(self, params):
        return super().init(params)._replace(count=jnp.ones((), jnp.int32))


def test_scaled_draws_would_not_hide_the_last_steps(x64):
    for bands, least in ((4, 1.07), (16, 1.03)):
        c = fitted_bands(40, bands)
        right, wrong = Banded(40, coefficients=c), ScalesDraws(40, coefficients=c)
        assert np.linalg.norm(shifts_of(right), axis=0).max() == pytest.approx(1, rel=1e-6)
        assert np.linalg.norm(shifts_of(wrong), axis=0).max() > least
    wrong = Forgets(9, coefficients=SIGNED)
    assert not np.allclose(
        noise_map(wrong, np.ones(9))[:8], noise_map(Banded(9, None, SIGNED), np.ones(9))[:8]
    )


def test_one_band_is_independent_noise(x64):
    np.testing.assert_array_equal(noise_map(Banded(6, 1), np.ones(6)), np.tril(np.ones((6, 6))))
    assert Banded(6, 1).coefficients == (1.0,)


# T, bands: root mean square, largest, of the best coefficients
KNOWN = {(1024, 4): 11.5633, (1024, 16): 6.34279, (512, 8): 6.15107, (9766, 4): 35.11}
KNOWN |= {(1024, 256): 6.444 / 2, (256, 16): 14.55 / 4}


@pytest.mark.parametrize(("steps", "bands"), KNOWN)
def test_known_errors(steps, bands):
    want = KNOWN[steps, bands]
    digits = 10 ** -(len(str(want).split(".")[1])) if bands < 100 else 1e-3
    square, _ = _log_error(np.asarray(fitted_bands(steps, bands)[1:]), steps)
    assert np.exp(square / 2) == pytest.approx(want, abs=1.01 * digits)
    strategy = Banded(steps, bands)
    assert len(strategy.coefficients) == bands
    rms = root_mean_square(strategy.prefix_stddev())
    assert 0.9 * want < rms <= want * 1.001  # the last columns are shorter


GAUSSIAN = dpe.GaussianDpEvent(1.3)


def test_events():
    strategy = Banded(12, coefficients=SIGNED)
    assert strategy.participation.separation == 4
    once = dpe.GaussianDpEvent(1.3 / 3**0.5)
    assert strategy.event(1.3) == once
    fixed = RepeatedPartition(3, 4, 2)
    assert strategy.event(1.3, participation=fixed.participation) == fixed.event(GAUSSIAN)
    cyclic = CyclicPoisson(0.3, 4, 11, 40)
    assert strategy.event(1.3, participation=cyclic.participation) == cyclic.event(GAUSSIAN)
    everybody = CyclicPoisson(1.0, 4, 12, 40)  # a fixed order
    assert strategy.event(1.3, participation=everybody.participation) == fixed.event(GAUSSIAN)
    epsilons = [
        dpjax.Guarantee(CyclicPoisson(rate, groups, steps, 40).event(GAUSSIAN)).epsilon(1e-5)
        for rate, groups, steps in ((0.2, 4, 12), (0.3, 4, 12), (0.3, 4, 13), (0.3, 2, 13))
    ]
    assert epsilons == sorted(epsilons)
    assert len(set(epsilons)) == 4
    with pytest.raises(ValueError, match=r"separation >= bands = 4, got .*separation=1"):
        strategy.event(1.3, participation=FullBatch(4).participation)


def hockey_stick(shifts, rate, z, epsilon, size=81):
    """Delta both ways, for a record that makes each of these moves `[k, draws]` or does not."""
    basis = np.linalg.qr(shifts.T)[0]  # the draws that matter
    moves = shifts @ basis / z
    k = len(moves)
    edges = np.linspace(-7.5, 10.5, size + 1)
    centres = (edges[1:] + edges[:-1]) / 2
    points = np.stack(np.meshgrid(*[centres] * k, indexing="ij"), -1).reshape(-1, k)
    volume = (edges[1] - edges[0]) ** k
    without = stats.norm.pdf(points).prod(1) * volume
    present = np.zeros(len(points))
    for bits in itertools.product((0, 1), repeat=k):
        weight = np.prod([rate if b else 1 - rate for b in bits])
        present += weight * stats.norm.pdf(points - np.array(bits) @ moves).prod(1) * volume
    assert without.sum() == pytest.approx(1, abs=1e-5)
    assert present.sum() == pytest.approx(1, abs=1e-5)
    return max(
        np.maximum(a - np.exp(epsilon) * b, 0).sum()
        for a, b in ((present, without), (without, present))
    )


@pytest.mark.always  # the event is of what runs
def test_the_event_is_the_exact_curve_of_the_longest_group(x64):
    """T = 5, two groups, rate .3: by enumeration of who joins, with the steps of `next`."""
    rate, z = 0.3, 1.0
    sampler = CyclicPoisson(rate, 2, 5, 20)
    strategy = Banded(5, coefficients=(1.0, 0.5))
    shifts = shifts_of(strategy).T
    claimed = dpjax.Guarantee(strategy.event(z, participation=sampler.participation))
    groups = [hockey_stick(shifts[j::2], rate, z, 1.0) for j in range(2)]
    assert claimed.delta(1.0) == pytest.approx(0.0355, abs=1e-4)
    assert groups[0] == pytest.approx(claimed.delta(1.0), rel=3e-3)  # all there is
    assert groups[0] <= claimed.delta(1.0) * 1.001
    # what an adversary who is told the group has on average
    assert np.mean(groups) == pytest.approx(0.0277, abs=2e-4)
    short = dpe.SelfComposedDpEvent(dpe.PoissonSampledDpEvent(rate, dpe.GaussianDpEvent(z)), 2)
    assert dpjax.Guarantee(short).delta(1.0) < 0.8 * groups[0]  # the last turn left out
    # half the noise; one band more than groups
    assert hockey_stick(2 * shifts[::2], rate, z, 1.0) > 2 * claimed.delta(1.0)
    wide = shifts_of(Banded(5, coefficients=(1.0, 0.8, 0.7))).T
    assert hockey_stick(wide[::2], rate, z, 1.0) > 1.05 * claimed.delta(1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "bands or coefficients must be given"),
        ({"bands": 0}, "bands must be >= 1, got 0"),
        ({"coefficients": ()}, r"coefficients must have shape \[bands\], got \[0\]"),
        ({"coefficients": (0.0, 1.0)}, r"coefficients\[0\] must be > 0, got 0.0"),
        ({"coefficients": (1.0, np.nan)}, "coefficients must be finite"),
        ({"coefficients": (1.0, 0.5), "bands": 1}, "at most bands = 1, got 2"),
    ],
)
def test_wrong_fields_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        Banded(5, **wrong)
