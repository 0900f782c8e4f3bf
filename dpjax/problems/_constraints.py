"""Tables of rate constraints, and the parts of the data that they are over."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import PyTree, register_dataclass, static_field
from dpjax.core._checks import check_finite, check_int, check_shape, check_type, is_traced
from dpjax.core._records import held


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
        place, inside = jnp.zeros((), jnp.int32), jnp.ones((), bool)
        for name, size in self.sizes.items():
            code = jnp.asarray(batch[name])
            fits = (code >= 0) & (code < size)
            place = place * size + jnp.where(fits, code, 0).astype(jnp.int32)
            inside &= fits
        return jnp.where(inside, place, -1)

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
    sizes: dict[str, int] = {}
    for rule in rules:
        if not isinstance(rule, ByCodes):
            raise TypeError(f"part must be a rule by integer fields to be combined, got {rule!r}")
        for name, size in rule.sizes.items():
            if sizes.setdefault(name, size) != size:
                raise ValueError(f"{name} must have one range, got {sizes[name]} and {size} values")
    codes = np.indices(tuple(sizes.values())).reshape(len(sizes), -1)
    batch = dict(zip(sizes, codes, strict=True))
    parts = np.stack([np.asarray(rule(batch)) for rule in rules])
    kept, table = np.unique(parts, axis=1, return_inverse=True)
    nowhere = np.all(kept < 0, axis=0)
    number = np.where(nowhere, -1, np.cumsum(~nowhere) - 1)
    rule = ByFields(tuple(sizes.items()), tuple(number[table.reshape(-1)].tolist()))
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


@register_dataclass
@dataclass(frozen=True)
class RateConstraints:
    r"""The constraints $\Gamma_j = \sum_{s,k} A_{jsk} P_k(D_s) \le \gamma_j$, in one table.

    $P_k(D_s)$ is the rate at which class `k` is predicted on subset `s`, a union of parts of one
    partition of the records. All arrays are *public*; which record is in which part is *secret*.

    Attributes:
      membership: `M`, `[S, Q]` of 0 and 1: subset `s` contains part `q`.
      weights: `A`, `[J, S, K]`.
      slack: `gamma`, `[J]`; data of the pytree, so that a sweep over slacks compiles once.
      part: The public rule that gives each record's part (static).

    Raises:
      ValueError: If shapes disagree, an entry is NaN or infinite, or K = 1.
    """

    membership: jax.Array
    weights: jax.Array
    slack: jax.Array
    part: PartRule = static_field()

    def __post_init__(self) -> None:
        if not all(hasattr(a, "shape") for a in (self.membership, self.weights, self.slack)):
            return  # a pytree placeholder
        if is_traced(self.membership, self.weights) or np.ndim(self.weights) != 3:
            return  # under a transformation, or stacked for a sweep
        for name in ("membership", "weights", "slack"):
            check_finite(name, getattr(self, name))
        subsets, parts = np.shape(self.membership)
        check_shape("weights", self.weights, (None, subsets, None))
        if parts != self.part.num_parts:
            raise ValueError(
                f"membership must have {self.part.num_parts} columns, one a part, got {parts}"
            )
        if not np.all(np.isin(np.asarray(self.membership), (0, 1))):
            raise ValueError("membership must hold 0 and 1 only")
        if np.shape(self.weights)[2] < 2:
            raise ValueError(f"num_classes must be >= 2, got {np.shape(self.weights)[2]}")
        if np.ndim(self.slack) == 1:
            check_shape("slack", self.slack, (np.shape(self.weights)[0],))

    @property
    def num_constraints(self) -> int:
        """J."""
        return self.weights.shape[-3]

    @property
    def num_classes(self) -> int:
        """K."""
        return self.weights.shape[-1]

    def counts(self, cells: jax.Array) -> jax.Array:
        """Subset sizes `[S]` of `cells` `[Q, K]`, predictions by part."""
        return jnp.matmul(self.membership, cells.sum(axis=1), precision="highest")

    def values(self, cells: jax.Array, sizes: jax.Array) -> jax.Array:
        r"""$\Gamma$, `[J]`, from predictions by part `cells` `[Q, K]` and subset `sizes` `[S] > 0`.

        Rates are clipped to [0, 1], which changes nothing where there is no noise.
        """
        sums = jnp.matmul(self.membership, cells, precision="highest")
        return self.weighted(jnp.clip(sums / sizes[:, None], 0, 1))

    def weighted(self, rates: jax.Array) -> jax.Array:
        r"""$\Gamma$, `[J]`, of rates `[S, K]`."""
        return jnp.tensordot(self.weights, rates, axes=2, precision="highest")

    def cell_weights(self, multipliers: jax.Array, sizes: jax.Array) -> jax.Array:
        r"""$U = M^\top V$, $V_{sk} = \sum_j \lambda_j A_{jsk} / d_s$: the whole set at once.

        Args:
          multipliers: `lambda`, `[J]`.
          sizes: `d`, `[S] > 0`.

        Returns:
          `U`, `[Q, K]`: what one record of part `q` pays for a unit of class `k`.
        """
        by_subset = jnp.tensordot(multipliers, self.weights, axes=1, precision="highest")
        return jnp.matmul(self.membership.T, by_subset / sizes[:, None], precision="highest")

    def tabulate(self, predictions: jax.Array, part: jax.Array) -> jax.Array:
        """Sums predictions `[B, K]` by part, `[Q, K]`; an id outside 0..Q-1 adds nothing.

        In full float32 precision on every device: a record must not count for more than 1.
        """
        parts = self.one_hot_parts(part, predictions.dtype)
        return jnp.matmul(parts.T, predictions, precision="highest")

    def one_hot_parts(self, part: jax.Array, dtype: DTypeLike) -> jax.Array:
        """Indicator `[B, Q]` of `part` `[B]`, of type `dtype`; zeros for an id outside 0..Q-1."""
        return jax.nn.one_hot(part, self.part.num_parts, dtype=dtype)

    @classmethod
    def combine(cls, *constraints: "RateConstraints") -> "RateConstraints":
        """All of them at once, in order, over the coarsest partition that tells their parts apart.

        Args:
          *constraints: At least one, of one number of classes, with rules by integer fields.

        Returns:
          The constraints; slacks and multipliers are those of the first, then of the second, ...

        Raises:
          TypeError: If one is no `RateConstraints`, or its rule's fields are not known.
          ValueError: If there is none, or numbers of classes or ranges of fields disagree.

        Example:
          >>> import dpjax
          >>> parity = dpjax.problems.demographic_parity(2, 2, slack=0.05)
          >>> missed = dpjax.problems.false_negative_rate(2, slack=0.2)
          >>> both = dpjax.problems.RateConstraints.combine(parity, missed)
          >>> both.num_constraints, both.part.num_parts
          (5, 4)
        """
        for each in constraints:
            check_type("constraints", each, RateConstraints, "RateConstraints")
        classes = {each.num_classes for each in constraints}
        if len(classes) != 1:
            raise ValueError(f"num_classes must agree, got {sorted(classes)}")
        rule, parts = refined([each.part for each in constraints])
        memberships, rows = [], []
        subsets = [each.membership.shape[0] for each in constraints]
        for i, (each, part) in enumerate(zip(constraints, parts, strict=True)):
            columns = np.asarray(each.membership)[:, np.maximum(part, 0)]
            memberships.append(np.where(part >= 0, columns, 0))
            before, after = sum(subsets[:i]), sum(subsets[i + 1 :])
            rows.append(np.pad(np.asarray(each.weights), ((0, 0), (before, after), (0, 0))))
        slack = np.concatenate([np.asarray(each.slack) for each in constraints])
        return table_of(np.concatenate(memberships), np.concatenate(rows), slack, rule)

    def dedupe(self) -> "RateConstraints":
        r"""The same feasible set with equal subsets merged and equal rows dropped (host).

        Rows are made canonical first: rates of a subset sum to 1, so $A_{js,K-1}$ can be taken
        from the row and from $\gamma_j$. Multipliers of dropped copies add up: halve nothing,
        but expect the effective dual step of two copies to be that of one twice as large.

        Raises:
          TypeError: If the arrays are traced.
        """
        if is_traced(self.membership, self.weights, self.slack):
            raise TypeError("dedupe looks at the values: call it outside jit and vmap")
        membership, place = np.unique(np.asarray(self.membership), axis=0, return_inverse=True)
        weights = np.asarray(self.weights, np.float64)
        merged = np.zeros((weights.shape[0], membership.shape[0], weights.shape[2]))
        for subset, target in enumerate(place.reshape(-1)):
            merged[:, target] += weights[:, subset]
        slack = np.broadcast_to(np.asarray(self.slack, np.float64), weights.shape[:1])
        slack = slack - merged[:, :, -1].sum(axis=1)
        merged = merged - merged[:, :, -1:]
        rows = np.concatenate([merged.reshape(len(slack), -1), slack[:, None]], axis=1)
        _, kept = np.unique(rows.round(12), axis=0, return_index=True)
        kept = np.sort(kept)
        return table_of(membership, merged[kept], slack[kept], self.part)


def table_of(
    membership: ArrayLike, weights: ArrayLike, slack: Any, part: PartRule, dedupe: bool = False
) -> RateConstraints:
    """Arrays to the default float type, one slack for each row."""
    weights = jnp.asarray(weights, float)
    check_finite("slack", slack)
    rows = weights.shape[0]
    if np.ndim(slack) > 1 or (np.ndim(slack) == 1 and np.shape(slack)[0] != rows):
        raise ValueError(f"slack must be a number or have shape [{rows}], got {np.shape(slack)}")
    slack = jnp.broadcast_to(jnp.asarray(slack, float), (rows,))
    made = RateConstraints(jnp.asarray(membership, float), weights, slack, part)
    return made.dedupe() if dedupe else made


def violation(values: ArrayLike, slack: ArrayLike) -> jax.Array:
    r"""$\max_j (\Gamma_j - \gamma_j)_+$, a scalar."""
    return jnp.max(jnp.maximum(jnp.asarray(values) - jnp.asarray(slack), 0), initial=0)


def no_constraints(num_classes: int) -> RateConstraints:
    """The empty table, J = 0, with labels for parts."""
    part = ByField("y", num_classes)
    return table_of(np.zeros((0, num_classes)), np.zeros((0, 0, num_classes)), 0.0, part)
