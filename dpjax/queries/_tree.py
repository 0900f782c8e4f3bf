"""Blocks of an ordered axis at several levels, from which its intervals are sums of few."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import check_int, register_dataclass, static_field
from dpjax.queries._domain import Domain
from dpjax.queries._prefix import Prefix
from dpjax.queries._workload import Tables, checked_vector


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Tree(Tables):
    r"""Shares of the blocks of $b^l$ neighbouring codes of an ordered axis, for all l.

    Levels from the coarsest, of at least two blocks, to single codes; the last block of a level may
    be shorter. To be measured for `Prefix` and other sums of intervals: an interval of n codes is a
    sum of at most $2 (b - 1) \log_b n$ blocks.

    Guarantee: none by itself. A record is in one block of each of L levels: replacing it moves n
    times the answers by at most $\sqrt{2L}$ in the l2 norm, adding it by $\sqrt L$: exact.

    Args:
      universe: The number of cells of a line, or a `Domain` (*public*, static).
      attribute: The ordered attribute of the domain, as for `Prefix` (*public*, static).
      branching: b, >= 2 (*public*, static).

    Raises:
      TypeError: If `universe` is neither an integer nor a `Domain`.
      ValueError: If the axis has fewer than 2 codes, or the attribute is unknown or missing.

    Example:
      >>> import jax.numpy as jnp
      >>> Tree(6, branching=3).answers(jnp.array([1, 0, 2, 5, 0, 0])).tolist()
      [3, 5, 1, 0, 2, 5, 0, 0]
    """

    universe: int | Domain = dataclasses.field(metadata={"static": True})
    attribute: str | None = static_field(default=None)
    branching: int = static_field(default=4)
    centre = 0.5

    def __post_init__(self) -> None:
        check_int("branching", self.branching, minimum=2)
        vars(self).update(attribute=self._line.attribute)

    @functools.cached_property
    def _line(self) -> Prefix:
        return Prefix(self.universe, self.attribute)

    @functools.cached_property
    def domain(self) -> Domain | None:
        """The domain; None for a line, whose records are indices of cells."""
        return self._line.domain

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """Codes in a block of each level."""
        codes = self._line.num_queries + 1
        powers = (self.branching**level for level in itertools.count())
        return tuple(itertools.takewhile(lambda width: width < codes, powers))[::-1]

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Blocks of each level."""
        return tuple(math.ceil((self._line.num_queries + 1) / width) for width in self.widths)

    @functools.cached_property
    def universe_size(self) -> int:
        """Number of cells."""
        return self._line.universe_size

    def answers(self, p: ArrayLike) -> jax.Array:
        """Sums over the blocks of each level, `[m]`, for `p` `[k]`."""
        cube = checked_vector("p", p, self.universe_size).reshape(self._line._split)
        axis = jnp.sum(cube, axis=(0, 2), dtype=cube.dtype)
        levels = []
        for width, size in zip(self.widths, self.sizes, strict=True):
            padded = jnp.pad(axis, (0, width * size - len(axis)))
            levels.append(jnp.sum(padded.reshape(size, width), axis=1, dtype=axis.dtype))
        return jnp.concatenate(levels)

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """For each cell `[k]` the sum of `v` `[m]` over the blocks it is in."""
        array = checked_vector("v", v, self.num_queries)
        shape = self._line._split
        axis = jnp.zeros(shape[1], array.dtype)
        for width, size, start in zip(self.widths, self.sizes, self.offsets, strict=True):
            axis = axis + jnp.repeat(array[start : start + size], width)[: shape[1]]
        return jnp.broadcast_to(axis[None, :, None], shape).reshape(-1)
