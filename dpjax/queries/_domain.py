"""The attributes of a table and the cells of their product."""

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_shape, register_dataclass
from dpjax.queries._cells import check_range, checked_codes, integers
from dpjax.queries._domain_spec import Labels, check_distinct, normal_spec, read_json
from dpjax.queries._table import decode_table, encode_table

_MOST_CELLS = 2**31


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Domain:
    r"""The categorical attributes of a table, with the values each may take.

    The universe is their product: $k = \prod_a n_a$ cells, numbered in C order over the attributes
    in the order given, so that the last attribute runs fastest. It is a public constant, and must
    not be read off the data. A domain is hashable, equal by value, and a pytree without leaves.

    Args:
      spec: For each attribute, by name, its number of codes or the list of its labels, which stand
        for 0, 1, ... in turn: a mapping, or pairs (*public*, static).

    Raises:
      TypeError: If a name is no text, or a value neither an integer nor a list of labels.
      ValueError: If there is no attribute, one is named twice, a size is `< 1`, or labels repeat.

    Example:
      >>> domain = Domain({"sex": ["F", "M"], "age": 10})
      >>> domain.attributes, domain.shape, domain.universe_size
      (('sex', 'age'), (2, 10), 20)
      >>> codes = domain.encode({"age": [3, 9], "sex": ["M", "F"]})
      >>> domain.cells(codes).tolist()
      [13, 9]
    """

    spec: Any = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", normal_spec(self.spec))

    @classmethod
    def from_json(cls, source: str | os.PathLike[str] | TextIO) -> "Domain":
        """A domain from JSON such as `{"sex": 2, "race": ["white", "black"]}`.

        Args:
          source: A path, the text itself (it begins with a brace), or an open file (*public*).

        Returns:
          The domain, its attributes in the order of the text.

        Raises:
          ValueError: If the text is no JSON object, or as for a mapping.

        Example:
          >>> Domain.from_json('{"sex": 2, "age": 10}').shape
          (2, 10)
        """
        return cls(read_json(source))

    @functools.cached_property
    def attributes(self) -> tuple[str, ...]:
        """Names of the attributes, in order."""
        return tuple(name for name, _ in self.spec)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of codes of each attribute."""
        return tuple(v if isinstance(v, int) else len(v) for _, v in self.spec)

    @functools.cached_property
    def labels(self) -> tuple[Labels | None, ...]:
        """Labels of each attribute's codes; None where there are only codes."""
        return tuple(None if isinstance(v, int) else v for _, v in self.spec)

    @property
    def universe_size(self) -> int:
        """Number of cells $k$, exactly; it may be far too large to enumerate."""
        return math.prod(self.shape)

    def axes(self, attributes: Iterable[str]) -> tuple[int, ...]:
        """Positions of some attributes, in the domain's order.

        Raises:
          TypeError: If `attributes` is one text and not several.
          ValueError: If one is unknown, or given twice.
        """
        if isinstance(attributes, str):
            raise TypeError(f"attributes must be several names, got {attributes!r}: write a tuple")
        known = {name: axis for axis, name in enumerate(self.attributes)}
        names = list(attributes)
        for name in names:
            if not isinstance(name, str) or name not in known:
                raise ValueError(
                    f"attribute must be one of {list(self.attributes)}, got unknown {name!r}"
                )
        check_distinct("attributes", names)
        return tuple(sorted(known[name] for name in names))

    def project(self, attributes: Iterable[str]) -> "Domain":
        """The domain of some attributes alone, in this domain's order.

        Raises:
          ValueError: If one is unknown or given twice, or there are none.

        Example:
          >>> Domain({"a": 2, "b": 3, "c": 4}).project(("c", "a")).attributes
          ('a', 'c')
        """
        return Domain(tuple(self.spec[axis] for axis in self.axes(attributes)))

    def encode(self, table: object) -> np.ndarray:
        """The codes of a table's records.

        A column of an attribute with labels holds labels; or, if all labels are text and the column
        is of numbers, codes. Other columns of the table are left out. A record outside the public
        domain is an error, never a new category.

        Args:
          table: Codes `[n, A]`; or columns `[n]` by name: a mapping, a structured array, or a data
            frame, whatever has `columns` and is indexed by name (*secret*).

        Returns:
          Codes `[n, A]` int32, column a in `[0, shape[a])` (*secret*).

        Raises:
          TypeError: If `table` is none of these.
          ValueError: If a value is outside its domain (names the column and the number of rows), a
            column is missing, lengths differ, or there are no records.

        Example:
          >>> Domain({"sex": ["F", "M"], "age": 10}).encode({"sex": ["M"], "age": [3]}).tolist()
          [[1, 3]]
        """
        return encode_table(self.attributes, self.shape, self.labels, table)

    def decode(self, codes: ArrayLike) -> dict[str, np.ndarray]:
        """The columns `[n]` behind codes `[n, A]`: labels where there are any, else codes.

        Raises:
          TypeError: If the codes are not integers.
          ValueError: If one is outside its domain, or the shape is another.

        Example:
          >>> Domain({"sex": ["F", "M"], "age": 10}).decode([[1, 3]])["sex"].tolist()
          ['M']
        """
        check_shape("codes", codes, (None, len(self.shape)))
        known = np.asarray(self.record_codes(codes))
        return decode_table(self.attributes, self.labels, known)

    def cells(self, codes: ArrayLike) -> jax.Array:
        """The cells that records lie in.

        Args:
          codes: Integers `[..., A]`; a traced code out of range counts as the nearest (*secret*).

        Returns:
          Indices in `[0, k)`, `[...]` int32.

        Raises:
          TypeError: If the codes are not integers.
          ValueError: If the last axis is not A, a known code is out of range (names its column), or
            there are $2^{31}$ cells or more.
        """
        self.check_enumerable()
        return self.record_codes(codes) @ jnp.asarray(strides(self.shape), jnp.int32)

    def codes(self, cells: ArrayLike) -> jax.Array:
        """The codes `[..., A]` int32 of cells `[...]` in `[0, k)`: the inverse of `cells`."""
        self.check_enumerable()
        known = checked_codes("cells", cells, np.shape(cells), self.universe_size)
        pairs = zip(strides(self.shape), self.shape, strict=True)
        return jnp.stack([known // step % count for step, count in pairs], axis=-1)

    def record_codes(self, codes: ArrayLike) -> jax.Array:
        """`codes` `[..., A]` as int32: checked where known, clipped to their range where traced."""
        got = np.shape(codes)
        if not got or got[-1] != len(self.shape):
            raise ValueError(
                f"codes must have shape [..., {len(self.shape)}], one column for each of "
                f"{list(self.attributes)}, got {list(got)}"
            )
        array = integers("codes", codes)
        for i, (name, size) in enumerate(zip(self.attributes, self.shape, strict=True)):
            check_range(f"codes of {name!r}", array[..., i], size)
        last = np.reshape(self.shape, (1,) * (len(got) - 1) + (-1,)) - 1
        return jnp.clip(array, 0, last.astype(array.dtype)).astype(jnp.int32)

    def check_enumerable(self) -> None:
        """Raises ValueError unless there are fewer than $2^{31}$ cells."""
        size = self.universe_size
        if size >= _MOST_CELLS:
            raise ValueError(
                f"the universe must have < 2**31 cells to be enumerated, got {size} "
                f"(2**{math.log2(size):.1f}) from shape {list(self.shape)}: drop attributes "
                "(Domain.project) or merge categories"
            )


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Distance in C order between neighbours along each axis."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
