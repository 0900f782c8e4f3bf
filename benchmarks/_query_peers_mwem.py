"""MWEM as a peer for query release on marginals."""

import itertools
import math
import time
from typing import Any

import numpy as np

from benchmarks import _query_peers as peers
from dpjax.privacy import Budget, bounded_range_eta, zcdp_budget

MWEM_ROUNDS = (20, 60, 200)


def mwem_peer(rounds: int = 200, replays: int = 4) -> peers.Peer:
    """Multiplicative weights with the exponential mechanism, of single cells.

    Each round picks the worst of the m answers by the exponential mechanism on its absolute error,
    measures it with Gaussian noise, and replays `replays` times all measurements so far as steps
    of multiplicative weights. The last distribution answers. Selection and measurement share each
    round's zero-concentrated budget, rho = rho_total / rounds, alike.

    Source: Hardt, Ligett and McSherry 2012, with their Laplace noise and basic composition replaced
    by tight bounded-range and Gaussian accounting.
    """

    def peer(
        codes: np.ndarray,
        sizes: peers.Sizes,
        cliques: peers.Cliques,
        epsilon: float,
        delta: float,
        seed: int,
    ) -> dict[str, Any]:
        start = time.perf_counter()
        rng = np.random.default_rng(seed)
        counts = peers.exact_answers(codes, sizes, cliques) * len(codes)
        rho = zcdp_budget(Budget(epsilon, delta, "replace_one")) / rounds / 2
        # a replaced record changes a count by at most 1, its absolute error too: a range of 2
        inverse_temperature = bounded_range_eta(rho) / 2
        sigma = math.sqrt(1 / (2 * rho))
        table = _Weights(sizes, cliques)
        measured: list[tuple[int, float]] = []
        for _ in range(rounds):
            scores = np.abs(len(codes) * table.answers() - counts)
            worst = int(np.argmax(inverse_temperature * scores + rng.gumbel(size=scores.shape)))
            measured.append((worst, float(counts[worst] + sigma * rng.standard_normal())))
            for _ in range(replays):
                for query, value in measured:
                    table.move(query, value / len(codes))
        config = f"MWEM, {rounds} rounds, {replays} replays"
        return peers.released(table.answers(), start, config)

    return peer


class _Weights:
    """A distribution over the universe, moved along single cells of marginals."""

    def __init__(self, sizes: peers.Sizes, cliques: peers.Cliques) -> None:
        names, shape = list(sizes), tuple(sizes.values())
        self._cube = np.full(shape, 1 / math.prod(shape))
        self._total = 1.0
        self._axes = [[names.index(name) for name in clique] for clique in cliques]
        self._where: list[tuple[Any, ...]] = []
        for axes in self._axes:
            for codes in itertools.product(*(range(shape[axis]) for axis in axes)):
                index: list[Any] = [slice(None)] * len(shape)
                for axis, code in zip(axes, codes, strict=True):
                    index[axis] = code
                self._where.append(tuple(index))

    def answers(self) -> np.ndarray:
        self._cube /= self._cube.sum()  # clears what rounding has left
        self._total = 1.0
        return peers.marginal_tables(self._cube, self._axes)

    def move(self, query: int, value: float) -> None:
        """One step of multiplicative weights towards the measured answer."""
        cells = self._cube[self._where[query]]
        mass = float(cells.sum())
        factor = math.exp((value - mass / self._total) / 2)
        cells *= factor
        self._total += mass * (factor - 1)
