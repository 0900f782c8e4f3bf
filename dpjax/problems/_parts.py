"""Public rules that assign each record to one part of a global partition."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.core import PyTree, check_int, is_traced
from dpjax.core._addressable import held


class PartRule(Protocol):
    """Maps records to part ids; a value outside its public range gives -1."""

    @property
    def num_parts(self) -> int:
        """Number of parts Q, static."""

    def __call__(self, batch: PyTree) -> jax.Array:
        """Part ids, int32 `[B]`."""

    def check(self, data: PyTree) -> None:
        """Raises unless the records' fields exist and, unless traced, lie in their ranges."""


class ByCodes:
    """A rule by integer fields: the number of their combination, the last running fastest."""

    @property
    def sizes(self) -> dict[str, int]:
        """The integer fields that the rule reads, and how many values each has."""
        raise NotImplementedError  # abstract: each subclass has its own

    def __call__(self, batch: PyTree) -> jax.Array:
        """Part ids, int32 `[B]`."""
        codes = [_in_range(batch[name], size) for name, size in self.sizes.items()]
        place = jnp.zeros_like(codes[0])
        for code, size in zip(codes, self.sizes.values(), strict=True):
            place = place * size + jnp.maximum(code, 0)
        return jnp.where(functools.reduce(jnp.minimum, codes) >= 0, place, -1)

    def check(self, data: PyTree) -> None:
        """Raises unless the fields exist and lie in range."""
        for name, size in self.sizes.items():
            check_codes(name, data, size)


class _ByTable(ByCodes):
    """A rule by integer fields whose parts a table names."""

    table: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.table, tuple):
            raise TypeError(f"table must be a tuple of integers, got {self.table!r}")
        for part in self.table:
            check_int("table", part, minimum=-1)

    @property
    def num_parts(self) -> int:
        """Number of distinct parts in the table."""
        return max(self.table, default=-1) + 1

    def __call__(self, batch: PyTree) -> jax.Array:
        """Part ids, int32 `[B]`."""
        place = super().__call__(batch)
        return jnp.where(place < 0, -1, jnp.asarray(self.table, jnp.int32)[place])


@dataclass(frozen=True)
class ByField(ByCodes):
    """Part = value of one integer field.

    Attributes:
      field: Name of the field, of values `[n]`.
      num_parts: Values lie in `0..num_parts-1` (*public*).

    Raises:
      TypeError: If `num_parts` is not an integer.
      ValueError: If `num_parts < 1`.
    """

    field: str
    num_parts: int

    def __post_init__(self) -> None:
        check_int("num_parts", self.num_parts, minimum=1)

    @property
    def sizes(self) -> dict[str, int]:
        """The fields, and how many values each has."""
        return {self.field: self.num_parts}


@dataclass(frozen=True)
class ByLabelAndGroup(ByCodes):
    """Part = label * num_groups + group, of the fields `y` and `group`.

    Attributes:
      num_classes: Labels lie in `0..num_classes-1` (*public*).
      num_groups: Groups lie in `0..num_groups-1` (*public*).

    Raises:
      TypeError: If a number is not an integer.
      ValueError: If a number is below 1.
    """

    num_classes: int
    num_groups: int

    def __post_init__(self) -> None:
        check_int("num_classes", self.num_classes, minimum=1)
        check_int("num_groups", self.num_groups, minimum=1)

    @property
    def num_parts(self) -> int:
        """Number of parts, classes times groups."""
        return self.num_classes * self.num_groups

    @property
    def sizes(self) -> dict[str, int]:
        """The fields, and how many values each has."""
        return {"y": self.num_classes, "group": self.num_groups}


@dataclass(frozen=True)
class ByTable(_ByTable):
    """Part = table[value of one integer field].

    Attributes:
      field: Name of the field, of values `[n]` in `0..len(table)-1`.
      table: The part of each value, -1 for none (*public*).

    Raises:
      TypeError: If `table` is not a tuple of integers.
      ValueError: If it names no part, or an entry is below -1.
    """

    field: str
    table: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_parts < 1:
            raise ValueError(f"table must name at least part 0, got {self.table!r}")

    @property
    def sizes(self) -> dict[str, int]:
        """The fields, and how many values each has."""
        return {self.field: len(self.table)}


@dataclass(frozen=True)
class ByFields(_ByTable):
    """Part = table[values of several integer fields], the last field running fastest.

    Attributes:
      fields: Name of each field, of values `[n]`, and how many values it has (*public*).
      table: The part of each combination, -1 for none (*public*).

    Raises:
      TypeError: If a number is not an integer.
      ValueError: If the table has not one entry for each combination, or a number is too small.
    """

    fields: tuple[tuple[str, int], ...]
    table: tuple[int, ...]

    def __post_init__(self) -> None:
        for _, size in self.fields:
            check_int("fields", size, minimum=1)
        super().__post_init__()
        combinations = math.prod(size for _, size in self.fields)
        if len(self.table) != combinations:
            raise ValueError(f"table must have {combinations} entries, got {len(self.table)}")

    @property
    def sizes(self) -> dict[str, int]:
        """The fields, and how many values each has."""
        return dict(self.fields)


def refined(rules: Sequence[PartRule]) -> tuple[ByFields, np.ndarray]:
    """The coarsest rule that tells apart what any of these does, and its parts' parts in each.

    Returns:
      The rule, of Q parts, and integers `[len(rules), Q]`; -1 where a rule has no part.

    Raises:
      TypeError: If a rule's fields are not known.
      ValueError: If two rules disagree on how many values a field has.
    """
    fields: dict[str, int] = {}
    for rule in rules:
        if not isinstance(rule, ByCodes):
            raise TypeError(f"part must be a rule by integer fields to be combined, got {rule!r}")
        for name, size in rule.sizes.items():
            if fields.setdefault(name, size) != size:
                raise ValueError(
                    f"{name} must have one range, got {fields[name]} and {size} values"
                )
    codes = np.indices(tuple(fields.values())).reshape(len(fields), -1)
    batch = dict(zip(fields, codes, strict=True))
    parts = np.stack([np.asarray(rule(batch)) for rule in rules])
    kept, table = np.unique(parts, axis=1, return_inverse=True)
    nowhere = np.all(kept < 0, axis=0)
    number = np.where(nowhere, -1, np.cumsum(~nowhere) - 1)
    rule = ByFields(tuple(fields.items()), tuple(number[table.reshape(-1)].tolist()))
    return rule, kept[:, ~nowhere]


def check_codes(field: str, data: PyTree, size: int) -> None:
    """Raises unless `data[field]` holds integers `[n]`, and in `0..size-1` if they are known."""
    if not isinstance(data, dict) or field not in data:
        raise ValueError(f'data must be a dict with the integer field "{field}"')
    codes: Any = data[field] if isinstance(data[field], jax.Array) else np.asarray(data[field])
    if codes.ndim != 1 or not np.issubdtype(codes.dtype, np.integer):
        raise ValueError(
            f'data["{field}"] must be integers of shape [n], got {codes.dtype} of shape '
            f"{list(codes.shape)}"
        )
    if is_traced(codes):
        return
    codes = held(codes)
    outside = (codes < 0) | (codes >= size)
    if np.any(outside):
        raise ValueError(
            f'data["{field}"] must lie in 0..{size - 1}: {outside.sum()} of {codes.size} records '
            "are outside"
        )


def _in_range(codes: jax.Array, size: int) -> jax.Array:
    codes = jnp.asarray(codes)
    return jnp.where((codes >= 0) & (codes < size), codes, -1).astype(jnp.int32)
