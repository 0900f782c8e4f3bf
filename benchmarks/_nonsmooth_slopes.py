"""How measured and proved Goldstein norms change with records, epsilon, dimension, and radius."""

import time
from collections.abc import Callable
from typing import Any

from dp_accounting import dp_event as dpe

import dpjax
from benchmarks import _nonsmooth_instances as instances
from benchmarks._nonsmooth_runs import DELTA, drawn, emit, score, slope, train
from dpjax.papers._stationarity_plan import Setting, plan_full_batch, plan_single_pass
from dpjax.solvers import OnlineToNonconvex

SIZES = (1_000, 5_000, 20_000, 100_000)
EPSILONS = (0.3, 1.0, 3.0)
MIDDLE = 20_000
# name -> instance of (size, records, seed); sizes, the middle one first; parameters for a size
PROBLEMS: dict[str, tuple[Callable[..., instances.Instance], tuple[int, ...], int]] = {
    "quantile": (instances.quantile_regression, (40, 10, 160), 1),
    "network": (instances.network, (8, 2, 32), 11),
}
RELATIONS = {"multi": "add_or_remove_one", "single": "replace_one"}

# exponents of the bounds, in leading order: of records, epsilon, dimension, radius
BOUNDS = {
    ("single", "1"): (-1 / 3, -1 / 3, 1 / 6, -1 / 3),
    ("single", "longer"): (-1 / 2, -1 / 2, 1 / 2, -1 / 2),
    ("full", "1"): (-2 / 3, -2 / 3, 1 / 3, -1 / 3),
    ("full", "longer"): (-2 / 3, -2 / 3, 1 / 2, -1 / 3),
}
OVER = ("n", "epsilon", "dim", "radius")
_PERIODS = {"1": (1,), "longer": (4, 16, 64, 256)}
_RECORDS = {  # enough for the bounds to say something
    ("single", "1"): 10**8,
    ("single", "longer"): 10**7,
    ("full", "1"): 10**4,
    ("full", "longer"): 10**5,
}
_AROUND = {"epsilon": 1.0, "dim": 256, "radius": 0.1}
_FACTORS = {"n": 3, "epsilon": 3, "dim": 2, "radius": 0.5}
_MOST_MOVES = 10**8
_MANY = 10**6  # directions, where changes of gradients have to be small with the displacement


def measured(fast: bool) -> list[dict[str, Any]]:
    """A row for each problem, number of passes and size."""
    rows = []
    for name, (make, sizes, unit) in PROBLEMS.items():
        if fast and name != "quantile":
            continue
        middle = sizes[0]
        points = [(middle, n, 1.0) for n in SIZES]
        points += [(middle, MIDDLE, epsilon) for epsilon in EPSILONS]
        points += [(size, MIDDLE, 1.0) for size in sizes]
        if fast:
            points = [(middle, 1_000, 1.0)]
        for size, n, epsilon in dict.fromkeys(points):
            seeds = drawn(lambda seed, m=make, s=size, k=n: m(s, k, seed), 2 if fast else 4)
            for passes, relation in RELATIONS.items():
                if fast and passes == "multi":  # what a task runs too
                    continue
                started = time.perf_counter()
                solver = OnlineToNonconvex.for_budget(
                    seeds.problem, n, dpjax.Budget(epsilon, DELTA, relation), passes=passes
                )
                row = {
                    "problem": name,
                    "passes": passes,
                    "relation": relation,
                    "dim": unit * size,
                    "n": n,
                    "epsilon": epsilon,
                }
                row |= score(train(solver, seeds), seeds, samples=8 if fast else 48)
                rows.append(emit("slopes", row, started))
    return rows


def fitted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Exponents of the measured norm, one size changed and the others in the middle."""
    found = []
    for name, (_, sizes, unit) in PROBLEMS.items():
        middle = {"dim": unit * sizes[0], "n": MIDDLE, "epsilon": 1.0}
        for passes in RELATIONS:
            mine = [r for r in rows if (r["problem"], r["passes"]) == (name, passes)]
            slopes = {}
            for over in middle:
                line = [r for r in mine if all(r[k] == v for k, v in middle.items() if k != over)]
                slopes[over] = slope([r[over] for r in line], [r["goldstein"] for r in line])
            found.append({"problem": name, "passes": passes, "slopes": slopes})
    return found


def proved(fast: bool) -> list[dict[str, Any]]:
    """The planned bounds around a large size, and their exponents near it."""
    rows = []
    for (passes, period), exponents in BOUNDS.items():
        if fast and period != "1":
            continue
        base = {"n": _RECORDS[passes, period], **_AROUND}
        row: dict[str, Any] = {"passes": passes, "period": period, **base}
        row["bound"], slopes = _bound(passes, period, base), {}
        for over in OVER:
            moved = base | {over: base[over] * _FACTORS[over]}
            bounds = [row["bound"], _bound(passes, period, moved)]
            slopes[over] = slope([base[over], moved[over]], bounds)
        row |= {"slopes": slopes, "leading": dict(zip(OVER, exponents, strict=True))}
        rows.append(emit("bounds", row))
    return rows


def _bound(passes: str, period: str, sizes: dict[str, Any]) -> float:
    budget = dpjax.Budget(sizes["epsilon"], DELTA)
    relation = RELATIONS["single" if passes == "single" else "multi"]
    setting = Setting(
        num_records=int(sizes["n"]),
        dim=int(sizes["dim"]),
        lipschitz=1.0,
        gap=1.0,
        smoothing=sizes["radius"] / 2,
        reach=sizes["radius"] / 2,
        multiplier=dpjax.privacy.calibrate_noise(dpe.GaussianDpEvent, budget, relation=relation),
        directions=None if period == "1" else _MANY,
    )
    if passes == "single":
        return plan_single_pass(setting, _PERIODS[period]).bound
    return plan_full_batch(setting, _PERIODS[period], _MOST_MOVES).bound
