"""Peers for query release: right counts, right noise, and near the truth where it is small."""

import itertools
import math
import sys

import numpy as np
import pytest

from benchmarks import _query_peers as peers
from benchmarks import _query_peers_aim as aim
from benchmarks import _query_peers_mwem as mwem

SIZES = {"a": 3, "b": 2, "c": 4}
CLIQUES = tuple(itertools.combinations(SIZES, 2))


def _codes(n, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.integers(3, size=n)
    return np.stack([a, (a > 0) ^ (rng.random(n) < 0.1), (a + rng.integers(2, size=n))], axis=1)


CODES = _codes(2000)


def test_exact_answers_count_records():
    expected = [
        np.mean((CODES[:, i] == u) & (CODES[:, j] == v))
        for i, j in ((0, 1), (0, 2), (1, 2))
        for u in range(list(SIZES.values())[i])
        for v in range(list(SIZES.values())[j])
    ]
    answers = peers.exact_answers(CODES, SIZES, CLIQUES)
    np.testing.assert_allclose(answers, expected, rtol=1e-12, atol=1e-15)
    split = peers.blocks(answers, SIZES, CLIQUES)
    assert [len(block) for block in split] == [6, 12, 8]


@pytest.mark.parametrize(("epsilon", "mu"), [(0.1, 0.019323), (1.0, 0.177357)])
def test_noise_is_that_of_exact_gaussian_privacy(epsilon, mu):
    n, delta = 48842, 1 / 48842**2
    sigma = peers.answer_noise(n, 35, epsilon, delta)
    assert sigma == pytest.approx(math.sqrt(70) / (n * mu), rel=2e-4)

    # the closed form of delta, at the parameter in use
    def normal(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    used = math.sqrt(70) / (n * sigma)
    spent = normal(-epsilon / used + used / 2) - math.exp(epsilon) * normal(
        -epsilon / used - used / 2
    )
    assert 0.99 * delta < spent <= delta * (1 + 1e-9)


def test_a_replaced_record_moves_the_answers_by_the_sensitivity_in_use():
    other = CODES.copy()
    other[7] = [(CODES[7, 0] + 1) % 3, 1 - CODES[7, 1], (CODES[7, 2] + 1) % 4]
    moved = peers.exact_answers(other, SIZES, CLIQUES) - peers.exact_answers(CODES, SIZES, CLIQUES)
    assert np.linalg.norm(moved) == pytest.approx(math.sqrt(2 * len(CLIQUES)) / len(CODES))


def test_mwem_learns_where_the_budget_is_large_and_not_where_it_is_small():
    exact = peers.exact_answers(CODES, SIZES, CLIQUES)
    error = {
        epsilon: np.abs(
            mwem.mwem_peer(60)(CODES, SIZES, CLIQUES, epsilon, 1e-7, 0)["answers"] - exact
        ).max()
        for epsilon in (0.01, 100.0)
    }
    assert error[100.0] < 0.02 < 0.05 < error[0.01]


def test_weights_move_as_multiplicative_weights_do():
    table = mwem._Weights(SIZES, CLIQUES)
    dense = np.full(24, 1 / 24)
    for query, value in ((3, 0.4), (20, 0.01), (3, 0.5)):
        row = np.zeros((3, 2, 4))
        row[table._where[query]] = 1
        row = row.ravel()
        dense = dense * np.exp(row * (value - row @ dense) / 2)
        dense /= dense.sum()
        table.move(query, value)
    rows = []
    for where in table._where:
        row = np.zeros((3, 2, 4))
        row[where] = 1
        rows.append(row.ravel())
    np.testing.assert_allclose(table.answers(), np.array(rows) @ dense, rtol=1e-12)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mbi", None)
    for peer in (peers.mbi_peer(peers.MbiConfig()), aim.aim_peer()):
        with pytest.raises(ImportError, match=r"pip install mbi==2\.0\.0"):
            peer(CODES, SIZES, CLIQUES, 1.0, 1e-7, 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "peer",
    [
        peers.mbi_peer(peers.MbiConfig(iterations=300)),
        peers.mbi_peer(peers.MbiConfig("universal acceleration", 300, model=False)),
        aim.aim_peer(300),
    ],
    ids=["mirror descent", "universal acceleration", "AIM"],
)
def test_fitted_models_are_near_the_truth_where_the_budget_is_large(peer):
    pytest.importorskip("mbi", exc_type=ImportError)
    released = peer(CODES, SIZES, CLIQUES, 100.0, 1e-7, 0)
    exact = peers.exact_answers(CODES, SIZES, CLIQUES)
    assert np.abs(released["answers"] - exact).max() < 5e-3
    for block in peers.blocks(released["answers"], SIZES, CLIQUES):
        assert block.sum() == pytest.approx(1, abs=1e-4)
        assert block.min() >= 0
