"""Instances of saddle points and of convex risks on l1 balls whose optimum is known exactly.

Data are made by NumPy from a seed. Records are int8 signs, drawn chunk by chunk into one array, so
that the peak of memory is the data set itself and a few megabytes.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CORES = {
    "rps": np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]),
    "pennies": np.array([[1.0, -1.0], [-1.0, 1.0]]),
    # value 1/5, both players mix unevenly, no entry is certain
    "uneven": np.array([[0.8, -0.4], [-0.2, 0.6]]),
}
_CHUNK = 2**24  # entries drawn at a time


def _core(core: str | np.ndarray) -> np.ndarray:
    matrix = np.array(CORES[core] if isinstance(core, str) else core, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or np.abs(matrix).max() > 1:
        raise ValueError(f"core must be square with entries in [-1, 1], got {matrix}")
    return matrix


def core_padded_matrix(d: int, core: str | np.ndarray = "rps") -> np.ndarray:
    """The mean payoffs `[d, d]`: a k x k core, among strategies that lose to it.

        A = [ C   -1 ]        rows minimise, columns maximise; the d - k other rows pay 1 against
            [ 1    0 ]        the core, the d - k other columns receive -1

    The value is that of the core, and uniform strategies have a gap of about 2 (1 - k / d) more
    than in the core alone.
    """
    c = _core(core)
    k = len(c)
    if d < k:
        raise ValueError(f"d must be >= {k}, the size of the core, got {d}")
    matrix = np.zeros((d, d))
    matrix[:k, :k] = c
    matrix[k:, :k] = 1
    matrix[:k, k:] = -1
    return matrix


def sign_matrices(mean: np.ndarray, n: int, seed: int) -> np.ndarray:
    """`n` independent int8 matrices of signs with this mean; entries of mean +-1 are constant."""
    mean = np.asarray(mean, np.float64)
    flat = mean.ravel()
    size = flat.size
    rng = np.random.default_rng(seed)
    out = np.empty((n, size), np.int8)
    certain = np.abs(flat) == 1
    biased = np.flatnonzero((flat != 0) & ~certain)
    signs = flat.astype(np.int8)
    rows = max(1, _CHUNK // size)
    for first in range(0, n, rows):
        part = out[first : first + rows]
        count = part.size
        bits = np.unpackbits(np.frombuffer(rng.bytes(-(-count // 8)), np.uint8), count=count)
        part[:] = bits.reshape(part.shape)
        part *= 2
        part -= 1
        if certain.any():
            np.copyto(part, signs, where=certain)
        if len(biased):
            uniform = rng.random((len(part), len(biased)))
            part[:, biased] = np.where(uniform < (1 + flat[biased]) / 2, 1, -1)
    return out.reshape(n, *mean.shape)


def mean_of_signs(mean: np.ndarray, n: int, seed: int) -> np.ndarray:
    """The mean of `sign_matrices(mean, n, ...)` in law, without the records: for large d."""
    heads = np.random.default_rng(seed).binomial(n, (1 + np.asarray(mean)) / 2)
    return 2 * (heads / n) - 1


@dataclasses.dataclass(frozen=True)
class GameInstance:
    """A matrix game seen through records: `data["A"]` int8 `[n, d, d]`, mean `matrix` `[d, d]`."""

    data: dict[str, np.ndarray]
    matrix: np.ndarray

    def gap(self, params: tuple[Any, Any]) -> jax.Array:
        """Exact duality gap in the mean game."""
        from dpjax.problems._gaps import matrix_game_gap

        return matrix_game_gap(jnp.asarray(self.matrix, jnp.result_type(float)), *params)


def core_padded(d: int, n: int, *, core: str | np.ndarray = "rps", seed: int = 0) -> GameInstance:
    """A core-padded game and `n` records of signs with its payoffs as their mean."""
    matrix = core_padded_matrix(d, core)
    return GameInstance({"A": sign_matrices(matrix, n, seed)}, matrix)


@dataclasses.dataclass(frozen=True)
class SeededGame:
    """A core-padded game for huge d: a record is a uint32 seed, its matrix of signs is never held.

    `A_z[i, j]` is the sign that a counter hash of (z, i, j) draws with the core-padded mean; one
    row or column of one record is computed in O(d).
    """

    d: int
    core: np.ndarray

    def seeds(self, n: int, *, seed: int = 0) -> np.ndarray:
        """`n` records, uint32 `[n]`."""
        return np.random.default_rng(seed).integers(2**32, size=n, dtype=np.uint32)

    def row(self, seed: jax.Array, i: jax.Array) -> jax.Array:
        """Row i of the record's matrix, int8 `[d]`."""
        return self._entries(seed, i, jnp.arange(self.d, dtype=jnp.uint32))

    def col(self, seed: jax.Array, j: jax.Array) -> jax.Array:
        """Column j of the record's matrix, int8 `[d]`."""
        return self._entries(seed, jnp.arange(self.d, dtype=jnp.uint32), j)

    def gradients_at_vertices(
        self, rows: jax.Array, columns: jax.Array, seeds: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """`(A y, A^T x)` of every record, `[B, d]` each, at means of vertices."""

        def mean(line: Any, seed: jax.Array, at: jax.Array) -> jax.Array:
            def add(total: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
                return total + line(seed, index).astype(total.dtype), None

            zero = jnp.zeros((self.d,), jnp.result_type(float))
            return jax.lax.scan(add, zero, at)[0] / at.shape[0]

        of_batch = jax.vmap(mean, in_axes=(None, 0, None))
        return of_batch(self.col, seeds, columns), of_batch(self.row, seeds, rows)

    def gap(self, params: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Exact duality gap in the mean game, in O(d)."""
        x, y = params
        k = len(self.core)
        c = jnp.asarray(self.core, x.dtype)
        exact = jax.lax.Precision.HIGHEST
        columns = jnp.matmul(x[:k], c, precision=exact) + jnp.sum(x[k:])
        rows = jnp.matmul(c, y[:k], precision=exact) - jnp.sum(y[k:])
        highest, lowest = jnp.max(columns), jnp.min(rows)
        if self.d > k:
            highest = jnp.maximum(highest, -jnp.sum(x[:k]))
            lowest = jnp.minimum(lowest, jnp.sum(y[:k]))
        return highest - lowest

    def _entries(self, seed: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
        k = len(self.core)
        i, j = jnp.asarray(i, jnp.uint32), jnp.asarray(j, jnp.uint32)
        # P(bits < threshold) is (1 + mean) / 2 for the core, and 1/2 elsewhere
        thresholds = np.minimum(np.round((1 + self.core) / 2 * 2.0**32), 2**32 - 1)
        table = jnp.asarray(thresholds.astype(np.uint32))
        inside = (i < k) & (j < k)
        corner = table[jnp.minimum(i, k - 1), jnp.minimum(j, k - 1)]
        threshold = jnp.where(inside, corner, jnp.uint32(2**31))
        sign = jnp.where(counter_hash(seed, i, j) < threshold, jnp.int8(1), jnp.int8(-1))
        sign = jnp.where((i >= k) & (j < k), jnp.int8(1), sign)
        sign = jnp.where((i < k) & (j >= k), jnp.int8(-1), sign)
        mean = jnp.asarray(self.core, jnp.float32)[jnp.minimum(i, k - 1), jnp.minimum(j, k - 1)]
        return jnp.where(inside & (abs(mean) == 1), mean.astype(jnp.int8), sign)


def seeded_game(d: int, core: str | np.ndarray = "rps") -> SeededGame:
    """A core-padded game of `d` strategies whose records are seeds."""
    matrix = _core(core)
    if d < len(matrix):
        raise ValueError(f"d must be >= {len(matrix)}, the size of the core, got {d}")
    return SeededGame(d, matrix)


def counter_hash(seed: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    """32 pseudo-random bits for each (seed, i, j), by three rounds of an integer mixer."""
    h = _mix(jnp.asarray(seed, jnp.uint32) + jnp.uint32(0x9E3779B9))
    h = _mix(h ^ _times(i, 0x85EBCA6B))
    return _mix(h ^ _times(j, 0xC2B2AE35))


def _times(value: jax.Array, odd: int) -> jax.Array:
    return (jnp.asarray(value, jnp.uint32) + jnp.uint32(1)) * jnp.uint32(odd)


def _mix(h: jax.Array) -> jax.Array:
    """A bijection of 32 bits with good avalanche (C. Wellons, "lowbias32")."""
    h = (h ^ (h >> jnp.uint32(16))) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> jnp.uint32(15))) * jnp.uint32(0x846CA68B)
    return h ^ (h >> jnp.uint32(16))


@dataclasses.dataclass(frozen=True)
class L1Instance:
    """A convex risk on an l1 ball: `data` of x int8 `[n, p]` and y float32 `[n]`.

    Attributes:
      radius: Of the l1 ball (*public*).
      optimum: Minimiser of the population risk over the ball, `[p]`.
      excess: From `theta [p]` to population risk minus its minimum.
      label_bound: Largest modulus of a label (*public*).
    """

    data: dict[str, np.ndarray]
    radius: float
    optimum: np.ndarray
    excess: Callable[[Any], jax.Array]
    label_bound: float


def l1_regression(
    p: int,
    n: int,
    *,
    radius: float = 1.0,
    noise: float = 0.1,
    sparsity: int = 5,
    energy: float = 0.35,
    seed: int = 0,
) -> L1Instance:
    """Least squares with uniform signs as features: the excess risk is half a squared distance.

        x ~ {+-1}^p,   y = <x, theta*> + noise U[-1, 1],   |theta*|_1 = radius

    `theta*` has `sparsity` entries, one large and the others equal, at random places with random
    signs, and |theta*|^2 = energy radius^2: 0 has risk energy radius^2 / 2 above the optimum.
    """
    rng = np.random.default_rng(seed)
    optimum = radius * _sparse_direction(rng, p, sparsity, energy)
    x = sign_matrices(np.zeros(p), n, seed + 1)
    y = _products(x, optimum) + noise * rng.uniform(-1, 1, n)
    target = optimum.astype(np.float32)

    def excess(theta: Any) -> jax.Array:
        return 0.5 * jnp.sum((jnp.asarray(theta) - target.astype(jnp.result_type(theta))) ** 2)

    data = {"x": x, "y": y.astype(np.float32)}
    return L1Instance(data, radius, optimum, excess, radius + noise)


def l1_logistic(
    p: int,
    n: int,
    *,
    radius: float = 1.0,
    teacher: float = 3.0,
    sparsity: int = 5,
    energy: float = 0.22,
    evaluation: int = 20_000,
    seed: int = 0,
) -> L1Instance:
    """Logistic regression with uniform signs as features and labels +-1 from a logistic teacher.

        x ~ {+-1}^p,   P(y = 1 | x) = sigmoid(<x, w>),   |w|_1 = teacher

    A coordinate off the teacher's support only adds noise to the margin, so the optimum over the
    ball lives on the support, and is found exactly by enumeration of its 2^sparsity patterns. The
    excess is the mean over `evaluation` fresh features of the difference to the optimum, labels
    integrated out.
    """
    rng = np.random.default_rng(seed)
    w = teacher * _sparse_direction(rng, p, sparsity, energy)
    support = np.flatnonzero(w)
    if len(support) > 16:
        raise ValueError(f"sparsity must be <= 16, got {sparsity}")
    x = sign_matrices(np.zeros(p), n, seed + 1)
    y = np.where(rng.random(n) < _sigmoid(_products(x, w)), 1.0, -1.0).astype(np.float32)
    patterns = np.array(np.meshgrid(*[[-1.0, 1.0]] * len(support))).reshape(len(support), -1).T
    optimum = np.zeros(p)
    optimum[support] = _logistic_optimum(patterns, _sigmoid(patterns @ w[support]), radius)

    fresh = sign_matrices(np.zeros(p), evaluation, seed + 2)
    positive = _sigmoid(_products(fresh, w)).astype(np.float32)
    reference = _products(fresh, optimum).astype(np.float32)

    def excess(theta: Any) -> jax.Array:
        theta = jnp.asarray(theta)
        margins = _dot(fresh, theta)
        prob = jnp.asarray(positive, margins.dtype)

        def risk(m: jax.Array) -> jax.Array:
            return jax.nn.softplus(m) - prob * m

        return jnp.mean(risk(margins) - risk(jnp.asarray(reference, margins.dtype)))

    return L1Instance({"x": x, "y": y}, radius, optimum, excess, 1.0)


def _sparse_direction(rng: np.random.Generator, p: int, sparsity: int, energy: float) -> np.ndarray:
    """l1 norm 1, squared l2 norm `energy`, `sparsity` entries of which one is larger."""
    if not (1 < sparsity <= p and 1 / sparsity <= energy <= 1):
        raise ValueError(
            f"needs 1 < sparsity <= {p} and 1 / sparsity <= energy <= 1, got {sparsity}, {energy}"
        )
    rest = sparsity - 1
    large = (1 + math.sqrt(rest * (energy * sparsity - 1))) / sparsity
    sizes = np.array([large] + [(1 - large) / rest] * rest)
    direction = np.zeros(p)
    places = rng.choice(p, sparsity, replace=False)
    direction[places] = sizes * rng.choice([-1.0, 1.0], sparsity)
    return direction


def _products(x: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """Inner products `[n]` with a sparse vector, by its columns."""
    total = np.zeros(len(x))
    for j in np.flatnonzero(theta):
        total += theta[j] * x[:, j]
    return total


def _dot(x: np.ndarray, theta: jax.Array) -> jax.Array:
    """Inner products of int8 rows with `theta`, some rows in float at a time."""
    rows = max(1, _CHUNK // x.shape[1])
    parts = [
        jnp.matmul(
            jnp.asarray(x[i : i + rows]).astype(theta.dtype),
            theta,
            precision=jax.lax.Precision.HIGHEST,
        )
        for i in range(0, len(x), rows)
    ]
    return jnp.concatenate(parts)


def _sigmoid(t: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(t / 2))


def _logistic_optimum(patterns: np.ndarray, positive: np.ndarray, radius: float) -> np.ndarray:
    """Minimiser over the l1 ball of the mean over all patterns, in double precision."""
    from scipy import optimize

    s = patterns.shape[1]

    def risk(parts: np.ndarray) -> tuple[float, np.ndarray]:
        margins = patterns @ (parts[:s] - parts[s:])
        slope = patterns.T @ (_sigmoid(margins) - positive) / len(patterns)
        value = np.mean(np.logaddexp(0, margins) - positive * margins)
        return float(value), np.concatenate([slope, -slope])

    found = optimize.minimize(
        risk,
        np.full(2 * s, radius / (4 * s)),
        jac=True,
        method="SLSQP",
        bounds=[(0, None)] * (2 * s),
        constraints={
            "type": "ineq",
            "fun": lambda v: radius - v.sum(),
            "jac": lambda v: -np.ones(2 * s),
        },
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return found.x[:s] - found.x[s:]
