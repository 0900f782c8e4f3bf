"""Correlated noise of few buffers: a Toeplitz matrix whose coefficients are sums of powers."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_between, check_nonnegative
from dpjax.transforms.noise.correlated._buffered_toeplitz_error import column_norms, prefix_stddev
from dpjax.transforms.noise.correlated._buffered_toeplitz_table import TABLE
from dpjax.transforms.noise.correlated._strategy import (
    Draw,
    GaussianStrategy,
    check_steps,
    computed_once,
    host_scales,
    times,
    valid_scale,
    wide_zeros,
)


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
class BufferedToeplitz(GaussianStrategy):
    r"""Noise that a Toeplitz matrix with a few buffers correlates.

    $$ \gamma_t - \gamma_{t-1} = \text{scale}_t\, n_t\, y_t, \qquad
       y_t = z_t - \sum_j \omega_j M_j, \qquad M_j \leftarrow \lambda_j M_j + y_t, \qquad
       z_t \sim \mathcal N(0, I) $$

    So $y = C^{-1} z$ for the lower triangular Toeplitz matrix C of coefficients $c_0 = 1$, $c_i =
    \sum_j \omega_j \lambda_j^{i-1}$; $n_t = (\sum_{i \le N - t} c_i^2)^{1/2}$ are the norms of its
    columns when there are N = `num_steps`.

    Guarantee: of `correlated_noise(strategy, z)`: one Gaussian of noise multiplier z, whatever the
    scales and whatever $\omega, \lambda$, for $C\,\mathrm{diag}(1/n)$ has columns of norm 1.

    One draw a step, and as many buffers as decays. The coefficients only decide how large the
    prefixes' noise is: those shipped, for N up to $2^{20}$, have three buffers (fewer to $2^6$,
    four from $2^{15}$) and come within 2% of square-root Toeplitz coefficients, which need N of
    them. At $N = 2^{10}$ no prefix has more than 3.1 times the noise of a single release; with a
    binary tree it is 10 times.

    Args:
      num_steps: Number of steps N, `>= 1` (*public*).
      omega: Weights of the buffers, `>= 0` and of sum < 1 (*public*); None: as shipped for the
        nearest power of two that is not smaller, if there is one. `fit_buffered_toeplitz` finds
        others.
      decay: $\lambda_j$ in [0, 1], as many (*public*).

    Raises:
      TypeError: If `num_steps` is no integer.
      ValueError: If a value is outside its bound, or only one of `omega` and `decay` is given.

    Example:
      >>> strategy = BufferedToeplitz(1024)
      >>> len(strategy.decay), round(float(strategy.prefix_stddev().mean()), 2)
      (3, 2.99)

    Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta, "Efficient and near-optimal noise
    generation for streaming differential privacy", 2024.
    """

    num_steps: int
    omega: Sequence[float] | None = None
    decay: Sequence[float] | None = None

    def __post_init__(self) -> None:
        check_steps(self.num_steps)
        if (self.omega is None) != (self.decay is None):
            raise ValueError(
                f"omega and decay go together, got omega={self.omega} and decay={self.decay}"
            )
        omega, decay = self.omega, self.decay
        if omega is None or decay is None:
            row = max(2, (self.num_steps - 1).bit_length())
            omega, decay = TABLE[min(row, max(TABLE))]
        if len(omega) != len(decay):
            raise ValueError(
                f"omega and decay must have one length, got {len(omega)} and {len(decay)}"
            )
        omega, decay = tuple(map(float, omega)), tuple(map(float, decay))
        check_nonnegative("omega", omega)
        if not sum(omega) < 1:
            raise ValueError(f"the sum of omega must be < 1, got {sum(omega)!r}")
        check_between("decay", decay, 0.0, 1.0)
        object.__setattr__(self, "omega", omega)
        object.__setattr__(self, "decay", decay)

    def init(self, params: PyTree) -> BufferedToeplitzState:
        """The state before the first step; `params` gives shapes and dtypes."""
        buffers = tuple(jax.tree.map(wide_zeros, params) for _ in self._decay)
        return BufferedToeplitzState(jnp.zeros((), jnp.int32), buffers)

    def next(
        self, draw: Draw, scale: ArrayLike, state: BufferedToeplitzState
    ) -> tuple[PyTree, BufferedToeplitzState]:
        """The increment of the prefix noise, and the state."""
        dtype = jnp.result_type(float)
        scale = valid_scale(scale, state.count, self.num_steps, dtype)
        stddev = scale * jnp.asarray(self.column_norms, dtype)[state.count]
        live = state.count < self.num_steps

        def fresh(z: jax.Array, *buffers: jax.Array) -> jax.Array:
            taken_back = sum(w * m for w, m in zip(self._omega, buffers, strict=True))
            return computed_once(z - taken_back, live)

        y = jax.tree.map(fresh, draw(0), *state.buffers)
        buffers = tuple(
            jax.tree.map(lambda m, y, rate=rate: rate * m + y.astype(m.dtype), buffer, y)
            for rate, buffer in zip(self._decay, state.buffers, strict=True)
        )
        return times(stddev, y), BufferedToeplitzState(state.count + 1, buffers)

    def prefix_stddev(self, scales: ArrayLike | None = None) -> np.ndarray:
        """Deviation of a coordinate of each prefix's noise at noise multiplier 1, `[T]` float64."""
        return prefix_stddev(
            host_scales(scales, self.num_steps), np.asarray(self._omega), np.asarray(self._decay)
        )

    @functools.cached_property
    def column_norms(self) -> np.ndarray:
        """The norms $n_t$ of the columns of C, `[num_steps]` float64."""
        return column_norms(self.num_steps, np.asarray(self._omega), np.asarray(self._decay))

    @property
    def _omega(self) -> tuple[float, ...]:
        return tuple(self.omega or ())

    @property
    def _decay(self) -> tuple[float, ...]:
        return tuple(self.decay or ())
