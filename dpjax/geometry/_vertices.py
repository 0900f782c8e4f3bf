"""Draws from a softmax over many vertices, the average of those drawn, and what domains are."""

import functools
import math
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_int, check_key, many_devices
from dpjax.geometry._blocks import as_vector, draw, stages, total_lse


class Domain(Protocol):
    r"""A polytope given by its vertices, $X = \mathrm{conv}\{v_1, \dots, v_m\} \subset R^p$.

    A frozen dataclass registered as a pytree: sizes are static, a radius or the vertices are data.
    All of it is *public*. With $V$ the matrix of vertices, `[m, p]`, nothing below forms $V$ where
    its structure is known.
    """

    @property
    def dim(self) -> int:
        """Ambient dimension $p$."""

    @property
    def num_vertices(self) -> int:
        """Number of vertices $m$."""

    @property
    def log_num_vertices(self) -> float:
        r"""$\log m$, the entropic radius of the weights."""

    @property
    def diameter(self) -> Any:
        r"""$\max_{ij} \|v_i - v_j\|_1$; a float."""

    @property
    def radius_l1(self) -> Any:
        r"""An upper bound on $\min_c \max_i \|v_i - c\|_1$; a float."""

    def scores(self, v: ArrayLike) -> jax.Array:
        """Inner products of all vertices with `v` `[p]`: $Vv$, `[m]`."""

    def point(self, weights: ArrayLike) -> jax.Array:
        r"""The point with these weights `[m]`: $V^\top w$, `[p]`."""

    def average(self, indices: ArrayLike) -> jax.Array:
        """The mean of the vertices `indices` `[k]`, `[p]`."""

    def spread(self, v: ArrayLike) -> jax.Array:
        r"""$\max_i \langle v, v_i\rangle - \min_i \langle v, v_i\rangle$; `[..., p]` to `[...]`."""

    def logits(self, v: ArrayLike, low: ArrayLike | None = None) -> jax.Array:
        """`scores(v + low)` up to a shift near the largest, `[m]`.

        `low` `[p]` is what rounding left over of v. The shift comes first, so that what rounding
        does to a score is small against its distance from the largest.
        """

    def sample(
        self, key: jax.Array, v: ArrayLike, k: int, low: ArrayLike | None = None
    ) -> jax.Array:
        """`k` independent vertices from the softmax of `logits(v, low)`: indices `[k]` int32."""

    def project(self, v: ArrayLike) -> jax.Array:
        """The nearest point in the l2 norm to `v` `[p]`, `[p]`."""


def check_last_axis(name: str, array: ArrayLike, dim: int) -> None:
    """Raises ValueError unless `array` has shape `[..., dim]`."""
    if np.ndim(array) < 1 or np.shape(array)[-1] != dim:
        raise ValueError(f"{name} must have shape [..., {dim}], got {list(np.shape(array))}")


def check_num_vertices(number: int) -> None:
    """Raises ValueError unless int32 can number so many vertices, as draws do."""
    if number > 2**31 - 1:
        raise ValueError(f"vertices must be <= {2**31 - 1}, to be numbered in int32, got {number}")


def sample_vertices(key: jax.Array, logits: ArrayLike, k: int) -> jax.Array:
    r"""Draws `k` vertices independently from the softmax of `logits`.

    $$ P[J = j] = \frac{e^{u_j}}{\sum_i e^{u_i}} $$

    In stages, each by Gumbel-max: among a few blocks of blocks, and so on down to a block and an
    entry, where the logit of a block is its log-sum-exp. Blocks have 32 to 63 entries, blocks of
    blocks 16 to 31. One pass over the logits serves all draws: time $O(d + k \log d)$, and no array
    of $kd$ numbers. On CPU it is fastest where a number from 32 to 63 divides d: otherwise the
    logits are copied first.

    Guarantee: each draw is an exponential mechanism. If one record changes the logits by a vector
    $v$ with $\max_j v_j - \min_j v_j \le \eta$, a draw is $\eta$-DP, of bounded range $\eta$ and
    $\eta^2/8$-zCDP: the event of `k` draws is `ZCDpEvent(eta**2 / 8)` composed `k` times. A shift
    common to all logits changes nothing. Idealised in one respect: exact real arithmetic. In
    floating point the weights of the blocks are rounded, and a vertex far below the best keeps a
    probability of some 1e-14 until, 89 below, it is never drawn. The Gumbels are of high resolution
    (46 bits in float32), since ties would favour low indices, and rare vertices would be too rare.

    | logits | draws |
    | --- | --- |
    | `-inf` in some entries | never these |
    | `+inf` in some entries | one of these, unspecified which |
    | `-inf` in all, or NaN in any | an index in range, unspecified which |

    Args:
      key: Typed key, scalar (*secret*).
      logits: Log weights `[d]`, up to a common shift (*secret*).
      k: Number of draws `>= 1` (*public*, static).

    Returns:
      Indices `[k]` int32.

    Raises:
      TypeError: If the key is not typed, or `k` is no integer.
      ValueError: If `logits` is not a vector of at least one entry, or `k < 1`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> logits = jnp.array([-jnp.inf, 0.0, -jnp.inf])
      >>> sample_vertices(jax.random.key(0), logits, 4).tolist()
      [1, 1, 1, 1]

    Source: McSherry and Talwar, "Mechanism design via differential privacy", 2007.
    """
    check_key("key", key)
    check_int("k", k, minimum=1)
    return _sample(key, as_vector("logits", logits), int(k), many_devices())


@functools.partial(jax.jit, static_argnums=(2, 3))
def _sample(key: jax.Array, logits: jax.Array, k: int, spread: bool) -> jax.Array:
    return draw(key, k, stages(logits), spread)[0]


class VertexSet:
    """What domains share: logits and draws are by the scores of all vertices, `[m]`."""

    scores: Callable[[ArrayLike], jax.Array]

    @property
    def log_num_vertices(self: Domain) -> float:
        """Logarithm of the number of vertices."""
        return math.log(self.num_vertices)

    def logits(self, v: ArrayLike, low: ArrayLike | None = None) -> jax.Array:
        """`scores(v + low)` less the largest of `scores(v)`, `[m]`, rounded after that."""
        scores = self.scores(v)
        shifted = scores - jnp.max(scores)
        return shifted if low is None else shifted + self.scores(low)

    def sample(
        self, key: jax.Array, v: ArrayLike, k: int, low: ArrayLike | None = None
    ) -> jax.Array:
        """`k` independent vertices from the softmax of `scores(v + low)`: see `sample_vertices`."""
        return sample_vertices(key, self.scores(v) if low is None else self.logits(v, low), k)


def log_normalize(logits: ArrayLike) -> jax.Array:
    r"""Log probabilities of the softmax of `logits`: $u - \log\sum_j e^{u_j}$.

    The sum runs over short blocks, which keeps the log-sum-exp of the result within about 1e-6 of 0
    in float32, even at $d = 10^6$.

    Args:
      logits: Log weights `[d]`, up to a common shift; some entry finite, none `+inf` or NaN.

    Returns:
      Log probabilities `[d]`; entries of `-inf` stay so.

    Raises:
      ValueError: If `logits` is not a vector of at least one entry.

    Example:
      >>> import jax.numpy as jnp
      >>> [round(float(p), 4) for p in jnp.exp(log_normalize(jnp.array([7.0, 7.0])))]
      [0.5, 0.5]
    """
    logits = as_vector("logits", logits)
    top = jnp.max(logits)
    # the shift first: next to a large one the log of the sum would be rounded off
    shifted = logits - jnp.where(jnp.isfinite(top), top, 0)
    return shifted - total_lse(shifted)


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
