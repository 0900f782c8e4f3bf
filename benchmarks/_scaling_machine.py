"""What this machine does in a second, by the parts that the cost model counts."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import _runner, _scaling_instances
from benchmarks._runner import Task
from benchmarks._scaling_model import Machine

PASSES = 8


def _add_in_place(numbers: jax.Array) -> jax.Array:
    """In one buffer, as a loop over steps has: new memory costs more than moving numbers."""
    return jax.lax.fori_loop(0, PASSES, lambda _, a: a + 1, numbers)


def measure(*, fast: bool) -> Machine:
    """Rates by large arrays, and the fixed cost of a step and of a run by tiny ones."""
    size, side, repeats = (2**16, 256, 2) if fast else (2**24, 1536, 5)
    key, numbers = jax.random.key(0), jnp.linspace(0.0, 1.0, size)
    square = jnp.ones((side, side))
    cells = jax.random.randint(key, (size,), 0, 256)
    few, many = (_scaling_instances.dpsgd(n=64, m=8, p=4, c=2, T=t)[:3] for t in (8, 136))
    program = _scaling_instances.program
    times = _runner.measure(
        {
            "flops": Task(lambda a: jnp.matmul(a, a, precision="highest"), (square,)),
            "specials": Task(lambda a: jnp.sum(jnp.log1p(jnp.exp(a))), (numbers,)),
            "bytes": Task(_add_in_place, (numbers,), divide=PASSES),
            "fresh": Task(lambda a: a + 1, (numbers,)),
            "noise": Task(lambda k: jax.random.normal(k, (size,)), (key,)),
            "words": Task(lambda k: jax.random.bits(k, (size,)), (key,)),
            "sorted": Task(lambda k: jax.random.permutation(k, size // 16), (key,)),
            "placed": Task(lambda c: jnp.zeros(256, jnp.int32).at[c].add(1), (cells,)),
            "few": Task(program, (*few, key)),
            "many": Task(program, (*many, key)),
        },
        repeats=repeats,
    )
    units = dict.fromkeys(("noise", "words", "placed"), size) | {
        "flops": 2 * side**3,
        "specials": 2 * size,
        "bytes": 8 * size,
        "sorted": size // 16,
    }
    new = max(times["fresh"]["median"] - times["bytes"]["median"], 1e-9)
    rates = {name: number / times[name]["median"] for name, number in units.items()}
    step = max(0.0, times["many"]["median"] - times["few"]["median"]) / 128
    run = max(0.0, times["few"]["median"] - 8 * step)
    return Machine(**rates, fresh=4 * size / new, step=step, run=run)


def as_json(machine: Machine) -> dict[str, Any]:
    """The rates that were measured."""
    return {k: v for k, v in machine._asdict().items() if k not in ("memory", "link")}
