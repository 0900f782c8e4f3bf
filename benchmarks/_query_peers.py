"""Peers for query release on marginals: noisy answers, alone or fitted by the package `mbi`.

A peer is `peer(codes [n, A], sizes, cliques, epsilon, delta, seed)`. It returns a dict of `answers`
(float64 `[m]`, fractions, clique after clique in C order), `seconds` of the call, compilation
included, so that the second call of one process is the warm one, and `config`, in words.

All hold under replace-one with the number of records public. Attributes are in the order of `sizes`
and so is every clique. Noise is NumPy's, in float64. Settings are constants of the peer, the same
for every epsilon. `mbi` is asked for on the first call only.
"""

import contextlib
import functools
import importlib
import itertools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from dp_accounting import dp_event as dpe

from dpjax.privacy import Budget, calibrate_noise

Sizes = dict[str, int]
Cliques = Sequence[tuple[str, ...]]
Peer = Callable[[np.ndarray, Sizes, Cliques, float, float, int], dict[str, Any]]

# Quoted, not run by this module: the better of PEP and RAP on Adult at each epsilon, delta 1/n^2,
# largest absolute error over all three-way marginals, settings chosen by that very error (so not
# private); RAP at 0.5 is a single seed. PEP: Liu, Vietri and Wu 2021. RAP: Aydore et al. 2021.
QUOTED = {
    0.1: ("RAP", 0.0241),
    0.25: ("PEP", 0.0125),
    0.5: ("RAP", 0.0067),
    1.0: ("PEP", 0.0042),
}


def exact_answers(codes: np.ndarray, sizes: Sizes, cliques: Cliques) -> np.ndarray:
    """The answers of the records, float64 `[m]`, from integer counts."""
    names, shape = list(sizes), tuple(sizes.values())
    cells = np.ravel_multi_index(tuple(codes.T), shape)
    counts = np.bincount(cells, minlength=math.prod(shape)).reshape(shape)
    axes = [[names.index(name) for name in clique] for clique in cliques]
    return marginal_tables(counts, axes) / len(codes)


def answer_noise(records: int, num_cliques: int, epsilon: float, delta: float) -> float:
    """Standard deviation that makes the answers of whole marginals (epsilon, delta)-DP at once.

    A replaced record moves 1/n between two cells of each marginal: sqrt(2 N) / n in l2.
    """
    # the relation is in the sensitivity, so the multiplier is that of a sensitivity of 1
    noise = _noise_multiplier(epsilon, delta)
    return noise * math.sqrt(2 * num_cliques) / records


@functools.cache
def _noise_multiplier(epsilon: float, delta: float) -> float:
    return calibrate_noise(dpe.GaussianDpEvent, Budget(epsilon, delta))


def noisy_answers(
    codes: np.ndarray, sizes: Sizes, cliques: Cliques, epsilon: float, delta: float, seed: int
) -> tuple[np.ndarray, float]:
    """All answers with Gaussian noise, `[m]`, and its standard deviation."""
    exact = exact_answers(codes, sizes, cliques)
    sigma = answer_noise(len(codes), len(cliques), epsilon, delta)
    return exact + sigma * np.random.default_rng(seed).standard_normal(exact.shape), sigma


def gaussian(
    codes: np.ndarray, sizes: Sizes, cliques: Cliques, epsilon: float, delta: float, seed: int
) -> dict[str, Any]:
    """The noisy answers as they are: consistent with no table."""
    start = time.perf_counter()
    answers, _ = noisy_answers(codes, sizes, cliques, epsilon, delta, seed)
    return released(answers, start, "Gaussian noise, nothing fitted")


def blocks(answers: np.ndarray, sizes: Sizes, cliques: Cliques) -> list[np.ndarray]:
    """The answers of each clique."""
    lengths = [math.prod(sizes[name] for name in clique) for clique in cliques]
    return np.split(answers, list(itertools.accumulate(lengths))[:-1])


def marginal_tables(cube: np.ndarray, kept: Sequence[Sequence[int]]) -> np.ndarray:
    """The tables of these axes, one after another; sums over fewer axes are shared."""
    tables = {frozenset(range(cube.ndim)): cube}

    def table(axes: frozenset[int]) -> np.ndarray:
        if axes not in tables:
            missing = [axis for axis in range(cube.ndim) if axis not in axes]
            # so the largest axis goes first
            last = min(missing, key=lambda axis: cube.shape[axis])
            above = axes | {last}
            tables[axes] = table(above).sum(axis=sorted(above).index(last))
        return tables[axes]

    return np.concatenate([table(frozenset(axes)).ravel() for axes in kept])


def released(answers: np.ndarray, start: float, config: str) -> dict[str, Any]:
    return {"answers": answers, "seconds": time.perf_counter() - start, "config": config}


# mbi --------------------------------------------------------------------------------------------

MBI_ESTIMATORS = {
    "mirror descent": "MirrorDescent",  # what mbi recommends
    "L-BFGS": "LBFGS",
    "dual averaging": "DualAveraging",
    "interior gradient": "InteriorGradient",
    "universal acceleration": "UniversalAcceleratedMethod",
}
MBI_ITERATIONS = (100, 300, 1000)  # the last is mbi's default; it counts in fifties


class MbiConfig(NamedTuple):
    """How `mbi` fits; in float64 it is run within `jax.enable_x64`.

    The accelerated estimators average marginals, and end with a likelihood fit by L-BFGS that turns
    the average into a model. On all three-way marginals that fit takes minutes, or stalls. With
    `model=False` it is left out, and the averaged marginals are the answers.
    """

    estimator: str = "mirror descent"
    iterations: int = 1000
    x64: bool = False
    model: bool = True

    def words(self) -> str:
        precision = "float64" if self.x64 else "float32"
        kind = "" if self.model else ", marginals only"
        return f"mbi {self.estimator}, {self.iterations} iterations, {precision}{kind}"


def load_mbi() -> Any:
    """The package `mbi`.

    Raises:
        ImportError: It is not installed.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "JAX is running in float32")  # it is asked for by name
        warnings.filterwarnings("ignore", "JAX persistent compilation cache")
        try:
            return importlib.import_module("mbi")
        except ImportError as error:
            raise ImportError(
                "this peer is the package mbi, which is not installed or does not load: "
                f"`pip install mbi==2.0.0` (it needs jax>=0.9): {error}"
            ) from error


def mbi_fit(
    noisy: np.ndarray,
    sigma: float,
    sizes: Sizes,
    cliques: Cliques,
    config: MbiConfig,
    *,
    records: int,
    callback: Callable[[Any], None] | None = None,
) -> dict[str, Any]:
    """Fits `mbi`'s graphical model to given noisy answers.

    Args:
        noisy: Answers `[m]`, fractions.
        sigma: Their standard deviation.
        sizes: Codes of each attribute.
        cliques: The marginals answered.
        config: Estimator and iterations.
        records: n, public: `mbi` works with counts.
        callback: Is given the marginals every 50 iterations.

    Returns:
        As a peer; `answers` are those of one distribution.
    """
    mbi = load_mbi()
    kind = getattr(mbi.estimation, MBI_ESTIMATORS[config.estimator])
    estimator = kind() if config.model else _marginals_only(kind)()
    start = time.perf_counter()
    with precision(config.x64):
        domain = mbi.Domain(tuple(sizes), tuple(sizes.values()))
        measured = [
            mbi.LinearMeasurement(jax.numpy.asarray(block * records), clique, sigma * records)
            for clique, block in zip(cliques, blocks(noisy, sizes, cliques), strict=True)
        ]
        model = estimator.estimate(
            domain,
            measured,
            known_total=float(records),
            iters=config.iterations,
            callback_fn=callback,
        )
        answers = model_answers(model, cliques) / records
    return released(answers, start, config.words())


@functools.cache  # one class each, or every call would be compiled anew
def _marginals_only(kind: Any) -> Any:
    class MarginalsOnly(kind):
        def _finalize(self, state: Any, known_total: Any, constraints: Any = ()) -> Any:
            return self._callback_value(state, known_total, constraints)

    return MarginalsOnly


def mbi_peer(config: MbiConfig) -> Peer:
    """One Gaussian release of all marginals, then `mbi_fit`."""

    def peer(
        codes: np.ndarray, sizes: Sizes, cliques: Cliques, epsilon: float, delta: float, seed: int
    ) -> dict[str, Any]:
        start = time.perf_counter()
        noisy, sigma = noisy_answers(codes, sizes, cliques, epsilon, delta, seed)
        fitted = mbi_fit(noisy, sigma, sizes, cliques, config, records=len(codes))
        return released(fitted["answers"], start, config.words())

    return peer


def model_answers(model: Any, cliques: Cliques) -> np.ndarray:
    """Counts of a model of `mbi` for each cell of these marginals, float64."""
    tables = [model.project(clique).datavector() for clique in cliques]
    return np.concatenate([np.asarray(table, np.float64) for table in tables])


def precision(x64: bool) -> Any:
    """A context in which JAX computes in float64, or one that changes nothing."""
    return jax.enable_x64(True) if x64 else contextlib.nullcontext()
