"""Synthetic rows to learn from: a classifier trained on them or privately, tested on real records.

Adult, 14 attributes, and Credit default, 24 (where its file lies in the data folder), in the bins
of `wide_tables`; two thirds to train on, the rest to test. `release` draws as many rows as there
are training records, from a release of all pairs with nothing set, or told which attribute is the
target, and `mbi`'s mixture of products likewise; on these, and on the real records without privacy,
scikit-learn's logistic regression learns the last attribute from indicators of the others. `fit`
trains the same model privately on the real records with the whole budget, with nothing set.
Replace-one, delta 1/n^2, three seeds, one of `mbi`; area under the ROC curve, of the real records
that nobody saw.
"""

import functools
import importlib.util
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dpjax
from benchmarks import wide_tables
from benchmarks._text import table
from dpjax.privacy import Budget
from dpjax.problems import LinearModel
from dpjax.queries import Domain, Marginals

PEERS = ("mbi",)
EPSILONS = (0.1, 1.0, 3.0)
SEEDS, SEEDS_OF_MBI = 3, 1
REAL, ROWS, OF_MBI, FIT = "real records, no privacy", "release", "mbi, mixture of products", "fit"
TARGET = "release, target"


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """A row for each table, way, epsilon and seed; `fast` takes one, of a part of the table."""
    tables = {"Adult": wide_tables.adult_14()}
    file = data / "credit_default.csv.gz" if data is not None else None
    if file is not None and file.is_file() and not fast:
        tables["Credit default"] = wide_tables.credit_24(file)
    rows: list[dict[str, Any]] = []
    real: list[dict[str, Any]] = []
    for name, (codes, domain) in tables.items():
        codes = np.random.default_rng(0).permutation(codes)
        if fast:
            domain = domain.project(domain.attributes[-5:])
            codes = codes[:3000, -5:]
        size = 2 * len(codes) // 3
        train, test = codes[:size], codes[size:]
        real.append({"data": name, "auc": learned(domain, train, test)})
        print(real[-1], flush=True)
        for epsilon, seed in [(1.0, 0)] if fast else itertools.product(EPSILONS, range(SEEDS)):
            for way, auc in ways(domain, train, test, epsilon, seed, fast).items():
                rows.append(
                    {"data": name, "way": way, "auc": auc, "epsilon": epsilon, "seed": seed}
                )
                print(rows[-1], flush=True)
    return {"delta": "1/n^2", "real": real, "rows": rows}


def defaults() -> dict[str, Any]:
    """What `fit` takes for Adult's features at epsilon 1; `wide_tables` has those of `release`."""
    problem = LinearModel("logistic", 154, intercept=1.0)
    return {"fit": dpjax.plan(problem, 32_561, Budget(1.0, 32_561**-2.0)).solver}


def ways(
    domain: Domain, train: np.ndarray, test: np.ndarray, epsilon: float, seed: int, fast: bool
) -> dict[str, float]:
    """Area under the curve, by what was trained."""
    budget = Budget(epsilon, len(train) ** -2.0)
    pairs = Marginals.all_kway(domain, 2)
    towards = functools.partial(wide_tables.ours, target=domain.attributes[-1])
    found = {ROWS: wide_tables.ours, TARGET: towards}
    if importlib.util.find_spec("mbi") is not None and seed < SEEDS_OF_MBI:
        steps = 20 if fast else 1000
        found[OF_MBI] = functools.partial(wide_tables.mixture, iterations=steps)
    grades = {}
    for way, method in found.items():
        _, drawn = method(train, pairs, budget, seed)
        grades[way] = learned(domain, drawn, test)
    return grades | {FIT: trained(domain, train, test, budget, seed)}


def learned(domain: Domain, train: np.ndarray, test: np.ndarray) -> float:
    """By logistic regression without privacy; 0.5 if the rows are all of one class."""
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(train[:, -1])) < 2:
        return 0.5
    model = LogisticRegression(max_iter=500).fit(indicators(domain, train), train[:, -1])
    return area(model.decision_function(indicators(domain, test)), test[:, -1])


def trained(
    domain: Domain, train: np.ndarray, test: np.ndarray, budget: Budget, seed: int
) -> float:
    """By `dpjax.fit`, rows scaled to norm 1."""
    scale = (len(domain.shape) - 1) ** -0.5
    x = scale * indicators(domain, train)
    problem = LinearModel("logistic", x.shape[1], intercept=1.0)
    key = jax.random.key(seed)
    params = dpjax.fit(problem, (x, train[:, -1]), budget, key=key, progress=False).params
    w = np.asarray(params)
    return area(scale * indicators(domain, test) @ w[:-1], test[:, -1])


def indicators(domain: Domain, codes: np.ndarray) -> np.ndarray:
    """One-hot codes `[n, p]` of all attributes but the last."""
    columns = zip(codes.T[:-1], domain.shape[:-1], strict=True)
    return np.concatenate([np.eye(k, dtype=np.float32)[c] for c, k in columns], axis=1)


def area(scores: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores))


def summary(result: dict[str, Any]) -> str:
    """Means over seeds, and their range, a row a table and epsilon."""
    names = (ROWS, TARGET, OF_MBI, FIT)
    rows = []
    for data, real in ((each["data"], each["auc"]) for each in result["real"]):
        mine = [row for row in result["rows"] if row["data"] == data]
        for epsilon in sorted({row["epsilon"] for row in mine}):
            of = [
                [r["auc"] for r in mine if (r["way"], r["epsilon"]) == (way, epsilon)]
                for way in names
            ]
            rows.append([data, f"{epsilon:g}", *map(_shown, of), f"{real:.3f}"])
    return table(["data", "epsilon", *names, REAL], rows)


def _shown(grades: list[float]) -> str:
    if len(grades) < 2:
        return "".join(f"{grade:.3f}" for grade in grades)
    return f"{np.mean(grades):.3f} ({min(grades):.3f} to {max(grades):.3f})"
