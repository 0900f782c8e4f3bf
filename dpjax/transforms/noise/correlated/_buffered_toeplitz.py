"""Correlated noise of few buffers: a Toeplitz matrix whose coefficients are sums of powers."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import optimize, signal, special

from dpjax.core import (
    PyTree,
    check_between,
    check_choice,
    check_int,
    check_nonnegative,
    check_nonnegative_scalar,
)
from dpjax.sampling import Participation
from dpjax.transforms.noise.correlated import _strategy as strategies
from dpjax.transforms.noise.correlated._buffered_toeplitz_table import TABLE, Row

Objective = Callable[[np.ndarray, np.ndarray], float]


def pattern_norms(coefficients: np.ndarray, most: int, separation: int) -> np.ndarray:
    r"""$n_j = \| \sum_{e < k} C_{:, j + e b} \|_2$ for j < b, `[min(b, T)]`; the largest is first.

    For coefficients $\ge 0$ that do not increase from index b on, the first is the sensitivity
    for records of at most k = `most` steps at least b = `separation` apart: the sum of $X_{ij}$, $X
    = C^\top C \ge 0$, over pairs of a record's steps is largest where they are 0, b, 2b, ..., for
    moving the a-th of them there keeps all terms of $X_{ij} = \sum_s c_s c_{s + j - i}$, adds more,
    and shrinks no factor.

    Args:
      coefficients: c, `[T]`.
      most: k.
      separation: b.
    """
    steps = len(coefficients)
    rows = -(-steps // separation)
    padded = np.zeros((rows, separation))
    padded.reshape(-1)[:steps] = coefficients
    sums = np.cumsum(padded, axis=0)
    sums[most:] -= sums[:-most].copy() if most < rows else 0
    squares = np.cumsum(sums.reshape(-1)[:steps] ** 2)
    return np.sqrt(squares[::-1][:separation])


def prefix_errors(inverse: np.ndarray) -> np.ndarray:
    r"""$(\sum_{i \le t} B_i^2)^{1/2}$, the deviation of each prefix of $C^{-1} z$, `[T]`.

    Args:
      inverse: The coefficients of $C^{-1}$, `[T]`; B are their running sums.
    """
    return np.sqrt(np.cumsum(np.cumsum(inverse) ** 2))


def root_mean_square(stddev: np.ndarray) -> float:
    """Over the steps."""
    return float(np.sqrt(np.mean(np.square(stddev))))


def coefficients(num_steps: int, omega: np.ndarray, decay: np.ndarray) -> np.ndarray:
    r"""$c_0 = 1$, $c_i = \sum_j \omega_j \lambda_j^{i-1}$, `[num_steps]`."""
    powers = np.arange(num_steps - 1, dtype=np.float64)
    terms = [w * rate**powers for w, rate in zip(omega, decay, strict=True)]
    return np.concatenate([[1.0], np.sum(terms, axis=0) + np.zeros(num_steps - 1)])


def inverse_coefficients(num_steps: int, omega: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Those of the inverse, `[num_steps]`."""
    w, mu = _inverse(omega, decay)
    powers = mu ** np.arange(num_steps - 1, dtype=np.float64)[:, None]
    return np.append(1.0, powers @ w)


def _inverse(omega: np.ndarray, decay: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    r"""Weights and decays of the inverse, $d_i = \sum_k w_k \mu_k^{i-1}$."""
    # similar to diag(decay) - 1 omega^T, which moves the buffers on
    root = np.sqrt(omega)
    mu, vectors = np.linalg.eigh(np.diag(decay) - np.outer(root, root))
    return -((root @ vectors) ** 2), mu


def prefix_stddev(a: np.ndarray, omega: np.ndarray, decay: np.ndarray) -> np.ndarray:
    r"""Deviation of $\gamma_t = \sum_{\tau \le t} a_\tau y_\tau$, `[num_steps]`.

    With $y = C^{-1} z$ of coefficients $d_0 = 1$, $d_i = \sum_k w_k \mu_k^{i-1}$ the covariance of
    two $y$ is a sum of powers of $\mu_k$ in their distance, so that $E[\gamma_{t-1} y_t]$ comes
    from one linear recurrence for each k.
    """
    num_steps = len(a)
    w, mu = _inverse(omega, decay)
    before = np.arange(num_steps)  # terms beside d_0 of y_t: t - 1
    variance, covariance = np.ones(num_steps), np.zeros(num_steps)
    for k, rate in enumerate(mu):
        share = np.ones(num_steps)
        for j, other in enumerate(mu):
            total = _geometric(rate * other, before)
            variance += w[k] * w[j] * total
            share += w[j] * rate * total
        covariance += w[k] * signal.lfilter([0.0, 1.0], [1.0, -rate], a * share)
    return np.sqrt(np.cumsum(2 * a * covariance + a**2 * variance))


def _geometric(ratio: float, terms: np.ndarray) -> np.ndarray:
    """1 + ratio + ... of so many terms."""
    if abs(1 - ratio) < 1e-12:
        return terms.astype(np.float64)
    if ratio > 0:
        return -np.expm1(terms * np.log(ratio)) / (1 - ratio)
    return (1 - ratio**terms) / (1 - ratio)


@functools.lru_cache(maxsize=64)
def fitted(
    num_steps: int, most: int, separation: int, num_buffers: int = 3, objective: str = "mean"
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Weights and decays for `most` participations; of the starts' results the best one."""

    def error(omega: np.ndarray, decay: np.ndarray) -> float:
        norms = pattern_norms(coefficients(num_steps, omega, decay), most, separation)
        errors = prefix_errors(inverse_coefficients(num_steps, omega, decay))
        size = root_mean_square(errors) if objective == "mean" else float(errors[-1])
        return float(np.log(norms[0] * size))

    reaches = {num_steps, separation, min(4 * separation, num_steps)}
    starts = [spread(reach, num_buffers) for reach in sorted(reaches)]
    # a decay of nearly 1 and little weight, which makes the largest prefix smaller
    starts.append(np.append(starts[0][:-1], np.log(num_steps) + 8))
    starts[-1][num_buffers - 1] -= 2
    return minimised(error, starts, num_steps)


def minimised(error: Objective, starts: list[np.ndarray], num_steps: int) -> Row:
    """Weights and decays of least error, by L-BFGS from each start, in order of decay."""
    # beyond this a decay is 0 or 1, a weight 0, as far as so many steps can tell
    reach = np.log(max(num_steps, 2)) + 10

    def objective(x: np.ndarray) -> float:
        return error(*_decode(x))

    best = min(starts, key=objective)
    for start in starts:
        found = optimize.minimize(
            objective,
            start,
            jac="3-point",
            method="L-BFGS-B",
            bounds=[(-reach, reach)] * len(start),
            options={"maxiter": 500, "ftol": 1e-11, "gtol": 1e-7},
        )
        if found.fun < objective(best):
            best = found.x
    omega, decay = _decode(best)
    order = np.argsort(decay)
    return tuple(omega[order].tolist()), tuple(decay[order].tolist())


def _decode(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights that are positive and sum to less than 1, and decays in (0, 1)."""
    logits, decay = np.split(x, 2)
    return special.softmax(np.append(logits, 0.0))[:-1], special.expit(decay)


def spread(reach: int, num_buffers: int) -> np.ndarray:
    """Decays 1 - 1/scale for time scales from 1 to `reach`, weights like their -1/2 power."""
    scales = 1 + np.geomspace(1, max(reach, 2), num_buffers + 2)[1:-1]
    omega = 0.5 * scales**-0.5 / np.sum(scales**-0.5)
    return np.concatenate([np.log(omega / (1 - omega.sum())), special.logit(1 - 1 / scales)])


class BufferedToeplitzState(NamedTuple):
    """State of `BufferedToeplitz`.

    Attributes:
      count: Number of steps so far, `[]` int32 (*public*).
      buffers: For each decay a tree of discounted sums of the noise so far (*secret*).
    """

    count: jax.Array  # type: ignore[assignment]
    buffers: tuple[PyTree, ...]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class BufferedToeplitz(strategies.GaussianStrategy):
    r"""Noise that a Toeplitz matrix with a few buffers correlates.

    $$ \gamma_t - \gamma_{t-1} = \text{scale}_t\, n_t\, y_t, \qquad
       y_t = z_t - \sum_j \omega_j M_j, \qquad M_j \leftarrow \lambda_j M_j + y_t, \qquad
       z_t \sim \mathcal N(0, I) $$

    So $y = C^{-1} z$ for the lower triangular Toeplitz matrix C of coefficients $c_0 = 1$, $c_i =
    \sum_j \omega_j \lambda_j^{i-1}$. A record of k steps, b apart, moves $C u$ by a sum of k
    columns of C, whose norm is $n_t = \| \sum_{e < k} C_{:, j + e b} \|_2$, j = t mod b; with
    k = 1 these are the norms of the columns.

    Guarantee: of `correlated_noise(strategy, z)`: one Gaussian of noise multiplier z, whatever the
    scales and whatever $\omega, \lambda$, for records of `participation`. As $C^\top C \ge 0$,
    equal shifts are the worst, and $C\,\mathrm{diag}(1/n)$ has sensitivity 1 for the steps j, j +
    b, ... With `columns="constant"` all $n_t$ are $n_0$, and the steps may be any k at least b
    apart.

    One draw a step, and as many buffers as decays. The coefficients only decide how large the
    prefixes' noise is: those shipped, for N up to $2^{20}$, have three buffers (fewer to $2^6$,
    four from $2^{15}$) and come within 2% of square-root Toeplitz coefficients, which need N of
    them. At $N = 2^{10}$ no prefix has more than 3.1 times the noise of a single release; with a
    binary tree it is 10 times.

    Args:
      num_steps: Number of steps N, `>= 1` (*public*).
      omega: Weights of the buffers, `>= 0` and of sum < 1 (*public*); None: as shipped for the
        nearest power of two that is not smaller, if there is one; for several participations as
        `fit_buffered_toeplitz` finds them, in a few seconds.
      decay: $\lambda_j$ in [0, 1], as many (*public*).
      participations: k, the most steps of one record (*public*).
      separation: b, the distance between them (*public*); None for N / k, rounded up.
      columns: `"periodic"`, $n_t$ as above, for k b >= N and records of the steps j, j + b, ...;
        or `"constant"` (*public*).

    Raises:
      TypeError: If `num_steps` is no integer.
      ValueError: If a value is outside its bound, or only one of `omega` and `decay` is given.

    Example:
      >>> strategy = BufferedToeplitz(1024)
      >>> len(strategy.decay), round(float(strategy.prefix_stddev().mean()), 2)
      (3, 2.99)

    Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta, "Efficient and near-optimal noise
    generation for streaming differential privacy", 2024; several participations: Kalinin and
    Lampert, "Banded square root matrix factorization for differentially private model training",
    2024; McMahan, Xu and Zhang, "A hassle-free algorithm for strong differential privacy in
    federated learning systems", 2024. The periodic columns are our own.
    """

    num_steps: int
    # None is replaced when a strategy is made
    omega: Sequence[float] = None  # type: ignore[assignment]
    decay: Sequence[float] = None  # type: ignore[assignment]
    participations: int = 1
    separation: int | None = None
    columns: str = "periodic"

    def __post_init__(self) -> None:
        strategies.check_steps(self.num_steps)
        check_int("participations", self.participations, minimum=1)
        if self.separation is not None:
            check_int("separation", self.separation, minimum=1)
        check_choice("columns", self.columns, ("periodic", "constant"))
        covered = self.participations * self._apart
        if self.columns == "periodic" and covered < self.num_steps:
            raise ValueError(
                f"participations * separation must be >= num_steps = {self.num_steps} with "
                f"columns='periodic', got {self.participations} * {self._apart}: "
                "columns='constant' takes fewer"
            )
        if (self.omega is None) != (self.decay is None):
            raise ValueError(
                f"omega and decay go together, got omega={self.omega} and decay={self.decay}"
            )
        omega, decay = self.omega, self.decay
        if omega is None and self.participations > 1:
            omega, decay = fitted(self.num_steps, self.participations, self._apart)
        elif omega is None:
            omega, decay = TABLE[min(max(2, (self.num_steps - 1).bit_length()), max(TABLE))]
        if len(omega) != len(decay):
            raise ValueError(
                f"omega and decay must have one length, got {len(omega)} and {len(decay)}"
            )
        omega, decay = tuple(map(float, omega)), tuple(map(float, decay))
        if self.participations > 1:  # so that the matrix is the same one in every precision
            omega, decay = (tuple(np.asarray(v, np.float32).tolist()) for v in (omega, decay))
        check_nonnegative("omega", omega)
        if not sum(omega) < 1:
            raise ValueError(f"the sum of omega must be < 1, got {sum(omega)!r}")
        check_between("decay", decay, 0.0, 1.0)
        vars(self).update(omega=omega, decay=decay)

    @property
    def participation(self) -> Participation:
        """The steps of one record for which the guarantee holds."""
        kind = "fixed" if self.columns == "periodic" else "min_separation"
        return Participation(kind, self.participations, self._apart)

    @property
    def _apart(self) -> int:
        if self.separation is not None:
            return self.separation
        return -(-self.num_steps // self.participations)

    def init(self, params: PyTree) -> BufferedToeplitzState:
        """The state before the first step; `params` gives shapes and dtypes."""
        buffers = tuple(jax.tree.map(strategies.wide_zeros, params) for _ in self.decay)
        return BufferedToeplitzState(jnp.zeros((), jnp.int32), buffers)

    def next(
        self, draw: strategies.Draw, scale: ArrayLike, state: BufferedToeplitzState
    ) -> tuple[PyTree, BufferedToeplitzState]:
        """The increment of the prefix noise, and the state."""
        scale = strategies.valid_scale(scale, state.count, self.num_steps)
        stddev = scale * jnp.asarray(self.column_norms, scale.dtype)[state.count]
        live = state.count < self.num_steps

        def fresh(z: jax.Array, *buffers: jax.Array) -> jax.Array:
            taken_back = sum(w * m for w, m in zip(self.omega, buffers, strict=True))
            return strategies.computed_once(z - taken_back, live)

        y = jax.tree.map(fresh, draw(0), *state.buffers)
        buffers = tuple(
            jax.tree.map(lambda m, y, rate=rate: rate * m + y.astype(m.dtype), buffer, y)
            for rate, buffer in zip(self.decay, state.buffers, strict=True)
        )
        return strategies.times(stddev, y), BufferedToeplitzState(state.count + 1, buffers)

    def prefix_stddev(self, scales: ArrayLike | None = None) -> np.ndarray:
        """Deviation of a coordinate of each prefix's noise at noise multiplier 1, `[T]` float64."""
        a = strategies.host_scales(scales, self.num_steps) * self.column_norms
        return prefix_stddev(a, np.asarray(self.omega), np.asarray(self.decay))

    @functools.cached_property
    def column_norms(self) -> np.ndarray:
        """$n_t$, by which $y_t$ is multiplied, `[num_steps]` float64."""
        c = coefficients(self.num_steps, np.asarray(self.omega), np.asarray(self.decay))
        norms = pattern_norms(c, self.participations, self._apart)
        if self.columns == "constant":
            return np.full(self.num_steps, norms[0])
        return np.resize(norms, self.num_steps)  # repeated


def fit_buffered_toeplitz(
    num_steps: int,
    num_buffers: int = 3,
    exponent: float = 0.0,
    *,
    participations: int = 1,
    separation: int | None = None,
    objective: str = "mean",
) -> BufferedToeplitz:
    r"""The buffered Toeplitz matrix whose prefixes have the least noise on average.

    $$ \min_{\omega, \lambda} \sum_{t \le N} \mathrm{sd}(\gamma_t) \quad
       \text{for scales } t^a $$

    For several participations the root of the mean square in place of the mean, or the largest, for
    scales that are all 1 and constant columns. On the host, by L-BFGS on the logarithm, from starts
    that spread the decays evenly over the time scales 1 to N, and to b and 4 b. What
    `BufferedToeplitz` ships is made so, with exponent 0, and is within 3% of the best for exponents
    1 and 2 too. It takes a second for N = $2^{14}$, minutes for $2^{20}$; for several
    participations four times as long.

    Guarantee: that of `BufferedToeplitz`, which holds for any coefficients.

    Args:
      num_steps: Number of steps N, `>= 1` (*public*).
      num_buffers: Number of buffers, `>= 1` (*public*).
      exponent: $a \ge 0$ (*public*), 0 with several participations or `objective="max"`.
      participations: Most steps of one record (*public*).
      separation: Least distance between them (*public*); None for N / participations, rounded up.
      objective: `"mean"`, or `"max"` for the largest deviation (*public*).

    Returns:
      A `BufferedToeplitz` for `num_steps` steps.

    Raises:
      TypeError: If `num_steps` or `num_buffers` is no integer.
      ValueError: If a value is outside its bound.

    Example:
      >>> fitted = fit_buffered_toeplitz(64, num_buffers=2)
      >>> round(float(fitted.prefix_stddev().mean()), 2)
      2.12

    Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta, "Efficient and near-optimal noise
    generation for streaming differential privacy", 2024.
    """
    check_int("num_steps", num_steps, minimum=1)
    check_int("num_buffers", num_buffers, minimum=1)
    check_nonnegative_scalar("exponent", exponent)
    check_choice("objective", objective, ("mean", "max"))
    whole = BufferedToeplitz(num_steps, (), (), participations, separation)
    most, apart = whole.participation.most, whole.participation.separation
    if most > 1 or objective == "max":
        if exponent:
            raise ValueError(
                f"exponent must be 0 with participations = {participations} and objective = "
                f"{objective!r}, got {exponent!r}"
            )
        found = fitted(int(num_steps), most, apart, int(num_buffers), objective)
        return BufferedToeplitz(num_steps, *found, participations, separation)
    scales = np.arange(1, num_steps + 1, dtype=np.float64) ** float(exponent)

    def error(omega: np.ndarray, decay: np.ndarray) -> float:
        a = scales * pattern_norms(coefficients(num_steps, omega, decay), 1, num_steps)
        return float(np.log(np.sum(prefix_stddev(a, omega, decay)) / np.sum(scales)))

    start = spread(int(num_steps), int(num_buffers))
    return BufferedToeplitz(num_steps, *minimised(error, [start], int(num_steps)))
