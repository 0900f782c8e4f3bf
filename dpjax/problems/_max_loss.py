"""The largest of several risks, as a saddle point: minimax over groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_positive
from dpjax.geometry import Domain
from dpjax.problems._saddle import Saddle


def max_loss(
    losses: Callable[..., jax.Array],
    num_losses: int,
    *,
    grad_range: tuple[float, float],
    dim: int | None = None,
    vertices: ArrayLike | Domain | None = None,
    smoothness: float | None = None,
    third_order: float | None = None,
    payoff_interval: tuple[float, float] | None = None,
) -> Saddle:
    r"""$\min_{x \in X} \max_{i \le k} \mathbb E_z\, f_i(x; z)$, with weights y on the k losses.

    $$ f(x, y; z) = \sum_i y_i f_i(x; z), \qquad y \in \Delta_k $$

    Args:
      losses: `losses(x, record) -> [k]`, each convex in x (static; keep one object for a sweep).
      num_losses: k.
      grad_range: Range of a record's gradient in x over the vertices, and of its losses.
      dim: Dimension of x where X is the simplex.
      vertices: X otherwise: a matrix `[m, p]` or a domain of `dpjax.geometry`.
      smoothness: Largest second derivative of a loss in x, 0 if all are affine; None for half the
        range.
      third_order: Lipschitz constant of these second derivatives, 0 for quadratics; None where it
        is unknown. The saddle point's is at least `smoothness`: its derivative in $y_i$ and twice
        in x is the Hessian of $f_i$. Stated quadratic losses get unbiased values from two draws
        (`dpjax.papers.estimators.polar_estimate`).
      payoff_interval: Of a record's losses at the vertices of X, for the methods of games where all
        losses are affine (`smoothness=0`).

    Returns:
      A `Saddle` whose second player holds weights on the losses.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> problem = dpjax.problems.max_loss(
      ...     lambda x, rec: jnp.square(x[:2] - rec["target"]), 2, grad_range=(4.0, 1.0), dim=5)
      >>> [domain.num_vertices for domain in problem.domains]
      [5, 2]

    Source: Nemirovski, Juditsky, Lan and Shapiro, "Robust stochastic approximation approach to
    stochastic programming", 2009, section 3.
    """
    within = float(grad_range[0]) / 2 if smoothness is None else float(smoothness)
    quadratic = third_order == 0
    if third_order is not None:
        third_order = max(third_order, within)
    elif within == 0:
        third_order = 0.0
    return Saddle(
        WeightedLosses(losses, quadratic),
        (dim, num_losses),
        tuple(grad_range),
        (vertices, None),
        smoothness=(within, 0.0),
        third_order=third_order,
        payoff_interval=payoff_interval,
    )


def group_risk(
    loss: Callable[..., jax.Array],
    shares: Sequence[float],
    *,
    grad_range: tuple[float, float],
    dim: int | None = None,
    vertices: ArrayLike | Domain | None = None,
    field: str = "group",
    **constants: Any,
) -> Saddle:
    r"""$\min_x \max_g \mathbb E[\ell(x; z) \mid G = g]$: the risk of the group that fares worst.

    $$ f_g(x; z) = \frac{1\{G(z) = g\}}{s_g} \, \ell(x; z) $$

    Args:
      loss: `loss(x, record) -> scalar` (static).
      shares: Shares $s_g$ of the groups in the population, > 0 (*public*). Shares that are floored
        bound the weight of a small group: its risk then counts for less.
      grad_range: As in `max_loss`; a record's gradients carry the factor $1 / s_g$.
      dim: Dimension of x where X is the simplex.
      vertices: X otherwise, `[m, p]` or a domain.
      field: Where records keep their group, an integer.
      **constants: `smoothness`, `third_order` and `payoff_interval`, of losses over shares as
        `grad_range` is.

    Returns:
      A `Saddle`.

    Raises:
      ValueError: If a share is not positive.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> problem = dpjax.problems.group_risk(
      ...     lambda x, rec: jnp.abs(rec["x"] @ x - rec["y"]), [0.7, 0.3], dim=4,
      ...     grad_range=(7.0, 7.0))
      >>> problem.domains[1].num_vertices
      2
    """
    check_positive("shares", list(shares))
    losses = GroupLosses(loss, tuple(float(s) for s in shares), field)
    return max_loss(
        losses, len(shares), grad_range=grad_range, dim=dim, vertices=vertices, **constants
    )


@dataclass(frozen=True)
class WeightedLosses:
    """Sum of losses under the second player's weights; hashable by its function."""

    losses: Callable[..., jax.Array]
    quadratic: bool = False

    def __call__(self, x: jax.Array, y: jax.Array, record: PyTree) -> jax.Array:
        """The weighted loss of one record."""
        return jnp.dot(y, self.losses(x, record), precision="highest")


@dataclass(frozen=True)
class GroupLosses:
    """A record's loss at the place of its group, over that group's share; hashable."""

    loss: Callable[..., jax.Array]
    shares: tuple[float, ...]
    field: str

    def __call__(self, x: jax.Array, record: PyTree) -> jax.Array:
        """Losses `[groups]`; an unknown group contributes nothing."""
        weights = jax.nn.one_hot(record[self.field], len(self.shares)) / np.array(self.shares)
        return weights * self.loss(x, record)
