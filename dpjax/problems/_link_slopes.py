"""The slopes of a loss of one inner product, on a grid of margins."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import Problem
from dpjax.problems._risk import LinearLoss, Risk

_FARTHEST, _MARGINS = 10.0, 201
FLAT = 1e-3  # a smaller slope, or change of one, is taken for rounding
_SAME = 0.05  # relative difference of slopes that have stopped growing


def rising_slopes(problem: Problem) -> np.ndarray | None:
    """Derivatives in the margin `[2, margins]` for labels -1 and 1, where they are finite and rise.

    So they do for a convex loss. None for others, and for a loss of another kind.
    """
    if not isinstance(problem, Risk) or not isinstance(problem.loss, LinearLoss):
        return None
    with jax.ensure_compile_time_eval():
        margins = jnp.linspace(-_FARTHEST, _FARTHEST, _MARGINS)
        slopes = jax.vmap(jax.grad(problem.loss.link_loss), in_axes=(0, None))
        try:
            found = np.stack([np.asarray(slopes(margins, jnp.asarray(y))) for y in (-1.0, 1.0)])
        except TypeError:  # labels of another kind
            return None
    return found if np.all(np.isfinite(found)) and np.all(np.diff(found) >= -FLAT) else None


def steepest_slope(problem: Problem) -> float | None:
    """The largest slope of a convex loss, such as a hinge; None if slopes grow without a bound."""
    found = rising_slopes(problem)
    if found is None:
        return None
    steepest = float(np.max(np.abs(found)))
    further = np.abs(found[:, [0, -1]] - found[:, [_MARGINS // 4, -1 - _MARGINS // 4]])
    return steepest if steepest > FLAT and np.all(further <= _SAME * steepest) else None
