"""Recognises a `Risk.linear` whose loss is that of a `LinearModel`, from its values."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, check_shape, is_traced
from dpjax.problems._linear_model import LinearModel
from dpjax.problems._risk import LinearLoss, Risk

_STEP = 0.25
_MARGINS = np.linspace(-20, 20, 161, dtype=np.float32)[:, None]  # exact
_LABELS = np.array([-2, -1, -0.4, 0, 0.7, 1], np.float32)
_CLASSES = [3, 5]  # 0 and 1
_NEAR = 1e-5  # relative, or of 1
UNSTATED = 2.0**16  # bound on features over the root of their number, where none is stated


class OwnLinear(NamedTuple):
    """The equivalent `LinearModel` of a `Risk.linear`, and its label convention.

    Attributes:
      model: With bounds derived from the problem's constants.
      labels: `"signed"` for a logistic loss of y times the margin, `"classes"` for one with labels
        0 and 1, `"numbers"` for a regression.
      stated: Whether the problem's constants bound the features. If not, the bound is 65,536 times
        the root of their number, for solvers that draw how long they are.
    """

    model: LinearModel
    labels: str
    stated: bool

    def records(self, batch: PyTree) -> PyTree:
        """Records `{"x": [n, p], "y": [n]}` of the model.

        | labels | record |
        | --- | --- |
        | signed | x is multiplied by the absolute value of y: the loss is the same |
        | classes, under a transformation | a label other than 0 and 1 contributes nothing |

        Raises:
          ValueError: If a label of `"classes"` is neither 0 nor 1.
        """
        check_shape("y", batch["y"], (None,))
        x, y = jnp.asarray(batch["x"]), jnp.asarray(batch["y"]).astype(float)
        if self.labels == "signed":
            x = x * jnp.abs(y)[:, None]
        elif self.labels == "classes":
            other = (y != 0) & (y != 1) & ~jnp.isnan(y)
            if not is_traced(other) and other.is_fully_addressable and other.any():
                raise ValueError(
                    "labels y of this logistic loss must be 0 or 1: for other labels, use "
                    "method='dpsgd' in fit, or DPSGD in solve"
                )
            y = jnp.where(other, jnp.nan, y)
        return {"x": x, "y": y}


def own_linear(problem: object) -> OwnLinear | None:
    r"""The `LinearModel` equivalent to a `Risk.linear`; None if there is none.

    The loss is compared with known ones on a grid of margins and labels. Bounds come from the
    problem's constants: of a logistic loss, `lipschitz` L or `smoothness` H bound the features. A
    squared loss $s (m - y)^2 / 2$ needs both, and a radius R: features have norm at most
    $B = \sqrt{H / s}$ and labels are at most $Y = L / (s B) - R B$. It is not recognised if
    Y < R B, where L looks understated. A Huber loss is not: of the 25 instances on which this was
    decided (d = 3 to 40, n = 600 to 12,000, epsilon 0.25 to 4) `DPSGD` had lower error on 17, by up
    to 480 times, and at most twice the error on the others.

    Guarantee: none of its own. Solvers run the model's loss and enforce its bounds, so privacy does
    not depend on the given function. No data are read.

    Args:
      problem: Of any kind (*public*).

    Returns:
      An `OwnLinear`, or None.

    Example:
      >>> own = own_linear(Risk.linear(lambda m, y: jax.nn.softplus(-y * m), 3, lipschitz=1.0))
      >>> own.model.link, own.labels
      ('logistic', 'signed')
    """
    if type(problem) is not Risk or not isinstance(problem.loss, LinearLoss):
        return None
    given = problem.radius, problem.lipschitz, problem.smoothness
    if is_traced(given) or any(np.ndim(c) for c in given if c is not None):
        return None
    radius, slope, curvature = (None if c is None else float(np.asarray(c)) for c in given)
    width = int(np.size(problem.init))
    try:
        values = _values(problem.loss)
    except (TypeError, ValueError, IndexError):  # a loss of labels of another kind
        return None
    if values.shape != (len(_MARGINS), len(_LABELS)):
        return None
    signed = _near(values, np.logaddexp(0, -_LABELS * _MARGINS))
    if signed or _near(values[:, _CLASSES], np.logaddexp(0, np.array([1, -1]) * _MARGINS)):
        bounds = slope, None if curvature is None else 2 * math.sqrt(curvature)
        known = [bound for bound in bounds if bound is not None]
        longest = min(known) if known else UNSTATED * math.sqrt(width)
        model = LinearModel("logistic", width, radius, feature_bound=longest)
        return OwnLinear(model, "signed" if signed else "classes", bool(known))
    # a multiple of the square, or another loss
    scale = 2 * float(values[81, 3]) / _STEP**2  # near margin 0, label 0
    if scale <= 0 or not _near(values, scale * (_MARGINS - _LABELS) ** 2 / 2):
        return None
    if radius is None or slope is None or curvature is None:
        return None
    longest = math.sqrt(curvature / scale)
    largest = slope / (scale * longest) - radius * longest
    if largest < radius * longest * (1 - _NEAR):
        return None
    squared = LinearModel("squared", width, radius, feature_bound=longest, label_bound=largest)
    return OwnLinear(squared, "numbers", True)


@functools.lru_cache(maxsize=64)
def _values(loss: LinearLoss) -> np.ndarray:
    """At all margins and labels."""
    with jax.ensure_compile_time_eval():
        each = jax.vmap(jax.vmap(loss.link_loss, in_axes=(None, 0)), in_axes=(0, None))
        return np.asarray(each(jnp.asarray(_MARGINS[:, 0]), jnp.asarray(_LABELS)))


def _near(values: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(np.all(np.abs(values - wanted) <= _NEAR * (1 + np.abs(wanted))))
