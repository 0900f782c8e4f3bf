import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noise_maps import noise_map, scale_families, smallest_shifts
from scipy import linalg

from dpjax.random._normal import normal
from dpjax.transforms import BinaryTree, BufferedToeplitz, fit_buffered_toeplitz
from dpjax.transforms.noise.correlated._buffered_toeplitz import coefficients
from dpjax.transforms.noise.correlated._buffered_toeplitz_table import TABLE

pytestmark = pytest.mark.usefixtures("x64")

# log2 N, k: mean and largest deviation for scales t^(k-1), over the last scale: tree with children,
# tree, buffered Toeplitz
ERRORS = {
    (10, 1): (6.98, 10.0, 5.31, 7.62, 3.00, 3.17),
    (10, 2): (5.92, 8.01, 5.03, 6.97, 2.62, 2.42),
    (10, 3): (5.48, 7.26, 4.88, 6.67, 2.49, 2.21),
    (11, 1): (7.68, 11.0, 5.81, 8.33, 3.21, 3.31),
    (12, 1): (8.39, 12.0, 6.31, 9.04, 3.45, 3.62),
    (12, 2): (7.32, 9.99, 6.03, 8.39, 3.06, 2.83),
    (13, 1): (9.10, 13.0, 6.81, 9.74, 3.67, 3.76),
    (14, 1): (9.81, 14.0, 7.32, 10.45, 3.91, 4.09),
    (14, 2): (8.73, 11.98, 7.03, 9.80, 3.52, 3.25),
    (14, 3): (8.28, 11.23, 6.88, 9.50, 3.39, 3.05),
}
# the coefficients that the last two columns were made with, by log2 N
PUBLISHED = {
    10: ((0.27785, 0.14247, 0.07063), (0.662031, 0.959303, 0.997038)),
    12: ((0.32019, 0.11010, 0.03891), (0.772335, 0.983672, 0.999191)),
    14: ((0.33272, 0.08256, 0.02173), (0.847152, 0.993202, 0.999773)),
}


def errors(strategy, power):
    scales = np.arange(1, strategy.num_steps + 1.0) ** power
    stddev = strategy.prefix_stddev(scales)
    return np.array([stddev.sum() / scales.sum(), stddev.max() / scales[-1]])


@pytest.mark.parametrize(("log_steps", "k"), ERRORS)
def test_errors_are_those_known(log_steps, k):
    size, want = 2**log_steps, ERRORS[log_steps, k]
    published = PUBLISHED[min(row for row in PUBLISHED if row >= log_steps)]
    strategies = (
        BinaryTree(size - 1, exponent=k - 1.0),
        BinaryTree(size - 1, exponent=k - 1.0, variance_reduced=True),
        BufferedToeplitz(size, *published),
    )
    got = np.concatenate([errors(strategy, k - 1) for strategy in strategies])
    np.testing.assert_allclose(got, want, rtol=0.01)
    shipped = errors(BufferedToeplitz(size), k - 1)
    np.testing.assert_array_less(shipped, np.multiply(want[4:], 1.003 if k == 1 else 1.013))


def test_largest_squared_error_of_1024_steps():
    best = min(
        (BufferedToeplitz(1024), BinaryTree(1024, variance_reduced=True)),
        key=lambda strategy: strategy.prefix_stddev().max(),
    )
    assert best.prefix_stddev().max() ** 2 <= 9.6
    assert BinaryTree(1024).prefix_stddev().max() ** 2 == pytest.approx(110)  # 11 levels, 10 nodes
    assert BinaryTree(1023).prefix_stddev().max() ** 2 == pytest.approx(100)


def square_root(num_steps):
    k = np.arange(1, num_steps)
    return np.cumprod(np.append(1.0, (2 * k - 1) / (2 * k)))


def dense(coefs):
    return np.tril(linalg.toeplitz(coefs))


def test_shipped_coefficients_are_near_square_roots_and_near_optimal():
    for log_steps in (3, 6, 10):
        strategy = BufferedToeplitz(2**log_steps)
        c = square_root(strategy.num_steps)
        norms = np.sqrt(np.cumsum(c**2))[::-1]
        prefixes = np.cumsum(norms[:, None] * linalg.inv(dense(c)), axis=0)
        reference = np.linalg.norm(prefixes, axis=1).mean()
        assert strategy.prefix_stddev().mean() <= 1.002 * reference
    # the least mean over all factorizations of 2^10 steps, by a dense solver
    assert strategy.prefix_stddev().mean() <= 1.013 * 2.955


def test_fit_finds_what_is_shipped_and_better_for_other_scales():
    for num_steps, num_buffers in ((1024, 3), (16, 2)):
        fitted = fit_buffered_toeplitz(num_steps, num_buffers)
        shipped = BufferedToeplitz(num_steps)
        assert len(shipped.decay) == num_buffers
        assert fitted.prefix_stddev().mean() == pytest.approx(
            shipped.prefix_stddev().mean(), rel=1e-4
        )
    growing = fit_buffered_toeplitz(1024, exponent=2.0)
    assert errors(growing, 2)[0] < 0.995 * errors(BufferedToeplitz(1024), 2)[0]
    assert fit_buffered_toeplitz(1).prefix_stddev() == pytest.approx([1.0])
    with pytest.raises(ValueError, match="num_buffers"):
        fit_buffered_toeplitz(10, 0)


def test_every_row_of_the_table_is_right():
    assert sorted(TABLE) == list(range(2, 21))
    largest = {}
    for row in TABLE:
        strategy = BufferedToeplitz(2**row)
        assert (strategy.omega, strategy.decay) == TABLE[row]
        if row <= 16:
            largest[row] = strategy.prefix_stddev().max()
    # close to (1 + ln(4 N) / pi), which no Toeplitz matrix beats by more than a constant
    for row, value in largest.items():
        assert value <= 1.02 * (1 + 0.57722 / np.pi + np.log(2.0**row) / np.pi)
    assert BufferedToeplitz(5).decay == BufferedToeplitz(8).decay
    assert BufferedToeplitz(9).decay == BufferedToeplitz(16).decay
    assert BufferedToeplitz(2**20 + 1).decay == BufferedToeplitz(2**20).decay


@pytest.mark.parametrize("num_steps", [1, 2, 7, 29])
@pytest.mark.always  # the claim
def test_covariance_and_privacy(num_steps):
    """No step can be told: a shift of its update is one of the draws, of norm 1 exactly."""
    rng = np.random.default_rng(0)
    for strategy in (
        BufferedToeplitz(num_steps),
        BufferedToeplitz(num_steps, (0.3, 0.0, 0.69), (1.0, 0.2, 0.0)),
        BufferedToeplitz(num_steps, rng.dirichlet(np.ones(5))[:4], rng.uniform(size=4)),
        BufferedToeplitz(num_steps, (), ()),
    ):
        c = dense(coefficients(num_steps, np.array(strategy.omega), np.array(strategy.decay)))
        norms = np.linalg.norm(c, axis=0)
        np.testing.assert_allclose(strategy.column_norms, norms, rtol=1e-12)
        for scales in scale_families(num_steps).values():
            matrix = noise_map(strategy, scales)
            want = np.cumsum((scales * norms)[:, None] * linalg.inv(c), axis=0)
            np.testing.assert_allclose(
                matrix @ matrix.T, want @ want.T, rtol=1e-8, atol=1e-9 * scales.max() ** 2
            )
            np.testing.assert_allclose(
                strategy.prefix_stddev(scales), np.linalg.norm(want, axis=1), rtol=1e-8
            )
            shifts = smallest_shifts(matrix, scales)
            np.testing.assert_allclose(np.linalg.norm(shifts, axis=0), 1.0, rtol=1e-6)


def test_only_the_column_norms_know_the_number_of_steps():
    coefs = PUBLISHED[10]
    short, long = BufferedToeplitz(9, *coefs), BufferedToeplitz(50, *coefs)
    few, many = (
        np.diff(noise_map(s, np.ones(s.num_steps)), axis=0, prepend=0) / s.column_norms[:, None]
        for s in (short, long)
    )
    np.testing.assert_allclose(few, many[:9, :9], atol=1e-12)


def test_one_step_is_plain_noise(key):
    strategy = BufferedToeplitz(1)
    step, _ = strategy.next(
        lambda level: jnp.arange(3.0), jnp.asarray(2.0), strategy.init(jnp.zeros(3))
    )
    np.testing.assert_array_equal(step, [0, 2, 4])
    drawn = strategy.noise(key, {"a": jnp.zeros(2, jnp.bfloat16)})["a"]
    want = normal(jax.random.fold_in(key, 0), (2,), jnp.float32)
    np.testing.assert_array_equal(drawn, want)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0,), ValueError, "num_steps must be >= 1, got 0"),
        ((2**31,), ValueError, "num_steps must be <= 2"),
        ((3, (0.1,)), ValueError, "omega and decay go together"),
        ((3, (0.1,), (0.1, 0.2)), ValueError, "one length"),
        ((3, (-0.1,), (0.1,)), ValueError, "omega must be >= 0"),
        ((3, (0.5, 0.5), (0.1, 0.2)), ValueError, "sum of omega must be < 1"),
        ((3, (0.5,), (1.1,)), ValueError, "decay must be in"),
        ((3, (0.5,), (float("nan"),)), ValueError, "decay must be finite"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        BufferedToeplitz(*arguments)
