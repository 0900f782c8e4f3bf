"""The usual rate constraints, as tables; see Agarwal et al. 2018 and Cotter et al. 2019."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from jax.typing import ArrayLike

from dpjax.core import check_choice, check_int, check_shape
from dpjax.problems._constraints import ByField, ByLabelAndGroup, ByTable, RateConstraints, table_of


def demographic_parity(
    num_groups: int,
    num_classes: int,
    slack: ArrayLike | None = None,
    *,
    bounds: Mapping[int, tuple[float, float]] | None = None,
    dedupe: bool = False,
) -> RateConstraints:
    r"""Each class is predicted in each group about as often as outside it.

    $$ P_k(z) - P_k(\text{not } z) \le \gamma \quad \text{for all groups } z, \text{classes } k $$

    With `bounds` instead of a slack, the last class alone, on both sides of named groups,

    $$ l_z \le P_{K-1}(z) - P_{K-1}(\text{not } z) \le u_z $$

    Args:
      num_groups: Number of values of `data["group"]`, `>= 2` (*public*).
      num_classes: K `>= 2` (*public*).
      slack: gamma, one number or `[num_groups * num_classes]`, ordered by group, then class; a
        tuple (low, high) is the bounds of every group.
      bounds: `{group: (low, high)}` (*public*).
      dedupe: Whether to drop repeated constraints (for two groups and classes, 4 become 2).

    Returns:
      `RateConstraints` with J = groups x classes; of bounds with two rows a group, upper and lower.

    Raises:
      ValueError: If a number is too small, `slack` has the wrong length or is not finite, a bound's
        low is above its high, or not just one of slack and bounds is given.
      TypeError: If a number of groups or classes is not an integer.

    Example:
      >>> import dpjax
      >>> dpjax.problems.demographic_parity(2, 2, slack=0.05).weights.shape
      (4, 4, 2)
    """
    check_int("num_groups", num_groups, minimum=2)
    check_int("num_classes", num_classes, minimum=2)
    membership = np.concatenate([np.eye(num_groups), 1 - np.eye(num_groups)])
    against = [(z, num_groups + z) for z in range(num_groups)]
    weights = _differences(against, 2 * num_groups, num_classes)
    rule = ByField("group", num_groups)
    if isinstance(slack, tuple) and len(slack) == 2 and bounds is None:
        slack, bounds = None, dict.fromkeys(range(num_groups), slack)
    if (slack is None) == (bounds is None):
        raise ValueError(f"give slack or bounds, not both: got slack={slack}, bounds={bounds}")
    if bounds is None:
        rows = weights.reshape(-1, 2 * num_groups, num_classes)
        return table_of(membership, rows, slack, rule, dedupe)
    signed, limits = [], []
    for z, (low, high) in bounds.items():
        check_int("bounds", z, minimum=0)
        if z >= num_groups or low > high:
            raise ValueError(
                f"bounds must be {{group: (low, high)}} of groups 0..{num_groups - 1} with low <= "
                f"high, got {{{z}: ({low}, {high})}}"
            )
        signed += [weights[z, -1], -weights[z, -1]]
        limits += [high, -low]
    return table_of(membership, np.stack(signed), limits, rule, dedupe)


def equality_of_odds(
    num_groups: int,
    num_classes: int,
    slack: ArrayLike,
    *,
    pairs: str = "rest",
    dedupe: bool = False,
) -> RateConstraints:
    r"""Demographic parity within each true label.

    $$ P_k(y, z) - P_k(y, \text{not } z) \le \gamma \quad\text{or, for all pairs,}\quad
       P_k(y, z) - P_k(y, z') \le \gamma $$

    Args:
      num_groups: Number of values of `data["group"]`, `>= 2` (*public*).
      num_classes: K `>= 2` (*public*).
      slack: One number or one for each constraint, ordered by label, group (pair), class.
      pairs: `"rest"` compares each group with all others together, `"all"` with each other.
      dedupe: Whether to drop repeated constraints.

    Returns:
      `RateConstraints` with J = K^2 a for `"rest"`, K^2 a (a - 1) for `"all"`.

    Raises:
      ValueError: If a number is too small, `pairs` unknown, or `slack` of the wrong length.
      TypeError: If a number of groups or classes is not an integer.

    Example:
      >>> import dpjax
      >>> dpjax.problems.equality_of_odds(3, 2, slack=0.1, pairs="all").num_constraints
      24
    """
    check_int("num_groups", num_groups, minimum=2)
    check_int("num_classes", num_classes, minimum=2)
    check_choice("pairs", pairs, ("rest", "all"))
    cells = num_classes * num_groups
    membership = np.eye(cells)
    if pairs == "rest":
        same_label = np.kron(np.eye(num_classes), np.ones((num_groups, num_groups)))
        membership = np.concatenate([membership, same_label - np.eye(cells)])
        against = [(cell, cells + cell) for cell in range(cells)]
    else:
        each = [range(start, start + num_groups) for start in range(0, cells, num_groups)]
        against = [pair for of_label in each for pair in itertools.permutations(of_label, 2)]
    rows = _differences(against, len(membership), num_classes)
    rule = ByLabelAndGroup(num_classes, num_groups)
    return table_of(membership, rows.reshape(-1, *rows.shape[2:]), slack, rule, dedupe)


def false_negative_rate(
    num_classes: int, slack: ArrayLike, *, classes: Sequence[int] | None = None
) -> RateConstraints:
    r"""How often records of a class are predicted to be of another.

    $$ \sum_{k \ne c} P_k(Y = c) \le \gamma_c \quad \text{for } c \text{ in classes} $$

    Args:
      num_classes: K `>= 2` (*public*).
      slack: One number or one for each of `classes`.
      classes: The classes to bound; default: class 1 where K = 2, else all.

    Returns:
      `RateConstraints` with one row for each of `classes`.

    Raises:
      ValueError: If K < 2, a class is outside 0..K-1, or `slack` has the wrong length.

    Example:
      >>> import dpjax
      >>> dpjax.problems.false_negative_rate(2, slack=0.3).weights.tolist()
      [[[0.0, 0.0], [1.0, 0.0]]]
    """
    classes = _classes(num_classes, classes)
    each = np.eye(num_classes)[classes]
    weights = each[:, :, None] * (1 - each)[:, None]
    return table_of(np.eye(num_classes), weights, slack, ByField("y", num_classes))


def cross_rate(
    num_classes: int, slack: ArrayLike, *, classes: Sequence[int] | None = None
) -> RateConstraints:
    r"""How often records of other classes are predicted to be of this one.

    $$ P_c(Y \ne c) \le \gamma_c \quad \text{for } c \text{ in classes} $$

    For K > 2 this is the one-against-rest *false positive* rate; for K = 2 it is the false
    negative rate of the other class.

    Args:
      num_classes: K `>= 2` (*public*).
      slack: One number or one for each of `classes`.
      classes: The classes to bound; default: class 0 where K = 2 (the false negative rate of class
        1), else all.

    Returns:
      `RateConstraints` with one row for each of `classes`.

    Raises:
      ValueError: If K < 2, a class is outside 0..K-1, or `slack` has the wrong length.
      TypeError: If `num_classes` is not an integer.

    Example:
      >>> import dpjax
      >>> dpjax.problems.cross_rate(3, slack=0.2).num_constraints
      3
    """
    check_int("num_classes", num_classes, minimum=2)
    classes = _classes(num_classes, (0,) if classes is None and num_classes == 2 else classes)
    each = np.eye(num_classes)[classes]
    weights = each[:, :, None] * each[:, None]
    return table_of(1 - np.eye(num_classes), weights, slack, ByField("y", num_classes))


def from_masks(
    masks: ArrayLike,
    weights: ArrayLike,
    slack: ArrayLike,
    *,
    field: str = "cell",
    dedupe: bool = False,
) -> RateConstraints:
    r"""Any subsets of a finite public domain: $\sum_{s,k} A_{jsk} P_k(D_s) \le \gamma_j$.

    The smallest partition is found: cells of the domain that lie in the same subsets become one
    part. List the whole *public* domain, not the cells that occur: which occur is private.

    Args:
      masks: 0/1 `[S, cells]`: subset `s` contains a cell of the public domain.
      weights: `[J, S, K]`.
      slack: One number or `[J]`.
      field: Name of the integer field in the data that holds each record's cell.
      dedupe: Whether to merge equal subsets and drop repeated constraints.

    Returns:
      `RateConstraints` whose parts are the distinct columns of `masks`.

    Raises:
      ValueError: If shapes disagree, an entry is not finite, `masks` holds other than 0 and 1, or
        K < 2.

    Example:
      >>> import dpjax, numpy as np
      >>> both = dpjax.problems.from_masks(
      ...     [[1, 1, 0, 0, 0], [0, 0, 1, 1, 1]], np.array([[[1, 0], [-1, 0]]]), slack=0.1)
      >>> both.part.num_parts
      2

      Equal opportunity, the share of label 1 that is predicted 0 in each of 3 groups, where a
      record's cell is 2 group + label:

      >>> masks = np.eye(6)[[1, 3, 5]]
      >>> weights = np.eye(3)[:, :, None] * np.array([1.0, 0.0])
      >>> dpjax.problems.from_masks(masks, weights, slack=0.25).num_constraints
      3
    """
    masks = np.asarray(masks)
    if masks.ndim != 2 or masks.shape[1] < 1 or not np.all(np.isin(masks, (0, 1))):
        raise ValueError(f"masks must hold 0 and 1, shape [S, cells], got shape {masks.shape}")
    check_shape("weights", weights, (None, masks.shape[0], None))
    columns, table = np.unique(masks, axis=1, return_inverse=True)
    rule = ByTable(field, tuple(int(q) for q in table.reshape(-1)))
    return table_of(columns, weights, slack, rule, dedupe)


def _differences(against: Sequence[tuple[int, int]], subsets: int, classes: int) -> np.ndarray:
    """Rates of each class in the first of two subsets, less those in the second, for each pair."""
    weights = np.zeros((len(against), classes, subsets, classes))
    each = np.arange(classes)
    for row, (first, second) in zip(weights, against, strict=True):
        row[each, first, each], row[each, second, each] = 1, -1
    return weights


def _classes(num_classes: int, classes: Sequence[int] | None) -> list[int]:
    check_int("num_classes", num_classes, minimum=2)
    if classes is None:
        classes = (1,) if num_classes == 2 else range(num_classes)
    for c in classes:
        check_int("classes", c, minimum=0)
        if c >= num_classes:
            raise ValueError(f"classes must lie in 0..{num_classes - 1}, got {c}")
    return list(classes)
