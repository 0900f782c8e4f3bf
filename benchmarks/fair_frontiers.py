"""Error against disparity of private fair training: Adult, Credit default, Parkinsons.

Every run uses the solver's defaults and joint accounting, and returns the averaged iterate, but for
`adult_parity_as_published`, which takes the printed method's settings (Laplace table, soft rates,
unbounded multipliers, last iterate). A frontier is traced by the slack alone, in one compiled
function; `adult_1000_parity` and the like are of so many of Adult's training rows. Mean and
standard deviation over seeds of the hard test error and disparity, and the mean disparity on the
training rows. The non-private line is full-batch descent-ascent with neither noise nor clipping.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks import _runner
from benchmarks.datasets import credit_default, parkinsons
from dpjax.papers.rate_constrained import rate_constrained_sgda

DELTA = 1e-5
SEEDS = 10
EPSILONS = (0.1, 1.0, 3.0)
PARITY_SLACKS = (0.0, 0.01, 0.02, 0.05, 0.08, 0.2)
FNR_SLACKS = (0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
SUBSAMPLES = (1_000, 3_000, 10_000)
PUBLISHED = {
    "adult_parity": [
        {"method": "DP-FERMI (as printed, epsilon 1)", "error": 0.176, "disparity": 0.046},
        {"method": "DP-FERMI (as printed, epsilon 1)", "error": 0.187, "disparity": 0.010},
    ]
}


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All frontiers; `fast` takes two slacks, two seeds and 50 steps of Adult alone."""
    adult = dpjax.datasets.adult()
    cases: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
        "adult_parity": (adult, parity, PARITY_SLACKS, {})
    }
    if not fast:
        credit = credit_default(path=data and data / "credit_default.csv.gz")
        voices = parkinsons(path=data and data / "parkinsons_updrs.csv.gz")
        cases["adult_parity_as_published"] = (adult, parity, PARITY_SLACKS, {"as_published": True})
        cases["credit_parity"] = (credit, parity, PARITY_SLACKS, {})
        cases["parkinsons_parity"] = (voices, parity, PARITY_SLACKS, {})
        cases["adult_false_negatives"] = (adult, false_negatives, FNR_SLACKS, {})
        for n in SUBSAMPLES:
            cases[f"adult_{n}_parity"] = (adult, parity, (0.02, 0.05, 0.2), {"rows": n})
    frontiers = {}
    for name, (dataset, constraint, slacks, options) in cases.items():
        print(name, flush=True)
        options = {"steps": 50} if fast else options
        seeds, slacks = (2, slacks[2:4]) if fast else (SEEDS, slacks)
        frontiers[name] = frontier(dataset, constraint, slacks, seeds, options)
        frontiers[name]["published"] = PUBLISHED.get(name, [])
    return {"delta": DELTA, "frontiers": frontiers}


def defaults(
    sizes: tuple[int, ...] = (36_632, 1_000),
) -> dict[str, Any]:
    """Solvers for parity on Adult at epsilon 1, by numbers of rows."""
    problem = dpjax.problems.RateConstrained.linear(98, 2, parity(0.1))
    budget, make = dpjax.Budget(1.0, DELTA), dpjax.solvers.RateConstrainedSGDA.for_budget
    return {f"adult, {rows} rows": make(problem, rows, budget) for rows in sizes}


def parity(slack: Any) -> Any:
    return dpjax.problems.demographic_parity(num_groups=2, num_classes=2, slack=slack)


def false_negatives(slack: Any) -> Any:
    return dpjax.problems.false_negative_rate(num_classes=2, slack=slack)


def frontier(
    dataset: Any,
    constraint: Any,
    slacks: Any,
    seeds: int,
    options: dict[str, Any],
    *,
    epsilons: tuple[float, ...] = EPSILONS,
    split: int = 0,
    reference: bool = True,
) -> dict[str, Any]:
    """Private and, as a reference, non-private points of one data set, by slack.

    The data set may be a pair, for training and for testing; an infinite epsilon is not private.
    """
    options = dict(options)
    printed, rows = options.pop("as_published", False), options.pop("rows", None)
    pair = isinstance(dataset, tuple)
    train, test = dataset if pair else dataset.split(test=0.25, seed=split)
    on_device = jax.tree.map(jnp.asarray, (train.as_dict(), test.as_dict()))
    size = len(train) if rows is None else rows
    # the rows were put in random order by the split
    on_device = jax.tree.map(lambda a: a[:size], on_device[0]), on_device[1]
    shape = train.num_features, len(train.label_names)
    problem = dpjax.problems.RateConstrained.linear(*shape, constraint(0.1))

    @jax.jit
    def one(solver: Any, slack: jax.Array, key: jax.Array) -> tuple[jax.Array, ...]:
        problem = dpjax.problems.RateConstrained.linear(*shape, constraint(slack))
        solution = dpjax.solve(solver, problem, on_device[0], key=key)
        return (
            problem.error(solution.params, on_device[1]),
            problem.disparity(solution.params, on_device[1]),
            problem.disparity(solution.params, on_device[0]),
        )

    keys = jax.random.split(jax.random.key(2024), seeds)
    points = []
    make = rate_constrained_sgda if printed else dpjax.solvers.RateConstrainedSGDA.for_budget
    for epsilon in epsilons:
        solver = make(problem, size, dpjax.Budget(epsilon, DELTA), **options)
        accounted = solver.guarantee().epsilon(DELTA)
        told = {"epsilon": epsilon, "accounted": accounted}
        told = {name: None if value == np.inf else value for name, value in told.items()}
        for slack in slacks:
            runs = [one(solver, jnp.asarray(slack), key) for key in keys]
            points.append({**told, **point(slack, runs)})
    plain = dpjax.solvers.RateConstrainedSGDA.for_budget(
        problem,
        size,
        dpjax.Budget(1.0, DELTA, "replace_one"),
        sampler=dpjax.sampling.FullBatch(options.get("steps", 3000)),
        noise_multiplier=0.0,
        histogram_noise=0.0,
        clip_norm=1e6,
    )
    plain_slacks = slacks if reference else ()
    return {
        "num_train": size,
        "num_test": len(test),
        "num_features": train.num_features,
        "seeds": seeds,
        "steps": solver.sampler.steps,
        "batch_size": solver.primal.batch_size,
        "private": points,
        "non_private": [point(s, [one(plain, jnp.asarray(s), keys[0])]) for s in plain_slacks],
    }


def point(slack: float, runs: Any) -> dict[str, float]:
    """Means over seeds, and spreads."""
    errors, gaps, trained = np.array(runs, dtype=float).T
    return {
        "slack": slack,
        "error": errors.mean(),
        "error_std": errors.std(),
        "disparity": gaps.mean(),
        "disparity_std": gaps.std(),
        "train_disparity": trained.mean(),
    }


def summary(result: dict[str, Any]) -> str:
    """Markdown table of all points."""
    lines = ["| frontier | epsilon | slack | error | disparity or rate |", "|---|---|---|---|---|"]
    for name, frontier in result["frontiers"].items():
        for p in frontier["private"] + [{**p, "epsilon": None} for p in frontier["non_private"]]:
            epsilon = "inf" if p["epsilon"] is None else p["epsilon"]
            lines.append(
                f"| {name} | {epsilon} | {p['slack']} | {p['error']:.4f} ± "
                f"{p['error_std']:.4f} | {p['disparity']:.4f} ± {p['disparity_std']:.4f} |"
            )
    return "\n".join(lines)


SHOWN = {
    "adult_parity": ("Adult, parity", (0.05, 0.02)),
    "adult_parity_as_published": ("Adult, parity, as published", (0.05,)),
    "credit_parity": ("Credit default, parity", (0.01,)),
    "parkinsons_parity": ("Parkinsons, parity", (0.05,)),
    "adult_false_negatives": ("Adult, false negatives", (0.25, 0.15)),
    **{f"adult_{n}_parity": (f"Adult, {n:,} rows", (0.05,)) for n in SUBSAMPLES},
}


def readme(
    frontiers: dict[str, Any],
    shown: dict[str, tuple[str, tuple[float, ...]]] = SHOWN,
    epsilons: tuple[float, ...] = EPSILONS,
) -> str:
    """Markdown table of one slack a frontier, or two; blank where there was no run."""
    columns = [f"epsilon {e:g}: error" for e in epsilons]
    header = [
        "problem",
        "slack",
        *(cell for c in columns for cell in (c, "gap or rate")),
        "not private: error",
        "gap or rate",
    ]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for name, (title, slacks) in shown.items():
        found = [{**p, "epsilon": None} for p in frontiers[name]["non_private"]]
        found += frontiers[name]["private"]
        by = {(p["slack"], p["epsilon"]): p for p in found}
        for slack in slacks:
            points = [by.get((slack, epsilon)) for epsilon in (*epsilons, None)]
            cells = [f"{p['error']:.4f} | {p['disparity']:.4f}" if p else " | " for p in points]
            lines.append(f"| {title} | {slack} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(result: dict[str, Any]) -> Path:
    """One panel a frontier."""
    from matplotlib import pyplot

    frontiers = result["frontiers"]
    rows = -(-len(frontiers) // 2)
    figure, panels = pyplot.subplots(rows, 2, figsize=(10, 4 * rows), layout="constrained")
    for axes, (name, frontier) in zip(panels.flat, frontiers.items(), strict=True):
        panel(axes, name, frontier)
    path = _runner.RESULTS / "fair_frontiers.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def panel(axes: Any, name: str, frontier: dict[str, Any]) -> None:
    """Error against disparity, a line for each epsilon."""
    for epsilon in sorted({p["epsilon"] for p in frontier["private"]}):
        points = [p for p in frontier["private"] if p["epsilon"] == epsilon]
        axes.errorbar(
            [p["disparity"] for p in points],
            [p["error"] for p in points],
            xerr=[p["disparity_std"] for p in points],
            yerr=[p["error_std"] for p in points],
            fmt="o-",
            capsize=2,
            label=f"epsilon {epsilon:g}",
        )
    if plain := frontier["non_private"]:
        axes.plot(
            [p["disparity"] for p in plain],
            [p["error"] for p in plain],
            "s--",
            color="grey",
            label="not private",
        )
    for p in frontier.get("published", []):
        axes.plot(p["disparity"], p["error"], "kx", label=p["method"])
    rate = "false negative rate" if "negatives" in name else "disparity"
    axes.set(
        xlabel=f"{rate} (test)",
        ylabel="test error",
        title=name.replace("_", ", ", 1).replace("_", " ").capitalize(),
    )
    axes.locator_params(axis="x", nbins=6)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), fontsize="small")
