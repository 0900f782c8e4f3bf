"""Draws of vertices: Maurey sampling."""

from typing import NamedTuple

import jax

from dpjax.core import Transform, check_int
from dpjax.geometry import sample_vertices
from dpjax.transforms.noise._independent import noise_on_leaves


class MaureySampleState(NamedTuple):
    """State of `maurey_sample`.

    Attributes:
      count: Number of calls so far, `[]` int32 (*public*).
    """

    count: jax.Array  # type: ignore[assignment]


def maurey_sample(num_draws: int) -> Transform:
    r"""Replaces logits by independent draws from their softmax, the vertices of a Maurey average.

    $$ j_1, \dots, j_K \sim \mathrm{softmax}(u), \qquad \hat x = \frac1K \sum_k e_{j_k} $$

    The output are the indices; `dpjax.geometry.maurey(indices, d)`, or `domain.average(indices)`,
    makes the point $\hat x$ of them, whose mean is the softmax itself.

    Guarantee: where one record moves the logits of a leaf by $\delta$ with
    $\max_j \delta_j - \min_j \delta_j \le \eta$, each of its draws is $\eta$-DP and
    $\eta^2/8$-zCDP. The event of one call is
    `SelfComposedDpEvent(ZCDpEvent(eta**2 / 8), num_draws * leaves)`, and `RdpAccountant` takes it.
    Logits that add up gradients remember a record ever after: each later call counts. Idealised as
    `sample_vertices` is.

    The draws depend on the key, on the number of calls so far (the state) and on the leaf.

    Args:
      num_draws: $K \ge 1$, draws for each leaf (*public*, static).

    Returns:
      A transformation; `update(logits, state, params=None, *, key)` takes leaves `[d]` (*secret*)
      and gives leaves `[num_draws]` int32.

    Raises:
      ValueError: If `num_draws < 1`, or, at `update`, a leaf is no vector.
      TypeError: At `update`, if the key is missing or not typed.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> draw = dpjax.papers.estimators.maurey_sample(4)
      >>> logits = jnp.array([0.0, 1.0, 2.0])
      >>> indices, _ = draw.update(logits, draw.init(logits), key=jax.random.key(0))
      >>> float(dpjax.geometry.maurey(indices, 3).sum())
      1.0

    Source: Maurey's lemma, in Pisier, "Remarques sur un resultat non publie de B. Maurey", 1981;
    McSherry and Talwar, "Mechanism design via differential privacy", 2007.
    """
    check_int("num_draws", num_draws, minimum=1)

    def draw(logits: jax.Array, key: jax.Array) -> jax.Array:
        return sample_vertices(key, logits, num_draws)

    return noise_on_leaves(draw, MaureySampleState)
