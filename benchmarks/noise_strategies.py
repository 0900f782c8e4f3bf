"""Correlated noise for private prefix sums: its error, and what a step of it costs.

The error is the standard deviation of a coordinate of the noise of a prefix sum, at noise
multiplier 1 and where one record changes one update by at most 1: the largest and the mean over
the steps, and the square of the largest. Times are of steps of a scan that only makes noise of a
million numbers and adds it, with the state updated in place, in one process and in turn.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import _runner
from benchmarks._text import table
from dpjax.transforms import (
    BinaryTree,
    BufferedToeplitz,
    add_gaussian,
    correlated_noise,
    from_jax_privacy,
)

PEERS = ("jax-privacy",)
SIZES = (1_024, 4_096, 16_384)
DIM = 1_000_000
STEPS = 20
STEPS_MADE_FOR = 1_024


def run(*, fast: bool, data: Path | None) -> dict[str, Any]:
    """Errors and times."""
    del data
    errors = [row for n in (SIZES[:1] if fast else SIZES) for row in _errors(n)]
    dim, repeats = (10_000, 3) if fast else (DIM, 15)
    calls = {
        "independent": _loop(add_gaussian(1.0), dim),
        "buffered Toeplitz": _loop(correlated_noise(BufferedToeplitz(STEPS_MADE_FOR)), dim),
        "binary tree": _loop(correlated_noise(BinaryTree(STEPS_MADE_FOR)), dim),
        "binary tree, variance reduced": _loop(
            correlated_noise(BinaryTree(STEPS_MADE_FOR, variance_reduced=True)), dim
        ),
    }
    seconds = _runner.interleaved(calls, repeats=repeats)
    base = seconds["independent"]["median"]
    return {
        "errors": errors,
        "dim": dim,
        "milliseconds_per_step": {
            name: _runner.scaled(times, 1e3 / STEPS) for name, times in seconds.items()
        },
        "ratios": {name: times["median"] / base for name, times in seconds.items()},
    }


def _errors(n: int) -> list[dict[str, Any]]:
    made: dict[str, Any] = {
        "binary tree": BinaryTree(n),
        "binary tree, variance reduced": BinaryTree(n, variance_reduced=True),
        "buffered Toeplitz": BufferedToeplitz(n),
    }
    try:
        from jax_privacy.matrix_factorization import toeplitz
    except ImportError:
        toeplitz = None
    if toeplitz is not None and n <= 4_096:
        coefficients = np.asarray(toeplitz.optimal_max_error_strategy_coefs(n))
        made["square root, from jax_privacy"] = from_jax_privacy(coefficients, n)
    rows = []
    for name, strategy in made.items():
        stddev = strategy.prefix_stddev()
        rows.append(
            {
                "steps": n,
                "strategy": name,
                "mean": float(stddev.mean()),
                "max": float(stddev.max()),
                "max_squared": float(stddev.max() ** 2),
                "buffers": _buffers(strategy),
            }
        )
    return rows


def _buffers(strategy: Any) -> int:
    """Arrays of the size of the parameters in its state."""
    state = jax.eval_shape(lambda: strategy.init(jnp.zeros(7)))
    sizes = [leaf.size for leaf in jax.tree.leaves(state) if leaf.shape[-1:] == (7,)]
    return sum(sizes) // 7


def _loop(transform: Any, dim: int) -> Callable[[], Any]:
    stage = optax.with_extra_args_support(transform)

    @functools.partial(jax.jit, donate_argnums=1)
    def many(data: jax.Array, carry: Any) -> Any:
        key = jax.random.wrap_key_data(data)

        def body(carry: Any, _: None) -> tuple[Any, None]:
            total, state = carry
            noise, state = stage.update(jnp.zeros(dim), state, key=key)
            return (total + noise, state), None

        return jax.lax.scan(body, carry, None, length=STEPS)[0]

    key = jax.random.key_data(jax.random.key(0))
    total = jnp.zeros(dim)
    # training goes on from one call to the next, in the same buffers
    held = [(total, jax.tree.map(jnp.array, stage.init(total)))]

    def call() -> Any:
        held[0] = many(key, held[0])
        return held[0]

    return call


def summary(result: dict[str, Any]) -> str:
    """A line for each strategy."""
    lines = [
        f"{r['steps']:6} {r['strategy']:32} mean {r['mean']:.3f} max {r['max']:.3f} "
        f"squared {r['max_squared']:.2f} buffers {r['buffers']}"
        for r in result["errors"]
    ]
    lines += [f"{name:32} {ratio:.2f} x independent" for name, ratio in result["ratios"].items()]
    return "\n".join(lines)


def readme(result: dict[str, Any]) -> str:
    """The table of the README."""
    sizes = sorted({r["steps"] for r in result["errors"]})
    head = ["noise", *[f"T = {n:,}: mean, largest" for n in sizes], "time a step"]
    rows = []
    for name in dict.fromkeys(r["strategy"] for r in result["errors"]):
        cells = []
        for n in sizes:
            found = [r for r in result["errors"] if (r["steps"], r["strategy"]) == (n, name)]
            cells.append(f"{found[0]['mean']:.2f}, {found[0]['max']:.2f}" if found else "")
        ratio = result["ratios"].get(name)
        rows.append([name, *cells, "" if ratio is None else f"{ratio:.2f}"])
    return table(head, rows)
