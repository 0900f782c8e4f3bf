"""Empirical risk of any per-record loss."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.core import PyTree, check_positive


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Risk:
    r"""$\min_{\|\theta\| \le R} \frac1n \sum_i \ell(\theta; z_i)$, for any differentiable loss.

    Attributes:
      loss: `loss(params, record) -> scalar`, one record at a time (static).
      init: Parameters to start from (*public*).
      radius: Radius R of an l2 ball around 0 that the parameters stay in; None for no bound.
      lipschitz: Largest l2 norm of one record's gradient, and
      smoothness: largest change of it for a unit of displacement; None if not known. Guides for
        solvers, which enforce by clipping what they rely on (*public*).

    Raises:
      ValueError: If `radius`, `lipschitz` or `smoothness` is not positive and finite.

    Example:
      >>> import dpjax, jax.numpy as jnp
      >>> problem = dpjax.problems.Risk(
      ...     loss=lambda w, rec: (rec["x"] @ w - rec["y"]) ** 2, init=jnp.zeros(3), radius=1.0)
      >>> problem.num_params
      3
    """

    loss: Callable[..., jax.Array] = dataclasses.field(metadata={"static": True})
    init: PyTree
    radius: Any = None
    lipschitz: Any = dataclasses.field(default=None, kw_only=True)
    smoothness: Any = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)
        check_positive("lipschitz", self.lipschitz)
        check_positive("smoothness", self.smoothness)

    @property
    def num_params(self) -> int:
        """Number of real parameters d."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.init))

    def per_example_gradients(self, params: PyTree, batch: PyTree) -> PyTree:
        """Gradients `[B, *p]` of the loss of each record."""
        return jax.vmap(jax.grad(self.loss), in_axes=(None, 0))(params, batch)

    def project(self, params: PyTree) -> PyTree:
        """The nearest point of the ball."""
        if self.radius is None:
            return params
        return optax.projections.projection_l2_ball(params, self.radius)

    def mean_loss(self, params: PyTree, data: PyTree) -> jax.Array:
        """Mean loss over `data`, a scalar. **Not private**."""
        return jnp.mean(jax.vmap(self.loss, in_axes=(None, 0))(params, data))
