"""Learning, from runs on both neighbours, a score that tells them apart."""

from collections.abc import Callable

import numpy as np

from dpjax.audit._events import Level, best_event

_RIDGES = (1e-8, 1e-4, 1e-2, 1.0)
_MOST_COLUMNS = 400
_MOST_QUADRATIC = 60
_SUBSETS = (6, 24, 96)
_MOST_VALUES = 16
_LARGEST = 1e100  # of a released number: squares of larger ones overflow

Score = Callable[[np.ndarray], np.ndarray]


def learn_score(first: np.ndarray, second: np.ndarray, level: Level) -> Score:
    """A score of released values `[n, F]`, learnt from runs on two neighbours.

    Discriminants of Gaussians with one covariance and with two, of few columns and of many, at
    several ridges, learnt on two thirds of the runs; what looks best on the others is taken.
    """
    features = _features(first, second)
    one, other = features(first), features(second)
    size, rest = (2 * len(first)) // 3, (2 * len(second)) // 3

    def quality(score: Score) -> float:
        return best_event(score(one[size:]), score(other[rest:]), level)[1]

    best = max(_candidates(one[:size], other[:rest]), key=quality)
    return lambda runs: best(features(runs))


def _features(first: np.ndarray, second: np.ndarray) -> Score:
    """From released values `[n, F]` to columns `[n, C]` of about unit spread.

    Few integer values become indicators; that a value is not finite, where that happens at times,
    becomes a column of its own.
    """
    both = np.concatenate([first, second])
    finite, clean = np.isfinite(both), _finite(both)
    bad = np.flatnonzero(finite.any(0) & ~finite.all(0))
    kept = np.flatnonzero(np.ptp(clean, axis=0) > 0)
    if kept.size > _MOST_COLUMNS:
        half = len(first)
        gap = np.abs(clean[:half].mean(0) - clean[half:].mean(0))
        noise = clean[:half].std(0) + clean[half:].std(0)
        power = (gap / np.maximum(noise, 1e-12 * np.abs(clean).max(0) + 1e-300))[kept]
        kept = np.sort(kept[np.argsort(power)[-_MOST_COLUMNS:]])
    values = []
    for column in kept:
        seen = np.unique(clean[: 10 * _MOST_VALUES, column])
        if seen.size <= _MOST_VALUES and np.all(seen == np.round(seen)):
            seen = np.unique(clean[:, column])
            if 2 < seen.size <= _MOST_VALUES:
                values.append((column, seen))

    def columns(runs: np.ndarray) -> np.ndarray:
        clean, not_finite = _finite(runs), ~np.isfinite(runs)
        indicators = [(clean[:, [column]] == seen).astype(float) for column, seen in values]
        parts = [clean[:, kept], not_finite[:, bad].astype(float), *indicators]
        return np.concatenate(parts, axis=1)

    made = columns(both)
    centre, spread = made.mean(0), made.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    return lambda runs: (columns(runs) - centre) / spread


def _finite(runs: np.ndarray) -> np.ndarray:
    return np.clip(np.where(np.isfinite(runs), runs, 0.0), -_LARGEST, _LARGEST)


def _candidates(first: np.ndarray, second: np.ndarray) -> list[Score]:
    """Discriminants of the columns that differ most between the two, of few and of many."""
    power = np.abs(first.mean(0) - second.mean(0)) / (first.std(0) + second.std(0) + 1e-9)
    order = np.argsort(-power)
    sizes = {min(size, order.size) for size in (*_SUBSETS, order.size)} - {0}
    if not sizes:
        return [lambda runs: np.zeros(len(runs))]
    return [
        _of_columns(order[:size], score)
        for size in sorted(sizes)
        for score in _discriminants(first[:, order[:size]], second[:, order[:size]])
    ]


def _discriminants(first: np.ndarray, second: np.ndarray) -> list[Score]:
    columns = first.shape[1]
    means = [runs.mean(0) for runs in (first, second)]
    spreads = [np.cov(runs, rowvar=False).reshape(columns, columns) for runs in (first, second)]
    pooled, gap = (spreads[0] + spreads[1]) / 2, means[1] - means[0]
    found = [_linear(np.linalg.solve(pooled + ridge * np.eye(columns), gap)) for ridge in _RIDGES]
    if columns <= _MOST_QUADRATIC:
        found += [_quadratic(means, spreads, ridge) for ridge in _RIDGES[1:3]]
    return found


def _of_columns(columns: np.ndarray, score: Score) -> Score:
    return lambda runs: score(runs[:, columns])


def _linear(weights: np.ndarray) -> Score:
    return lambda runs: runs @ weights


def _quadratic(means: list[np.ndarray], spreads: list[np.ndarray], ridge: float) -> Score:
    eye = np.eye(len(means[0]))
    roots = [np.linalg.cholesky(np.linalg.inv(spread + ridge * eye)) for spread in spreads]

    def score(runs: np.ndarray) -> np.ndarray:
        far = [
            np.sum(((runs - mean) @ root) ** 2, axis=1)
            for mean, root in zip(means, roots, strict=True)
        ]
        return far[0] - far[1]

    return score
