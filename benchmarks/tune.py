"""Hyperparameters chosen inside one budget: `dpjax.tune` beside defaults, hindsight, naive choice.

DP-SGD on logistic regression, 12 candidates of clip norm and step size, the default number of
steps and one total epsilon: `default` trains once with the defaults; `tuned` is `dpjax.tune`, 16
trials on average and 64 executed, a fifth of the records held out for scores; `naive` trains every
candidate once, composes all of them, and chooses by noisy counts on the same share; `hindsight` is
the candidate of least test error, each at the full budget, which nobody can know. Mean test errors
over runs, and over choices. In the two synthetic problems records' gradients are far shorter than
1; the default measures how long they are, candidates do not. `regret_share` is how far `tuned` is
on the way from `hindsight` to `default`, where the two differ by at least 0.01. The sweep is timed
with blocks of several sizes, whose runs go through `vmap` together. The second table is of
`dpjax.sklearn.LogisticRegression` at epsilon 1 on synthetic features: with a bound on rows of 300,
which holds for nearly all, with `tune=` over six bounds, and with the best of the six. Each draws
how long most rows are.
"""

import dataclasses
import functools
import math
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe

import dpjax
from benchmarks import _runner
from benchmarks.datasets import credit_default

DELTA = 1e-5
EPSILONS = (0.5, 1.0, 3.0)
CLIPS = (0.002, 0.1, 4.0)
RATES = (0.03, 0.3, 3.0, 30.0)  # of a step in units of the clip norm
VALIDATION = 0.2
TRIALS = 16
BLOCK = 8
BLOCKS = (1, 4, 16)
CHOICES = 3
NORMS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
ROWS = {"heavy": 5_000, "long": 20_000, "skewed": 5_000, "bounded": 5_000}  # by kind of features


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All problems and epsilons; `fast` takes a small synthetic one at epsilon 1."""
    options, runs = ({"steps": 10}, 1) if fast else ({}, 3)
    problems = {"tiny_features": synthetic(0.001, 20, 1_000 if fast else 20_000)}
    if not fast:
        credit = credit_default(path=data and data / "credit_default.csv.gz")
        problems |= {"many_small_features": synthetic(0.005, 200, 20_000)}
        problems |= {"adult": real(dpjax.datasets.adult()), "credit": real(credit)}
    sweep = timed(problems["tiny_features" if fast else "adult"][0], 10 if fast else 150)
    print(sweep, flush=True)
    bounds = [of_bounds(kind, fast=fast) for kind in (("heavy",) if fast else ROWS)]
    print(*bounds, sep="\n", flush=True)
    points = []
    for name, (train, test) in problems.items():
        for epsilon in (1.0,) if fast else EPSILONS:
            points.append({"problem": name, **compared(train, test, epsilon, options, runs, fast)})
            print(name, points[-1], flush=True)
    return {
        "delta": DELTA,
        "steps": default(
            problems["tiny_features"][0], dpjax.Budget(1.0, DELTA), **options
        ).sampler.steps,
        "runs": runs,
        "choices": 1 if fast else CHOICES,
        "candidates": len(CLIPS) * len(RATES),
        "trials": TRIALS,
        "points": points,
        "sweep": sweep,
        "bounds": bounds,
    }


def features(kind: str) -> tuple[Any, Any]:
    """Twice as many records as are trained on, and labels of a linear rule with noise."""
    rng, rows = np.random.default_rng(1), 2 * ROWS[kind]
    dim = 10 if kind == "long" else 5
    if kind == "skewed":
        x = rng.lognormal(0.0, 1.5, size=(rows, dim)) - math.exp(1.5**2 / 2)
    elif kind == "bounded":
        x = rng.uniform(-1, 1, size=(rows, dim)) * 300 / math.sqrt(dim)
    else:
        x = rng.standard_t(2.5, size=(rows, dim))
    margins = x @ rng.normal(size=dim)
    margins = margins / np.median(np.abs(margins)) + 0.5
    return x, (margins + 0.5 * rng.logistic(size=rows) > 0).astype(int)


def of_bounds(kind: str, *, fast: bool) -> dict[str, Any]:
    """Test errors of logistic regression at epsilon 1, by how the bound on rows is chosen."""
    from dpjax.sklearn import LogisticRegression

    x, y = features(kind)
    half, runs = len(y) // 2, 1 if fast else 5
    norms = NORMS[::3] if fast else NORMS

    def error_of(seed: int, **fields: Any) -> float:
        model = LogisticRegression(classes=[0, 1], delta=DELTA, random_state=seed, **fields)
        return 1 - float(model.fit(x[:half], y[:half]).score(x[half:], y[half:]))

    fixed = {c: np.mean([error_of(s, data_norm=c) for s in range(runs)]) for c in norms}
    best = min(fixed, key=lambda norm: fixed[norm])
    chosen = {"candidates": {"data_norm": norms}, "trials": 2 if fast else TRIALS}
    return {
        "features": kind,
        "records": half,
        "loose": float(fixed[norms[-1]]),
        "tuned": float(np.mean([error_of(s, tune=chosen) for s in range(runs)])),
        "hindsight": float(fixed[best]),
        "best_norm": best,
    }


def synthetic(scale: float, num_features: int, rows: int) -> tuple[Any, Any]:
    """Labels of a linear rule with noise, on Gaussian features of norm about `scale`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * rows, num_features)) / math.sqrt(num_features)
    rule = x @ rng.normal(size=num_features) + 0.3 * rng.normal(size=2 * rows)
    both = {"x": (scale * x).astype(np.float32), "y": np.sign(rule).astype(np.float32)}
    train, test = (
        {name: jnp.asarray(column[part]) for name, column in both.items()}
        for part in (slice(0, rows), slice(rows, 2 * rows))
    )
    return train, test


def real(dataset: Any) -> tuple[Any, Any]:
    train, test = (
        {"x": jnp.asarray(part.x), "y": jnp.asarray(2.0 * part.y - 1.0, jnp.float32)}
        for part in dataset.split(test=0.25, seed=0)
    )
    return train, test


def logistic(margin: Any, label: Any) -> Any:
    return jax.nn.softplus(-label * margin)


def linear(train: Any) -> Any:
    return dpjax.problems.Risk.linear(logistic, train["x"].shape[1])


def error(params: Any, records: Any) -> jax.Array:
    """Share of records on the wrong side."""
    return jnp.mean(records["x"] @ params * records["y"] <= 0)


def solvers(train: Any, budget: Any, **options: Any) -> list[Any]:
    """The candidates, of one event."""
    first = default(train, budget, clip_norm=1.0, **options)  # measures no lengths
    return [
        dataclasses.replace(first, clip_norm=clip, learning_rate=rate / clip)
        for clip in CLIPS
        for rate in RATES
    ]


def default(train: Any, budget: Any, **options: Any) -> Any:
    problem, rows = linear(train), train["y"].size
    return dpjax.solvers.DPSGD.for_budget(problem, rows, budget, **options)


def defaults() -> dict[str, Any]:
    """DP-SGD at epsilon 1 on 20,000 records of 20 features."""
    train = {"x": np.zeros((20_000, 20)), "y": np.zeros(20_000)}
    return {"tiny_features": default(train, dpjax.Budget(1.0, DELTA))}


def compared(
    train: Any, test: Any, epsilon: float, options: dict[str, Any], runs: int, fast: bool
) -> dict[str, Any]:
    """Test errors of the four ways at one epsilon."""
    budget, problem = dpjax.Budget(epsilon, DELTA), linear(train)
    one = default(train, budget, **options)
    usual = float(np.mean(errors([one] * runs, problem, train, test, seed=1)))
    made = solvers(train, budget, noise_multiplier=one.noise_multiplier, **options)
    known = errors(made * runs, problem, train, test, seed=2).reshape(runs, -1).mean(axis=0)
    found = [
        dpjax.tune(
            made,
            dpjax.solvers.DPSGD,
            problem,
            train,
            budget,
            key=jax.random.key(100 + choice),
            num_records=train["y"].size,
            trials=2 if fast else TRIALS,
            validation=VALIDATION,
        )
        for choice in range(1 if fast else CHOICES)
    ]
    each = [float(error(one.params, test)) for one in found]
    tuned, best = float(np.mean(each)), float(known.min())
    naives = [naive(train, test, budget, options, seed) for seed in range(len(found))]
    return {
        "epsilon": epsilon,
        "accounted": found[0].guarantee.epsilon(DELTA),
        "default": usual,
        "hindsight": best,
        "tuned": tuned,
        "tuned_each": each,
        "naive": float(np.mean(naives)),
        "worst_candidate": float(known.max()),
        "regret_share": (tuned - best) / (usual - best) if usual - best >= 0.01 else None,
        "noise_factor": found[0].solver.noise_multiplier / one.noise_multiplier,
        "best_candidate": int(known.argmin()),
        "choices": [one.choice for one in found],
    }


def naive(train: Any, test: Any, budget: Any, options: dict[str, Any], seed: int) -> float:
    """Every candidate once, all of them composed; the best by noisy counts of held-out records."""
    rng = np.random.default_rng(seed)
    held = rng.random(train["y"].size) < VALIDATION
    kept, scored = (jax.tree.map(lambda a, part=part: a[part], train) for part in (~held, held))
    sampler = default(train, budget, noise_multiplier=1.0, **options).sampler
    number = len(CLIPS) * len(RATES)
    noise = dpjax.privacy.calibrate_gaussian(
        sampler.rate,
        number * sampler.steps,
        budget,
        failure_probability=number * sampler.failure_probability(),
    )
    made = solvers(train, budget, noise_multiplier=noise, **options)
    problem = linear(train)
    weights = parameters(made, problem, kept, seed=10 + seed)
    score_noise = dpjax.privacy.calibrate_noise(dpe.GaussianDpEvent, budget) * math.sqrt(number)
    wrong = scored["y"].size * np.asarray(jax.vmap(error, in_axes=(0, None))(weights, scored))
    noisy = wrong + score_noise * rng.normal(size=number)
    return float(error(weights[int(noisy.argmin())], test))


def stack(solvers: list[Any]) -> Any:
    return jax.tree.map(
        lambda *leaves: jnp.stack([jnp.asarray(a, float) for a in leaves]), *solvers
    )


@jax.jit
def trained(solvers: Any, keys: jax.Array, problem: Any, train: Any) -> Any:
    """Parameters `[runs, d]` of one run of each solver, with its key."""

    def one(solver: Any, key: jax.Array) -> Any:
        return dpjax.solve(solver, problem, train, key=key, progress=False).params

    return jax.vmap(one)(solvers, keys)


def parameters(solvers: list[Any], problem: Any, train: Any, *, seed: int) -> Any:
    """Those of all runs, in blocks."""
    keys = jax.random.split(jax.random.key(seed), len(solvers))
    blocks = [slice(first, first + BLOCK) for first in range(0, len(solvers), BLOCK)]
    found = [trained(stack(solvers[b]), keys[b], problem, train) for b in blocks]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)


def errors(solvers: list[Any], problem: Any, train: Any, test: Any, *, seed: int) -> np.ndarray:
    params = parameters(solvers, problem, train, seed=seed)
    return np.asarray(jax.vmap(error, in_axes=(0, None))(params, test))


def timed(train: Any, steps: int) -> dict[str, Any]:
    """Seconds of 64 runs in blocks of several sizes, beside those of a single run."""
    budget, problem = dpjax.Budget(1.0, DELTA), linear(train)
    one = default(train, budget, steps=steps)
    keys = jax.random.split(jax.random.key(0), 64)

    def sweep(size: int, runs: int = 64) -> Any:
        many, firsts = stack([one] * size), range(0, runs, size)
        found = [trained(many, keys[i : i + size], problem, train) for i in firsts]
        return jax.block_until_ready(found)

    def compiling(size: int) -> float:
        begun = time.perf_counter()
        sweep(size, size)
        return time.perf_counter() - begun

    before, seconds = trained._cache_size(), {size: compiling(size) for size in BLOCKS}
    programs = trained._cache_size() - before
    ways = {"one": lambda: sweep(1, 1)} | {
        f"{size}": functools.partial(sweep, size) for size in BLOCKS
    }
    measured = _runner.interleaved(ways, repeats=5, warmup=1)
    alone = measured.pop("one")["median"]
    return {
        "runs": 64,
        "steps": steps,
        "one_run_seconds": alone,
        "times_one_run": {size: one["median"] / alone for size, one in measured.items()},
        "first_block_seconds": {f"{size}": each for size, each in seconds.items()},
        "programs": programs,
    }


def summary(result: dict[str, Any]) -> str:
    """Markdown table, a row a problem and epsilon."""
    lines = [
        "| problem | epsilon | default | tuned | naive | hindsight | noise | share of the regret |",
        "|---" * 8 + "|",
    ]
    for p in result["points"]:
        share = "" if p["regret_share"] is None else f"{p['regret_share']:.2f}"
        errors = " | ".join(f"{p[way]:.4f}" for way in ("default", "tuned", "naive", "hindsight"))
        lines.append(
            f"| {p['problem']} | {p['epsilon']} | {errors} | x {p['noise_factor']:.2f} | {share} |"
        )
    lines += [
        "",
        "| features | n | bound of 300 | tuned | hindsight | its bound |",
        "|---" * 6 + "|",
    ]
    for b in result["bounds"]:
        errors = " | ".join(f"{b[way]:.4f}" for way in ("loose", "tuned", "hindsight"))
        lines.append(f"| {b['features']} | {b['records']:,} | {errors} | {b['best_norm']:g} |")
    sweep = result["sweep"]
    lines += [
        "",
        f"64 runs of DP-SGD took one run's {sweep['one_run_seconds'] * 1e3:.0f} ms times "
        + ", ".join(f"{t:.0f} in blocks of {size}" for size, t in sweep["times_one_run"].items())
        + ".",
    ]
    return "\n".join(lines)
