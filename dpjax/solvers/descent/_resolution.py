"""How well a run sees rate constraints through its noise, from public numbers alone."""

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_positive, check_shape
from dpjax.privacy._warnings import ResolutionWarning, warn
from dpjax.problems._constraints import RateConstraints
from dpjax.solvers.descent._dpsgd import DPSGD
from dpjax.solvers.descent._rates import value_deviation


def resolution(
    constraints: RateConstraints | None,
    shares: ArrayLike | None,
    deviation: ArrayLike,
    batch_size: ArrayLike,
    steps: int,
) -> np.ndarray:
    """Deviation of the mean estimate of each constraint over a run, `[J]` (host).

    Args:
      constraints: On rates; None for none.
      shares: Of the records in each subset, `[S]`; None for its share of the parts.
      deviation: Standard deviation of the noise of a cell of the table.
      batch_size: Expected records of a batch.
      steps: How many tables.

    Raises:
      ValueError: If shares are not positive, or of another shape.
    """
    if constraints is None or not constraints.num_constraints:
        return np.zeros(0)
    if shares is None:
        shares = _equal_shares(constraints)
    check_positive("shares", shares)
    check_shape("shares", np.asarray(shares), (constraints.membership.shape[0],))
    sizes = jnp.asarray(batch_size * np.asarray(shares), float)
    rates = jnp.full((len(sizes), constraints.num_classes), 1 / constraints.num_classes)
    return np.asarray(value_deviation(constraints, sizes, rates, deviation)) / steps**0.5


def check_resolution(seen: np.ndarray, constraints: RateConstraints, descent: DPSGD) -> None:
    """Warns of constraints that the noise hides.

    Warns:
      ResolutionWarning: If a slack is below four times its resolution, or a subset of equal parts
        has fewer than 10 records in a batch.
    """
    slack = np.asarray(constraints.slack)
    hidden = seen > np.where(slack == 0, 0.01, np.abs(slack) / 4)
    if np.any(hidden):
        worst = int(np.argmax(np.where(hidden, seen, 0)))
        warn(
            f"this budget cannot see constraint {worst} of slack {slack[worst]:.2g}: its "
            f"resolution is {seen[worst]:.2g} for parts of equal size, so expect it to be met on "
            f"training data up to about {2 * seen[worst]:.2g} ({int(hidden.sum())} of {len(seen)} "
            "constraints are below four times theirs): raise epsilon, use more records, merge "
            "groups or relax the slack",
            ResolutionWarning,
        )
    least = float(descent.batch_size * np.min(_equal_shares(constraints)))
    if least < 10:
        warn(
            f"a batch has about {least:.2g} records of the smallest subset: its rates are mostly "
            "noise of sampling; raise batch_size or merge groups",
            ResolutionWarning,
        )


def _equal_shares(constraints: RateConstraints) -> np.ndarray:
    membership = np.asarray(constraints.membership)
    return np.maximum(membership.sum(axis=1), 1) / membership.shape[1]
