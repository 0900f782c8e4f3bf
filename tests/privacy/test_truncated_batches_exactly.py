"""Batches cut uniformly at random: the library's event against exact mixtures on tiny data sets.

Every record contributes -1, 0 or 1 to a sum with Gaussian noise; the output is then a mixture of
Gaussians over who is drawn and who is kept, and its hockey-stick divergence is a one-dimensional
integral.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import dpjax
from dpjax.privacy import joint_poisson_event

GRID = np.linspace(-10, 10, 20_001)


def _density(values, rate, capacity, noise):
    """Density on the grid of the noisy sum of a batch cut to `capacity` members."""
    sums: dict[float, float] = {}
    n = len(values)
    for size in range(n + 1):
        for batch in itertools.combinations(range(n), size):
            drawn = rate**size * (1 - rate) ** (n - size)
            kept = list(itertools.combinations(batch, min(size, capacity)))
            for members in kept:
                total = float(sum(values[i] for i in members))
                sums[total] = sums.get(total, 0.0) + drawn / len(kept)
    return sum(w * stats.norm.pdf(GRID, s, noise) for s, w in sums.items())


def _divergence(p, q, epsilon):
    return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), GRID))


def _guarantee(rate, capacity, noise, num_records, relation):
    event = joint_poisson_event(
        rate, 1, gaussian=noise, truncated_batch_size=capacity, num_records=num_records
    )
    return dpjax.Guarantee(event, relation)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize(("rate", "noise"), [(0.5, 1.0), (0.2, 0.7), (0.9, 2.0)])
def test_replace_one_covers_every_data_set_of_its_size(n, capacity, rate, noise):
    guarantee = _guarantee(rate, capacity, noise, n, "replace_one")
    for epsilon in (0.0, 0.3, 1.0):
        claimed, worst = guarantee.delta(epsilon), 0.0
        for others in itertools.combinations_with_replacement((-1, 0, 1), n - 1):
            densities = [_density((*others, v), rate, capacity, noise) for v in (-1, 0, 1)]
            for p, q in itertools.permutations(densities, 2):
                worst = max(worst, _divergence(p, q, epsilon))
        assert worst <= claimed + 1e-6
        assert worst > 0.3 * claimed  # not far off: the search has power


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_fewer_records_than_declared_break_the_claim(relation):
    """Why the sampler wants the exact number, and the solvers replace-one, where it is public."""
    rate, capacity, noise = 0.5, 1, 0.5
    claimed = _guarantee(rate, capacity, noise, 3, relation).delta(0.0)
    other = () if relation == "add_or_remove_one" else (-1,)
    found = _divergence(
        _density((1,), rate, capacity, noise), _density(other, rate, capacity, noise), 0.0
    )
    assert found > 1.02 * claimed
