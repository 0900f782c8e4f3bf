"""Further fair training: peers' columns, 18 constraints, equal odds, classes, clip norms, rates.

Runs are those of `fair_frontiers`, defaults but for what a row's name says. `peers_*`: columns and
split of the published code of DP-FERMI (`benchmarks/datasets/_peers_columns.py`). `employment` and
`heart` are run where their files lie in the data folder, `csv_pal.zip` and
`heart_disease_health_indicators_BRFSS2015.csv`. `clip`: rate of false negatives at slack 0 against
a clip norm that stays, without noise. `three_classes`: generated records.
"""

from pathlib import Path
from typing import Any

import numpy as np

import dpjax
from benchmarks import _runner, fair_frontiers
from benchmarks._text import table
from benchmarks.datasets import folktables, heart_indicators
from benchmarks.datasets._peers_columns import adult_102, credit_85, parkinsons_19
from benchmarks.fair_frontiers import (
    DELTA,
    FNR_SLACKS,
    PARITY_SLACKS,
    SEEDS,
    false_negatives,
    frontier,
    panel,
    parity,
)
from benchmarks.fair_frontiers import summary as summary
from dpjax.datasets import Dataset

EPSILONS = (0.1, 1.0, 3.0, 9.0)
FEW = (1.0, 9.0)
CLIP_NORMS = (1.0, 2.0, 4.0, 8.0, 12.5, 25.0)
SHOWN = {
    "peers_adult_parity": ("Adult, 102 columns, parity", (0.08, 0.05, 0.02, 0.01)),
    "peers_credit_parity": ("Credit default, 85 columns, parity", (0.02,)),
    "peers_parkinsons_parity": ("Parkinsons, 19 columns, parity", (0.0,)),
    "peers_adult_false_negatives": ("Adult, 102 columns, false negatives", (0.25, 0.15)),
    "adult_odds": ("Adult, equality of odds", (0.05,)),
    "three_classes_parity": ("Three classes (generated), parity", (0.05,)),
    "three_classes_odds": ("Three classes (generated), equality of odds", (0.08,)),
    "adult_hard_rates": ("Adult, parity, hard rates", (0.05,)),
    "adult_soft_rates": ("Adult, parity, soft rates", (0.05,)),
}
EMPLOYMENT = "csv_pal.zip"
HEART = "heart_disease_health_indicators_BRFSS2015.csv"
Case = tuple[Any, Any, tuple[float, ...], dict[str, Any], tuple[float, ...]]


def cases(data: Path | None, generated: int = 40_000) -> dict[str, Case]:
    """Data set, constraint, slacks, options and epsilons of each frontier."""
    adult, peers, three = dpjax.datasets.adult(), adult_102(), three_classes(generated)
    found: dict[str, Case] = {
        "peers_adult_parity": (peers, parity, PARITY_SLACKS, {}, EPSILONS),
        "three_classes_parity": (three, parity_of_three, PARITY_SLACKS, {}, FEW),
        "three_classes_odds": (three, odds_of_three, PARITY_SLACKS, {}, FEW),
        "adult_odds": (adult, odds, PARITY_SLACKS, {}, FEW),
        "peers_adult_false_negatives": (peers, false_negatives, FNR_SLACKS, {}, FEW),
    }
    for rates in ("hard", "soft"):
        found[f"adult_{rates}_rates"] = (adult, parity, PARITY_SLACKS, {"rates": rates}, (1.0,))
    for norm in CLIP_NORMS:
        fixed = {"clip_norm": norm}
        found[f"clip_{norm:g}"] = (adult, false_negatives, (0.0,), fixed, (np.inf,))
    if data is not None and (data / EMPLOYMENT).is_file():
        people = folktables(path=data / EMPLOYMENT)
        found["employment"] = (people, parity_of_races, PARITY_SLACKS, {}, EPSILONS)
    if data is not None and (data / HEART).is_file():
        patients = heart_indicators(data / HEART)
        found["heart"] = (patients, false_negatives, FNR_SLACKS, {}, EPSILONS)
    return found


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All frontiers; `fast` takes one slack and 50 steps of one of them, without noise."""
    chosen = cases(data, 2_000) if fast else cases(data)
    if not fast:
        credit = credit_85(data and data / "credit_default.csv.gz")
        voices = parkinsons_19(data and data / "parkinsons_updrs.csv.gz")
        chosen["peers_credit_parity"] = (credit, parity, PARITY_SLACKS, {}, EPSILONS)
        chosen["peers_parkinsons_parity"] = (voices, parity, PARITY_SLACKS, {}, EPSILONS)
    frontiers = {}
    for name, (dataset, constraint, slacks, options, epsilons) in chosen.items():
        if fast:
            if name not in ("three_classes_odds", "employment"):
                continue
            slacks, options, epsilons = slacks[-1:], {**options, "steps": 50}, (np.inf,)
        print(name, flush=True)
        seeds = 1 if epsilons == (np.inf,) else SEEDS
        frontiers[name] = frontier(
            dataset, constraint, slacks, seeds, options, epsilons=epsilons, reference=not fast
        )
    return {"delta": DELTA, "frontiers": frontiers}


def defaults() -> dict[str, Any]:
    """The solver for equality of odds on Adult at epsilon 1."""
    problem, budget = (
        dpjax.problems.RateConstrained.linear(98, 2, odds(0.1)),
        dpjax.Budget(1.0, DELTA),
    )
    solver = dpjax.solvers.RateConstrainedSGDA.for_budget(problem, 36_632, budget)
    return {"adult_odds": solver}


def parity_of_races(slack: Any) -> Any:
    """18 constraints: nine groups, two classes."""
    return dpjax.problems.demographic_parity(num_groups=9, num_classes=2, slack=slack)


def parity_of_three(slack: Any) -> Any:
    return dpjax.problems.demographic_parity(num_groups=2, num_classes=3, slack=slack)


def odds_of_three(slack: Any) -> Any:
    return dpjax.problems.equality_of_odds(num_groups=2, num_classes=3, slack=slack)


def odds(slack: Any) -> Any:
    return dpjax.problems.equality_of_odds(num_groups=2, num_classes=2, slack=slack)


def three_classes(n: int) -> Dataset:
    """Records of three classes whose frequencies, and one feature, differ between two groups."""
    rng = np.random.default_rng(0)
    group = (rng.random(n) < 0.3).astype(np.int32)
    x = rng.normal(size=(n, 8))
    x[:, 0] += 1.5 * group
    noise = rng.gumbel(size=(n, 3))
    scores = np.stack([0 * x[:, 0], x[:, 0] + x[:, 1] - 0.5, x[:, 2] - x[:, 3]], axis=1)
    y = np.argmax(scores + noise, axis=1).astype(np.int32)
    x *= np.minimum(1, 4 / np.linalg.norm(x, axis=1, keepdims=True))
    return Dataset(
        x=x.astype(np.float32),
        y=y,
        group=group,
        feature_names=tuple(f"x{i}" for i in range(8)),
        label_names=("a", "b", "c"),
        group_names=("common", "rare"),
        norm_bound=4.0,
        name="three_classes",
        source="generated",
        licence="Apache-2.0",
    )


def readme(result: dict[str, Any]) -> list[str]:
    """Markdown tables of one slack a frontier, and of clip norms."""
    frontiers = result["frontiers"]
    shown = {name: titled for name, titled in SHOWN.items() if name in frontiers}
    header = ["clip norm, no noise, slack 0", "error", "false negatives"]
    rows = [[f"{c:g}", f"{p['error']:.4f}", f"{p['disparity']:.4f}"] for c, p in clipped(result)]
    return [fair_frontiers.readme(frontiers, shown, EPSILONS), table(header, rows)]


def clipped(result: dict[str, Any]) -> list[tuple[float, dict[str, float]]]:
    """Clip norms, and the point of each; the last without a clip norm."""
    found = [(c, result["frontiers"].get(f"clip_{c:g}")) for c in CLIP_NORMS]
    points = [(c, f["private"][0]) for c, f in found if f]
    return points + [(np.inf, f["non_private"][0]) for _, f in found[:1] if f]


def plot(result: dict[str, Any]) -> Path:
    """One panel a frontier, and one of clip norms."""
    from matplotlib import pyplot

    frontiers = {n: f for n, f in result["frontiers"].items() if not n.startswith("clip_")}
    rows = -(-(len(frontiers) + 1) // 2)
    figure, panels = pyplot.subplots(rows, 2, figsize=(10, 4 * rows), layout="constrained")
    last = panels.flat[len(frontiers) :]
    for axes, (name, found) in zip(panels.flat, frontiers.items(), strict=False):
        panel(axes, name, found)
    points = clipped(result)[:-1]
    last[0].plot([c for c, _ in points], [p["disparity"] for _, p in points], "o-")
    last[0].set(
        xscale="log",
        xlabel="clip norm, no noise",
        ylabel="false negative rate (test)",
        title="Adult, slack 0",
    )
    for axes in last[1:]:
        axes.set_visible(False)
    path = _runner.RESULTS / "fair_further.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
