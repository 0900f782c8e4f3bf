"""Which sizes the scaling study runs: from a base point, one at a time.

Sizes are such that what grows is most of a run at the upper end; at the lower end a step's fixed
cost is.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import _scaling_instances as made
from benchmarks._scaling_instances import Instance


class Curve(NamedTuple):
    """Runs of one solver that differ in one size.

    Attributes:
      solver: its name.
      axis: what grows, in words.
      build: makes an instance of the sizes.
      symbol: the size that grows; `runs` for the number of runs at once.
      values: it takes.
      base: all other sizes.
    """

    solver: str
    axis: str
    build: Callable[..., Instance]
    symbol: str
    values: tuple[int, ...]
    base: dict[str, int]

    @property
    def name(self) -> str:
        """Unique."""
        return f"{self.solver}, {self.axis}"

    def instance(self, value: int) -> Instance:
        """At one value of what grows."""
        return self.build(**(self.base | ({} if self.symbol == "runs" else {self.symbol: value})))


def _powers(first: int, last: int, step: int = 2) -> tuple[int, ...]:
    return tuple(2**power for power in range(first, last + 1, step))


def _curves(solver: str, build: Any, *parts: tuple[str, str, tuple[int, ...], dict[str, int]]):
    return [Curve(solver, axis, build, *rest) for axis, *rest in parts]


_N, _P = "records n", "parameters d"
_BATCH, _STEPS, _RUNS = "batch m", "steps T", "runs at once"
_CELLS, _QUERIES = "cells k", "queries j"
_LINEAR = {"n": 2**14, "m": 512, "p": 64, "c": 2, "T": 8}
_WIDE = {"n": 64, "m": 8, "T": 4}
_TABLE = {"n": 2**14, "w": 2}
_QUERY = {"n": 2**14, "k": 4096}

CURVES: list[Curve] = [
    *_curves(
        "DPSGD",
        made.dpsgd,
        (_N, "n", _powers(15, 21), _LINEAR | {"p": 32, "T": 64}),
        (_P, "p", _powers(13, 19), _WIDE | {"c": 2}),
        ("classes c", "c", _powers(5, 11), _LINEAR),
        (_STEPS, "T", _powers(6, 12), _LINEAR),
        (_BATCH, "m", _powers(9, 15), _LINEAR | {"n": 2**17}),
        (_RUNS, "runs", _powers(0, 8), _LINEAR | {"n": 2**12, "m": 64, "p": 16, "T": 32}),
    ),
    *_curves(
        "RateConstrainedSGDA",
        made.sgda,
        ("constraints J", "Q", _powers(4, 10), _LINEAR),
        (_BATCH, "m", _powers(9, 15), _LINEAR | {"n": 2**17, "Q": 2}),
        (_RUNS, "runs", _powers(0, 8), _LINEAR | {"n": 2**12, "m": 64, "p": 16, "T": 32, "Q": 2}),
    ),
    *_curves(
        "DPFTRL",
        made.dpftrl,
        (_N, "n", _powers(13, 19), {"p": 32, "c": 2, "T": 16}),
        (_P, "p", _powers(14, 20), {"n": 64, "c": 2, "T": 8}),
        (_STEPS, "T", _powers(6, 12), {"n": 2**12, "p": 64, "c": 2}),
    ),
    *_curves(
        "OnlineToBatch",
        made.online_to_batch,
        (_N, "n", _powers(12, 18), {"p": 64, "T": 4}),
        (_P, "p", _powers(14, 20), {"n": 8, "T": 4}),
        (_STEPS, "T", _powers(4, 10), {"n": 1024, "p": 64}),
    ),
    *_curves(
        "OnlineToNonconvex",
        made.online_to_nonconvex,
        (_P, "p", _powers(13, 19), _WIDE | {"q": 1}),
        (_BATCH, "m", _powers(9, 15), {"n": 2**17, "p": 64, "T": 4, "q": 1}),
        ("directions q", "q", _powers(2, 8), {"n": 2**14, "m": 512, "p": 64, "T": 4}),
    ),
    *_curves(
        "SaddleMirrorDescent",
        made.saddle_mirror_descent,
        (_N, "n", _powers(13, 19), {"p": 64, "T": 16, "q": 4}),
        (_P, "p", _powers(14, 20), {"n": 32, "T": 4, "q": 4}),
        ("vertices drawn q", "q", _powers(8, 14), {"n": 256, "p": 1024, "T": 4}),
        (_STEPS, "T", _powers(6, 12), {"n": 2**12, "p": 64, "q": 4}),
    ),
    *_curves(
        "AnytimeMirrorDescent",
        made.anytime,
        (_N, "n", _powers(13, 19), {"p": 64, "T": 16, "q": 4}),
        (_P, "p", _powers(14, 20), {"n": 32, "T": 4, "q": 4}),
    ),
    *_curves(
        "MultilevelSaddle",
        made.multilevel,
        (_P, "p", _powers(14, 20), {"m": 4, "M": 0}),
        ("2^M of levels M", "M", (2, 4, 6, 8), {"m": 16, "p": 256}),
    ),
    *_curves(
        "FrankWolfe",
        made.frank_wolfe,
        (_N, "n", _powers(12, 18), {"p": 64, "T": 4}),
        (_P, "p", _powers(14, 20), {"n": 8, "T": 4}),
        (_STEPS, "T", _powers(4, 10), {"n": 1024, "p": 64}),
    ),
    *_curves(
        "FrankWolfeRelease",
        made.frank_wolfe_release,
        (_CELLS, "a", (8, 9, 10, 11), _TABLE | {"T": 8}),
        (_QUERIES, "j", _powers(4, 10), _QUERY | {"T": 8}),
        (_STEPS, "T", _powers(4, 10), _TABLE | {"a": 6}),
    ),
    *_curves(
        "MirrorDescentRelease",
        made.mirror_descent_release,
        (_CELLS, "a", (8, 9, 10, 11), _TABLE | {"T": 8}),
    ),
    *_curves(
        "SaddleRelease",
        made.saddle_release,
        (_CELLS, "a", (8, 9, 10, 11), _TABLE | {"T": 8}),
    ),
    *_curves(
        "MWEM",
        made.mwem,
        (_CELLS, "a", (8, 9, 10, 11), _TABLE | {"T": 2, "r": 4}),
        ("replays r", "r", _powers(2, 8), _TABLE | {"a": 6, "T": 2}),
    ),
    *_curves(
        "GaussianFit",
        made.gaussian_fit,
        (_CELLS, "a", (8, 9, 10, 11), _TABLE | {"E": 8}),
        (_QUERIES, "j", _powers(4, 10), _QUERY | {"E": 8}),
        ("evaluations E", "E", _powers(4, 10), _TABLE | {"a": 6}),
    ),
    *_curves(
        "HistogramRelease",
        made.histogram_release,
        (_N, "n", _powers(16, 22), {"a": 4, "w": 2}),
        (_CELLS, "a", (8, 9, 10, 11), _TABLE),
    ),
]
