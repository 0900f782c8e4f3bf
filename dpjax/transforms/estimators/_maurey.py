"""Draws of vertices in the place of a distribution over them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dpjax.core import PyTree, Transform, check_int
from dpjax.geometry import sample_vertices
from dpjax.transforms.noise._independent import map_with_keys


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
      >>> draw = dpjax.transforms.maurey_sample(4)
      >>> logits = jnp.array([0.0, 1.0, 2.0])
      >>> indices, _ = draw.update(logits, draw.init(logits), key=jax.random.key(0))
      >>> float(dpjax.geometry.maurey(indices, 3).sum())
      1.0

    Source: Maurey's lemma, in Pisier, "Remarques sur un resultat non publie de B. Maurey", 1981;
    McSherry and Talwar, "Mechanism design via differential privacy", 2007.
    """
    check_int("num_draws", num_draws, minimum=1)

    def init(params: PyTree) -> MaureySampleState:
        del params
        return MaureySampleState(jnp.zeros((), jnp.int32))

    def update(
        logits: PyTree,
        state: MaureySampleState,
        params: PyTree = None,
        *,
        key: jax.Array | None = None,
        **extra: object,
    ) -> tuple[PyTree, MaureySampleState]:
        del params, extra
        indices = map_with_keys(
            lambda leaf, leaf_key: sample_vertices(leaf_key, leaf, num_draws),
            logits,
            key,
            state.count,
        )
        return indices, MaureySampleState(state.count + 1)

    return Transform(init, update)
