"""The linear map from draws to prefix noise, materialised, and what it says of privacy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.testing._trees import QUICK
from dpjax.transforms import BinaryTree


def levels_of(strategy):
    """How many draws a step may take."""
    reduced = isinstance(strategy, BinaryTree) and strategy.variance_reduced
    return strategy.num_steps.bit_length() if reduced else 1


def noise_map(strategy, scales):
    """[T, T * levels]: column t * levels + l is what draw l of step t does to every prefix."""
    return np.asarray(_noise_map(strategy, jnp.asarray(scales, jnp.result_type(float))), np.float64)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def _noise_map(strategy, scales):
    levels = levels_of(strategy)
    size = scales.size * levels

    def body(state, t_scale):
        t, scale = t_scale
        step, state = strategy.next(
            lambda level: jnp.zeros(size).at[t * levels + level].set(1.0), scale, state
        )
        return state, step

    steps = (jnp.arange(scales.size), scales)
    return jnp.cumsum(jax.lax.scan(body, strategy.init(jnp.zeros(size)), steps)[1], axis=0)


def smallest_shifts(matrix, scales):
    """[draws, T]: column q moves all prefixes from step q on by scales[q], of least norm."""
    wanted = np.tril(np.ones((len(scales), len(scales)))) * scales
    shifts = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    np.testing.assert_allclose(matrix @ shifts, wanted, atol=1e-8 * np.max(scales))
    return shifts


def scale_families(num_steps):
    rng = np.random.default_rng(num_steps)
    t = np.arange(1, num_steps + 1.0)
    return {
        "uniform": np.ones(num_steps),
        "linear": t,
        "quadratic": t**2,
        "falling": 1 / t,
        "random": rng.lognormal(sigma=2.0, size=num_steps),
    }
