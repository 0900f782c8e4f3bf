"""Correlated noise of few steps' memory: a banded Toeplitz matrix."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike
from scipy import optimize, signal

from dpjax.core import PyTree, check_finite, check_int, check_positive
from dpjax.privacy import RelationLike
from dpjax.sampling import Participation
from dpjax.transforms.noise.correlated import _strategy as strategies

_OVERFLOWS = 1e3  # in place of the logarithm of an infinite error


class BandedState(NamedTuple):
    """State of `Banded`.

    Attributes:
      count: Number of steps so far, `[]` int32 (*public*).
      past: The last y, the one of step t at t mod (bands - 1), leaves `[bands - 1, *p]` (*secret*).
    """

    count: jax.Array  # type: ignore[assignment]
    past: PyTree


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Banded(strategies.GaussianStrategy):
    r"""Noise that a banded Toeplitz matrix correlates over a few steps.

    $$ \gamma_t - \gamma_{t-1} = \text{scale}_t\, n_t\, y_t, \qquad
       y_t = \frac1{c_0} \Big(z_t - \sum_{0 < j < p} c_j y_{t-j}\Big), \qquad
       z_t \sim \mathcal N(0, I) $$

    So $y = C^{-1} z$ for the lower triangular Toeplitz matrix C of the p = `bands` coefficients c,
    of norm 1; $n_t$ is the norm of column t, 1 but for the last p - 1.

    Guarantee: of `correlated_noise(strategy, z)`, whatever the scales and coefficients, for records
    whose steps are at least p apart: a participation moves the rows t to t + p - 1 of $C u$ alone,
    by a vector of norm 1, so that those of one record are releases of noise multiplier z apart from
    one another. If each happens with probability q, independently, as with `CyclicPoisson`, the
    event is `PoissonSampledDpEvent(q, GaussianDpEvent(z))`, composed as often as there may be
    participations. That is, and with one band the noise is, what DP-SGD has.

    The state is p - 1 vectors as large as the parameters.

    Args:
      num_steps: Number of steps N, `>= 1` (*public*).
      bands: p, `>= 1` (*public*); None for the number of `coefficients`.
      coefficients: c, the first of them > 0 (*public*); None: those of least mean square noise of
        the prefixes, found in about a second.

    Raises:
      TypeError: If `num_steps` or `bands` is no integer.
      ValueError: If a value is outside its bound, or `bands` and `coefficients` disagree.

    Example:
      >>> strategy = Banded(100, bands=4)
      >>> round(float(strategy.prefix_stddev().mean()), 1)  # of independent noise: 6.7
      3.8

    Source: Choquette-Choo et al., "(Amplified) banded matrix factorization: a unified approach to
    private training", 2023; coefficients: McKenna, "Scaling up the banded matrix factorization
    mechanism for differentially private ML", 2024.
    """

    num_steps: int
    # None is replaced when a strategy is made
    bands: int = None  # type: ignore[assignment]
    coefficients: Sequence[float] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        strategies.check_steps(self.num_steps)
        bands, c = self.bands, self.coefficients
        if bands is not None:
            check_int("bands", bands, minimum=1)
        if c is None and bands is None:
            raise ValueError("bands or coefficients must be given, got neither")
        if c is None:
            c = fitted_bands(int(self.num_steps), min(int(bands), int(self.num_steps)))
        check_finite("coefficients", np.asarray(c))
        if np.ndim(c) != 1 or not len(c):
            raise ValueError(f"coefficients must have shape [bands], got {list(np.shape(c))}")
        check_positive("coefficients[0]", c[0])
        if bands is not None and len(c) > bands:
            raise ValueError(f"coefficients must be at most bands = {bands}, got {len(c)}")
        # float32 numbers, so that the matrix is the same one in every precision
        unit = np.asarray(c, np.float64) / np.linalg.norm(c)
        vars(self).update(coefficients=tuple(unit.astype(np.float32).tolist()), bands=len(unit))

    @property
    def participation(self) -> Participation:
        """Any steps at least `bands` apart."""
        return Participation("min_separation", math.ceil(self.num_steps / self.bands), self.bands)

    def event(
        self,
        noise_multiplier: float,
        relation: RelationLike = "add_or_remove_one",
        participation: Participation | None = None,
    ) -> dpe.DpEvent:
        """The event of a whole run, under every relation.

        Args:
          noise_multiplier: z `>= 0`.
          relation: Any.
          participation: The steps that one record may be in, as a sampler states them; None for
            all those of `self.participation`.

        Raises:
          ValueError: If two of these steps may be less than `bands` apart.
        """
        if participation is None:
            most = self.participation.most
            return strategies.gaussian_event(float(noise_multiplier) / math.sqrt(most))
        if participation.most > 1 and participation.separation < self.bands:
            raise ValueError(
                f"participation must have a separation >= bands = {self.bands}, got {participation}"
            )
        return participation.event(strategies.gaussian_event(noise_multiplier))

    def init(self, params: PyTree) -> BandedState:
        """The state before the first step; `params` gives shapes and dtypes."""
        return BandedState(
            jnp.zeros((), jnp.int32), strategies.stacked_zeros(params, self.bands - 1)
        )

    def next(
        self, draw: strategies.Draw, scale: ArrayLike, state: BandedState
    ) -> tuple[PyTree, BandedState]:
        """The increment of the prefix noise, and the state."""
        dtype, memory = jnp.result_type(float), self.bands - 1
        scale = strategies.valid_scale(scale, state.count, self.num_steps)
        live, t = state.count < self.num_steps, state.count
        left = jnp.clip(self.num_steps - 1 - t, 0, memory)
        stddev = scale * jnp.asarray(self._norms, dtype)[left]
        c = jnp.asarray(self._c)
        if not memory:  # independent noise
            noise = strategies.times(stddev / c[0].astype(dtype), draw(0))
            return noise, BandedState(t + 1, state.past)

        # the place of y_{t - j}, j = 1, ..., is (t - j) mod memory
        lags = 1 + (t - 1 - jnp.arange(memory)) % memory

        def fresh(z: jax.Array, past: jax.Array) -> jax.Array:
            rest = c[lags].astype(z.dtype)
            # not a product of matrices, which is slower by far where one has a single row
            taken_back = jnp.sum(rest.reshape(-1, *(1,) * z.ndim) * past.astype(z.dtype), axis=0)
            return strategies.computed_once((z - taken_back) / c[0].astype(z.dtype), live)

        def store(past: jax.Array, y: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_index_in_dim(past, y.astype(past.dtype), t % memory, 0)

        y = jax.tree.map(fresh, draw(0), state.past)
        return strategies.times(stddev, y), BandedState(t + 1, jax.tree.map(store, state.past, y))

    def prefix_stddev(self, scales: ArrayLike | None = None) -> np.ndarray:
        """Deviation of a coordinate of each prefix's noise at noise multiplier 1, `[T]` float64."""
        a = strategies.host_scales(scales, self.num_steps) * self.column_norms
        inverse = signal.lfilter([1.0], self._c, signal.unit_impulse(self.num_steps))
        # as long as a is constant, its rows are sums of the inverse's coefficients
        equal = int(np.argmax(a != a[0])) if np.any(a != a[0]) else self.num_steps
        sums = a[0] * np.cumsum(inverse)
        squares = np.cumsum(sums**2)
        row = np.zeros(self.num_steps)
        row[:equal] = sums[:equal][::-1]
        for t in range(equal, self.num_steps):
            row[: t + 1] += a[t] * inverse[t::-1]
            squares[t] = row @ row
        return np.sqrt(squares)

    @functools.cached_property
    def column_norms(self) -> np.ndarray:
        """$n_t$, by which $y_t$ is multiplied, `[num_steps]` float64."""
        left = np.arange(self.num_steps)[::-1]
        return self._norms[np.minimum(left, self.bands - 1)]

    @functools.cached_property
    def _norms(self) -> np.ndarray:
        """Norms of columns by the number of rows below them, `[bands]`."""
        return np.sqrt(np.cumsum(self._c**2))

    @property
    def _c(self) -> np.ndarray:
        return np.asarray(self.coefficients, np.float64)


@functools.lru_cache(maxsize=256)
def fitted_bands(num_steps: int, bands: int) -> tuple[float, ...]:
    r"""Coefficients of least $\|c\|^2 \sum_t \sum_{i \le t} B_i^2$, B the sums of those of 1/c.

    By L-BFGS from square-root and from geometric coefficients: in long runs of few bands either one
    may stop short.
    """
    if bands == 1:
        return (1.0,)
    j = np.arange(1, bands)
    starts = (np.cumprod((2 * j - 1) / (2 * j)), 0.6**j)
    found = [
        optimize.minimize(
            _log_error,
            start,
            (num_steps,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 1000, "maxfun": 2000, "ftol": 1e-13, "gtol": 1e-9},
        )
        for start in starts
    ]
    best = min(found, key=lambda result: result.fun)
    return (1.0, *best.x.tolist())


def _log_error(rest: np.ndarray, num_steps: int) -> tuple[float, np.ndarray]:
    """Of the mean square, with its gradient in all coefficients but the first, which is 1."""
    c = np.append(1.0, rest)
    weights = np.arange(num_steps, 0, -1) / num_steps
    with np.errstate(over="ignore", invalid="ignore"):
        sums = signal.lfilter([1.0], c, np.ones(num_steps))
        error = weights @ sums**2
        if not np.isfinite(error) or error > 1e100:
            return _OVERFLOWS, np.zeros_like(rest)
        back = signal.lfilter([1.0], c, (weights * sums)[::-1])[::-1]
        slope = np.array([back[j:] @ sums[: num_steps - j] for j in range(1, len(c))])
    square = c @ c
    return float(np.log(error) + np.log(square)), -2 * slope / error + 2 * rest / square
