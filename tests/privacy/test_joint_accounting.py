"""Several releases of one Poisson batch, against quadrature, the library and golden values."""

import importlib.util
import itertools
import math
import pathlib

import numpy as np
import pytest
from dp_accounting import dp_event as dpe
from dp_accounting.pld import PLDAccountant
from scipy import integrate, stats

from dpjax.privacy import Guarantee, joint_poisson_epsilon, joint_poisson_event
from dpjax.privacy.accounting._joint import amplify, product_pair, sampled_step

DELTA = 1e-5
N = 36_000

GOLDEN = [  # rate, steps, gaussian, laplace_scale, histogram_gaussian, independent, joint
    (0.02, 1000, 1, None, 1, 5.616, 8.834),
    (0.03, 3000, 2, None, 3, 4.640, 4.907),
    (0.02, 2000, 3, 2, None, 2.100, 2.214),
    (0.02, 500, 1, 0.5, None, 4.957, 8.646),
    (0.02, 1000, 1, 1, None, 4.719, 6.481),
    (0.02, 1000, 1, 2, None, 4.116, 4.684),
    (1256 / N, 100, 3, 0.5, None, 3.240, 3.549),
]

# gaussian, laplace_scale, batch, steps that independent accounting allows, true epsilon
CLAIMED = [
    (3, 2, 256, 4152, 1.050),
    (3, 2, 256, 30048, 3.138),
    (3, 2, 1256, 167, 1.079),
    (3, 2, 1256, 1235, 3.170),
    (6, 2, 256, 5644, 1.016),
    (6, 2, 256, 40800, 3.044),
    (6, 2, 1256, 230, 1.025),
    (6, 2, 1256, 1683, 3.055),
]


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_golden_joint_values(case):
    rate, steps, gaussian, scale, histogram, independent, joint = case
    got = joint_poisson_epsilon(
        rate, steps, DELTA, gaussian=gaussian, laplace_scale=scale, histogram_gaussian=histogram
    )
    assert got == pytest.approx(joint, abs=5.5e-4)
    other = dpe.LaplaceDpEvent(scale) if scale else dpe.GaussianDpEvent(histogram)
    two_batches = [
        dpe.SelfComposedDpEvent(dpe.PoissonSampledDpEvent(rate, release), steps)
        for release in (other, dpe.GaussianDpEvent(gaussian))
    ]
    apart = Guarantee(dpe.ComposedDpEvent(two_batches)).epsilon(DELTA)
    assert apart == pytest.approx(independent, abs=1e-3)
    assert apart < got


@pytest.mark.parametrize(("gaussian", "scale", "batch", "steps", "epsilon"), CLAIMED)
def test_true_epsilon_of_published_settings(gaussian, scale, batch, steps, epsilon):
    got = joint_poisson_epsilon(batch / N, steps, DELTA, gaussian=gaussian, laplace_scale=scale)
    assert got == pytest.approx(epsilon, abs=6e-4)


@pytest.mark.parametrize(("steps", "allowed"), [(3794, True), (3800, False)])
def test_steps_allowed_at_epsilon_one(steps, allowed):
    got = joint_poisson_epsilon(256 / N, steps, DELTA, gaussian=3, laplace_scale=2)
    assert (got <= 1) == allowed


def test_published_closed_form_is_no_guarantee():
    # noise from the closed form for epsilon 9; and for epsilon 1 with the scale inverted
    def closed_form(epsilon, rate, steps):
        log = math.log(steps / DELTA)
        scale = 2 * max(1 / epsilon, rate * math.sqrt(steps * log) / epsilon)
        return scale, 10 * max(log / epsilon, rate * math.sqrt(steps) * log / epsilon)

    scale, gaussian = closed_form(9, 0.02, 140)
    got = joint_poisson_epsilon(0.02, 140, DELTA, gaussian=gaussian, laplace_scale=scale)
    assert got == pytest.approx(10.28, abs=6e-3)
    scale, gaussian = closed_form(1, 0.02, 1000)
    got = joint_poisson_epsilon(0.02, 1000, DELTA, gaussian=gaussian, laplace_scale=1 / scale)
    assert got == pytest.approx(48.5, abs=0.06)


def _gaussian_delta(epsilon, noise):
    return stats.norm.cdf(0.5 / noise - epsilon * noise) - math.exp(epsilon) * stats.norm.cdf(
        -0.5 / noise - epsilon * noise
    )


def _unsampled_delta(epsilon, scale, noise):
    """Of the (Laplace, Gaussian) pair: the Gaussian curve averaged over the Laplace loss."""
    width = 1 / scale
    between, _ = integrate.quad(
        lambda u: 0.25 * math.exp((u - width) / 2) * _gaussian_delta(epsilon - u, noise),
        -width,
        width,
        epsabs=1e-15,
        epsrel=1e-12,
        limit=400,
    )
    atoms = 0.5 * _gaussian_delta(epsilon - width, noise)
    atoms += 0.5 * math.exp(-width) * _gaussian_delta(epsilon + width, noise)
    return between + atoms


@pytest.mark.parametrize(("scale", "noise"), [(2.0, 3.0), (10.0, 6.0), (0.5, 1.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_full_batch_is_the_unsampled_pair(scale, noise, epsilon):
    want = _unsampled_delta(epsilon, scale, noise)
    event = joint_poisson_event(1.0, 1, gaussian=noise, laplace_scale=scale)
    got = Guarantee(event).delta(epsilon)
    assert want * (1 - 1e-9) <= got <= want * (1 + 2e-3) + 1e-13
    step = sampled_step(1.0, (scale,), noise)
    ours = step.distribution(1e-4).get_delta_for_epsilon(epsilon)
    assert want * (1 - 1e-9) <= ours <= want * (1 + 2e-3) + 1e-13


def _sampled_delta(epsilon, scale, noise, rate, direction):
    """Brute force: the (Laplace, Gaussian) density on a 2-d grid, no structure used."""
    edges = [-30 * scale, 0.0, 1.0, 1 + 30 * scale]
    nodes, weights = np.polynomial.legendre.leggauss(160)
    pieces = [
        (a + (b - a) * (nodes + 1) / 2, weights * (b - a) / 2) for a, b in itertools.pairwise(edges)
    ]
    x, wx = (np.concatenate(part) for part in zip(*pieces, strict=True))
    y = np.linspace(0.5 - 12 * noise, 0.5 + 12 * noise, 20_001)
    total = 0.0
    for xi, wi in zip(x, wx, strict=True):
        p = stats.laplace.pdf(xi, 1, scale) * stats.norm.pdf(y, 1, noise)
        q = stats.laplace.pdf(xi, 0, scale) * stats.norm.pdf(y, 0, noise)
        mixed = (1 - rate) * q + rate * p
        first, second = (mixed, q) if direction == "remove" else (q, mixed)
        total += wi * np.maximum(first - math.exp(epsilon) * second, 0).sum() * (y[1] - y[0])
    return float(total)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(
    ("scale", "noise", "rate", "interval"), [(2.0, 3.0, 0.02, 1e-5), (0.5, 1.0, 0.1, 1e-4)]
)
def test_one_sampled_step_against_two_dimensional_quadrature(
    scale, noise, rate, interval, direction
):
    plds = sampled_step(rate, (scale,), noise).distribution(interval)
    pmf = plds._pmf_remove if direction == "remove" else plds._pmf_add
    for epsilon in (0.0, rate / 4):
        want = _sampled_delta(epsilon, scale, noise, rate, direction)
        got = float(pmf.get_delta_for_epsilon(epsilon))
        assert want * (1 - 1e-5) <= got <= want * (1 + 1e-3)


@pytest.mark.parametrize(
    ("event", "steps"),
    [
        (dpe.PoissonSampledDpEvent(0.02, dpe.GaussianDpEvent(1.0)), 1000),
        pytest.param(
            dpe.PoissonSampledDpEvent(0.1, dpe.GaussianDpEvent(0.7)), 100, marks=pytest.mark.slow
        ),
        (dpe.PoissonSampledDpEvent(0.01, dpe.GaussianDpEvent(4.0)), 5000),
        (dpe.PoissonSampledDpEvent(0.02, dpe.LaplaceDpEvent(2.0)), 1000),
        (dpe.PoissonSampledDpEvent(0.1, dpe.LaplaceDpEvent(1.0)), 200),
        (dpe.GaussianDpEvent(2.0), 10),
        (dpe.LaplaceDpEvent(2.0), 3),
    ],
    ids=str,
)
def test_single_releases_equal_the_library(event, steps):
    composed = dpe.SelfComposedDpEvent(event, steps)
    got = Guarantee(composed).epsilon(DELTA)
    want = PLDAccountant(value_discretization_interval=3e-5).compose(composed).get_epsilon(DELTA)
    assert got == pytest.approx(want, rel=4e-4)
    if isinstance(event, dpe.PoissonSampledDpEvent):  # our own distribution, whichever is chosen
        noise = event.event.noise_multiplier
        laplace = isinstance(event.event, dpe.LaplaceDpEvent)
        releases = ((noise,), math.inf) if laplace else ((), noise)
        step = sampled_step(event.sampling_probability, *releases)
        ours = step.distribution(3e-5).self_compose(steps).get_epsilon_for_delta(DELTA)
        assert ours == pytest.approx(want, rel=2e-4)


def test_small_rates_are_not_rounded_away():
    # on the library's default grid of 1e-4 the loss of one step is mostly rounding
    event = dpe.SelfComposedDpEvent(
        dpe.PoissonSampledDpEvent(2.6e-4, dpe.GaussianDpEvent(1.0)), 10_000
    )
    got = Guarantee(event).epsilon(DELTA)
    coarse = PLDAccountant().compose(event).get_epsilon(DELTA)
    assert 0.1090 < got < 0.1092 < coarse


def test_amplified_product_of_gaussians_is_the_effective_gaussian():
    step = amplify(product_pair((), 1 / math.hypot(1 / 3, 1 / 2)), 0.03)
    got = step.distribution(1e-4).self_compose(300).get_epsilon_for_delta(DELTA)
    want = joint_poisson_epsilon(0.03, 300, DELTA, gaussian=2, histogram_gaussian=3)
    assert got == pytest.approx(want, rel=2e-4)


def test_a_finer_grid_never_finds_a_larger_epsilon():
    step = sampled_step(0.02, (2.0,), 3.0)
    values = [
        step.distribution(h).self_compose(500).get_epsilon_for_delta(DELTA)
        for h in (4e-4, 1e-4, 2e-5)
    ]
    assert values[0] >= values[1] >= values[2] > 0.99 * values[0]


def test_several_laplaces_and_gaussians_of_one_batch():
    inner = [dpe.LaplaceDpEvent(2.0), dpe.GaussianDpEvent(3.0), dpe.LaplaceDpEvent(4.0)]
    more = Guarantee(_sampled(0.02, [*inner, dpe.GaussianDpEvent(5.0)], 300)).epsilon(DELTA)
    fewer = Guarantee(_sampled(0.02, inner[:2], 300)).epsilon(DELTA)
    assert more > fewer
    nested = dpe.ComposedDpEvent([dpe.SelfComposedDpEvent(dpe.LaplaceDpEvent(2.0), 2), inner[1]])
    flat = [inner[0], inner[0], inner[1]]
    assert Guarantee(_sampled(0.02, [nested], 300)).epsilon(DELTA) == Guarantee(
        _sampled(0.02, flat, 300)
    ).epsilon(DELTA)


def test_nearly_full_and_full_batches_agree():
    kwargs = {"gaussian": 1.0, "laplace_scale": 1.0}
    full = joint_poisson_epsilon(1.0, 10, DELTA, **kwargs)
    nearly = joint_poisson_epsilon(1 - 1e-9, 10, DELTA, **kwargs)
    assert nearly == pytest.approx(full, rel=1e-3)


def test_joint_composes_with_other_parts():
    joint = joint_poisson_event(0.02, 300, gaussian=2.0, laplace_scale=2.0)
    alone = Guarantee(joint).epsilon(DELTA)
    small = Guarantee(dpe.ComposedDpEvent([joint, dpe.GaussianDpEvent(1e4)])).epsilon(DELTA)
    large = Guarantee(
        dpe.ComposedDpEvent([joint, dpe.GaussianDpEvent(2.0), dpe.LaplaceDpEvent(5.0)])
    ).epsilon(DELTA)
    assert alone <= small * (1 + 1e-6) < 1.01 * alone
    assert alone + 0.1 < large < alone + 0.2 + Guarantee(dpe.GaussianDpEvent(2.0)).epsilon(1e-6)


def _sampled(rate, inner, steps):
    return dpe.SelfComposedDpEvent(
        dpe.PoissonSampledDpEvent(rate, dpe.ComposedDpEvent(inner)), steps
    )


@pytest.mark.slow
def test_against_the_reference_script():
    root = pathlib.Path(__file__).parents[2]
    path = root.parent / "shared" / "reference" / "joint_subsampled_pld.py"
    if not path.exists():
        pytest.skip("no reference script beside the repository")
    spec = importlib.util.spec_from_file_location("reference", path)
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    for noise, scale, rate, steps in [(3.0, 2.0, 0.02, 2000), (6.0, 10.0, 0.007, 3000)]:
        want = reference.epsilon(reference.joint_step(noise, "laplace", scale, rate), steps, DELTA)
        got = joint_poisson_epsilon(rate, steps, DELTA, gaussian=noise, laplace_scale=scale)
        assert got == pytest.approx(want, rel=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gaussian", "batch", "claim", "low", "high"),
    [
        (3, 256, 1, 1.005, 1.009),
        (3, 1256, 3, 3.015, 3.019),
        (6, 256, 1, 1.004, 1.007),
        (6, 1256, 3, 3.012, 3.016),
    ],
)
def test_true_epsilon_at_high_laplace_noise(gaussian, batch, claim, low, high):
    from dpjax.privacy import Budget, max_steps

    def two_batches(steps):
        parts = [
            dpe.SelfComposedDpEvent(dpe.PoissonSampledDpEvent(batch / N, release), steps)
            for release in (dpe.LaplaceDpEvent(10.0), dpe.GaussianDpEvent(gaussian))
        ]
        return dpe.ComposedDpEvent(parts)

    steps = max_steps(two_batches, Budget(claim, DELTA))
    got = joint_poisson_epsilon(batch / N, steps, DELTA, gaussian=gaussian, laplace_scale=10.0)
    assert low - 1e-3 <= got <= high + 1e-3
