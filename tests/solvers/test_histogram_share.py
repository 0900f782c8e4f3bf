"""The closed-form share against a search over shares."""

import numpy as np
import pytest

import dpjax
from dpjax.papers.rate_constrained import optimal_histogram_share

SHARES = [0.25, 0.75, 0.75, 0.25]


def _share(**changes):
    problem = dpjax.problems.RateConstrained.linear(
        9, 2, dpjax.problems.demographic_parity(2, 2, 0.1)
    )
    options = {"batch_size": 200.0, "clip_norm": 0.5, "multiplier_norm": 2.0}
    return optimal_histogram_share(problem, **(options | {"subset_shares": SHARES} | changes))


def test_no_other_share_gives_less_noise():
    """d = 20; a parity row has two subsets of one part and sum_k (alpha - mean)^2 = 1/2 each."""
    table = 2.0**2 * (0.5 / 50**2 + 0.5 / 150**2)
    gradient = 20 * 0.5**2 / 200**2

    def cost(share):
        z_table, z_gradient = dpjax.privacy.split_noise_multiplier(1.7, share)
        return table * z_table**2 + gradient * z_gradient**2

    best = _share()
    assert all(cost(best) <= cost(s) * (1 + 1e-9) for s in np.linspace(0.01, 0.99, 99))
    np.testing.assert_allclose(cost(best), (table**0.5 + gradient**0.5) ** 2 * 1.7**2, rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"multiplier_norm": 0.0}, "multiplier_norm must be > 0, got 0.0"),
        ({"subset_shares": [0.5]}, r"subset_shares must have shape \[4\]"),
        ({"rates": [[0.5, 0.5]]}, r"rates must have shape \[4, 2\]"),
    ],
)
def test_bad_guesses(change, message):
    with pytest.raises(ValueError, match=message):
        _share(**change)
