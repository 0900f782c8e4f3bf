"""A data set: features, labels and groups of the same records.

Data-independent encodings of table columns: each record alone decides its row.

A data set is encoded by a tuple of *blocks*. A block reads one column and knows, before any
record is seen, how many features it makes and what they are called, and these have norm 1 at most.
So the whole encoder is a public constant, and `norm_bound` is a true bound for any record whatever.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from dpjax.core._checks import check_int, check_probability, check_shape

Table = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Records with a label and a group each, and what is publicly known about them.

    Attributes:
        x: `[n, p]` float32, *secret*. Features; the group is not among them.
        y: `[n]` int32, *secret*. Labels `0 .. len(label_names) - 1`.
        group: `[n]` int32, *secret*. Groups `0 .. len(group_names) - 1`.
        feature_names: *public*. Names of the `p` columns of `x`.
        label_names: *public*. Meaning of the labels.
        group_names: *public*. Meaning of the groups.
        norm_bound: *public*. No row that the loader can make has a larger l2 norm.
        name: short name of the data set.
        source: where it comes from.
        licence: under which terms.
        private_preprocessing: whether features and labels are computed from each record alone,
            with public constants, so that using them costs no privacy.
        note: what else a user must know, first of all about privacy.
        subject: `[n]` int32 or None. Which person a record belongs to, where a person has many:
            a guarantee for records is then not one for persons.

    Raises:
      ValueError: If shapes do not fit each other.

    Example:
        >>> import dpjax
        >>> d = dpjax.datasets.adult()
        >>> train, test = d.split(test=0.25, seed=0)
        >>> len(d), len(train), len(test)
        (48842, 36632, 12210)
    """

    x: np.ndarray
    y: np.ndarray
    group: np.ndarray
    feature_names: tuple[str, ...]
    label_names: tuple[str, ...]
    group_names: tuple[str, ...]
    norm_bound: float
    name: str
    source: str
    licence: str
    private_preprocessing: bool = True
    note: str = ""
    subject: np.ndarray | None = None

    def __post_init__(self) -> None:
        n = np.shape(self.y)[0] if np.ndim(self.y) else None
        check_shape("y", self.y, (n,))
        check_shape("x", self.x, (n, len(self.feature_names)))
        check_shape("group", self.group, (n,))
        if self.subject is not None:
            check_shape("subject", self.subject, (n,))

    def __len__(self) -> int:
        """The number of records `n`: public under replace-one only."""
        return len(self.y)

    def __repr__(self) -> str:
        """One line of public facts and sizes; never the records."""
        n, p = self.x.shape
        return f"Dataset({self.name!r}, n={n}, p={p}, groups={list(self.group_names)})"

    @property
    def num_features(self) -> int:
        """The number of features `p`."""
        return self.x.shape[1]

    def as_dict(self) -> dict[str, np.ndarray]:
        """The data as `dpjax.solve` takes it: `{"x": [n, p], "y": [n], "group": [n]}`."""
        return {"x": self.x, "y": self.y, "group": self.group}

    def select(self, rows: np.ndarray) -> "Dataset":
        """The data set of some records only.

        Args:
            rows: indices `[m]` int, or a mask `[n]` bool. Public, or chosen without looking at the
                records: a choice by content is an operation on the data, which this does not track.

        Returns:
            A data set of copies of these records, in this order.

        Raises:
            TypeError: `rows` is neither integer nor boolean.
            IndexError: an index is outside the data set.
        """
        rows = np.asarray(rows)
        if rows.size == 0 and rows.dtype.kind == "f":
            rows = rows.astype(np.int64)
        if rows.dtype.kind not in "iub":
            raise TypeError(f"rows must hold integers or booleans, got dtype {rows.dtype}")
        people = None if self.subject is None else self.subject[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], group=self.group[rows], subject=people)

    def split(self, test: float = 0.25, seed: int = 0) -> tuple["Dataset", "Dataset"]:
        """Splits at random into train and test; the split looks at no record.

        A pure function of `len(self)`, `test` and `seed`: records are permuted by
        `numpy.random.default_rng(seed)` and the first `round(test * n)` are the test set.

        Args:
            test: *public*. The test set's share of the records, in (0, 1).
            seed: *public*. Seed of the permutation, >= 0.

        Returns:
            `(train, test)`, disjoint, together all records.

        Raises:
            ValueError: `test` is outside (0, 1) or leaves one side empty, or `seed` is negative.
            TypeError: `test` is not a number, or `seed` not an integer.
        """
        check_probability("test", test)
        check_int("seed", seed, minimum=0)
        n = len(self)
        size = round(test * n)
        if not 0 < size < n:
            raise ValueError(
                f"test must leave at least one record on each side, got test={test!r}, which puts "
                f"{size} of {n} records into the test set"
            )
        order = np.random.default_rng(seed).permutation(n)
        return self.select(order[size:]), self.select(order[:size])


class Block(Protocol):
    """One group of features made from one column, of l2 norm at most 1."""

    @property
    def column(self) -> str:
        """The column that is read."""

    def names(self) -> tuple[str, ...]:
        """Names of the features, in order."""

    def encode(self, column: np.ndarray) -> np.ndarray:
        """Encodes a column `[n]` as `[n, len(names())]` float32."""


@dataclass(frozen=True)
class OneHot:
    """One feature a category of a public vocabulary; unknown values give an all-zero block.

    Args:
        column: the column to read.
        vocabulary: public, distinct values (str or int).
        groups: public map from values to coarser labels, applied before the vocabulary.
    """

    column: str
    vocabulary: tuple[str, ...] | tuple[int, ...]
    groups: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.column}={value}" for value in self.vocabulary)

    def encode(self, column: np.ndarray) -> np.ndarray:
        index: dict[object, int] = {value: code for code, value in enumerate(self.vocabulary)}
        for value, label in self.groups.items():
            if label in index:
                index[value] = index[label]
        codes = np.fromiter((index.get(v, -1) for v in column.tolist()), np.int64, len(column))
        return _indicator(codes, len(self.vocabulary))


@dataclass(frozen=True)
class Bins:
    """Indicators of public bins `[e_0, e_1), [e_1, e_2), ..., [e_last, inf)` of a number.

    What lies below the first edge, and NaN, gives an all-zero block.

    Args:
        column: the column to read.
        edges: public, strictly increasing lower edges.
    """

    column: str
    edges: tuple[float, ...]

    def names(self) -> tuple[str, ...]:
        low = [f"{edge:g}" for edge in self.edges]
        high = [*low[1:], "inf"]
        return tuple(f"{self.column}:[{a},{b})" for a, b in zip(low, high, strict=True))

    def encode(self, column: np.ndarray) -> np.ndarray:
        value = np.nan_to_num(np.asarray(column, np.float64), nan=-np.inf, posinf=np.inf)
        edges = np.asarray(self.edges, np.float64)
        return _indicator(np.searchsorted(edges, value, side="right") - 1, len(edges))


def encode(table: Table, blocks: Sequence[Block]) -> np.ndarray:
    """Encodes a table, one record at a time in effect: a row depends on its own record alone.

    Args:
        table: *secret*. Columns, each of shape `[n]`.
        blocks: *public*. What is read and how.

    Returns:
        Array `[n, p]` float32 with the blocks side by side, `p = len(feature_names(blocks))`.

    Raises:
        KeyError: a block's column is missing from the table.
    """
    missing = [block.column for block in blocks if block.column not in table]
    if missing:
        raise KeyError(f"table must hold the columns {missing}, got {list(table)}")
    return np.concatenate([block.encode(table[block.column]) for block in blocks], axis=1)


def feature_names(blocks: Sequence[Block]) -> tuple[str, ...]:
    """The names of all features, in the order of `encode`'s columns."""
    return tuple(name for block in blocks for name in block.names())


def norm_bound(blocks: Sequence[Block]) -> float:
    """The largest l2 norm that any record's row can have: a public constant."""
    return math.sqrt(len(blocks))


def _indicator(codes: np.ndarray, width: int) -> np.ndarray:
    """Rows of the identity by code, all zero where the code is outside [0, width)."""
    return (codes[:, None] == np.arange(width)).astype(np.float32)
