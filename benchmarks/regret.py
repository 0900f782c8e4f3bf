"""What `dpjax.fit` chooses against all that it could have chosen, on instances of no other study.

A cell is a problem, a number of records and an epsilon, at delta 1e-6 under replace-one. Every
method of `dpjax.plan` is run by its defaults, and a few settings beside; an error is the excess
mean loss (or duality gap) over the non-private optimum, as a share of that of the start, the median
of the seeds. Regret is the error of the choice over the least one. The rates of `DPSGD` and the
choice for a `Risk` come from other instances of these generators and others. Clip norm and rate in
units of the length of gradients were chosen on others too, but with an eye on the cells of `risk`,
so that these are not fresh for them; how many looks measure that length, on others, after softmax
regression of 3,000 records had lost here. Momentum and rates of `PolishedFrankWolfe` were chosen on
others, because it lost on the l1 ball of a million records here; that it goes without where noise
swamps all, because momentum lost at 500. That convex losses with a minimum for each label take
`DPSGD`, hinges too, was decided when those of `jumping slope` had lost. `PreconditionedSGD` was
made for real tables; its rates, and when `dpjax.plan` takes it, were chosen on those and on other
seeds of `classes of a table`, with an eye on a cell of 3,000 records here, which had lost. How far
logistic slopes are capped was chosen on others, after a cell of 500 records here had lost.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from dpjax.geometry import L1Ball
from dpjax.problems import LinearModel, RateConstrained, Risk, Saddle, SimplexRisk
from dpjax.solvers import DPSGD, OnlineToNonconvex

DELTA = 1e-6
SEEDS = 3
EPSILONS = (0.25, 1.0, 4.0)
CONSTANT, NONCONVEX = "dpsgd, constant rate", "online_to_nonconvex"
_STEPS = 4_000  # of descent without noise, on so many records; a tenth of them on all
_PART = 30_000


class Cell(NamedTuple):
    """An instance: `error` maps parameters to a share of the start's excess."""

    kind: str
    name: str
    problem: Any
    data: dict[str, Any]
    epsilon: float
    error: Callable[[Any], float]
    settings: tuple[str, ...] = ()


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All cells; `fast` takes the first of each kind, and one seed."""
    del data
    points: list[dict[str, Any]] = []
    for kind, make in KINDS.items():
        for cell in make():
            print(kind, cell.name, cell.epsilon, flush=True)
            points += _errors(cell, 1 if fast else SEEDS)
            if fast:
                break
        jax.clear_caches()
    return {"delta": DELTA, "points": points, "regret": regrets(points)}


def regrets(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each cell, the choice, the best, and their ratio."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for p in points:
        cells.setdefault((p["kind"], p["name"], p["epsilon"]), []).append(p)
    rows = []
    for (kind, name, epsilon), tried in cells.items():
        best = min(tried, key=lambda p: p["error"])
        chosen = next(p for p in tried if p["chosen"])
        rows.append(
            {
                "kind": kind,
                "name": name,
                "epsilon": epsilon,
                "chosen": chosen["method"],
                "best": best["method"],
                "error": chosen["error"],
                "regret": 1.0 if chosen is best else chosen["error"] / max(best["error"], 1e-12),
            }
        )
    return rows


def defaults() -> dict[str, Any]:
    """What `fit` chooses in eight cells."""
    budget = dpjax.Budget(1.0, DELTA, "replace_one")
    problems = {
        "linear risk": Risk.linear(_logistic, 15, radius=4.0, lipschitz=1.0, smoothness=0.25),
        "linear model": LinearModel("logistic", 15, radius=4.0),
        "risk": Risk(lambda w, r: optax.huber_loss(r["x"] @ w, r["z"]), jnp.zeros(25)),
        "l1 ball": SimplexRisk.linear(_squared, L1Ball(60), grad_range=4.0, smoothness=1.0),
        "game": Saddle.matrix_game((12, 12)),
        "settles": Risk.linear(_absolute, 15, lipschitz=1.0),
        "goes far": Risk.linear(_ramp, 15, lipschitz=1.0),
        "classes of a table": RateConstrained.linear(10, 3),
    }
    return {name: dpjax.plan(problem, 3_000, budget).solver for name, problem in problems.items()}


def _errors(cell: Cell, seeds: int) -> list[dict[str, Any]]:
    n = len(jax.tree.leaves(cell.data)[0])
    budget = dpjax.Budget(cell.epsilon, DELTA, "replace_one")
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        considered = dpjax.plan(cell.problem, n, budget).considered
        methods = [c.method for c in considered if c.seconds is not None]
        for method in (*methods, *cell.settings):
            solver = _solver(cell.problem, n, budget, method)
            errors = [
                cell.error(dpjax.solve(solver, cell.problem, cell.data, key=key).params)
                for key in jax.random.split(jax.random.key(2026), seeds)
            ]
            found.append(
                {
                    "kind": cell.kind,
                    "name": cell.name,
                    "epsilon": cell.epsilon,
                    "method": method,
                    "chosen": method == considered[0].method,
                    "error": float(np.median(errors)),
                }
            )
    return found


def _solver(problem: Any, n: int, budget: dpjax.Budget, method: str) -> Any:
    if method == NONCONVEX:
        return OnlineToNonconvex.for_budget(problem, n, budget)
    if method != CONSTANT:
        return dpjax.plan(problem, n, budget, method=method).solver
    solver = DPSGD.for_budget(problem, n, budget)
    decay = 1 - 10 / solver.sampler.steps
    return dataclasses.replace(solver, schedule="constant", decay=decay)


def _share(problem: Any, data: dict[str, Any], project: Any) -> Callable[[Any], float]:
    """Excess mean loss over the non-private optimum's, as a share of the start's."""
    loss = jax.jit(lambda params: problem.mean_loss(params, data))
    part = jax.tree.map(lambda leaf: leaf[:_PART], data)

    @functools.partial(jax.jit, static_argnums=(2, 3))
    def descend(start: Any, records: Any, steps: int, rate: float) -> Any:
        optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))

        def step(_: int, carry: Any) -> Any:
            params, state = carry
            slope = jax.grad(problem.mean_loss)(params, records)
            updates, state = optimizer.update(slope, state)
            return project(optax.apply_updates(params, updates)), state

        return jax.lax.fori_loop(0, steps, step, (start, optimizer.init(start)))[0]

    optimum = descend(problem.init, part, _STEPS, 0.05)
    if len(jax.tree.leaves(data)[0]) > _PART:
        optimum = descend(optimum, data, _STEPS // 10, 0.005)
    best, first = float(loss(optimum)), float(loss(problem.init))
    return lambda params: (float(loss(params)) - best) / (first - best)


def _linear(kind: str, dim: int, n: int, length: float, seed: int) -> dict[str, jax.Array]:
    """Laplace features in the unit ball; logistic labels, or noisy answers within the length."""
    rng = np.random.default_rng(seed)
    x = rng.laplace(size=(n, dim))
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    truth = rng.normal(size=dim)
    margin = x @ (0.7 * length * truth / np.linalg.norm(truth))
    if kind == "logistic":
        y = np.where(rng.random(n) < 1 / (1 + np.exp(-margin)), 1.0, -1.0)
    else:
        y = np.clip(margin + 0.2 * rng.normal(size=n), -length, length)
    return {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}


def _logistic(margin: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.softplus(-y * margin)


def _squared(margin: jax.Array, y: jax.Array) -> jax.Array:
    return (margin - y) ** 2 / 2


def _ramp(margin: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.clip(0.5 - y * margin, 0, 1)


def _absolute(margin: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.abs(margin - y)


def _on_ball(radius: float | None) -> Callable[[jax.Array], jax.Array]:
    if radius is None:
        return lambda w: w
    return lambda w: optax.projections.projection_l2_ball(w, radius)


def _linear_risks() -> Iterator[Cell]:
    for seed, (kind, dim, n, radius) in enumerate(
        [
            ("logistic", 15, 3_000, 4.0),
            ("logistic", 15, 30_000, 4.0),
            ("logistic", 60, 30_000, 8.0),
            ("logistic", 15, 30_000, 16.0),
            ("squared", 15, 10_000, 1.0),
            ("squared", 60, 30_000, 2.0),
            ("squared", 15, 500, 1.0),
            ("logistic", 15, 500, 4.0),
            ("logistic", 8, 1_000_000, 4.0),
        ]
    ):
        data = _linear(kind, dim, n, radius, 500 + seed)
        if kind == "logistic":
            problem = Risk.linear(_logistic, dim, radius=radius, lipschitz=1.0, smoothness=0.25)
        else:
            problem = Risk.linear(_squared, dim, radius=radius, lipschitz=2 * radius, smoothness=1)
        error = _share(problem, data, _on_ball(radius))
        for epsilon in EPSILONS:
            name = f"{kind}, d = {dim}, n = {n:,}, R = {radius:g}"
            yield Cell("linear risk", name, problem, data, epsilon, error, (CONSTANT,))


def _linear_models() -> Iterator[Cell]:
    for seed, (kind, dim, n, radius) in enumerate(
        [
            ("logistic", 5, 500, 4.0),
            ("logistic", 15, 3_000, None),
            ("logistic", 100, 10_000, 6.0),
            ("squared", 15, 3_000, 1.0),
            ("squared", 60, 30_000, 2.0),
            ("huber", 5, 500, 1.0),
            ("huber", 30, 10_000, 2.0),
            ("logistic", 15, 1_000_000, 4.0),
        ]
    ):
        data = _linear(kind, dim, n, radius or 6.0, 600 + seed)
        problem = LinearModel(kind, dim, radius=radius)
        error = _share(problem, data, _on_ball(radius))
        for epsilon in EPSILONS:
            shown = "none" if radius is None else f"{radius:g}"
            name = f"{kind}, d = {dim}, n = {n:,}, R = {shown}"
            yield Cell("linear model", name, problem, data, epsilon, error)


def _general_risks() -> Iterator[Cell]:
    """Softmax regression, a network of one layer, Huber regression, absolute loss of a network."""

    def network(params: Any, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ params["in"] + params["bias"]) @ params["out"]

    def start(inputs: int, hidden: int, outputs: int, seed: int) -> dict[str, jax.Array]:
        rng = np.random.default_rng(seed)
        return {
            "in": jnp.asarray(rng.normal(size=(inputs, hidden)) * (2 / inputs) ** 0.5, float),
            "bias": jnp.zeros(hidden),
            "out": jnp.asarray(rng.normal(size=(hidden, outputs)) * (2 / hidden) ** 0.5, float),
        }

    def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, y)

    problems = {
        "softmax, 10 x 4": Risk(
            lambda w, r: cross_entropy(r["x"] @ w, r["y"]), jnp.zeros((10, 4), float)
        ),
        "network, 10 x 24 x 4": Risk(
            lambda w, r: cross_entropy(network(w, r["x"]), r["y"]), start(10, 24, 4, 1)
        ),
        "huber, 25": Risk(lambda w, r: optax.huber_loss(r["x"] @ w, r["z"]), jnp.zeros(25)),
        "absolute loss, network": Risk(
            lambda w, r: jnp.abs(network(w, r["x"])[0] - r["z"]), start(10, 16, 1, 2)
        ),
    }
    for name, problem in problems.items():
        for n in (3_000, 20_000):
            rng = np.random.default_rng(700 + n)
            x = rng.normal(size=(n, 25 if "25" in name else 10))
            scores = 2 * np.tanh(x[:, :4] + x[:, 4:8]) + rng.gumbel(size=(n, 4))
            z = np.tanh(x[:, 0] - x[:, 1]) + 0.5 * x[:, 2] + 0.2 * rng.standard_t(3, size=n)
            arrays = {"x": x, "z": z}
            data = {field: jnp.asarray(a, jnp.float32) for field, a in arrays.items()}
            data["y"] = jnp.asarray(np.argmax(scores, axis=1), jnp.int32)
            error = _share(problem, data, lambda w: w)
            for epsilon in EPSILONS:
                cell = f"{name}, n = {n:,}"
                yield Cell("risk", cell, problem, data, epsilon, error, (CONSTANT, NONCONVEX))


def _sparse() -> Iterator[Cell]:
    """Least squares on an l1 ball, bounded features, few or all coefficients."""
    for seed, (dim, n, support) in enumerate(
        [(60, 10_000, 4), (60, 10_000, 60), (400, 30_000, 6), (100, 500, 3), (40, 1_000_000, 20)]
    ):
        rng = np.random.default_rng(800 + seed)
        x = rng.uniform(-1, 1, size=(n, dim))
        truth = np.zeros(dim)
        truth[:support] = rng.normal(size=support)
        truth *= 0.9 / np.abs(truth).sum()
        y = np.clip(x @ truth + 0.1 * rng.normal(size=n), -1, 1)
        data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
        problem = SimplexRisk.linear(_squared, L1Ball(dim), grad_range=4.0, smoothness=1.0)
        error = _share(problem, data, lambda w: optax.projections.projection_l1_ball(w, 1.0))
        for epsilon in EPSILONS:
            yield Cell("l1 ball", f"{support} of {dim}, n = {n:,}", problem, data, epsilon, error)


def _games() -> Iterator[Cell]:
    """Games of records with entries +1 and -1, and means uniform in [-1, 1]."""
    for seed, (rows, columns, n) in enumerate(
        [(8, 8, 2_000), (40, 25, 5_000), (12, 12, 500), (10, 10, 200_000)]
    ):
        rng = np.random.default_rng(900 + seed)
        means = rng.uniform(-1, 1, size=(rows, columns))
        payoffs = np.where(rng.random((n, rows, columns)) < (1 + means) / 2, 1, -1)
        data = {"A": jnp.asarray(payoffs, jnp.int8)}
        problem, mean = Saddle.matrix_game((rows, columns)), payoffs.mean(axis=0)

        def gap(params: Any, mean: np.ndarray = mean) -> float:
            x, y = (np.asarray(p, float) for p in params)
            return float(np.max(x @ mean) - np.min(mean @ y))

        for epsilon in EPSILONS:
            yield Cell("game", f"{rows} x {columns}, n = {n:,}", problem, data, epsilon, gap)


def _jumps() -> Iterator[Cell]:
    """Bounded features, losses without a smoothness; errors below a thousandth count as that."""

    def hinge(margin: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.maximum(0, 1 - y * margin)

    def sigmoid(margin: jax.Array, y: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(-y * margin)

    def quantile(margin: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.maximum(0.8 * (y - margin), 0.2 * (margin - y))

    for seed, (link, dim, n, length) in enumerate(
        [
            (_ramp, 15, 3_000, 4.0),
            (_ramp, 60, 30_000, 8.0),
            (hinge, 60, 30_000, 8.0),
            (sigmoid, 15, 10_000, 4.0),
            (_absolute, 15, 3_000, 1.0),
            (quantile, 30, 10_000, 2.0),
        ]
    ):
        answers = "squared" if link in (_absolute, quantile) else "logistic"
        data = _linear(answers, dim, n, length, 1000 + seed)
        problem = Risk.linear(link, dim, lipschitz=1.0)
        share = _share(problem, data, _on_ball(None))

        def error(params: Any, share: Callable[[Any], float] = share) -> float:
            return max(share(params), 1e-3)

        for epsilon in EPSILONS:
            name = f"{link.__name__.strip('_')}, d = {dim}, n = {n:,}"
            settings = (NONCONVEX,) if answers == "squared" else ()  # elsewhere planned
            yield Cell("jumping slope", name, problem, data, epsilon, error, settings)


def _tables() -> Iterator[Cell]:
    """Classes of a table's rows: numbers within loose bounds, and indicators of a category."""
    for seed, (numbers, labels, classes, n) in enumerate(
        [(6, 4, 3, 3_000), (10, 12, 5, 10_000), (16, 30, 8, 40_000), (8, 5, 4, 200_000)]
    ):
        rng = np.random.default_rng(1100 + seed)
        mixed = rng.normal(size=(n, numbers)) @ rng.normal(size=(numbers, numbers))
        spread = np.exp(rng.uniform(-3, -1, size=numbers)) / np.abs(mixed).mean(axis=0)
        columns = np.clip(rng.uniform(-0.9, 0.9, size=numbers) + spread * mixed, -1, 1)
        category = np.eye(labels)[rng.choice(labels, size=n, p=rng.dirichlet(np.ones(labels)))]
        effects = rng.normal(size=(numbers, classes)) / columns.std(axis=0)[:, None]
        scores = columns @ effects * 2 / numbers**0.5 + category @ rng.normal(
            size=(labels, classes)
        )
        scores += rng.gumbel(size=(n, classes)) - scores.mean(axis=0)
        x = np.concatenate([columns, category], axis=1) / (numbers + 1) ** 0.5
        y = np.argmax(scores, axis=1)
        data = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.int32)}
        problem = RateConstrained.linear(numbers + labels, classes)
        error = _classifier_share(data, problem)
        for epsilon in EPSILONS:
            name = f"{numbers} numbers, {labels} labels, {classes} classes, n = {n:,}"
            yield Cell("classes of a table", name, problem, data, epsilon, error)


def _classifier_share(
    data: dict[str, jax.Array], problem: RateConstrained
) -> Callable[[Any], float]:
    """Excess cross-entropy over the optimum's, as a share of the start's."""
    from sklearn.linear_model import LogisticRegression

    x, y = (np.asarray(data[name]) for name in ("x", "y"))

    @jax.jit
    def loss(params: Any) -> jax.Array:
        return jnp.mean(problem.losses(problem.class_logits(params, data["x"]), data["y"]))

    # scaled, so that what descends gets there
    centre, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    model = LogisticRegression(C=1e4, max_iter=5_000).fit((x - centre) / spread, y)
    w = model.coef_.T / spread[:, None]
    optimum = {"w": w, "b": model.intercept_ - centre @ w}
    best = float(loss(jax.tree.map(lambda a: jnp.asarray(a, float), optimum)))
    first = float(loss(problem.init))
    return lambda params: (float(loss(params)) - best) / (first - best)


KINDS: dict[str, Callable[[], Iterator[Cell]]] = {
    "linear risk": _linear_risks,
    "linear model": _linear_models,
    "risk": _general_risks,
    "l1 ball": _sparse,
    "game": _games,
    "jumping slope": _jumps,
    "classes of a table": _tables,
}


def summary(result: dict[str, Any]) -> str:
    """Markdown: quantiles of the regret, and the cells."""
    rows = result["regret"]
    values = np.array([row["regret"] for row in rows])
    lines = [
        f"{len(rows)} cells: median {np.median(values):.2f}, 90th percentile "
        f"{np.quantile(values, 0.9):.2f}, worst {values.max():.2f}",
        "",
        "| kind | instance | epsilon | chosen | error | best | regret |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['kind']} | {row['name']} | {row['epsilon']:g} | {row['chosen']} | "
            f"{row['error']:.3g} | {row['best']} | {row['regret']:.2f} |"
        )
    return "\n".join(lines)
