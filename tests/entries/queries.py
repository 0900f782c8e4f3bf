"""Query release."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.papers import MWEM, MirrorDescentRelease, SaddleRelease
from dpjax.problems import QueryRelease
from dpjax.queries import Dense, Domain, Marginals, Tree
from dpjax.sampling import FullBatch
from dpjax.solvers import (
    FrankWolfeRelease,
    GaussianFit,
    HistogramRelease,
    RowsFit,
)
from dpjax.testing import SolverCase, register
from tests.entries.planned import TABLES
from tests.entries.rows import (
    MEASUREMENT,
    SELECTION,
    SWEPT,
    SWEPT_POSITIVE,
    Choice,
    Count,
    positive,
    row,
)

_N, _STEPS = 36, 4
_DOMAIN = Domain({"a": 2, "b": 3, "c": 2})
_PAIRS = Marginals(_DOMAIN, (("a", "b"), ("b", "c")))
_ADD: dict[str, Any] = {"relation": "add_or_remove_one"}


def _codes() -> jax.Array:
    # two records in every cell, so that little noise leaves no probability 0
    more = np.random.default_rng(5).integers(0, _DOMAIN.universe_size, _N - 24)
    return _DOMAIN.codes(np.concatenate([np.tile(np.arange(12), 2), more]).astype(np.int32))


def _dense() -> Dense:
    rng = np.random.default_rng(6)
    return Dense(rng.uniform(-1, 1, (5, _DOMAIN.universe_size)).astype(np.float32))


def _case(
    build: Callable[..., Any],
    workload: Any = _PAIRS,
    values: tuple[Any, Any] = (0.1, 0.3),
) -> SolverCase:
    problem, data = QueryRelease(workload), _codes()
    if not isinstance(workload, Marginals):
        data = _DOMAIN.cells(data)
    # every attribute has codes 0 and 1
    return SolverCase(
        functools.partial(build, problem=problem), problem, data, values, choices={"": range(2)}
    )


def _selection(kind: Any, workload: Any = _PAIRS, **options: Any) -> SolverCase:
    """A method of query release by selection; the noise of a draw is swept."""

    def build(value: Any, problem: QueryRelease) -> Any:
        fields = {"sampler": FullBatch(_STEPS), "noise_scale": value, "num_records": float(_N)}
        relation = options.get("relation", "replace_one")
        bound = problem.sensitivity(relation).score_range
        fields["score_range"] = bound * (1 + (options.get("vertices") == "marginals"))
        return kind(**(fields | options))

    return _case(build, workload)


def _histogram(**options: Any) -> SolverCase:
    def build(value: Any, problem: QueryRelease) -> HistogramRelease:
        del problem
        return HistogramRelease(FullBatch(1), value, float(_N), **options)

    return _case(build, values=(0.013, 0.016))


def _fit(workload: Any = _PAIRS, spread: Any = 1.0, **options: Any) -> SolverCase:
    def build(value: Any, problem: QueryRelease) -> Any:
        del problem
        return GaussianFit(
            FullBatch(1), workload, value * spread, float(_N), fit_steps=40, **options
        )

    return _case(build, workload)


def _rows(**options: Any) -> SolverCase:
    def build(value: Any, problem: QueryRelease) -> RowsFit:
        sizes = {"rows": 8, "fit_steps": 30, "fits": 2}
        return RowsFit(FullBatch(1), problem.workload, value, float(_N), **sizes, **options)

    return _case(build)


_FRANK_WOLFE = functools.partial(_selection, FrankWolfeRelease, step_size=0.5)
_MIRROR = functools.partial(_selection, MirrorDescentRelease, alpha=0.2, offset=2.0)


def _saddle() -> SolverCase:
    def build(value: Any, problem: QueryRelease) -> SaddleRelease:
        bound = problem.sensitivity("replace_one").score_range
        return SaddleRelease(FullBatch(_STEPS), value, 0.5, float(_N), bound)

    return _case(build, values=(5.0, 10.0))


def _mwem() -> SolverCase:
    def build(value: Any, problem: QueryRelease) -> MWEM:
        sensitivity = problem.sensitivity("replace_one")
        bounds = sensitivity.score_range, sensitivity.linf
        return MWEM(FullBatch(_STEPS), value, value, float(_N), *bounds, replays=2)

    return _case(build, values=(0.3, 0.6))


register(
    "FrankWolfeRelease(queries)",
    "solver",
    _FRANK_WOLFE,
    slow=True,
    arguments=row(
        FrankWolfeRelease,
        {"sampler": FullBatch(4)},
        noise_scale=SWEPT,
        step_size=SWEPT_POSITIVE,
        alpha=SWEPT,
        vertices=("queries", Choice()),
        schedule=("sqrt", Choice()),
        output=("last", Choice()),
        noise=("laplace", Choice()),
        **SELECTION,
    ),
    planned=TABLES,
)
register(
    "FrankWolfeRelease(marginals)",
    "solver",
    lambda: _FRANK_WOLFE(vertices="marginals", schedule="sqrt"),
)
register(
    "FrankWolfeRelease(as published)",
    "solver",
    lambda: _FRANK_WOLFE(alpha=0.3, noise="laplace", output="uniform"),
    relative_of="FrankWolfeRelease(queries)",
)
register(
    "FrankWolfeRelease(alpha, last)",
    "solver",
    lambda: _FRANK_WOLFE(_dense(), alpha=0.3, output="last", **_ADD),
    slow=True,
    relative_of="FrankWolfeRelease(queries)",
)
register(
    "FrankWolfeRelease(marginals, average, add or remove)",
    "solver",
    lambda: _FRANK_WOLFE(vertices="marginals", output="average", **_ADD),
    slow=True,
    relative_of="FrankWolfeRelease(marginals)",
)
register(
    "MirrorDescentRelease(gumbel)",
    "solver",
    _MIRROR,
    slow=True,
    arguments=row(
        MirrorDescentRelease,
        {"sampler": FullBatch(4)},
        noise_scale=SWEPT,
        alpha=SWEPT_POSITIVE,
        offset=SWEPT,
        smoothing=SWEPT,
        noise=("per-step", Choice()),
        **SELECTION,
    ),
    planned=TABLES,
)
register(
    "MirrorDescentRelease(histogram-once)",
    "solver",
    lambda: _MIRROR(noise="histogram-once", smoothing=0.1),
    slow=True,
    relative_of="MirrorDescentRelease(gumbel)",
)
register(
    "MirrorDescentRelease(per-step)",
    "solver",
    lambda: _MIRROR(_dense(), noise="per-step", **_ADD),
)
register(
    "SaddleRelease",
    "solver",
    _saddle,
    arguments=row(
        SaddleRelease,
        {"sampler": FullBatch(4)},
        dual_step_size=SWEPT,
        step_size=SWEPT_POSITIVE,
        **SELECTION,
    ),
    planned=TABLES,
)
register(
    "MWEM",
    "solver",
    _mwem,
    arguments=row(
        MWEM,
        {"sampler": FullBatch(4)},
        noise_scale=SWEPT,
        stddev=SWEPT,
        answer_range=(1.0, positive()),
        step_size=SWEPT_POSITIVE,
        replays=(2, Count()),
        **SELECTION,
    ),
    planned=TABLES,
)
register(
    "HistogramRelease",
    "solver",
    _histogram,
    arguments=row(
        HistogramRelease,
        {"sampler": FullBatch(1)},
        projection=("none", Choice()),
        **MEASUREMENT,
    ),
    planned=TABLES,
)
register(
    "HistogramRelease(add or remove, no projection)",
    "solver",
    lambda: _histogram(projection="none", **_ADD),
    slow=True,
    relative_of="HistogramRelease",
)
register(
    "GaussianFit(one noise)",
    "solver",
    _fit,
    slow=True,
    arguments=row(
        GaussianFit,
        {"sampler": FullBatch(1), "measured": TABLES.workload},
        prior=((2.0, 0.7, 0.3), positive(leaf=True)),
        fit_steps=(5, Count(optional=True)),
        **MEASUREMENT,
    ),
    planned=TABLES,
)
register(
    "GaussianFit(a noise for each marginal, add or remove)",
    "solver",
    lambda: _fit(spread=jnp.asarray([1.0, 1.5]), **_ADD),
    relative_of="GaussianFit(one noise)",
)
register(
    "RowsFit(given information)",
    "solver",
    _rows,
    slow=True,
    arguments=row(
        RowsFit,
        {"sampler": FullBatch(1), "measured": TABLES.workload},
        information=(100.0, positive(leaf=True)),
        excess=SWEPT,
        rows=(5, Count()),
        fit_steps=(5, Count()),
        fits=(2, Count()),
        **MEASUREMENT,
    ),
    planned=TABLES,
)
register("RowsFit(fission)", "solver", lambda: _rows(information=None, **_ADD), slow=True)
register(
    "GaussianFit(tree)",
    "solver",
    lambda: _fit(Tree(12, branching=3), spread=jnp.asarray([1.0, 1.5, 2.0]), **_ADD),
    slow=True,
)
register("GaussianFit(dense)", "solver", lambda: _fit(_dense()), slow=True)
