"""All pairs of a table too wide for memory: error of answers, of unmeasured triples, of records.

Adult, 14 attributes, 7.8e12 cells, and Credit default, 24 attributes, 5.8e19 cells (where its file
lies in the data folder); replace-one, delta 1/n^2, five seeds, two of what `mbi` fits, cut points
public, seconds with compilation. `dpjax` is `dpjax.release` with nothing set. Peers get the same
tables and budget: noise alone, the same on the simplex table by table, `mbi`'s mixture of products
fitted to it, and MST, which measures columns and the pairs of a tree that it chooses. Largest error
of a cell of the pairs; total variation, mean over pairs; likewise over 400 triples drawn once,
measured by nobody.
"""

import functools
import importlib
import importlib.util
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.typing import ArrayLike

import dpjax
from benchmarks import _query_peers as peers
from benchmarks._text import table
from benchmarks.datasets import _credit
from dpjax.api._release import METHODS, choose
from dpjax.privacy import Budget, zcdp_budget
from dpjax.problems import QueryRelease
from dpjax.queries import Domain, Marginals

PEERS = ("mbi",)
EPSILONS = (0.25, 1.0)
SEEDS, SEEDS_OF_MBI = 5, 2
EPSILONS_OF_MST = (1.0,)  # it compiles for a minute a run
TRIPLES = 400
Released = Callable[[Marginals], ArrayLike | None]  # answers to a workload

_OF_MBI = ("mbi, mixture of products", "MST")
_ADULT_EDGES = {
    "age": (20, 23, 26, 29, 32, 35, 38, 41, 44, 47, 50, 54, 58, 63, 70),
    "fnlwgt": tuple(1000 * k for k in (60, 100, 125, 150, 178, 200, 230, 280, 350)),
    "capital-gain": (1, 2000, 3500, 5000, 7500, 10000, 15000),
    "capital-loss": (1, 1500, 1700, 1850, 1900, 2000, 2300),
    "hours-per-week": (15, 25, 35, 39, 40, 41, 46, 51, 60),
}
_CREDIT_EDGES = {
    "LIMIT_BAL": tuple(1000 * k for k in (30, 50, 80, 120, 180, 240, 360)),
    "AGE": (25, 28, 31, 35, 40, 46, 55),
    **dict.fromkeys(_credit._PAY, tuple(range(-1, 5))),
    **dict.fromkeys(_credit._BILL, (1, 1000, 5000, 15000, 30000, 60000, 120000)),
    **dict.fromkeys(_credit._PAID, (1, 500, 1500, 2500, 5000, 10000, 30000)),
}


def adult_14() -> tuple[np.ndarray, Domain]:
    """Codes `[48842, 14]` of Adult: education once, numbers in bins, `?` a label."""
    return coded(
        {k: v for k, v in dpjax.datasets.adult_table().items() if k != "education-num"},
        _ADULT_EDGES,
    )


def credit_24(path: Path) -> tuple[np.ndarray, Domain]:
    """Codes `[30000, 24]` of Credit default."""
    read = _credit._read_table(path)
    return coded({name: read[name] for name in (*_credit._OFFICIAL, _credit._LABEL)}, _CREDIT_EDGES)


def coded(
    columns: dict[str, np.ndarray], edges: dict[str, tuple[int, ...]]
) -> tuple[np.ndarray, Domain]:
    """Codes `[n, A]` and their domain: bins where there are edges, else values that occur."""
    codes, sizes = [], {}
    for name, column in columns.items():
        if name in edges:
            codes.append(np.digitize(column, edges[name]))
            sizes[name] = len(edges[name]) + 1
        else:
            values, code = np.unique(column, return_inverse=True)
            codes.append(code)
            sizes[name] = len(values)
    return np.stack(codes, axis=1).astype(np.int32), Domain(sizes)


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """A process for each data set, epsilon and seed; `fast` takes one, five columns of Adult.

    MST has one of its own: `mbi` compiles it until no memory can be mapped, and on Credit default
    that ends the process. Such a run has no row.
    """
    files = {"Adult": ""}
    if data is not None and (file := data / "credit_default.csv.gz").is_file() and not fast:
        files["Credit default"] = str(file)
    rows = []
    for name, epsilon, seed in itertools.product(files, EPSILONS, range(SEEDS)):
        if fast and (epsilon, seed) != (EPSILONS[-1], 0):
            continue
        for what in ("MST", "others"):
            command = [sys.executable, "-m", "benchmarks.wide_tables", name, files[name]]
            command += [str(epsilon), str(seed), what, *(["fast"] if fast else [])]
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if ended.returncode and what == "others":
                raise RuntimeError(f"{command} ended with {ended.returncode}")
            found = [] if ended.returncode else json.loads(ended.stdout.splitlines()[-1])
            print(*found, sep="\n", flush=True)
            rows += found
    return {"delta": "1/n^2", "rows": rows}


def defaults() -> dict[str, Any]:
    """What the rule takes for the pairs of twelve attributes of ten values, and its solver."""
    pairs = Marginals.all_kway(Domain(dict.fromkeys("abcdefghijkl", 10)), 2)
    problem = QueryRelease(pairs, max_bytes=None)
    budget = Budget(1.0, 48_842**-2)
    chosen, options, _ = choose(problem, 48_842, budget)
    return {chosen: METHODS[chosen](problem, 48_842, budget, **options)}


def measure(
    name: str, file: str, epsilon: float, seed: int, what: str, fast: bool
) -> list[dict[str, Any]]:
    """A row of `"MST"`, or one for each of the `"others"`, in this process."""
    codes, domain = credit_24(Path(file)) if file else adult_14()
    if fast:
        codes, domain = codes[:2000, :5], domain.project(domain.attributes[:5])
    pairs = Marginals.all_kway(domain, 2)
    triples = list(itertools.combinations(domain.attributes, 3))
    some = np.random.default_rng(0).permutation(len(triples))[:TRIPLES]
    asked = pairs, Marginals(domain, [triples[i] for i in sorted(some)])
    truth = [workload.answers_of_records(codes) for workload in asked]
    rows = []
    for title, method in methods(fast).items():
        if (title == "MST") != (what == "MST") or (title in _OF_MBI and seed >= SEEDS_OF_MBI):
            continue
        if title == "MST" and epsilon not in EPSILONS_OF_MST:
            continue
        start = time.perf_counter()
        answered, drawn = method(codes, pairs, Budget(epsilon, len(codes) ** -2.0), seed)
        row = {"data": f"{name}, {len(domain.shape)} attributes", "method": title}
        row |= {"epsilon": epsilon, "seed": seed, "seconds": time.perf_counter() - start}
        row |= errors("", asked, truth, [answered(workload) for workload in asked])
        if drawn is not None:
            answers = [workload.answers_of_records(drawn) for workload in asked]
            row |= errors("records_", asked, truth, answers)
        rows.append(row)
    return rows


def errors(
    prefix: str,
    asked: tuple[Marginals, Marginals],
    truth: Sequence[ArrayLike],
    answers: Sequence[ArrayLike | None],
) -> dict[str, float]:
    """Largest error and mean total variation, of pairs and of triples where there are answers."""
    found: dict[str, float] = {}
    names = f"{prefix}pairs", f"{prefix}triples"
    for name, workload, exact, given in zip(names, asked, truth, answers, strict=True):
        if given is not None:
            off = np.abs(np.asarray(given, float) - np.asarray(exact, float))
            each = np.add.reduceat(off, workload.offsets) / 2
            found |= {f"{name}_max": float(off.max()), f"{name}_tv": float(each.mean())}
    return found


Method = Callable[[np.ndarray, Marginals, Budget, int], tuple[Released, np.ndarray | None]]


def methods(fast: bool) -> dict[str, Method]:
    """Ours, and the peers that are installed."""
    found: dict[str, Method] = {"dpjax": ours, "noise alone": noise, "noise, simplex": on_simplex}
    if importlib.util.find_spec("mbi") is not None:
        steps = 20 if fast else 1000
        fits = mixture, mst
        found |= {
            n: functools.partial(f, iterations=steps) for n, f in zip(_OF_MBI, fits, strict=True)
        }
    return found


def ours(
    codes: np.ndarray, pairs: Marginals, budget: Budget, seed: int, target: str | None = None
) -> tuple[Released, np.ndarray]:
    """`dpjax.release` with nothing else set, and n records of its model."""
    keys = jax.random.split(jax.random.key(seed))
    released = dpjax.release(pairs, codes, budget, key=keys[0], target=target, progress=False)
    drawn = released.sample(keys[1], len(codes), systematic=True)
    return released.answers_to, np.asarray(drawn)


def noise(
    codes: np.ndarray, pairs: Marginals, budget: Budget, seed: int
) -> tuple[Released, np.ndarray | None]:
    """Gaussian noise on all answers."""
    answers, _ = noisy(codes, pairs, budget, seed)
    return lambda workload: only(workload, pairs, answers), None


def on_simplex(
    codes: np.ndarray, pairs: Marginals, budget: Budget, seed: int
) -> tuple[Released, np.ndarray | None]:
    """The same, each table projected onto the simplex."""
    answers, _ = noisy(codes, pairs, budget, seed)
    blocks = np.split(answers, pairs.offsets[1:])
    projected = np.concatenate([simplex(block) for block in blocks])
    return lambda workload: only(workload, pairs, projected), None


def noisy(
    codes: np.ndarray, pairs: Marginals, budget: Budget, seed: int
) -> tuple[np.ndarray, float]:
    """Answers with noise, and its deviation."""
    sigma = peers.answer_noise(len(codes), len(pairs.cliques), budget.epsilon, budget.delta)
    exact = np.asarray(pairs.answers_of_records(codes), float)
    return exact + sigma * np.random.default_rng(seed).standard_normal(exact.shape), sigma


def only(workload: Marginals, pairs: Marginals, answers: np.ndarray) -> np.ndarray | None:
    """The answers, if these are asked for."""
    return answers if workload is pairs else None


def simplex(point: np.ndarray) -> np.ndarray:
    """The nearest point of the probability simplex."""
    down = np.sort(point)[::-1]
    excess = (np.cumsum(down) - 1) / np.arange(1, len(down) + 1)
    return np.maximum(point - excess[np.flatnonzero(down > excess)[-1]], 0)


def mixture(
    codes: np.ndarray, pairs: Marginals, budget: Budget, seed: int, *, iterations: int
) -> tuple[Released, np.ndarray]:
    """`mbi`'s mixture of 100 products, fitted to noisy answers."""
    mbi = peers.load_mbi()
    products = importlib.import_module("mbi.extensions.mixture_of_products")
    answers, sigma = noisy(codes, pairs, budget, seed)
    domain = mbi.Domain(pairs.domain.attributes, pairs.domain.shape)
    n = len(codes)
    blocks = np.split(answers * n, pairs.offsets[1:])
    measured = [
        mbi.LinearMeasurement(jax.numpy.asarray(block), clique, sigma * n)
        for clique, block in zip(pairs.cliques, blocks, strict=True)
    ]
    estimator = products.MixtureOfProductsEstimator(optimizer=optax.adam(0.1), seed=seed)
    model = estimator.estimate(domain, measured, known_total=float(n), iters=iterations)
    return of_mbi(model, pairs, n)


def mst(
    codes: np.ndarray, pairs: Marginals, budget: Budget, seed: int, *, iterations: int
) -> tuple[Released, np.ndarray]:
    """MST, a third of rho each for columns, the choice of a tree, and its pairs; fitted by `mbi`.

    Source: McKenna, Miklau and Sheldon, "Winning the NIST contest", 2021, without the compression
    of rare values; sensitivities are doubled for replace-one.
    """
    mbi = peers.load_mbi()
    rng, n = np.random.default_rng(seed), len(codes)
    names, shape = pairs.domain.attributes, pairs.domain.shape
    domain = mbi.Domain(names, shape)
    share = zcdp_budget(Budget(budget.epsilon, budget.delta, "replace_one")) / 3
    total: dict[str, Any] = {"known_total": float(n), "iters": iterations}

    def measure(cliques: list[tuple[str, ...]]) -> list[Any]:
        sigma = math.sqrt(2 * len(cliques) / (2 * share))
        tables = Marginals(pairs.domain, cliques)
        counts = tables.answers_of_records(codes) * n
        blocks = np.split(counts + sigma * rng.standard_normal(counts.shape), tables.offsets[1:])
        return [
            mbi.LinearMeasurement(jax.numpy.asarray(block), clique, sigma)
            for clique, block in zip(cliques, blocks, strict=True)
        ]

    measured = measure([(name,) for name in names])
    model = mbi.estimation.MirrorDescent().estimate(domain, measured, **total)
    exact = np.split(pairs.answers_of_records(codes) * n, pairs.offsets[1:])
    scores = {
        clique: float(np.abs(block - peers.model_answers(model, [clique])).sum())
        for clique, block in zip(pairs.cliques, exact, strict=True)
    }
    tree: list[tuple[str, ...]] = []
    component = {name: name for name in names}
    draw = math.sqrt(8 * share / (len(names) - 1))  # the range that a draw may have
    while len(tree) < len(names) - 1:
        left = [c for c in scores if component[c[0]] != component[c[1]]]
        # a replaced record moves an l1 distance by 2 at most, either way
        logits = np.array([draw / 4 * scores[c] for c in left])
        chosen = left[int(np.argmax(logits + rng.gumbel(size=len(left))))]
        tree.append(chosen)
        old, new = (component[name] for name in chosen)
        component = {name: new if c == old else c for name, c in component.items()}
    model = mbi.estimation.MirrorDescent().estimate(domain, measured + measure(tree), **total)
    return of_mbi(model, pairs, n)


def of_mbi(model: Any, pairs: Marginals, n: int) -> tuple[Released, np.ndarray]:
    """Answers of a model of `mbi`, and n of its records."""
    drawn = model.synthetic_data(rows=n).to_dict()
    codes = np.stack([np.asarray(drawn[name]) for name in pairs.domain.attributes], axis=1)
    order = np.random.default_rng(0).permutation(len(codes))
    return lambda workload: peers.model_answers(model, workload.cliques) / n, codes[order][:n]


def readme(result: dict[str, Any]) -> str:
    """Markdown table, means over seeds."""
    header = ["data", "epsilon", "method", "largest", "pairs", "triples", "records: pairs"]
    header += ["triples", "seconds"]
    groups: dict[tuple[str, float, str], list[dict[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault((row["data"], row["epsilon"], row["method"]), []).append(row)
    columns = ["pairs_max", "pairs_tv", "triples_tv", "records_pairs_tv", "records_triples_tv"]
    lines = []
    for (data, epsilon, method), rows in groups.items():
        cells = []
        for column in columns:
            values = [row.get(column) for row in rows]
            known = [v for v in values if v is not None]
            cells.append(f"{np.mean(known):.4f}" if len(known) == len(rows) else "")
        seconds = f"{np.median([row['seconds'] for row in rows]):.1f}"
        lines.append([data, f"{epsilon:g}", method, *cells, seconds])
    return table(header, lines)


summary = readme

if __name__ == "__main__":
    which, where, budget, number, methods_of, *short = sys.argv[1:]
    rows = measure(which, where, float(budget), int(number), methods_of, bool(short))
    print(json.dumps(rows))
