"""Base class of convex hulls of finitely many points."""

from typing import Any, Protocol

import jax
import numpy as np
from jax.typing import ArrayLike


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
