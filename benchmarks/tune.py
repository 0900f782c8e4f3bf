"""Hyperparameters chosen inside one budget: `dpjax.tune` beside defaults, hindsight, naive choice.

DP-SGD on logistic regression, 12 candidates of clip norm and step size, all of 150 steps and at one
total epsilon:
`default` trains once with the defaults; `tuned` is `dpjax.tune`, 16 trials on average and 64
executed, a fifth of the records held out for scores; `naive` trains every candidate once, composes
all of them, and chooses by noisy counts on the same share; `hindsight` is the candidate of least
test error, each at the full budget, which nobody can know. Mean test errors over runs. In the two
synthetic problems the default is poor by construction: records' gradients are far shorter than the
default clip norm. `regret_share` is how far `tuned` is on the way from `hindsight` to `default`,
where the two differ by at least 0.01.
"""

import dataclasses
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
BLOCK = 16


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """All problems and epsilons; `fast` takes a small synthetic one at epsilon 1."""
    steps, runs = (10, 1) if fast else (150, 3)
    problems = {"tiny_features": synthetic(0.001, 20, 1_000 if fast else 20_000)}
    if not fast:
        credit = credit_default(path=data and data / "credit_default.csv.gz")
        problems |= {"many_small_features": synthetic(0.005, 200, 20_000)}
        problems |= {"adult": real(dpjax.datasets.adult()), "credit": real(credit)}
    sweep = timed(problems["tiny_features" if fast else "adult"][0], steps)
    print(sweep, flush=True)
    points = []
    for name, (train, test) in problems.items():
        for epsilon in (1.0,) if fast else EPSILONS:
            points.append({"problem": name, **compared(train, test, epsilon, steps, runs, fast)})
            print(name, points[-1], flush=True)
    return {
        "delta": DELTA,
        "steps": steps,
        "runs": runs,
        "candidates": len(CLIPS) * len(RATES),
        "trials": TRIALS,
        "points": points,
        "sweep": sweep,
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
    first = default(train, budget, **options)
    return [
        dataclasses.replace(first, clip_norm=clip, learning_rate=rate / clip)
        for clip in CLIPS
        for rate in RATES
    ]


def default(train: Any, budget: Any, **options: Any) -> Any:
    problem, rows = linear(train), train["y"].size
    return dpjax.solvers.DPSGD.for_budget(problem, rows, budget, **options)


def compared(
    train: Any, test: Any, epsilon: float, steps: int, runs: int, fast: bool
) -> dict[str, Any]:
    """Test errors of the four ways at one epsilon; one tuned and one naive choice."""
    budget, problem = dpjax.Budget(epsilon, DELTA), linear(train)
    one = default(train, budget, steps=steps)
    usual = float(np.mean(errors([one] * runs, problem, train, test, seed=1)))
    made = solvers(train, budget, noise_multiplier=one.noise_multiplier, steps=steps)
    known = errors(made * runs, problem, train, test, seed=2).reshape(runs, -1).mean(axis=0)
    found = dpjax.tune(
        made,
        dpjax.solvers.DPSGD,
        problem,
        train,
        budget,
        key=jax.random.key(100),
        num_records=train["y"].size,
        trials=2 if fast else TRIALS,
        validation=VALIDATION,
    )
    tuned, best = float(error(found.params, test)), float(known.min())
    return {
        "epsilon": epsilon,
        "accounted": found.guarantee.epsilon(DELTA),
        "default": usual,
        "hindsight": best,
        "tuned": tuned,
        "naive": naive(train, test, budget, steps),
        "worst_candidate": float(known.max()),
        "regret_share": (tuned - best) / (usual - best) if usual - best >= 0.01 else None,
        "noise_factor": found.solver.noise_multiplier / one.noise_multiplier,
        "best_candidate": int(known.argmin()),
        "choice": found.choice,
    }


def naive(train: Any, test: Any, budget: Any, steps: int) -> float:
    """Every candidate once, all of them composed; the best by noisy counts of held-out records."""
    rng = np.random.default_rng(0)
    held = rng.random(train["y"].size) < VALIDATION
    kept, scored = (jax.tree.map(lambda a, part=part: a[part], train) for part in (~held, held))
    sampler = default(train, budget, noise_multiplier=1.0, steps=steps).sampler
    number = len(CLIPS) * len(RATES)
    noise = dpjax.privacy.calibrate_gaussian(
        sampler.rate,
        number * steps,
        budget,
        failure_probability=number * sampler.failure_probability(),
    )
    made = solvers(train, budget, noise_multiplier=noise, steps=steps)
    problem = linear(train)
    weights = parameters(made, problem, kept, seed=10)
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
    """Seconds of 64 runs in blocks of 16, as `tune` runs them, beside those of a single run."""
    budget, problem = dpjax.Budget(1.0, DELTA), linear(train)
    one = default(train, budget, steps=steps)
    keys = jax.random.split(jax.random.key(0), BLOCK)
    many = stack([one] * BLOCK)
    begun = time.perf_counter()
    jax.block_until_ready(trained(many, keys, problem, train))
    compiling = time.perf_counter() - begun
    compiled = trained._cache_size()
    measured = _runner.interleaved(
        {
            "one": lambda: jax.block_until_ready(trained(stack([one]), keys[:1], problem, train)),
            "sweep": lambda: jax.block_until_ready(
                [trained(many, keys, problem, train) for _ in range(64 // BLOCK)]
            ),
        },
        repeats=3,
        warmup=1,
    )
    alone, sweep = measured["one"]["median"], measured["sweep"]["median"]
    return {
        "runs": 64,
        "one_run_seconds": alone,
        "sweep_seconds": sweep,
        "times_one_run": sweep / alone,
        "first_block_seconds": compiling,
        "programs_for_the_sweep": trained._cache_size() - compiled,
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
    sweep = result["sweep"]
    lines += [
        "",
        f"64 runs of DP-SGD took {sweep['times_one_run']:.1f} times one run.",
        result.get("note", ""),
    ]
    return "\n".join(lines).rstrip()
