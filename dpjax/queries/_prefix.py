"""Queries on an ordered axis: prefixes, and a tree of blocks."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from dpjax.core import check_choice, check_int, register_dataclass, static_field
from dpjax.queries._domain import Domain
from dpjax.queries._workload import Tables, Workload, checked_vector


@dataclasses.dataclass(frozen=True)
class _Axis(Workload):
    """Queries on an ordered axis: of a line, or of a domain."""

    universe: int | Domain = dataclasses.field(metadata={"static": True})
    attribute: str | None = static_field(default=None)
    centre = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.universe, Domain):
            attributes = self.universe.attributes
            if self.attribute is None and len(attributes) == 1:
                vars(self).update(attribute=attributes[0])
            check_choice("attribute", self.attribute, attributes)
            self.universe.check_enumerable()
        else:
            check_int("universe", self.universe, minimum=2)
            if self.attribute is not None:
                raise ValueError(
                    f"attribute must be None where the universe is a number, got {self.attribute!r}"
                )
            vars(self).update(universe=int(self.universe))
        name = "universe" if self.attribute is None else f"the size of {self.attribute!r}"
        check_int(name, self._split[1], minimum=2)

    @functools.cached_property
    def domain(self) -> Domain | None:
        """The domain; None for a line, whose records are indices of cells."""
        return self.universe if isinstance(self.universe, Domain) else None

    @functools.cached_property
    def _split(self) -> tuple[int, int, int]:
        """Cells of the axes before, of the axis, and of those after."""
        if not isinstance(self.universe, Domain):
            return 1, self.universe, 1
        shape = self.universe.shape
        axis = self.universe.attributes.index(self.attribute)
        return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])

    @functools.cached_property
    def universe_size(self) -> int:
        """Number of cells."""
        return math.prod(self._split)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Prefix(_Axis):
    r"""All prefixes of an ordered axis: cumulative sums.

    $q_j(z) = 1[z_a \le j], \quad j = 0, \dots, n_a - 2$

    The prefix of everything is left out: it is 1 for every record. An interval is the difference of
    two prefixes. See `Workload` for the methods; `answers` and `adjoint` cost one pass over the
    cells.

    Guarantee: one record moves an answer by at most 1, and all of them by at most
    $\sqrt{n_a - 1}$ in the l2 norm, under every relation: exact.

    Args:
      universe: The number of cells of a line, or a `Domain` (*public*, static).
      attribute: The ordered attribute of the domain, whose codes are in order; may be left out for
        a line, or a domain of one attribute (*public*, static).

    Raises:
      TypeError: If `universe` is neither an integer nor a `Domain`.
      ValueError: If the axis has fewer than 2 codes, or the attribute is unknown or missing.

    Example:
      >>> import jax.numpy as jnp
      >>> prefix = Prefix(4)
      >>> prefix.answers(jnp.array([3, 0, 2, 5])).tolist()
      [3, 3, 5]
      >>> Prefix(Domain({"sex": 2, "age": 10}), "age").num_queries
      9
    """

    @functools.cached_property
    def num_queries(self) -> int:
        """Number of prefixes, one less than the axis has codes."""
        return self._split[1] - 1

    def answers(self, p: ArrayLike) -> jax.Array:
        """Cumulative sums along the axis, `[m]`, for `p` `[k]`."""
        cube = checked_vector("p", p, self.universe_size).reshape(self._split)
        return jnp.cumsum(jnp.sum(cube, axis=(0, 2), dtype=cube.dtype))[:-1]

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """Cumulative sums from the other end, `[k]`, for `v` `[m]`."""
        array = checked_vector("v", v, self.num_queries)
        axis = jnp.append(jnp.cumsum(array[::-1])[::-1], jnp.zeros(1, array.dtype))
        return jnp.broadcast_to(axis[None, :, None], self._split).reshape(-1)

    @functools.cached_property
    def _constants(self) -> dict[str, float]:
        longest = math.sqrt(self.num_queries)
        return {"value_range": 1, "largest": 1, "l2_replaced": longest, "l2_record": longest}


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Tree(_Axis, Tables):
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

    branching: int = static_field(default=4)

    def __post_init__(self) -> None:
        check_int("branching", self.branching, minimum=2)
        super().__post_init__()

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """Codes in a block of each level."""
        _, codes, _ = self._split
        powers = (self.branching**level for level in itertools.count())
        return tuple(itertools.takewhile(lambda width: width < codes, powers))[::-1]

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Blocks of each level."""
        return tuple(math.ceil(self._split[1] / width) for width in self.widths)

    def answers(self, p: ArrayLike) -> jax.Array:
        """Sums over the blocks of each level, `[m]`, for `p` `[k]`."""
        cube = checked_vector("p", p, self.universe_size).reshape(self._split)
        axis = jnp.sum(cube, axis=(0, 2), dtype=cube.dtype)
        levels = []
        for width, size in zip(self.widths, self.sizes, strict=True):
            padded = jnp.pad(axis, (0, width * size - len(axis)))
            levels.append(jnp.sum(padded.reshape(size, width), axis=1, dtype=axis.dtype))
        return jnp.concatenate(levels)

    def adjoint(self, v: ArrayLike) -> jax.Array:
        """For each cell `[k]` the sum of `v` `[m]` over the blocks it is in."""
        array = checked_vector("v", v, self.num_queries)
        shape = self._split
        axis = jnp.zeros(shape[1], array.dtype)
        for width, size, start in zip(self.widths, self.sizes, self.offsets, strict=True):
            axis = axis + jnp.repeat(array[start : start + size], width)[: shape[1]]
        return jnp.broadcast_to(axis[None, :, None], shape).reshape(-1)
