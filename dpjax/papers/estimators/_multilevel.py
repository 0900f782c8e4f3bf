"""Estimates from several draws of a distribution over vertices: by levels, by the polar form."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_int, check_shape, is_traced, wide


class Multilevel(NamedTuple):
    """What `multilevel` makes: points to take gradients at, and how to combine them.

    Attributes:
      max_level: Largest level $M$ (static).
      antithetic: Whether the coarse gradient is an average over two halves (static).
    """

    max_level: int
    antithetic: bool

    @property
    def probabilities(self) -> np.ndarray:
        """Probabilities of the levels 0 to `max_level`, numpy `[M + 1]` (*public*)."""
        return np.exp2(-np.arange(self.max_level + 1.0)) / self._constant

    @property
    def num_draws(self) -> int:
        """Draws in the pool, those of the largest level: $2^{M+1}$."""
        return 2 ** (self.max_level + 1)

    @property
    def num_points(self) -> int:
        """Points $P$ to take gradients at: 3, antithetic 4."""
        return 4 if self.antithetic else 3

    @property
    def transform(self) -> Transform:
        """`init` and `update` as an optax transformation, for `dpjax.chain`."""
        return Transform(self.init, self.update)

    def weights(self, level: ArrayLike) -> jax.Array:
        """Weights `[P, 2^(M+1)]` that make the points of a level of the pool of draws.

        In this order: the mean of the first $2^{N+1}$ draws; of the first $2^N$ (antithetic: of
        these, and of the next $2^N$); the first draw. The level may be traced.
        """
        size = self._size(level)
        draw = jnp.arange(self.num_draws)
        fine, coarse = draw < 2 * size, draw < size
        rows = [fine / (2 * size), coarse / size]
        if self.antithetic:
            rows.append((fine & ~coarse) / size)
        return jnp.stack([*rows, jnp.where(draw == 0, 1.0, 0.0).astype(size.dtype)])

    def init(self, params: PyTree) -> optax.EmptyState:
        """No state."""
        return optax.EmptyState()

    def update(
        self,
        updates: PyTree,
        state: optax.EmptyState,
        params: PyTree = None,
        *,
        level: ArrayLike,
        key: jax.Array | None = None,
        **extra: object,
    ) -> tuple[PyTree, optax.EmptyState]:
        """The estimate, leaves `[*p]`, of gradients `updates` `[P, *p]` at points of `level`.

        Raises:
          ValueError: If a leaf has another number of points, or `level` is out of range.
        """
        scale = self._constant * self._size(level)

        def combine(leaf: PyTree) -> jax.Array:
            check_shape("updates", leaf, (self.num_points, *np.shape(leaf)[1:]))
            g = wide(leaf)
            coarse = 0.5 * (g[1] + g[2]) if self.antithetic else g[1]
            estimate = scale.astype(g.dtype) * (g[0] - coarse) + g[-1]
            return estimate.astype(jnp.asarray(leaf).dtype)

        return jax.tree.map(combine, updates), state

    def factor(self, level: int) -> float:
        r"""By how much the estimate may exceed one gradient, $\bar\kappa_N$ (host).

        The sum of the moduli of the coefficients, those of equal points added first: if every
        gradient has range (or norm) at most $\omega$, the estimate has at most
        $\bar\kappa_N\omega$, and reaches it. $2 C_M - 1$ at level 0, where the first draw is the
        coarse point (antithetic $C_M + 1$, where it is one of two); $2^{N+1} C_M + 1$ above.
        """
        self._check(level)
        if level == 0:
            return self._constant + 1 if self.antithetic else 2 * self._constant - 1
        return 2 ** (level + 1) * self._constant + 1

    def records(self, level: int) -> int:
        r"""Batch size for a level, $\kappa_N$ in units of any number of records (host).

        The least integers that are no multiples of less sensitivity: `factor(level) /
        records(level) < 1`, whatever `max_level`; 3 at level 0, $4\cdot 2^N + 1$ above.
        """
        self._check(level)
        return 3 if level == 0 else 4 * 2**level + 1

    @property
    def _constant(self) -> float:
        return 2 - 2.0**-self.max_level

    def _size(self, level: ArrayLike) -> jax.Array:
        self._check(level)
        return jnp.asarray(np.exp2(np.arange(self.max_level + 1)), float)[level]

    def _check(self, level: Any) -> None:
        if not is_traced(level) and not 0 <= int(level) <= self.max_level:
            raise ValueError(f"level must lie in 0..{self.max_level}, got {level}")


def multilevel(max_level: int, antithetic: bool = False) -> Multilevel:
    r"""An estimate of the gradient at an average of $2^{M+1}$ draws that takes fewer on average.

    A level $N$ is drawn with $P[N = k] = 2^{-k} / C_M$, where $C_M = 2 - 2^{-M}$; then $2^{N+1}$
    vertices, independent, from one law. With $\hat x_k$ the mean of the first $2^k$ of them,

    $$ g = 2^N C_M \bigl(\nabla F(\hat x_{N+1}) - \nabla F(\hat x_N)\bigr) + \nabla F(\hat x_0) $$

    The expectation telescopes to $E\,\nabla F(\hat x_{M+1})$, at an expected $2(M+1)/C_M$ draws.
    Its bias is that of $2^{M+1}$ draws, at most $2 L_2 / 2^{M+1}$ in the linf norm if the second
    derivatives of $F$ are $L_2$-Lipschitz (l1 to linf). Where gradients are Lipschitz the second
    moment grows with $M$, not with $2^M$: a step of level $N$ has size $2^N$, square difference of
    order $2^{-N}$ and probability of order $2^{-N}$. With `antithetic`, $\nabla F(\hat x_N)$ is
    averaged over both halves of the draws; then a quadratic's gradient, which is linear, cancels,
    and a cubic's second moment shrinks; the mean is the same.

    Guarantee: none of its own. A record that moves each of the gradients by range at most
    $\omega$ moves the estimate by at most `factor(level)` times that. Levels are drawn without a
    look at data, so that a run may be accounted at the levels it drew.

    Args:
      max_level: $M \ge 0$ (*public*, static).
      antithetic: Whether to average over halves: one gradient more (static).

    Returns:
      A `Multilevel`. `weights(level)` are the points, as weights over `num_draws` draws of which a
      level reads the first $2^{N+1}$. `update(gradients, state, params=None, *, level)` takes
      leaves `[P, *p]`, the gradients at these points (*secret*), and gives leaves `[*p]`, computed
      in at least float32. `level` is an integer scalar (*public*); it may be traced, and then is
      not checked. `factor`, `records` and `probabilities` are for calibration.

    Raises:
      ValueError: If `max_level < 0`; later, if the level or a leading axis is out of range.
      TypeError: If `max_level` is not an integer.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> estimator = dpjax.papers.estimators.multilevel(1)
      >>> estimator.weights(0).tolist()
      [[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
      >>> g, _ = estimator.update(jnp.array([3.0, 2.0, 1.0]), estimator.init(None), level=1)
      >>> float(g)  # 2 * 1.5 * (3 - 2) + 1
      4.0
      >>> estimator.factor(1), estimator.records(1)
      (7.0, 9)

    Source: Blanchet and Glynn, "Unbiased Monte Carlo for optimization and functions of
    expectations via multi-level randomization", 2015.
    """
    check_int("max_level", max_level, minimum=0)
    return Multilevel(int(max_level), bool(antithetic))


def draw_levels(seed: Any, max_level: int, size: int) -> np.ndarray:
    """Levels of `size` estimates, independent, on the host: they shape the program.

    Args:
      seed: Seed or `numpy.random.Generator`; from no data, so that levels are *public*.
      max_level: Largest level `>= 0`.
      size: How many `>= 0`.

    Returns:
      numpy int32 `[size]`.

    Raises:
      ValueError: If a number is too small.
      TypeError: If `size` is not an integer.

    Example:
      >>> draw_levels(0, 0, 3).tolist()
      [0, 0, 0]
    """
    check_int("size", size, minimum=0)
    chances = multilevel(max_level).probabilities
    drawn = np.random.default_rng(seed).choice(max_level + 1, size=size, p=chances)
    return drawn.astype(np.int32)


def polar_estimate(values: Callable[[jax.Array], jax.Array], draws: jax.Array) -> jax.Array:
    r"""The value of f at the mean of a distribution, from K independent draws $a_1, \dots, a_K$.

    $$ P = \frac{K}{K-1} f(\bar a) - \frac{1}{K (K - 1)} \sum_k f(a_k), \qquad E\,P = f(E a) $$

    for quadratic f of Hessian H and draws of covariance $\Sigma$, where $f(\bar a)$ alone is off by
    $\mathrm{tr}(H \Sigma)/(2K)$. With two draws $P = 2 f((a + b)/2) - (f(a) + f(b))/2$ is the polar
    form of f. P of convex f lies in `polar_interval`.

    Guarantee: none of its own: it is computed from draws, which must be accounted for, each.

    Args:
      values: f, from a point `[p]` to an array `[*v]`, such as the values of k losses.
      draws: Points `[K, p]`, vertices drawn independently, `K >= 2`.

    Returns:
      `[*v]`.

    Raises:
      ValueError: If there are fewer than 2 draws.
      TypeError: If their number is no integer.

    Example:
      >>> import jax.numpy as jnp
      >>> draws = jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> float(polar_estimate(lambda x: jnp.sum(x**2), draws))
      0.0

    Source: polarisation of quadratic forms; Richardson's extrapolation of $E f(\bar a)$ in 1 / K.

    Theory: docs/theory/accuracy.md, A6.
    """
    count = draws.shape[0]
    check_int("number of draws", count, minimum=2)
    ends = jnp.mean(jax.vmap(values)(draws), axis=0)
    return (count * values(jnp.mean(draws, axis=0)) - ends) / (count - 1)


def polar_interval(
    low: float, high: float, smoothness: float | None = None, num_draws: int = 2
) -> tuple[float, float]:
    r"""Where `polar_estimate` lies for convex f with values in an interval.

    $[hi - b', hi]$ with $b' = b + \min(b / (K - 1), L_1 / K)$, where $L_1$ is the smoothness in the
    l1 norm of the weights of vertices. From 3 draws on the part with
    $L_1$ is for quadratics.

    Guarantee: none needed; it is computed from public constants. Clip to it what rests on it.

    Args:
      low: lo.
      high: hi, at least lo.
      smoothness: $L_1$, None where it is unknown.
      num_draws: K.

    Returns:
      The ends of the interval.

    Raises:
      ValueError: If `high < low` or `num_draws < 2`.
      TypeError: If `num_draws` is no integer.

    Example:
      >>> polar_interval(0.0, 0.5, smoothness=1.0)
      (-0.5, 0.5)
    """
    check_int("num_draws", num_draws, minimum=2)
    if not low <= high:
        raise ValueError(f"high must be at least low = {low}, got {high}")
    width = high - low
    wider = width / (num_draws - 1)
    if smoothness is not None:
        wider = min(wider, smoothness / num_draws)
    return low - wider, high
