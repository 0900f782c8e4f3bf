"""Strategies of jax_privacy as noise strategies."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from scipy import linalg, signal

from dpjax.core import PyTree, check_finite, check_int
from dpjax.transforms.noise.correlated import _strategy as strategies
from dpjax.transforms.noise.correlated._buffered_toeplitz import BufferedToeplitz

# the matrix and its inverse are held in full: 128 MiB each
_MAX_DENSE = 4096


def from_jax_privacy(matrix: object, num_steps: int) -> strategies.NoiseStrategy:
    r"""A strategy of `jax_privacy.matrix_factorization` as a noise strategy.

    $$ \gamma_t - \gamma_{t-1} = \text{scale}_t\, n_t\, (C^{-1} z)_t, \qquad
       n_t = \|C_{:, t}\|_2, \qquad z_t \sim \mathcal N(0, I) $$

    Whatever its columns' norms are, they are made 1: of a Toeplitz matrix the last columns are
    shorter, and the last steps have less noise for it.

    Guarantee: of `correlated_noise(strategy, z)`: one Gaussian of noise multiplier z if each record
    takes part in one step, whatever the scales. Norms of a `StreamingMatrix` are found in the
    precision it runs in: 1e-6 relative in float32.

    Args:
      matrix: The lower triangular strategy C (*public*), for at least `num_steps` steps:

        - `buffered_toeplitz.BufferedToeplitz`, which becomes a `dpjax.transforms.BufferedToeplitz`;
        - Toeplitz coefficients `[n]`, such as `toeplitz.optimal_max_error_strategy_coefs(n)`; fewer
          than steps are those of a banded matrix. The state is n - 1 vectors as large as the
          parameters: of square-root coefficients as many as steps;
        - a dense matrix `[num_steps, num_steps]`, `num_steps` at most 4096, whose state is
          `num_steps` such vectors;
        - a `StreamingMatrix` that maps z to $C^{-1} z$, or an object with
          `inverse_as_streaming_matrix`, `num_steps` at most 4096, whose state is its own.
      num_steps: Number of steps, `>= 1` (*public*).

    Returns:
      A noise strategy. Two calls give different strategies (they are compared by identity), unless
      it is a `BufferedToeplitz`; make it once, or each gets a compiled program of its own.

    Raises:
      ImportError: If jax_privacy is missing: `pip install dpjax[correlated]`.
      TypeError: If `num_steps` is no integer, or `matrix` is none of these.
      ValueError: If C is not lower triangular with a positive diagonal, of another shape, or too
        large to be held in full.

    Example:
      >>> import numpy as np
      >>> strategy = from_jax_privacy(np.array([1.0, 0.5]), num_steps=3)  # doctest: +SKIP
      >>> strategy.prefix_stddev().shape  # doctest: +SKIP
      (3,)

    Source: square-root coefficients: Fichtenberger, Henzinger and Upadhyay, "Constant matters:
    fine-grained error bound on differentially private continual observation", 2023.
    """
    try:
        from jax_privacy import matrix_factorization as factorization
    except ImportError as error:
        raise ImportError(
            "from_jax_privacy needs jax_privacy: pip install 'dpjax[correlated]'"
        ) from error
    check_int("num_steps", num_steps, minimum=1)
    if isinstance(matrix, factorization.buffered_toeplitz.BufferedToeplitz):
        omega, decay = (np.asarray(v).tolist() for v in (matrix.output_scale, matrix.buf_decay))
        return BufferedToeplitz(num_steps, omega, decay)
    if hasattr(matrix, "inverse_as_streaming_matrix"):
        with _as_they_compute():
            matrix = matrix.inverse_as_streaming_matrix()
    if isinstance(matrix, factorization.StreamingMatrix):
        _check_size(num_steps)
        with _as_they_compute():
            inverse = np.asarray(matrix.materialize(num_steps), np.float64)
        return StreamingStrategy(num_steps, matrix, _norms(_inverse(inverse)), inverse)
    if not isinstance(matrix, np.ndarray | jax.Array) or matrix.ndim not in (1, 2):
        raise TypeError(f"matrix is no strategy of jax_privacy: {matrix!r}")
    values = np.asarray(matrix, np.float64)
    check_finite("matrix", values)
    if values.ndim == 2:
        return _dense(values, num_steps)
    values = values[:num_steps]
    if not (values.size and values[0] > 0):
        raise ValueError(f"matrix must have a first coefficient > 0, got {values[:1]}")
    norms = np.sqrt(np.cumsum(np.pad(values, (0, num_steps - values.size)) ** 2))[::-1]
    column = jnp.asarray(values, jnp.result_type(float))
    streaming = factorization.toeplitz.inverse_as_streaming_matrix(column)
    inverse = signal.lfilter([1.0], values, signal.unit_impulse(num_steps))
    return StreamingStrategy(num_steps, streaming, norms, inverse)


@contextlib.contextmanager
def _as_they_compute() -> Iterator[None]:
    """Settings for their code, which broadcasts over ranks.

    By default accelerators multiply with 10 bits: that would be the inverse of another matrix.
    """
    with jax.numpy_rank_promotion("allow"), jax.default_matmul_precision("highest"):
        yield


class StreamingState(NamedTuple):
    """State of a strategy that streams: number of steps and the stream's own state (*secret*)."""

    count: jax.Array  # type: ignore[assignment]
    stream: PyTree


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class StreamingStrategy(strategies.GaussianStrategy):
    """What `from_jax_privacy` makes; compared by identity.

    Attributes:
      num_steps: Number of steps.
      stream: The `StreamingMatrix` of the inverse.
      column_norms: Norms of the strategy's columns, `[num_steps]` float64.
      inverse: The inverse, `[num_steps, num_steps]`, or its coefficients `[num_steps]`, float64.
    """

    num_steps: int
    stream: Any = dataclasses.field(repr=False)
    column_norms: np.ndarray = dataclasses.field(repr=False)
    inverse: np.ndarray = dataclasses.field(repr=False)

    def init(self, params: PyTree) -> StreamingState:
        """The state before the first step; `params` gives shapes and dtypes."""
        with _as_they_compute():
            stream = self.stream.init_multiply(jax.tree.map(strategies.wide_zeros, params))
        return StreamingState(jnp.zeros((), jnp.int32), stream)

    def next(
        self, draw: strategies.Draw, scale: ArrayLike, state: StreamingState
    ) -> tuple[PyTree, StreamingState]:
        """The increment of the prefix noise, and the state."""
        scale = strategies.valid_scale(scale, state.count, self.num_steps)
        stddev = scale * jnp.asarray(self.column_norms, scale.dtype)[state.count]
        with _as_they_compute():
            y, stream = self.stream.multiply_next(draw(0), state.stream)
        return strategies.times(stddev, y), StreamingState(state.count + 1, stream)

    def prefix_stddev(self, scales: ArrayLike | None = None) -> np.ndarray:
        """Deviation of a coordinate of each prefix's noise at noise multiplier 1, `[T]` float64."""
        weights = strategies.host_scales(scales, self.num_steps) * self.column_norms
        prefix, squares = np.zeros(self.num_steps), np.zeros(self.num_steps)
        for t, weight in enumerate(weights):
            row = self.inverse[t, : t + 1] if self.inverse.ndim == 2 else self.inverse[t::-1]
            prefix[: t + 1] += weight * row
            squares[t] = prefix @ prefix
        return np.sqrt(squares)


def _dense(strategy: np.ndarray, num_steps: int) -> StreamingStrategy:
    from jax_privacy.matrix_factorization import StreamingMatrix

    _check_size(num_steps)
    if strategy.shape != (num_steps, num_steps):
        raise ValueError(
            f"matrix must have shape [{num_steps}, {num_steps}], got {list(strategy.shape)}"
        )
    inverse = _inverse(strategy)

    def init(like: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((), jnp.int32), jnp.zeros((num_steps, *like.shape), like.dtype)

    def multiply(z: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, Any]:
        t, past = state
        row = jnp.asarray(strategy, past.dtype)[t]  # its entries from t on meet zeros in `past`
        y = (z.astype(past.dtype) - jnp.tensordot(row, past, axes=1)) / row[t]
        return y, (t + 1, jax.lax.dynamic_update_index_in_dim(past, y, t, 0))

    stream = StreamingMatrix.from_array_implementation(init, multiply)
    return StreamingStrategy(num_steps, stream, _norms(strategy), inverse)


def _check_size(num_steps: int) -> None:
    if num_steps > _MAX_DENSE:
        raise ValueError(
            f"num_steps must be <= {_MAX_DENSE}, got {num_steps}: the matrix is held in full for "
            "its columns' norms; Toeplitz coefficients or a BufferedToeplitz are not"
        )


def _inverse(matrix: np.ndarray) -> np.ndarray:
    """The inverse of a lower triangular matrix."""
    diagonal = np.diag(matrix)
    if np.any(np.triu(matrix, 1)) or not np.all(np.isfinite(matrix)) or not np.all(diagonal > 0):
        raise ValueError("matrix must be lower triangular, finite and of positive diagonal")
    return linalg.solve_triangular(matrix, np.eye(len(matrix)), lower=True)


def _norms(strategy: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(strategy**2, axis=0))
