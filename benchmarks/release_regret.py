"""What `dpjax.release` chooses against all that it could have chosen, on ten workloads.

Marginals, prefixes, ranges, halfspaces, sparse queries and mixes of these, on parts of Adult and on
tables drawn here, of 300 to 50,000 records; delta 1/n^2, replace-one, five seeds. Every method is
run by its defaults, and where an axis is ordered, the fit to a tree of its blocks too; the mixture
of products for pairs alone, since it takes minutes for triples. The error is root mean square over
queries, the mean of the seeds; regret is the error of the choice over the least one. In a first run
the choice lost by up to 12 times (ranges, halfspaces, prefixes of a product). That weights of other
queries than marginals have one prior variance of log probabilities, the tree for any
queries of a line, and the factor of cells were then chosen on 15 other instances of like kinds, of
other seeds and sizes; the cells of those three are not fresh.
"""

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks._text import table
from dpjax.api._predicted import gram, level_precisions
from dpjax.api._release import METHODS, choose
from dpjax.problems import QueryRelease
from dpjax.queries import (
    Concat,
    Dense,
    Domain,
    Halfspace,
    Marginals,
    Prefix,
    Sparse,
    Tree,
    Workload,
)

SEEDS = 5
EPSILONS = (0.1, 0.5, 2.0)
_MOST_CELLS = 2**16  # of methods that draw from cells by themselves


class Case(NamedTuple):
    """Queries, records, and the ordered axis that a tree is of."""

    name: str
    workload: Workload
    records: np.ndarray
    tree: Tree | None = None


def cases() -> Iterator[Case]:
    """The ten."""
    adult = {k: column[-16_281:] for k, column in dpjax.datasets.adult_table().items()}
    sex = np.unique(adult["sex"], return_inverse=True)[1]
    married = np.unique(adult["marital-status"], return_inverse=True)[1]
    work = np.unique(adult["occupation"], return_inverse=True)[1]
    race = np.unique(adult["race"], return_inverse=True)[1]
    age = np.clip((adult["age"] - 17) // 4, 0, 15)
    codes = np.stack([sex, race, married, work, age], axis=1).astype(np.int32)
    domain = Domain({"sex": 2, "race": 5, "married": 7, "work": 15, "age": 16})
    yield Case("2-way marginals, 5 attributes of Adult", Marginals.all_kway(domain, 2), codes)
    some = domain.project(("sex", "married", "work", "age"))
    few = codes[:2_000, [0, 2, 3, 4]]
    yield Case("3-way marginals, 4 attributes, n = 2,000", Marginals.all_kway(some, 3), few)

    rng = np.random.default_rng(2027)
    weight = np.clip(adult["fnlwgt"] / 1000, 0, 511.9).astype(np.int32)
    yield Case("prefixes, 512 cells of Adult's weights", Prefix(512), weight, Tree(512))
    pay = np.concatenate([rng.normal(70, 4, 1_500), rng.gamma(2, 30, 3_500)])
    line = np.clip(pay, 0, 255).astype(np.int32)
    ranges = np.array(
        [[i <= j <= k for j in range(256)] for i in range(256) for k in range(i, 256)]
    )
    yield Case("all ranges, 256 cells", Dense(ranges), line, Tree(256))
    by_age = domain.project(("sex", "age"))
    both = np.stack([sex, age], axis=1).astype(np.int32)[:3_000]
    sexes = [np.arange(32) // 16 == s for s in range(2)]
    upto = [np.arange(32) % 16 <= a for a in range(16)]
    crossed = Dense(np.array([s & a for s, a in itertools.product(sexes, upto)]))
    yield Case("prefixes of age by sex", crossed, by_age.cells(both), Tree(32))

    mixed = np.array([[1, 0.5, -0.2], [0.5, 1, 0.3], [-0.2, 0.3, 1]])
    normal = rng.multivariate_normal(np.zeros(3), mixed, 20_000)
    grid = Domain({"a": 10, "b": 8, "c": 10})
    points = np.clip((normal + 2.5) / 5 * grid.shape, 0, np.array(grid.shape) - 1).astype(np.int32)
    places = np.array(list(itertools.product(*(np.arange(k) / k for k in grid.shape))))
    cut = Halfspace(places, rng.normal(size=(20, 3)))
    yield Case("halfspaces, 20 directions", cut, grid.cells(points))
    few_cut = Halfspace(places, rng.normal(size=(4, 3)))
    yield Case("halfspaces, 4 directions, n = 300", few_cut, grid.cells(points[:300]))

    pairs = Marginals.all_kway(grid, 2)
    yield Case("2-way marginals and prefixes", Concat([pairs, Prefix(grid, "a")]), points)
    yield Case("2-way marginals and halfspaces", Concat([pairs, few_cut]), points[:5_000])
    m, width = 3_000, 40
    columns = np.concatenate([rng.choice(2_000, width, replace=False) for _ in range(m)])
    sparse = Sparse(
        np.repeat(np.arange(m), width),
        columns,
        np.ones(m * width, np.int8),
        num_queries=m,
        universe_size=2_000,
    )
    skewed = rng.choice(2_000, 50_000, p=rng.dirichlet(np.full(2_000, 0.1)))
    yield Case("sparse queries, 2,000 cells", sparse, skewed)


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All cases; `fast` takes the smallest two, one epsilon and seed."""
    del data
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(cases()):
        if fast and number not in (4, 6):
            continue
        for epsilon in EPSILONS[1:2] if fast else EPSILONS:
            rows += errors(case, epsilon, 1 if fast else SEEDS)
        jax.clear_caches()
    return {"delta": "1/n^2", "rows": rows}


def errors(case: Case, epsilon: float, seeds: int) -> list[dict[str, Any]]:
    """A row for each method of one case."""
    n, workload = len(case.records), case.workload
    problem, budget = QueryRelease(workload), dpjax.Budget(epsilon, 1 / n**2, "replace_one")
    truth = np.asarray(workload.answers_of_records(case.records), float)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chosen, options, _ = choose(problem, n, budget)
        candidates = makers(case, n, budget)
        name = chosen + ("" if not options else ", as chosen")
        candidates[name] = lambda: METHODS[chosen](problem, n, budget, **options)
        found = []
        for method, make in candidates.items():
            solver = make()
            keys = jax.random.split(jax.random.key(11), seeds)
            records = jnp.asarray(case.records)
            off = [
                np.asarray(dpjax.solve(solver, problem, records, key=key).params.answers) - truth
                for key in keys
            ]
            rms = [float(np.sqrt(np.mean(each**2))) for each in off]
            found.append(
                {
                    "case": case.name,
                    "epsilon": epsilon,
                    "method": method,
                    "chosen": method == name,
                    "rms": float(np.mean(rms)),
                    "max": float(np.mean([np.abs(each).max() for each in off])),
                }
            )
            print(found[-1], flush=True)
    return found


def makers(case: Case, n: int, budget: dpjax.Budget) -> dict[str, Callable[[], Any]]:
    """What could have been chosen."""
    problem, cells = QueryRelease(case.workload), case.workload.universe_size
    found: dict[str, Callable[[], Any]] = {}
    for method, make in METHODS.items():
        if method == "rows" and not _of_pairs(case.workload):
            continue
        if method in ("mwem", "histogram") and cells > _MOST_CELLS:
            continue
        found[method] = lambda make=make: make(problem, n, budget)
    if case.tree is not None:
        tree = case.tree
        options: dict[str, Any] = {"measured": tree}
        options["allocation"] = level_precisions(tree, gram(case.workload))
        found["gaussian_fit, a tree"] = lambda: METHODS["gaussian_fit"](
            problem, n, budget, **options
        )
    return found


def _of_pairs(workload: Workload) -> bool:
    return isinstance(workload, Marginals) and max(map(len, workload.cliques)) <= 2


def defaults() -> dict[str, Any]:
    """What the rule takes for a line and for halfspaces."""
    found = {}
    for case in cases():
        if case.name in ("prefixes of age by sex", "halfspaces, 4 directions, n = 300"):
            n = len(case.records)
            problem, budget = QueryRelease(case.workload), dpjax.Budget(0.5, 1 / n**2)
            chosen, options, _ = choose(problem, n, budget)
            found[case.name] = METHODS[chosen](problem, n, budget, **options)
    return found


def regrets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each case and epsilon: the choice, the best, and the ratio of their errors."""
    found = []
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault((row["case"], row["epsilon"]), []).append(row)
    for (case, epsilon), rows in groups.items():
        best = min(rows, key=lambda row: row["rms"])
        chosen = next(row for row in rows if row["chosen"])
        found.append(
            {
                "case": case,
                "epsilon": epsilon,
                "chosen": chosen["method"],
                "best": best["method"],
                "rms": chosen["rms"],
                "regret": chosen["rms"] / best["rms"],
            }
        )
    return found


def readme(result: dict[str, Any]) -> str:
    """Markdown table."""
    header = ["case", "epsilon", "chosen", "error", "best", "regret"]
    lines = [
        [
            r["case"],
            f"{r['epsilon']:g}",
            r["chosen"],
            f"{r['rms']:.2g}",
            r["best"],
            f"{r['regret']:.2f}",
        ]
        for r in regrets(result)
    ]
    return table(header, lines)


summary = readme
