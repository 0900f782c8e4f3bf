"""Nonsmooth nonconvex problems: planted, contaminated, noisy, real, and black boxes.

Links are module functions, so that one program serves all instances of a shape.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _convex_instances
from dpjax.problems import Risk

OUTLIERS = 0.2
CAP = 0.5
QUANTILE = 0.3
RELU_CLIP = 2.0  # a guide: gradients grow with the weights, and what is longer is clipped
_SIGNAL = 3.0  # length of the planted parameters


class Instance(NamedTuple):
    """A problem with its records; `test` for real data."""

    problem: Risk
    train: dict[str, Any]
    test: dict[str, Any] | None = None


def phase_loss(margin: jax.Array, y: jax.Array) -> jax.Array:
    """Amplitudes, not squares, which would not be Lipschitz."""
    return jnp.abs(jnp.abs(margin) - y)


def capped_loss(margin: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.minimum(jnp.abs(margin - y), CAP)


def quantile_loss(margin: jax.Array, y: jax.Array) -> jax.Array:
    gap = y - jnp.tanh(margin)
    return jnp.maximum(QUANTILE * gap, (QUANTILE - 1) * gap)


def ramp_loss(margin: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.clip(0.5 - y * margin, 0.0, 1.0)


def error_loss(margin: jax.Array, y: jax.Array) -> jax.Array:
    """0 or 1: no gradient tells anything of it."""
    return (y * margin <= 0).astype(margin.dtype)


def counted_loss(w: jax.Array, record: Any) -> jax.Array:
    """`error_loss`, counted by NumPy: JAX sees no more than the values."""
    like = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.pure_callback(_count, like, w, record["x"], record["y"], vmap_method="expand_dims")


def _count(w: Any, x: Any, y: Any) -> np.ndarray:
    margins = np.einsum("...d,...d->...", np.asarray(x), np.asarray(w))
    return (np.asarray(y) * margins <= 0).astype(np.float32)


def network_loss(params: Any, record: Any) -> jax.Array:
    hidden = jnp.maximum(record["x"] @ params["inner"], 0)
    return jnp.abs(hidden @ params["outer"] - record["y"])


def phase_retrieval(dim: int, n: int, seed: int, noise: float = 0.0) -> Instance:
    """Amplitudes |<x, w0>|, and a start of length 1: at 0 there is a kink."""
    rng, x, truth = _planted(dim, n, seed)
    y = np.abs(np.abs(x @ truth) + noise * rng.normal(size=n))
    start = rng.normal(size=dim)
    return _linear(phase_loss, x, y, start / np.linalg.norm(start))


def capped_regression(dim: int, n: int, seed: int) -> Instance:
    """A fifth of the answers are unrelated to the inputs; small noise on the others."""
    rng, x, truth = _planted(dim, n, seed)
    outlier = rng.random(n) < OUTLIERS
    y = np.where(outlier, 3 * rng.normal(size=n), x @ truth) + 0.02 * rng.normal(size=n)
    return _linear(capped_loss, x, y)


def quantile_regression(dim: int, n: int, seed: int, noise: float = 0.5) -> Instance:
    """A quantile of noisy answers by a tanh of a linear score."""
    rng, x, truth = _planted(dim, n, seed)
    return _linear(quantile_loss, x, np.tanh(x @ truth) + noise * rng.normal(size=n))


def network(hidden: int, n: int, seed: int, inputs: int = 10) -> Instance:
    """Absolute loss of a two-layer ReLU network; a planted network of the same shape answers."""
    rng = np.random.default_rng(seed)
    x = _rows(rng, n, inputs) * np.float32(inputs**0.5)

    def draw() -> dict[str, np.ndarray]:
        inner = rng.normal(size=(inputs, hidden)) / inputs**0.5
        outer = rng.normal(size=hidden) / hidden**0.5
        return {"inner": inner.astype(np.float32), "outer": outer.astype(np.float32)}

    teacher, start = draw(), draw()
    y = np.maximum(x @ teacher["inner"], 0) @ teacher["outer"]
    problem = Risk(network_loss, jax.tree.map(jnp.asarray, start), lipschitz=RELU_CLIP)
    return Instance(problem, {"x": x, "y": y})


def real(name: str, folder: Path | None) -> Instance:
    """Ramp loss of a linear classifier on Adult or Credit default; rows of norm at most 1."""
    found = _convex_instances.real(name, folder)
    dim = found.train["x"].shape[1]
    return Instance(Risk.linear(ramp_loss, dim, lipschitz=1.0), found.train, found.test)


def accuracy(params: Any, data: Any) -> jax.Array:
    """Of the sign of a linear score."""
    return jnp.mean(data["y"] * (data["x"] @ params) > 0)


def _linear(link: Any, x: np.ndarray, y: np.ndarray, start: np.ndarray | None = None) -> Instance:
    problem = Risk.linear(link, x.shape[1], lipschitz=1.0)
    if start is not None:
        problem = dataclasses.replace(problem, init=jnp.asarray(start, jnp.float32))
    return Instance(problem, {"x": x, "y": y.astype(np.float32)})


def _planted(dim: int, n: int, seed: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x, truth = _rows(rng, n, dim), rng.normal(size=dim)
    return rng, x, _SIGNAL * truth / np.linalg.norm(truth)


def _rows(rng: np.random.Generator, n: int, dim: int) -> np.ndarray:
    x = rng.normal(size=(n, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
