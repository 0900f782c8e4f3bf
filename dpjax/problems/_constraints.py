"""Rate constraints: linear inequalities in a model's prediction rates over subsets of the data."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from dpjax.core import check_finite, check_shape, check_type, is_traced, register_dataclass
from dpjax.problems._parts import PartRule, refined

# by default accelerators multiply with 10 bits


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
    part: PartRule = dataclasses.field(metadata={"static": True})

    def __post_init__(self) -> None:
        if not all(hasattr(a, "shape") for a in (self.membership, self.weights, self.slack)):
            return  # a pytree placeholder
        if is_traced(self.membership, self.weights) or np.ndim(self.weights) != 3:
            return  # under a transformation, or stacked for a sweep
        check_finite("membership", self.membership)
        check_finite("weights", self.weights)
        check_finite("slack", self.slack)
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
        rates = jnp.clip(sums / sizes[:, None], 0, 1)
        return self.weighted(rates)

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
        return constraints_of(np.concatenate(memberships), np.concatenate(rows), slack, rule)


def constraints_of(
    membership: ArrayLike, weights: ArrayLike, slack: Any, part: PartRule
) -> RateConstraints:
    """Arrays to the default float type, one slack for each row."""
    weights = jnp.asarray(weights, float)
    check_finite("slack", slack)
    rows = weights.shape[0]
    if np.ndim(slack) > 1 or (np.ndim(slack) == 1 and np.shape(slack)[0] != rows):
        raise ValueError(f"slack must be a number or have shape [{rows}], got {np.shape(slack)}")
    slack = jnp.broadcast_to(jnp.asarray(slack, float), (rows,))
    return RateConstraints(jnp.asarray(membership, float), weights, slack, part)


def violation(values: ArrayLike, slack: ArrayLike) -> jax.Array:
    r"""$\max_j (\Gamma_j - \gamma_j)_+$, a scalar."""
    gap = jnp.asarray(values) - jnp.asarray(slack)
    return jnp.max(jnp.maximum(gap, 0), initial=0)


def no_constraints(num_classes: int, part: PartRule) -> RateConstraints:
    """The empty table, J = 0."""
    return constraints_of(np.zeros((0, part.num_parts)), np.zeros((0, 0, num_classes)), 0.0, part)
