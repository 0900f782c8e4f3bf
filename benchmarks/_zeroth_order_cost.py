"""What estimates from loss values cost, against the loss values alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import _runner
from benchmarks._nonsmooth_runs import emit
from dpjax.transforms import smooth_zeroth_order

DIM = 10_000
SIZES = ((32, 1024), (256, 1024), (256, 256), (1024, 64))  # directions, records
_INPUTS, _HIDDEN = 98, 100
_CHUNK = 256  # directions that coexist


def linear(w: jax.Array, batch: Any) -> jax.Array:
    x, y = batch
    return jax.nn.softplus(-y * jnp.matmul(x, w, precision="highest"))


def network(w: Any, batch: Any) -> jax.Array:
    x, y = batch
    return jnp.abs(y - jnp.tanh(x @ w["inner"] + w["bias"][None]) @ w["outer"])


def _as_network(w: jax.Array) -> dict[str, jax.Array]:
    """Rows `[..., d]` as the parameters of networks."""
    inner, bias, outer = jnp.split(w, (_INPUTS * _HIDDEN, (_INPUTS + 1) * _HIDDEN), axis=-1)
    shape = (*w.shape[:-1], _INPUTS, _HIDDEN)
    return {"inner": inner.reshape(shape), "bias": bias, "outer": outer}


MODELS: dict[str, tuple[Callable[..., jax.Array], int, Callable[[jax.Array], Any]]] = {
    "linear": (linear, DIM, lambda w: w),
    "network": (network, _INPUTS, _as_network),
}


def cost(fast: bool) -> list[dict[str, Any]]:
    """A row for every model and size: times, their ratio, megabytes of temporary arrays."""
    return [
        emit("cost", _measured(name, *size, repeats=3 if fast else 21))
        for size in (SIZES[:1] if fast else SIZES)
        for name in MODELS
    ]


def _measured(name: str, directions: int, records: int, repeats: int) -> dict[str, Any]:
    losses, inputs, tree = MODELS[name]
    x = jax.random.normal(jax.random.key(1), (records, inputs))
    batch, key = (x, jnp.sign(x[:, 0])), jax.random.key(0)
    params = tree(jnp.full(DIM, 0.01))
    oracle = smooth_zeroth_order(losses, 0.1, directions, chunk_size=_CHUNK)

    @jax.jit
    def estimate(params: Any, batch: Any, key: jax.Array) -> Any:
        total = oracle.coordinates(params, batch, key=key).sum(axis=0)
        return oracle.gradient(total, params, key=key)

    # the same losses at points that lie ready in memory, as many at once
    size = min(directions, _CHUNK)
    shape = (directions // size, 2 * size, DIM)
    points = tree(0.01 * jax.random.normal(jax.random.key(2), shape))

    @jax.jit
    def evaluate(points: Any, batch: Any) -> jax.Array:
        return jax.lax.map(lambda at: jax.vmap(losses, in_axes=(0, None))(at, batch), points)

    times = _runner.interleaved(
        {
            "estimate": lambda: estimate(params, batch, key),
            "losses alone": lambda: evaluate(points, batch),
        },
        repeats=repeats,
    )
    milliseconds = {call: 1e3 * found["median"] for call, found in times.items()}
    return {
        "model": name,
        "directions": directions,
        "records": records,
        "dim": DIM,
        "milliseconds": milliseconds,
        "ratio": milliseconds["estimate"] / milliseconds["losses alone"],
        "megabytes": {
            "estimate": _temporary(estimate, params, batch, key),
            "losses alone": _temporary(evaluate, points, batch),
        },
    }


def _temporary(function: Any, *args: Any) -> float | None:
    """Megabytes that a compiled function needs beside its arguments and results."""
    found = function.lower(*args).compile().memory_analysis()
    return None if found is None else found.temp_size_in_bytes / 2**20
