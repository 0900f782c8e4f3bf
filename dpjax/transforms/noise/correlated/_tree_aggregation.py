"""Private prefix sums by tree aggregation."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import PyTree, Transform, check_nonnegative, wide
from dpjax.core._chain import keyed
from dpjax.transforms.noise.correlated._binary_tree import BinaryTree, BinaryTreeState
from dpjax.transforms.noise.correlated._correlated import correlated_noise
from dpjax.transforms.noise.correlated._strategy import wide_zeros


class TreeAggregationState(NamedTuple):
    """State of `tree_aggregation`.

    Attributes:
      total: The last noisy prefix sum, in at least float32; what was released.
      noise: The tree's noise (*secret*), with `count`, the number of calls so far.
    """

    total: PyTree
    noise: BinaryTreeState


@dataclasses.dataclass(frozen=True, eq=False)
class _TreeOfNodes(BinaryTree):
    """A tree whose scale is the deviation of a node, in place of that of a release."""

    @property
    def node_factor(self) -> float:
        """Of the deviation."""
        return 1.0


def tree_aggregation(
    stddev: ArrayLike, num_steps: int, variance_reduced: bool = False
) -> Transform:
    r"""Turns updates into their prefix sums with the noise of a binary tree.

    $$ u_t \mapsto \sum_{i \le t} u_i + \gamma_t, \qquad
       \gamma_t = \sum_{i \in I_t} \mathcal N(0, \sigma_i^2 I), \qquad
       \sigma_i = \text{stddev} \cdot \max_{j \in S_i} \text{sensitivity}_j $$

    $I_t$ are the nodes of t's binary digits, $I_7 = \{4, 6, 7\}$, and node i covers the steps $S_i
    = (i - \text{lowbit}(i), i]$. Each node's noise is drawn once and used again.

    Guarantee: let each record take part in one step at most, and let the update of that step t
    change by at most $\Delta \cdot \text{sensitivity}_t$ in the l2 norm of the whole tree. Then all
    outputs together have the event
    `SelfComposedDpEvent(GaussianDpEvent(stddev / Delta), num_steps.bit_length())`: a step touches
    one node on each level at most. `sensitivity` may depend on public values and earlier outputs
    alone, later updates on earlier outputs too. `correlated_noise` with a `BufferedToeplitz` has
    less noise for the same event, and less state. Idealised as `add_gaussian` is.

    Noise depends on the key, the number of calls so far and the leaf: with the same key at every
    call, a run that goes on from a saved state has the noise of one that was not stopped.

    Args:
      stddev: Standard deviation of a node's noise at sensitivity 1, `>= 0`, in units of the updates
        (*public*); scalar, may be traced.
      num_steps: Number of calls, `>= 1` (*public*). The outputs of later calls are NaN.
      variance_reduced: Whether a node's estimate uses its children too: about 3/4 of the deviation
        under the same event, for about twice the draws (*public*).

    Returns:
      A transformation; `update(updates, state, params=None, *, key, sensitivity=1.0)`.
      `sensitivity` `>= 0`, scalar, may be traced and change from step to step. Sums are kept in at
      least float32 and given in the dtypes of the updates.

    Raises:
      TypeError: If `num_steps` is no integer; at `update`, if the key is missing or not typed.
      ValueError: If `num_steps` is < 1, or `stddev` or `sensitivity` is negative or not finite,
        or the updates have other shapes than `init` was given.

    Example:
      >>> import dpjax, jax, jax.numpy as jnp
      >>> private_sum = dpjax.transforms.tree_aggregation(0.0, num_steps=3)
      >>> state = private_sum.init(jnp.zeros(()))
      >>> for update in (1.0, 2.0, 3.0):
      ...     total, state = private_sum.update(jnp.array(update), state, key=jax.random.key(0))
      >>> float(total)
      6.0

    Source: Dwork, Naor, Pitassi and Rothblum 2010; Chan, Shi and Song 2011; for learning: Kairouz,
    McMahan, Song, Thakkar, Thakurta and Xu, "Practical and private (deep) learning without sampling
    or shuffling", 2021.
    """
    check_nonnegative("stddev", stddev)
    tree = _TreeOfNodes(num_steps, variance_reduced=variance_reduced)
    noise = correlated_noise(tree, stddev)

    def init(params: PyTree) -> TreeAggregationState:
        return TreeAggregationState(jax.tree.map(wide_zeros, params), noise.init(params))

    def step(
        updates: PyTree, state: TreeAggregationState, key: jax.Array, **extra: Any
    ) -> tuple[PyTree, TreeAggregationState]:
        terms = jax.tree.map(lambda u, sum_: wide(u).astype(sum_.dtype), updates, state.total)
        noisy, after = noise.update(terms, state.noise, key=key, **extra)
        total = jax.tree.map(jnp.add, state.total, noisy)
        out = jax.tree.map(lambda u, sum_: sum_.astype(jnp.result_type(u)), updates, total)
        return out, TreeAggregationState(total, after)

    return keyed(init, step)
