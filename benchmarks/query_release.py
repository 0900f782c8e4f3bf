"""Query release: errors and seconds of every method on all three-way marginals, beside peers.

Largest and mean absolute error over all cells, at delta 1/n^2 under replace-one, five seeds. Every
method has three configurations, its default first; "chosen" is the one of least largest error on
Adult, at each epsilon, which is not private. On Credit nothing is chosen anew: the default, and
what was chosen on Adult. `mbi` fits the very answers that `GaussianFit` drew.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from benchmarks import _query_data, _query_peers, _query_peers_mwem, _runner
from dpjax.problems import QueryRelease
from dpjax.queries import Domain, Marginals
from dpjax.solvers import (
    MWEM,
    FrankWolfeRelease,
    GaussianFit,
    HistogramRelease,
    MirrorDescentRelease,
    SaddleRelease,
)

PEERS = ("mbi",)
EPSILONS = (0.1, 0.25, 0.5, 1.0)
SEEDS = 5
ROUNDS = 100  # timed runs of the fits, in turn with mbi's
Make = Callable[[QueryRelease, int, dpjax.Budget], Any]


def _scaled(make: Callable[..., Any], field: str, factor: float, **fixed: Any) -> Make:
    """A solver with one of its defaults times a factor."""

    def build(problem: QueryRelease, n: int, budget: dpjax.Budget) -> Any:
        plain = make(problem, n, budget, **fixed)
        if factor == 1:
            return plain
        value = jax.tree.map(lambda leaf: factor * leaf, getattr(plain, field))
        return make(problem, n, budget, **fixed, **{field: value})

    return build


def _three(make: Callable[..., Any], field: str, factor: float, **fixed: Any) -> dict[str, Make]:
    factors = {"default": 1.0, f"{field} / {factor:g}": 1 / factor, f"{field} x {factor:g}": factor}
    return {name: _scaled(make, field, f, **fixed) for name, f in factors.items()}


def _with(make: Callable[..., Any], options: dict[str, dict[str, Any]]) -> dict[str, Make]:
    return {name: functools.partial(make, **fields) for name, fields in options.items()}


METHODS: dict[str, dict[str, Make]] = {
    "GaussianFit": _three(GaussianFit.for_budget, "prior", 2),
    "FrankWolfeRelease": _three(FrankWolfeRelease.for_budget, "step_size", 2),
    "FrankWolfeRelease, single queries": _three(
        FrankWolfeRelease.for_budget, "step_size", 2, vertices="queries"
    ),
    "MirrorDescentRelease": _three(MirrorDescentRelease.for_budget, "alpha", 3),
    "MirrorDescentRelease, one histogram": _three(
        MirrorDescentRelease.for_budget, "alpha", 3, noise="histogram-once"
    ),
    "SaddleRelease": _three(SaddleRelease.for_budget, "step_size", 3),
    "MWEM": _with(
        MWEM.for_budget, {"default": {}, "20 steps": {"steps": 20}, "120 steps": {"steps": 120}}
    ),
    "HistogramRelease": {"default": HistogramRelease.for_budget},
    "HistogramRelease, no projection": _with(
        HistogramRelease.for_budget, {"default": {"projection": "none"}}
    ),
    "FrankWolfeRelease, as published": _with(
        dpjax.papers.query_release.frank_wolfe, {"default": {"steps": 200}}
    ),
    "SaddleRelease, as published": _with(
        dpjax.papers.query_release.saddle, {"default": {"steps": 300}}
    ),
    "MirrorDescentRelease, as published": _with(
        dpjax.papers.query_release.mirror_descent, {"default": {"width": 300.0}}
    ),
}
MBI = {"default": 1000, "100 iterations": 100, "300 iterations": 300}


def run(*, fast: bool = False, data: Path | None = None) -> dict[str, Any]:
    folder = Path("data") if data is None else data
    if not (folder / "adult-reduced.csv").exists():
        codes, domain = dpjax.datasets.adult_reduced()
        adult = codes, dict(zip(domain.attributes, domain.shape, strict=True))
    else:
        adult = _query_data.adult_reduced(folder)
    epsilons, seeds = ((1.0,), 1) if fast else (EPSILONS, SEEDS)
    methods = {"GaussianFit": METHODS["GaussianFit"]} if fast else METHODS
    rows = list(_rows("adult", adult, methods, epsilons, seeds, peers=not fast))
    chosen = choose(rows)
    result: dict[str, Any] = {"seeds": seeds, "delta": "1/n^2", "chosen": chosen}
    if not fast:
        credit = _query_data.credit_reduced(data)
        rows += _rows("credit", credit, methods, epsilons, seeds, peers=True, keep=chosen)
        result["halves"] = list(_halves(adult, epsilons, seeds))
        result["times"] = _times(adult)
    return result | {"rows": rows}


def defaults() -> dict[str, Any]:
    """The default of each method, on three-way marginals of four attributes of 48,842 records."""
    problem = QueryRelease(Marginals.all_kway(Domain({"a": 9, "b": 6, "c": 2, "d": 2}), 3))
    budget = dpjax.Budget(1.0, 48_842**-2, "replace_one")
    return {name: made["default"](problem, 48_842, budget) for name, made in METHODS.items()}


def _rows(
    name: str,
    table: tuple[np.ndarray, dict[str, int]],
    methods: dict[str, dict[str, Make]],
    epsilons: tuple[float, ...],
    seeds: int,
    *,
    peers: bool,
    keep: dict[str, dict[str, str]] | None = None,
) -> Iterator[dict[str, Any]]:
    codes, sizes = table
    workload = Marginals.all_kway(Domain(sizes), 3)
    problem, n = QueryRelease(workload), len(codes)
    cliques = list(itertools.combinations(sizes, 3))
    truth = _query_peers.exact_answers(codes, sizes, cliques)
    records = jnp.asarray(codes)
    cells = workload.universe_size
    uniform = np.asarray(workload.answers(jnp.full(cells, 1 / cells)))
    yield _row(name, "uniform", "default", None, None, [(uniform - truth, 0.0)])
    resampled = [
        np.asarray(workload.answers_of_records(codes[np.random.default_rng(s).integers(0, n, n)]))
        for s in range(seeds)
    ]
    yield _row(
        name, "n records drawn anew", "default", None, None, [(r - truth, 0.0) for r in resampled]
    )
    for epsilon in epsilons:
        budget = dpjax.Budget(epsilon, 1 / n**2, "replace_one")
        drawn: list[np.ndarray] = []
        for method, configurations in methods.items():
            for label, make in configurations.items():
                if keep and label not in ("default", keep.get(method, {}).get(f"{epsilon:g}")):
                    continue
                solver = make(problem, n, budget)
                errors = []
                for seed in range(seeds):
                    start = time.perf_counter()
                    solution = dpjax.solve(solver, problem, records, key=jax.random.key(seed))
                    answers = np.asarray(solution.params.answers)
                    errors.append((answers - truth, time.perf_counter() - start))
                    if (method, label) == ("GaussianFit", "default"):
                        drawn.append(np.asarray(solution.state.measured))
                claimed = solver.guarantee().epsilon(budget.delta)
                yield _row(name, method, label, epsilon, claimed, errors)
        sigma = float(GaussianFit.for_budget(problem, n, budget).stddevs()[0])
        raw = [(noisy - truth, 0.0) for noisy in drawn]
        yield _row(name, "Gaussian answers, no fit", "default", epsilon, epsilon, raw)
        if not peers:
            continue
        for label, iterations in MBI.items():
            if keep and label not in ("default", keep.get("mbi", {}).get(f"{epsilon:g}")):
                continue
            config = _query_peers.MbiConfig(iterations=iterations)
            fits = []
            for noisy in drawn:
                fitted = _query_peers.mbi_fit(noisy, sigma, sizes, cliques, config, records=n)
                fits.append((fitted["answers"] - truth, fitted["seconds"]))
            yield _row(name, "mbi", label, epsilon, epsilon, fits)
        for rounds in _query_peers_mwem.MWEM_ROUNDS:
            label = f"{rounds} rounds"
            if keep and label != keep.get("MWEM, NumPy", {}).get(f"{epsilon:g}"):
                continue
            peer = _query_peers_mwem.mwem_peer(rounds)
            runs = []
            for seed in range(seeds):
                released = peer(codes, sizes, cliques, epsilon, budget.delta, seed)
                runs.append((_answers(released, workload) - truth, released["seconds"]))
            yield _row(name, "MWEM, NumPy", label, epsilon, epsilon, runs)
        jax.clear_caches()


def _answers(released: dict[str, Any], workload: Marginals) -> np.ndarray:
    if "answers" in released:
        return released["answers"]
    return np.asarray(workload.answers(jnp.exp(jnp.asarray(released["log_probs"]))))


def _row(
    data: str,
    method: str,
    configuration: str,
    epsilon: float | None,
    claimed: float | None,
    runs: list[tuple[np.ndarray, float]],
) -> dict[str, Any]:
    largest = [float(np.abs(error).max()) for error, _ in runs]
    means = [float(np.abs(error).mean()) for error, _ in runs]
    row = {
        "data": data,
        "method": method,
        "configuration": configuration,
        "epsilon": epsilon,
        "claimed": claimed,
        "max": float(np.mean(largest)),
        "max_range": [min(largest), max(largest)],
        "mean": float(np.mean(means)),
        "seconds": float(np.median([seconds for _, seconds in runs])),
        "seeds": len(runs),
    }
    print({k: v for k, v in row.items() if k != "max_range"}, flush=True)
    return row


def choose(rows: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """For each method and epsilon the configuration of least largest error on Adult."""
    chosen: dict[str, dict[str, str]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        for epsilon in EPSILONS:
            mine = [r for r in rows if (r["method"], r["epsilon"]) == (method, epsilon)]
            if mine:
                best = min(mine, key=lambda row: row["max"])
                chosen.setdefault(method, {})[f"{epsilon:g}"] = best["configuration"]
    return chosen


def _halves(
    table: tuple[np.ndarray, dict[str, int]], epsilons: tuple[float, ...], seeds: int
) -> Iterator[dict[str, Any]]:
    """Errors of `dpjax.release` on the half it saw, and on the other, a stand-in for the world."""
    codes, sizes = table
    workload = Marginals.all_kway(Domain(sizes), 3)
    for epsilon in epsilons:
        seen, unseen, floor = [], [], []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(codes))
            one, other = np.split(codes[order], [len(codes) // 2])
            budget = dpjax.Budget(epsilon, 1 / len(one) ** 2, "replace_one")
            released = dpjax.release(workload, one, budget, key=jax.random.key(seed))
            exact = [np.asarray(workload.answers_of_records(half)) for half in (one, other)]
            errors = [float(np.abs(np.asarray(released.answers) - e).max()) for e in exact]
            seen.append(errors[0])
            unseen.append(errors[1])
            floor.append(float(np.abs(exact[0] - exact[1]).max()))
        yield {
            "epsilon": epsilon,
            "records": len(one),
            "empirical": float(np.mean(seen)),
            "other_half": float(np.mean(unseen)),
            "halves_apart": float(np.mean(floor)),
        }


def _times(table: tuple[np.ndarray, dict[str, int]]) -> dict[str, Any]:
    """Seconds of the fits at epsilon 1, in turn, first calls apart; and of the passes."""
    codes, sizes = table
    workload = Marginals.all_kway(Domain(sizes), 3)
    problem, n = QueryRelease(workload), len(codes)
    budget = dpjax.Budget(1.0, 1 / n**2, "replace_one")
    solver = GaussianFit.for_budget(problem, n, budget)
    cliques = list(itertools.combinations(sizes, 3))
    key = jax.random.key(0)
    noisy = np.asarray(dpjax.solve(solver, problem, codes, key=key).state.measured)
    sigma = float(solver.stddevs()[0])
    jax.clear_caches()
    state = solver.init(problem, key=key)._replace(measured=jnp.asarray(noisy))
    fit = jax.jit(solver.finalize)
    calls: dict[str, Callable[[], Any]] = {"GaussianFit": lambda: fit(problem, state).answers}
    for iterations in MBI.values():
        config = _query_peers.MbiConfig(iterations=iterations)
        calls[f"mbi, {iterations} iterations"] = functools.partial(
            _query_peers.mbi_fit, noisy, sigma, sizes, cliques, config, records=n
        )
    shares = jnp.full(workload.universe_size, 1 / workload.universe_size)
    weights = jnp.zeros(workload.num_queries)
    answers, adjoint = jax.jit(workload.answers), jax.jit(workload.adjoint)
    copied = jnp.zeros(2**24)
    copy = jax.jit(lambda x: x + 1)
    return {
        "fits": _runner.interleaved(calls, repeats=5, warmup=1),
        "passes": _runner.interleaved(
            {
                "answers": lambda: answers(shares),
                "adjoint": lambda: adjoint(weights),
                "64 MiB read and written": lambda: copy(copied),
            },
            repeats=ROUNDS,
        ),
    }


def fits(result: dict[str, Any]) -> str:
    """Markdown table of the time of each fit, and what mbi takes for one of its iterations."""
    times = result["times"]["fits"]
    lines = ["| fit at epsilon 1, once compiled | seconds (quartiles) |", "|---|---|"]
    lines += [
        f"| {name} | {t['median']:.3f} ({t['lower_quartile']:.3f} to {t['upper_quartile']:.3f}) |"
        for name, t in times.items()
    ]
    few, many = min(MBI.values()), max(MBI.values())
    more = times[f"mbi, {many} iterations"]["median"] - times[f"mbi, {few} iterations"]["median"]
    lines.append(f"| mbi, each iteration beyond {few} | {more / (many - few):.5f} |")
    return "\n".join(lines)


def summary(result: dict[str, Any]) -> str:
    """Markdown tables of largest and mean errors."""
    return "\n\n".join(
        table(result, data) for data in dict.fromkeys(r["data"] for r in result["rows"])
    )


def table(result: dict[str, Any], data: str) -> str:
    """A row a method: its default's largest error, seed range, and mean error, at each epsilon."""
    rows = [row for row in result["rows"] if row["data"] == data]
    epsilons = sorted({row["epsilon"] for row in rows} - {None})
    lines = [
        f"| {data} | " + " | ".join(f"epsilon {e:g}" for e in epsilons) + " | seconds |",
        "|" + "---|" * (len(epsilons) + 2),
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = []
        mine = [row for row in rows if row["method"] == method]
        for epsilon in epsilons:
            at = [r for r in mine if r["epsilon"] in (epsilon, None)]
            first = at[0]
            low, high = first["max_range"]
            cell = f"{first['max']:.4f} ({low:.4f} to {high:.4f}), {first['mean']:.5f}"
            best = min(at, key=lambda row: row["max"])
            if best is not first:
                cell += f"; chosen {best['max']:.4f}"
            cells.append(cell)
        seconds = float(np.median([row["seconds"] for row in mine]))
        lines.append(f"| {method} | " + " | ".join(cells) + f" | {seconds:.2g} |")
    return "\n".join(lines)


def plot(result: dict[str, Any]) -> Path:
    """Largest error against epsilon, defaults, with the range of seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = dict.fromkeys(row["data"] for row in result["rows"])
    figure, axes = pyplot.subplots(1, len(names), figsize=(6 * len(names) + 3, 4.5), squeeze=False)
    colours = pyplot.get_cmap("tab20").colors
    for axis, data in zip(axes[0], names, strict=True):
        axis.set_prop_cycle(color=colours)
        rows = [r for r in result["rows"] if r["data"] == data and r["epsilon"] is not None]
        for method in dict.fromkeys(row["method"] for row in rows):
            if "published" in method:
                continue
            firsts = {}
            for row in rows:
                if row["method"] == method:
                    firsts.setdefault(row["epsilon"], row)
            points = [firsts[e] for e in sorted(firsts)]
            x, y = [p["epsilon"] for p in points], np.array([p["max"] for p in points])
            low, high = np.array([p["max_range"] for p in points]).T
            bars = np.maximum(0, np.stack([y - low, high - y]))
            axis.errorbar(x, y, bars, marker="o", capsize=2, label=method)
        axis.set(xscale="log", yscale="log", xlabel="epsilon", title=data)
    axes[0][0].set_ylabel("largest absolute error")
    axes[0][-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1))
    path = _runner.RESULTS / "query_release.png"
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
