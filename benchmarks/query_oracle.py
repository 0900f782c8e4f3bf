"""Query release as a game by double oracle, beside what `dpjax.release` chooses: largest errors.

The players are cells of the universe and signed queries. A round draws the queries that are
answered worst by the present distribution, all from one noisy ranking, measures them, and solves
the game of what was measured: the distribution that fits it. Epsilon 1, delta 1/n^2, replace-one,
three seeds. Halfspaces: 13 random directions over 2^12 points, 53,235 queries. Sparse queries:
20,000 of 16 cells each. Records of both lie in 20 cells. "chosen": what `release` takes. Not run on
Adult: `histogram` and `mwem`, which were last there in `query_release`.
"""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks._text import table
from dpjax.api._release import METHODS, choose
from dpjax.privacy import zcdp_budget
from dpjax.problems import QueryRelease
from dpjax.queries import Halfspace, Marginals, Sparse, Workload

SEEDS = 3
BITS = 12
ROUNDS = {"5 a round": (10, 5), "20 a round": (10, 20), "100 a round": (5, 100)}
PEERS_WITHIN = ("gaussian_fit", "histogram", "frank_wolfe", "mwem")
_FIT_STEPS = 150


def cases(fast: bool) -> Iterator[tuple[str, Workload, np.ndarray]]:
    """Name, queries and records."""
    rng = np.random.default_rng(3)
    bits = 6 if fast else BITS
    points = np.array(list(itertools.product([0.0, 1.0], repeat=bits)))
    halfspaces = Halfspace(points, rng.normal(size=(13, bits)))
    cells = rng.choice(len(points), 20, replace=False)
    shares = rng.dirichlet(np.ones(20))
    for n in (1_000,) if fast else (1_000, 10_000):
        yield f"halfspaces, n = {n:,}", halfspaces, rng.choice(cells, n, p=shares)
    if fast:
        return
    m = 20_000
    columns = np.concatenate([rng.choice(len(points), 16, replace=False) for _ in range(m)])
    sparse = Sparse(
        np.repeat(np.arange(m), 16),
        columns,
        np.ones(len(columns), np.int8),
        num_queries=m,
        universe_size=len(points),
    )
    for n in (1_000, 10_000):
        yield f"sparse queries, n = {n:,}", sparse, rng.choice(cells, n, p=shares)
    codes, domain = dpjax.datasets.adult_reduced()
    yield "3-way marginals of Adult", Marginals.all_kway(domain, 3), codes


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Largest and mean error of each method on each case."""
    del data
    rows = []
    for name, workload, records in cases(fast):
        problem, n = QueryRelease(workload), len(records)
        budget = dpjax.Budget(1.0, 1 / n**2, "replace_one")
        truth = np.asarray(workload.answers_of_records(records))
        chosen = choose(problem, n, budget)[0]
        for method in PEERS_WITHIN[:2] if fast else PEERS_WITHIN:
            if workload.universe_size > 2**16 and method in ("histogram", "mwem"):
                continue  # each was last there, in `query_release`
            solver = METHODS[method](problem, n, budget)
            found = [
                dpjax.solve(solver, problem, jnp.asarray(records), key=key).params.answers
                for key in _keys()
            ]
            row = _row(name, method, [np.asarray(answers) - truth for answers in found])
            rows.append(row | {"chosen": method == chosen})
        rho = zcdp_budget(budget, relation="replace_one")
        for label, (rounds, several) in ROUNDS.items():
            found = [_oracle(workload, truth, n, rho, rounds, several, key) for key in _keys()]
            rows.append(_row(name, label, [answers - truth for answers in found]))
    return {"seeds": SEEDS, "epsilon": 1.0, "delta": "1/n^2", "rows": rows}


def defaults() -> dict[str, Any]:
    """What the rule takes for halfspaces, and its solver."""
    n, (_, workload, _) = 1_000, next(cases(fast=True))
    problem, budget = QueryRelease(workload), dpjax.Budget(1.0, 1 / n**2, "replace_one")
    chosen, options, _ = choose(problem, n, budget)
    return {chosen: METHODS[chosen](problem, n, budget, **options)}


def _keys() -> jax.Array:
    return jax.random.split(jax.random.key(5), SEEDS)


def _row(case: str, method: str, errors: list[np.ndarray]) -> dict[str, Any]:
    largest = [float(np.abs(e).max()) for e in errors]
    row = {
        "case": case,
        "method": method,
        "max": float(np.mean(largest)),
        "max_std": float(np.std(largest, ddof=1)),
        "mean": float(np.mean([np.abs(e).mean() for e in errors])),
    }
    print(row, flush=True)
    return row


def _oracle(
    workload: Workload,
    truth: np.ndarray,
    n: int,
    rho: float,
    rounds: int,
    several: int,
    key: jax.Array,
) -> np.ndarray:
    """Answers after so many rounds; half of rho for the rankings, half for the measurements.

    A record moves a signed query's score by at most 1/n, so a draw at scale g has bounded range
    2/(gn) and the first K of one ranking are K draws. A measured answer moves by 1/n.
    """
    draws = rounds * several
    scale = 2 / (n * np.sqrt(8 * rho / 2 / draws))
    stddev = 1 / (n * np.sqrt(2 * rho / 2 / draws))
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    logits = jnp.zeros(workload.universe_size)
    total, precision = np.zeros(len(truth)), np.zeros(len(truth))
    answers = np.asarray(workload.answers(jax.nn.softmax(logits)))
    fit = jax.jit(functools.partial(_fit, workload))
    for _ in range(rounds):
        gaps = truth - answers
        ranked = np.concatenate([gaps, -gaps]) + scale * rng.gumbel(size=2 * len(truth))
        worst = np.unique(np.argpartition(-ranked, several)[:several] % len(truth))
        measured = truth[worst] + stddev * rng.normal(size=len(worst))
        total[worst] += measured / stddev**2
        precision[worst] += 1 / stddev**2
        means = np.where(precision > 0, total / np.maximum(precision, 1e-300), 0)
        root = jnp.asarray(np.sqrt(precision), float)
        logits = fit(logits, root, jnp.asarray(means, float))
        answers = np.asarray(workload.answers(jax.nn.softmax(logits)))
    return answers


def _fit(workload: Workload, logits: jax.Array, root: jax.Array, means: jax.Array) -> jax.Array:
    """Least squares over distributions, with the entropy as prior, by Adam."""
    optimizer = optax.adam(0.1)

    def loss(logits: jax.Array) -> jax.Array:
        log_p = jax.nn.log_softmax(logits)
        residuals = (workload.answers(jnp.exp(log_p)) - means) * root
        return 0.5 * jnp.sum(residuals**2) + 0.5 * jnp.dot(jnp.exp(log_p), log_p)

    def body(carry: Any, _: None) -> tuple[Any, None]:
        logits, state = carry
        updates, state = optimizer.update(jax.grad(loss)(logits), state)
        return (optax.apply_updates(logits, updates), state), None

    start = logits, optimizer.init(logits)
    return jax.lax.scan(body, start, None, length=_FIT_STEPS)[0][0]


def best(result: dict[str, Any], case: str) -> dict[str, float]:
    """Largest error of what `release` chooses, and of the best double oracle."""
    rows = [row for row in result["rows"] if row["case"] == case]
    return {
        "chosen": next(row["max"] for row in rows if row.get("chosen")),
        "oracle": min(row["max"] for row in rows if row["method"] in ROUNDS),
    }


def summary(result: dict[str, Any]) -> str:
    """Markdown table, a row a case."""
    methods = list(dict.fromkeys(row["method"] for row in result["rows"]))
    at = {(row["case"], row["method"]): row for row in result["rows"]}
    names = [f"double oracle, {m}" if m in ROUNDS else f"`{m}`" for m in methods]
    lines = []
    for case in dict.fromkeys(row["case"] for row in result["rows"]):
        cells = [at.get((case, method)) for method in methods]
        shown = [
            "" if c is None else f"{c['max']:.4f}" + (" (chosen)" if c.get("chosen") else "")
            for c in cells
        ]
        lines.append([case, *shown])
    return table(["largest error", *names], lines)
