"""Minimax group risk on Adult, ten groups by sex and race: error of the group that fares worst.

Linear classifiers, add or remove one record, delta 1e-5, five random 75/25 splits with five seeds
each. `DP-SGD` ignores the groups. `weighted` weighs each record's loss by the root of the inverse
of its group's public share, or by the inverse itself; shares are floored at 0.02. `reweighted`
trains for half of the steps, releases a noisy table of errors by group, and goes on with losses
weighted by its exponential. `rate constraints` bounds every group's error rate. `objective
perturbation` states the problem as a `LinearModel`, features over their public norm. `DP-SGDA` and
`mirror descent-ascent` solve the minimax problem over group weights, the first in Euclidean
geometry (logistic loss), the second over vertices of an l1 ball (squared loss, radius 3, first
split only). `group as an input` is `DP-SGD` with ten more features, which others may not use. The
non-private lines are full-batch.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks._text import table
from dpjax.geometry import L1Ball
from dpjax.privacy import calibrate_gaussian, compose_guarantees
from dpjax.problems import LinearModel, Risk, group_risk
from dpjax.solvers import DPSGD, RateConstrainedSGDA, SaddleMirrorDescent, linear_model_solver

DELTA = 1e-5
EPSILONS = (1.0, 3.0)
SEEDS = 5
SPLITS = 5
# of the US population by sex and race, coarsely, floored: not computed from the records
SHARES = (0.4, 0.02, 0.02, 0.02, 0.06, 0.4, 0.02, 0.02, 0.02, 0.06)
RADIUS = 3.0
NORM = 12**0.5  # of a record's features: twelve are 1, the intercept among them
MODEL_RADIUS = 20.0  # as in `linear_models`
CEILING = 0.17  # on the error rate of each group
TEMPERATURE = 0.05  # errors by group over this are the exponents of their weights
TABLE = 0.1  # share of the epsilon for the table of errors
DRAWS = 4_000  # of the bootstrap and of equal groups
PLAIN = "DP-SGD"
Fit = Callable[[dict[str, jax.Array], jax.Array], jax.Array]


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Errors by group for each split, method and epsilon, and the noise of their largest."""
    del data
    splits, seeds, steps = (2, 2, 50) if fast else (SPLITS, SEEDS, 1000)
    options = {"steps": steps} if fast else {}
    parts = [_split(seed) for seed in range(splits)]
    n = len(parts[0][0]["y"])
    points, noise = [], []
    for epsilon in EPSILONS[:1] if fast else EPSILONS:
        budget = dpjax.Budget(epsilon, DELTA, "add_or_remove_one")
        for name, (fit, accounted) in methods(n, budget, options).items():
            used = parts[:1] if name == "mirror descent-ascent" else parts
            found = [
                [_errors(fit(train, key), test) for key in _keys(seeds)] for train, test in used
            ]
            points.append(_point(name, epsilon, accounted, found))
    references = {
        "not private": (0.0, False),
        "not private, minimax": (0.2, False),
        "not private, group as an input": (0.0, True),
    }
    for name, (rate, told) in references.items():
        fit = jax.jit(functools.partial(_reference, dual_rate=rate, steps=steps))
        found = [
            [_errors(fit(with_group(train) if told else train), test)] for train, test in parts
        ]
        points.append(_point(name, None, None, found))
    plain = next(p for p in points if p["method"] == PLAIN)
    for (_, test), errors in zip(parts, plain["splits"], strict=True):
        sizes = np.bincount(np.asarray(test["group"]), minlength=len(SHARES))
        noise.append(_noise(sizes, np.array(errors["by_group"][0]), errors["errors"][0]))
    return {
        "delta": DELTA,
        "seeds": seeds,
        "num_splits": splits,
        "shares": SHARES,
        "group_names": dpjax.datasets.adult(group="sex_race").group_names,
        "num_train": n,
        "points": points,
        "noise": noise,
    }


def methods(n: int, budget: dpjax.Budget, options: dict[str, Any]) -> dict[str, tuple[Fit, float]]:
    """From data and key to weights, and the accounted epsilon, of each method."""
    dim = dpjax.datasets.adult().num_features + 1
    shares = jnp.asarray(SHARES)
    risk = Risk(logistic, jnp.zeros(dim))
    plain = DPSGD.for_budget(risk, n, budget, **options)
    # the ball is wide enough not to bind: a Euclidean method needs none
    euclidean = group_risk(
        logistic, SHARES, grad_range=(1.0, 1.0), vertices=L1Ball(dim, 60.0), dim=dim
    )
    minimax = _minimax(dim)
    ceiling = dpjax.problems.from_masks(
        np.eye(len(SHARES)),
        np.eye(len(SHARES))[:, :, None] * np.array([1.0, 0.0]),
        CEILING,
        field="group",
    )
    # of a record and its label in one: class 0 is an error
    bounded = dpjax.problems.RateConstrained(margin, constraints=ceiling, init=jnp.zeros(dim))
    constrained = RateConstrainedSGDA.for_budget(bounded, n, budget, **options)

    def solved(solver: Any, problem: Any, change: Any = lambda data: data) -> tuple[Fit, float]:
        @jax.jit
        def fit(data: dict[str, jax.Array], key: jax.Array) -> jax.Array:
            params = dpjax.solve(solver, problem, change(data), key=key).params
            return params[0] if isinstance(params, tuple) else params

        return fit, solver.guarantee().epsilon(DELTA)

    model = LinearModel("logistic", dim, MODEL_RADIUS)
    perturbed = linear_model_solver(model, n, budget)
    wide = Risk(logistic, jnp.zeros(dim + len(SHARES)))
    weighted = Risk(weighted_logistic, jnp.zeros(dim))
    return {
        PLAIN: solved(plain, risk),
        "weighted, root": solved(plain, weighted, with_weights(shares**-0.5)),
        "weighted, inverse": solved(plain, weighted, with_weights(1 / shares)),
        "reweighted": _reweighted(n, budget, options),
        "rate constraints": solved(constrained, bounded, mirrored),
        "objective perturbation": solved(perturbed, model, unit_norm),
        "DP-SGDA": solved(
            DPSGD.for_budget(euclidean, n, budget, average="uniform", **options), euclidean
        ),
        "mirror descent-ascent": solved(
            SaddleMirrorDescent.for_budget(minimax, n, budget, output="played", **options), minimax
        ),
        "group as an input": solved(DPSGD.for_budget(wide, n, budget, **options), wide, with_group),
    }


def defaults() -> dict[str, Any]:
    """DP-SGD and mirror descent-ascent at epsilon 1."""
    n, budget = 36_632, dpjax.Budget(1.0, DELTA, "add_or_remove_one")
    dim = 99
    minimax = _minimax(dim)
    return {
        PLAIN: DPSGD.for_budget(Risk(logistic, jnp.zeros(dim)), n, budget),
        "mirror descent-ascent": SaddleMirrorDescent.for_budget(
            minimax, n, budget, output="played"
        ),
    }


def _minimax(dim: int) -> Any:
    return group_risk(
        squared,
        SHARES,
        grad_range=(4 * RADIUS, 1.0),
        vertices=L1Ball(dim, RADIUS),
        dim=dim,
        third_order=0.0,
    )


def _reweighted(n: int, budget: dpjax.Budget, options: dict[str, Any]) -> tuple[Fit, float]:
    """Half of the steps, a noisy table of errors by group, and the other half by its weights."""
    dim = dpjax.datasets.adult().num_features + 1
    small = dataclasses.replace(budget, epsilon=TABLE * budget.epsilon, delta=DELTA / 10)
    # one record counts once among its group, and perhaps once among the errors
    stddev = 2**0.5 * calibrate_gaussian(1.0, 1, small, relation="add_or_remove_one")
    table = dpjax.Guarantee(_gaussian(stddev / 2**0.5), "add_or_remove_one")
    problem = Risk(weighted_logistic, jnp.zeros(dim))
    steps = options.get("steps", 1000) // 2

    def whole(share: float) -> tuple[DPSGD, float]:
        half = dataclasses.replace(budget, epsilon=share * budget.epsilon)
        solver = DPSGD.for_budget(problem, n, half, steps=2 * steps)
        first = DPSGD.for_budget(
            problem, n, half, steps=steps, noise_multiplier=solver.noise_multiplier
        )
        parts = (first.guarantee(), table, first.guarantee())
        return first, compose_guarantees(*parts).epsilon(DELTA)

    low, high = 0.8, 1.0
    for _ in range(6):
        middle = (low + high) / 2
        low, high = (middle, high) if whole(middle)[1] <= budget.epsilon else (low, middle)
    solver, accounted = whole(low)

    @jax.jit
    def fit(data: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, 3)
        even = with_weights(jnp.ones(len(SHARES)))(data)
        first = dpjax.solve(solver, problem, even, key=keys[0]).params
        wrong = ((data["x"] @ first > 0) != (data["y"] > 0)).astype(float)
        member = jax.nn.one_hot(data["group"], len(SHARES))
        counts = jnp.stack([member.sum(axis=0), wrong @ member])
        size, errors = counts + stddev * jax.random.normal(keys[1], counts.shape)
        # of few records nothing is known: towards the error of all
        prior = jnp.sum(errors) / jnp.sum(size)
        weight = 5 * stddev
        rates = (jnp.maximum(errors, 0) + weight * prior) / (jnp.maximum(size, 0) + weight)
        group_weights = jnp.exp((rates - prior) / TEMPERATURE)
        changed = dataclasses.replace(problem, init=first)
        return dpjax.solve(solver, changed, with_weights(group_weights)(data), key=keys[2]).params

    return fit, accounted


def _gaussian(noise_multiplier: float) -> Any:
    from dp_accounting import dp_event

    return dp_event.GaussianDpEvent(noise_multiplier)


def logistic(w: jax.Array, record: Any) -> jax.Array:
    """Logistic loss of a label +-1."""
    return jax.nn.softplus(-record["y"] * jnp.dot(record["x"], w))


def weighted_logistic(w: jax.Array, record: Any) -> jax.Array:
    """The same by the weight that comes with a record, a public function of its group."""
    return record["weight"] * logistic(w, record)


def squared(w: jax.Array, record: Any) -> jax.Array:
    """Half the squared error."""
    return 0.5 * (jnp.dot(record["x"], w) - record["y"]) ** 2


def margin(w: jax.Array, x: jax.Array) -> jax.Array:
    """The logit of being right, of inputs times labels."""
    return jnp.dot(x, w)


def mirrored(data: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Inputs times labels, all of class 1: class 0 is predicted where a prediction is wrong."""
    right = jnp.ones(len(data["y"]), jnp.int32)
    return {**data, "x": data["x"] * data["y"][:, None], "y": right}


def unit_norm(data: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Features over their norm."""
    return {"x": data["x"] / NORM, "y": data["y"]}


def with_weights(weights: jax.Array) -> Callable[[dict[str, jax.Array]], dict[str, jax.Array]]:
    """Adds to records the weight of their group, scaled to 1 on average by public shares."""
    scaled = weights / jnp.dot(jnp.asarray(SHARES) / sum(SHARES), weights)
    return lambda data: {**data, "weight": scaled[data["group"]]}


def with_group(data: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Adds the group to the inputs, as indicators."""
    told = jax.nn.one_hot(data["group"], len(SHARES))
    return {**data, "x": jnp.hstack([data["x"], told])}


def _split(seed: int) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    train, test = dpjax.datasets.adult(group="sex_race").split(test=0.25, seed=seed)
    return _with_intercept(train), _with_intercept(test)


def _keys(seeds: int) -> jax.Array:
    return jax.random.split(jax.random.key(11), seeds)


def _with_intercept(dataset: Any) -> dict[str, jax.Array]:
    x = np.hstack([dataset.x, np.ones((len(dataset), 1), np.float32)])
    return {
        "x": jnp.asarray(x),
        "y": jnp.asarray(2.0 * dataset.y - 1, jnp.float32),
        "group": jnp.asarray(dataset.group),
    }


def _errors(w: jax.Array, data: dict[str, jax.Array]) -> tuple[float, list[float]]:
    """Error, and the error of each group."""
    if len(w) > data["x"].shape[1]:
        data = with_group(data)
    wrong = np.asarray((data["x"] @ w > 0) != (data["y"] > 0))
    groups = np.asarray(data["group"])
    return float(wrong.mean()), [float(wrong[groups == g].mean()) for g in range(len(SHARES))]


def _point(name: str, epsilon: Any, accounted: Any, found: list[list[Any]]) -> dict[str, Any]:
    """Of runs by split and seed: means over all of them, and what spread each has."""
    worst = np.array([[max(by_group) for _, by_group in runs] for runs in found])
    by_group = np.array([[groups for _, groups in runs] for runs in found])
    means = worst.mean(axis=1)
    print(f"{name} epsilon={epsilon}: worst {worst.mean():.4f}", flush=True)
    return {
        "method": name,
        "epsilon": epsilon,
        "accounted": accounted,
        "error": float(np.mean([error for runs in found for error, _ in runs])),
        "worst_group_error": float(worst.mean()),
        "worst_group_std": float(worst.std(axis=1, ddof=1).mean()) if worst.shape[1] > 1 else 0.0,
        "worst_split_std": float(means.std(ddof=1)) if len(means) > 1 else 0.0,
        "by_group": by_group.mean(axis=(0, 1)).tolist(),
        "splits": [
            {"errors": [error for error, _ in runs], "by_group": [groups for _, groups in runs]}
            for runs in found
        ],
    }


def _noise(sizes: np.ndarray, rates: np.ndarray, error: float) -> dict[str, Any]:
    """What the largest of the groups' errors owes to the choice of test records."""
    rng = np.random.default_rng(0)
    again = rng.binomial(sizes, rates, (DRAWS, len(sizes))) / sizes
    equal = rng.binomial(sizes, error, (DRAWS, len(sizes))) / sizes
    return {
        "sizes": sizes.tolist(),
        "rates": rates.tolist(),
        "standard_errors": np.sqrt(rates * (1 - rates) / sizes).tolist(),
        "worst": float(rates.max()),
        "bootstrap_mean": float(again.max(axis=1).mean()),
        "bootstrap_std": float(again.max(axis=1).std()),
        "largest_of_equal": float(equal.max(axis=1).mean()),
        "largest_of_equal_std": float(equal.max(axis=1).std()),
    }


def _reference(data: dict[str, jax.Array], dual_rate: float, steps: int) -> jax.Array:
    """Full-batch Adam on the mean loss, or under multiplicative weights on the groups."""
    member = jax.nn.one_hot(data["group"], len(SHARES))
    sizes = jnp.sum(member, axis=0)
    optimizer = optax.adam(0.05)

    def losses(w: jax.Array) -> jax.Array:
        return jax.nn.softplus(-data["y"] * (data["x"] @ w)) @ member

    def objective(w: jax.Array, weights: jax.Array) -> jax.Array:
        return jnp.dot(losses(w), weights / sizes)

    def body(carry: Any, _: None) -> tuple[Any, None]:
        w, state, log_weights, total = carry
        plain = sizes / jnp.sum(sizes)
        weights = jax.nn.softmax(log_weights) if dual_rate else plain
        updates, state = optimizer.update(jax.grad(objective)(w, weights), state)
        w = optax.apply_updates(w, updates)
        return (w, state, log_weights + dual_rate * losses(w) / sizes, total + w), None

    start = jnp.zeros(data["x"].shape[1])
    carry = (start, optimizer.init(start), jnp.zeros(len(SHARES)), start)
    w, _, _, total = jax.jit(lambda c: jax.lax.scan(body, c, None, length=steps)[0])(carry)
    return total / steps if dual_rate else w


def gains(result: dict[str, Any], epsilon: float) -> dict[str, tuple[float, float]]:
    """By how much each method's worst group fares better than DP-SGD's, paired by split.

    Mean over splits and its standard error, by the deviation of the splits, whose records overlap.
    """
    at = {p["method"]: _worst(p) for p in result["points"] if p["epsilon"] == epsilon}
    found = {}
    for name, worst in at.items():
        if name != PLAIN and len(worst) == len(at[PLAIN]):
            less = at[PLAIN] - worst
            found[name] = float(less.mean()), float(less.std(ddof=1) / len(less) ** 0.5)
    return found


def _worst(point: dict[str, Any]) -> np.ndarray:
    return np.array([np.mean([max(g) for g in s["by_group"]]) for s in point["splits"]])


def summary(result: dict[str, Any]) -> str:
    """Markdown table, a row a method."""
    head = [
        "method",
        "epsilon",
        "error",
        "worst group's error",
        "sd of seeds",
        "sd of splits",
        "gain on DP-SGD (s.e.)",
        "worst of the mean errors",
    ]
    better = {e: gains(result, e) for e in {p["epsilon"] for p in result["points"]} if e}
    lines = []
    for p in result["points"]:
        gain = better.get(p["epsilon"], {}).get(p["method"])
        lines.append(
            [
                p["method"],
                "" if p["epsilon"] is None else f"{p['epsilon']:g}",
                f"{p['error']:.4f}",
                f"{p['worst_group_error']:.4f}",
                f"{p['worst_group_std']:.4f}" if p["epsilon"] else "",
                f"{p['worst_split_std']:.4f}",
                f"{gain[0]:+.4f} ({gain[1]:.4f})" if gain else "",
                f"{max(p['by_group']):.4f}",
            ]
        )
    return table(head, lines)


def page_table(result: dict[str, Any]) -> str:
    """Markdown table for the page on saddle points: epsilon 1, what ran on all splits."""
    head = ["method", "error", "worst group's error", "better than DP-SGD by (s.e.)"]
    better, lines = gains(result, 1.0), []
    for p in result["points"]:
        if p["epsilon"] in (1.0, None) and len(p["splits"]) == result["num_splits"]:
            gain = better.get(p["method"])
            lines.append(
                [
                    p["method"],
                    f"{p['error']:.3f}",
                    f"{p['worst_group_error']:.3f}",
                    f"{gain[0]:.3f} ({gain[1]:.3f})" if gain and p["epsilon"] else "",
                ]
            )
    return table(head, lines)


def noise_table(result: dict[str, Any]) -> str:
    """Markdown table: a row a group, with the range of sizes over the splits' test records."""
    mean = next(p for p in result["points"] if p["method"] == PLAIN)["by_group"]
    sizes = np.array([split["sizes"] for split in result["noise"]])
    errors = np.mean([split["standard_errors"] for split in result["noise"]], axis=0)
    lines = [
        [name, f"{min(size):,} to {max(size):,}", f"{rate:.3f}", f"{deviation:.3f}"]
        for name, size, rate, deviation in zip(
            result["group_names"], sizes.T, mean, errors, strict=True
        )
    ]
    return table(["group", "test records", "error", "standard error"], lines)


def readme(result: dict[str, Any]) -> str:
    """Worst group's error of each method, and what the test records of a group can tell."""
    return f"{summary(result)}\n\nDP-SGD at epsilon 1, by group:\n\n{noise_table(result)}"
