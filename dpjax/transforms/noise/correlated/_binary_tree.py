"""The binary tree: each step's noise is shared by the prefixes whose binary digits name it."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event as dpe
from jax.typing import ArrayLike

from dpjax.core import (
    PyTree,
    Transform,
    check_choice,
    check_nonnegative,
    check_nonnegative_scalar,
    wide,
)
from dpjax.core._chain import keyed
from dpjax.privacy import RelationLike
from dpjax.transforms.noise.correlated import _strategy as strategies
from dpjax.transforms.noise.correlated import _tree_nodes as nodes
from dpjax.transforms.noise.correlated._strategy import knorm_noise


class BinaryTreeState(NamedTuple):
    """State of `BinaryTree`, h = `num_steps.bit_length()`.

    Attributes:
      count: Number of steps so far, `[]` int32 (*public*).
      maxima: Largest scale since the last node of each level, `[h]` (*public*).
      prefixes: Noise of the prefix that ends at the last node of each level, leaves `[h, *p]`
        (*secret*).
    """

    count: jax.Array  # type: ignore[assignment]
    maxima: jax.Array
    prefixes: PyTree


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class BinaryTree:
    r"""Noise of a binary tree over the steps, each of its nodes drawn once.

    $$ \gamma_t = \sum_{i \in I_t} \sigma_i R_i, \qquad
       \sigma_i = \sqrt{U}\, i^a \max_{j \in S_i} \frac{\text{scale}_j}{j^a} $$

    $I_t$ holds the running sums of t's binary digits from the highest, $I_7 = \{4, 6, 7\}$, and
    node i covers the steps $S_i = (i - \text{lowbit}(i), i]$. One step touches at most
    $U$ = `num_steps.bit_length()` nodes, and, with an exponent a, costs
    $U = \max_q \sum_{i \ni q} (q / i)^{2a}$, for larger nodes have more noise than it needs. With
    noise for pure privacy it is U in place of $\sqrt U$, and a in place of 2a.

    Guarantee: of `correlated_noise(strategy, z)`, whatever the scales: one Gaussian of noise
    multiplier z for sensitivities in l2; pure 1/z-DP for one record against the null record, 2/z
    for another record in its place, for sensitivities in l2 or linf with that `distribution`.

    A step reads two vectors of the state and writes one. `variance_reduced` estimates every node
    from its own noise and its children's too, which needs noise on all nodes: about two draws a
    step in the mean and log2(`num_steps`) at most, for about 3/4 of the deviation.

    Args:
      num_steps: Number of steps, `>= 1` (*public*).
      exponent: $a \ge 0$ (*public*), for scales that grow about like $t^a$; with others the
        guarantee is the same and the noise may be larger. It gains nothing where all nodes have
        noise, as for `variance_reduced`.
      variance_reduced: Whether nodes use their children.
      distribution: Of the noise: `"gaussian"`, or of density proportional to $e^{-\|x\|}$ over the
        whole tree of d parameters for pure privacy: `"l2"` (variance $d + 1$ a coordinate) or
        `"linf"` ($(d + 1)(d + 2) / 3$).

    Raises:
      TypeError: If `num_steps` is no integer.
      ValueError: If a value is outside its bound.

    Example:
      >>> tree = BinaryTree(7)
      >>> [round(float(v), 2) for v in tree.prefix_stddev()]  # three nodes at most
      [1.73, 1.73, 2.45, 1.73, 2.45, 2.45, 3.0]

    Source: Dwork, Naor, Pitassi and Rothblum 2010; Chan, Shi and Song 2011; the children's
    estimates: Honaker, "Efficient use of differentially private binary trees", 2015.
    """

    num_steps: int
    exponent: float = 0.0
    variance_reduced: bool = False
    distribution: str = "gaussian"

    def __post_init__(self) -> None:
        strategies.check_steps(self.num_steps)
        check_nonnegative_scalar("exponent", self.exponent)
        check_choice("distribution", self.distribution, ("gaussian", "l2", "linf"))

    @property
    def levels(self) -> int:
        """Number of levels of nodes, h."""
        return int(self.num_steps).bit_length()

    @functools.cached_property
    def node_factor(self) -> float:
        r"""A node's deviation over the largest scale under it, at exponent 0: $\sqrt U$, or U."""
        power = 2.0 if self.distribution == "gaussian" else 1.0
        exponent = power * float(self.exponent)
        return nodes.largest_cost(self.num_steps, exponent, self.variance_reduced) ** (1 / power)

    def init(self, params: PyTree) -> BinaryTreeState:
        """The state before the first step; `params` gives shapes and dtypes."""
        prefixes = strategies.stacked_zeros(params, self.levels)
        maxima = jnp.zeros(self.levels, jnp.result_type(float))
        return BinaryTreeState(jnp.zeros((), jnp.int32), maxima, prefixes)

    def next(
        self, draw: strategies.Draw, scale: ArrayLike, state: BinaryTreeState
    ) -> tuple[PyTree, BinaryTreeState]:
        """The increment of the prefix noise, and the state."""
        dtype, t = state.maxima.dtype, state.count + 1
        exponent = float(self.exponent)
        growth = t.astype(dtype) ** exponent if exponent else jnp.ones((), dtype)
        scale = strategies.valid_scale(scale, state.count, self.num_steps)
        maxima = jnp.maximum(state.maxima, scale / growth)
        stddev = jnp.asarray(self.node_factor, dtype) * growth * maxima
        level = _trailing_zeros(t)
        # an index beyond the last level is clamped to it, where there are zeros until its own turn
        parent, before = _trailing_zeros(t & (t - 1)), _trailing_zeros(t - 1)
        node = stddev[0 if self.variance_reduced else level]

        def scaled(noise: jax.Array, at: jax.Array) -> jax.Array:
            return node.astype(at.dtype) * noise.astype(at.dtype)

        # a node's noise as estimated from itself and all its descendants
        weights = jnp.asarray(nodes.own_weights(stddev.size), dtype)

        def merge(at: jax.Array, right: PyTree) -> PyTree:
            start = jnp.where(at < level, at, parent)  # where the prefix ends that lacks both

            def combine(right: jax.Array, noise: jax.Array, prefixes: jax.Array) -> jax.Array:
                left = _at(prefixes, at - 1) - _at(prefixes, start)
                weight, sd = weights[at].astype(right.dtype), stddev[at].astype(right.dtype)
                return weight * sd * noise.astype(right.dtype) + (1 - weight) * (left + right)

            return jax.tree.map(combine, right, draw(at), state.prefixes)

        own = jax.tree.map(scaled, draw(0), state.prefixes)
        if self.variance_reduced:
            own = jax.lax.fori_loop(1, level + 1, merge, own)
        live = state.count < self.num_steps

        def advance(prefixes: jax.Array, node: jax.Array) -> jax.Array:
            step = _at(prefixes, parent) - _at(prefixes, before) + node
            return strategies.computed_once(step, live)

        def store(prefixes: jax.Array, step: jax.Array) -> jax.Array:
            now = strategies.computed_once(_at(prefixes, before) + step, live)
            return jax.lax.dynamic_update_index_in_dim(prefixes, now, level, 0)

        steps = jax.tree.map(advance, state.prefixes, own)
        prefixes = jax.tree.map(store, state.prefixes, steps)
        maxima = jnp.where(jnp.arange(self.levels) <= level, 0, maxima)
        return steps, BinaryTreeState(t, maxima, prefixes)

    def noise(self, key: jax.Array, like: PyTree) -> PyTree:
        """Standard noise of one node."""
        if self.distribution == "gaussian":
            return strategies.standard_normal(key, like)
        return knorm_noise(key, like, self.distribution)

    def event(
        self, noise_multiplier: float, relation: RelationLike = "add_or_remove_one"
    ) -> dpe.DpEvent:
        """The event of a whole run; for pure privacy it is for this relation alone."""
        event = strategies.gaussian_event(noise_multiplier)
        if self.distribution == "gaussian":
            return event
        epsilon = 1 / float(noise_multiplier) if noise_multiplier > 0 else math.inf
        # with an exponent the nodes have shares of their own, so they are taken together
        count = 1 if self.exponent else self.levels
        return strategies.pure_event(epsilon / count, count, relation)

    def prefix_stddev(self, scales: ArrayLike | None = None) -> np.ndarray:
        """Deviation of a coordinate of each prefix's noise at noise multiplier 1, `[T]` float64.

        For K-norm noise it is in units of the deviation of a coordinate of one draw.
        """
        factor, scales = self.node_factor, strategies.host_scales(scales, self.num_steps)
        return factor * nodes.prefix_stddev(scales, float(self.exponent), self.variance_reduced)


def _trailing_zeros(t: jax.Array) -> jax.Array:
    """Number of trailing zero bits, 32 of 0."""
    return jax.lax.population_count((t & -t) - 1)


def _at(prefixes: jax.Array, level: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(prefixes, level, 0, keepdims=False)


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
    noise = strategies.correlated_noise(tree, stddev)

    def init(params: PyTree) -> TreeAggregationState:
        return TreeAggregationState(jax.tree.map(strategies.wide_zeros, params), noise.init(params))

    def step(
        updates: PyTree, state: TreeAggregationState, key: jax.Array, **extra: Any
    ) -> tuple[PyTree, TreeAggregationState]:
        terms = jax.tree.map(lambda u, sum_: wide(u).astype(sum_.dtype), updates, state.total)
        noisy, after = noise.update(terms, state.noise, key=key, **extra)
        total = jax.tree.map(jnp.add, state.total, noisy)
        out = jax.tree.map(lambda u, sum_: sum_.astype(jnp.result_type(u)), updates, total)
        return out, TreeAggregationState(total, after)

    return keyed(init, step)
