"""Convex problems on l2 balls whose population optimum is known, and real ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import dpjax
from benchmarks.datasets import credit_default
from dpjax.problems import Risk

_PLANE = 200_000  # draws for the population risk of the logistic problem
_BLOCK = 20_000


class Instance(NamedTuple):
    """A problem, its records, and `excess(params [..., p]) -> [...]`: risk above the optimum."""

    problem: Risk
    data: dict[str, Any]
    excess: Callable[[Any], np.ndarray]
    at_start: float


def logistic_loss(margin: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.softplus(-y * margin)


def squared_loss(margin: jax.Array, y: jax.Array) -> jax.Array:
    return (margin - y) ** 2 / 2


def huber_loss(margin: jax.Array, y: jax.Array) -> jax.Array:
    gap = jnp.abs(margin - y)
    return jnp.where(gap < 0.5, gap**2, gap - 0.25)


def logistic(dim: int, n: int, seed: int) -> Instance:
    """Inputs uniform on the sphere, P[y = 1] = sigmoid(4 <x, w0>), |w0| = 1.5; radius 2.

    By symmetry the optimum is 2 w0 / |w0|; the population risk is an integral over a plane.
    """
    rng = np.random.default_rng(seed)
    truth = _direction(dim)
    x = _sphere(rng, n, dim)
    labels = rng.random(n) < 1 / (1 + np.exp(-6.0 * (x @ truth)))
    y = np.where(labels, 1.0, -1.0).astype(np.float32)
    plane = np.random.default_rng(7)
    two = plane.normal(size=(_PLANE, 2))
    rest = plane.chisquare(dim - 2, _PLANE) if dim > 2 else 0.0
    two /= np.sqrt((two**2).sum(1) + rest)[:, None]
    chance = 1 / (1 + np.exp(-6.0 * two[:, 0]))

    def risk(w: np.ndarray) -> float:
        along = w @ truth
        across = np.sqrt(max(w @ w - along**2, 0.0))
        margin = two @ np.array([along, across])
        return float(np.mean(np.logaddexp(0, margin) - chance * margin))

    best = risk(2.0 * truth)
    problem = Risk.linear(logistic_loss, dim, 2.0, lipschitz=1.0, smoothness=0.25)
    return Instance(problem, {"x": x, "y": y}, _over(risk, best), risk(0 * truth) - best)


def least_squares(dim: int, n: int, seed: int) -> Instance:
    """Unit inputs with coordinates falling as i^(-1/2), |w0| = 0.7, label noise 0.1; radius 1."""
    rng = np.random.default_rng(seed)
    scale = np.arange(1, dim + 1) ** -0.5
    truth = 0.7 * _direction(dim)
    x = _sphere(rng, n, dim, scale)
    y = (x @ truth + 0.1 * rng.normal(size=n)).clip(-1, 1).astype(np.float32)
    pool = np.random.default_rng(7)
    blocks = [np.mean(_sphere(pool, _BLOCK, dim, scale).astype(float) ** 2, 0) for _ in range(5)]
    curvature = np.mean(blocks, axis=0)  # the Hessian is diagonal: signs are symmetric

    def risk(w: np.ndarray) -> float:
        return float(np.sum(curvature * (w - truth) ** 2) / 2)

    problem = Risk.linear(squared_loss, dim, 1.0, lipschitz=2.0, smoothness=1.0)
    return Instance(problem, {"x": x, "y": y}, _over(risk, 0.0), risk(0 * truth))


def far_regression(distance: float, n: int, seed: int) -> Instance:
    """Huber regression in five dimensions, of radius 10, with its optimum at a given distance."""
    rng = np.random.default_rng(seed)
    truth = np.full(5, distance / 5**0.5)
    x = _sphere(rng, n, 5)
    y = (x @ truth + 0.1 * rng.normal(size=n)).astype(np.float32)
    pool = _sphere(np.random.default_rng(7), 100_000, 5)
    noise = 0.1 * np.random.default_rng(8).normal(size=len(pool))

    def risk(w: np.ndarray) -> float:
        gap = np.abs(pool @ (w - truth) - noise)
        return float(np.mean(np.where(gap < 0.5, gap**2, gap - 0.25)))

    problem = Risk.linear(huber_loss, 5, 10.0, lipschitz=1.0, smoothness=2.0)
    best = risk(truth)
    return Instance(problem, {"x": x, "y": y}, _over(risk, best), risk(0 * truth) - best)


class RealInstance(NamedTuple):
    """Logistic regression on a data set: rows of norm 1, and labels -1 and 1."""

    problem: Risk
    train: dict[str, Any]
    test: dict[str, Any]
    optimum: np.ndarray


def real(name: str, folder: Path | None, radius: float = 20.0, seed: int = 0) -> RealInstance:
    """Adult or Credit default, split 75/25, features scaled to rows of norm at most 1."""
    whole = dpjax.datasets.adult() if name == "adult" else _credit(folder)
    train, test = whole.split(0.25, seed=seed)
    parts = []
    for part in (train, test):
        x = np.asarray(part.x, np.float32) / np.float32(whole.norm_bound)  # a public bound
        parts.append({"x": x, "y": np.where(part.y == 1, 1.0, -1.0).astype(np.float32)})
    problem = Risk.linear(
        logistic_loss, parts[0]["x"].shape[1], radius, lipschitz=1.0, smoothness=0.25
    )
    return RealInstance(problem, *parts, minimiser(problem, parts[0]))


def _credit(folder: Path | None) -> Any:
    path = None if folder is None else folder / "credit_default.csv.gz"
    return credit_default(path)


def minimiser(problem: Risk, data: dict[str, Any]) -> np.ndarray:
    """Of the mean loss over the ball, by L-BFGS on a penalty and then projected descent."""
    value = jax.jit(jax.value_and_grad(problem.mean_loss))

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        loss, slope = value(jnp.asarray(w, jnp.float32), data)
        return float(loss), np.asarray(slope, float)

    start = np.zeros(problem.num_params)
    found = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", tol=1e-10)
    w = np.asarray(found.x)
    radius = float(problem.radius)
    if np.linalg.norm(w) <= radius:
        return w
    ball = optimize.NonlinearConstraint(
        lambda v: v @ v, -np.inf, radius**2, jac=lambda v: 2 * v[None]
    )
    w = radius * w / np.linalg.norm(w)
    return np.asarray(
        optimize.minimize(objective, w, jac=True, method="SLSQP", constraints=[ball]).x
    )


def _direction(dim: int) -> np.ndarray:
    truth = np.random.default_rng(99).normal(size=dim)
    return truth / np.linalg.norm(truth)


def _sphere(rng: np.random.Generator, n: int, dim: int, scale: Any = 1.0) -> np.ndarray:
    """Rows of norm 1, in float32, in blocks so that large samples fit."""
    x = np.empty((n, dim), np.float32)
    for first in range(0, n, _BLOCK):
        rows = rng.normal(size=(min(_BLOCK, n - first), dim)) * scale
        x[first : first + len(rows)] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return x


def _over(risk: Callable[[np.ndarray], float], best: float) -> Callable[[Any], np.ndarray]:
    def excess(params: Any) -> np.ndarray:
        rows = np.asarray(params, float)
        flat = rows.reshape(-1, rows.shape[-1])
        return np.array([risk(w) - best for w in flat]).reshape(rows.shape[:-1])

    return excess
