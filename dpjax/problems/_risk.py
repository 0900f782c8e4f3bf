"""Empirical risk of any per-record loss."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import PyTree, check_int, check_positive, register_dataclass
from dpjax.problems._mean import OnBall
from dpjax.problems._vertex_linear import LinearLoss, OfRecords


@register_dataclass
@dataclass(frozen=True)
class Risk(OfRecords, OnBall):
    r"""$\min_{\|\theta\| \le R} \frac1n \sum_i \ell(\theta; z_i)$, for any differentiable loss.

    Guarantee: none of its own. The loss of a record must depend on that record and the parameters
    alone; solvers then clip its gradient, and trust none of the constants below.

    Attributes:
      loss: `loss(params, record) -> scalar`, one record at a time (static).
      init: Parameters to start from (*public*).
      radius: Radius R of an l2 ball around 0 that the parameters stay in, a number; None for no
        bound.
      lipschitz: Largest l2 norm of one record's gradient, a number, and
      smoothness: largest change of it for a unit of displacement, a number; None if not known.
        Guides for solvers, which enforce by clipping what they rely on (*public*).

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
    radius: ArrayLike | None = None
    lipschitz: ArrayLike | None = dataclasses.field(default=None, kw_only=True)
    smoothness: ArrayLike | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_positive("radius", self.radius)
        check_positive("lipschitz", self.lipschitz)
        check_positive("smoothness", self.smoothness)

    @classmethod
    def linear(
        cls,
        link_loss: Callable[[jax.Array, jax.Array], jax.Array],
        num_features: int,
        radius: ArrayLike | None = None,
        **constants: ArrayLike | None,
    ) -> "Risk":
        r"""A loss of one inner product, $\ell(\langle x, \theta\rangle, y)$, started at 0.

        Gradients are kept factored, so that a step forms no `[B, p]` array but the data.

        Args:
          link_loss: `link_loss(margin, y) -> scalar` (static; keep one object for a sweep).
          num_features: Number of features p.
          radius: A number, as in the class.
          **constants: `lipschitz`, `smoothness`, numbers.

        Returns:
          A problem for data `{"x": [n, p], "y": [n]}`.

        Raises:
          TypeError: If `num_features` is not an integer.
          ValueError: If `num_features < 1`, or a constant is not positive and finite.

        Example:
          >>> import dpjax
          >>> problem = dpjax.problems.Risk.linear(
          ...     lambda margin, y: (margin - y) ** 2 / 2, num_features=3, radius=1.0)
          >>> problem.init.shape
          (3,)
        """
        check_int("num_features", num_features, minimum=1)
        return cls(LinearLoss(link_loss), jnp.zeros(num_features), radius, **constants)

    @property
    def factored(self) -> bool:
        """Whether gradients are `OuterProduct`, not arrays."""
        return isinstance(self.loss, LinearLoss)

    @property
    def num_params(self) -> int:
        """Number of real parameters d."""
        return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.init))


@dataclasses.dataclass(frozen=True)
class PersonLoss:
    r"""The mean loss of one person's rows: in a `Risk`, people are the records.

    $$ \ell(\theta; P) = \frac{1}{|P|} \sum_{z \in P} \ell(\theta; z) $$

    Guarantee: none of its own. Solvers sample people, clip the gradient of a person as a whole, and
    so promise what they promise for a record per person, whatever the number of rows.

    | input | effect |
    | --- | --- |
    | a person without rows | loss 0 |
    | NaN in a row | the person contributes nothing |

    Args:
      loss: `loss(params, row) -> scalar`, one row at a time.

    Example:
      >>> import dpjax, jax.numpy as jnp, numpy as np
      >>> visits = {"x": np.ones((5, 2)), "y": np.arange(5.0), "id": np.array([7, 7, 7, 8, 9])}
      >>> people = dpjax.PersonRecords(visits, unit="id", max_rows=2).people()
      >>> people["rows"]["x"].shape, people["present"].tolist()
      ((3, 2, 2), [[True, True], [True, False], [True, False]])
      >>> squares = PersonLoss(lambda w, row: (row["x"] @ w - row["y"]) ** 2)
      >>> problem = dpjax.problems.Risk(squares, jnp.zeros(2))
      >>> problem.per_example_losses(problem.init, people)[1:].tolist()
      [9.0, 16.0]
    """

    loss: Callable[..., jax.Array]

    def __call__(self, params: PyTree, person: PyTree) -> jax.Array:
        """The loss of a person of `PersonRecords.people`: `rows` `[k, ...]` and `present` `[k]`."""
        losses = jax.vmap(self.loss, in_axes=(None, 0))(params, person["rows"])
        present = person["present"]
        return jnp.sum(jnp.where(present, losses, 0)) / jnp.maximum(jnp.sum(present), 1)
