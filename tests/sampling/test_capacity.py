import math

import pytest
from scipy import stats

from dpjax.core._records import whole_rows
from dpjax.random._gaps import gaps_shortfall
from dpjax.sampling import (
    PoissonSampler,
    default_capacity,
    overflow_probability,
    poisson_capacity,
)


def test_adult_capacity_is_minimal():
    n, rate, steps = 36_000, 512 / 36_000, 5000
    capacity = poisson_capacity(n, rate, steps, delta=1e-5, epsilon=3.0)
    bound = 0.01 * 1e-5 / ((1 + math.exp(3)) * steps)
    # P[B > 678] = 7.8617e-13 (40-digit sum) <= 9.4852e-13 < P[B > 677] = 1.0521e-12;
    # in the form P[B >= capacity] the same bound reads 679
    assert capacity == 678
    assert overflow_probability(n, rate, 678) == pytest.approx(7.861740263984e-13, rel=1e-9)
    assert overflow_probability(n, rate, 678) <= bound < overflow_probability(n, rate, 677)


@pytest.mark.parametrize("n", [1, 2, 31, 100, 36_000, 10**8, 2**31 - 1])
@pytest.mark.parametrize("rate", [1e-9, 0.01, 0.5, 1.0])
def test_default_capacity(n, rate):
    capacity = default_capacity(n, rate, 3000)
    assert 1 <= capacity <= whole_rows(n + 1)
    assert capacity == whole_rows(capacity)
    p = overflow_probability(n + 1, rate, capacity)
    if 32 <= capacity <= n:
        assert 3000 * p * (1 + math.exp(10)) <= 0.01 * 1e-5
        if capacity > 32:
            assert 3000 * overflow_probability(n + 1, rate, capacity - 32) * math.exp(10) > 1e-7
    assert PoissonSampler(rate, 3000, n).capacity == capacity


def test_huge_epsilon_does_not_overflow():
    assert poisson_capacity(100, 0.5, 10, delta=1e-5, epsilon=1e6) == 100


def test_failure_probability_declare():
    n, rate, steps, capacity = 36_000, 512 / 36_000, 3000, 600
    host = PoissonSampler(rate, steps, n, capacity, method="host")
    gaps = PoissonSampler(rate, steps, n, capacity)
    exact = steps * stats.binom.sf(capacity, n + 1, rate)
    assert host.failure_probability() == pytest.approx(exact, rel=1e-12)
    # three digits, fewer than 100 thresholds: the tables cost less than this
    tables = gaps_shortfall(n, rate, gaps._draws())
    assert 0 < tables < capacity * 100 * 2.0**-97 + (608 * 100 * 2.0**-64) ** 2
    assert gaps.failure_probability() == pytest.approx(exact, rel=1e-12)


def test_failure_probability_truncate():
    n, rate, steps, capacity = 36_000, 512 / 36_000, 3000, 540
    host = PoissonSampler(rate, steps, n, capacity, "host", "truncate")
    gaps = PoissonSampler(rate, steps, n, capacity, "gaps", "truncate")
    assert host.failure_probability() == 0.0
    assert 0 < gaps.failure_probability() < 1e-10
    assert PoissonSampler(rate, steps, n, capacity).failure_probability() == 1.0


def test_full_capacity_still_counts_the_neighbour():
    """With n + 1 records and n slots there is a batch that does not fit."""
    sampler = PoissonSampler(0.5, 2, 4, capacity=4, method="host")
    assert sampler.failure_probability() == pytest.approx(2 * 0.5**5)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"delta": 0.0}, r"delta must lie in \(0, 1\), got 0.0"),
        ({"epsilon": 0.0}, "epsilon must be > 0, got 0.0"),
        ({"rate": 1.5}, r"rate must lie in \(0, 1\], got 1.5"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"num_records": 0}, "num_records must be >= 1, got 0"),
    ],
)
def test_bad_input(kwargs, message):
    good = {"num_records": 100, "rate": 0.1, "steps": 10, "delta": 1e-5, "epsilon": 1.0}
    with pytest.raises(ValueError, match=message):
        poisson_capacity(**{**good, **kwargs})


@pytest.mark.parametrize("rate", [1.0, 0.999, 0.5])
def test_small_data_sets_leave_a_budget_to_spend(rate):
    """The default capacity counts the neighbour with one record more."""
    assert PoissonSampler(rate, 20, 200).failure_probability() < 1e-9
