"""The average of the vertices drawn, without forming any of them."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import check_int


def maurey(indices: ArrayLike, dim: int) -> jax.Array:
    r"""The average of unit vectors, $\hat x = \frac1k \sum_{i=1}^k e_{j_i}$, by scatter-add.

    Of independent draws $j_i \sim x$ the average has mean $x$, and for a function whose gradient is
    $L_1$-Lipschitz from the l1 to the linf norm, $E F(\hat x) - F(x) \le 2 L_1 / k$, whatever the
    dimension.

    Guarantee: none of its own; post-processing of the draws.

    Args:
      indices: Vertices `[k]` int, in `[0, dim)`.
      dim: Number of vertices (*public*, static).

    Returns:
      Weights `[dim]` of the default float type; at most `k` are not 0.

    Raises:
      ValueError: If `indices` is not a vector of at least one integer, or `dim < 1`.
      TypeError: If `dim` is not an integer.

    Example:
      >>> import jax.numpy as jnp
      >>> maurey(jnp.array([2, 0, 2, 2]), dim=4).tolist()
      [0.25, 0.0, 0.75, 0.0]

    Source: Maurey's lemma, in Pisier, "Remarques sur un resultat non publie de B. Maurey", 1981.

    Theory: docs/theory/accuracy.md, A2.
    """
    check_int("dim", dim, minimum=1)
    indices = as_indices(indices)
    return jnp.zeros(dim).at[indices].add(1 / indices.shape[0])


def as_indices(indices: ArrayLike) -> jax.Array:
    """`indices` as a vector of at least one integer."""
    array = jnp.asarray(indices)
    if array.ndim != 1 or not array.shape[0] or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(
            f"indices must be a vector of >= 1 integers, got shape {list(array.shape)} "
            f"of {array.dtype}"
        )
    return array
