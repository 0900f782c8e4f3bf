"""AIM as a peer for query release on marginals, its models fitted by `mbi`.

Written from McKenna, Mullins, Sheldon and Miklau, "AIM: An Adaptive and Iterative Mechanism for
Differentially Private Synthetic Data", VLDB 2022, Algorithms 2 to 4. Their sensitivities are those
of add/remove; here a record is replaced, which doubles the score's and moves a marginal by sqrt(2).
"""

import dataclasses
import itertools
import math
import time
from typing import Any

import jax
import numpy as np

from benchmarks import _query_peers as peers
from dpjax.privacy import Budget, zcdp_budget

Clique = tuple[str, ...]

_MEASURING_SHARE = 0.9  # of the budget; the rest selects
_ROUNDS_PER_ATTRIBUTE = 16
_MEGABYTES = 80.0
_UNMEASURED = 1e9  # standard deviation, in counts, of a marginal that was not measured


def aim_peer(iterations: int = 1000, tolerance: float | None = 1e-3) -> peers.Peer:
    """AIM, with `mbi`'s mirror descent started from the model of the round before.

    A model of `mbi` is compiled anew for every set of cliques. Here it is compiled once: marginals
    not measured yet enter with a standard deviation of 1e9 records, and those measured twice with
    the weighted mean, which is the same estimate. So a round costs what the whole universe costs.

    Args:
        iterations: Steps of mirror descent each round, at most; 100 are too few to converge, and
            then AIM selects again what it has measured.
        tolerance: `mbi` stops a fit when its loss falls by less than this share in fifty steps,
            twice in turn. None runs all iterations.
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
        mbi = peers.load_mbi()
        run = _Run(mbi, codes, sizes, cliques, np.random.default_rng(seed))
        run.iterations, run.tolerance = iterations, tolerance
        rounds = run.spend(zcdp_budget(Budget(epsilon, delta, "replace_one")))
        config = f"AIM, {rounds} rounds of <= {iterations} iterations, tolerance {tolerance}"
        answers = peers.model_answers(run.model, cliques) / len(codes)
        return peers.released(answers, start, config)

    return peer


@dataclasses.dataclass
class _Measured:
    """Weighted mean of the measurements of one marginal, in counts, and its precision."""

    mean: np.ndarray
    precision: float = 0.0

    def add(self, values: np.ndarray, sigma: float) -> None:
        weight = 1 / sigma**2
        total = self.precision + weight
        self.mean = (self.precision * self.mean + weight * values) / total
        self.precision = total


class _Run:
    iterations: int
    tolerance: float | None

    def __init__(
        self,
        mbi: Any,
        codes: np.ndarray,
        sizes: peers.Sizes,
        cliques: peers.Cliques,
        rng: np.random.Generator,
    ) -> None:
        self._mbi, self._rng, self._records = mbi, rng, len(codes)
        self._domain = mbi.Domain(tuple(sizes), tuple(sizes.values()))
        closure = {c for q in cliques for k in range(1, len(q) + 1) for c in _subsets(q, k)}
        position = {name: i for i, name in enumerate(sizes)}
        self._candidates = sorted(closure, key=lambda c: (len(c), [position[a] for a in c]))
        counts = peers.exact_answers(codes, sizes, self._candidates) * len(codes)
        blocks = peers.blocks(counts, sizes, self._candidates)
        self._counts = dict(zip(self._candidates, blocks, strict=True))
        self._weights = {c: sum(len(set(c) & set(q)) for q in cliques) for c in self._candidates}
        self._measured = {c: _Measured(np.zeros_like(v)) for c, v in self._counts.items()}
        self.model: Any = None

    def spend(self, rho: float) -> int:
        """Runs until the budget is used up; the number of marginals selected."""
        budget = rho
        singles: list[Clique] = [c for c in self._candidates if len(c) == 1]
        rounds = _ROUNDS_PER_ATTRIBUTE * len(singles)
        sigma = math.sqrt(rounds / (2 * _MEASURING_SHARE * budget))  # for a sensitivity of 1
        epsilon = math.sqrt(8 * (1 - _MEASURING_SHARE) * budget / rounds)
        used = 0.0
        for clique in singles:
            self._measure(clique, sigma)
            used += 1 / (2 * sigma**2)
        self.fit()
        tables = self._tables()
        selected, last = 0, False
        while not last:
            left = budget - used
            if left <= 2 * (epsilon**2 / 8 + 1 / (2 * sigma**2)):  # all that is left, at once
                sigma = math.sqrt(1 / (2 * _MEASURING_SHARE * left))
                epsilon = math.sqrt(8 * (1 - _MEASURING_SHARE) * left)
                last = True
            used += epsilon**2 / 8 + 1 / (2 * sigma**2)
            clique = self._select(epsilon, sigma, min(used / budget, 1.0), tables)
            self._measure(clique, sigma)
            self.fit()
            before, tables = tables[clique], self._tables()
            selected += 1
            moved = float(np.abs(tables[clique] - before).sum())
            if moved <= self._noise_level(clique, sigma):  # the noise hides what is left: less
                sigma, epsilon = sigma / 2, 2 * epsilon
        if used > budget * (1 + 1e-9):
            raise AssertionError(f"AIM spent rho={used} of {budget}")
        return selected

    def fit(self) -> None:
        """The model of all measurements, from the one before."""
        measurements = [
            self._mbi.LinearMeasurement(
                jax.numpy.asarray(m.mean),
                clique,
                1 / math.sqrt(m.precision) if m.precision else _UNMEASURED,
            )
            for clique, m in self._measured.items()
        ]
        self.model = self._mbi.estimation.MirrorDescent().estimate(
            self._domain,
            measurements,
            known_total=float(self._records),
            iters=self.iterations,
            warm_start=self.model,
            tol=self.tolerance,
        )

    def _measure(self, clique: Clique, sigma: float) -> None:
        scale = math.sqrt(2) * sigma  # a replaced record moves a marginal by sqrt(2)
        exact = self._counts[clique]
        noisy = exact + scale * self._rng.standard_normal(exact.shape)
        self._measured[clique].add(noisy, scale)

    def _select(
        self, epsilon: float, sigma: float, share: float, tables: dict[Clique, np.ndarray]
    ) -> Clique:
        """The exponential mechanism on how far a marginal is off, less what noise would leave."""
        allowed = [c for c in self._candidates if self._fits(c, share)]
        scores = np.array(
            [
                self._weights[c]
                * (np.abs(self._counts[c] - tables[c]).sum() - self._noise_level(c, sigma))
                for c in allowed
            ]
        )
        # a replaced record moves an l1 distance by at most 2, either way: a range of epsilon
        scale = epsilon / (4 * max(self._weights[c] for c in allowed))
        return allowed[int(np.argmax(scale * scores + self._rng.gumbel(size=scores.shape)))]

    def _fits(self, clique: Clique, share: float) -> bool:
        used = [c for c, m in self._measured.items() if m.precision]
        tree = self._mbi.junction_tree.hypothetical_model_size(self._domain, [*used, clique])
        return bool(tree <= share * _MEGABYTES)

    def _noise_level(self, clique: Clique, sigma: float) -> float:
        """Expected l1 norm of the noise in a marginal."""
        return math.sqrt(2 / math.pi) * math.sqrt(2) * sigma * self._counts[clique].size

    def _tables(self) -> dict[Clique, np.ndarray]:
        return {
            c: np.asarray(self.model.project(c).datavector(), np.float64) for c in self._candidates
        }


def _subsets(clique: Clique, size: int) -> list[Clique]:
    return list(itertools.combinations(clique, size))
