"""Time of one step at batch 512 on Adult: plain SGD, DP-SGD, RaCO, and peers.

All run as one compiled scan over the same records and the same number of steps, in one process and
in turn; the figures are medians of whole scans divided by the number of steps. "SGD" draws 512
indices uniformly and takes an unclipped, noiseless step of the same model by `jax.grad`; "SGD, our
product" does the same with the sum of gradients written as in our clipping, which is faster on CPU.
The private methods draw Poisson batches of expected size 512. Peers take their own per-example path
on such batches (opacus: drawn by NumPy; its loop is not compiled).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dpjax
from benchmarks import _runner

BATCH = 512


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Seconds a step of each method, and the ratios that matter."""
    del data
    steps, repeats = (20, 3) if fast else (1000, 25)
    train, _ = dpjax.datasets.adult().split(test=0.25, seed=0)
    records = jax.tree.map(jnp.asarray, train.as_dict())
    calls = {
        "SGD": _sgd(records, steps),
        "SGD, our product": _sgd(records, steps, factored=True),
        "DP-SGD (dpjax)": _solver(records, steps, parity=False),
        "RaCO (dpjax)": _solver(records, steps, parity=True),
        "RaCO, 18 constraints (dpjax)": _solver(records, steps, parity=True, groups=9),
        **_jax_privacy(records, steps),
        **_opacus(records, 5 if fast else 100),
    }
    seconds = _runner.interleaved({k: c for k, (c, _) in calls.items()}, repeats=repeats)
    per_step = {
        name: {
            key: value / calls[name][1] * 1e6
            for key, value in times.items()
            if key in ("median", "lower_quartile", "upper_quartile")
        }
        for name, times in seconds.items()
    }
    median = {name: times["median"] for name, times in per_step.items()}
    return {
        "batch": BATCH,
        "num_records": len(train),
        "num_features": train.num_features,
        "steps": steps,
        "microseconds_per_step": per_step,
        "first_call_seconds": {name: times["first_call"] for name, times in seconds.items()},
        "ratios": {
            "DP-SGD / SGD": median["DP-SGD (dpjax)"] / median["SGD"],
            "DP-SGD / SGD, our product": median["DP-SGD (dpjax)"] / median["SGD, our product"],
            "RaCO / DP-SGD": median["RaCO (dpjax)"] / median["DP-SGD (dpjax)"],
        },
    }


def _problem(num_features: int, parity: bool, groups: int = 2) -> Any:
    con = dpjax.problems.demographic_parity(groups, 2, slack=0.05) if parity else None
    return dpjax.problems.RateConstrained.linear(num_features, 2, con)


def _sgd(records: Any, steps: int, *, factored: bool = False) -> tuple[Callable[[], Any], int]:
    problem = _problem(records["x"].shape[1], parity=False)
    optimizer = optax.sgd(0.5)

    def gradient(params: Any, batch: Any) -> Any:
        if not factored:
            return jax.grad(problem.mean_loss)(params, batch)
        c = problem.cotangent(problem.logits(params, batch["x"]), batch) / BATCH
        columns = [c[:, k] @ batch["x"] for k in range(c.shape[1])]
        return {"w": jnp.stack(columns, axis=1), "b": c.sum(axis=0)}

    @jax.jit
    def scan(key: jax.Array, records: Any) -> Any:
        def body(carry: Any, step_key: jax.Array) -> tuple[Any, None]:
            params, state, average = carry
            rows = jax.random.randint(step_key, (BATCH,), 0, records["y"].shape[0])
            batch = jax.tree.map(lambda a: a[rows], records)
            updates, state = optimizer.update(gradient(params, batch), state, params)
            params = optax.apply_updates(params, updates)
            average = optax.incremental_update(params, average, 0.01)
            return (params, state, average), None

        start = (problem.init, optimizer.init(problem.init), problem.init)
        return jax.lax.scan(body, start, jax.random.split(key, steps))[0]

    return lambda: scan(jax.random.key(0), records), steps


def _solver(
    records: Any, steps: int, *, parity: bool, groups: int = 2
) -> tuple[Callable[[], Any], int]:
    problem = _problem(records["x"].shape[1], parity, groups)
    num = records["y"].shape[0]
    kind = dpjax.solvers.RateConstrainedSGDA if parity else dpjax.solvers.DPSGD
    solver = kind.for_budget(problem, num, dpjax.Budget(1.0, 1e-5), batch_size=BATCH, steps=steps)
    if groups > 2:
        records = {**records, "group": jnp.arange(num, dtype=jnp.int32) % groups}
    solve = jax.jit(lambda key, records: dpjax.solve(solver, problem, records, key=key).params)
    return lambda: solve(jax.random.key(0), records), steps


def _jax_privacy(records: Any, steps: int) -> dict[str, Any]:
    try:
        from jax_privacy import clipping
    except ImportError:
        return {}
    problem = _problem(records["x"].shape[1], parity=False)
    num = records["y"].shape[0]
    sampler = dpjax.sampling.PoissonSampler(BATCH / num, steps, num)

    def loss(params: Any, batch: Any) -> jax.Array:
        return problem.mean_loss(params, batch)

    gradient = clipping.clipped_grad(loss, l2_clip_norm=4.0, batch_argnums=1)

    @jax.jit
    def scan(key: jax.Array, records: Any) -> Any:
        plan_key, noise_key = jax.random.split(key)

        def body(carry: Any, x: Any) -> tuple[Any, None]:
            params, count = carry
            rows, mask = sampler.batch(x, num)
            batch = jax.tree.map(lambda a: a[rows], records)
            total = gradient(params, batch, is_padding_example=~mask)
            leaves, tree = jax.tree.flatten(total)
            keys = jax.random.split(jax.random.fold_in(noise_key, count), len(leaves))
            noisy = [
                g + 8.0 * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)
            ]
            params = jax.tree.map(
                lambda p, g: p - 0.5 * g / BATCH, params, jax.tree.unflatten(tree, noisy)
            )
            return (params, count + 1), None

        xs = sampler.plan(plan_key, num)
        return jax.lax.scan(body, (problem.init, jnp.zeros((), jnp.int32)), xs)[0]

    return {"DP-SGD (jax_privacy)": (lambda: scan(jax.random.key(0), records), steps)}


def _opacus(records: Any, steps: int) -> dict[str, Any]:
    try:
        import opacus
        import torch
    except ImportError:
        return {}
    torch.manual_seed(0)
    x = torch.tensor(np.asarray(records["x"]))
    y = torch.tensor(np.asarray(records["y"]), dtype=torch.long)
    model = torch.nn.Linear(x.shape[1], 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)
    model, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=2.0,
        max_grad_norm=4.0,
    )
    loss = torch.nn.CrossEntropyLoss()
    rows = np.random.default_rng(0)

    def call() -> float:
        for _ in range(steps):
            # batches by index: the loader's own collation of single records costs far more
            chosen = torch.tensor(np.flatnonzero(rows.random(len(y)) < BATCH / len(y)))
            optimizer.zero_grad()
            loss(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
        return 0.0

    return {"DP-SGD (opacus)": (call, steps)}


def readme(result: dict[str, Any]) -> str:
    """Markdown table of medians."""
    lines = ["| method | microseconds a step |", "|---|---|"]
    times = result["microseconds_per_step"]
    return "\n".join([*lines, *(f"| {name} | {t['median']:.0f} |" for name, t in times.items())])


def summary(result: dict[str, Any]) -> str:
    """Markdown table and ratios."""
    lines = ["| method | microseconds a step (quartiles) |", "|---|---|"]
    for name, t in result["microseconds_per_step"].items():
        spread = f"{t['lower_quartile']:.1f} to {t['upper_quartile']:.1f}"
        lines.append(f"| {name} | {t['median']:.1f} ({spread}) |")
    ratios = [f"{name}: {value:.2f}" for name, value in result["ratios"].items()]
    return "\n".join([*lines, "", *ratios])
