"""Sensitivity over several participations: by enumeration of patterns and signs."""

import itertools

import numpy as np
import pytest
from noise_maps import noise_map, scale_families, smallest_shifts
from scipy import linalg

from dpjax.sampling import Participation
from dpjax.transforms import BufferedToeplitz, fit_buffered_toeplitz
from dpjax.transforms.noise.correlated._buffered_toeplitz import (
    coefficients,
    fitted,
    inverse_coefficients,
    pattern_norms,
    prefix_errors,
    root_mean_square,
)


def patterns(participation, steps):
    """All maximal index sets that a record may be in."""
    most, apart = participation.most, participation.separation
    if participation.kind == "fixed":
        return [tuple(range(j, steps, apart))[:most] for j in range(min(apart, steps))]
    return [
        chosen
        for size in range(1, most + 1)
        for chosen in itertools.combinations(range(steps), size)
        if all(np.diff(chosen) >= apart)
    ]


def sensitivity(columns, participation):
    """The longest sum of signed columns, over all patterns and signs."""
    return max(
        np.linalg.norm(columns[:, list(chosen)] @ np.array(signs))
        for chosen in patterns(participation, columns.shape[1])
        for signs in itertools.product((1.0, -1.0), repeat=len(chosen))
    )


def dense(c):
    return np.tril(linalg.toeplitz(c))


def random_coefficients(rng, steps, apart):
    """Not negative, and not increasing from index `apart` on; anything before."""
    late = np.sort(rng.exponential(size=max(0, steps - apart)))[::-1]
    early = rng.exponential(size=min(apart, steps)) * rng.integers(0, 2, size=min(apart, steps))
    c = np.concatenate([early, late])
    if early.size and late.size:
        c[apart:] *= rng.uniform() * 2
    c[0] = max(c[0], 0.01)
    return c


def test_the_formula_is_the_worst_pattern_with_any_signs():
    rng = np.random.default_rng(0)
    for _ in range(120):
        steps = int(rng.integers(1, 9))
        apart, most = int(rng.integers(1, steps + 1)), int(rng.integers(1, 5))
        c = random_coefficients(rng, steps, apart)
        got = pattern_norms(c, most, apart)
        for kind in ("fixed", "min_separation"):
            worst = sensitivity(dense(c), Participation(kind, most, apart))
            assert worst == pytest.approx(got[0], rel=1e-12)
        each = [
            np.linalg.norm(dense(c)[:, list(chosen)].sum(axis=1))
            for chosen in patterns(Participation("fixed", most, apart), steps)
        ]
        if most * apart >= steps:
            np.testing.assert_allclose(got, each, rtol=1e-12)


def test_the_formula_needs_what_it_asks_for():
    """Coefficients that increase late have a worse pattern: the enumeration sees it."""
    for c, most, apart, formula, worst in (
        ((1, 0.1, 0.9, 0, 0, 0), 2, 1, 2.0050, 2.3324),
        ((1, 0.2, 0.2, 0.9, 0, 0), 2, 2, 2.1307, 2.1840),
    ):
        c = np.array(c, float)
        assert pattern_norms(c, most, apart)[0] == pytest.approx(formula, abs=1e-4)
        found = sensitivity(dense(c), Participation("min_separation", most, apart))
        assert found == pytest.approx(worst, abs=1e-4)


CASES = [
    (8, 2, 4, "periodic"),
    (8, 2, 4, "constant"),
    (7, 3, 3, "periodic"),
    (7, 3, 2, "constant"),
    (6, 6, 1, "periodic"),
    (5, 1, None, "periodic"),
]


@pytest.mark.always  # noise as claimed
@pytest.mark.parametrize(("steps", "most", "apart", "columns"), CASES)
def test_what_runs_hides_every_record_of_its_schema_and_no_more_than_it_must(
    steps, most, apart, columns, x64
):
    """Shifts of the draws that hide a record, found from the steps that `next` makes."""
    strategy = BufferedToeplitz(steps, (0.3, 0.2), (0.5, 0.9), most, apart, columns)
    participation = strategy.participation
    assert participation.kind == ("fixed" if columns == "periodic" else "min_separation")
    for scales in scale_families(steps).values():
        shifts = smallest_shifts(noise_map(strategy, scales), scales)
        assert sensitivity(shifts, participation) == pytest.approx(1.0, rel=1e-6)
        if columns == "periodic":  # every pattern is as well hidden as the worst
            each = [shifts[:, list(c)].sum(axis=1) for c in patterns(participation, steps)]
            np.testing.assert_allclose(np.linalg.norm(each, axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize(("steps", "most", "apart", "columns"), CASES[:4])
def test_one_participation_more_or_one_step_nearer_is_seen(steps, most, apart, columns, x64):
    strategy = BufferedToeplitz(steps, (0.3, 0.2), (0.5, 0.9), most, apart, columns)
    shifts = smallest_shifts(noise_map(strategy, np.ones(steps)), np.ones(steps))
    kind = strategy.participation.kind
    nearer = Participation(kind, most, apart - 1)
    assert sensitivity(shifts, nearer) > 1.001
    single = BufferedToeplitz(steps, (0.3, 0.2), (0.5, 0.9))
    shifts = smallest_shifts(noise_map(single, np.ones(steps)), np.ones(steps))
    assert sensitivity(shifts, strategy.participation) > most**0.5 * 1.01


# T, k, b, weights and decays of least mean; mean, sensitivity; least largest; periodic columns
GOLDEN = [
    (1024, 1, 1024, (0.278547, 0.141883, 0.07033), (0.663619, 0.959751, 0.997114), 3.0587, 1.7456),
    (1024, 4, 256, (0.126723, 0.22138, 0.155348), (0.334918, 0.825621, 0.991066), 6.6689, 3.6435),
    (512, 8, 64, (0.209044, 0.072904, 0.232798), (0.448473, 0.96997, 0.96997), 9.8402, 5.2331),
    (
        2048,
        16,
        128,
        (0.267178, 0.010841, 0.224708),
        (0.632325, 0.638807, 0.987191),
        18.1006,
        8.4672,
    ),
    (256, 16, 16, (0.311856, 0.041024, 0.200801), (0.90179, 0.90179, 0.90179), 15.4613, 7.6092),
]
LARGEST = [3.2776, 7.6847, 11.9614, 22.5066, 19.8526]
PERIODIC = [3.0052, 6.6091, 9.7683, 18.0182, 15.3811]


def errors(steps, most, apart, omega, decay):
    omega, decay = np.asarray(omega), np.asarray(decay)
    size = pattern_norms(coefficients(steps, omega, decay), most, apart)[0]
    prefixes = prefix_errors(inverse_coefficients(steps, omega, decay))
    return size * root_mean_square(prefixes), size, size * prefixes[-1]


@pytest.mark.parametrize("row", range(5))
def test_known_errors(row):
    steps, most, apart, omega, decay, mean, size = GOLDEN[row]
    got = errors(steps, most, apart, omega, decay)
    np.testing.assert_allclose(got[:2], (mean, size), rtol=3e-5)
    for columns, want in (("periodic", PERIODIC[row]), ("constant", mean)):
        strategy = BufferedToeplitz(steps, omega, decay, most, apart, columns)
        assert root_mean_square(strategy.prefix_stddev()) == pytest.approx(want, rel=3e-5)


def test_known_sensitivities():
    c = coefficients(8, np.array([0.3, 0.2]), np.array([0.5, 0.9]))
    known = (1, 0.5, 0.33, 0.237, 0.1833, 0.14997, 0.127473, 0.110976)
    np.testing.assert_allclose(c, known, atol=5e-7)
    sizes = {(1, 8): 1.224632, (2, 4): 1.888941, (2, 3): 1.950840, (4, 2): 3.213548}
    for (most, apart), size in (sizes | {(8, 1): 5.920207}).items():
        assert pattern_norms(c, most, apart)[0] == pytest.approx(size, abs=1e-6)
    each = (1.888941, 1.856613, 1.799369, 1.677876)
    np.testing.assert_allclose(pattern_norms(c, 2, 4), each, atol=1e-6)


@pytest.mark.parametrize(
    "row", [pytest.param(i, marks=[] if i == 4 else [pytest.mark.slow]) for i in range(5)]
)
def test_fits_find_the_known_optima(row):
    steps, most, apart, _, _, mean, _ = GOLDEN[row]
    assert errors(steps, most, apart, *fitted(steps, most, apart))[0] <= 1.0001 * mean
    found = fitted(steps, most, apart, objective="max")
    assert errors(steps, most, apart, *found)[2] <= 1.0001 * LARGEST[row]


def test_reusing_one_pass_or_reshuffling_would_overstate_privacy():
    """How far from the truth two plausible mistakes are."""
    steps, most, apart, omega, decay, _, size = GOLDEN[1]
    c = coefficients(steps, np.asarray(omega), np.asarray(decay))
    assert pattern_norms(c, most, 1)[0] == pytest.approx(6.289, abs=1e-3)
    once = BufferedToeplitz(steps, *GOLDEN[0][3:5])
    columns = dense(coefficients(steps, *map(np.asarray, GOLDEN[0][3:5]))) / once.column_norms
    reused = np.linalg.norm(columns[:, ::apart].sum(axis=1))
    assert reused == pytest.approx(2.344, abs=2e-3)
    assert size < 4 < 6.2


def test_fitted_strategies_say_what_they_are_for():
    strategy = fit_buffered_toeplitz(24, 2, participations=3)
    assert strategy.participation == Participation("fixed", 3, 8)
    assert len(strategy.decay) == 2
    same = BufferedToeplitz(24, participations=3)
    best = root_mean_square(strategy.prefix_stddev())
    assert root_mean_square(same.prefix_stddev()) <= 1.0001 * best
    largest = fit_buffered_toeplitz(24, 2, participations=3, objective="max")
    assert largest.prefix_stddev().max() < strategy.prefix_stddev().max()
    assert np.float32(same.decay[0]) == same.decay[0]  # one matrix in every precision


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"participations": 0}, "participations must be >= 1, got 0"),
        ({"participations": 2, "separation": 3}, r">= num_steps = 7 .*got 2 \* 3"),
        ({"columns": "none"}, "columns must be one of"),
    ],
)
def test_wrong_fields_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        BufferedToeplitz(7, (), (), **wrong)


def test_a_fit_with_an_exponent_is_for_one_participation():
    with pytest.raises(ValueError, match="exponent must be 0 with participations = 2"):
        fit_buffered_toeplitz(8, exponent=1.0, participations=2)
