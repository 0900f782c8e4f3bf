"""The loss of a person who has several rows."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpjax.core import PyTree


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
